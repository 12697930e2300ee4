//! Task functions on shard 0, typed.

use pgdog_core::fault::Fault;
use pgdog_core::ids::{ShardNumber, TaskId};
use serde_json::Value;
use tokio_postgres::Row;

use super::cluster::Cluster;

/// What `ADD SHARD` was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddShard {
    /// Number of the new shard.
    pub shard: ShardNumber,
    /// Cut over without confirmation.
    pub auto: bool,
    /// An operator's own publication.
    pub publication: Option<String>,
}

/// One row of `pgdog.tasks`.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its number.
    pub task_id: TaskId,
    /// Every column as JSON, by name (`to_jsonb` of the row), plus `elapsed_ms`.
    pub row: serde_json::Map<String, Value>,
}

impl Task {
    /// A text or number column as text; None when NULL.
    pub fn text(&self, column: &str) -> Option<String> {
        match self.row.get(column)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// A whole-number column.
    pub fn number(&self, column: &str) -> Option<i64> {
        self.row.get(column)?.as_i64()
    }

    /// A boolean column; NULL is false.
    pub fn flag(&self, column: &str) -> bool {
        self.row
            .get(column)
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }

    /// `status`, a state of the workflow by name.
    pub fn status(&self) -> String {
        self.text("status").unwrap_or_default()
    }
}

/// `pgdog.add_shard(...)`.
///
/// # Errors
/// 55000 with the number of the task that is in the way, or another guard's reason.
pub async fn add_shard(cluster: &Cluster, request: &AddShard) -> Result<TaskId, Fault> {
    let rows = cluster
        .shard_session(ShardNumber(0))
        .await?
        .query(
            "SELECT pgdog.add_shard($1::int, $2::bool, $3::text)::bigint",
            &[
                &i32::from(request.shard.0),
                &request.auto,
                &request.publication,
            ],
        )
        .await?;
    Ok(TaskId(one(&rows)?.get(0)))
}

/// `pgdog.cutover_shard(...)`.
///
/// # Errors
/// 55000 when no task of this shard waits for its cutover.
pub async fn cutover_shard(cluster: &Cluster, shard: ShardNumber) -> Result<(), Fault> {
    let session = cluster.shard_session(ShardNumber(0)).await?;
    session
        .query(
            "SELECT pgdog.cutover_shard($1::int)::text",
            &[&i32::from(shard.0)],
        )
        .await?;
    Ok(())
}

/// `pgdog.stop_task(...)`.
///
/// # Errors
/// 55000 past the point of no return, 42704 for an unknown task.
pub async fn stop_task(cluster: &Cluster, task: TaskId) -> Result<(), Fault> {
    let session = cluster.shard_session(ShardNumber(0)).await?;
    session
        .query("SELECT pgdog.stop_task($1::bigint)::text", &[&task.0])
        .await?;
    Ok(())
}

/// `pgdog.task_advance(...)`; the new status.
///
/// # Errors
/// 55000 when the event does not fit the task's state.
pub async fn task_advance(
    cluster: &Cluster,
    task: TaskId,
    event: &str,
    detail: Option<&Value>,
) -> Result<String, Fault> {
    let detail = detail.map(Value::to_string);
    let rows = cluster
        .shard_session(ShardNumber(0))
        .await?
        .query(
            "SELECT pgdog.task_advance($1::bigint, $2::text, ($3::text)::jsonb)::text",
            &[&task.0, &event, &detail],
        )
        .await?;
    Ok(one(&rows)?.get(0))
}

/// `pgdog.task_progress(...)`.
///
/// # Errors
/// Shard 0 cannot be asked.
pub async fn task_progress(cluster: &Cluster, task: TaskId, progress: &Value) -> Result<(), Fault> {
    cluster
        .shard_session(ShardNumber(0))
        .await?
        .query(
            "SELECT pgdog.task_progress($1::bigint, ($2::text)::jsonb)::text",
            &[&task.0, &progress.to_string()],
        )
        .await?;
    Ok(())
}

const TASKS: &str = "
SELECT (to_jsonb(t) || jsonb_build_object('elapsed_ms',
          (extract(epoch FROM coalesce(finished_at, clock_timestamp()) - started_at)
            * 1000)::bigint))::text
FROM pgdog.tasks t";

/// All tasks, newest first.
///
/// # Errors
/// Shard 0 cannot be asked.
pub async fn list(cluster: &Cluster) -> Result<Vec<Task>, Fault> {
    let sql = format!("{TASKS} ORDER BY task_id DESC");
    let rows = cluster
        .shard_session(ShardNumber(0))
        .await?
        .query(&sql, &[])
        .await?;
    rows.iter().map(task).collect()
}

/// One task.
///
/// # Errors
/// Shard 0 cannot be asked.
pub async fn get(cluster: &Cluster, task_id: TaskId) -> Result<Option<Task>, Fault> {
    let sql = format!("{TASKS} WHERE task_id = $1::bigint");
    let rows = cluster
        .shard_session(ShardNumber(0))
        .await?
        .query(&sql, &[&task_id.0])
        .await?;
    rows.first().map(task).transpose()
}

fn task(row: &Row) -> Result<Task, Fault> {
    let unreadable = |why: String| Fault::Internal {
        why: format!("row of pgdog.tasks: {why}"),
    };
    let row: serde_json::Map<String, Value> =
        serde_json::from_str(row.get(0)).map_err(|error| unreadable(error.to_string()))?;
    let task_id = row
        .get("task_id")
        .and_then(Value::as_i64)
        .ok_or_else(|| unreadable("no task_id".into()))?;
    Ok(Task {
        task_id: TaskId(task_id),
        row,
    })
}

fn one(rows: &[Row]) -> Result<&Row, Fault> {
    rows.first().ok_or_else(|| Fault::Internal {
        why: "a task function returned no row".into(),
    })
}
