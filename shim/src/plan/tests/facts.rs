use super::super::{Origin, ParamType};
use super::*;

/// `SELECT` from `t` with this condition: the values that `k` is bound to.
fn where_k(condition: &str) -> Vec<Vec<Value>> {
    bound(&format!("SELECT * FROM t WHERE {condition}"), 0, "k")
}

#[test]
fn equalities_bind_the_key() {
    let five = vec![vec![text("5")]];
    for condition in [
        "k = 5",
        "5 = k",
        "t.k = 5",
        "k = '5'",
        "k = 5::bigint",
        "k OPERATOR(pg_catalog.=) 5",
        "x > 1 AND (y = 2 AND k = 5)",
        "(k, y) = (5, 2)",
        "k IN (5)",
        "k = ANY (ARRAY[5])",
        "k = ANY ('{5}')",
        "k = ANY ('{5}'::bigint[])",
    ] {
        assert_eq!(where_k(condition), five, "{condition}");
    }
    assert_eq!(where_k("k = -5"), vec![vec![text("-5")]]);
    assert_eq!(where_k("k = $3"), vec![vec![Value::Param(3)]]);
    let typed = Value::TypedParam(1, ParamType::Integer);
    assert_eq!(where_k("k = $1::bigint"), vec![vec![typed]]);
    assert_eq!(where_k("k = NULL"), vec![vec![Value::Null]]);
    assert_eq!(where_k("k IS NULL"), vec![vec![Value::Null]]);
    assert_eq!(
        where_k("k IN (5, $1)"),
        vec![vec![text("5"), Value::Param(1)]]
    );
    assert_eq!(where_k("k = ANY ($2)"), vec![vec![Value::ArrayParam(2)]]);
    assert_eq!(
        where_k("k = ANY ($2::int8[])"),
        vec![vec![Value::ArrayParam(2)]]
    );
    assert_eq!(
        where_k("(y, k) IN ((1, 5), (2, 6))"),
        vec![vec![text("5"), text("6")]]
    );
    assert_eq!(
        where_k("k IN (VALUES (5), (6))"),
        vec![vec![text("5"), text("6")]]
    );
}

#[test]
fn everything_else_binds_nothing() {
    for condition in [
        "k = 5 OR x = 1",
        "NOT k = 5",
        "NOT (k = 5 AND x = 1)",
        "k <> 5",
        "k >= 5 AND k <= 5",
        "k BETWEEN 5 AND 5",
        "k NOT IN (5)",
        "k = ALL ('{5}')",
        "(k = 5) IS NOT FALSE",
        "CASE WHEN k = 5 THEN true END",
        "k::text = '5'",
        "k + 0 = 5",
        "abs(k) = 5",
        "k OPERATOR(my.=) 5",
        "coalesce(k = 5, true)",
        "k LIKE '5'",
        "k IS NOT DISTINCT FROM 5",
        "other.k = 5",
    ] {
        assert_eq!(where_k(condition), Vec::<Vec<Value>>::new(), "{condition}");
    }
    assert_eq!(where_k("k = 4 + 1"), vec![vec![Value::Unknown]]);
    assert_eq!(where_k("k = 5::float8"), vec![vec![Value::Unknown]]);
}

#[test]
fn names_are_folded_and_resolved_as_postgresql_does() {
    let sql = r#"SELECT * FROM "Order Lines" l WHERE l.U&"Tenant\0049d" = 5"#;
    assert_eq!(bound(sql, 0, "TenantId"), vec![vec![text("5")]]);
    assert_eq!(relations("SELECT * FROM ORDERS")[0].name, "orders");
    assert_eq!(relations(r#"SELECT * FROM "Orders""#)[0].name, "Orders");
    let arch = &relations("SELECT * FROM arch.orders WHERE arch.orders.k = 5")[0];
    assert_eq!(arch.schema.as_deref(), Some("arch"));
    assert_eq!(arch.bound.len(), 1);
    // The alias hides the name, and renamed columns hide the key.
    assert!(bound("SELECT * FROM t AS o WHERE t.k = 5", 0, "k").is_empty());
    assert!(bound("SELECT * FROM t AS o(a, k) WHERE k = 5", 0, "k").is_empty());
    assert!(
        bound(
            "SELECT * FROM (t JOIN u ON true) AS j WHERE t.k = 5",
            0,
            "k"
        )
        .is_empty()
    );
}

#[test]
fn outer_joins_bind_only_their_nullable_side() {
    let on = |join: &str| {
        relations(&format!(
            "SELECT * FROM a {join} b ON a.k = b.k AND a.k = 5 AND b.k = 5"
        ))
    };
    let facts = |r: &Relation| (r.bound.len(), r.joined.len());
    let inner = on("JOIN");
    assert_eq!((facts(&inner[0]), facts(&inner[1])), ((1, 1), (1, 1)));
    let left = on("LEFT JOIN");
    assert_eq!((facts(&left[0]), facts(&left[1])), ((0, 0), (1, 1)));
    let right = on("RIGHT JOIN");
    assert_eq!((facts(&right[0]), facts(&right[1])), ((1, 1), (0, 0)));
    let full = on("FULL JOIN");
    assert_eq!((facts(&full[0]), facts(&full[1])), ((0, 0), (0, 0)));
    // WHERE comes after the join and binds both, but IS NULL finds rows without a partner.
    let sql = "SELECT * FROM a LEFT JOIN b ON a.x = b.x WHERE b.k = 5";
    assert_eq!(bound(sql, 1, "k"), vec![vec![text("5")]]);
    let anti = "SELECT * FROM a LEFT JOIN b ON a.k = b.k WHERE b.k IS NULL";
    assert!(bound(anti, 1, "k").is_empty());
}

#[test]
fn joins_link_columns() {
    for sql in [
        "SELECT * FROM a JOIN b ON a.k = b.k",
        "SELECT * FROM a, b WHERE a.k = b.k",
        "SELECT * FROM a JOIN b USING (k)",
    ] {
        let relations = relations(sql);
        assert_eq!(
            relations[0].joined,
            vec![("k".to_owned(), 1, "k".to_owned())],
            "{sql}"
        );
        assert_eq!(
            relations[1].joined,
            vec![("k".to_owned(), 0, "k".to_owned())],
            "{sql}"
        );
    }
    assert!(
        relations("SELECT * FROM a NATURAL JOIN b")[0]
            .joined
            .is_empty()
    );
    let derived = "SELECT * FROM a JOIN (SELECT k FROM b GROUP BY k) s ON a.k = s.k";
    assert_eq!(
        relations(derived)[0].joined,
        vec![("k".to_owned(), 1, "k".to_owned())]
    );
    assert!(
        relations(derived)[1].joined.is_empty(),
        "a subquery is not narrowed from outside"
    );
}

#[test]
fn subqueries_have_scopes_of_their_own() {
    let exists =
        relations("SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.k = 5)");
    assert!(exists[0].bound.is_empty() && exists[0].joined.is_empty());
    assert_eq!(exists[1].joined, vec![("k".to_owned(), 0, "k".to_owned())]);
    let inside = relations("SELECT (SELECT max(x) FROM b WHERE k = 5) FROM a");
    assert!(
        inside
            .iter()
            .find(|r| r.name == "a")
            .unwrap()
            .bound
            .is_empty()
    );
    assert_eq!(
        inside.iter().find(|r| r.name == "b").unwrap().bound.len(),
        1
    );
    let in_query = relations("SELECT * FROM a WHERE k IN (SELECT k FROM b WHERE k = 5)");
    assert_eq!(
        in_query[0].joined,
        vec![("k".to_owned(), 1, "k".to_owned())]
    );
    assert!(in_query[1].joined.is_empty());
    let union = relations("SELECT k FROM a WHERE k = 5 UNION ALL SELECT k FROM b");
    assert_eq!((union[0].bound.len(), union[1].bound.len()), (1, 0));
}

#[test]
fn ctes_shadow_tables() {
    let sql = "WITH orders AS (SELECT 1 AS k) SELECT * FROM orders";
    assert!(relations(sql).is_empty());
    let real =
        "WITH rates AS (SELECT * FROM rates) SELECT * FROM rates JOIN public.rates r ON true";
    let schemas: Vec<_> = relations(real).into_iter().map(|r| r.schema).collect();
    assert_eq!(schemas, vec![None, Some("public".to_owned())]);
    let recursive = "WITH RECURSIVE t AS (SELECT * FROM t) SELECT * FROM t";
    assert!(relations(recursive).is_empty());
    let through = "WITH v AS (SELECT k FROM b WHERE k = 5) SELECT * FROM a JOIN v ON a.k = v.k";
    assert_eq!(
        relations(through)[1].joined,
        vec![("k".to_owned(), 0, "k".to_owned())]
    );
}

#[test]
fn inserts_give_the_values_of_each_row() {
    let sql = "INSERT INTO t (x, k) VALUES (1, 5), (2, $1), (3, DEFAULT), (4, NULL)";
    let values = vec![text("5"), Value::Param(1), Value::Default, Value::Null];
    assert_eq!(bound(sql, 0, "k"), vec![values]);
    let positional = relations("INSERT INTO t VALUES (5, 'a')")
        .remove(0)
        .positional;
    assert_eq!(positional, Some(vec![vec![text("5"), text("a")]]));
    assert_eq!(
        relations("INSERT INTO t DEFAULT VALUES")[0].positional,
        Some(vec![vec![]])
    );
    let select = relations("INSERT INTO t (k, x) SELECT 5, x FROM s").remove(0);
    assert!(select.written && select.bound.is_empty());
    assert_eq!(
        select.selected.unwrap()[0],
        vec![Origin::Values(vec![text("5")])]
    );
    let star = relations("INSERT INTO t SELECT * FROM s WHERE k = 5").remove(0);
    assert_eq!(star.selected_star, Some(1));
    let computed = relations("INSERT INTO t SELECT k + 1, x FROM s").remove(0);
    assert_eq!(computed.selected.unwrap()[0], vec![]);
}

#[test]
fn assignments_of_columns_are_told_apart() {
    let assigned = |sql: &str| relations(sql).remove(0).assigned;
    assert_eq!(
        assigned("UPDATE t SET k = 5, x = x + 1"),
        vec![("k".to_owned(), Some(text("5"))), ("x".to_owned(), None)]
    );
    assert_eq!(
        assigned("UPDATE t SET (k, x) = (5, 6)"),
        vec![
            ("k".to_owned(), Some(text("5"))),
            ("x".to_owned(), Some(text("6")))
        ]
    );
    assert_eq!(assigned("UPDATE t SET (k, x) = (SELECT 1, 2)").len(), 2);
    assert!(assigned("UPDATE t SET k = k").is_empty());
    assert!(assigned("UPDATE t AS u SET k = u.k").is_empty());
    let conflict = "INSERT INTO t (k) VALUES (5) ON CONFLICT (k) DO UPDATE SET k = excluded.k";
    assert!(assigned(conflict).is_empty());
    let other = "INSERT INTO t (k) VALUES (5) ON CONFLICT (k) DO UPDATE SET k = excluded.x";
    assert_eq!(assigned(other), vec![("k".to_owned(), None)]);
}

#[test]
fn merge_binds_the_target_only() {
    let sql = "MERGE INTO t USING s ON t.k = s.k AND t.k = 5 AND s.k = 5 \
               WHEN MATCHED THEN UPDATE SET x = 1 \
               WHEN NOT MATCHED THEN INSERT (k, x) VALUES (s.k, 1)";
    let relations = relations(sql);
    assert_eq!((relations[0].bound.len(), relations[1].bound.len()), (1, 0));
    assert_eq!(relations[2].name, "t");
    assert_eq!(
        relations[2].selected.as_ref().unwrap()[0],
        vec![Origin::Column(1, "k".into())]
    );
}

#[test]
fn a_huge_insert_is_read_in_reasonable_time() {
    let mut sql = String::from("INSERT INTO t (k, id, memo) VALUES ");
    for row in 0..10_000 {
        let comma = if row == 0 { "" } else { "," };
        sql.push_str(&format!("{comma}({row}, {row}, '{}')", "x".repeat(200)));
    }
    let relation = relations(&sql).remove(0);
    assert_eq!(relation.bound[0].1.len(), 10_000);
    assert_eq!(relation.bound[0].1[9_999], text("9999"));
}

#[test]
fn a_text_nested_too_deeply_is_opaque_not_wrong() {
    let statement = one(&format!(
        "SELECT * FROM t WHERE x = 1{}",
        " || 'a'".repeat(3_000)
    ));
    assert!(statement.opaque.is_some());
    let joins: String = (0..200).map(|n| format!(" JOIN t{n} ON true")).collect();
    assert!(one(&format!("SELECT * FROM t{joins}")).opaque.is_some());
}
