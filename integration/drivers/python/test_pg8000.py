"""pg8000 (pure Python, unnamed and named statements in the extended protocol) through the shim."""

import io
import socket
import struct
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from decimal import Decimal

import pg8000.dbapi
import pg8000.native
import place
import pytest

ITEM = "INSERT INTO pg8000_items VALUES (:id, :name)"


def connect(user=place.USER):
    return pg8000.native.Connection(timeout=place.DEADLINE, **place.options(user))


@pytest.fixture
def connection():
    connection = connect()
    yield connection
    connection.close()


@pytest.fixture(scope="module", autouse=True)
def schema():
    connection = connect()
    connection.run("DROP TABLE IF EXISTS pg8000_items")
    connection.run("CREATE TABLE pg8000_items (id int PRIMARY KEY, name text)")
    yield
    connection.run("DROP TABLE pg8000_items")
    connection.close()


@pytest.fixture(autouse=True)
def empty(schema):
    connection = connect()
    connection.run("TRUNCATE pg8000_items")
    connection.close()


def fields(caught):
    return caught.value.args[0]


def test_types_come_back_as_they_went(connection):
    moment = datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=timezone.utc)
    key = uuid.UUID("00000000-0000-4000-8000-000000000001")
    cases = [
        ("int", 1), ("bigint", 2**40), ("float8", 1.5), ("numeric", Decimal("1234567890.123")),
        ("bool", True), ("text", None), ("text", "ü\t'\\"), ("bytea", bytes(range(256))),
        ("timestamptz", moment), ("date", date(1999, 12, 31)), ("uuid", key),
        ("int[]", [1, 2, 3]), ("text[]", ["a", None, "b,c"]), ("jsonb", {"a": [1, None]}),
    ]
    for name, value in cases:
        assert connection.run(f"SELECT cast(:v as {name})", v=value) == [[value]], name


def test_a_prepared_statement_is_run_many_times(connection):
    statement = connection.prepare("SELECT cast(:v as int) * 2")
    for number in range(50):
        assert statement.run(v=number) == [[number * 2]]
        assert connection.run("SELECT cast(:v as text)", v=str(number)) == [[str(number)]]
    assert statement.columns[0]["type_oid"] == 23
    statement.close()
    with pytest.raises(pg8000.native.DatabaseError) as caught:
        statement.run(v=1)
    assert fields(caught)["C"] == "26000"


def test_prepared_statements_live_through_transactions(connection):
    statement = connection.prepare(ITEM)
    for number in range(10):
        connection.run("BEGIN")
        statement.run(id=number, name="x")
        connection.run("COMMIT" if number % 2 else "ROLLBACK")
    statement.close()
    assert connection.run("SELECT count(*) FROM pg8000_items") == [[5]]


def test_savepoints_nest(connection):
    connection.run("START TRANSACTION")
    connection.run(ITEM, id=1, name="outer")
    connection.run("SAVEPOINT a")
    with pytest.raises(pg8000.native.DatabaseError) as caught:
        connection.run(ITEM, id=1, name="again")
    assert fields(caught)["C"] == "23505"
    connection.run("ROLLBACK TO SAVEPOINT a")
    connection.run(ITEM, id=2, name="after")
    connection.run("COMMIT")
    assert connection.run("SELECT array_agg(id ORDER BY id) FROM pg8000_items") == [[[1, 2]]]


def test_the_dbapi_has_transactions_and_batches():
    connection = pg8000.dbapi.connect(timeout=place.DEADLINE, **place.options())
    cursor = connection.cursor()
    rows = [(n, f"row {n}") for n in range(200)]
    cursor.executemany("INSERT INTO pg8000_items VALUES (%s, %s)", rows)
    connection.commit()
    cursor.execute("DELETE FROM pg8000_items")
    assert cursor.rowcount == 200
    connection.rollback()
    cursor.execute("SELECT count(*) FROM pg8000_items")
    assert cursor.fetchone() == [200]
    connection.close()


def test_two_phase_commit(connection):
    """`pgdog dev` servers allow prepared transactions."""
    connection.run("BEGIN")
    connection.run(ITEM, id=1, name="prepared")
    connection.run("PREPARE TRANSACTION 'pg8000 branch'")
    assert connection.run("SELECT count(*) FROM pg8000_items") == [[0]]
    connection.run("COMMIT PREPARED 'pg8000 branch'")
    assert connection.run("SELECT name FROM pg8000_items") == [["prepared"]]


def test_copy_in_and_out(connection):
    text = "".join(f"{n}\tname {n}\n" for n in range(10_000))
    connection.run("COPY pg8000_items FROM STDIN", stream=io.StringIO(text))
    assert connection.row_count == 10_000
    out = io.BytesIO()
    connection.run("COPY (SELECT * FROM pg8000_items ORDER BY id) TO STDOUT", stream=out)
    assert out.getvalue().decode() == text


def test_copy_in_binary(connection):
    out = io.BytesIO()
    connection.run(
        "COPY (SELECT n, 'b' || n FROM generate_series(1, 100) n) TO STDOUT (FORMAT binary)",
        stream=out,
    )
    out.seek(0)
    connection.run("COPY pg8000_items FROM STDIN (FORMAT binary)", stream=out)
    assert connection.run("SELECT count(*), max(name) FROM pg8000_items") == [[100, "b99"]]


def test_copy_that_fails_leaves_the_connection_usable(connection):
    with pytest.raises(pg8000.native.DatabaseError) as caught:
        connection.run("COPY pg8000_items FROM STDIN", stream=io.StringIO("1\ta\nx\tb\n"))
    assert fields(caught)["C"] == "22P02"
    assert connection.run("SELECT count(*) FROM pg8000_items") == [[0]]


def test_a_declared_cursor_fetches_in_steps(connection):
    connection.run("BEGIN")
    connection.run("DECLARE steps SCROLL CURSOR FOR SELECT generate_series(1, 50)")
    assert connection.run("FETCH FORWARD 3 FROM steps") == [[1], [2], [3]]
    assert connection.run("FETCH BACKWARD 1 FROM steps") == [[2]]
    connection.run("CLOSE steps")
    connection.run("COMMIT")


def test_errors_have_all_their_fields(connection):
    connection.run(ITEM, id=1, name="a")
    with pytest.raises(pg8000.native.DatabaseError) as caught:
        connection.run(ITEM, id=1, name="b")
    got = fields(caught)
    assert (got["S"], got["V"], got["C"]) == ("ERROR", "ERROR", "23505")
    assert (got["s"], got["t"], got["n"]) == ("public", "pg8000_items", "pg8000_items_pkey")
    assert got["D"] == "Key (id)=(1) already exists."
    assert {"F", "L", "R"} <= got.keys()
    assert connection.run("SELECT 1") == [[1]]


def test_an_error_in_a_transaction_aborts_it(connection):
    connection.run("BEGIN")
    with pytest.raises(pg8000.native.DatabaseError):
        connection.run("SELECT 1/0")
    with pytest.raises(pg8000.native.DatabaseError) as caught:
        connection.run("SELECT 1")
    assert fields(caught)["C"] == "25P02"
    connection.run("ROLLBACK")
    assert connection.run("SELECT 1") == [[1]]


def test_notices_and_notifications(connection):
    connection.run("DO $$ BEGIN RAISE NOTICE 'hello' USING HINT = 'a hint'; END $$")
    notice = connection.notices.pop()
    assert (notice[b"M"], notice[b"H"]) == (b"hello", b"a hint")
    connection.run("LISTEN pg8000_news")
    connection.run("NOTIFY pg8000_news, 'to myself'")
    speaker = connect()
    speaker.run("SELECT pg_notify('pg8000_news', 'from afar')")
    speaker.close()
    while len(connection.notifications) < 2:
        connection.run("SELECT 1")
    got = [(channel, payload) for _, channel, payload in connection.notifications]
    assert got == [("pg8000_news", "to myself"), ("pg8000_news", "from afar")]
    connection.run("UNLISTEN *")


def test_cancel_ends_the_query(connection):
    """The driver has no call for it: the request is written by hand."""
    def cancel():
        with socket.create_connection((place.HOST, place.PORT), place.DEADLINE) as sock:
            sock.sendall(struct.pack("!ii", 16, 80877102) + connection._backend_key_data)
            while sock.recv(1):
                pass

    with ThreadPoolExecutor(1) as threads:
        victim = threads.submit(connection.run, "SELECT pg_sleep(60)")
        while not victim.done():
            cancel()
            threading.Event().wait(0.05)
        with pytest.raises(pg8000.native.DatabaseError) as caught:
            victim.result()
    assert fields(caught)["C"] == "57014"
    assert connection.run("SELECT 1") == [[1]]


def test_many_connections_on_a_small_pool():
    def work(number):
        connection = connect(place.SMALL_USER)
        statement = connection.prepare("SELECT cast(:v as int), cast(:w as text)")
        for step in range(10):
            asked = number * 1000 + step
            assert statement.run(v=asked, w=str(number)) == [[asked, str(number)]]
        connection.close()

    with ThreadPoolExecutor(place.CROWD) as threads:
        assert len(list(threads.map(work, range(place.CROWD)))) == place.CROWD
