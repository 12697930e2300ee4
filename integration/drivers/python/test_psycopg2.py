"""psycopg2 (libpq, simple protocol) through the shim."""

import io
import select
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from decimal import Decimal

import place
import psycopg2
import psycopg2.errors
import psycopg2.extras
import pytest


def connect(user=place.USER, autocommit=False, **more):
    options = place.options(user)
    options["dbname"] = options.pop("database")
    connection = psycopg2.connect(**options, **more)
    connection.autocommit = autocommit
    return connection


@pytest.fixture
def connection():
    connection = connect()
    yield connection
    connection.close()


@pytest.fixture(scope="module", autouse=True)
def schema():
    connection = connect(autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS psycopg2_items")
        cursor.execute("CREATE TABLE psycopg2_items (id int PRIMARY KEY, name text, n numeric)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE psycopg2_items")
    connection.close()


@pytest.fixture(autouse=True)
def empty():
    with connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE psycopg2_items")
    connection.close()


def value(connection, query, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchone()[0]


def test_types_come_back_as_they_went(connection):
    moment = datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=timezone.utc)
    values = (
        1, 2**40, 1.5, Decimal("12345678901234567890.123"), True, None, "ü\t'\\", moment,
        [1, 2, 3], ["a", None, "b,c"],
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT %s::int, %s::bigint, %s::float8, %s::numeric, %s::bool, %s::text, %s::text,"
            " %s::timestamptz, %s::int[], %s::text[]", values,
        )
        assert cursor.fetchone() == values
        cursor.execute("SELECT %s::bytea", (psycopg2.Binary(bytes(range(256))),))
        assert bytes(cursor.fetchone()[0]) == bytes(range(256))
        cursor.execute("SELECT %s::jsonb", (psycopg2.extras.Json({"a": [1, None]}),))
        assert cursor.fetchone()[0] == {"a": [1, None]}


def test_special_types_are_registered_by_name(connection):
    psycopg2.extras.register_uuid(conn_or_curs=connection)
    asked = uuid.UUID("00000000-0000-4000-8000-000000000001")
    assert value(connection, "SELECT %s::uuid", (asked,)) == asked
    given = value(connection, "SELECT int4range(1, 5)")
    assert (given.lower, given.upper) == (1, 5)


def test_a_transaction_commits_and_rolls_back(connection):
    with connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO psycopg2_items VALUES (1, 'kept', 1)")
    with pytest.raises(ZeroDivisionError), connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO psycopg2_items VALUES (2, 'lost', 2)")
        raise ZeroDivisionError
    assert value(connection, "SELECT string_agg(name, ',') FROM psycopg2_items") == "kept"


def test_a_failed_transaction_refuses_until_its_end(connection):
    with connection.cursor() as cursor:
        with pytest.raises(psycopg2.errors.DivisionByZero):
            cursor.execute("SELECT 1/0")
        with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
            cursor.execute("SELECT 1")
    status = connection.get_transaction_status()
    assert status == psycopg2.extensions.TRANSACTION_STATUS_INERROR
    connection.rollback()
    assert value(connection, "SELECT 1") == 1


def test_savepoints_nest(connection):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO psycopg2_items VALUES (1, 'outer', 1)")
        cursor.execute("SAVEPOINT a")
        cursor.execute("INSERT INTO psycopg2_items VALUES (2, 'inner', 1)")
        cursor.execute("SAVEPOINT b")
        with pytest.raises(psycopg2.errors.UniqueViolation):
            cursor.execute("INSERT INTO psycopg2_items VALUES (1, 'again', 1)")
        cursor.execute("ROLLBACK TO SAVEPOINT b")
        cursor.execute("RELEASE SAVEPOINT b")
        cursor.execute("ROLLBACK TO SAVEPOINT a")
        cursor.execute("INSERT INTO psycopg2_items VALUES (3, 'after', 1)")
    connection.commit()
    assert value(connection, "SELECT array_agg(id ORDER BY id) FROM psycopg2_items") == [1, 3]


def test_isolation_levels_reach_the_server(connection):
    connection.set_session(isolation_level="SERIALIZABLE", readonly=True)
    assert value(connection, "SHOW transaction_isolation") == "serializable"
    with connection.cursor() as cursor, pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
        cursor.execute("INSERT INTO psycopg2_items VALUES (1, 'no', 1)")
    connection.rollback()


def test_several_statements_in_one_query(connection):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO psycopg2_items VALUES (1, 'a', 1);"
            "UPDATE psycopg2_items SET name = 'b'; SELECT name FROM psycopg2_items"
        )
        assert cursor.fetchall() == [("b",)]
    connection.rollback()


def test_execute_values_and_batches(connection):
    rows = [(n, f"row {n}", n) for n in range(500)]
    with connection, connection.cursor() as cursor:
        returned = psycopg2.extras.execute_values(
            cursor, "INSERT INTO psycopg2_items VALUES %s RETURNING id", rows[:300],
            page_size=50, fetch=True,
        )
        assert [row[0] for row in returned] == list(range(300))
        psycopg2.extras.execute_batch(
            cursor, "INSERT INTO psycopg2_items VALUES (%s, %s, %s)", rows[300:], page_size=100
        )
    assert value(connection, "SELECT count(*) FROM psycopg2_items") == 500


def test_sql_prepared_statements(connection):
    with connection.cursor() as cursor:
        cursor.execute("PREPARE twice (int) AS SELECT $1 * 2")
        for number in range(20):
            connection.commit()
            assert value(connection, "EXECUTE twice (%s)", (number,)) == number * 2
        cursor.execute("DEALLOCATE twice")
        with pytest.raises(psycopg2.errors.InvalidSqlStatementName):
            cursor.execute("EXECUTE twice (1)")
    connection.rollback()


def test_copy_in_and_out(connection):
    text = "".join(f"{n}\tname {n}\t{n}.5\n" for n in range(10_000))
    with connection, connection.cursor() as cursor:
        cursor.copy_from(io.StringIO(text), "psycopg2_items")
        assert cursor.rowcount == 10_000
    with connection.cursor() as cursor:
        out = io.StringIO()
        cursor.copy_expert("COPY (SELECT * FROM psycopg2_items ORDER BY id) TO STDOUT", out)
        assert out.getvalue() == text
        out = io.StringIO()
        cursor.copy_expert(
            "COPY (SELECT 'a,b', NULL, '\"') TO STDOUT WITH (FORMAT csv, HEADER false)", out
        )
        assert out.getvalue() == '"a,b",,""""\n'


def test_copy_that_fails_leaves_the_connection_usable(connection):
    with connection.cursor() as cursor:
        with pytest.raises(psycopg2.errors.InvalidTextRepresentation) as caught:
            cursor.copy_from(io.StringIO("1\ta\t1\nx\tb\t2\n"), "psycopg2_items")
        assert "line 2" in caught.value.diag.context
    connection.rollback()
    assert value(connection, "SELECT count(*) FROM psycopg2_items") == 0

    class Broken(io.StringIO):
        def read(self, size=-1):
            raise OSError("the file is gone")

    with connection.cursor() as cursor, pytest.raises(psycopg2.errors.QueryCanceled):
        cursor.copy_from(Broken(), "psycopg2_items")
    connection.rollback()
    assert value(connection, "SELECT 1") == 1


def test_a_named_cursor_scrolls_and_holds(connection):
    with connection.cursor("scrolls", scrollable=True) as cursor:
        cursor.execute("SELECT generate_series(1, 100)")
        assert cursor.fetchmany(3) == [(1,), (2,), (3,)]
        cursor.scroll(-2)
        assert cursor.fetchone() == (2,)
        cursor.scroll(99, mode="absolute")
        assert cursor.fetchone() == (100,)
    connection.commit()
    held = connection.cursor("held", withhold=True)
    held.execute("SELECT generate_series(1, 100)")
    connection.commit()
    held.itersize = 10
    assert [row[0] for row in held] == list(range(1, 101))
    held.close()
    connection.commit()


def test_errors_have_all_their_fields(connection):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO psycopg2_items VALUES (1, 'a', 1)")
        with pytest.raises(psycopg2.errors.UniqueViolation) as caught:
            cursor.execute("INSERT INTO psycopg2_items VALUES (1, 'b', 1)")
        diag = caught.value.diag
        assert (diag.severity, diag.severity_nonlocalized) == ("ERROR", "ERROR")
        assert (diag.sqlstate, diag.schema_name) == ("23505", "public")
        assert (diag.table_name, diag.constraint_name) == ("psycopg2_items", "psycopg2_items_pkey")
        assert diag.message_detail == "Key (id)=(1) already exists."
        assert diag.source_function == "_bt_check_unique"
        connection.rollback()
        with pytest.raises(psycopg2.errors.UndefinedColumn) as caught:
            cursor.execute("SELECT nam FROM psycopg2_items")
        assert caught.value.diag.statement_position == "8"
        assert "psycopg2_items.name" in caught.value.diag.message_hint
    connection.rollback()


def test_notices_arrive_in_order(connection):
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN FOR n IN 1..3 LOOP RAISE NOTICE 'n%', n; END LOOP; END $$")
    assert [text.split()[-1] for text in connection.notices] == ["n1", "n2", "n3"]


def test_notifications_arrive_after_their_commit():
    listener, speaker = connect(autocommit=True), connect()
    try:
        with listener.cursor() as cursor:
            cursor.execute("LISTEN psycopg2_news")
        with speaker.cursor() as cursor:
            cursor.execute("NOTIFY psycopg2_news, 'rolled back'")
            speaker.rollback()
            cursor.execute("NOTIFY psycopg2_news, 'committed'")
            speaker.commit()
        ready, _, _ = select.select([listener], [], [], place.DEADLINE)
        assert ready
        listener.poll()
        got = [(n.channel, n.payload) for n in listener.notifies]
        assert got == [("psycopg2_news", "committed")]
        with listener.cursor() as cursor:
            cursor.execute("UNLISTEN *")
    finally:
        listener.close()
        speaker.close()


def test_cancel_ends_only_its_own_query():
    slow, other = connect(), connect()
    try:
        with ThreadPoolExecutor(2) as threads:
            victim = threads.submit(value, slow, "SELECT pg_sleep(60)")
            bystander = threads.submit(value, other, "SELECT 7 FROM pg_sleep(2)")
            # A cancel that comes before the query is void, as it is without the shim.
            while not victim.done():
                slow.cancel()
                threading.Event().wait(0.05)
            with pytest.raises(psycopg2.errors.QueryCanceled):
                victim.result()
            assert bystander.result() == 7
        slow.rollback()
        assert value(slow, "SELECT 1") == 1
    finally:
        slow.close()
        other.close()


def test_settings_follow_their_client():
    first, second = connect(autocommit=True), connect(autocommit=True)
    try:
        with first.cursor() as cursor:
            cursor.execute("SET work_mem = '7MB'; SET timezone = 'Asia/Tokyo'")
        for _ in range(20):
            assert value(first, "SHOW work_mem") == "7MB"
            assert value(second, "SHOW work_mem") != "7MB"
        assert first.info.parameter_status("TimeZone") == "Asia/Tokyo"
    finally:
        first.close()
        second.close()


def test_asynchronous_mode():
    options = place.options()
    options["dbname"] = options.pop("database")
    connection = psycopg2.connect(**options, async_=True)
    psycopg2.extras.wait_select(connection)
    cursor = connection.cursor()
    for number in range(20):
        cursor.execute("SELECT %s::int", (number,))
        psycopg2.extras.wait_select(connection)
        assert cursor.fetchone() == (number,)
    connection.close()


def test_many_connections_on_a_small_pool():
    def work(number):
        connection = connect(place.SMALL_USER)
        try:
            for step in range(10):
                asked = number * 1000 + step
                with connection, connection.cursor() as cursor:
                    cursor.execute("SET LOCAL application_name = %s", (f"c{asked}",))
                    cursor.execute("SELECT current_setting('application_name')")
                    assert cursor.fetchone() == (f"c{asked}",)
        finally:
            connection.close()

    with ThreadPoolExecutor(place.CROWD) as threads:
        assert len(list(threads.map(work, range(place.CROWD)))) == place.CROWD
