//! The part of the demonstration that grows the cluster under load.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use pgdog_integration::load::{Account, Load, Pressure};
use pgdog_integration::tasks::{self, Serves, Task};
use pgdog_integration::{Client, Cluster, wait_until};

use crate::TENANTS;
use crate::transcript::Transcript;

const PRESSURE: Pressure = Pressure {
    omni_writers: 4,
    sharded_writers: 3,
    readers: 3,
    tenants: TENANTS,
};
const LIMIT: Duration = Duration::from_secs(90);

/// `ADD SHARD app 2 AUTO` while writers and readers go on, and the proof afterwards.
pub async fn show(cluster: &Cluster, out: &mut Transcript) -> anyhow::Result<()> {
    out.step("A third shard, while the application goes on");
    let p = PRESSURE;
    out.note(&format!(
        "running: {} writers of omnisharded tables, {} of sharded ones, {} readers",
        p.omni_writers, p.sharded_writers, p.readers
    ));
    let load = Load::start(cluster, PRESSURE);
    let began = Instant::now();
    advance(&load, 500, "load before the change").await?;
    let grown = grow(cluster, out).await;
    advance(&load, 500, "load after the change").await?;
    let took = began.elapsed();
    let account = load.finish().await?;
    let task = grown?;

    let window = tasks::flip_window(&cluster.primary(0).await?, task.id).await?;
    pause(&account, out, &task, (began, window))?;
    proof(cluster, out, &account, took).await?;
    new_tenant(cluster, out).await
}

async fn advance(load: &Load, statements: u64, what: &str) -> anyhow::Result<()> {
    let from = load.done();
    wait_until(what, LIMIT, || async {
        Ok((load.done() >= from + statements).then_some(()))
    })
    .await
}

async fn grow(cluster: &Cluster, out: &Transcript) -> anyhow::Result<Task> {
    let admin = cluster.admin(0).await?;
    out.run("admin", &admin, "ADD SHARD app 2 AUTO").await?;
    let node = cluster.primary(0).await?;
    let task = tasks::latest(cluster)
        .await?
        .context("ADD SHARD made no task")?;
    let began = Instant::now();
    let mut last = String::new();
    let mut now = tasks::get(&node, task.id).await?;
    while now.status != "done" {
        if ["aborted", "broken", "lost"].contains(&now.status.as_str()) {
            bail!("{}", tasks::events(&node, task.id).await?.join("\n"));
        }
        if now.status != last || now.rows.0 < now.rows.1 {
            println!(
                "   {:>5.1} s  {}",
                began.elapsed().as_secs_f64(),
                progress(&now)
            );
            last.clone_from(&now.status);
        }
        now = next(&node, &now).await?;
    }
    println!(
        "   {:>5.1} s  {}",
        began.elapsed().as_secs_f64(),
        progress(&now)
    );
    out.run("admin", &admin, "SHOW TASKS").await?;
    Ok(now)
}

/// The task once its state or its progress is another one.
async fn next(node: &Client, last: &Task) -> anyhow::Result<Task> {
    wait_until("progress of the task", LIMIT, || async {
        let now = tasks::get(node, last.id).await?;
        Ok((now.status != last.status || now.rows != last.rows).then_some(now))
    })
    .await
}

fn progress(task: &Task) -> String {
    let (done, total) = task.rows;
    let share = if total > 0 {
        (done as f64 / total as f64).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let share = if task.status == "done" { 1.0 } else { share };
    let full = (share * 24.0).round() as usize;
    format!(
        "{:<16} {}{} {:>3.0} %  {}/{} tables, {} rows",
        task.status,
        "█".repeat(full),
        "░".repeat(24 - full),
        share * 100.0,
        task.tables.0,
        task.tables.1,
        done,
    )
}

/// What the writers of omnisharded tables noticed.
fn pause(
    account: &Account,
    out: &mut Transcript,
    task: &Task,
    (began, (from, to)): (Instant, (Instant, Instant)),
) -> anyhow::Result<()> {
    let usual = account.omni_latency(began, from - Duration::from_millis(500));
    let during = account
        .omni_latency(from, to)
        .context("no omni write during the flip")?;
    out.note("latency of omni writes           count      p50      p99      max");
    for (label, latency) in [
        ("before", usual),
        ("while the topology flipped", Some(during)),
    ] {
        if let Some(l) = latency {
            out.note(&format!(
                "  {label:<28} {:>7} {:>5.0} ms {:>5.0} ms {:>5.0} ms",
                l.count, l.p50_ms, l.p99_ms, l.max_ms
            ));
        }
    }
    let pause = task.pause_ms.context("the task measured no pause")?;
    out.claim(
        pause > 0.0,
        &format!("the gate was closed for {pause:.0} ms; nobody got an error"),
    )?;
    account.expect_no_errors()
}

/// Nothing lost, nothing doubled, all shards the same.
async fn proof(
    cluster: &Cluster,
    out: &mut Transcript,
    account: &Account,
    took: Duration,
) -> anyhow::Result<()> {
    account.verify(cluster, 3).await?;
    out.claim(
        true,
        &format!(
            "{} omni writes, {} orders and {} reads in {:.0} s: 0 errors, 0 lost, 0 doubled",
            account.omni.len(),
            account.orders.len(),
            account.reads,
            took.as_secs_f64()
        ),
    )?;
    for shard in 0..3 {
        let node = cluster.primary(shard).await?;
        let prompt = format!("shard {shard}");
        out.run(
            &prompt,
            &node,
            "SELECT * FROM pgdog.omni_hashes() ORDER BY table_name",
        )
        .await?;
    }
    tasks::omni_tables_agree(cluster, 3).await?;
    out.claim(
        true,
        "the omnisharded tables of the three shards are identical",
    )?;
    tasks::shards_serve(cluster, 3).await?;
    tasks::nothing_is_left(cluster, 2, Serves::Yes).await?;
    out.claim(
        true,
        "every node says 3 shards; no slot, subscription or freeze is left",
    )
}

async fn new_tenant(cluster: &Cluster, out: &mut Transcript) -> anyhow::Result<()> {
    out.step("A new tenant on the new shard");
    let client = cluster.connect().await?;
    for sql in [
        "INSERT INTO tenants (id, name, plan, shard_id) VALUES (1000, 'Newcomer', 'team', 2)",
        "INSERT INTO orders (tenant_id, id, user_id, total_cents) VALUES (1000, 1, 1, 4200)",
        "SELECT id, total_cents FROM orders WHERE tenant_id = 1000",
        "SHOW pgdog.last_route",
    ] {
        out.run("app", &client, sql).await?;
    }
    let count = "SELECT count(*) FROM orders WHERE tenant_id = 1000";
    let mut counts = Vec::new();
    for shard in 0..3 {
        counts.push(cluster.primary(shard).await?.value(count).await?);
    }
    out.claim(
        counts == ["0", "0", "1"],
        "its order is on shard 2, and only there",
    )
}
