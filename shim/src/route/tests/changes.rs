use super::*;

#[test]
fn writes_with_a_key_go_to_its_shard() {
    for (sql, shard) in [
        ("INSERT INTO orders VALUES (11, 1, 1, 'a')", 0),
        ("INSERT INTO orders VALUES (11, 1), (13, 2)", 0),
        ("INSERT INTO orders (id, tenant_id) VALUES (1, 12)", 1),
        ("INSERT INTO orders (tenant_id, id) VALUES (12, now())", 1),
        (
            "INSERT INTO orders (tenant_id, id) SELECT 12, id FROM rates",
            1,
        ),
        (
            "INSERT INTO orders SELECT tenant_id, id FROM lines WHERE tenant_id = 12",
            1,
        ),
        (
            "INSERT INTO orders SELECT * FROM lines WHERE tenant_id = 12",
            1,
        ),
        (
            "INSERT INTO orders (tenant_id, id) SELECT * FROM lines WHERE tenant_id = 12",
            1,
        ),
        (
            "WITH v AS (SELECT 'x' m) INSERT INTO orders(tenant_id, id, memo) \
          SELECT 12, nextval('oid_s'), m FROM v RETURNING id",
            1,
        ),
        (
            "INSERT INTO orders VALUES (12, 1) ON CONFLICT (tenant_id, id) \
          DO UPDATE SET tenant_id = excluded.tenant_id, qty = 2",
            1,
        ),
        (
            "WITH i AS (INSERT INTO orders VALUES (12, 1) RETURNING tenant_id) \
          INSERT INTO lines SELECT tenant_id, 1 FROM i",
            1,
        ),
        ("UPDATE orders SET qty = 2 WHERE tenant_id = 12", 1),
        (
            "UPDATE orders o SET qty = r.pct FROM rates r WHERE o.tenant_id = 12",
            1,
        ),
        (
            "UPDATE orders SET tenant_id = 11, qty = 2 WHERE tenant_id = 11 AND id = 1",
            0,
        ),
        (
            "UPDATE orders SET tenant_id = tenant_id WHERE tenant_id = 11",
            0,
        ),
        ("DELETE FROM orders WHERE tenant_id = 12", 1),
        (
            "DELETE FROM orders o USING lines l \
             WHERE o.tenant_id = l.tenant_id AND l.tenant_id = 12",
            1,
        ),
        (
            "MERGE INTO orders t USING (VALUES (12, 1)) s(k, id) \
             ON t.tenant_id = s.k AND t.id = s.id \
          WHEN MATCHED THEN UPDATE SET qty = 1 \
          WHEN NOT MATCHED THEN INSERT (tenant_id, id) VALUES (s.k, s.id)",
            1,
        ),
    ] {
        to_shard(sql, shard);
        assert_eq!(go(sql).access, Access::Write, "{sql}");
    }
}

#[test]
fn writes_that_could_reach_other_shards_are_refused() {
    for sql in [
        "INSERT INTO orders VALUES (11, 1, 1, 'a'), (12, 1, 1, 'b'), (11, 2, 1, 'c')",
        "INSERT INTO orders SELECT tenant_id, id + 100 FROM lines",
        "INSERT INTO orders SELECT tenant_id + 1, id FROM lines WHERE tenant_id = 11",
        "INSERT INTO orders (tenant_id) VALUES (DEFAULT)",
        "INSERT INTO orders (tenant_id) VALUES (12.5)",
        "INSERT INTO orders VALUES (11, 1), (10 + 2, 1)",
        "UPDATE orders SET tenant_id = 12 WHERE tenant_id = 11",
        "UPDATE orders SET tenant_id = tenant_id + 1 WHERE tenant_id = 11",
        "UPDATE orders SET (tenant_id, qty) = (12, 3) WHERE tenant_id = 11",
        "INSERT INTO orders VALUES (11, 1) ON CONFLICT (id) DO UPDATE SET tenant_id = 12",
        "UPDATE orders SET tenant_id = excluded.tenant_id FROM rates excluded \
         WHERE orders.tenant_id = 11",
        "MERGE INTO orders t USING rates excluded ON t.tenant_id = 11 AND t.id = excluded.pct \
         WHEN MATCHED THEN UPDATE SET tenant_id = excluded.tenant_id",
        "DELETE FROM orders WHERE CURRENT OF c",
        "LOCK TABLE orders",
        "MERGE INTO orders t USING lines s ON t.tenant_id = s.tenant_id AND s.tenant_id = 11 \
         WHEN NOT MATCHED THEN INSERT (tenant_id) VALUES (s.tenant_id)",
        "MERGE INTO orders t USING (VALUES (12)) s(k) ON t.tenant_id = s.k \
         WHEN NOT MATCHED THEN INSERT (tenant_id) VALUES (11)",
        "DO $$ BEGIN DELETE FROM rates; END $$",
    ] {
        unsupported(sql);
    }
}

#[test]
fn rows_without_a_key_are_refused() {
    for sql in [
        "INSERT INTO orders VALUES (NULL, 1)",
        "INSERT INTO orders VALUES (11, 1), (NULL, 2)",
        "INSERT INTO orders (id) VALUES (1)",
        "INSERT INTO orders DEFAULT VALUES",
        "INSERT INTO orders SELECT NULL, 1",
    ] {
        assert_eq!(refused(sql).sqlstate(), "23502", "{sql}");
    }
    let insert = "INSERT INTO orders VALUES ($1, 1)";
    let outcome = with_params(insert, Given(vec![(None, false, 0)]));
    assert!(matches!(outcome, Outcome::Refused(fault) if fault.sqlstate() == "23502"));
    // A key that no rule maps is an error, not a broadcast.
    assert_eq!(
        refused("INSERT INTO orders VALUES (99, 1)").sqlstate(),
        "23514"
    );
}

#[test]
fn copied_rows_go_where_their_keys_say() {
    let rows = |place, only| {
        AllReason::Rows(Rows {
            table: 0,
            place,
            columns: 4,
            only,
        })
    };
    to_all("COPY orders FROM STDIN", rows(0, None));
    let two = Rows {
        table: 0,
        place: 1,
        columns: 2,
        only: None,
    };
    let listed = "COPY orders (id, tenant_id) FROM STDIN CSV";
    to_all(listed, AllReason::Rows(two));
    unsupported("COPY computed FROM STDIN");
    let named = "/* pgdog_shard: 1 */ COPY orders FROM STDIN (FORMAT binary)";
    to_all(named, rows(0, Some(ShardNumber(1))));
    assert_eq!(refused("COPY orders (id) FROM STDIN").sqlstate(), "23502");
    for option in ["ON_ERROR ignore", "ENCODING 'big5'", "WHATEVER 1"] {
        unsupported(&format!("COPY orders FROM STDIN ({option})"));
    }
    to_all("COPY orders FROM STDIN (ENCODING 'LATIN1')", rows(0, None));
}

#[test]
fn a_given_identity_key_must_not_be_replaced() {
    for sql in [
        "INSERT INTO numbered (tenant_id) OVERRIDING USER VALUE VALUES (12)",
        "INSERT INTO numbered OVERRIDING USER VALUE SELECT 12",
        "/* pgdog_shard: 1 */ INSERT INTO numbered (tenant_id) OVERRIDING USER VALUE VALUES (12)",
        "MERGE INTO numbered t USING (VALUES (12)) s(k) ON t.tenant_id = s.k \
         WHEN NOT MATCHED THEN INSERT (tenant_id) OVERRIDING USER VALUE VALUES (s.k)",
    ] {
        unsupported(sql);
    }
    for sql in [
        "INSERT INTO numbered (tenant_id) OVERRIDING SYSTEM VALUE VALUES (12)",
        "INSERT INTO orders (tenant_id, id) OVERRIDING USER VALUE VALUES (12, 1)",
    ] {
        to_shard(sql, 1);
    }
}

#[test]
fn a_key_that_its_type_would_cut_is_refused() {
    for sql in [
        "INSERT INTO short (name) VALUES ('abc   ')",
        "INSERT INTO short (name, id) SELECT 'abc   ', 1",
        "INSERT INTO short (name) SELECT name FROM people WHERE name = 'abc   '",
        "/* pgdog_shard: 1 */ INSERT INTO short (name) VALUES ('abc   ')",
    ] {
        assert_eq!(refused(sql).sqlstate(), "22001", "{sql}");
    }
    let fits = outcome("INSERT INTO short (name) VALUES ('abc  ')");
    assert!(matches!(fits, Outcome::Ready(_)), "{fits:?}");
    let found = outcome("SELECT * FROM short WHERE name = 'abc   '");
    assert!(matches!(found, Outcome::Ready(_)), "{found:?}");
}

#[test]
fn a_table_whose_key_says_nothing_is_refused() {
    for sql in [
        "SELECT * FROM unfit WHERE tenant_id = 12",
        "INSERT INTO unfit VALUES (12)",
        "/* pgdog_shard: 1 */ INSERT INTO unfit VALUES (12)",
        "COPY unfit FROM STDIN",
    ] {
        unsupported(sql);
    }
    to_shard("/* pgdog_shard: 1 */ SELECT * FROM unfit", 1);
}

#[test]
fn a_function_of_a_user_needs_a_shard() {
    for sql in [
        "SELECT new_order(42)",
        "SELECT public.new_order(42)",
        "SELECT pg_temp.anything()",
        "SELECT * FROM orders_of(42)",
        "SELECT 1 FROM rates WHERE pct = (SELECT count(*) FROM orders_of(42))",
        "INSERT INTO rates VALUES (1, new_order(42), 3)",
        "VALUES (lower('A'), new_order(42))",
    ] {
        unsupported(sql);
    }
    for sql in [
        "/* pgdog_shard: 1 */ SELECT new_order(42)",
        "SELECT new_order(id) FROM orders WHERE tenant_id = 12",
        "INSERT INTO orders VALUES (12, new_order(42))",
    ] {
        to_shard(sql, 1);
    }
    let harmless = outcome("SELECT lower('A'), pgdog.version(), similarity('a', 'b')");
    assert!(matches!(harmless, Outcome::Ready(_)), "{harmless:?}");
}

#[test]
fn a_function_means_nothing_where_nobody_looks_for_it() {
    let under = |sql: &str, path: &[&str]| {
        let path: Vec<String> = path.iter().map(|schema| (*schema).to_owned()).collect();
        let session = SessionView {
            search_path: &path,
            ..SessionView::default()
        };
        let outcome = route(&statement(sql), &NoParams, &topology(3), &session);
        matches!(outcome, Outcome::Ready(_))
    };
    for (sql, path) in [
        ("SELECT now()", &["public"][..]),
        ("SELECT now()", &["mine", "public"]),
        ("SELECT now()", &["pg_catalog", "mine"]),
        ("SELECT pg_catalog.now()", &["mine", "pg_catalog"]),
        ("SELECT round(1.5), lower('A')", &["public"]),
        ("SELECT new_order(1)", &["mine"]),
        ("SELECT new_order(1, 2)", &["public"]),
        ("SELECT app.new_order(1)", &["public"]),
    ] {
        assert!(under(sql, path), "{sql} {path:?}");
    }
    for (sql, path) in [
        ("SELECT mine.now()", &["public"][..]),
        ("SELECT now()", &["mine", "pg_catalog"]),
        ("SELECT round(1.5, 2)", &["public"]),
        ("SELECT lower('A')", &["public", "pg_catalog"]),
        ("SELECT of_operators(12)", &["public"]),
        ("SELECT pg_catalog.of_operators(12)", &["public"]),
    ] {
        assert!(!under(sql, path), "{sql} {path:?}");
    }
}

#[test]
fn naming_a_shard_does_not_let_omnisharded_rows_differ() {
    let sql = "INSERT INTO rates VALUES (new_order(1), 1, 1)";
    let named = SessionView {
        shard: Some(0),
        ..SessionView::default()
    };
    let hinted = format!("/* pgdog_shard: 0 */ {sql}");
    for (sql, session) in [
        (sql, &SessionView::default()),
        (sql, &named),
        (&hinted, &SessionView::default()),
    ] {
        let outcome = route(&statement(sql), &NoParams, &topology(3), session);
        let Outcome::Refused(fault) = outcome else {
            panic!("{sql}: {outcome:?}");
        };
        assert_eq!(fault.sqlstate(), "0A000", "{sql}");
        assert!(
            format!("{fault:?}").contains("Compute it first"),
            "{fault:?}"
        );
    }
}

#[test]
fn an_update_may_assign_the_key_that_it_is_bound_to() {
    let sql = "UPDATE orders SET tenant_id = $1 WHERE tenant_id = $1";
    let params = || Given(vec![(Some(b"12".to_vec()), false, 0)]);
    assert!(matches!(with_params(sql, params()), Outcome::Ready(_)));
    let other = "UPDATE orders SET tenant_id = $1 WHERE tenant_id = 11";
    assert!(matches!(with_params(other, params()), Outcome::Refused(_)));
}

#[test]
fn writes_to_omnisharded_tables_go_everywhere() {
    for sql in [
        "INSERT INTO rates VALUES ('a', 1), ('b', 2)",
        "UPDATE rates SET pct = 3 WHERE code = 'a'",
        "DELETE FROM rates WHERE code = 'a' RETURNING *",
        "TRUNCATE rates",
        "COPY rates FROM STDIN",
        "LOCK TABLE rates",
        "MERGE INTO rates r USING tenants t ON r.code = 'a' WHEN MATCHED THEN DELETE",
        "INSERT INTO rates SELECT 'x', id FROM tenants",
        "WITH d AS (DELETE FROM rates RETURNING *) SELECT * FROM d",
        "INSERT INTO arch.orders VALUES (1)",
    ] {
        to_all(sql, AllReason::OmniWrite);
    }
}

#[test]
fn omnisharded_tables_never_drift_apart() {
    for sql in [
        "INSERT INTO rates VALUES ('a', random())",
        "INSERT INTO rates (code, at) VALUES ('a', now())",
        "INSERT INTO rates VALUES (gen_random_uuid(), 1)",
        "INSERT INTO rates VALUES (nextval('s'), 1)",
        "UPDATE rates SET at = CURRENT_TIMESTAMP",
        "UPDATE rates SET at = 'now'::timestamptz",
        "DELETE FROM rates WHERE code IN (SELECT code FROM rates LIMIT 1)",
        "INSERT INTO rates SELECT memo, 1 FROM orders WHERE tenant_id = 11",
        "INSERT INTO rates SELECT relname, 1 FROM pg_class",
        "WITH o AS (UPDATE orders SET qty = 1 WHERE tenant_id = 11 RETURNING memo) \
         INSERT INTO rates SELECT memo, 1 FROM o",
        "WITH r AS (UPDATE rates SET pct = 1 RETURNING *) \
         UPDATE orders SET qty = 1 WHERE tenant_id = 11",
    ] {
        unsupported(sql);
    }
}

#[test]
fn definitions_and_placement_go_everywhere() {
    for sql in [
        "CREATE TABLE x (a int)",
        "ALTER TABLE orders ADD y int",
        "DROP TABLE rates",
        "VACUUM",
    ] {
        to_all(sql, AllReason::Ddl);
    }
    to_all(
        "SELECT pgdog.shard_table('orders', 'tenant_id')",
        AllReason::Placement,
    );
    unsupported("CREATE TABLE x AS SELECT * FROM orders");
    unsupported("CREATE TABLE x AS SELECT now() FROM rates");
    to_all("CREATE TABLE x AS SELECT * FROM rates", AllReason::Ddl);
    assert_eq!(go("CREATE TEMP TABLE x (a int)").target, Target::Any);
}

#[test]
fn a_text_of_several_statements_has_one_route() {
    let all = |sql: &str| {
        route_all(
            &parse(sql).unwrap().statements,
            &topology(3),
            &SessionView::default(),
        )
    };
    let target = |sql: &str| match all(sql) {
        Outcome::Ready(route) => route.target,
        other => panic!("{sql}: {other:?}"),
    };
    let one = "BEGIN; UPDATE orders SET qty = 1 WHERE tenant_id = 12; SELECT 1; COMMIT";
    assert_eq!(target(one), Target::Shard(ShardNumber(1)));
    let omni = "UPDATE rates SET pct = 1; INSERT INTO rates VALUES ('a', 1)";
    assert_eq!(target(omni), Target::All(AllReason::OmniWrite));
    let mixed = "CREATE TABLE x (a int); UPDATE rates SET pct = 1";
    assert_eq!(target(mixed), Target::All(AllReason::OmniWrite));
    assert_eq!(target("BEGIN; COMMIT"), Target::Any);
    assert_eq!(target(""), Target::Any);
    for sql in [
        "SET search_path = arch; SELECT * FROM orders WHERE tenant_id = 12",
        "DELETE FROM orders WHERE tenant_id = 11; DELETE FROM orders WHERE tenant_id = 12",
        "UPDATE rates SET pct = 1; DELETE FROM orders WHERE tenant_id = 11",
        "SELECT * FROM orders; UPDATE rates SET pct = 1",
    ] {
        assert!(matches!(all(sql), Outcome::Refused(_)), "{sql}");
    }
    let lookups =
        "SELECT * FROM visits WHERE tenant_id = 1; SELECT * FROM visits WHERE tenant_id = 2";
    assert!(matches!(all(lookups), Outcome::NeedLookup(keys) if keys.len() == 2));
}

#[test]
fn a_large_insert_is_routed_in_reasonable_time() {
    let mut sql = String::from("INSERT INTO orders (tenant_id, id) VALUES (11, 0)");
    for row in 1..10_000 {
        sql.push_str(&format!(",({}, {row})", if row % 2 == 0 { 11 } else { 13 }));
    }
    to_shard(&sql, 0);
}
