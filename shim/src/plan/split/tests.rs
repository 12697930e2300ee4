//! What is sent to shards, and how it is put together, by example.

use super::*;

fn of(sql: &str) -> Split {
    split(sql, 2).unwrap_or_else(|unsplit| panic!("{sql}: {unsplit:?}"))
}

#[track_caller]
fn asks(sql: &str, expected: &str) -> Split {
    let split = of(sql);
    assert_eq!(split.sql, expected);
    split
}

#[track_caller]
fn refuses(sql: &str, why: &str) {
    match split(sql, 0) {
        Err(unsplit) => assert!(unsplit.why.contains(why), "{sql}: {unsplit:?}"),
        Ok(split) => panic!("{sql}: {}", split.sql),
    }
}

const INT: Column = Column {
    type_oid: 20,
    array_oid: 1016,
};
const TEXT: Column = Column {
    type_oid: 25,
    array_oid: 1009,
};

#[test]
fn rows_are_asked_for_as_they_are() {
    let split = asks(
        "SELECT * FROM t WHERE a = $1",
        "SELECT * FROM t WHERE a = $1",
    );
    assert!(!split.must_finish && split.keys.is_empty() && !split.counted);
    assert_eq!(split.how(), "put side by side");
}

#[test]
fn what_orders_rows_is_asked_for_too() {
    let split = asks(
        "SELECT a AS x, * FROM t ORDER BY x DESC, lower(b) NULLS FIRST, c COLLATE \"C\"",
        "SELECT a AS x, *, a AS pgdog_key_1, lower(b) AS pgdog_key_2, \
         c COLLATE \"C\" AS pgdog_key_3 FROM t \
         ORDER BY x DESC, lower(b) NULLS FIRST, c COLLATE \"C\"",
    );
    let keys: Vec<_> = split
        .keys
        .iter()
        .map(|k| (k.descending, k.nulls_first, k.bytewise))
        .collect();
    assert_eq!(
        keys,
        [
            (true, true, false),
            (false, true, false),
            (false, false, true)
        ]
    );
    asks(
        "SELECT a + 1, b FROM t ORDER BY 1",
        "SELECT a + 1, b, a + 1 AS pgdog_key_1 FROM t ORDER BY 1",
    );
    refuses("SELECT *, b FROM t ORDER BY 2", "behind *");
    refuses("SELECT a FROM t ORDER BY a USING <", "USING");
    refuses(
        "SELECT random() AS r FROM t ORDER BY r",
        "another value each time",
    );
    refuses(
        "SELECT random(), a FROM t ORDER BY random()",
        "another value each time",
    );
}

#[test]
fn a_limit_is_what_all_together_may_need_of_one() {
    let split = asks(
        "SELECT a FROM t ORDER BY a LIMIT $1 OFFSET $2",
        "SELECT a, a AS pgdog_key_1 FROM t ORDER BY a LIMIT $3",
    );
    assert_eq!(split.bounds.limit, Some(Value::Param(1)));
    assert_eq!(split.counts, [1, 2]);
    let both = of("SELECT a FROM t WHERE b > $1 AND c = '$2' LIMIT $1 OFFSET $2");
    assert_eq!(both.counts, [2], "the other has a type of its own");
    let split = asks(
        "SELECT a FROM t ORDER BY a FETCH FIRST 2 ROWS WITH TIES",
        "SELECT a, a AS pgdog_key_1 FROM t ORDER BY a FETCH FIRST $3 ROWS WITH TIES",
    );
    assert!(split.bounds.with_ties);
    let split = asks("SELECT a FROM t OFFSET 3", "SELECT a FROM t");
    assert!(!split.counted && split.bounds.offset.is_some());
    refuses("SELECT a FROM t LIMIT 1 + 1", "expression");
}

#[test]
fn a_server_leaves_out_what_is_there_twice() {
    let split = asks(
        "SELECT DISTINCT a, b FROM t ORDER BY b LIMIT 3",
        "SELECT DISTINCT a, b, b AS pgdog_key_1 FROM t ORDER BY b LIMIT $3",
    );
    assert!(split.must_finish);
    assert_eq!(
        split.finish.text(&[INT, TEXT, TEXT], 2).unwrap(),
        "SELECT pgdog_1, pgdog_2 FROM (SELECT DISTINCT pgdog_1, pgdog_2, pgdog_3 FROM \
         ((SELECT a, b, b AS pgdog_key_1 FROM t LIMIT 0) UNION ALL \
         SELECT * FROM unnest($3, $4, $5)) \
         pgdog_rows(pgdog_1, pgdog_2, pgdog_3)) pgdog_distinct ORDER BY pgdog_3 ASC NULLS LAST \
         LIMIT 3"
    );
    let on = asks(
        "SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b DESC",
        "SELECT DISTINCT ON (a) a, b, a AS pgdog_key_1, b AS pgdog_key_2 FROM t \
         ORDER BY a, b DESC",
    );
    let text = on.finish.text(&[INT, TEXT, INT, TEXT], 0).unwrap();
    assert!(text.contains("DISTINCT ON (pgdog_3) pgdog_1"), "{text}");
    assert_eq!(
        text.matches("pgdog_4 DESC NULLS FIRST").count(),
        2,
        "{text}"
    );
    asks(
        "SELECT DISTINCT ON (a, c) b FROM t",
        "SELECT DISTINCT ON (a, c) b, a AS pgdog_key_1, c AS pgdog_key_2 FROM t",
    );
    asks(
        "SELECT DISTINCT ON (a, c) b FROM t ORDER BY a",
        "SELECT DISTINCT ON (a, c) b, a AS pgdog_key_1, c AS pgdog_key_2 FROM t ORDER BY a",
    );
    refuses(
        "SELECT DISTINCT ON (o.a) o.b FROM t o ORDER BY a",
        "one column by two names",
    );
}

#[test]
fn groups_are_put_together_by_a_server() {
    let split = asks(
        "SELECT a, count(*), avg(b) + 1 AS x FROM t WHERE c > 0 GROUP BY a \
         HAVING max(d) > 5 ORDER BY 2 DESC, sum(b) LIMIT 3",
        "SELECT a, count(*), sum(b), count(b), max(d), sum(b) FROM t WHERE c > 0 GROUP BY 1",
    );
    let columns = [TEXT, INT, INT, INT, INT, INT];
    assert_eq!(
        split.finish.text(&columns, 0).unwrap(),
        "SELECT pgdog_rows.pgdog_1 AS a, pg_catalog.sum(pgdog_rows.pgdog_2)::bigint AS count, \
         (pg_catalog.sum(pgdog_rows.pgdog_3) + '0'::numeric) / \
         NULLIF(pg_catalog.sum(pgdog_rows.pgdog_4), 0)::numeric + 1 AS x FROM \
         ((SELECT a, count(*), sum(b), count(b), max(d), sum(b) FROM t WHERE c > 0 GROUP BY 1 \
         LIMIT 0) UNION ALL SELECT * FROM unnest($1, $2, $3, $4, $5, $6)) \
         pgdog_rows(pgdog_1, pgdog_2, pgdog_3, pgdog_4, pgdog_5, pgdog_6) GROUP BY \
         pgdog_rows.pgdog_1 HAVING pg_catalog.max(pgdog_rows.pgdog_5) > 5 ORDER BY 2 DESC, \
         pg_catalog.sum(pgdog_rows.pgdog_6)::bigint LIMIT 3"
    );
    asks(
        "SELECT sum(a) FILTER (WHERE b) FROM t",
        "SELECT sum(a) FILTER (WHERE b) FROM t",
    );
}

#[test]
fn a_server_is_asked_whether_a_name_in_group_by_is_of_a_table() {
    let split = asks(
        "WITH w AS (SELECT 1) SELECT date_trunc('day', at) AS \"a day\", count(*) FROM t, w \
         WHERE x GROUP BY \"a day\"",
        "WITH w AS (SELECT 1) SELECT date_trunc('day', at), count(*) FROM t, w WHERE x GROUP BY 1",
    );
    let [alias] = split.aliases.as_slice() else {
        panic!("{:?}", split.aliases);
    };
    assert_eq!(alias.name, "a day");
    assert_eq!(
        alias.probe,
        "SELECT (SELECT (WITH w AS (SELECT 1) SELECT \"a day\" FROM t, w LIMIT 0) \
         FROM (SELECT NULL::boolean) AS pgdog_probe (\"a day\")), \
         (SELECT (WITH w AS (SELECT 1) SELECT \"a day\" FROM t, w LIMIT 0) \
         FROM (SELECT NULL::bigint) AS pgdog_probe (\"a day\"))"
    );
    for sql in [
        "SELECT 'all' AS memo, count(*) FROM t GROUP BY memo",
        "SELECT count(*) AS memo FROM t GROUP BY memo",
        "SELECT upper(memo) AS id, count(*) FROM t GROUP BY tenant_id, id",
    ] {
        assert_eq!(of(sql).aliases.len(), 1, "{sql}");
    }
    assert!(
        of("SELECT memo, count(*) FROM t GROUP BY memo")
            .aliases
            .is_empty()
    );
    assert!(
        of("SELECT memo AS m, count(*) FROM t GROUP BY 1")
            .aliases
            .is_empty()
    );
}

#[test]
fn aggregates_in_syntax_that_is_not_known_are_not_overlooked() {
    for sql in [
        "SELECT xmlforest(count(*)) FROM t",
        "SELECT xmlforest(sum(id) OVER ()) FROM t",
        "SELECT JSON_OBJECT('n': count(*)) FROM t",
        "SELECT a FROM t ORDER BY xmlforest(count(*))",
        "SELECT count(*) FROM t ORDER BY xmlforest(count(*))",
        "SELECT DISTINCT ON (xmlforest(count(*))) 1 FROM t",
    ] {
        refuses(sql, "not split yet");
    }
    let on = of("SELECT DISTINCT ON (count(*)) 1 FROM t");
    assert!(
        on.must_finish && on.sql.starts_with("SELECT count(*) FROM t"),
        "{}",
        on.sql
    );
    refuses("SELECT DISTINCT ON (sum(a) OVER ()) 1 FROM t", "window");
}

#[test]
fn texts_that_speak_of_places_are_different_aggregates() {
    let sql = "SELECT bool_or(note = 'location: 1'), bool_or(note = 'location: 2') FROM t";
    asks(sql, sql);
}

#[test]
fn the_work_grows_with_the_text_and_not_faster() {
    let visits = |members: usize| {
        let list = vec!["7"; members].join(", ");
        let before = shape::tests::visits();
        of(&format!(
            "SELECT a, count(*) FROM t WHERE b IN ({list}) GROUP BY a"
        ));
        shape::tests::visits() - before
    };
    let (small, large) = (visits(500), visits(5000));
    assert!(large < small * 12, "{small} {large}");
}

#[test]
fn what_needs_all_rows_of_a_group_is_refused() {
    refuses("SELECT count(DISTINCT a) FROM t", "count(DISTINCT ...)");
    refuses(
        "SELECT a, b, count(*) FROM t GROUP BY a",
        "\"b\" is not grouped",
    );
    refuses("SELECT sum(a) OVER () FROM t", "window");
    refuses("SELECT a, count(*) FROM t GROUP BY ROLLUP (a)", "ROLLUP");
    refuses(
        "SELECT (SELECT 1), count(*) FROM t",
        "subquery beside aggregates",
    );
    refuses(
        "SELECT lower(a) AS a, count(*) FROM t GROUP BY a",
        "may mean",
    );
    refuses("SELECT a FROM t UNION SELECT a FROM u", "UNION");
    refuses("EXPLAIN SELECT a FROM t", "SELECT");
    let real = Column {
        type_oid: 700,
        array_oid: 1021,
    };
    let average = of("SELECT avg(a) FROM t").finish.text(&[real, INT], 0);
    assert!(average.unwrap_err().why.contains("real"));
}
