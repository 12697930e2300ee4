//! Task functions on shard 0, typed.

use pgdog_core::fault::Fault;
use pgdog_core::ids::{ShardNumber, TaskId};
use serde_json::Value;

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
pub async fn add_shard(_cluster: &Cluster, _request: &AddShard) -> Result<TaskId, Fault> {
    unimplemented!()
}

/// `pgdog.cutover_shard(...)`; the task that it asked to cut over.
pub async fn cutover_shard(_cluster: &Cluster, _shard: ShardNumber) -> Result<(), Fault> {
    unimplemented!()
}

/// `pgdog.stop_task(...)`.
pub async fn stop_task(_cluster: &Cluster, _task: TaskId) -> Result<(), Fault> {
    unimplemented!()
}

/// `pgdog.task_advance(...)`; the new status.
pub async fn task_advance(
    _cluster: &Cluster,
    _task: TaskId,
    _event: &str,
    _detail: Option<&Value>,
) -> Result<String, Fault> {
    unimplemented!()
}

/// `pgdog.task_progress(...)`.
pub async fn task_progress(
    _cluster: &Cluster,
    _task: TaskId,
    _progress: &Value,
) -> Result<(), Fault> {
    unimplemented!()
}

/// All tasks, newest first.
pub async fn list(_cluster: &Cluster) -> Result<Vec<Task>, Fault> {
    unimplemented!()
}

/// One task.
pub async fn get(_cluster: &Cluster, _task: TaskId) -> Result<Option<Task>, Fault> {
    unimplemented!()
}
