"""asyncpg (binary, prepared statements with server-side names, pipelined batches) by the shim."""

import asyncio
import functools
import io
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_network

import asyncpg
import place
import pytest


def connect(user=place.USER, **more):
    return asyncpg.connect(timeout=place.DEADLINE, **place.options(user), **more)


def with_connection(body):
    """The test gets a connection, and a loop of its own."""
    @functools.wraps(body)
    def test():
        async def run():
            connection = await connect(command_timeout=place.DEADLINE)
            try:
                await connection.execute("TRUNCATE asyncpg_items")
                await body(connection)
            finally:
                await connection.close()
        asyncio.run(run())
    # pytest must not take the argument for a fixture.
    del test.__wrapped__
    return test


@pytest.fixture(scope="module", autouse=True)
def schema():
    async def run(statements):
        connection = await connect()
        await connection.execute(statements)
        await connection.close()

    asyncio.run(run(
        "DROP TABLE IF EXISTS asyncpg_items; DROP TYPE IF EXISTS asyncpg_mood, asyncpg_pair;"
        "CREATE TABLE asyncpg_items (id int PRIMARY KEY, name text, blob bytea);"
        "CREATE TYPE asyncpg_mood AS ENUM ('good', 'bad');"
        "CREATE TYPE asyncpg_pair AS (a int, b text)"
    ))
    yield
    asyncio.run(run("DROP TABLE asyncpg_items; DROP TYPE asyncpg_mood, asyncpg_pair"))


@with_connection
async def test_types_in_binary(connection):
    moment = datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=timezone.utc)
    cases = [
        ("int2", -3), ("int4", 2**31 - 1), ("int8", -2**63), ("float4", 0.5), ("float8", 1e300),
        ("numeric", Decimal("12345678901234567890.00100")), ("bool", True), ("text", None),
        ("text", "ü\t'\\"), ("bytea", bytes(range(256))), ("timestamptz", moment),
        ("date", date(1999, 12, 31)), ("interval", timedelta(days=3, seconds=5)),
        ("uuid", uuid.UUID("00000000-0000-4000-8000-000000000001")), ("int4[]", [1, None, 3]),
        ("text[]", ["a", None, "b,c"]), ("jsonb", '{"a": [1, null]}'),
        ("int4range", asyncpg.Range(1, 5)), ("cidr", ip_network("10.0.0.0/8")),
        ("asyncpg_mood", "bad"), ("varbit", asyncpg.BitString("10110")),
    ]
    for name, value in cases:
        assert await connection.fetchval(f"SELECT $1::{name}", value) == value, name
    row = await connection.fetchrow("SELECT ROW(1, 'x')::asyncpg_pair AS pair")
    assert tuple(row["pair"]) == (1, "x")


@with_connection
async def test_types_in_text(connection):
    rows = await connection.execute("SELECT 1, 'two', NULL")
    assert rows == "SELECT 1"
    await connection.set_type_codec(
        "numeric", encoder=str, decoder=str, schema="pg_catalog", format="text"
    )
    assert await connection.fetchval("SELECT $1::numeric", "1.50") == "1.50"


@with_connection
async def test_statements_are_prepared_and_forgotten(connection):
    twice = await connection.prepare("SELECT $1::int * 2 AS twice")
    assert [a.name for a in twice.get_attributes()] == ["twice"]
    assert [p.name for p in twice.get_parameters()] == ["int4"]
    for number in range(50):
        assert await twice.fetchval(number) == number * 2
    # More texts than the driver keeps: it closes the oldest.
    for number in range(150):
        assert await connection.fetchval(f"SELECT $1::int + {number}", 1) == number + 1
    assert await twice.fetchval(21) == 42
    await connection.reset()
    assert await connection.fetchval("SELECT $1::int * 3", 2) == 6


@with_connection
async def test_a_changed_table_is_seen_after_the_statements_are_reloaded(connection):
    await connection.execute("CREATE TABLE asyncpg_shape (a int)")
    try:
        await connection.execute("INSERT INTO asyncpg_shape VALUES (1)")
        query = "SELECT * FROM asyncpg_shape"
        assert tuple(await connection.fetchrow(query)) == (1,)
        await connection.execute("ALTER TABLE asyncpg_shape ADD COLUMN b int DEFAULT 2")
        assert tuple(await connection.fetchrow(query)) == (1, 2)
    finally:
        await connection.execute("DROP TABLE asyncpg_shape")


@with_connection
async def test_executemany_is_one_pipeline(connection):
    rows = [(n, f"row {n}", bytes([n % 256]) * 100) for n in range(2000)]
    await connection.executemany("INSERT INTO asyncpg_items VALUES ($1, $2, $3)", rows)
    assert await connection.fetchval("SELECT count(*) FROM asyncpg_items") == 2000
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.executemany(
            "INSERT INTO asyncpg_items VALUES ($1, $2, $3)", [(5000, "new", b""), rows[7]]
        )
    assert await connection.fetchval("SELECT count(*) FROM asyncpg_items") == 2000


@with_connection
async def test_fetchmany_gives_the_rows_in_order(connection):
    rows = await connection.fetchmany(
        "INSERT INTO asyncpg_items VALUES ($1, $2) RETURNING id", [(n, "x") for n in range(300)]
    )
    assert [row["id"] for row in rows] == list(range(300))


@with_connection
async def test_transactions_nest_as_savepoints(connection):
    async with connection.transaction():
        await connection.execute("INSERT INTO asyncpg_items VALUES (1, 'outer')")
        with pytest.raises(asyncpg.UniqueViolationError):
            async with connection.transaction():
                await connection.execute("INSERT INTO asyncpg_items VALUES (2, 'inner')")
                await connection.execute("INSERT INTO asyncpg_items VALUES (1, 'again')")
        async with connection.transaction():
            await connection.execute("INSERT INTO asyncpg_items VALUES (3, 'after')")
    ids = await connection.fetchval("SELECT array_agg(id ORDER BY id) FROM asyncpg_items")
    assert ids == [1, 3]


@with_connection
async def test_a_failed_transaction_is_rolled_back(connection):
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with connection.transaction():
            await connection.execute("INSERT INTO asyncpg_items VALUES (1, 'lost')")
            await connection.fetchval("SELECT 1 / $1::int", 0)
    assert await connection.fetchval("SELECT count(*) FROM asyncpg_items") == 0
    async with connection.transaction(isolation="serializable", readonly=True, deferrable=True):
        assert await connection.fetchval("SHOW transaction_isolation") == "serializable"


@with_connection
async def test_cursors_are_portals_with_row_limits(connection):
    async with connection.transaction():
        seen = [r[0] async for r in connection.cursor(
            "SELECT generate_series(1, $1::int)", 100, prefetch=7)]
        assert seen == list(range(1, 101))
        cursor = await connection.cursor("SELECT generate_series(1, 100)")
        assert [r[0] for r in await cursor.fetch(3)] == [1, 2, 3]
        # Another statement between two parts of a portal.
        assert await connection.fetchval("SELECT $1::text", "between") == "between"
        await cursor.forward(10)
        assert (await cursor.fetchrow())[0] == 14


@with_connection
async def test_copy_in_text_and_out(connection):
    source = "".join(f"{n}\tname {n}\t\\N\n" for n in range(10_000)).encode()
    done = await connection.copy_to_table("asyncpg_items", source=io.BytesIO(source))
    assert done == "COPY 10000"
    out = io.BytesIO()
    done = await connection.copy_from_query(
        "SELECT * FROM asyncpg_items WHERE id < $1 ORDER BY id", 100, output=out
    )
    assert done == "COPY 100"
    assert out.getvalue() == b"".join(source.splitlines(keepends=True)[:100])
    out = io.BytesIO()
    await connection.copy_from_table(
        "asyncpg_items", columns=["id"], output=out, format="csv", header=True
    )
    assert out.getvalue().startswith(b"id\n0\n1\n")


@with_connection
async def test_copy_of_records_in_binary(connection):
    records = [(n, f"name {n}", bytes(range(256))) for n in range(5000)]
    done = await connection.copy_records_to_table("asyncpg_items", records=records)
    assert done == "COPY 5000"
    row = await connection.fetchrow("SELECT * FROM asyncpg_items WHERE id = $1", 4999)
    assert tuple(row) == records[-1]


@with_connection
async def test_a_copy_aborted_by_either_side(connection):
    async def broken():
        yield b"1\ta\t\\N\n"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await connection.copy_to_table("asyncpg_items", source=broken())
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await connection.copy_to_table("asyncpg_items", source=io.BytesIO(b"x\ta\t\\N\n"))
    assert await connection.fetchval("SELECT count(*) FROM asyncpg_items") == 0


@with_connection
async def test_a_timeout_cancels_the_query(connection):
    for _ in range(3):
        with pytest.raises(asyncio.TimeoutError):
            # Time enough to get to the server: PostgreSQL ignores a cancel that is too early.
            await connection.fetchval("SELECT pg_sleep(60)", timeout=1)
        assert await connection.fetchval("SELECT $1::int", 5) == 5


@with_connection
async def test_a_cancelled_task_cancels_the_query(connection):
    task = asyncio.create_task(connection.fetchval("SELECT pg_sleep(60)"))
    watcher = await connect()
    while not await watcher.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"
        " AND state = 'active'"
    ):
        await asyncio.sleep(0.02)
    await watcher.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await connection.fetchval("SELECT 1") == 1


@with_connection
async def test_errors_have_all_their_fields(connection):
    await connection.execute("INSERT INTO asyncpg_items VALUES (1, 'a')")
    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await connection.execute("INSERT INTO asyncpg_items VALUES ($1, 'b')", 1)
    error = caught.value
    assert (error.severity, error.severity_en, error.sqlstate) == ("ERROR", "ERROR", "23505")
    assert (error.schema_name, error.table_name) == ("public", "asyncpg_items")
    assert error.constraint_name == "asyncpg_items_pkey"
    assert error.detail == "Key (id)=(1) already exists."
    assert error.server_source_function == "_bt_check_unique"
    with pytest.raises(asyncpg.UndefinedColumnError) as caught:
        await connection.fetch("SELECT nam FROM asyncpg_items WHERE id = $1", 1)
    assert caught.value.position == "8"
    assert "asyncpg_items.name" in caught.value.hint


@with_connection
async def test_notices_reach_their_listener(connection):
    got = []
    connection.add_log_listener(lambda _, message: got.append(message.message))
    await connection.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
    await asyncio.sleep(0)
    assert got == ["one", "two"]


@with_connection
async def test_notifications_reach_their_listener(connection):
    arrived = asyncio.Queue()
    await connection.add_listener(
        "asyncpg_news", lambda _c, _p, channel, payload: arrived.put_nowait((channel, payload))
    )
    speaker = await connect()
    await speaker.execute("BEGIN; NOTIFY asyncpg_news, 'rolled back'; ROLLBACK")
    await speaker.execute("NOTIFY asyncpg_news, 'first'")
    await speaker.fetchval("SELECT pg_notify($1, $2)", "asyncpg_news", "second")
    await speaker.close()
    for payload in ("first", "second"):
        got = await asyncio.wait_for(arrived.get(), place.DEADLINE)
        assert got == ("asyncpg_news", payload)
    assert await connection.fetchval("SELECT 1") == 1


@with_connection
async def test_settings_follow_their_client(connection):
    other = await connect(server_settings={"work_mem": "9MB", "search_path": "pg_catalog"})
    await connection.execute("SET work_mem = '7MB'")
    for _ in range(20):
        assert await connection.fetchval("SELECT current_setting('work_mem')") == "7MB"
        assert await other.fetchval("SELECT current_setting('work_mem')") == "9MB"
    assert await other.fetchval("SHOW search_path") == "pg_catalog"
    await other.close()


def test_its_pool_keeps_more_clients_than_there_are_servers():
    async def work(pool, number):
        for step in range(10):
            async with pool.acquire() as connection, connection.transaction():
                asked = number * 1000 + step
                row = await connection.fetchrow("SELECT $1::int, $2::text", asked, str(number))
                assert tuple(row) == (asked, str(number))

    async def run():
        async with asyncpg.create_pool(
            min_size=place.CROWD, max_size=place.CROWD, timeout=place.DEADLINE,
            **place.options(place.SMALL_USER),
        ) as pool:
            await asyncio.gather(*(work(pool, number) for number in range(place.CROWD)))

    asyncio.run(run())
