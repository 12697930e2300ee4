//! A cluster grows by one shard while omni writers run; or does not, and nothing is left of it.
//!
//! Real servers with the installed extension; the writers do what a shim's session would do.

#![allow(clippy::unwrap_used)] // a test may panic

mod workflow_support;

use pgdog_shim::workflow::{Outcome, disagreeing, hashes};
use workflow_support::writers::Writers;
use workflow_support::{Shop, number};

/// Six writers keep writing through the whole growth. None sees an error, every acknowledged
/// transaction is on all three shards exactly once, and the tables are equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growth_under_load_loses_nothing() {
    let shop = Shop::start(21400).await;
    let writers = Writers::start(&shop, 6).await;
    let task = shop.add_shard(true).await;
    assert_eq!(shop.drive(task).await.unwrap().unwrap(), Outcome::Finished);
    let at_flip = writers.acknowledged();
    // Writes after the flip reach the new shard too.
    while writers.acknowledged() < at_flip + 50 {
        tokio::task::yield_now().await;
    }
    let (counts, slowest) = writers.stop().await;

    shop.ended(task, "done").await;
    let pause: f64 = shop.task(task, "pause_ms").await.unwrap().parse().unwrap();
    println!("{counts:?} transactions, pause {pause:.1} ms, slowest write {slowest:?}");
    assert!(pause > 0.0 && pause < 5_000.0);
    for shard in 0..3 {
        let client = shop.client(shard).await;
        for (writer, count) in counts.iter().enumerate() {
            let sql = format!("SELECT n FROM shop.counters WHERE writer = {writer}");
            assert_eq!(
                number(&client, &sql).await,
                *count,
                "counter on shard {shard}"
            );
            let sql = format!("SELECT count(*) FROM shop.ledger WHERE writer = {writer}");
            assert_eq!(
                number(&client, &sql).await,
                *count,
                "ledger on shard {shard}"
            );
        }
    }
    let shards = hashes(&shop.grown()).await.unwrap();
    assert_eq!((shards.len(), shards[0].len()), (3, 8));
    assert_eq!(disagreeing(&shards), Vec::<String>::new());
    everything_is_there_and_nothing_is_left(&shop).await;
}

/// Stopped while it waits for the cutover: nothing is left anywhere, and the next try succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_task_leaves_nothing_and_the_next_one_succeeds() {
    let shop = Shop::start(21410).await;
    let task = shop.add_shard(false).await;
    let driver = shop.drive(task);
    shop.reaches(task, &["awaiting cutover"]).await;
    let lead = shop.client(0).await;
    let ddl = "ALTER TABLE shop.plans ADD COLUMN extra int";
    let frozen = lead.batch_execute(ddl).await.unwrap_err();
    assert_eq!(frozen.code().unwrap().code(), "55000");
    lead.query_one("SELECT pgdog.stop_task($1)", &[&task.0])
        .await
        .unwrap();
    assert_eq!(driver.await.unwrap().unwrap(), Outcome::Finished);

    shop.ended(task, "aborted").await;
    assert_eq!(shop.task(task, "error").await, None);
    let target = shop.client(2).await;
    for (client, sql) in [
        (
            &target,
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace",
        ),
        (
            &target,
            "SELECT count(*) FROM pg_namespace WHERE nspname = 'shop'",
        ),
        (&target, "SELECT count(*) FROM pg_subscription"),
        (
            &target,
            "SELECT count(*) FROM pgdog.topology WHERE state <> 'empty'",
        ),
        (&lead, "SELECT count(*) FROM pg_replication_slots"),
        (&lead, "SELECT count(*) FROM pg_publication"),
        (&lead, "SELECT count(*) FROM pgdog.task_intents"),
    ] {
        assert_eq!(number(client, sql).await, 0, "{sql}");
    }

    for shard in 0..2 {
        shop.client(shard).await.batch_execute(ddl).await.unwrap();
    }
    let task = shop.add_shard(false).await;
    let driver = shop.drive(task);
    shop.reaches(task, &["awaiting cutover"]).await;
    lead.query_one("SELECT pgdog.cutover_shard(2)", &[])
        .await
        .unwrap();
    assert_eq!(driver.await.unwrap().unwrap(), Outcome::Finished);
    shop.ended(task, "done").await;
    everything_is_there_and_nothing_is_left(&shop).await;
}

/// Two things stand against it; both are named, each with its remedy, and nothing was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_blocker_is_named_at_once() {
    let shop = Shop::start(21420).await;
    for shard in 0..2 {
        let client = shop.client(shard).await;
        let sql = "CREATE TABLE public.items (tenant_id bigint PRIMARY KEY); \
             SELECT pgdog.shard_table('public.items', 'tenant_id')";
        client.batch_execute(sql).await.unwrap();
    }
    let damage = "UPDATE shop.plans SET price = price + 1 WHERE code = 'p7'";
    let client = shop.client(1).await;
    client
        .batch_execute(&format!("SET pgdog.allow_direct_writes = on; {damage}"))
        .await
        .unwrap();

    let task = shop.add_shard(true).await;
    assert_eq!(shop.drive(task).await.unwrap().unwrap(), Outcome::Finished);
    shop.ended(task, "aborted").await;
    let error = shop.task(task, "error").await.unwrap();
    assert!(
        error.contains("public.items") && error.contains("shop.plans"),
        "{error}"
    );
    let sql = "SELECT count(*) FROM pgdog.task_intents";
    assert_eq!(number(&shop.client(0).await, sql).await, 0);
}

/// Somebody keeps an omni transaction open: the fence gives up, names him, and writers who come
/// meanwhile are not held up for longer than one try. Once he is gone, the cutover succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_writer_is_named_and_not_waited_for() {
    let shop = Shop::start(21470).await;
    let task = shop.add_shard(false).await;
    let driver = shop.drive(task);
    shop.reaches(task, &["awaiting cutover"]).await;
    let sitter = shop.client(1).await;
    sitter
        .batch_execute("BEGIN; SELECT pgdog.omni_enter()")
        .await
        .unwrap();
    let pid = number(&sitter, "SELECT pg_backend_pid()::bigint").await;
    let lead = shop.client(0).await;
    lead.query_one("SELECT pgdog.cutover_shard(2)", &[])
        .await
        .unwrap();
    shop.reaches(task, &["fencing"]).await;
    shop.reaches(task, &["replicating", "awaiting cutover"])
        .await;
    let sql = "SELECT detail ->> 'error' FROM pgdog.task_events \
         WHERE task_id = $1 AND event = 'fence_failed'";
    let why: String = lead.query_one(sql, &[&task.0]).await.unwrap().get(0);
    assert!(why.contains(&format!("pid {pid} (test)")), "{why}");

    sitter.batch_execute("ROLLBACK").await.unwrap();
    shop.reaches(task, &["awaiting cutover"]).await;
    lead.query_one("SELECT pgdog.cutover_shard(2)", &[])
        .await
        .unwrap();
    assert_eq!(driver.await.unwrap().unwrap(), Outcome::Finished);
    shop.ended(task, "done").await;
}

/// A row that does not fit stops the stream: the task says so, and goes on by itself once a person
/// has removed the row. (Who enables the subscription by hand may do so at the same moment as the
/// task, and one of the two is then told that the tuple was concurrently updated.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_is_told_and_goes_on_after_repair() {
    let shop = Shop::start(21480).await;
    let task = shop.add_shard(false).await;
    let driver = shop.drive(task);
    shop.reaches(task, &["awaiting cutover"]).await;
    let target = shop.client(2).await;
    let guest = format!(
        "SET pgdog.task_id = '{task}'; INSERT INTO shop.rates VALUES ('2030-01-01', 'EUR', 1)"
    );
    target.batch_execute(&guest).await.unwrap();
    for shard in 0..2 {
        let row = "INSERT INTO shop.rates VALUES ('2030-01-01', 'EUR', 2)";
        shop.client(shard).await.batch_execute(row).await.unwrap();
    }
    shop.reaches(task, &["broken"]).await;
    let error = shop.task(task, "error").await.unwrap();
    assert!(error.contains("disabled by an error"), "{error}");

    let repair = "DELETE FROM shop.rates WHERE day = '2030-01-01'";
    target.batch_execute(repair).await.unwrap();
    shop.reaches(task, &["awaiting cutover"]).await;
    assert_eq!(shop.task(task, "error").await, None);
    let lead = shop.client(0).await;
    lead.query_one("SELECT pgdog.cutover_shard(2)", &[])
        .await
        .unwrap();
    assert_eq!(driver.await.unwrap().unwrap(), Outcome::Finished);
    assert_eq!(
        disagreeing(&hashes(&shop.grown()).await.unwrap()),
        Vec::<String>::new()
    );
}

async fn everything_is_there_and_nothing_is_left(shop: &Shop) {
    let new = shop.client(2).await;
    for (what, sql) in [
        (
            "serving",
            "SELECT count(*) FROM pgdog.topology WHERE state = 'serving' AND shard = 2 \
             AND shards = 3 AND version = 2",
        ),
        (
            "config",
            "SELECT count(*) FROM pgdog.config WHERE shard = 2 AND shards = 3",
        ),
        (
            "foreign key",
            "SELECT count(*) FROM pg_constraint WHERE conname = 'ledger_plan_fkey'",
        ),
        (
            "trigger",
            "SELECT count(*) FROM pg_trigger WHERE tgname = 'ledger_audit'",
        ),
        (
            "index",
            "SELECT count(*) FROM pg_class WHERE relname = 'plans_tier'",
        ),
        (
            "view",
            "SELECT count(*) FROM pg_class WHERE relname = 'cheap'",
        ),
        ("sharded table", "SELECT count(*) FROM pgdog.sharded_tables"),
        (
            "no rows of others",
            "SELECT (count(*) = 0)::int::bigint FROM public.orders",
        ),
    ] {
        assert_eq!(number(&new, sql).await, 1, "{what}");
    }
    assert_eq!(
        number(&new, "SELECT count(*) FROM pgdog.omnisharded_tables").await,
        8
    );
    let last = "SELECT coalesce(pg_sequence_last_value('shop.ledger_id_seq'), 0)";
    for shard in 0..3 {
        let client = shop.client(shard).await;
        assert_eq!(
            number(&client, "SELECT shards::bigint FROM pgdog.topology").await,
            3
        );
        assert!(number(&client, "SELECT count(*) FROM pgdog.shards").await >= 3);
        for sql in [
            "SELECT count(*) FROM pgdog.task_intents",
            "SELECT count(*) FROM pg_subscription",
            "SELECT count(*) FROM pg_publication",
            "SELECT count(*) FROM pg_replication_slots",
            "SELECT count(*) FROM pg_prepared_xacts",
            "SELECT count(*) FROM pgdog.marker",
        ] {
            assert_eq!(number(&client, sql).await, 0, "{sql} on shard {shard}");
        }
    }
    let taken = number(&shop.client(0).await, "SELECT count(*) FROM shop.ledger").await;
    if taken > 0 {
        assert!(number(&new, last).await > 0, "sequences were carried over");
    }
}
