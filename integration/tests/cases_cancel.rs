//! A cancel request reaches what its client runs or waits for, and nothing else.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pgdog_integration::fixture::{configure, count, create, direct, full_size, none_left, plain};
use pgdog_integration::wait::pause;
use pgdog_integration::wire::{Wire, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};

/// A shim with a pool of one.
const NARROW: usize = 1;

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let shape = Shape::shards(2).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r032_a_late_cancel_never_hits_the_next_client,
            r033_a_client_that_waits_for_a_server_is_cancelled,
            r034_a_cancel_of_an_idle_client_does_nothing,
            r035_a_cancel_that_cannot_be_delivered_ends,
            r036_a_cancel_reaches_every_shard_and_no_other_client,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    configure(cluster, NARROW, &["default_pool_size = 1"]).await
}

fn port(cluster: &Cluster, shim: usize) -> u16 {
    cluster.description().shims[shim].port
}

async fn r032_a_late_cancel_never_hits_the_next_client(cluster: &Cluster) -> anyhow::Result<()> {
    // Some minutes at full size.
    let rounds = if full_size() { 2000 } else { 100 };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let login = plain(cluster, NARROW);
    let other = tokio::spawn(async move {
        let mut client = Wire::connect(&login).await?;
        let mut stopped = stopped;
        let mut served = 0;
        while stopped.try_recv().is_err() {
            let answers = client.query("/* pgdog_shard: 0 */ SELECT 1").await?;
            let found = shape(&answers);
            ensure!(found == "T D C(SELECT 1) Z(I)", "of the other: {found}");
            served += 1;
        }
        anyhow::Ok(served)
    });
    let mut client = Wire::connect(&plain(cluster, NARROW)).await?;
    let mut hit = 0;
    for _ in 0..rounds {
        let key = client.key;
        let port = port(cluster, NARROW);
        let moment = Duration::from_micros(rand::random_range(15_000..25_000));
        let cancel = tokio::spawn(async move {
            pause(moment).await;
            Wire::cancel(port, key, LIMIT).await
        });
        let answers = client
            .query("/* pgdog_shard: 0 */ SELECT pg_sleep(0.02)")
            .await?;
        match shape(&answers).as_str() {
            "T D C(SELECT 1) Z(I)" => {}
            // A server looks for a cancel once more behind the row.
            "E(57014) Z(I)" | "T E(57014) Z(I)" | "T D E(57014) Z(I)" => hit += 1,
            found => anyhow::bail!("of the one that cancels: {found}"),
        }
        cancel.await??;
    }
    let _ = stop.send(());
    let served = other.await??;
    ensure!(hit > 0, "no cancel arrived in time in {rounds} rounds");
    ensure!(served > rounds / 2, "the other client got {served} answers");
    Ok(())
}

async fn r033_a_client_that_waits_for_a_server_is_cancelled(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut holder = Wire::connect(&plain(cluster, NARROW)).await?;
    holder.query("BEGIN").await?;
    holder
        .query("SELECT * FROM orders WHERE tenant_id = 11")
        .await?;
    let mut client = Wire::connect(&plain(cluster, NARROW)).await?;
    let key = client.key;
    let asked = tokio::spawn(async move {
        let answers = client
            .query("INSERT INTO orders VALUES (11, 3301, 1, '')")
            .await?;
        anyhow::Ok((client, shape(&answers)))
    });
    let admin = cluster.admin(NARROW).await?;
    wait_until("a waiting client", LIMIT, || async {
        let clients = admin.rows("SHOW CLIENTS").await?;
        let waits = |row: &Vec<String>| row.iter().any(|value| value == "waiting");
        Ok(clients.iter().any(waits).then_some(()))
    })
    .await?;
    let began = Instant::now();
    Wire::cancel(port(cluster, NARROW), key, LIMIT).await?;
    let (mut client, found) = asked.await??;
    ensure!(found == "E(57014) Z(I)", "{found}");
    // Two seconds, on a machine that is busy otherwise; the pool's own limit is longer.
    ensure!(
        began.elapsed() < LIMIT,
        "cancelled after {:?}",
        began.elapsed()
    );
    holder.query("COMMIT").await?;
    let found = shape(&client.query("/* pgdog_shard: 0 */ SELECT 1").await?);
    ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
    ensure!(count(cluster, 0, "orders WHERE id = 3301").await? == 0);
    Ok(())
}

async fn r034_a_cancel_of_an_idle_client_does_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, 0)).await?;
    for round in 0..100 {
        let back = Wire::cancel(port(cluster, 0), client.key, LIMIT).await?;
        ensure!(back == 0, "the cancel request was answered");
        let answers = client.query(&format!("SELECT {round}")).await?;
        let found = value(&answers).with_context(|| shape(&answers))?;
        ensure!(found == round.to_string(), "{found} in round {round}");
    }
    Ok(())
}

async fn r035_a_cancel_that_cannot_be_delivered_ends(cluster: &Cluster) -> anyhow::Result<()> {
    let data = &cluster.shard(1)?.primary.data;
    let pid = std::fs::read_to_string(data.join("postmaster.pid"))?;
    let pid = Pid::from_raw(pid.lines().next().context("no pid")?.parse()?);
    let mut client = Wire::connect(&plain(cluster, 0)).await?;
    let key = client.key;
    let running = "query LIKE '%pg_sleep(12)%' AND state = 'active'";
    let asked = tokio::spawn(async move {
        let answers = client
            .query("/* pgdog_shard: 1 */ SELECT pg_sleep(12)")
            .await?;
        anyhow::Ok(shape(&answers))
    });
    let node = cluster.primary(1).await?;
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND {running}");
    wait_until("the statement", LIMIT, || async {
        Ok((node.value(&sql).await? == "1").then_some(()))
    })
    .await?;
    // New connections are taken by the kernel and answered by nobody.
    kill(pid, Signal::SIGSTOP)?;
    let cancelled = Wire::cancel(port(cluster, 0), key, Duration::from_secs(10)).await;
    kill(pid, Signal::SIGCONT)?;
    ensure!(cancelled? == 0, "the cancel request was answered");
    // The request is still in the server's queue of connections, without a sender: whichever way
    // the server takes it, the answer is that of this statement.
    let found = asked.await??;
    let fine = found == "T D C(SELECT 1) Z(I)" || found == "T E(57014) Z(I)";
    ensure!(fine, "{found}");
    Ok(())
}

async fn r036_a_cancel_reaches_every_shard_and_no_other_client(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    for (shim, blocked) in [(0, 0), (0, 1), (1, 1)] {
        // A row that is locked on one shard holds the write to all shards up there.
        let mut lock = Wire::connect(&direct(cluster, blocked)?).await?;
        lock.query("BEGIN").await?;
        lock.query("SELECT * FROM rates WHERE code = 'a' FOR UPDATE")
            .await?;
        let mut client = Wire::connect(&plain(cluster, 0)).await?;
        let key = client.key;
        let asked = tokio::spawn(async move {
            let answers = client
                .query("UPDATE rates SET pct = 9 WHERE code = 'a'")
                .await?;
            anyhow::Ok((client, shape(&answers)))
        });
        let node = cluster.primary(blocked).await?;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' \
                   AND wait_event_type = 'Lock'";
        wait_until("a blocked write", LIMIT, || async {
            Ok((node.value(sql).await? == "1").then_some(()))
        })
        .await?;
        let back = Wire::cancel(port(cluster, shim), key, LIMIT).await?;
        ensure!(back == 0, "the cancel request was answered");
        if shim == 1 {
            // Another instance does not know the key: the write goes on as if nothing happened.
            lock.query("ROLLBACK").await?;
            let (_, found) = asked.await??;
            ensure!(found == "C(UPDATE 1) Z(I)", "{found}");
            continue;
        }
        let (mut client, found) = asked.await??;
        ensure!(found == "E(57014) Z(I)", "{found}");
        for shard in 0..2 {
            none_left(cluster, shard, "state <> 'idle'").await?;
        }
        lock.query("ROLLBACK").await?;
        let answers = client
            .query("SELECT pct FROM rates WHERE code = 'a'")
            .await?;
        ensure!(
            value(&answers).as_deref() == Some("1.5"),
            "{}",
            shape(&answers)
        );
    }
    let client = cluster.connect().await?;
    client
        .batch_execute("UPDATE rates SET pct = 1.5 WHERE code = 'a'")
        .await?;
    Ok(())
}
