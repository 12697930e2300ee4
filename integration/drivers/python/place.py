"""Where the suites connect to: the environment that `cluster` prints.

The standard variables (PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE) name the shim, so the same
suite also runs against a server: that is how a test that is wrong itself is told from a finding.
"""

import os

HOST = os.environ.get("PGHOST", "127.0.0.1")
PORT = int(os.environ.get("PGPORT", "5432"))
USER = os.environ.get("PGUSER", "app")
PASSWORD = os.environ.get("PGPASSWORD", "")
DATABASE = os.environ.get("PGDATABASE", "app")
# This user has three server connections.
SMALL_USER = os.environ.get("PGDOG_SMALL_USER", USER)
SESSION_MODE = os.environ.get("PGDOG_POOLER_MODE") == "session"
# Clients at once on the small pool. In session mode a client keeps its server, so no more fit.
CROWD = 3 if SESSION_MODE else 30
# No test is about time: this is only how long a broken one may hang.
DEADLINE = 60


def options(user=USER):
    """Host, port and account under the names that most drivers have for them."""
    return {
        "host": HOST, "port": PORT, "user": user, "password": PASSWORD, "database": DATABASE,
    }
