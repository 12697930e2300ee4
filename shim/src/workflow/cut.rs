//! One consistent moment over all shards: snapshots taken while every gate is held, so that no omni
//! transaction is committed on one shard and not yet on another.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::time::{sleep, timeout};

use crate::nodes::Address;

use super::error::WorkflowError;
use super::node::Node;
use super::site::Site;

/// Limit for an answer that takes a moment only, while gates are held.
pub const ANSWER: Duration = Duration::from_secs(2);

/// How long a session that holds a gate, or the new shard's part of the flip, may say nothing.
pub const GATE_IDLE: &str = "5s";

const TRIES: [u32; 5] = [300, 500, 1000, 2000, 3000];

/// Sessions on these shards, each in a REPEATABLE READ transaction whose snapshot is of the same
/// moment. The gates are free again when this returns.
///
/// # Errors
/// When a shard does not answer or a gate cannot be had.
pub async fn cut(site: &Site, shards: &[Address]) -> Result<Vec<Node>, WorkflowError> {
    let sessions = || {
        try_join_all(
            shards
                .iter()
                .map(|address| Node::connect(site, address, None)),
        )
    };
    let (gates, readers) = tokio::try_join!(sessions(), sessions())?;
    take_with_patience(&gates).await?;
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1";
    let taken = join_all(
        readers
            .iter()
            .map(|node| node.batch("taking a snapshot", snapshot)),
    );
    let taken = taken.await;
    release(&gates).await;
    taken.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(readers)
}

/// Takes the gates in shard order, each within the limit.
///
/// # Errors
/// The first gate that cannot be had; those before it are still held then.
pub async fn take(gates: &[Node], lock_timeout_ms: u32) -> Result<(), WorkflowError> {
    // If we freeze while we hold the gates, the server frees them: the PREPARE would fail then,
    // so this is about waiting writers, not about safety.
    let sql = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; \
         SET LOCAL lock_timeout = {lock_timeout_ms}; SET LOCAL deadlock_timeout = '200ms'; \
         SET LOCAL idle_in_transaction_session_timeout = '{GATE_IDLE}'; \
         LOCK TABLE pgdog.gate IN SHARE ROW EXCLUSIVE MODE"
    );
    // A node that is frozen does not even say that the lock was not to be had in time.
    let limit = Duration::from_millis(u64::from(lock_timeout_ms)) + ANSWER;
    for gate in gates {
        within(
            limit,
            "taking the gate",
            gate.batch("taking the gate", &sql),
        )
        .await?;
    }
    Ok(())
}

/// Waits no longer than this for a node's answer.
///
/// # Errors
/// [`WorkflowError::NoAnswer`], or what the work itself says.
pub async fn within<T>(
    limit: Duration,
    doing: &'static str,
    work: impl Future<Output = Result<T, WorkflowError>>,
) -> Result<T, WorkflowError> {
    match timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(WorkflowError::NoAnswer {
            doing,
            limit_ms: limit.as_millis(),
        }),
    }
}

/// Ends the transactions that hold the gates.
pub async fn release(gates: &[Node]) {
    // A session that cannot roll back is gone, and its lock with it. One that does not answer is of
    // a frozen node: nobody waits for it, so that the others can be settled.
    let doing = "opening the gate";
    let release = |gate| within(ANSWER, doing, Node::batch(gate, doing, "ROLLBACK"));
    join_all(gates.iter().map(release)).await;
}

/// A while that no two coordinators choose alike.
pub async fn pause_at_random() {
    let ms = 100 + rand::random::<u64>() % 900;
    sleep(Duration::from_millis(ms)).await;
}

async fn take_with_patience(gates: &[Node]) -> Result<(), WorkflowError> {
    let mut last = None;
    for lock_timeout_ms in TRIES {
        match take(gates, lock_timeout_ms).await {
            Ok(()) => return Ok(()),
            Err(error) => {
                release(gates).await;
                if !error.is_lock_conflict() {
                    return Err(error);
                }
                last = Some(error);
                pause_at_random().await;
            }
        }
    }
    Err(last.unwrap_or_else(|| WorkflowError::Wrong("the gates are held".into())))
}
