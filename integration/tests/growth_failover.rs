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
        claims![
            a_task_leaves_a_primary_that_was_replaced_and_still_runs,
            a_flip_that_shard_0_has_lost_in_a_failover_is_repeated,
        ],
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
    // Not with a write of this table: the old primary would take it as long as it is asked.
    let port = cluster.shard(0)?.replicas[0].port.to_string();
    wait_until("writes go to the new primary", LIMIT, || async {
        let Ok(client) = cluster.connect().await else {
            return Ok(None);
        };
        let asked = client
            .rows("SET pgdog.role = 'primary'; SET pgdog.shard = '0'")
            .await
            .and(client.rows("SELECT current_setting('port')").await);
        let now = asked
            .ok()
            .and_then(|rows| rows.into_iter().flatten().next());
        Ok((now.as_ref() == Some(&port)).then_some(()))
    })
    .await?;
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO notes VALUES (2, 'after')")
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

/// Shard 0 as a standby that lagged by the moment of the flip would have it.
async fn a_flip_that_shard_0_has_lost_in_a_failover_is_repeated(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let promoted = cluster.replica(0, 0).await?;
    promoted
        .batch_execute(
            "BEGIN; ALTER TABLE pgdog.topology DISABLE TRIGGER topology_check; \
             UPDATE pgdog.topology SET version = version - 1, shards = 2; \
             UPDATE pgdog.tasks SET status = 'awaiting cutover', finished_at = NULL, \
                    cutover_requested = false; \
             ALTER TABLE pgdog.topology ENABLE ALWAYS TRIGGER topology_check; \
             COMMIT",
        )
        .await?;
    wait_until("the flip is repeated on shard 0", LIMIT, || async {
        let open = "SELECT count(*) FROM pgdog.tasks WHERE finished_at IS NULL";
        let shards = promoted.value("SELECT shards FROM pgdog.topology").await?;
        let open = promoted.value(open).await?;
        Ok((shards == "3" && open == "0").then_some(()))
    })
    .await?;
    let status = promoted.value("SELECT status FROM pgdog.tasks").await?;
    ensure!(status == "done", "the task ended {status}");
    Ok(())
}
