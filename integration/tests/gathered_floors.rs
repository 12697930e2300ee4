//! Reads over several shards under floors: what a transaction has done already stays done, or the
//! transaction fails.
//!
//! Two shards with a replica each; the replay of the second one's is paused.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Client;
use pgdog_integration::faults::while_paused;
use pgdog_integration::{Cluster, Shape, claims, fixture, suite, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2).replicas(1),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            a_read_of_all_shards_keeps_its_floor_on_each,
            a_floor_that_is_missed_does_not_undo_what_was_written,
            a_floor_that_is_missed_does_not_change_the_snapshot,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    fixture::create(cluster).await?;
    let client = cluster.connect().await?;
    for tenant in [11, 12] {
        let sql = format!("INSERT INTO orders VALUES ({tenant}, 1, 0, 'a')");
        client.batch_execute(&sql).await?;
    }
    Ok(())
}

/// A client that sees what it wrote. It does not wait long for it.
async fn reader(cluster: &Cluster) -> anyhow::Result<Client> {
    let client = cluster.connect().await?;
    client
        .batch_execute("SET pgdog.read_your_writes = session")
        .await?;
    client
        .batch_execute("SET pgdog.min_lsn_wait = '300ms'")
        .await?;
    Ok(client)
}

async fn qty_of(client: &Client, tenant: i64) -> anyhow::Result<String> {
    let sql =
        format!("/* pgdog_role: primary */ SELECT qty FROM orders WHERE tenant_id = {tenant}");
    client.value(&sql).await
}

const SUM: &str = "/* pgdog_role: replica */ SELECT sum(qty) FROM orders";

async fn a_read_of_all_shards_keeps_its_floor_on_each(cluster: &Cluster) -> anyhow::Result<()> {
    let client = reader(cluster).await?;
    client
        .batch_execute("SET pgdog.min_lsn_wait = '30s'")
        .await?;
    for qty in 1..=20 {
        for tenant in [11, 12] {
            let sql = format!("UPDATE orders SET qty = {qty} WHERE tenant_id = {tenant}");
            client.batch_execute(&sql).await?;
        }
        let sum = client.value(SUM).await?;
        ensure!(sum == (2 * qty).to_string(), "{sum}, not 2 * {qty}");
        let route = client.value("SHOW pgdog.last_route").await?;
        ensure!(route.contains("role=replica"), "{route}");
    }
    Ok(())
}

async fn a_floor_that_is_missed_does_not_undo_what_was_written(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = reader(cluster).await?;
    let before = qty_of(&client, 11).await?;
    for round in 0..6 {
        while_paused(cluster, 1, async {
            let raise = format!("UPDATE orders SET qty = {round} WHERE tenant_id = 12");
            client.batch_execute(&raise).await?;
            let write = "UPDATE orders SET qty = qty + 1000 WHERE tenant_id = 11";
            client.batch_execute("BEGIN").await?;
            client.batch_execute(write).await?;
            client.refused(SUM, "58000").await?;
            client.refused("SELECT 1", "25P02").await?;
            client.batch_execute("COMMIT").await?;
            let after = qty_of(&client, 11).await?;
            ensure!(after == before, "{after} after a failed transaction");
            Ok(())
        })
        .await?;
    }
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("UPDATE orders SET qty = qty + 1000 WHERE tenant_id = 11")
        .await?;
    wait_until("the floor", LIMIT, || async {
        // The replica goes on: the transaction does not fail any more.
        let other = reader(cluster).await?;
        Ok(other.rows(SUM).await.is_ok().then_some(()))
    })
    .await?;
    client
        .batch_execute("SET pgdog.min_lsn_wait = '30s'")
        .await?;
    let sum: i64 = client.value(SUM).await?.parse().context("a sum")?;
    ensure!(sum >= 1000, "{sum}: its own write is missing");
    client.batch_execute("COMMIT").await?;
    let after: i64 = qty_of(&client, 11).await?.parse()?;
    let before: i64 = before.parse()?;
    ensure!(after == before + 1000, "{after}");
    Ok(())
}

async fn a_floor_that_is_missed_does_not_change_the_snapshot(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = reader(cluster).await?;
    for round in 0..4 {
        while_paused(cluster, 1, async {
            let raise = format!("UPDATE orders SET qty = {round} WHERE tenant_id = 12");
            client.batch_execute(&raise).await?;
            client
                .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                .await?;
            client
                .value("SELECT qty FROM orders WHERE tenant_id = 11")
                .await?;
            client.refused(SUM, "58000").await?;
            client.refused("SELECT 1", "25P02").await?;
            client.batch_execute("ROLLBACK").await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}
