//! The coordinating shim is killed (-9) at every stage before the flip: another one, or the same
//! one started again, finishes the task or aborts it, and nothing is lost.
//!
//! Each claim adds a shard of its own, so the spares are used up in order.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use pgdog_integration::load::{Load, Pressure};
use pgdog_integration::tasks::{self, Serves};
use pgdog_integration::{Client, Cluster, Shape, claims, shop, suite, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let shape = Shape::shards(2).spares(4).shims(2);
    suite::run(
        shape,
        shop::SMALL,
        claims![
            killed_at_the_start_another_one_finishes,
            killed_while_data_is_copied_another_one_finishes,
            killed_while_waiting_for_cutover_another_one_finishes,
            killed_while_fencing_another_one_finishes,
        ],
    )
}

async fn killed_at_the_start_another_one_finishes(cluster: &Cluster) -> anyhow::Result<()> {
    kill_in(cluster, 2, &["validating", "syncing schema"], Cutover::Auto).await
}

async fn killed_while_data_is_copied_another_one_finishes(cluster: &Cluster) -> anyhow::Result<()> {
    kill_in(cluster, 3, &["syncing data", "indexing"], Cutover::Auto).await
}

async fn killed_while_waiting_for_cutover_another_one_finishes(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    kill_in(cluster, 4, &["awaiting cutover"], Cutover::ByHand).await
}

async fn killed_while_fencing_another_one_finishes(cluster: &Cluster) -> anyhow::Result<()> {
    kill_in(cluster, 5, &["fencing", "deciding"], Cutover::Auto).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cutover {
    Auto,
    ByHand,
}

/// Kills the coordinator in one of the states, or in a later one when these pass too quickly.
async fn kill_in(
    cluster: &Cluster,
    shard: u16,
    states: &[&str],
    cutover: Cutover,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("DELETE FROM ledger").await?;
    client
        .batch_execute("UPDATE counters SET value = 0")
        .await?;
    let pressure = Pressure {
        omni_writers: 4,
        sharded_writers: 2,
        readers: 1,
        tenants: 20,
    };
    let load = Load::start(cluster, pressure);
    let auto = if cutover == Cutover::Auto {
        " AUTO"
    } else {
        ""
    };
    let outcome = async {
        let task = tasks::order(cluster, &format!("ADD SHARD app {shard}{auto}")).await?;
        let victim = kill_coordinator(cluster, task.id, states).await?;
        if cutover == Cutover::ByHand {
            let admin = cluster.admin(1 - victim).await?;
            admin.rows(&format!("CUTOVER SHARD app {shard}")).await?;
        }
        let task = tasks::wait_for_end(cluster, task.id, LIMIT).await?;
        cluster.restart_shim(victim).await?;
        anyhow::Ok(task)
    }
    .await;
    let account = load.finish().await?;
    let task = outcome?;
    ensure!(
        account.errors.is_empty(),
        "client errors: {:?}",
        account.errors.first()
    );
    ensure!(
        task.status == "done",
        "the task is {}: {:?}",
        task.status,
        task.error
    );
    settle(cluster, shard + 1).await?;
    account.verify(cluster, shard + 1).await?;
    tasks::omni_tables_agree(cluster, shard + 1).await?;
    tasks::shards_serve(cluster, shard + 1).await?;
    tasks::nothing_is_left(cluster, shard, Serves::Yes).await
}

/// Waits until no transaction of the killed shim is left in doubt: the others finish them.
async fn settle(cluster: &Cluster, shards: u16) -> anyhow::Result<()> {
    for shard in 0..shards {
        let node = cluster.primary(shard).await?;
        wait_until(
            &format!("shard {shard} without prepared transactions"),
            LIMIT,
            || async {
                let left = node.value("SELECT count(*) FROM pg_prepared_xacts").await?;
                Ok((left == "0").then_some(()))
            },
        )
        .await?;
    }
    Ok(())
}

/// Kills whoever drives the task as soon as it is in one of the states; tells which shim that was.
async fn kill_coordinator(cluster: &Cluster, task: i64, states: &[&str]) -> anyhow::Result<usize> {
    let node = cluster.primary(0).await?;
    let status = wait_until("the state to kill in", LIMIT, || async {
        let now = tasks::get(&node, task).await?;
        let gone = ["activating", "cleaning", "done", "aborted"].contains(&now.status.as_str());
        Ok((states.contains(&now.status.as_str()) || gone).then_some(now))
    })
    .await?;
    let coordinator = coordinator(&node, task).await?;
    let addr = node
        .value(&format!(
            "SELECT addr FROM pgdog.instances WHERE instance_id = '{coordinator}'"
        ))
        .await?;
    let victim = cluster
        .description()
        .shims
        .iter()
        .position(|shim| addr.ends_with(&format!(":{}", shim.port)))
        .with_context(|| format!("no shim has the address {addr}"))?;
    cluster.kill_shim(victim)?;
    println!("    killed shim {victim} in state {}", status.status);
    Ok(victim)
}

async fn coordinator(node: &Client, task: i64) -> anyhow::Result<String> {
    let found = wait_until("a coordinator", LIMIT, || async {
        Ok(tasks::get(node, task).await?.coordinator)
    })
    .await?;
    if found.is_empty() {
        bail!("task {task} has no coordinator");
    }
    Ok(found)
}
