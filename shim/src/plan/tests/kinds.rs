use super::super::{Hint, Kind, Prepared, RoleHint};
use super::*;

fn kind(sql: &str) -> Kind {
    one(sql).kind
}

#[test]
fn what_changes_nothing_is_a_read() {
    for sql in [
        "SELECT 1",
        "select tenant_id, count(*) from orders where tenant_id in (11,12) group by 1",
        "VALUES (1)",
        "TABLE rates",
        "SELECT 1 UNION SELECT 2",
        "EXPLAIN SELECT 1",
        "EXPLAIN (ANALYZE) SELECT 1",
        "EXPLAIN INSERT INTO t VALUES (1)",
        "EXPLAIN (ANALYZE false) INSERT INTO t VALUES (1)",
        "SELECT pgdog.shard_for('orders', '42')",
        "SELECT json_agg(x ORDER BY y) FILTER (WHERE z) OVER (PARTITION BY a) FROM t",
    ] {
        assert_eq!(kind(sql), Kind::Read, "{sql}");
        assert_eq!(one(sql).opaque, None, "{sql}");
    }
}

#[test]
fn what_must_run_on_a_primary_is_a_write() {
    for sql in [
        "INSERT INTO t VALUES (1)",
        "UPDATE t SET x = 1",
        "DELETE FROM t",
        "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN DELETE",
        "TRUNCATE t",
        "SELECT * FROM t FOR UPDATE",
        "SELECT * FROM t FOR SHARE",
        "SELECT * FROM t FOR NO KEY UPDATE",
        "SELECT * FROM (SELECT * FROM t FOR UPDATE) s",
        "WITH c AS (SELECT * FROM t FOR UPDATE) SELECT * FROM c",
        "WITH c AS (DELETE FROM t RETURNING *) SELECT * FROM c",
        "SELECT nextval('s')",
        "SELECT setval('s', 5)",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_try_advisory_xact_lock(1)",
        "SELECT txid_current()",
        "SELECT pg_notify('c', 'x')",
        "SELECT coalesce((SELECT lo_create(0)), 1)",
        "SELECT * FROM dblink('x', 'y') AS t(a int)",
        "SELECT set_config('a.b', x, true) FROM t",
        "EXPLAIN ANALYZE INSERT INTO t VALUES (1)",
        "EXPLAIN (ANALYZE) SELECT nextval('s')",
        "DO $$ BEGIN PERFORM 1; END $$",
        "CALL p()",
    ] {
        assert_eq!(kind(sql), Kind::Write, "{sql}");
    }
}

#[test]
fn transactions_are_told_apart() {
    assert_eq!(kind("BEGIN"), Kind::Begin { read_only: None });
    assert_eq!(
        kind("/* a */ START TRANSACTION READ ONLY"),
        Kind::Begin {
            read_only: Some(true)
        }
    );
    let mixed = "BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE";
    assert_eq!(
        kind(mixed),
        Kind::Begin {
            read_only: Some(false)
        }
    );
    assert_eq!(kind("COMMIT AND CHAIN"), Kind::Commit { chain: true });
    assert_eq!(kind("END"), Kind::Commit { chain: false });
    assert_eq!(kind("ABORT"), Kind::Rollback { chain: false });
    assert_eq!(kind("SAVEPOINT a"), Kind::Savepoint("a".into()));
    assert_eq!(kind("ROLLBACK TO a"), Kind::RollbackTo("a".into()));
    assert_eq!(kind("RELEASE a"), Kind::Release("a".into()));
    assert_eq!(kind("PREPARE TRANSACTION 'x'"), Kind::TwoPhase);
    assert_eq!(kind("COMMIT PREPARED 'x'"), Kind::TwoPhase);
}

fn set(name: &str, value: Option<&str>, local: bool) -> Kind {
    let value = value.map(str::to_owned);
    Kind::Set {
        name: name.into(),
        value,
        local,
        as_select: false,
    }
}

#[test]
fn settings_are_read() {
    assert_eq!(
        kind("SET pgdog.min_lsn = '0/1'"),
        set("pgdog.min_lsn", Some("0/1"), false)
    );
    assert_eq!(
        kind("SET LOCAL Work_Mem TO 64"),
        set("work_mem", Some("64"), true)
    );
    assert_eq!(kind("SET a.b TO DEFAULT"), set("a.b", None, false));
    assert_eq!(
        kind("SET search_path = \"$user\", public"),
        set("search_path", Some("\"$user\", public"), false)
    );
    assert_eq!(
        kind("SET TIME ZONE 'UTC'"),
        set("timezone", Some("UTC"), false)
    );
    assert_eq!(
        kind("SET TRANSACTION READ ONLY"),
        set("transaction_read_only", Some("on"), true)
    );
    assert_eq!(
        kind("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE"),
        set("default_transaction_read_only", Some("off"), false)
    );
    assert_eq!(kind("RESET a.b"), Kind::Reset(Some("a.b".into())));
    assert_eq!(kind("RESET ALL"), Kind::Reset(None));
    assert_eq!(
        kind("SHOW pgdog.last_route"),
        Kind::Show("pgdog.last_route".into())
    );
    assert_eq!(kind("DISCARD ALL"), Kind::Discard { all: true });
    assert_eq!(kind("DISCARD PLANS"), Kind::Discard { all: false });
    let as_select = |value: Option<&str>, local| Kind::Set {
        name: "pgdog.min_lsn".into(),
        value: value.map(str::to_owned),
        local,
        as_select: true,
    };
    let sql = "SELECT set_config('pgdog.min_lsn', '0/1', true)";
    assert_eq!(kind(sql), as_select(Some("0/1"), true));
    let sql = "SELECT pg_catalog.set_config('pgdog.min_lsn', NULL, false) AS x";
    assert_eq!(kind(sql), as_select(None, false));
    assert_eq!(kind("SELECT set_config('a', $1, true)"), Kind::Write);
}

#[test]
fn the_statement_of_our_own_is_read_before_the_parser() {
    for sql in [
        "SET SERVER XACT TIMESTAMP '2026-01-01'",
        " set server  xact\ntimestamp'2026-01-01' ; ",
        "/* x */ SET SERVER XACT TIMESTAMP '2026-01-01' -- done",
    ] {
        assert_eq!(
            kind(sql),
            Kind::SetServerTimestamp("2026-01-01".into()),
            "{sql}"
        );
    }
    assert!(parse("SET SERVER XACT TIMESTAMP 1").is_err());
    assert!(parse("SETSERVER XACT TIMESTAMP '1'").is_err());
    assert!(parse("SET SERVER XACT TIMESTAMP '1'; SELECT 1").is_err());
}

#[test]
fn definitions_know_whether_they_fit_a_transaction() {
    for sql in [
        "CREATE TABLE t (a int)",
        "CREATE TABLE t AS SELECT 1",
        "SELECT 1 INTO t",
        "ALTER TABLE t ADD b int",
        "DROP TABLE t",
        "CREATE INDEX ON t (a)",
        "CREATE VIEW v AS SELECT 1",
        "GRANT SELECT ON t TO u",
        "ANALYZE t",
        "COMMENT ON TABLE t IS 'x'",
        "ALTER TYPE e ADD VALUE 'x'",
    ] {
        assert_eq!(
            kind(sql),
            Kind::Ddl {
                transactional: true
            },
            "{sql}"
        );
    }
    for sql in [
        "CREATE INDEX CONCURRENTLY ON t (a)",
        "DROP INDEX CONCURRENTLY i",
        "REINDEX (CONCURRENTLY) TABLE t",
        "REINDEX SCHEMA s",
        "VACUUM",
        "CREATE DATABASE d",
        "ALTER SYSTEM SET work_mem = 1",
        "ALTER TABLE t DETACH PARTITION p CONCURRENTLY",
    ] {
        assert_eq!(
            kind(sql),
            Kind::Ddl {
                transactional: false
            },
            "{sql}"
        );
    }
}

#[test]
fn session_statements_are_bound_to_a_connection() {
    for sql in [
        "LISTEN a",
        "NOTIFY a, 'x'",
        "DECLARE c CURSOR FOR SELECT * FROM t",
        "FETCH 1 FROM c",
        "CLOSE c",
        "LOCK TABLE t",
        "LOAD 'x'",
        "SET CONSTRAINTS ALL DEFERRED",
        "CREATE TEMP TABLE x (a int)",
        "CREATE TEMP TABLE x AS SELECT 1",
        "SELECT 1 INTO TEMP x",
        "CREATE TABLE pg_temp.x (a int)",
        "DEALLOCATE ALL",
    ] {
        assert_eq!(kind(sql), Kind::Session, "{sql}");
    }
    assert_eq!(
        one("CREATE TEMP VIEW x AS SELECT 1").temporary.as_deref(),
        Some("x")
    );
    let Some(Prepared::Prepare { name, statement }) =
        one("PREPARE q AS SELECT * FROM t WHERE k = $1").prepared
    else {
        panic!("not a PREPARE");
    };
    assert_eq!((name.as_str(), statement.params), ("q", 1));
    let Some(Prepared::Execute { arguments, .. }) = one("EXECUTE q(5)").prepared else {
        panic!("not an EXECUTE");
    };
    assert_eq!(arguments, vec![text("5")]);
}

#[test]
fn copies_are_told_apart() {
    assert_eq!(kind("COPY t FROM STDIN"), Kind::CopyIn);
    assert_eq!(kind("COPY t (a, k) TO STDOUT"), Kind::CopyOut);
    assert_eq!(kind("COPY (SELECT 1) TO STDOUT"), Kind::CopyOut);
    assert!(one("COPY t FROM '/tmp/x'").opaque.is_some());
    assert!(relations("COPY t (a, k) FROM STDIN")[0].written);
}

#[test]
fn values_that_differ_between_servers_are_noted() {
    let divergent = |sql: &str| one(sql).functions.divergent;
    for sql in [
        "INSERT INTO t VALUES (now())",
        "INSERT INTO t VALUES (CURRENT_TIMESTAMP)",
        "INSERT INTO t VALUES ('now')",
        "INSERT INTO t VALUES ('today'::date)",
        "INSERT INTO t VALUES (gen_random_uuid())",
        "INSERT INTO t VALUES (DEFAULT, nextval('s'))",
        "UPDATE t SET x = random()",
        "DELETE FROM t WHERE at < now() - interval '1 day'",
        "DELETE FROM t WHERE ctid = '(0,1)'",
        "DELETE FROM t WHERE id IN (SELECT id FROM t LIMIT 10)",
        "INSERT INTO t SELECT * FROM s TABLESAMPLE SYSTEM (10)",
    ] {
        assert!(divergent(sql).is_some(), "{sql}");
    }
    assert_eq!(
        divergent("INSERT INTO t VALUES ('today', CURRENT_USER, lower('X'))"),
        None
    );
}

#[test]
fn texts_with_many_statements_keep_their_places() {
    let sql = "BEGIN; /* pgdog_shard: 1 */ SELECT 1; SELECT 'ä;' /* pgdog_role: primary */";
    let statements = plan(sql).statements;
    assert_eq!(statements.len(), 3);
    let hints: Vec<_> = statements.iter().map(|s| s.hint.is_some()).collect();
    assert_eq!(hints, [false, true, false]);
    assert!(statements[2].role.is_some());
    assert_eq!(
        sql[statements[2].span.clone()].trim(),
        "SELECT 'ä;' /* pgdog_role: primary */"
    );
    assert!(plan("").statements.is_empty());
    assert!(plan(" -- nothing").statements.is_empty());
    assert!(parse("SELEC 1").is_err());
}

#[test]
fn what_cannot_be_judged_is_opaque() {
    for sql in [
        "CALL p()",
        "EXECUTE q(1)",
        "DO $$ BEGIN DELETE FROM t; END $$",
    ] {
        assert!(one(sql).opaque.is_some(), "{sql}");
    }
    assert_eq!(one("DO $$ BEGIN RAISE NOTICE 'x'; END $$").opaque, None);
    let explained = one("EXPLAIN (PGDOG) DELETE FROM t WHERE k = 5");
    assert_eq!(explained.kind, Kind::ExplainRoute);
    assert_eq!(explained.explained.unwrap().kind, Kind::Write);
    assert_eq!(
        kind("SELECT pgdog.shard_table('orders', 'k')"),
        Kind::Placement
    );
}

#[test]
fn every_kind_of_statement_can_be_explained() {
    for (sql, expected) in [
        (
            "CREATE TABLE t (a int)",
            Kind::Ddl {
                transactional: true,
            },
        ),
        (
            "VACUUM t",
            Kind::Ddl {
                transactional: false,
            },
        ),
        ("COPY t FROM STDIN", Kind::CopyIn),
        ("COPY t TO STDOUT", Kind::CopyOut),
        ("BEGIN", Kind::Begin { read_only: None }),
        ("COMMIT", Kind::Commit { chain: false }),
        ("SAVEPOINT s", Kind::Savepoint("s".into())),
        ("SHOW pgdog.shard", Kind::Show("pgdog.shard".into())),
        ("LISTEN c", Kind::Session),
        ("DISCARD ALL", Kind::Discard { all: true }),
        (
            "SET SERVER XACT TIMESTAMP 'x'",
            Kind::SetServerTimestamp("x".into()),
        ),
        ("EXPLAIN (PGDOG) SELECT 1", Kind::ExplainRoute),
        ("TRUNCATE t", Kind::Write),
        ("CALL p()", Kind::Write),
    ] {
        let outer = one(&format!("EXPLAIN (PGDOG) {sql}"));
        assert_eq!(outer.kind, Kind::ExplainRoute, "{sql}");
        let inner = outer.explained.unwrap();
        assert_eq!(inner.kind, expected, "{sql}");
        assert_eq!(inner.relations, one(sql).relations, "{sql}");
    }
    assert!(parse("EXPLAIN (PGDOG)").is_err());
    assert!(parse("EXPLAIN (PGDOG) ;").is_err());
}

#[test]
fn what_follows_an_explained_statement_is_another_one() {
    let sql = "/* pgdog_shard: 1 */ EXPLAIN (PGDOG) LISTEN c; /* pgdog_role: primary */ SELECT 2";
    let statements = plan(sql).statements;
    let [first, second] = statements.as_slice() else {
        panic!("{statements:?}");
    };
    let inner = first.explained.as_ref().unwrap();
    assert_eq!((&inner.kind, inner.role), (&Kind::Session, None));
    assert_eq!(inner.hint, Some(Hint::Shard(1)));
    assert!(sql[first.span.clone()].ends_with("LISTEN c"));
    assert_eq!(second.role, Some(RoleHint::Primary));
    assert!(sql[second.span.clone()].ends_with("SELECT 2"));
    assert!(first.hint.is_none());
}

#[test]
fn what_only_reads_is_nobody_elses_business() {
    for sql in [
        "SELECT a FROM t WHERE b = $1",
        "TABLE t",
        "VALUES (1)",
        "SELECT x.a FROM t x JOIN s.u USING (a) LIMIT 3",
    ] {
        assert!(one(sql).only_reads(), "{sql}");
    }
    for sql in [
        "UPDATE t SET a = 1",
        "SELECT a FROM t FOR UPDATE",
        "SELECT f(a) FROM t",
        "SELECT a FROM f()",
        "SELECT set_config('a.b', 'c', false)",
        "SELECT pg_advisory_lock(1)",
        "SELECT nextval('s')",
        "/* pgdog_role: primary */ SELECT 1",
        "/* pgdog_shard: 0 */ SELECT 1",
        "SELECT * FROM pgdog.topology",
        "SELECT a INTO TEMP u FROM t",
        "EXPLAIN (PGDOG) SELECT 1",
        "EXECUTE s",
        "SHOW work_mem",
        "COPY t TO STDOUT",
        "BEGIN",
    ] {
        assert!(!one(sql).only_reads(), "{sql}");
    }
}
