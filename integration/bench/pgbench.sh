#!/bin/bash
# pgbench directly and through the shim, in turns on one cluster, as ratios.
#
#   PG_CONFIG, PGDOG_BIN   as for the tests
#   ROUNDS (3), SECONDS_EACH (5), CLIENTS (8)
#
# The turns are interleaved so that a busy machine hurts both sides alike.
set -euo pipefail

bin=$("${PG_CONFIG:-/usr/bin/pg_config}" --bindir)
shim=${PGDOG_BIN:-target/release/pgdog}
rounds=${ROUNDS:-3}
seconds=${SECONDS_EACH:-5}
clients=${CLIENTS:-8}

dir=$(mktemp -d /tmp/pgdog-bench-XXXXXX)
trap '"$shim" dev --stop --dir "$dir" >/dev/null && rm -rf "$dir"' EXIT
"$shim" dev --dir "$dir" --shards 1 --replicas 0 --pg-config "${PG_CONFIG:-/usr/bin/pg_config}" \
    >/dev/null

field() { python3 -c "import json,sys; d=json.load(open('$dir/dev.json')); print($1)"; }
PGPASSWORD=$(field "d['password']")
export PGPASSWORD
user=$(field "d['user']")
direct=$(field "d['shards'][0]['primary']['port']")
through=$(field "d['port']")

"$bin/pgbench" -h 127.0.0.1 -p "$direct" -U "$user" -i -q -s 10 app 2>/dev/null

tps() { # PORT PROTOCOL
    "$bin/pgbench" -h 127.0.0.1 -p "$1" -U "$user" -n -S -M "$2" -c "$clients" -j 2 \
        -T "$seconds" app 2>/dev/null | awk '/^tps/ { print $3 }'
}

printf '%-10s %6s %12s %12s %7s\n' protocol round direct/s shim/s ratio
for protocol in simple extended prepared; do
    for round in $(seq "$rounds"); do
        a=$(tps "$direct" "$protocol")
        b=$(tps "$through" "$protocol")
        printf '%-10s %6d %12.0f %12.0f %7.2f\n' "$protocol" "$round" "$a" "$b" \
            "$(python3 -c "print($b / $a)")"
    done
done
