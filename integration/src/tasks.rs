//! Changes of topology followed on the nodes themselves, and verified afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::client::{Client, describe};
use crate::cluster::Cluster;
use crate::wait::wait_until;

/// A row of `pgdog.tasks`.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its number.
    pub id: i64,
    /// Name of its state.
    pub status: String,
    /// Why it does not go on.
    pub error: Option<String>,
    /// Tables copied, of how many.
    pub tables: (i32, i32),
    /// Rows copied, of how many.
    pub rows: (i64, i64),
    /// How far the new shard is behind.
    pub lag_bytes: Option<i64>,
    /// How long omni writes were held up by the flip.
    pub pause_ms: Option<f64>,
    /// Who drives it.
    pub coordinator: Option<String>,
}

/// Says it to the admin database and returns the task that came of it.
///
/// # Errors
/// When the command is refused.
pub async fn order(cluster: &Cluster, command: &str) -> anyhow::Result<Task> {
    let admin = cluster.admin(0).await?;
    admin
        .rows(command)
        .await
        .map_err(|e| anyhow::anyhow!("{command}: {}", describe(&e)))?;
    latest(cluster)
        .await?
        .with_context(|| format!("{command} made no task"))
}

/// The newest task.
///
/// # Errors
/// When shard 0 cannot be asked.
pub async fn latest(cluster: &Cluster) -> anyhow::Result<Option<Task>> {
    let node = cluster.primary(0).await?;
    read(&node, "ORDER BY task_id DESC LIMIT 1").await
}

/// A task by its number.
///
/// # Errors
/// When there is none or shard 0 cannot be asked.
pub async fn get(node: &Client, id: i64) -> anyhow::Result<Task> {
    read(node, &format!("WHERE task_id = {id}"))
        .await?
        .with_context(|| format!("no task {id}"))
}

async fn read(node: &Client, which: &str) -> anyhow::Result<Option<Task>> {
    let row = node
        .query_opt(
            &format!(
                "SELECT task_id, status, error, coalesce(tables_done, 0), \
                        coalesce(tables_total, 0), coalesce(rows_done, 0), \
                        coalesce(rows_total, 0), lag_bytes, pause_ms, coordinator \
                 FROM pgdog.tasks {which}"
            ),
            &[],
        )
        .await?;
    Ok(row.map(|row| Task {
        id: row.get(0),
        status: row.get(1),
        error: row.get(2),
        tables: (row.get(3), row.get(4)),
        rows: (row.get(5), row.get(6)),
        lag_bytes: row.get(7),
        pause_ms: row.get(8),
        coordinator: row.get(9),
    }))
}

/// Waits for a state; ends early when the task ends in another one.
///
/// # Errors
/// When the task ends otherwise, or the time is up.
pub async fn wait_for(
    cluster: &Cluster,
    id: i64,
    status: &str,
    limit: Duration,
) -> anyhow::Result<Task> {
    let node = cluster.primary(0).await?;
    let what = format!("task {id} in state {status}");
    let result = wait_until(&what, limit, || async {
        let task = get(&node, id).await?;
        if task.status == status {
            return Ok(Some(task));
        }
        if ["done", "aborted", "broken", "lost"].contains(&task.status.as_str()) {
            bail!(
                "task {id} ended {} instead of {status}: {:?}",
                task.status,
                task.error
            );
        }
        Ok(None)
    })
    .await;
    match result {
        Ok(task) => Ok(task),
        Err(error) => Err(error.context(events(&node, id).await?.join("\n    "))),
    }
}

/// Waits until a task has ended, however.
///
/// # Errors
/// When the time is up.
pub async fn wait_for_end(cluster: &Cluster, id: i64, limit: Duration) -> anyhow::Result<Task> {
    let node = cluster.primary(0).await?;
    wait_until(&format!("the end of task {id}"), limit, || async {
        let task = get(&node, id).await?;
        Ok(["done", "aborted"]
            .contains(&task.status.as_str())
            .then_some(task))
    })
    .await
}

/// What happened to a task, one line per event, with the error it carries.
///
/// # Errors
/// When shard 0 cannot be asked.
pub async fn events(node: &Client, id: i64) -> anyhow::Result<Vec<String>> {
    let task = get(node, id).await?;
    let rows = node
        .query(
            "SELECT to_char(at, 'HH24:MI:SS.MS'), from_status, event, to_status, why \
             FROM pgdog.task_events WHERE task_id = $1 ORDER BY event_id",
            &[&id],
        )
        .await?;
    let mut lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let [at, from, event, to, why]: [Option<String>; 5] =
                std::array::from_fn(|i| row.get(i));
            let text = |value: Option<String>| value.unwrap_or_default();
            format!(
                "{} {} --{}--> {}: {}",
                text(at),
                text(from),
                text(event),
                text(to),
                text(why)
            )
        })
        .collect();
    lines.push(format!("now {}, error {:?}", task.status, task.error));
    Ok(lines)
}

/// When the flip of a finished task began to hold up omni writes, and when it was over everywhere.
///
/// # Errors
/// When the task has no such events.
pub async fn flip_window(node: &Client, id: i64) -> anyhow::Result<(Instant, Instant)> {
    // Nodes and tests share a machine, so an age in seconds is a point in our own time.
    let row = node
        .query_one(
            "SELECT extract(epoch FROM clock_timestamp() - \
                        max(at) FILTER (WHERE to_status = 'fencing'))::float8, \
                    extract(epoch FROM clock_timestamp() - \
                        max(at) FILTER (WHERE to_status = 'cleaning'))::float8 \
             FROM pgdog.task_events WHERE task_id = $1",
            &[&id],
        )
        .await?;
    let point = |age: Option<f64>| -> anyhow::Result<Instant> {
        let age = Duration::try_from_secs_f64(age.context("the task did not flip")?)?;
        Instant::now()
            .checked_sub(age)
            .context("before this machine started")
    };
    Ok((point(row.get(0))?, point(row.get(1))?))
}

/// Every omni table has the same rows on all shards.
///
/// # Errors
/// Names the two shards that differ.
pub async fn omni_tables_agree(cluster: &Cluster, shards: u16) -> anyhow::Result<()> {
    let query = "SELECT table_name, rows::text, hash::text FROM pgdog.omni_hashes() ORDER BY 1";
    let expected = cluster.primary(0).await?.rows(query).await?;
    ensure!(!expected.is_empty(), "shard 0 has no omni tables");
    for shard in 1..shards {
        let found = cluster.primary(shard).await?.rows(query).await?;
        ensure!(
            found == expected,
            "shard {shard} has {found:?}; shard 0 has {expected:?}"
        );
    }
    Ok(())
}

/// Every node says the same number of serving shards.
///
/// # Errors
/// Names the node that says otherwise.
pub async fn shards_serve(cluster: &Cluster, shards: u16) -> anyhow::Result<()> {
    for shard in 0..shards {
        let row = cluster.primary(shard).await?;
        let row = row
            .rows("SELECT state, shards, shard FROM pgdog.topology")
            .await?
            .concat();
        let expected = ["serving".to_owned(), shards.to_string(), shard.to_string()];
        ensure!(row == expected, "shard {shard} says {row:?}");
    }
    Ok(())
}

/// No trace of a task that was stopped, or that is over: slots, publications, subscriptions,
/// prepared transactions, the freeze, and nothing on the spare when it does not serve.
///
/// # Errors
/// Names what is left and where.
pub async fn nothing_is_left(cluster: &Cluster, spare: u16, serves: Serves) -> anyhow::Result<()> {
    for shard in 0..=spare {
        let node = cluster.primary(shard).await?;
        for (what, query) in [
            (
                "logical slots",
                "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'",
            ),
            ("publications", "SELECT count(*) FROM pg_publication"),
            ("subscriptions", "SELECT count(*) FROM pg_subscription"),
            (
                "prepared transactions",
                "SELECT count(*) FROM pg_prepared_xacts",
            ),
            ("freezes", "SELECT count(*) FROM pgdog.task_intents"),
        ] {
            let count = node.value(query).await?;
            ensure!(count == "0", "{count} {what} are left on shard {shard}");
        }
    }
    if serves == Serves::No {
        let node = cluster.primary(spare).await?;
        let tables = node
            .value("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace")
            .await?;
        ensure!(tables == "0", "{tables} relations are left on the spare");
        let state = node.value("SELECT state FROM pgdog.topology").await?;
        ensure!(state == "empty", "the spare is {state}");
    }
    Ok(())
}

/// Whether the spare has become a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    /// It has.
    Yes,
    /// It is empty again.
    No,
}
