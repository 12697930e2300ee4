"""One `pgdog dev` cluster for all tests of the driver."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import psycopg
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("PGDOG_BIN", str(ROOT / "target/release/pgdog"))
PG_CONFIG = os.environ.get("PG_CONFIG", "/usr/bin/pg_config")
LOOKUP = "SELECT shard_id FROM tenants WHERE id = $1"
SCHEMA = [
    "CREATE TABLE tenants (id bigint PRIMARY KEY, name text, shard_id int NOT NULL)",
    "CREATE TABLE orders (tenant_id bigint, id bigint, memo text, PRIMARY KEY (tenant_id, id))",
    "SELECT pgdog.omni_table('tenants')",
    f"SELECT pgdog.shard_table('orders', 'tenant_id', 'bigint', "
    f"lookup_query => '{LOOKUP}', lookup_result => 'shard')",
    "INSERT INTO tenants VALUES (1, 'one', 1), (2, 'two', 0)",
]


class Cluster:
    """What dev.json says, and connections made from it."""

    def __init__(self, description):
        self.description = description

    def connect(self, **options):
        """The application through the shim."""
        d = self.description
        return psycopg.connect(
            host="127.0.0.1", port=d["port"], user=d["user"], password=d["password"],
            dbname=d["database"], **options,
        )

    def node(self, server):
        """The superuser on a server."""
        d = self.description
        return psycopg.connect(
            host="127.0.0.1", port=server["port"], user=d["superuser"]["user"],
            password=d["superuser"]["password"], dbname=d["database"], autocommit=True,
        )

    def on_shard(self, shard, query):
        """One value from the primary of a shard."""
        with self.node(self.description["shards"][shard]["primary"]) as node:
            return node.execute(query).fetchone()[0]


@pytest.fixture(scope="session")
def cluster():
    directory = tempfile.mkdtemp(prefix="pgdog-psycopg-")
    command = [PROGRAM, "dev", "--dir", directory]
    try:
        started = subprocess.run(
            command + ["--shards", "2", "--replicas", "1", "--pg-config", PG_CONFIG],
            capture_output=True, text=True, check=False,
        )
        assert started.returncode == 0, started.stderr
        cluster = Cluster(json.loads(started.stdout))
        with cluster.connect(autocommit=True) as connection:
            for statement in SCHEMA:
                connection.execute(statement)
        yield cluster
    finally:
        subprocess.run(command + ["--stop"], check=True, capture_output=True)
        shutil.rmtree(directory)
