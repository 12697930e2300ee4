//! The task's row on shard 0: read, advance, report progress.

use pgdog_core::ids::{ShardNumber, TaskId};
use pgdog_core::workflow::{Event, State};
use serde::Deserialize;
use serde_json::Value;

use super::error::WorkflowError;
use super::node::Node;

/// What the work needs of one row of `pgdog.tasks`.
#[derive(Debug, Clone, Deserialize)]
pub struct Task {
    task_id: i64,
    shard: i32,
    status: String,
    /// Cut over without confirmation.
    #[serde(default)]
    pub auto: bool,
    /// Somebody asked for the cutover.
    #[serde(default)]
    pub cutover_requested: bool,
    /// Somebody asked for the end.
    #[serde(default)]
    pub stopping: bool,
    /// The operator's own publication.
    pub publication: Option<String>,
    /// Why it does not go on, or why the last try to flip failed.
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    attempt: Option<i32>,
    /// System identifier of shard 0 when the copy began.
    pub source_sysid: Option<String>,
    /// Timeline of shard 0 when the copy began.
    pub source_timeline: Option<i32>,
    /// System identifier of the new shard when the copy began.
    pub target_sysid: Option<String>,
    /// Timeline of the new shard when the copy began.
    pub target_timeline: Option<i32>,
    /// Fingerprint of shard 0's omni tables when they were dumped.
    pub fingerprint: Option<String>,
    /// OID of the database, which tells it from others of the same server.
    #[serde(default)]
    database_oid: u32,
}

/// Most characters of a database's name in the name of its slot.
const SLOT_NAME_PART: usize = 24;

impl Task {
    /// Its number.
    pub fn id(&self) -> TaskId {
        TaskId(self.task_id)
    }

    /// Number of the new shard.
    ///
    /// # Errors
    /// When the row says nonsense.
    pub fn shard(&self) -> Result<ShardNumber, WorkflowError> {
        let number = u16::try_from(self.shard);
        number.map(ShardNumber).map_err(|_| {
            WorkflowError::Wrong(format!("task {} names shard {}", self.task_id, self.shard))
        })
    }

    /// Where it stands.
    ///
    /// # Errors
    /// When this shim does not know the state: another version wrote it.
    pub fn state(&self) -> Result<State, WorkflowError> {
        self.status.parse().map_err(|_| {
            let text = format!(
                "task {} is in unknown state \"{}\"",
                self.task_id, self.status
            );
            WorkflowError::Wrong(text)
        })
    }

    /// Flips tried so far.
    pub fn attempt(&self) -> i32 {
        self.attempt.unwrap_or(0)
    }

    /// Name of subscription and publication.
    pub fn stream_name(&self) -> String {
        format!("pgdog_{}", self.task_id)
    }

    /// Name of the replication slot on shard 0: lower case letters, digits and underscores only.
    /// Slots belong to the whole server, where the names of two databases may look alike.
    pub fn slot_name(&self, database: &str) -> String {
        let plain = |c: char| match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '_') => c,
            _ => '_',
        };
        let database: String = database.chars().take(SLOT_NAME_PART).map(plain).collect();
        format!("pgdog_{database}_{}_{}", self.database_oid, self.task_id)
    }
}

/// Numbers of the tasks that are not finished, oldest first.
///
/// # Errors
/// When shard 0 does not answer.
pub async fn unfinished(lead: &Node) -> Result<Vec<TaskId>, WorkflowError> {
    const SQL: &str = "SELECT task_id FROM pgdog.tasks \
         WHERE type = 'add_shard' AND status NOT IN ('done', 'aborted') ORDER BY task_id";
    let rows = lead.rows("listing tasks", SQL, &[]).await?;
    Ok(rows.iter().map(|row| TaskId(row.get(0))).collect())
}

/// Reads one task.
///
/// # Errors
/// When it does not exist or shard 0 does not answer.
pub async fn read(lead: &Node, task: TaskId) -> Result<Task, WorkflowError> {
    const SQL: &str = "SELECT to_jsonb(t) || jsonb_build_object('database_oid', d.oid::int8) \
         FROM pgdog.tasks t, pg_database d \
         WHERE t.task_id = $1 AND d.datname = current_database()";
    let row: Value = lead.one("reading the task", SQL, &[&task.0]).await?.get(0);
    serde_json::from_value(row)
        .map_err(|error| WorkflowError::Wrong(format!("row of task {task}: {error}")))
}

/// Reports an event; the state that the machine went to.
///
/// # Errors
/// `55000` when the event does not fit the state any more.
pub async fn advance(
    lead: &Node,
    task: TaskId,
    event: Event,
    detail: &Value,
) -> Result<String, WorkflowError> {
    const SQL: &str = "SELECT pgdog.task_advance($1, $2, $3)";
    let row = lead
        .one("advancing the task", SQL, &[&task.0, &event.name(), detail])
        .await?;
    Ok(row.get(0))
}

/// Updates columns that describe progress.
///
/// # Errors
/// When shard 0 does not answer.
pub async fn progress(lead: &Node, task: TaskId, columns: &Value) -> Result<(), WorkflowError> {
    const SQL: &str = "SELECT pgdog.task_progress($1, $2)";
    lead.rows("reporting progress", SQL, &[&task.0, columns])
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(row: Value) -> Task {
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn a_slot_name_has_only_allowed_letters() {
        let row = |oid: u32, task: i64| {
            let row = serde_json::json!({
                "task_id": task, "shard": 2, "status": "validating", "database_oid": oid
            });
            serde_json::from_value::<Task>(row).unwrap()
        };
        assert_eq!(
            row(16384, 5).slot_name("My-App.Ö"),
            "pgdog_my_app___16384_5"
        );
        let longest = row(u32::MAX, i64::MAX).slot_name(&"x".repeat(90));
        assert!(longest.len() < 64, "{longest}");
    }

    #[test]
    fn databases_of_alike_names_have_slots_of_their_own() {
        let row = |oid: u32| {
            let row = serde_json::json!({
                "task_id": 1, "shard": 2, "status": "validating", "database_oid": oid
            });
            serde_json::from_value::<Task>(row).unwrap()
        };
        assert_ne!(row(1).slot_name("my-app"), row(2).slot_name("my_app"));
    }

    #[test]
    fn a_row_with_more_columns_is_read() {
        let task = task(serde_json::json!({
            "task_id": 5, "shard": 2, "status": "syncing data", "auto": true, "attempt": null,
            "rows_done": 7, "publication": null
        }));
        assert_eq!(task.shard().unwrap(), ShardNumber(2));
        assert_eq!(task.attempt(), 0);
        assert!(task.auto);
    }
}
