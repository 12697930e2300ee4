"""psycopg 3 through the shim: each test's name is what it shows."""

import threading

import psycopg
import pytest

ORDER = "INSERT INTO orders (tenant_id, id, memo) VALUES (%s, %s, %s)"


def token_after(connection, statement, parameters=()):
    """The token that the server pushed with the commit."""
    connection.execute(statement, parameters)
    return connection.info.parameter_status("pgdog.commit_lsn")


def test_a_transaction_commits_as_a_block(cluster):
    with cluster.connect() as connection, connection.transaction():
        connection.execute(ORDER, (1, 1, "first"))
        connection.execute(ORDER, (1, 2, "second"))
    assert cluster.on_shard(1, "SELECT count(*) FROM orders WHERE id IN (1, 2)") == 2
    assert cluster.on_shard(0, "SELECT count(*) FROM orders WHERE id IN (1, 2)") == 0


def test_an_exception_rolls_back(cluster):
    with cluster.connect() as connection:
        with pytest.raises(ZeroDivisionError), connection.transaction():
            connection.execute(ORDER, (1, 3, "never"))
            raise ZeroDivisionError
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute("INSERT INTO tenants VALUES (1, 'again', 0)")
    assert cluster.on_shard(1, "SELECT count(*) FROM orders WHERE id = 3") == 0


def test_nested_transactions_are_savepoints(cluster):
    with cluster.connect() as connection, connection.transaction():
        connection.execute(ORDER, (1, 10, "outer"))
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute(ORDER, (1, 10, "again"))
        connection.execute(ORDER, (1, 11, "after"))
    assert cluster.on_shard(1, "SELECT count(*) FROM orders WHERE id IN (10, 11)") == 2


def test_an_omni_write_is_on_both_shards(cluster):
    with cluster.connect(autocommit=True) as connection:
        connection.execute("INSERT INTO tenants VALUES (%s, %s, %s)", (20, "twenty", 0))
        for shard in (0, 1):
            assert cluster.on_shard(shard, "SELECT name FROM tenants WHERE id = 20") == "twenty"


def test_automatic_preparation_keeps_working(cluster):
    with cluster.connect(autocommit=True) as connection:
        connection.prepare_threshold = 2
        for number in range(30):
            tenant = 1 + number % 2
            connection.execute(ORDER, (tenant, 100 + number, "prepared"))
            count = connection.execute(
                "SELECT count(*) FROM orders WHERE tenant_id = %s AND memo = %s",
                (tenant, "none of these"),
            ).fetchone()
            assert count == (0,)
    for shard in (0, 1):
        assert cluster.on_shard(shard, "SELECT count(*) FROM orders WHERE memo = 'prepared'") == 15


def test_executemany_and_pipelines_arrive_in_order(cluster):
    with cluster.connect() as connection:
        with connection.cursor() as cursor:
            cursor.executemany(ORDER, [(1, 200 + n, "many") for n in range(100)])
        connection.commit()
        with connection.pipeline():
            cursors = [connection.execute("SELECT %s::int", (n,)) for n in range(50)]
            assert [cursor.fetchone()[0] for cursor in cursors] == list(range(50))
    assert cluster.on_shard(1, "SELECT count(*) FROM orders WHERE memo = 'many'") == 100


def test_text_and_binary_parameters_give_the_same_rows(cluster):
    with cluster.connect(autocommit=True) as connection:
        for form in ("%s", "%b", "%t"):
            row = connection.execute(
                f"SELECT {form}::bigint, {form}::text, {form}::uuid",
                (2**62, "ü\t'", "00000000-0000-4000-8000-000000000001"),
                binary=form == "%b",
            ).fetchone()
            assert (row[0], row[1], str(row[2])[-1]) == (2**62, "ü\t'", "1")


def test_binary_keys_are_routed(cluster):
    with cluster.connect(autocommit=True) as connection:
        for tenant in (1, 2):
            connection.execute(
                "INSERT INTO orders (tenant_id, id, memo) VALUES (%b, %b, 'binary')",
                (tenant, 300 + tenant),
            )
    assert cluster.on_shard(1, "SELECT min(tenant_id) FROM orders WHERE memo = 'binary'") == 1
    assert cluster.on_shard(0, "SELECT min(tenant_id) FROM orders WHERE memo = 'binary'") == 2


def test_an_error_has_its_code_and_the_connection_lives(cluster):
    with cluster.connect(autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
            connection.execute("SELECT nothing FROM tenants")
        assert caught.value.diag.sqlstate == "42703"
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_pushed_token_makes_a_replica_serve_the_write(cluster):
    options = "-c pgdog.report_commit_lsn=on -c pgdog.min_lsn_wait=5s"
    with cluster.connect(autocommit=True, options=options) as connection:
        token = token_after(connection, ORDER, (1, 400, "fresh"))
        assert token
        connection.execute(f"SET pgdog.min_lsn = '{token}'")
        row = connection.execute(
            "SELECT memo, pg_is_in_recovery() FROM orders WHERE tenant_id = 1 AND id = 400"
        ).fetchone()
        assert row == ("fresh", True)
        assert "replica" in connection.execute("SHOW pgdog.last_route").fetchone()[0]


def test_a_floor_ahead_of_every_replica_is_58000_with_an_eta(cluster):
    with cluster.connect(autocommit=True) as connection:
        connection.execute("SET pgdog.min_lsn = '0=FFFFFFF/0,1=FFFFFFF/0'")
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT count(*) FROM orders WHERE tenant_id = 1")
        assert caught.value.diag.sqlstate == "58000"
        assert "eta_ms=" in caught.value.diag.message_detail


def test_a_named_cursor_fetches_in_steps(cluster):
    with cluster.connect() as connection:
        with connection.cursor("steps") as cursor:
            cursor.itersize = 7
            cursor.execute("SELECT generate_series(1, 50)")
            assert [row[0] for row in cursor] == list(range(1, 51))


def test_many_threads_get_their_own_answers(cluster):
    wrong = []

    def work(number):
        with cluster.connect(autocommit=True) as connection:
            for step in range(50):
                asked = number * 1000 + step
                if connection.execute("SELECT %s::int", (asked,)).fetchone() != (asked,):
                    wrong.append(asked)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
