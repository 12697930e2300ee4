use super::*;

fn any(sql: &str, reason: &str) {
    let route = go(sql);
    assert_eq!(
        (route.target, &*route.reason),
        (Target::Any, reason),
        "{sql}"
    );
}

#[test]
fn a_bound_key_goes_to_its_shard() {
    for (condition, shard) in [
        ("tenant_id = 12", 1),
        ("tenant_id = '12'", 1),
        ("tenant_id = 12::int", 1),
        ("tenant_id = 12.0::numeric", 1),
        ("tenant_id = '12'::text::bigint", 1),
        ("tenant_id = -5", 1),
        ("tenant_id = - 5", 1),
        ("tenant_id = -(5)", 1),
        ("tenant_id = +0", 0),
        ("tenant_id = -9223372036854775808", 0),
        ("tenant_id = 9223372036854775807", 0),
        ("tenant_id = 0012", 1),
        ("tenant_id IN (11, 13)", 0),
        ("tenant_id IN (11, NULL)", 0),
        ("tenant_id = ANY ('{21,22}')", 2),
        ("tenant_id = 12 AND (id = 1 OR id = 2)", 1),
        ("tenant_id IN (11, 12) AND tenant_id = 12", 1),
    ] {
        to_shard(&format!("SELECT * FROM orders WHERE {condition}"), shard);
    }
    assert_eq!(
        go("SELECT * FROM orders WHERE tenant_id = 12").reason,
        "key tenant_id=12"
    );
    assert_eq!(
        go("SELECT * FROM orders WHERE tenant_id = 12").access,
        Access::Read
    );
}

#[test]
fn what_does_not_narrow_is_refused() {
    for sql in [
        "SELECT * FROM orders o, lines l WHERE o.tenant_id = 11",
        "SELECT * FROM orders WHERE tenant_id = 11 UNION ALL \
         SELECT * FROM orders WHERE tenant_id = 12",
        "SELECT * FROM rates r LEFT JOIN orders o ON true",
        "SELECT * FROM orders o FULL JOIN lines l \
         ON o.tenant_id = l.tenant_id AND o.tenant_id = 11",
        "SELECT (SELECT count(*) FROM lines) FROM orders WHERE tenant_id = 11",
        "SELECT * FROM orders WHERE tenant_id = 11 AND id IN (SELECT id FROM lines)",
        "SELECT * FROM (SELECT * FROM orders OFFSET 1) o WHERE tenant_id = 11",
        "WITH c AS (SELECT * FROM orders) SELECT * FROM c WHERE tenant_id = 11",
        "SELECT * FROM notes WHERE tenant_id = 11",
        "SELECT * FROM \"Orders\" WHERE tenant_id = 11",
        "CALL p()",
        "PREPARE TRANSACTION 'x'",
        "EXECUTE q(11)",
        "COPY orders TO STDOUT",
    ] {
        unsupported(sql);
    }
    let hint = refused("MERGE INTO orders o USING rates r ON o.id = 1 WHEN MATCHED THEN DELETE");
    let hint = hint.hint().unwrap();
    assert!(hint.contains("tenant_id"), "{hint}");
}

#[test]
fn all_parts_must_agree_on_one_shard() {
    for (sql, shard) in [
        (
            "SELECT * FROM orders o JOIN rates r ON r.code = o.memo WHERE o.tenant_id = 11",
            0,
        ),
        (
            "SELECT * FROM orders JOIN lines USING (tenant_id) WHERE tenant_id = 12",
            1,
        ),
        (
            "SELECT * FROM orders o JOIN lines l ON o.tenant_id = 11 AND l.tenant_id = 11",
            0,
        ),
        (
            "SELECT * FROM orders o JOIN lines l ON o.tenant_id = l.tenant_id AND l.tenant_id = 21",
            2,
        ),
        (
            "SELECT * FROM orders o, lines l WHERE o.tenant_id = 11 AND l.tenant_id = 13",
            0,
        ),
        (
            "SELECT * FROM orders o LEFT JOIN lines l ON l.tenant_id = o.tenant_id \
          WHERE o.tenant_id = 12",
            1,
        ),
        (
            "SELECT * FROM rates r LEFT JOIN orders o ON o.tenant_id = 12",
            1,
        ),
    ] {
        to_shard(sql, shard);
    }
}

#[test]
fn subqueries_and_names_are_followed() {
    for (sql, shard) in [
        (
            "SELECT * FROM orders WHERE tenant_id = 11 AND EXISTS \
          (SELECT 1 FROM lines WHERE lines.tenant_id = orders.tenant_id)",
            0,
        ),
        (
            "SELECT * FROM orders WHERE tenant_id IN \
             (SELECT tenant_id FROM lines WHERE tenant_id = 12)",
            1,
        ),
        (
            "WITH c AS (SELECT * FROM lines WHERE tenant_id = 12) \
          SELECT * FROM orders o JOIN c ON o.tenant_id = c.tenant_id",
            1,
        ),
        (
            "SELECT * FROM orders WHERE tenant_id = 11 UNION ALL \
          SELECT * FROM orders WHERE tenant_id = 13",
            0,
        ),
        (
            "SELECT * FROM orders o JOIN (VALUES (21), (22)) v(t) ON o.tenant_id = v.t",
            2,
        ),
        (
            "SELECT * FROM orders o JOIN LATERAL \
          (SELECT * FROM lines l WHERE l.tenant_id = o.tenant_id LIMIT 1) s ON true \
          WHERE o.tenant_id = 21",
            2,
        ),
        (
            "SELECT * FROM \"Order Lines\" WHERE U&\"Tenant\\0049d\" = 12",
            1,
        ),
        (
            "SELECT * FROM public.orders WHERE public.orders.tenant_id = 12",
            1,
        ),
        ("SELECT * FROM ORDERS WHERE Tenant_Id = 12", 1),
        (
            "COPY (SELECT * FROM orders WHERE tenant_id = 12) TO STDOUT",
            1,
        ),
        ("EXPLAIN SELECT * FROM orders WHERE tenant_id = 12", 1),
        (
            "DECLARE c CURSOR FOR SELECT * FROM orders WHERE tenant_id = 12",
            1,
        ),
    ] {
        to_shard(sql, shard);
    }
}

/// A column merged by an outer join is the preserved side's, which may be any key.
#[test]
fn merged_columns_of_outer_joins_do_not_bind_through_the_nullable_side() {
    const BOUND: &str = "(SELECT * FROM orders WHERE tenant_id = 11)";
    for join in [
        format!("rates r LEFT JOIN {BOUND} o USING (tenant_id)"),
        format!("{BOUND} o RIGHT JOIN rates r USING (tenant_id)"),
        format!("{BOUND} o FULL JOIN rates r USING (tenant_id)"),
        format!("rates r NATURAL LEFT JOIN {BOUND} o"),
    ] {
        unsupported(&format!(
            "SELECT * FROM {join} JOIN lines l ON l.tenant_id = r.x AND true"
        ));
        unsupported(&format!(
            "SELECT * FROM {join} JOIN lines l USING (tenant_id)"
        ));
        let derived = format!("(SELECT * FROM {join}) s");
        unsupported(&format!(
            "SELECT * FROM {derived} JOIN lines l ON l.tenant_id = s.tenant_id"
        ));
        let correlated = "EXISTS (SELECT 1 FROM lines l WHERE l.tenant_id = tenant_id)";
        unsupported(&format!("SELECT * FROM {join} WHERE {correlated}"));
    }
    let inner = format!("rates r JOIN {BOUND} o USING (tenant_id)");
    to_shard(
        &format!("SELECT * FROM {inner} JOIN lines l USING (tenant_id)"),
        0,
    );
    let preserved = format!("{BOUND} o LEFT JOIN rates r USING (tenant_id)");
    to_shard(
        &format!("SELECT * FROM {preserved} JOIN lines l USING (tenant_id)"),
        0,
    );
}

#[test]
fn a_null_key_matches_nothing_anywhere() {
    for sql in [
        "SELECT * FROM orders WHERE tenant_id IS NULL",
        "SELECT * FROM orders WHERE tenant_id = NULL",
        "SELECT * FROM orders WHERE tenant_id = 11 AND tenant_id = 12",
        "SELECT * FROM orders WHERE tenant_id = 12.5",
        "SELECT * FROM orders WHERE tenant_id = ANY ('{}')",
    ] {
        assert!(matches!(go(sql).target, Target::Shard(_)), "{sql}");
    }
    let null = Given(vec![(None, false, 0)]);
    let outcome = with_params("SELECT * FROM orders WHERE tenant_id = $1", null);
    assert!(matches!(outcome, Outcome::Ready(_)));
    // IS NULL after an outer join is about rows without a partner.
    unsupported(
        "SELECT * FROM rates r LEFT JOIN orders o ON o.memo = r.code WHERE o.tenant_id IS NULL",
    );
}

#[test]
fn parameters_are_keys_in_both_formats() {
    let sql = "SELECT * FROM orders WHERE tenant_id = $1";
    let big = 12i64.to_be_bytes().to_vec();
    let shard = |outcome: Outcome| match outcome {
        Outcome::Ready(Route {
            target: Target::Shard(shard),
            ..
        }) => shard.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        shard(with_params(
            sql,
            Given(vec![(Some(b"12".to_vec()), false, 0)])
        )),
        1
    );
    assert_eq!(
        shard(with_params(sql, Given(vec![(Some(big.clone()), true, 0)]))),
        1
    );
    let cast = "SELECT * FROM orders WHERE tenant_id = $1::text::bigint";
    assert_eq!(
        shard(with_params(
            cast,
            Given(vec![(Some(b"12".to_vec()), true, 0)])
        )),
        1
    );
    let array = "SELECT * FROM orders WHERE tenant_id = ANY ($1)";
    assert_eq!(
        shard(with_params(
            array,
            Given(vec![(Some(b"{12,14}".to_vec()), false, 0)])
        )),
        1
    );
    let float = with_params(sql, Given(vec![(Some(b"12".to_vec()), false, 701)]));
    let everywhere = Target::All(AllReason::Read);
    assert!(matches!(float, Outcome::Ready(route) if route.target == everywhere));
    let wrong = with_params(sql, Given(vec![(Some(b"abc".to_vec()), false, 0)]));
    assert!(matches!(wrong, Outcome::Refused(fault) if fault.sqlstate() == "22P02"));
}

#[test]
fn lookups_are_asked_for_once_each() {
    let sql = "SELECT * FROM visits WHERE tenant_id IN (7, 0007, 8)";
    let Outcome::NeedLookup(keys) = outcome(sql) else {
        panic!("no lookup")
    };
    let asked: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
    assert_eq!(asked, ["7", "8"]);
    let known: Vec<_> = keys.into_iter().map(|key| (key, ShardNumber(2))).collect();
    let session = SessionView {
        lookups: &known,
        ..SessionView::default()
    };
    let Outcome::Ready(found) = route(&statement(sql), &NoParams, &topology(3), &session) else {
        panic!("still not known");
    };
    assert_eq!(found.target, Target::Shard(ShardNumber(2)));
    assert_eq!(found.reason, "lookup tenant_id in (7, 8)");
}

#[test]
fn tables_that_are_everywhere_go_anywhere() {
    any("SELECT * FROM rates", "omnisharded read");
    any("SELECT 1", "table-less");
    any("VALUES (1)", "table-less");
    any("SELECT * FROM pg_class", "catalog");
    any("SELECT * FROM information_schema.tables", "catalog");
    any(
        "SELECT * FROM pg_catalog.pg_class c JOIN rates r ON true",
        "omnisharded read",
    );
    any(
        "WITH orders AS (SELECT 1 AS tenant_id) SELECT * FROM orders",
        "table-less",
    );
    any("BEGIN", "transaction");
    any("SET work_mem = 1", "setting");
    any("COPY rates TO STDOUT", "omnisharded read");
    any("DO $$ BEGIN RAISE NOTICE 'x'; END $$", "table-less");
    assert_eq!(
        refused("SELECT * FROM notes"),
        Fault::UndeclaredTable {
            table: "notes".into()
        }
    );
}

#[test]
fn what_all_clients_share_is_on_one_shard() {
    for sql in [
        "SELECT nextval('s')",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_notify('c', 'x')",
        "LISTEN c",
        "NOTIFY c",
        "SELECT * FROM rates FOR UPDATE",
        "SELECT * FROM pgdog.tasks",
    ] {
        let route = go(sql);
        assert_eq!(route.target, Target::Shard(ShardNumber(0)), "{sql}");
        assert_eq!(route.access, Access::Write, "{sql}");
    }
    to_shard("SELECT nextval('s') FROM orders WHERE tenant_id = 12", 1);
    assert_eq!(
        go("SELECT * FROM orders WHERE tenant_id = 12 FOR UPDATE").access,
        Access::Write
    );
    assert_eq!(
        go("/* pgdog_role: primary */ SELECT 1").access,
        Access::Write
    );
}

#[test]
fn the_search_path_decides_which_table_is_meant() {
    let path = ["arch".to_owned(), "public".to_owned()];
    let session = SessionView {
        search_path: &path,
        ..SessionView::default()
    };
    let at = |sql: &str| route(&statement(sql), &NoParams, &topology(3), &session);
    let reason = |outcome: Outcome| match outcome {
        Outcome::Ready(route) => route.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        reason(at("SELECT * FROM orders WHERE tenant_id = 12")),
        "omnisharded read"
    );
    assert_eq!(
        reason(at("SELECT * FROM public.orders WHERE tenant_id = 12")),
        "key tenant_id=12"
    );
    assert_eq!(
        reason(at("SELECT * FROM lines WHERE tenant_id = 12")),
        "key tenant_id=12"
    );
    any(
        "SELECT * FROM arch.orders WHERE tenant_id = 12",
        "omnisharded read",
    );
    let temporary = ["orders".to_owned()];
    let session = SessionView {
        temporary: &temporary,
        ..SessionView::default()
    };
    let own = route(
        &statement("SELECT * FROM orders"),
        &NoParams,
        &topology(3),
        &session,
    );
    assert_eq!(reason(own), "temporary table");
}

#[test]
fn clients_may_name_the_shard() {
    to_shard("/* pgdog_shard: 2 */ SELECT * FROM orders", 2);
    to_shard("/* pgdog_shard: 2 */ CALL p()", 2);
    to_shard("/* pgdog_sharding_key: 12 */ SELECT * FROM orders", 1);
    assert_eq!(
        refused("/* pgdog_shard: 9 */ SELECT * FROM orders").sqlstate(),
        "22023"
    );
    let twice = "/* pgdog_shard: 1 */ SELECT 1 /* pgdog_shard: 0 */";
    assert_eq!(refused(twice).sqlstate(), "22023");
    unsupported("/* pgdog_sharding_key: 12 */ SELECT 1");
    // A row must not be stored where its key does not belong.
    unsupported("/* pgdog_shard: 2 */ INSERT INTO orders VALUES (11, 1)");
    to_shard("/* pgdog_shard: 0 */ INSERT INTO orders VALUES (11, 1)", 0);
    to_all(
        "/* pgdog_shard: 2 */ UPDATE rates SET pct = 1",
        AllReason::OmniWrite,
    );
    let session = SessionView {
        shard: Some(1),
        ..SessionView::default()
    };
    let routed = route(
        &statement("SELECT * FROM orders"),
        &NoParams,
        &topology(3),
        &session,
    );
    assert!(matches!(routed, Outcome::Ready(r) if r.target == Target::Shard(ShardNumber(1))));
}

#[test]
fn one_shard_takes_everything() {
    let at = |sql: &str| match route(
        &statement(sql),
        &NoParams,
        &topology(1),
        &SessionView::default(),
    ) {
        Outcome::Ready(route) => route,
        other => panic!("{sql}: {other:?}"),
    };
    for sql in [
        "SELECT * FROM orders",
        "CALL p()",
        "INSERT INTO notes VALUES (now())",
    ] {
        assert_eq!(at(sql).target, Target::Shard(ShardNumber(0)), "{sql}");
    }
    // The gate is entered even so: when it opens there may be two shards.
    let omni = at("UPDATE rates SET at = now()");
    assert_eq!(omni.target, Target::All(AllReason::OmniWrite));
}
