//! The coordinator dies at any step and another one takes over; flips that were left half done are
//! settled by what the new shard says.

#![allow(clippy::unwrap_used)] // a test may panic

mod workflow_support;

use pgdog_core::ids::TaskId;
use pgdog_shim::workflow::{Outcome, disagreeing, hashes};
use tokio::time::{Duration, Instant, timeout};
use workflow_support::writers::Writers;
use workflow_support::{LIMIT, Shop, number};

/// Killed as soon as each state is seen, again and again, under load; the last one finishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_every_state_the_next_coordinator_goes_on() {
    let shop = Shop::start(21430).await;
    let writers = Writers::start(&shop, 3).await;
    let task = shop.add_shard(true).await;
    let states = [
        "syncing schema",
        "syncing data",
        "indexing",
        "replicating",
        "fencing",
        "deciding",
        "activating",
        "cleaning",
        "done",
    ];
    let mut killed = Vec::new();
    let started = Instant::now();
    for at in 0..states.len() {
        let driver = shop.drive(task);
        let seen = shop.reaches(task, &states[at..]).await;
        driver.abort();
        let _ = driver.await;
        killed.push(seen.clone());
        if seen == "done" {
            break;
        }
        assert!(started.elapsed() < LIMIT, "{killed:?}");
    }
    finish(&shop, task).await;
    assert!(writers.acknowledged() > 0);
    let (counts, _) = timeout(LIMIT, writers.stop())
        .await
        .expect("no gate stays closed");
    println!("killed in {killed:?}; {counts:?} transactions");
    for shard in 0..3 {
        let client = shop.client(shard).await;
        for (writer, count) in counts.iter().enumerate() {
            let sql = format!("SELECT n FROM shop.counters WHERE writer = {writer}");
            assert_eq!(number(&client, &sql).await, *count, "shard {shard}");
        }
    }
    assert_eq!(
        disagreeing(&hashes(&shop.grown()).await.unwrap()),
        Vec::<String>::new()
    );
}

/// Prepared on the new shard and on shard 0 when the coordinator died: rolled back, the stream goes
/// on, and the next try succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flip_that_was_not_decided_is_rolled_back_and_tried_again() {
    let shop = Shop::start(21440).await;
    let task = parked(&shop).await;
    deciding(&shop, task).await;
    prepare(&shop, 2, task).await;
    prepare(&shop, 0, task).await;
    let driver = shop.drive(task);
    shop.reaches(task, &["awaiting cutover"]).await;
    for shard in 0..3 {
        let left = "SELECT count(*) FROM pg_prepared_xacts";
        assert_eq!(
            number(&shop.client(shard).await, left).await,
            0,
            "shard {shard}"
        );
    }
    let version = "SELECT max(version) FROM pgdog.topology";
    assert_eq!(number(&shop.client(0).await, version).await, 1);
    shop.client(0)
        .await
        .query_one("SELECT pgdog.cutover_shard(2)", &[])
        .await
        .unwrap();
    assert_eq!(driver.await.unwrap().unwrap(), Outcome::Finished);
    shop.ended(task, "done").await;
    assert_eq!(
        disagreeing(&hashes(&shop.grown()).await.unwrap()),
        Vec::<String>::new()
    );
}

/// Committed on the new shard, left prepared on the others: committed there too, even though
/// somebody wanted to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flip_that_was_decided_is_committed_everywhere() {
    let shop = Shop::start(21450).await;
    let task = parked(&shop).await;
    deciding(&shop, task).await;
    for shard in [2, 0, 1] {
        prepare(&shop, shard, task).await;
    }
    let commit = format!("COMMIT PREPARED '{}'", gid(task));
    shop.client(2).await.batch_execute(&commit).await.unwrap();
    let stop = "SELECT pgdog.stop_task($1)";
    shop.client(0)
        .await
        .query_one(stop, &[&task.0])
        .await
        .unwrap();
    finish(&shop, task).await;
    for shard in 0..3 {
        let client = shop.client(shard).await;
        let sql = "SELECT count(*) FROM pgdog.topology WHERE version = 2 AND shards = 3";
        assert_eq!(number(&client, sql).await, 1, "shard {shard}");
        assert_eq!(
            number(&client, "SELECT count(*) FROM pg_prepared_xacts").await,
            0
        );
    }
    assert_eq!(
        disagreeing(&hashes(&shop.grown()).await.unwrap()),
        Vec::<String>::new()
    );
}

/// While one drives, another one keeps its hands off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_coordinators_do_not_drive_one_task() {
    let shop = Shop::start(21460).await;
    let task = shop.add_shard(false).await;
    let driver = shop.drive(task);
    shop.reaches(task, &["awaiting cutover"]).await;
    assert_eq!(shop.drive(task).await.unwrap().unwrap(), Outcome::Busy);
    driver.abort();
    let _ = driver.await;
    // The lock went with the session, so a third one may.
    let third = shop.drive(task);
    let stop = "SELECT pgdog.stop_task($1)";
    shop.client(0)
        .await
        .query_one(stop, &[&task.0])
        .await
        .unwrap();
    let outcome = third.await.unwrap().unwrap();
    if outcome == Outcome::Busy {
        finish_as(&shop, task, "aborted").await;
    }
    shop.ended(task, "aborted").await;
}

/// A frozen coordinator keeps its session and with it the lock: its silence gives it away, also
/// when it froze with the flip prepared and all gates closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_coordinator_is_replaced_and_the_gates_open() {
    let shop = Shop::start(22210).await;
    let task = parked(&shop).await;
    deciding(&shop, task).await;
    for shard in [2, 0, 1] {
        prepare(&shop, shard, task).await;
    }
    let frozen = shop.client(2).await;
    let lock = format!("SELECT pg_try_advisory_lock(1885824103, {})", task.0);
    frozen.batch_execute(&lock).await.unwrap();

    let driver = loop {
        let driver = shop.drive(task);
        if timeout(
            Duration::from_secs(1),
            shop.reaches(task, &["awaiting cutover"]),
        )
        .await
        .is_ok()
        {
            break driver;
        }
    };
    assert!(
        frozen.query_one(&lock, &[]).await.is_err(),
        "its session is ended"
    );
    for shard in 0..3 {
        let client = shop.client(shard).await;
        let left = "SELECT count(*) FROM pg_prepared_xacts";
        assert_eq!(number(&client, left).await, 0, "shard {shard}");
    }
    driver.abort();
}

async fn parked(shop: &Shop) -> TaskId {
    let task = shop.add_shard(false).await;
    let driver = shop.drive(task);
    shop.reaches(task, &["awaiting cutover"]).await;
    driver.abort();
    let _ = driver.await;
    task
}

/// As a coordinator would leave it that died in the middle of the flip.
async fn deciding(shop: &Shop, task: TaskId) {
    let lead = shop.client(0).await;
    lead.query_one("SELECT pgdog.cutover_shard(2)", &[])
        .await
        .unwrap();
    let held = "SELECT pgdog.task_advance($1, 'fence_held')";
    lead.query_one(held, &[&task.0]).await.unwrap();
    let attempt = "SELECT pgdog.task_progress($1, '{\"attempt\": 1}')";
    lead.query_one(attempt, &[&task.0]).await.unwrap();
}

async fn prepare(shop: &Shop, shard: usize, task: TaskId) {
    let statements = match shard {
        2 => format!(
            "UPDATE pgdog.topology SET version = 2, shards = 3, state = 'serving', \
             epoch = epoch + 1; ALTER SUBSCRIPTION pgdog_{task} DISABLE"
        ),
        _ => "LOCK TABLE pgdog.gate IN SHARE ROW EXCLUSIVE MODE; \
              UPDATE pgdog.topology SET version = 2, shards = 3, epoch = epoch + 1"
            .to_owned(),
    };
    let sql = format!("BEGIN; {statements}; PREPARE TRANSACTION '{}'", gid(task));
    shop.client(shard).await.batch_execute(&sql).await.unwrap();
}

fn gid(task: TaskId) -> String {
    format!("pgdog_flip_2_{task}_1")
}

async fn finish(shop: &Shop, task: TaskId) {
    finish_as(shop, task, "done").await;
}

/// A killed coordinator's sessions end a moment later, and its lock with them.
async fn finish_as(shop: &Shop, task: TaskId, status: &str) {
    let deadline = Instant::now() + LIMIT;
    while shop.drive(task).await.unwrap().unwrap() == Outcome::Busy {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shop.ended(task, status).await;
}
