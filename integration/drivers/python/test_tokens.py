"""The examples of docs/tokens.md, as they stand there, each in its own language."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import psycopg
import pytest
from conftest import PG_CONFIG, PROGRAM, ROOT

TEXT = (ROOT / "docs/tokens.md").read_text(encoding="utf-8")
JDBC = "/usr/share/java/postgresql.jar"
# Each time something else is written, and must be read.
TIMES = 5
DEADLINE_S = 120


def example(language):
    """The first block in a language."""
    return re.search(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE).group(1)


@pytest.fixture(scope="module")
def database():
    """A primary with a replica that is a little behind, and where reads go to the replica."""
    directory = tempfile.mkdtemp(prefix="pgdog-tokens-")
    command = [PROGRAM, "dev", "--dir", directory]
    try:
        started = subprocess.run(
            command + ["--shards", "1", "--replicas", "1", "--pg-config", PG_CONFIG],
            stdout=subprocess.PIPE, text=True, check=True,
        )
        d = json.loads(started.stdout)
        database = {
            "host": "127.0.0.1", "port": d["port"], "user": d["user"],
            "password": d["password"], "database": d["database"],
        }
        with psycopg.connect(url(database), autocommit=True) as client:
            client.execute("CREATE TABLE jobs (id bigserial PRIMARY KEY, memo text)")
        replica = dict(d["superuser"], host="127.0.0.1", database=d["database"],
                       port=d["shards"][0]["replicas"][0]["port"])
        with psycopg.connect(url(replica), autocommit=True) as node:
            node.execute("ALTER SYSTEM SET recovery_min_apply_delay = '20ms'")
            node.execute("SELECT pg_reload_conf()")
        # A busy machine may take longer than the 100 ms that a read waits for by default.
        admin = dict(d["admin"], host="127.0.0.1", port=d["port"])
        with psycopg.connect(url(admin), autocommit=True) as operator:
            operator.execute("SET min_lsn_wait TO 30000")
        yield database
    finally:
        subprocess.run(command + ["--stop"], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def url(database):
    return "postgresql://{user}:{password}@{host}:{port}/{database}".format(**database)


def run(command, text, folder, **environment):
    """Runs a program that is given as text."""
    file = pathlib.Path(folder) / command[-1]
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        command[:-1] + [str(file)], env=dict(os.environ, **environment), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S, check=False,
    )
    assert done.returncode == 0, done.stdout


def test_python(database):
    names = {}
    exec(example("python"), names)  # pylint: disable=exec-used
    for time in range(TIMES):
        token = names["place_order"](url(database), f"python {time}")
        assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+@1", token)
        assert names["work"](url(database), token) == f"python {time}"


def test_javascript(database):
    folder = ROOT / "target/node/test"
    folder.mkdir(exist_ok=True)
    text = example("javascript") + f"""
(async () => {{
  const config = JSON.parse(process.env.DATABASE);
  for (let time = 0; time < {TIMES}; time++) {{
    const token = await placeOrder(config, `javascript ${{time}}`);
    const read = await work(config, token);
    if (read !== `javascript ${{time}}`) throw new Error(`${{time}}: ${{token}} ${{read}}`);
  }}
}})();
"""
    run(["node", "tokens.cjs"], text, folder, DATABASE=json.dumps(database))


def test_ruby(database, tmp_path):
    text = example("ruby") + f"""
{TIMES}.times do |time|
  token = place_order(ENV['URL'], "ruby #{{time}}")
  read = work(ENV['URL'], token)
  raise "#{{time}}: #{{token}} #{{read}}" if read != "ruby #{{time}}"
end
"""
    run(["ruby", "tokens.rb"], text, tmp_path, URL=url(database))


def test_java(database, tmp_path):
    text = "import java.sql.*;\n\npublic class Tokens {\n" + example("java") + f"""
    public static void main(String[] arguments) throws SQLException {{
        var tokens = arguments[0] + "&options=-c%20pgdog.report_commit_lsn=on";
        for (int time = 0; time < {TIMES}; time++) {{
            try (var writer = DriverManager.getConnection(tokens);
                 var reader = DriverManager.getConnection(arguments[0])) {{
                String token = placeOrder(writer, "java " + time);
                String read = work(reader, token);
                if (!read.equals("java " + time)) throw new SQLException(token + " " + read);
            }}
        }}
    }}
}}
"""
    # One file is compiled and run in one go.
    file = tmp_path / "Tokens.java"
    file.write_text(text, encoding="utf-8")
    address = "jdbc:postgresql://{host}:{port}/{database}?user={user}&password={password}"
    done = subprocess.run(
        ["java", "-cp", JDBC, str(file), address.format(**database)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S, check=False,
    )
    assert done.returncode == 0, done.stdout
