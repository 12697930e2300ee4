//! Reads over several shards: which of them may be split.

use super::*;

#[test]
fn reads_without_a_key_go_everywhere() {
    for sql in [
        "SELECT * FROM orders",
        "SELECT count(*) FROM orders WHERE tenant_id > 11",
        "SELECT * FROM orders WHERE tenant_id = 11 OR id = 1",
        "SELECT * FROM orders WHERE NOT tenant_id = 11",
        "SELECT * FROM orders WHERE tenant_id = 5 + 6",
        "SELECT tenant_id, count(*) FROM orders WHERE tenant_id IN (11, 12) GROUP BY 1",
        "SELECT * FROM orders WHERE tenant_id = $1",
        "SELECT * FROM orders WHERE tenant_id = 11::float8",
        "SELECT * FROM orders o JOIN lines l USING (tenant_id)",
        "SELECT * FROM orders o LEFT JOIN rates r ON r.code = o.memo",
        "SELECT * FROM orders AS o(a, tenant_id) WHERE tenant_id = 11",
        "SELECT * FROM orders o LEFT JOIN lines l \
         ON o.tenant_id = l.tenant_id AND o.tenant_id = 11",
        "SELECT * FROM orders o RIGHT JOIN lines l USING (tenant_id)",
        "SELECT * FROM rates r RIGHT JOIN orders o ON r.code = o.memo",
        "SELECT * FROM rates r, orders o",
        "SELECT * FROM (SELECT * FROM orders) o JOIN lines l ON l.tenant_id = o.tenant_id",
        "SELECT * FROM orders o WHERE EXISTS \
         (SELECT 1 FROM lines l WHERE l.tenant_id = o.tenant_id)",
        "SELECT * FROM orders o WHERE NOT EXISTS \
         (SELECT 1 FROM lines l WHERE l.tenant_id = o.tenant_id)",
        "SELECT * FROM orders o WHERE o.tenant_id IN (SELECT l.tenant_id FROM lines l)",
        "SELECT (SELECT count(*) FROM lines l WHERE l.tenant_id = o.tenant_id) FROM orders o",
        "SELECT (SELECT max(l.id) FROM lines l WHERE l.tenant_id = o.tenant_id) FROM orders o",
        "SELECT (SELECT l.id FROM lines l WHERE l.tenant_id = o.tenant_id ORDER BY 1 LIMIT 1) \
         FROM orders o",
        "SELECT (SELECT max(r.pct) FROM rates r) FROM orders o",
        "WITH r AS (SELECT * FROM rates) SELECT * FROM orders, r",
        "SELECT * FROM orders WHERE at > now() - interval '1 day'",
        "SELECT *, random() FROM orders",
        "SELECT (SELECT max(r.pct) FROM rates r), gen_random_uuid() FROM orders",
        "SELECT * FROM orders WHERE at < clock_timestamp()",
        "SELECT pg_catalog.concat(memo), pg_catalog.lower(memo) FROM orders",
        "SELECT * FROM orders WHERE tenant_id = 11 OR tenant_id = 12 ORDER BY id LIMIT 5",
        "SELECT count(*) FROM orders HAVING sum(id) > 5",
    ] {
        to_all(sql, AllReason::Read);
        assert_eq!(go(sql).access, Access::Read, "{sql}");
    }
}

/// Reads that are not split, and a part of the reason.
const UNMERGED: &[(&str, &str)] = &[
    ("SELECT * FROM orders, lines", "belong together"),
    (
        "SELECT * FROM orders o JOIN lines l ON l.id = o.id",
        "belong together",
    ),
    (
        "SELECT * FROM orders o JOIN lines l ON l.tenant_id = o.id",
        "belong together",
    ),
    (
        "SELECT * FROM orders a, orders b, lines l WHERE l.tenant_id = a.tenant_id",
        "belong together",
    ),
    (
        "SELECT * FROM orders o JOIN visits v ON v.tenant_id = o.tenant_id",
        "belong together",
    ),
    (
        "SELECT * FROM rates LEFT JOIN orders ON code = memo",
        "outer join",
    ),
    (
        "SELECT * FROM orders RIGHT JOIN rates ON code = memo",
        "outer join",
    ),
    (
        "SELECT * FROM orders FULL JOIN rates ON code = memo",
        "outer join",
    ),
    (
        "SELECT * FROM orders o FULL JOIN lines l USING (tenant_id)",
        "outer join",
    ),
    (
        "SELECT * FROM rates WHERE EXISTS (SELECT 1 FROM orders)",
        "every shard has all rows",
    ),
    (
        "SELECT * FROM rates r, (SELECT 1) x WHERE r.code IN (SELECT memo FROM orders)",
        "every shard has all rows",
    ),
    ("SELECT (SELECT count(*) FROM orders)", "no FROM of its own"),
    (
        "SELECT * FROM orders WHERE id > (SELECT avg(b.id) FROM orders b)",
        "on other shards",
    ),
    (
        "SELECT * FROM orders o WHERE o.tenant_id IN \
             (SELECT l.tenant_id FROM lines l ORDER BY l.id LIMIT 3)",
        "on other shards",
    ),
    (
        "SELECT * FROM orders o WHERE o.tenant_id NOT IN (SELECT l.tenant_id FROM lines l)",
        "belong together",
    ),
    (
        "SELECT * FROM orders o WHERE o.tenant_id = \
             (SELECT l.tenant_id FROM lines l WHERE l.id = 5)",
        "on other shards",
    ),
    (
        "SELECT * FROM (SELECT * FROM orders LIMIT 3) o",
        "on other shards",
    ),
    (
        "SELECT * FROM (SELECT DISTINCT memo FROM orders) o",
        "on other shards",
    ),
    (
        "SELECT count(*) FROM (SELECT memo FROM orders GROUP BY 1) o",
        "on other shards",
    ),
    (
        "WITH o AS (SELECT * FROM orders) SELECT * FROM o, orders",
        "WITH",
    ),
    (
        "WITH o AS (SELECT * FROM orders) SELECT * FROM orders a, o WHERE EXISTS \
             (SELECT 1 FROM o b)",
        "WITH",
    ),
    (
        "SELECT (SELECT pct FROM rates LIMIT 1) FROM orders",
        "choose different rows",
    ),
    ("SELECT string_agg(memo, ',') FROM orders", "string_agg"),
    ("SELECT my_function(id) FROM orders", "my_function"),
    (
        "SELECT concat(memo) FROM orders",
        "besides PostgreSQL's own",
    ),
    ("SELECT bit_xor(id) FROM orders", "besides PostgreSQL's own"),
    ("SELECT json_arrayagg(id) FROM orders", "json_arrayagg"),
    ("SELECT now(), id FROM orders", "another value for now"),
    ("SELECT ctid FROM orders", "another value for ctid"),
    (
        "SELECT * FROM orders o, (SELECT gen_random_uuid() u) b",
        "another value for gen_random_uuid",
    ),
    (
        "WITH r AS (SELECT random() x) SELECT * FROM orders, r",
        "another value for random",
    ),
    (
        "SELECT * FROM orders WHERE qty = (SELECT (random() * 10)::int)",
        "another value for random",
    ),
    (
        "SELECT * FROM orders, random() r",
        "another value for random",
    ),
    (
        "SELECT (SELECT random()) FROM orders",
        "another value for random",
    ),
    (
        "SELECT random(), id FROM orders ORDER BY random()",
        "another value for random",
    ),
    ("SELECT current_date, count(*) FROM orders", "CURRENT_DATE"),
    (
        "SELECT (SELECT count(o.id)) FROM orders o",
        "aggregate in a subquery",
    ),
    ("SELECT * FROM orders, pg_class", "rows of its own"),
];

#[test]
fn what_one_shard_cannot_see_alone_is_refused() {
    for (sql, why) in UNMERGED {
        let fault = refused(sql);
        assert_eq!(fault.sqlstate(), "0A000", "{sql}");
        let detail = fault.detail().unwrap_or_default();
        assert!(detail.contains(*why), "{sql}: {detail}");
    }
}

#[test]
fn nothing_but_a_read_is_split() {
    for sql in [
        "UPDATE orders SET id = 1",
        "SELECT * FROM orders FOR UPDATE",
        "INSERT INTO lines SELECT * FROM orders",
        "DECLARE c CURSOR FOR SELECT * FROM orders",
        "COPY (SELECT * FROM orders) TO STDOUT",
        "CREATE TABLE x AS SELECT * FROM orders",
        "PREPARE p AS SELECT * FROM orders",
    ] {
        assert!(
            !matches!(
                outcome(sql),
                Outcome::Ready(Route {
                    target: Target::All(AllReason::Read),
                    ..
                })
            ),
            "{sql}"
        );
    }
}
