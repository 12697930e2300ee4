# Sourced by pgrx-tests/run: what needs a crash, a standby or a promotion. Each test is a function
# whose name is its claim; it fails with the first check that does not hold.

sql() { # PORT SQL...: one session, values only
    local at=$1
    shift
    local statements=()
    for statement in "$@"; do statements+=(-c "$statement"); done
    "$bin/psql" -h 127.0.0.1 -p "$at" -U postgres -qAtX servers "${statements[@]}" 2>&1
}

check() { # WHAT GOT WANTED, a glob
    # shellcheck disable=SC2053
    [[ $2 == $3 ]] || { echo "  $1: got <$2>, wanted <$3>"; return 1; }
}

until_true() { # PORT SQL: until it answers t, for 20 s
    local deadline=$((SECONDS + 20))
    until [ "$(sql "$1" "$2")" = t ]; do
        [ $SECONDS -lt $deadline ] || { echo "  never true: $2"; return 1; }
    done
}

start_standby() {
    as_owner "$bin/pg_basebackup" -h 127.0.0.1 -p "$port" -U postgres -D "$work/standby" \
        -R -X stream -c fast > "$work/basebackup.log" 2>&1 || return 1
    as_owner "$bin/pg_ctl" -D "$work/standby" -l "$work/standby.log" -o "-p $standby" -w start \
        > /dev/null
}

incarnation_changes_when_a_backend_crashes() {
    local before after backend
    before=$(sql "$port" 'SHOW pgdog.incarnation')
    check "same server" "$(sql "$port" 'SHOW pgdog.incarnation')" "$before" || return 1
    "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -qX servers \
        -c "SET application_name = 'victim'" -c 'SELECT pg_sleep(60)' > /dev/null 2>&1 &
    until_true "$port" "SELECT count(*) = 1 FROM pg_stat_activity
        WHERE application_name = 'victim' AND wait_event = 'PgSleep'" || return 1
    backend=$(sql "$port" "SELECT pid FROM pg_stat_activity WHERE application_name = 'victim'")
    kill -KILL "$backend"
    wait $!
    until_true "$port" "SELECT current_setting('pgdog.incarnation') <> '$before'" || return 1
    after=$(sql "$port" 'SHOW pgdog.incarnation')
    check "a new incarnation" "$after" '????????????????????????????????'
}

wait_lsn_waits_for_replay_without_a_snapshot() {
    local token
    sql "$standby" 'SELECT pg_wal_replay_pause()' > /dev/null
    token=$(sql "$port" "INSERT INTO plans VALUES (1, 'seen')" 'SELECT pg_current_wal_insert_lsn()')
    local refused
    refused=$(sql "$standby" '\set VERBOSITY verbose' "SET pgdog.wait_lsn = '$token'")
    check "refused" "$refused" '*58000*eta_ms=*' || return 1
    sql "$standby" "SET application_name = 'waiter'" "SET pgdog.wait_lsn_timeout = '20s'" \
        "SET pgdog.wait_lsn = '$token'" 'SELECT title FROM plans' > "$work/waiter" &
    local waiter=$!
    until_true "$standby" "SELECT count(*) = 1 FROM pg_stat_activity
        WHERE application_name = 'waiter' AND wait_event_type = 'Extension'" || return 1
    check "no snapshot" "$(sql "$standby" "SELECT backend_xmin IS NULL FROM pg_stat_activity
        WHERE application_name = 'waiter'")" t || return 1
    sql "$standby" 'SELECT pg_wal_replay_resume()' > /dev/null
    wait $waiter
    check "served" "$(cat "$work/waiter")" seen
}

a_standby_refuses_older_placement_once_it_has_replayed() {
    sql "$port" "SELECT pgdog.shard_table('orders', 'tenant_id')" > /dev/null
    local epoch token
    epoch=$(sql "$port" 'SELECT epoch FROM pgdog.topology')
    token=$(sql "$port" 'SELECT pg_current_wal_insert_lsn()')
    local wait="SET pgdog.wait_lsn_timeout = '20s'"
    check "stale" "$(sql "$standby" "$wait" "SET pgdog.wait_lsn = '$token'" \
        "SET pgdog.epoch = '$((epoch - 1))'" 'SELECT count(*) FROM orders')" \
        '*stale topology*' || return 1
    check "current" "$(sql "$standby" "SET pgdog.epoch = '$epoch'" \
        'SELECT count(*) FROM orders')" 0 || return 1
    check "node" "$(sql "$standby" 'SELECT in_recovery, epoch, receive_lsn >= replay_lsn
        FROM pgdog.node')" "t|$epoch|t" || return 1
    check "replicas" "$(sql "$port" 'SELECT state, lag_bytes >= 0 FROM pgdog.replicas')" \
        'streaming|t'
}

a_position_behind_the_fork_is_lost() {
    local old lost
    old=$(sql "$port" 'SELECT pg_current_wal_insert_lsn()')
    sql "$standby" "SET pgdog.wait_lsn_timeout = '20s'" "SET pgdog.wait_lsn = '$old@1'" || return 1
    sql "$standby" 'SELECT pg_promote()' > /dev/null
    lost=$(sql "$port" "INSERT INTO plans VALUES (2, 'lost')" \
        "SELECT pg_current_wal_insert_lsn()")
    # The new primary writes past that position: the same number is another position there.
    until_true "$standby" "SELECT NOT pg_is_in_recovery()" || return 1
    sql "$standby" "INSERT INTO plans SELECT n, repeat('x', 500) FROM generate_series(10, 2000) n"
    check "here by number" "$(sql "$standby" "SELECT replay_lsn > '$lost' FROM pgdog.node")" t \
        || return 1
    check "timeline" "$(sql "$standby" 'SELECT timeline FROM pgdog.node')" 2 || return 1
    check "kept" "$(sql "$standby" "SET pgdog.wait_lsn = '$old@1'" 'SELECT 1')" 1 || return 1
    check "lost" "$(sql "$standby" '\set VERBOSITY verbose' "SET pgdog.wait_lsn = '$lost@1'")" \
        '*58000*' || return 1
    check "not yet" "$(sql "$standby" "SET pgdog.wait_lsn = '$old@3'")" '*ERROR*'
}

server_tests() {
    standby=$((port + 1))
    "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -qX postgres -c 'CREATE DATABASE servers'
    sql "$port" 'CREATE EXTENSION pgdog' 'SELECT pgdog.install_node(0, 2)' \
        'CREATE TABLE plans (id int, title text)' \
        'CREATE TABLE orders (id int, tenant_id bigint)' > /dev/null
    local test outcome
    for test in incarnation_changes_when_a_backend_crashes start_standby \
        wait_lsn_waits_for_replay_without_a_snapshot \
        a_standby_refuses_older_placement_once_it_has_replayed \
        a_position_behind_the_fork_is_lost; do
        if outcome=$($test 2>&1); then
            [ $test = start_standby ] && continue
            echo "ok $test"
            passed=$((passed + 1))
        else
            printf 'not ok %s\n%s\n' "$test" "$outcome"
            failed=$((failed + 1))
        fi
    done
}
