//! Who drives: a session advisory lock on the new shard. It ends with its session, so a killed
//! coordinator is replaced at once. A frozen one, or one that was cut off, keeps its session; it is
//! known by its silence, and its session is ended. The lock only spares double work: that the flip
//! happens once rests on the prepared transactions.

use std::convert::Infallible;
use std::time::Duration;

use pgdog_core::ids::TaskId;
use tokio::time::sleep;

use super::error::WorkflowError;
use super::node::Node;

/// First half of the advisory lock's key: "pgdg".
const CLASS: i32 = 0x7067_6467;
/// A live holder says something this often.
const PULSE: Duration = Duration::from_secs(1);
/// A holder that has been silent for so long is frozen. It must be longer than what the gates'
/// sessions may idle (`cut`): whoever takes over then finds them closed, or prepared.
const SILENCE_S: f64 = 6.0;

/// Tries to become the coordinator of this task on the session `target`.
///
/// # Errors
/// When the new shard does not answer.
pub async fn take(target: &Node, task: TaskId) -> Result<bool, WorkflowError> {
    if attempt(target, task).await? {
        return Ok(true);
    }
    let ended = target
        .rows(
            "looking at the task's lock",
            END_SILENT,
            &[&i64::from(CLASS), &i64::from(key(task) as u32), &SILENCE_S],
        )
        .await?;
    if ended.is_empty() {
        return Ok(false);
    }
    tracing::warn!(task_id = %task, "the coordinator is frozen: taking over");
    attempt(target, task).await
}

/// Shows on the lock's session that its holder lives, until that session is lost.
///
/// # Errors
/// When it is lost: somebody else may be the coordinator by now.
pub async fn pulse(target: &Node) -> Result<Infallible, WorkflowError> {
    loop {
        sleep(PULSE).await;
        target.batch("keeping the task's lock", "SELECT 1").await?;
    }
}

async fn attempt(target: &Node, task: TaskId) -> Result<bool, WorkflowError> {
    const SQL: &str = "SELECT pg_try_advisory_lock($1, $2)";
    let row = target
        .one("taking the task's lock", SQL, &[&CLASS, &key(task)])
        .await?;
    Ok(row.get(0))
}

/// Two halves of 32 bits: a cast keeps the low one, and two tasks that far apart never meet.
fn key(task: TaskId) -> i32 {
    task.0 as i32
}

const END_SILENT: &str = "
SELECT pg_terminate_backend(l.pid, 2000)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = $1 AND l.objid::bigint = $2
  AND a.state <> 'active' AND extract(epoch FROM clock_timestamp() - a.state_change) > $3::float8";
