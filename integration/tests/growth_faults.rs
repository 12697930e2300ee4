//! Growing while something fails: a coordinator that is frozen, servers that are killed, shims that
//! die in the middle of ordinary omni writes. Each claim that succeeds uses up a spare.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;
use pgdog_integration::faults::{Probe, calm, coordinator, kill_server};
use pgdog_integration::load::{Account, Load, Pressure};
use pgdog_integration::tasks::{self, Serves};
use pgdog_integration::{Cluster, Shape, claims, shop, suite, wait_until};

const LIMIT: Duration = Duration::from_secs(150);
const PRESSURE: Pressure = Pressure {
    omni_writers: 4,
    sharded_writers: 2,
    readers: 2,
    tenants: 20,
};

fn main() -> ExitCode {
    let shape = Shape::shards(2).spares(5).shims(2);
    suite::run(
        shape,
        shop::SMALL,
        claims![
            a_shim_killed_between_the_phases_leaves_equal_shards,
            a_coordinator_frozen_in_the_flip_holds_nobody_up_for_long,
            the_new_shard_is_killed_while_copying_parked_and_flipping,
            the_last_old_shard_is_killed_while_copying_parked_and_flipping,
            shard_0_is_killed_while_copying_parked_and_flipping,
        ],
    )
}

/// Load with an account of its own.
async fn load(cluster: &Cluster) -> anyhow::Result<Load> {
    forget_writes(cluster).await?;
    Ok(Load::start(cluster, PRESSURE))
}

/// What an earlier claim wrote is in no account of this one's.
async fn forget_writes(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("DELETE FROM ledger").await?;
    client
        .batch_execute("UPDATE counters SET value = 0")
        .await?;
    Ok(())
}

async fn settled(cluster: &Cluster, shards: u16, limit: Duration) -> anyhow::Result<()> {
    for shard in 0..shards {
        let node = cluster.primary(shard).await?;
        let what = format!("shard {shard} without prepared transactions");
        wait_until(&what, limit, || async {
            let left = node.value("SELECT count(*) FROM pg_prepared_xacts").await?;
            Ok((left == "0").then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn grown(cluster: &Cluster, account: &Account, shards: u16) -> anyhow::Result<()> {
    settled(cluster, shards, LIMIT).await?;
    account.verify(cluster, shards).await?;
    tasks::omni_tables_agree(cluster, shards).await?;
    tasks::shards_serve(cluster, shards).await?;
    tasks::nothing_is_left(cluster, shards - 1, Serves::Yes).await
}

async fn a_shim_killed_between_the_phases_leaves_equal_shards(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let load = load(cluster).await?;
    let more = async || {
        let from = load.done();
        wait_until("more load", LIMIT, || async {
            Ok((load.done() > from + 60).then_some(()))
        })
        .await
    };
    let killing = async {
        for round in 0..8 {
            more().await?;
            cluster.kill_shim(round % 2)?;
            // The other one is alone for a while; what the dead one left must not hold it up.
            let probe = Probe::start(cluster, 1 - round % 2);
            more().await?;
            let written = probe.finish().await;
            cluster.restart_shim(round % 2).await?;
            written?;
        }
        anyhow::Ok(())
    };
    let killed = killing.await;
    cluster.kill_shim(0)?;
    let settled = settled(cluster, 2, Duration::from_secs(30)).await;
    cluster.restart_shim(0).await?;
    let account = load.finish().await?;
    killed?;
    settled?;
    ensure!(account.broken > 0, "no connection broke: nobody was killed");
    ensure!(account.errors.is_empty(), "{:?}", account.errors.first());
    self::settled(cluster, 2, Duration::from_secs(30)).await?;
    account.verify(cluster, 2).await?;
    tasks::omni_tables_agree(cluster, 2).await
}

async fn a_coordinator_frozen_in_the_flip_holds_nobody_up_for_long(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    calm(cluster).await?;
    forget_writes(cluster).await?;
    let task = tasks::order(cluster, "ADD SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    let frozen = coordinator(cluster, task.id).await?;
    let probe = Probe::start(cluster, 1 - frozen);
    // Keeps the flip of shard 1 waiting, so that the freeze hits it with all gates closed.
    let blocker = cluster.primary(1).await?;
    blocker
        .batch_execute("BEGIN; SELECT * FROM pgdog.topology FOR UPDATE")
        .await?;
    let admin = cluster.admin(1 - frozen).await?;
    admin.rows("CUTOVER SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "deciding", LIMIT).await?;
    cluster.signal_shim(frozen, Signal::SIGSTOP)?;
    blocker.batch_execute("ROLLBACK").await?;

    let other = async {
        let node = cluster.primary(0).await?;
        wait_until("the other one takes over", LIMIT, || async {
            let now = tasks::get(&node, task.id).await?;
            Ok((now.status == "awaiting cutover").then_some(()))
        })
        .await?;
        admin.rows("CUTOVER SHARD app 2 FORCE").await?;
        tasks::wait_for(cluster, task.id, "done", LIMIT).await
    }
    .await;
    cluster.signal_shim(frozen, Signal::SIGCONT)?;
    let longest = probe.finish().await?;
    other?;
    println!("    the longest omni write took {longest:?}");
    ensure!(
        longest < Duration::from_secs(20),
        "a write took {longest:?}"
    );
    // The one that was frozen serves again, by the new topology.
    let probe = Probe::start(cluster, frozen);
    let client = pgdog_integration::Client::connect(&cluster.login(frozen)).await?;
    client
        .batch_execute("INSERT INTO tenants VALUES (1002, 'Newcomer', 'team', 2)")
        .await?;
    probe.finish().await?;
    grown(cluster, &Account::default(), 3).await
}

async fn the_new_shard_is_killed_while_copying_parked_and_flipping(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    killed_in_three_states(cluster, None).await
}

async fn the_last_old_shard_is_killed_while_copying_parked_and_flipping(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    killed_in_three_states(cluster, Some(1)).await
}

async fn shard_0_is_killed_while_copying_parked_and_flipping(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    killed_in_three_states(cluster, Some(0)).await
}

/// Errors and lost connections are due while a shard is away; lost or doubled writes never are.
/// Without a victim it is the new shard that is killed.
async fn killed_in_three_states(cluster: &Cluster, victim: Option<u16>) -> anyhow::Result<()> {
    calm(cluster).await?;
    let node = cluster.primary(0).await?;
    let shards = node.value("SELECT shards FROM pgdog.topology").await?;
    let shard: u16 = shards.parse()?;
    let server = &cluster.shard(victim.unwrap_or(shard))?.primary;
    let load = load(cluster).await?;
    let growing = async {
        let task = tasks::order(cluster, &format!("ADD SHARD app {shard}")).await?;
        seen(cluster, task.id, "syncing data").await?;
        kill_server(server)?.restart(cluster, server).await?;
        seen(cluster, task.id, "awaiting cutover").await?;
        let killed = kill_server(server)?;
        killed.restart(cluster, server).await?;
        // Asked for again whenever it is parked: a flip that was hit is rolled back, and one that
        // what a dead server left in doubt held up for too long is given up.
        let cutover = format!("CUTOVER SHARD app {shard}");
        let pressed = async |what: &str, status: &str| {
            wait_until(what, LIMIT, || async {
                let now = tasks::latest(cluster).await?.context("no task")?;
                if now.status == "awaiting cutover" {
                    let _ = cluster.admin(0).await?.rows(&cutover).await;
                }
                was(cluster, task.id, status).await
            })
            .await
        };
        pressed("the flip", "deciding").await?;
        kill_server(server)?.restart(cluster, server).await?;
        pressed("the end", "done").await?;
        anyhow::Ok(())
    };
    let grew = growing.await;
    let account = load.finish().await?;
    if let Err(error) = grew {
        let node = cluster.primary(0).await?;
        let task = tasks::latest(cluster).await?.context("no task")?;
        let events = tasks::events(&node, task.id).await?;
        return Err(error.context(events.join("\n    ")));
    }
    println!(
        "    {} omni writes, {} in doubt, errors {:?}",
        account.omni.len(),
        account.unknown.len(),
        account.errors.first()
    );
    grown(cluster, &account, shard + 1).await
}

/// Waits until a task was in a state, be it for a moment.
async fn seen(cluster: &Cluster, task: i64, status: &str) -> anyhow::Result<()> {
    wait_until(&format!("task {task} was {status}"), LIMIT, || {
        was(cluster, task, status)
    })
    .await
}

async fn was(cluster: &Cluster, task: i64, status: &str) -> anyhow::Result<Option<()>> {
    let sql = format!(
        "SELECT count(*) FROM pgdog.task_events WHERE task_id = {task} AND to_status = '{status}'"
    );
    let node = cluster.primary(0).await?;
    Ok((node.value(&sql).await? != "0").then_some(()))
}
