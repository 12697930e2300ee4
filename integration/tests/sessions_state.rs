//! What a client leaves behind, and what a transaction on two shards keeps together.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::client::{Client, sqlstate};
use pgdog_integration::fixture::plain;
use pgdog_integration::wire::{Wire, shape};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};
use tokio::sync::Barrier;
use tokio_postgres::NoTls;

/// Statements that leave something on their connection, and what shows it.
const STATEFUL: [(&str, &str); 8] = [
    ("CREATE TEMP TABLE left_behind (a int)", TEMPORARY),
    ("CREATE TEMP SEQUENCE left_behind", TEMPORARY),
    ("SELECT 1 AS a INTO TEMP left_behind", TEMPORARY),
    (
        "SELECT pg_advisory_lock(771)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 771",
    ),
    (
        "PREPARE left_behind AS SELECT 1",
        "SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_behind'",
    ),
    (
        "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1",
        "SELECT count(*) FROM pg_cursors WHERE name = 'left_behind'",
    ),
    ("SELECT SET_CONFIG('work_mem', '77MB', false), 2", WORK_MEM),
    (
        "/* pgdog_shard: 0 */ DO $$ BEGIN EXECUTE 'SET work_mem = ''77MB'''; END $$",
        WORK_MEM,
    ),
];

const TEMPORARY: &str = "SELECT count(*) FROM pg_class WHERE relname = 'left_behind'";
const WORK_MEM: &str =
    "SELECT count(*) FROM pg_settings WHERE name = 'work_mem' AND setting = '78848'";

/// Server connections of a pool, as `pgdog dev` configures them.
const POOL: usize = 20;

fn main() -> ExitCode {
    let shape = Shape::shards(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            nothing_reaches_the_next_client,
            a_set_holds_on_every_shard_of_the_transaction,
            no_notification_is_lost_between_transactions,
            no_savepoint_brings_back_a_lost_server,
            a_statement_that_cannot_be_prepared_again_fails_its_transaction,
            a_lost_temporary_table_ends_its_client,
            a_client_that_vanishes_ends_its_running_statement,
            transactions_on_two_shards_do_not_starve_each_other,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE spots (shard_key bigint, id bigint, PRIMARY KEY (shard_key, id))",
        "SELECT pgdog.shard_table('spots', 'shard_key', mapping => '[{\"kind\": \"list\", \
         \"values\": [\"0\"], \"shard\": 0}, {\"kind\": \"list\", \"values\": [\"1\"], \
         \"shard\": 1}]')",
        "INSERT INTO spots VALUES (0, 0)",
        "INSERT INTO spots VALUES (1, 0)",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    Ok(())
}

async fn backend_of(client: &Client, key: i32) -> anyhow::Result<i32> {
    let sql = format!("SELECT pg_backend_pid() FROM spots WHERE shard_key = {key} AND id = 0");
    Ok(client.value(&sql).await?.parse()?)
}

async fn nothing_reaches_the_next_client(cluster: &Cluster) -> anyhow::Result<()> {
    for (leave, probe) in STATEFUL {
        let client = cluster.connect().await?;
        client.batch_execute(leave).await.context(leave)?;
        drop(client);
        // Connections are reset in the background; none may be lent before.
        for _ in 0..4 {
            let next = cluster.connect().await?;
            for shard in 0..2 {
                let found = next
                    .value(&format!("/* pgdog_shard: {shard} */ {probe}"))
                    .await?;
                ensure!(found == "0", "{leave}: still there on shard {shard}");
            }
        }
    }
    Ok(())
}

async fn a_set_holds_on_every_shard_of_the_transaction(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let zone = |key: i32| {
        format!("SELECT current_setting('timezone') FROM spots WHERE shard_key = {key} AND id = 0")
    };
    client.batch_execute("BEGIN").await?;
    for key in 0..2 {
        client.value(&zone(key)).await?;
    }
    client.batch_execute("SET timezone = 'Asia/Tokyo'").await?;
    for key in 0..2 {
        ensure!(client.value(&zone(key)).await? == "Asia/Tokyo", "key {key}");
    }
    // The same by a function, which one shard runs.
    let set = "SELECT set_config($1, $2, false), set_config('app.word', $2, true)";
    client.query(set, &[&"timezone", &"Asia/Seoul"]).await?;
    for key in 0..2 {
        ensure!(client.value(&zone(key)).await? == "Asia/Seoul", "key {key}");
        let word = "SELECT current_setting('app.word') FROM spots WHERE id = 0 AND shard_key =";
        let word = client.value(&format!("{word} {key}")).await?;
        ensure!(word == "Asia/Seoul", "key {key}: {word}");
    }
    client.batch_execute("COMMIT").await?;
    // Whoever has the connections next.
    for _ in 0..2 {
        let other = cluster.connect().await?;
        for key in 0..2 {
            let found = client.value(&zone(key)).await?;
            ensure!(found == "Asia/Seoul", "after, key {key}: {found}");
            let found = other.value(&zone(key)).await?;
            ensure!(
                found != "Asia/Seoul",
                "another client's, key {key}: {found}"
            );
        }
    }
    Ok(())
}

/// They may come at any moment, also in the middle of what the shim itself asks the server.
async fn no_notification_is_lost_between_transactions(cluster: &Cluster) -> anyhow::Result<()> {
    const ALL: usize = 2000;
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    wire.query("LISTEN news").await?;
    // It listens on one of them.
    let senders = (0..2).map(|shard| async move {
        let node = cluster.primary(shard).await?;
        for number in 0..ALL {
            node.batch_execute(&format!("NOTIFY news, '{number}'"))
                .await?;
        }
        anyhow::Ok(())
    });
    let mut heard = 0;
    let listener = async {
        let ended = std::time::Instant::now() + Duration::from_secs(120);
        while heard < ALL {
            ensure!(
                std::time::Instant::now() < ended,
                "{heard} of {ALL} notifications"
            );
            for sql in ["BEGIN", "SELECT 1", "COMMIT"] {
                let answers = wire.query(sql).await?;
                heard += answers.iter().filter(|message| message.tag == 'A').count();
            }
        }
        Ok(())
    };
    let (sent, listened) = tokio::join!(try_join_all(senders), listener);
    sent?;
    listened
}

async fn no_savepoint_brings_back_a_lost_server(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    for key in 0..2 {
        client
            .batch_execute(&format!("INSERT INTO spots VALUES ({key}, 501)"))
            .await?;
    }
    let pid = backend_of(&client, 0).await?;
    client.batch_execute("SAVEPOINT s").await?;
    end_backend(cluster, pid).await?;
    ensure!(
        client
            .batch_execute("INSERT INTO spots VALUES (0, 502)")
            .await
            .is_err()
    );
    let Err(refused) = client.batch_execute("ROLLBACK TO s").await else {
        anyhow::bail!("half of the transaction is lost");
    };
    ensure!(sqlstate(&refused) == "25P02", "{refused}");
    client.refused("COMMIT", "40001").await?;
    for key in 0..2 {
        let sql = format!("SELECT count(*) FROM spots WHERE shard_key = {key} AND id > 500");
        ensure!(client.value(&sql).await? == "0", "key {key}");
    }
    Ok(())
}

/// It fails before the transaction has begun on any server: it is open for its client all the same.
async fn a_statement_that_cannot_be_prepared_again_fails_its_transaction(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE passing (a int)",
        "SELECT pgdog.omni_table('passing')",
        "INSERT INTO passing VALUES (1)",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    let prepared = shape(&wire.query("PREPARE p AS SELECT a FROM passing").await?);
    ensure!(prepared == "C(PREPARE) Z(I)", "{prepared}");
    let drop = "ALTER TABLE passing DROP COLUMN a";
    client.batch_execute(drop).await?;
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        let ended = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity \
                     WHERE usename = 'app' AND state = 'idle'";
        node.batch_execute(ended).await?;
    }
    for (sql, expected) in [
        ("BEGIN", "C(BEGIN) Z(T)"),
        ("EXECUTE p", "E(42703) Z(E)"),
        ("SELECT 1", "E(25P02) Z(E)"),
        ("COMMIT", "C(ROLLBACK) Z(I)"),
    ] {
        let found = shape(&wire.query(sql).await?);
        ensure!(found == expected, "{sql}: {found}");
    }
    Ok(())
}

async fn end_backend(cluster: &Cluster, pid: i32) -> anyhow::Result<()> {
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        let mine = "usename = 'app' AND pid";
        let sql =
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine} = {pid}");
        node.batch_execute(&sql).await?;
        wait_until("the end of a backend", Duration::from_secs(30), || async {
            let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE {mine} = {pid}");
            Ok((node.value(&sql).await? == "0").then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn a_lost_temporary_table_ends_its_client(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TEMP TABLE mine AS SELECT pg_backend_pid() AS pid")
        .await?;
    let pid = client.value("SELECT pid FROM mine").await?.parse()?;
    end_backend(cluster, pid).await?;
    wait_until("the end of the client", Duration::from_secs(30), || async {
        let gone = client.batch_execute("SELECT 1").await.is_err() && client.is_closed();
        Ok(gone.then_some(()))
    })
    .await
}

async fn a_client_that_vanishes_ends_its_running_statement(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let node = cluster.primary(0).await?;
    let running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' \
                   AND query LIKE '%pg_sleep(599)' AND pid <> pg_backend_pid()";
    let counted = |expected: &'static str| {
        let node = &node;
        move || async move { Ok((node.value(running).await? == expected).then_some(())) }
    };
    let login = cluster.login(0);
    let mut config = tokio_postgres::Config::new();
    config
        .host("127.0.0.1")
        .port(login.port)
        .user(&login.user)
        .password(&login.password)
        .dbname(&login.database);
    let (client, connection) = config.connect(NoTls).await?;
    let socket = tokio::spawn(connection);
    let asked = tokio::spawn(async move {
        client
            .batch_execute("/* pgdog_shard: 0 */ SELECT pg_sleep(599)")
            .await
    });
    wait_until("the statement", Duration::from_secs(30), counted("1")).await?;
    // Closes the socket without a word.
    socket.abort();
    asked.abort();
    wait_until("its end", Duration::from_secs(30), counted("0")).await
}

async fn transactions_on_two_shards_do_not_starve_each_other(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    // The last place of a pool is kept for one transaction at a time, so that it can always end.
    let holders = 2 * (POOL - 1);
    let all_hold_one = Arc::new(Barrier::new(holders));
    let both = |nth: usize, barrier: Option<Arc<Barrier>>| async move {
        let client = cluster.connect().await?;
        client.batch_execute("BEGIN").await?;
        let first = i32::from(nth % 2 == 1);
        backend_of(&client, first).await?;
        if let Some(barrier) = barrier {
            barrier.wait().await;
        }
        backend_of(&client, 1 - first).await?;
        client.batch_execute("COMMIT").await?;
        anyhow::Ok(())
    };
    try_join_all((0..holders).map(|nth| both(nth, Some(all_hold_one.clone())))).await?;
    try_join_all((0..3 * POOL).map(|nth| both(nth, None))).await?;
    for row in cluster.admin(0).await?.named_rows("SHOW POOLS").await? {
        let total: usize = row["sv_total"].parse()?;
        ensure!(
            total <= POOL,
            "more connections than the pool's size: {row:?}"
        );
    }
    Ok(())
}
