"""psycopg 3 (libpq, extended protocol, pipeline mode) through the shim."""

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import place
import psycopg
import pytest
from psycopg import pq, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg.types.range import Range

ITEM = "INSERT INTO psycopg_items VALUES (%s, %s)"


def options(user=place.USER):
    options = place.options(user)
    options["dbname"] = options.pop("database")
    return options


def connect(user=place.USER, **more):
    return psycopg.connect(**options(user), **more)


@pytest.fixture
def connection():
    with connect(autocommit=True) as connection:
        connection.execute("TRUNCATE psycopg_items")
        yield connection


@pytest.fixture(scope="module", autouse=True)
def schema():
    with connect(autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS psycopg_items")
        connection.execute("CREATE TABLE psycopg_items (id int PRIMARY KEY, name text)")
        yield
        connection.execute("DROP TABLE psycopg_items")


def value(connection, query, parameters=None):
    return connection.execute(query, parameters).fetchone()[0]


@pytest.mark.parametrize("form", ["text", "binary"])
def test_types_in_both_formats(connection, form):
    mark = "%b" if form == "binary" else "%t"
    moment = datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=timezone.utc)
    cases = [
        ("int2", -3), ("int4", 2**31 - 1), ("int8", -2**63), ("float8", 1e300),
        ("numeric", Decimal("12345678901234567890.00100")), ("bool", True), ("text", None),
        ("text", "ü\t'\\"), ("bytea", bytes(range(256))), ("timestamptz", moment),
        ("date", date(1999, 12, 31)), ("interval", timedelta(days=3, seconds=5)),
        ("uuid", uuid.UUID("00000000-0000-4000-8000-000000000001")), ("int4[]", [1, None, 3]),
        ("text[]", ["a", None, "b,c"]), ("int4range", Range(1, 5)),
    ]
    for name, asked in cases:
        cursor = connection.execute(
            f"SELECT {mark}::{name}", (asked,), binary=form == "binary"
        )
        assert cursor.fetchone() == (asked,), name
    cursor = connection.execute(
        f"SELECT {mark}::jsonb", (Jsonb({"a": [1, None]}),), binary=form == "binary"
    )
    assert cursor.fetchone() == ({"a": [1, None]},)


def test_statements_prepared_by_the_driver(connection):
    connection.prepare_threshold = 0
    connection.prepared_max = 5
    for number in range(60):
        # The driver drops the oldest of six texts with DEALLOCATE or a Close.
        assert value(connection, f"SELECT %s::int + {number % 6}", (number,)) == number + number % 6
    with connection.transaction():
        assert value(connection, "SELECT %s::int + 3", (1,)) == 4


def test_automatic_preparation_survives_deallocate_all(connection):
    connection.prepare_threshold = 0
    assert value(connection, "SELECT %s::int", (1,)) == 1
    connection.execute("DEALLOCATE ALL")
    assert value(connection, "SELECT %s::int", (2,)) == 2


def test_pipelines_keep_their_order(connection):
    with connection.pipeline():
        cursors = [connection.execute("SELECT %s::int", (n,)) for n in range(200)]
        assert [cursor.fetchone()[0] for cursor in cursors] == list(range(200))


def test_an_error_in_a_pipeline_skips_to_its_sync(connection):
    with pytest.raises(psycopg.errors.DivisionByZero), connection.pipeline() as pipeline:
        connection.execute(ITEM, (1, "undone with the error"))
        connection.execute("SELECT 1/0")
        after = connection.execute(ITEM, (2, "skipped"))
        pipeline.sync()
    assert after.pgresult is None or after.pgresult.status == pq.ExecStatus.PIPELINE_ABORTED
    assert value(connection, "SELECT count(*) FROM psycopg_items") == 0
    with connection.pipeline() as pipeline:
        connection.execute(ITEM, (1, "before the sync"))
        pipeline.sync()
        connection.execute(ITEM, (3, "behind it"))
    assert value(connection, "SELECT count(*) FROM psycopg_items") == 2


def test_a_transaction_in_a_pipeline(connection):
    with connection.pipeline(), connection.transaction():
        connection.execute(ITEM, (1, "a"))
        with connection.transaction():
            connection.execute(ITEM, (2, "b"))
    with pytest.raises(psycopg.errors.UniqueViolation):
        with connection.pipeline(), connection.transaction():
            connection.execute(ITEM, (3, "c"))
            connection.execute(ITEM, (1, "again"))
    assert value(connection, "SELECT array_agg(id ORDER BY id) FROM psycopg_items") == [1, 2]


def test_executemany_with_returning(connection):
    with connection.cursor() as cursor:
        cursor.executemany(
            ITEM + " RETURNING id", [(n, "x") for n in range(300)], returning=True
        )
        ids = []
        while True:
            ids.append(cursor.fetchone()[0])
            if not cursor.nextset():
                break
    assert ids == list(range(300))


def test_savepoints_nest(connection):
    with connection.transaction():
        connection.execute(ITEM, (1, "outer"))
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction("named"):
            connection.execute(ITEM, (1, "again"))
        with connection.transaction(force_rollback=True):
            connection.execute(ITEM, (2, "rolled back"))
        connection.execute(ITEM, (3, "after"))
    assert value(connection, "SELECT array_agg(id ORDER BY id) FROM psycopg_items") == [1, 3]


def test_characteristics_of_a_transaction():
    with connect() as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.read_only = True
        connection.deferrable = True
        assert value(connection, "SHOW transaction_isolation") == "serializable"
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute(ITEM, (1, "x"))
        assert connection.info.transaction_status == pq.TransactionStatus.INERROR


def test_copy_in_and_out_as_rows(connection):
    with connection.cursor() as cursor:
        with cursor.copy("COPY psycopg_items FROM STDIN") as copy:
            for number in range(10_000):
                copy.write_row((number, f"name {number}\t\\"))
        assert cursor.rowcount == 10_000
        query = "COPY (SELECT * FROM psycopg_items WHERE id < %s ORDER BY id) TO STDOUT"
        with cursor.copy(query, (100,)) as copy:
            copy.set_types(["int4", "text"])
            assert list(copy.rows()) == [(n, f"name {n}\t\\") for n in range(100)]


def test_copy_in_and_out_in_binary(connection):
    with connection.cursor() as cursor:
        with cursor.copy("COPY psycopg_items FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int4", "text"])
            for number in range(1000):
                copy.write_row((number, "b" * 1000))
        with cursor.copy("COPY psycopg_items TO STDOUT (FORMAT binary)") as copy:
            copy.set_types(["int4", "text"])
            assert sum(1 for _ in copy.rows()) == 1000


def test_a_copy_aborted_by_either_side(connection):
    with connection.cursor() as cursor:
        with pytest.raises(ZeroDivisionError):
            with cursor.copy("COPY psycopg_items FROM STDIN") as copy:
                copy.write_row((1, "a"))
                raise ZeroDivisionError
        with pytest.raises(psycopg.errors.InvalidTextRepresentation) as caught:
            with cursor.copy("COPY psycopg_items FROM STDIN") as copy:
                copy.write("1\ta\nx\tb\n")
        assert "line 2" in caught.value.diag.context
    assert value(connection, "SELECT count(*) FROM psycopg_items") == 0


def test_server_side_cursors():
    with connect() as connection:
        with connection.cursor("steps") as cursor:
            cursor.itersize = 7
            cursor.execute("SELECT generate_series(1, %s)", (50,))
            assert [row[0] for row in cursor] == list(range(1, 51))
        with connection.cursor("scrolls", scrollable=True, binary=True) as cursor:
            cursor.execute("SELECT generate_series(1, 50)")
            cursor.scroll(40)
            assert cursor.fetchone() == (41,)
            cursor.scroll(-11)
            assert cursor.fetchmany(2) == [(31,), (32,)]
        with connection.cursor("held", withhold=True) as cursor:
            cursor.execute("SELECT generate_series(1, 30)")
            connection.commit()
            assert len(cursor.fetchall()) == 30
        connection.commit()


def test_rows_are_streamed_one_by_one_and_in_chunks(connection):
    with connection.cursor() as cursor:
        rows = cursor.stream("SELECT generate_series(1, %s)", (5000,))
        assert [row[0] for row in rows] == list(range(1, 5001))
        for row in cursor.stream("SELECT generate_series(1, 100000)"):
            if row[0] == 10:
                break
    assert value(connection, "SELECT 1") == 1


def test_errors_have_all_their_fields(connection):
    connection.execute(ITEM, (1, "a"))
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        connection.execute(ITEM, (1, "b"))
    diag = caught.value.diag
    assert (diag.severity, diag.severity_nonlocalized) == ("ERROR", "ERROR")
    assert (diag.sqlstate, diag.schema_name) == ("23505", "public")
    assert (diag.table_name, diag.constraint_name) == ("psycopg_items", "psycopg_items_pkey")
    assert diag.message_detail == "Key (id)=(1) already exists."
    assert diag.source_function == "_bt_check_unique"
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        connection.execute("SELECT nam FROM psycopg_items")
    assert caught.value.diag.statement_position == "8"
    assert "psycopg_items.name" in caught.value.diag.message_hint


def test_notices_and_notifications(connection):
    notices, arrived = [], []
    connection.add_notice_handler(lambda diag: notices.append(diag.message_primary))
    connection.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
    assert notices == ["one", "two"]
    connection.execute("LISTEN psycopg_news")
    with connect() as speaker:
        speaker.execute("NOTIFY psycopg_news, 'rolled back'")
        speaker.rollback()
        speaker.execute("SELECT pg_notify('psycopg_news', 'first')")
        speaker.execute("NOTIFY psycopg_news, 'second'")
    for notify in connection.notifies(timeout=place.DEADLINE, stop_after=2):
        arrived.append((notify.channel, notify.payload))
    assert arrived == [("psycopg_news", "first"), ("psycopg_news", "second")]
    connection.execute("UNLISTEN *")


@pytest.mark.parametrize("way", ["cancel", "cancel_safe"])
def test_cancel_ends_only_its_own_query(connection, way):
    with connect(autocommit=True) as other, ThreadPoolExecutor(2) as threads:
        victim = threads.submit(value, connection, "SELECT pg_sleep(60)")
        bystander = threads.submit(value, other, "SELECT 7 FROM pg_sleep(2)")
        # A cancel that comes before the query is void, as it is without the shim.
        while not victim.done():
            getattr(connection, way)()
            threading.Event().wait(0.05)
        with pytest.raises(psycopg.errors.QueryCanceled):
            victim.result()
        assert bystander.result() == 7
    assert value(connection, "SELECT 1") == 1


def test_names_are_composed_and_rows_made_by_factories(connection):
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(
            sql.SQL("SELECT 1 AS {}, {} AS b").format(sql.Identifier('a "b"'), sql.Literal("x'"))
        )
        assert cursor.fetchone() == {'a "b"': 1, "b": "x'"}


def test_two_phase_commit():
    with connect() as connection:
        connection.execute("TRUNCATE psycopg_items")
        connection.commit()
        connection.tpc_begin(connection.xid(1, "psycopg", "branch"))
        connection.execute(ITEM, (1, "prepared"))
        connection.tpc_prepare()
        connection.tpc_commit()
        connection.tpc_begin(connection.xid(1, "psycopg", "other"))
        connection.execute(ITEM, (2, "found again"))
        connection.tpc_prepare()
        connection.close()
    with connect() as connection:
        xids = [x for x in connection.tpc_recover() if x.gtrid == "psycopg"]
        assert len(xids) == 1
        connection.tpc_rollback(xids[0])
        assert value(connection, "SELECT max(name) FROM psycopg_items") == "prepared"


def test_large_values_pass_both_ways(connection):
    big = "x" * (20 << 20)
    assert value(connection, "SELECT %s::text", (big,)) == big
    raw = bytes(range(256)) * (40 << 10)
    assert value(connection, "SELECT %b::bytea", (raw,)) == raw


def test_the_asynchronous_connection():
    async def run():
        connection = await psycopg.AsyncConnection.connect(**options(), autocommit=True)
        async with connection, connection.pipeline():
            cursors = [await connection.execute("SELECT %s::int", (n,)) for n in range(50)]
            assert [(await cursor.fetchone())[0] for cursor in cursors] == list(range(50))

    asyncio.run(run())


def test_many_connections_on_a_small_pool():
    def work(number):
        with connect(place.SMALL_USER) as connection:
            connection.prepare_threshold = 0
            for step in range(10):
                asked = number * 1000 + step
                with connection.transaction():
                    row = connection.execute("SELECT %s::int, %s::text", (asked, str(number)))
                    assert row.fetchone() == (asked, str(number))

    with ThreadPoolExecutor(place.CROWD) as threads:
        assert len(list(threads.map(work, range(place.CROWD)))) == place.CROWD
