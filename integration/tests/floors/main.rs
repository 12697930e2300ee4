//! Read floors: what a read under a floor may be answered by.
//!
//! Shown on one shard with one replica, whose replay is paused and resumed. Which node answered is
//! told by the shim (`pgdog.last_route`) and by the node itself (`pg_is_in_recovery()`, its port).
//! The claim that puts relays in front of the servers comes last.

mod cost;
mod frozen;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cost::*;
use frozen::a_frozen_replica_holds_no_read_up_for_long;
use pgdog_integration::client::{Client, sqlstate};
use pgdog_integration::faults::{replay, while_paused};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};

const WHERE: &str = "SELECT pg_is_in_recovery()::text, current_setting('port')";

fn main() -> ExitCode {
    let shape = Shape::shards(1).replicas(1);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            commit_pushes_a_token,
            read_under_a_floor_is_answered_by_the_replica,
            the_replica_logs_the_read,
            read_below_the_floor_waits_and_is_refused_with_an_eta,
            read_waits_until_the_replica_has_replayed,
            read_below_the_floor_falls_back_to_the_primary_when_allowed,
            read_in_a_transaction_below_the_floor_aborts_it,
            floor_is_set_shown_and_rolled_back_as_a_guc,
            malformed_floor_is_22023_and_leaves_the_old_value,
            writes_and_locking_reads_ignore_the_floor,
            session_reads_its_own_writes,
            a_set_local_wish_for_the_token_counts_up_to_the_commit,
            a_frozen_replica_holds_no_read_up_for_long,
            a_floor_that_is_passed_costs_no_message,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE notes (id bigint PRIMARY KEY, body text)")
        .await?;
    Ok(())
}

async fn expect_replica(cluster: &Cluster, client: &Client) -> anyhow::Result<()> {
    let row = client.rows(WHERE).await?.concat();
    let replica = cluster.shard(0)?.replicas[0].port.to_string();
    ensure!(
        row == ["true".to_owned(), replica.clone()],
        "answered by {row:?}"
    );
    let route = client.value("SHOW pgdog.last_route").await?;
    ensure!(
        route.contains("replica") && route.contains(&replica),
        "last_route says {route}"
    );
    Ok(())
}

async fn a_set_local_wish_for_the_token_counts_up_to_the_commit(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("SET pgdog.report_commit_lsn = off")
        .await?;
    client
        .batch_execute("INSERT INTO notes VALUES (600, 'silent')")
        .await?;
    ensure!(client.pushed_token().is_none(), "nobody has asked for it");
    client
        .batch_execute("BEGIN; SET LOCAL pgdog.report_commit_lsn = on")
        .await?;
    client
        .batch_execute("INSERT INTO notes VALUES (601, 'told')")
        .await?;
    let pushed = client.write_for_token("COMMIT").await?;
    client
        .batch_execute("INSERT INTO notes VALUES (602, 'silent')")
        .await?;
    // What came before this answer has been seen.
    client.batch_execute("SELECT 1").await?;
    let last = client.pushed_token();
    ensure!(
        last == Some(pushed),
        "the wish outlived its transaction: {last:?}"
    );
    Ok(())
}

async fn commit_pushes_a_token(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let token = client
        .write_for_token("INSERT INTO notes VALUES (1, 'pushed')")
        .await?;
    let shown = client.value("SHOW pgdog.commit_lsn").await?;
    ensure!(token == shown, "pushed {token}, shown {shown}");
    let primary = cluster.primary(0).await?;
    let lsn = token
        .rsplit('=')
        .next()
        .unwrap_or_default()
        .split('@')
        .next()
        .unwrap_or_default();
    let covers = primary
        .value(&format!("SELECT pg_current_wal_lsn() >= '{lsn}'::pg_lsn"))
        .await?;
    ensure!(covers == "t", "token {token} is ahead of the primary");
    client.batch_execute("SELECT 1").await?;
    ensure!(
        client.pushed_token() == Some(token),
        "a read must not push a token"
    );
    Ok(())
}

async fn read_under_a_floor_is_answered_by_the_replica(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for n in 0..50 {
        let id = 1000 + n;
        let token = client
            .write_then_floor(&format!("INSERT INTO notes VALUES ({id}, 'n{n}')"))
            .await?;
        client
            .batch_execute("SET pgdog.min_lsn_wait = '5s'")
            .await?;
        let body = client
            .value(&format!("SELECT body FROM notes WHERE id = {id}"))
            .await?;
        ensure!(body == format!("n{n}"), "read {body} under floor {token}");
        expect_replica(cluster, &client).await?;
    }
    Ok(())
}

async fn the_replica_logs_the_read(cluster: &Cluster) -> anyhow::Result<()> {
    let replica = cluster.replica(0, 0).await?;
    replica
        .batch_execute("ALTER SYSTEM SET log_statement = 'all'")
        .await?;
    replica.batch_execute("SELECT pg_reload_conf()").await?;
    wait_until(
        "log_statement in force",
        Duration::from_secs(30),
        || async {
            let client = cluster.replica(0, 0).await?;
            Ok((client.value("SHOW log_statement").await? == "all").then_some(()))
        },
    )
    .await?;
    let client = cluster.connect().await?;
    let token = client
        .write_then_floor("INSERT INTO notes VALUES (2, 'logged')")
        .await?;
    client
        .batch_execute("SET pgdog.min_lsn_wait = '5s'")
        .await?;
    let mark = format!("read number {}", token.replace('/', "-"));
    client
        .rows(&format!("SELECT body, '{mark}' FROM notes WHERE id = 2"))
        .await?;
    let log = cluster.shard(0)?.replicas[0].data.with_extension("log");
    wait_until(
        "the read in the replica's log",
        Duration::from_secs(30),
        || async { Ok(std::fs::read_to_string(&log)?.contains(&mark).then_some(())) },
    )
    .await?;
    replica
        .batch_execute("ALTER SYSTEM RESET log_statement")
        .await?;
    replica.batch_execute("SELECT pg_reload_conf()").await?;
    Ok(())
}

async fn read_below_the_floor_waits_and_is_refused_with_an_eta(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    while_paused(cluster, 0, async {
        let client = cluster.connect().await?;
        client
            .write_then_floor("INSERT INTO notes VALUES (3, 'late')")
            .await?;
        client
            .batch_execute("SET pgdog.min_lsn_wait = '200ms'")
            .await?;
        let began = Instant::now();
        let error = client
            .rows("SELECT body FROM notes WHERE id = 3")
            .await
            .err()
            .context("a read below its floor was served")?;
        ensure!(
            began.elapsed() < Duration::from_secs(30),
            "refused after {:?}",
            began.elapsed()
        );
        ensure!(sqlstate(&error) == "58000", "{error:?}");
        let db = error.as_db_error().context("not an answer of the server")?;
        let detail = db.detail().unwrap_or_default();
        ensure!(detail.contains("eta_ms="), "DETAIL is {detail:?}");
        ensure!(db.hint().is_some(), "there is no HINT");
        // The connection lives.
        client.batch_execute("RESET pgdog.min_lsn").await?;
        client.batch_execute("SELECT 1").await?;
        Ok(())
    })
    .await
}

async fn read_waits_until_the_replica_has_replayed(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    replay(cluster, 0, false).await?;
    let outcome = async {
        client
            .write_then_floor("INSERT INTO notes VALUES (4, 'in time')")
            .await?;
        client
            .batch_execute("SET pgdog.min_lsn_wait = '20s'")
            .await?;
        let read = client.value("SELECT body FROM notes WHERE id = 4");
        // The read is sent before the replay is asked to go on: `join!` polls in order.
        let resume = replay(cluster, 0, true);
        let (read, resumed) = tokio::join!(read, resume);
        resumed?;
        ensure!(read? == "in time");
        expect_replica(cluster, &client).await
    }
    .await;
    replay(cluster, 0, true).await?;
    outcome
}

async fn read_below_the_floor_falls_back_to_the_primary_when_allowed(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    while_paused(cluster, 0, async {
        let client = cluster.connect().await?;
        client
            .write_then_floor("INSERT INTO notes VALUES (5, 'fallback')")
            .await?;
        client
            .batch_execute("SET pgdog.min_lsn_primary_fallback = on")
            .await?;
        ensure!(client.value("SELECT body FROM notes WHERE id = 5").await? == "fallback");
        ensure!(
            client.rows(WHERE).await?.concat()[0] == "false",
            "answered by the replica"
        );
        let route = client.value("SHOW pgdog.last_route").await?;
        ensure!(route.contains("primary"), "last_route says {route}");
        Ok(())
    })
    .await
}

async fn read_in_a_transaction_below_the_floor_aborts_it(cluster: &Cluster) -> anyhow::Result<()> {
    while_paused(cluster, 0, async {
        let client = cluster.connect().await?;
        client
            .write_then_floor("INSERT INTO notes VALUES (6, 'x')")
            .await?;
        client.batch_execute("BEGIN READ ONLY").await?;
        client.refused("SELECT body FROM notes", "58000").await?;
        client.refused("SELECT 1", "25P02").await?;
        client.batch_execute("ROLLBACK").await?;
        client.batch_execute("RESET pgdog.min_lsn").await?;
        client.batch_execute("SELECT 1").await?;
        Ok(())
    })
    .await
}

async fn floor_is_set_shown_and_rolled_back_as_a_guc(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("SET pgdog.min_lsn = '0/10'").await?;
    client
        .batch_execute("BEGIN; SET pgdog.min_lsn = '0/20'; ROLLBACK")
        .await?;
    let shown = client.value("SHOW pgdog.min_lsn").await?;
    ensure!(shown == "0/10", "after a rollback the floor is {shown}");
    client
        .batch_execute("BEGIN; SET LOCAL pgdog.min_lsn = '0/30'")
        .await?;
    ensure!(client.value("SHOW pgdog.min_lsn").await? == "0/30");
    client.batch_execute("COMMIT").await?;
    ensure!(client.value("SHOW pgdog.min_lsn").await? == "0/10");
    client.batch_execute("RESET ALL").await?;
    ensure!(client.value("SHOW pgdog.min_lsn").await?.is_empty());
    let mut login = cluster.login(0);
    login.options = "-c pgdog.min_lsn=0/40".to_owned();
    let client = Client::connect(&login).await?;
    ensure!(client.value("SHOW pgdog.min_lsn").await? == "0/40");
    Ok(())
}

async fn malformed_floor_is_22023_and_leaves_the_old_value(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("SET pgdog.min_lsn = '0/10'").await?;
    for bad in ["0/", "x", "0/123456789", "-1/2", "0/1 2", "0=0/1,0=0/2"] {
        client
            .refused(&format!("SET pgdog.min_lsn = '{bad}'"), "22023")
            .await?;
    }
    ensure!(client.value("SHOW pgdog.min_lsn").await? == "0/10");
    Ok(())
}

async fn writes_and_locking_reads_ignore_the_floor(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("SET pgdog.min_lsn = 'FFFFFFF/0'")
        .await?;
    client
        .batch_execute("INSERT INTO notes VALUES (7, 'w')")
        .await?;
    let body = client
        .value("SELECT body FROM notes WHERE id = 7 FOR UPDATE")
        .await?;
    ensure!(body == "w");
    client.refused("SELECT 1 FROM notes", "58000").await?;
    Ok(())
}

async fn session_reads_its_own_writes(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("SET pgdog.read_your_writes = session")
        .await?;
    client
        .batch_execute("SET pgdog.min_lsn_wait = '5s'")
        .await?;
    for id in 2000..2050 {
        client
            .batch_execute(&format!("INSERT INTO notes VALUES ({id}, 'own')"))
            .await?;
        let body = client
            .value(&format!("SELECT body FROM notes WHERE id = {id}"))
            .await?;
        ensure!(body == "own");
        expect_replica(cluster, &client).await?;
    }
    Ok(())
}
