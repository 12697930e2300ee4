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

until_sampled() { # DATA: until its server has a worker that samples, for 20 s
    local deadline=$((SECONDS + 20)) postmaster
    postmaster=$(head -n 1 "$1/postmaster.pid")
    until ps -o args= --ppid "$postmaster" | grep -q 'pgdog commit stamps'; do
        [ $SECONDS -lt $deadline ] || { echo "  no worker in $1"; return 1; }
    done
}

start_standby() {
    as_owner "$bin/pg_basebackup" -h 127.0.0.1 -p "$port" -U postgres -D "$work/standby" \
        -R -X stream -c fast > "$work/basebackup.log" 2>&1 || return 1
    as_owner "$bin/pg_ctl" -D "$work/standby" -l "$work/standby.log" -o "-p $standby" -w start \
        > /dev/null
}

# Eight sessions commit and ask for their own commit's stamp, two more commit in two phases. What
# WAL says about every commit is then held against every answer.
no_answer_of_lsn_for_timestamp_misses_a_commit() {
    sql "$port" 'CREATE TABLE asked (stamp timestamptz, covered pg_lsn)' \
        'CREATE TABLE phases (n int)' 'CREATE TABLE written (position pg_lsn, stamp timestamptz)' \
        'CREATE PROCEDURE commit_and_ask(rounds int) LANGUAGE plpgsql AS $$
            DECLARE own xid8; at timestamptz; position pg_lsn;
            BEGIN
                FOR n IN 1..rounds LOOP
                    INSERT INTO asked VALUES (at, position);
                    own := pg_current_xact_id();
                    COMMIT;
                    at := pg_xact_commit_timestamp(own::xid);
                    position := pgdog.lsn_for_timestamp(at);
                END LOOP;
            END $$' > /dev/null
    local client pids=() from
    from=$(sql "$port" 'SELECT pg_current_wal_insert_lsn()')
    for client in 1 2 3 4 5 6 7 8; do
        sql "$port" 'CALL commit_and_ask(150)' > "$work/asks.$client" &
        pids+=($!)
    done
    for client in 9 10; do
        for ((n = 0; n < 100; n++)); do
            echo "BEGIN; INSERT INTO phases VALUES ($n); PREPARE TRANSACTION 'p$client$n';
                COMMIT PREPARED 'p$client$n';"
        done | "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -qAtX servers \
            > "$work/asks.$client" 2>&1 &
        pids+=($!)
    done
    wait "${pids[@]}"
    check "complaints" "$(cat "$work"/asks.*)" "" || return 1
    check "no answer" "$(sql "$port" 'SELECT count(*) FROM asked
        WHERE stamp IS NOT NULL AND covered IS NULL')" 0 || return 1
    # It ends with an error at the end of WAL.
    as_owner env TZ=UTC "$bin/pg_waldump" -p "$work/data/pg_wal" -r Transaction -s "$from" \
        > "$work/wal" 2>&1
    sed -nE -e 's|.*lsn: ([^,]+),.* COMMIT(_PREPARED)? (.*)|\1\t\3|' \
        -e 's|\t.*([0-9-]{10} [0-9:.]+ UTC).*|\t\1|p' "$work/wal" \
        | "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -qX servers \
        -c 'COPY written FROM STDIN' || return 1
    check "commits" "$(sql "$port" 'SELECT count(*) >= 1400, count(*) FROM written')" 't|*' \
        || return 1
    check "missed" "$(sql "$port" 'SELECT count(*) FROM asked JOIN written
        ON written.stamp <= asked.stamp AND written.position >= asked.covered')" 0
}

lsn_for_timestamp_answers_in_every_database_and_after_a_restart() {
    check "elsewhere" "$("$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -qAtX bare -c 'CREATE
        EXTENSION pgdog' -c 'SELECT pgdog.lsn_for_timestamp(clock_timestamp()) IS NOT NULL' 2>&1
        )" t || return 1
    "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -qX bare -c 'DROP EXTENSION pgdog' || return 1
    local stamp
    stamp=$(sql "$port" "INSERT INTO phases VALUES (7)" 'SELECT clock_timestamp()')
    as_owner "$bin/pg_ctl" -D "$work/data" -m immediate -w stop > /dev/null || return 1
    as_owner "$bin/pg_ctl" -D "$work/data" -l "$work/server.log" -w start > /dev/null || return 1
    local before
    before=$(sql "$port" "SELECT pgdog.lsn_for_timestamp('$stamp')
        >= (SELECT checkpoint_lsn FROM pg_control_checkpoint())")
    check "after a restart" "$before" t || return 1
    # The worker goes on by itself: what is asked later is answered from its samples.
    until_sampled "$work/data"
}

# Whatever the worker is doing when it is told to end.
a_server_stops_at_once_while_its_worker_samples() {
    local round
    for round in 1 2 3 4 5 6 7 8; do
        sql "$port" 'CALL commit_and_ask(1000000)' > /dev/null &
        until_true "$port" "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL %'" \
            || return 1
        until_sampled "$work/data" || return 1
        as_owner "$bin/pg_ctl" -D "$work/data" -m fast -t 30 -w stop > /dev/null || return 1
        wait $!
        as_owner "$bin/pg_ctl" -D "$work/data" -l "$work/server.log" -w start > /dev/null ||
            return 1
    done
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
    check "no stamps here" "$(sql "$standby" \
        "SELECT pgdog.lsn_for_timestamp('2020-01-01') IS NULL")" t || return 1
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
    check "not yet" "$(sql "$standby" "SET pgdog.wait_lsn = '$old@3'")" '*ERROR*' || return 1
    # The history says where the new timeline left the old one.
    check "fork" "$(sql "$standby" "SELECT timeline, ended_at::pg_lsn >= '$old',
        ended_at::pg_lsn < '$lost' FROM pgdog.timeline_history()")" '1|t|t' || return 1
    # It has a worker of its own now, and its own clock to go by.
    until_sampled "$work/standby" || return 1
    check "stamps" "$(sql "$standby" "INSERT INTO phases VALUES (3)" \
        "SELECT pgdog.lsn_for_timestamp(clock_timestamp()) >= '$old'")" t
}

server_tests() {
    standby=$((port + 1))
    "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -qX postgres -c 'CREATE DATABASE servers'
    sql "$port" 'CREATE EXTENSION pgdog' 'SELECT pgdog.install_node(0, 2)' \
        'CREATE TABLE plans (id int, title text)' \
        'CREATE TABLE orders (id int, tenant_id bigint)' > /dev/null
    local test outcome
    for test in no_answer_of_lsn_for_timestamp_misses_a_commit \
        lsn_for_timestamp_answers_in_every_database_and_after_a_restart \
        a_server_stops_at_once_while_its_worker_samples \
        incarnation_changes_when_a_backend_crashes start_standby \
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
