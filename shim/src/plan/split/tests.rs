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
        "SELECT a AS x, *, a, lower(b), c COLLATE \"C\" FROM t \
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
        "SELECT a + 1, b, a + 1 FROM t ORDER BY 1",
    );
    refuses("SELECT *, b FROM t ORDER BY 2", "behind *");
    refuses("SELECT a FROM t ORDER BY a USING <", "USING");
    refuses(
        "SELECT random() AS r FROM t ORDER BY r",
        "another value each time",
    );
}

#[test]
fn a_limit_is_what_all_together_may_need_of_one() {
    let split = asks(
        "SELECT a FROM t ORDER BY a LIMIT $1 OFFSET $2",
        "SELECT a, a FROM t ORDER BY a LIMIT $3",
    );
    assert_eq!(split.bounds.limit, Some(Value::Param(1)));
    assert_eq!(split.counts().collect::<Vec<_>>(), [1, 2]);
    let split = asks(
        "SELECT a FROM t ORDER BY a FETCH FIRST 2 ROWS WITH TIES",
        "SELECT a, a FROM t ORDER BY a FETCH FIRST $3 ROWS WITH TIES",
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
        "SELECT DISTINCT a, b, b FROM t ORDER BY b LIMIT $3",
    );
    assert!(split.must_finish);
    assert_eq!(
        split.finish.text(&[INT, TEXT, TEXT], 2).unwrap(),
        "SELECT pgdog_1, pgdog_2 FROM (SELECT DISTINCT pgdog_1, pgdog_2, pgdog_3 FROM \
         ((SELECT a, b, b FROM t LIMIT 0) UNION ALL SELECT * FROM unnest($3, $4, $5)) \
         pgdog_rows(pgdog_1, pgdog_2, pgdog_3)) pgdog_distinct ORDER BY pgdog_3 ASC NULLS LAST \
         LIMIT 3"
    );
    let on = asks(
        "SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b DESC",
        "SELECT DISTINCT ON (a) a, b, a, b FROM t ORDER BY a, b DESC",
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
        "SELECT DISTINCT ON (a, c) b, a, c FROM t",
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
        "SELECT date_trunc('day', at) AS day, count(*) FROM t GROUP BY day",
        "SELECT date_trunc('day', at) AS day, count(*) FROM t GROUP BY day",
    );
    asks(
        "SELECT sum(a) FILTER (WHERE b) FROM t",
        "SELECT sum(a) FILTER (WHERE b) FROM t",
    );
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
