//! Changes of sharded rows that no key binds to one shard, and of keys.

use super::*;

#[track_caller]
fn everywhere(sql: &str) {
    to_all(sql, AllReason::Change);
}

#[test]
fn a_change_without_a_key_runs_on_every_shard() {
    for sql in [
        "UPDATE orders SET memo = 'x'",
        "UPDATE orders AS o SET memo = upper(o.memo), qty = qty + $1 WHERE qty > $2",
        "UPDATE ONLY orders SET tenant_id = tenant_id, qty = 1",
        "UPDATE orders SET (memo, qty) = ('x', 2) WHERE tenant_id IN (11, 12)",
        "UPDATE orders SET qty = 1 WHERE tenant_id = 11 OR tenant_id = 12",
        "UPDATE orders SET qty = r.pct FROM rates r WHERE r.code = orders.memo",
        "UPDATE orders o SET qty = l.id FROM lines l WHERE l.tenant_id = o.tenant_id",
        "UPDATE orders o SET qty = (SELECT count(*) FROM lines l WHERE l.tenant_id = o.tenant_id)",
        "UPDATE orders SET qty = 1 WHERE memo IN (SELECT code FROM rates)",
        "UPDATE orders SET qty = 1 WHERE created < now()",
        "DELETE FROM orders",
        "DELETE FROM orders WHERE id < 5 AND memo LIKE 'a%'",
        "DELETE FROM orders USING lines WHERE lines.tenant_id = orders.tenant_id",
        "DELETE FROM orders o WHERE NOT EXISTS (SELECT FROM lines l \
         WHERE l.tenant_id = o.tenant_id)",
        "TRUNCATE orders",
        "TRUNCATE orders, lines CASCADE",
    ] {
        everywhere(sql);
    }
}

#[test]
fn a_change_that_shards_cannot_make_each_by_itself_is_refused() {
    for sql in [
        "UPDATE orders SET qty = 1 RETURNING id",
        "DELETE FROM orders RETURNING *",
        "EXPLAIN UPDATE orders SET qty = 1",
        "EXPLAIN ANALYZE DELETE FROM orders",
        "UPDATE orders SET created = now()",
        "UPDATE orders SET created = CURRENT_TIMESTAMP WHERE qty > 1",
        "UPDATE orders SET created = 'now'::timestamptz",
        "UPDATE orders SET qty = random()",
        "UPDATE orders SET qty = nextval('s')",
        "UPDATE orders SET qty = DEFAULT",
        "UPDATE orders SET (memo, qty) = ('x', DEFAULT)",
        "UPDATE orders SET qty = new_order(1)",
        "UPDATE orders SET qty = mine.f(qty)",
        "UPDATE orders SET qty = 1 WHERE ctid = '(0,1)'",
        "UPDATE orders SET qty = 1 WHERE CURRENT OF c",
        "UPDATE orders SET qty = 1 WHERE random() < 0.5",
        "UPDATE orders SET qty = (SELECT count(*) FROM lines)",
        "UPDATE orders SET qty = 1 WHERE id IN (SELECT id FROM lines)",
        "UPDATE orders SET qty = 1 WHERE memo IN (SELECT code FROM rates LIMIT 1)",
        "UPDATE orders SET qty = l.id FROM lines l WHERE l.id = orders.id",
        "UPDATE orders SET qty = l.id FROM lines l WHERE l.tenant_id = 11",
        "DELETE FROM orders USING lines",
        "DELETE FROM orders WHERE id > (SELECT avg(id) FROM orders)",
        "WITH gone AS (DELETE FROM lines RETURNING id) DELETE FROM orders",
        "WITH few AS (SELECT id FROM lines) DELETE FROM orders USING few WHERE few.id = orders.id",
        "WITH gone AS (DELETE FROM orders) SELECT 1",
        "MERGE INTO orders o USING rates r ON o.memo = r.code WHEN MATCHED THEN DELETE",
        "UPDATE orders SET tenant_id = 11",
        "UPDATE orders SET tenant_id = tenant_id + 1",
        "TRUNCATE orders, rates",
        "LOCK orders",
    ] {
        unsupported(sql);
    }
}

#[test]
fn a_key_may_become_another_of_its_shard() {
    for (sql, shard) in [
        ("UPDATE orders SET tenant_id = 13 WHERE tenant_id = 11", 0),
        (
            "UPDATE orders SET tenant_id = 11 WHERE tenant_id IN (11, 13)",
            0,
        ),
        (
            "UPDATE orders SET (qty, tenant_id) = (1, 14) WHERE tenant_id = 12",
            1,
        ),
        ("/* pgdog_shard: 1 */ UPDATE orders SET tenant_id = 14", 1),
        (
            "INSERT INTO orders (tenant_id, id) VALUES (11, 1) ON CONFLICT (id) DO UPDATE SET \
             tenant_id = 13",
            0,
        ),
    ] {
        to_shard(sql, shard);
    }
    for sql in [
        "UPDATE orders SET tenant_id = 12 WHERE tenant_id = 11",
        "UPDATE orders SET tenant_id = 11 WHERE tenant_id IN (11, 12)",
        "UPDATE orders SET tenant_id = NULL WHERE tenant_id = 11",
        "UPDATE orders SET tenant_id = DEFAULT WHERE tenant_id = 11",
        "UPDATE orders SET tenant_id = 13.4 WHERE tenant_id = 11",
        "/* pgdog_shard: 1 */ UPDATE orders SET tenant_id = 13",
        "/* pgdog_shard: 1 */ UPDATE orders SET tenant_id = 13 WHERE tenant_id = 11",
    ] {
        unsupported(sql);
    }
    let unmapped = refused("UPDATE orders SET tenant_id = 99 WHERE tenant_id = 11");
    assert_eq!(unmapped.sqlstate(), "23514");
}

#[test]
fn an_assigned_key_is_looked_up() {
    let statement = statement("UPDATE visits SET tenant_id = 2 WHERE tenant_id = 1");
    let topology = topology(3);
    let ask = |known: &[(LookupKey, ShardNumber)]| {
        let session = SessionView {
            lookups: known,
            ..SessionView::default()
        };
        route(&statement, &NoParams, &topology, &session)
    };
    let Outcome::NeedLookup(keys) = ask(&[]) else {
        panic!("both keys must be looked up");
    };
    assert_eq!(keys.len(), 2);
    let placed = |shards: [u16; 2]| {
        let shards = shards.map(ShardNumber);
        let known: Vec<_> = keys.iter().cloned().zip(shards).collect();
        ask(&known)
    };
    assert!(matches!(placed([1, 1]), Outcome::Ready(_)));
    assert!(matches!(placed([1, 2]), Outcome::Refused(_)));
}
