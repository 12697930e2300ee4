//! *Deciding*: the flip, one two-phase transaction over all shards.
//!
//! ```text
//!              new shard                 shard 0 … N-1 (sessions that hold the gates)
//!              BEGIN, serve, DISABLE     version + 1, shards + 1, epoch + 1
//!           1  PREPARE
//!           2                            PREPARE            all votes are in
//!           3  COMMIT PREPARED  ◄── the point of no return
//!           4                            COMMIT PREPARED    the gates open
//! ```
//!
//! A prepared transaction that took the gate still holds it: that PREPARE succeeds proves that no
//! gate was ever let go. Whatever goes wrong after 1 is settled by `recover`.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use pgdog_core::ids::TopologyVersion;
use pgdog_core::workflow::{Event, State};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cut::{ANSWER, GATE_IDLE, release, within};
use super::error::WorkflowError;
use super::fence::Sessions;
use super::gid::FlipGid;
use super::node::{Node, ident, literal};
use super::recover::{self, Ending, Settled};
use super::task;
use super::work::{Next, Work};

/// Limit for all PREPAREs together: past it somebody is frozen, and the gates open again.
const PREPARES: Duration = Duration::from_secs(10);

/// All that the flip will say, worked out before any gate is taken.
pub struct Flip {
    /// Its name.
    pub gid: FlipGid,
    old: String,
    new: String,
}

/// Numbers the attempt and writes the statements.
///
/// # Errors
/// When shard 0 does not answer.
pub async fn prepare_plan(work: &Work<'_>, sessions: &Sessions) -> Result<Flip, WorkflowError> {
    let Some(first) = sessions.gates.first() else {
        return Err(WorkflowError::Wrong("no shard serves".into()));
    };
    let sql = "SELECT version, shards FROM pgdog.topology";
    let row = first.one("reading the topology", sql, &[]).await?;
    let (version, shards): (i64, i32) = (row.get(0), row.get(1));
    let attempt = task::read(work.lead, work.task.id()).await?.attempt() + 1;
    let columns = json!({ "attempt": attempt, "coordinator": work.site.instance_id });
    task::progress(work.lead, work.task.id(), &columns).await?;

    let rows = shard_rows(work, first).await?;
    let set = format!(
        "version = {}, shards = {}, epoch = epoch + 1",
        version + 1,
        shards + 1
    );
    Ok(Flip {
        gid: FlipGid {
            version: TopologyVersion((version + 1).unsigned_abs()),
            task: work.task.id(),
            attempt,
        },
        old: format!(
            "UPDATE pgdog.topology SET {set} \
             WHERE version = {version} AND shards = {shards} AND state = 'serving'; {rows}"
        ),
        new: format!(
            "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '{GATE_IDLE}'; \
             UPDATE pgdog.topology SET {set}, state = 'serving' \
             WHERE state = 'provisioning' AND shard = {shards}; {rows}; \
             ALTER SUBSCRIPTION {} DISABLE",
            ident(&work.task.stream_name())
        ),
    })
}

/// Flips, with all gates held by `sessions.gates` since `started`.
///
/// # Errors
/// When it cannot be settled now; who comes next settles it.
pub async fn flip(
    work: &Work<'_>,
    sessions: &Sessions,
    flip: &Flip,
    started: Instant,
) -> Result<Next, WorkflowError> {
    let task = work.task.id();
    let written = within(ANSWER, "writing the flip", write(work, sessions, flip)).await;
    if let Err(error) = written {
        tracing::warn!(task_id = %task, gid = %flip.gid, %error, "flip was not written");
        release(&sessions.gates).await;
        return settled(work, None, error).await;
    }
    let prepare = format!("PREPARE TRANSACTION {}", literal(&flip.gid.to_string()));
    let prepared = async {
        sessions.new.batch("preparing the flip", &prepare).await?;
        try_join_all(
            sessions
                .gates
                .iter()
                .map(|n| n.batch("preparing the flip", &prepare)),
        )
        .await
    };
    if let Err(error) = within(PREPARES, "preparing the flip", prepared).await {
        tracing::warn!(task_id = %task, gid = %flip.gid, %error, "flip was not prepared");
        // What could not be prepared is rolled back already or hangs in a session of ours. A
        // PREPARE that a frozen node does later is found by whoever settles next.
        release(&sessions.gates).await;
        return settled(work, None, error).await;
    }
    // Every vote is in. From here on only the new shard knows.
    let commit = format!("COMMIT PREPARED {}", literal(&flip.gid.to_string()));
    if let Err(error) = sessions.new.batch("committing the flip", &commit).await {
        return settled(work, Some(started), error).await;
    }
    let committed = sessions
        .gates
        .iter()
        .map(|n| recover::finish(n, flip.gid, Ending::Commit));
    for error in join_all(committed)
        .await
        .into_iter()
        .filter_map(Result::err)
    {
        tracing::warn!(task_id = %task, gid = %flip.gid, %error, "will be committed by activating");
    }
    Ok(decided(Some(started)))
}

/// The flip's rows, in the transactions that are prepared later; meanwhile the task says so.
async fn write(work: &Work<'_>, sessions: &Sessions, flip: &Flip) -> Result<(), WorkflowError> {
    let held = task::advance(work.lead, work.task.id(), Event::FenceHeld, &Value::Null);
    let old = sessions
        .gates
        .iter()
        .map(|node| flip_one(node, &flip.old, 0));
    // BEGIN and SET come first there.
    let new = flip_one(&sessions.new, &flip.new, 2);
    tokio::try_join!(held, try_join_all(old), new)?;
    Ok(())
}

/// Runs the statements; the `at`-th is the UPDATE of the topology, which must have found its row.
async fn flip_one(node: &Node, sql: &str, at: usize) -> Result<(), WorkflowError> {
    let counts = node.counted("writing the new topology", sql).await?;
    match counts.get(at) {
        Some(1) => Ok(()),
        Some(_) | None => {
            let text = format!(
                "the topology of {} is not what the flip expects",
                node.name()
            );
            Err(WorkflowError::Wrong(text))
        }
    }
}

/// Settles what is left of a flip that went wrong.
async fn settled(
    work: &Work<'_>,
    started: Option<Instant>,
    error: WorkflowError,
) -> Result<Next, WorkflowError> {
    Ok(match recover::settle(work).await? {
        Settled::Committed => decided(started),
        Settled::RolledBack => {
            let held = task::read(work.lead, work.task.id()).await?.state()?;
            let event = match held {
                State::Deciding => Event::RolledBack,
                _ => Event::FenceFailed,
            };
            Next::Advance(event, json!({ "error": error.to_string() }))
        }
    })
}

fn decided(started: Option<Instant>) -> Next {
    let pause_ms = started.map(|started| started.elapsed().as_micros() as f64 / 1000.0);
    Next::Advance(Event::Decided, json!({ "pause_ms": pause_ms }))
}

/// `pgdog.shards` as every shard will have it: what shard 0 knows, and the primaries.
async fn shard_rows(work: &Work<'_>, first: &Node) -> Result<String, WorkflowError> {
    const SQL: &str = "SELECT shard, role, host, port, database_name FROM pgdog.shards";
    let rows = first.rows("reading where the shards are", SQL, &[]).await?;
    let value = |shard: i32, role: &str, host: &str, port: i32, database: &str| {
        let (role, host, database) = (literal(role), literal(host), literal(database));
        format!("({shard}, {role}, {host}, {port}, {database})")
    };
    let mut values: Vec<String> = rows
        .iter()
        .map(|row| value(row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)))
        .collect();
    let primaries = work
        .site
        .old_shards(work.shard)
        .iter()
        .chain([work.address]);
    for (shard, address) in (0..).zip(primaries) {
        let known = rows.iter().any(|row| {
            (
                row.get::<_, &str>(2),
                row.get::<_, i32>(3),
                row.get::<_, &str>(4),
            ) == (&address.host, i32::from(address.port), &address.database)
        });
        if !known {
            let (host, port) = (&address.host, i32::from(address.port));
            values.push(value(shard, "auto", host, port, &address.database));
        }
    }
    Ok(format!(
        "INSERT INTO pgdog.shards (shard, role, host, port, database_name) VALUES {} \
         ON CONFLICT (host, port, database_name) \
         DO UPDATE SET shard = excluded.shard, role = excluded.role",
        values.join(", ")
    ))
}
