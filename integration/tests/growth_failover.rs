//! A shard's primary is replaced while the cluster grows, and the old one still runs.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use pgdog_integration::{Cluster, Shape, claims, suite, tasks, wait_until};

const LIMIT: Duration = Duration::from_secs(90);

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2).replicas(1).spares(1),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![a_task_leaves_a_primary_that_was_replaced_and_still_runs],
    )
}

/// The nodes tell who is primary, and there is one omnisharded table.
async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let config = &cluster.description().shims[0].config;
    let text = std::fs::read_to_string(config)?;
    let entries = text.split("[[databases]]").map(|entry| {
        if entry.contains("provisioning") {
            return entry.to_owned();
        }
        let auto = "role = \"auto\"";
        entry
            .replace("role = \"primary\"", auto)
            .replace("role = \"replica\"", auto)
    });
    std::fs::write(config, entries.collect::<Vec<_>>().join("[[databases]]"))?;
    cluster.kill_shim(0)?;
    cluster.restart_shim(0).await?;
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE notes (id bigint PRIMARY KEY, body text)",
        "SELECT pgdog.omni_table('notes')",
        "INSERT INTO notes VALUES (1, 'before')",
    ] {
        client.batch_execute(sql).await?;
    }
    Ok(())
}

async fn a_task_leaves_a_primary_that_was_replaced_and_still_runs(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let task = tasks::order(cluster, "ADD SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    let promoted = cluster.replica(0, 0).await?;
    wait_until("the standby knows the task as it is", LIMIT, || async {
        let now = tasks::get(&promoted, task.id).await?;
        Ok((now.status == "awaiting cutover").then_some(()))
    })
    .await?;
    promoted.batch_execute("SELECT pg_promote()").await?;
    wait_until("writes go to the new primary", LIMIT, || async {
        let Ok(client) = cluster.connect().await else {
            return Ok(None);
        };
        // Who is refused by the old primary's gate, or meets the change, tries again.
        let sql = "INSERT INTO notes VALUES (2, 'after') ON CONFLICT (id) DO NOTHING";
        let _ = client.batch_execute(sql).await;
        let there = "SELECT count(*) FROM notes WHERE id = 2";
        Ok((promoted.value(there).await? == "1").then_some(()))
    })
    .await?;
    wait_until("the copy begins anew and is parked", LIMIT, || async {
        let events = tasks::events(&promoted, task.id).await?;
        let lost = events.iter().any(|event| event.contains("lost"));
        let now = tasks::get(&promoted, task.id).await?;
        Ok((lost && now.status == "awaiting cutover").then_some(()))
    })
    .await?;
    let admin = cluster.admin(0).await?;
    admin.rows("CUTOVER SHARD app 2").await?;
    wait_until("the new shard serves", LIMIT, || async {
        let now = tasks::get(&promoted, task.id).await?;
        Ok((now.status == "done").then_some(()))
    })
    .await?;
    let new = cluster.primary(2).await?;
    let rows = new
        .value("SELECT string_agg(body, ' ' ORDER BY id) FROM notes")
        .await?;
    ensure!(rows == "before after", "the new shard has {rows:?}");
    let shards = new.value("SELECT shards FROM pgdog.topology").await?;
    ensure!(shards == "3", "the new shard says that there are {shards}");
    Ok(())
}
