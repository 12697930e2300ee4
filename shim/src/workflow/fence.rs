//! *Fencing*: for a moment no omni write is under way anywhere, and the new shard has all of them.
//!
//! Look first: a lock that will not be had soon is not tried, for writers would queue behind it.
//! Then, shard by shard in order, take the gates with a short limit; on failure let go of all,
//! pause at random and look again, until `cutover_timeout`. Under the gates: a marker that is
//! written on shard 0 and arrives on the new shard proves that everything before it was applied.

use std::time::Duration;

use pgdog_core::workflow::{Event, State};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::cut::{ANSWER, pause_at_random, release, take, within};
use super::data::{self, Watched};
use super::error::WorkflowError;
use super::flip::{self, Flip};
use super::gid::FlipGid;
use super::look;
use super::node::{Node, ident, literal};
use super::recover::{self, Settled};
use super::schema;
use super::task;
use super::work::{Next, Work};

/// Limits for one gate, try by try.
const LOCK_TIMEOUTS_MS: [u32; 5] = [300, 500, 1000, 2000, 3000];
/// How long the marker may take.
const MARKER_LIMIT: Duration = Duration::from_secs(2);
const MARKER_POLL: Duration = Duration::from_millis(2);

/// Sessions that are opened before any gate is taken.
pub struct Sessions {
    /// One per old shard, in order: what holds the gate is what is prepared.
    pub gates: Vec<Node>,
    /// On the new shard, for its part of the flip.
    pub new: Node,
}

/// Tries to fence and to flip.
///
/// # Errors
/// When a node does not answer; who comes next settles what is left.
pub async fn fence(work: &Work<'_>) -> Result<Next, WorkflowError> {
    // Somebody may have died here before us.
    if recover::settle(work).await? == Settled::Committed {
        return decided(work).await;
    }
    let (gates, new) = tokio::try_join!(work.old_shards(), work.another_target())?;
    let sessions = Sessions { gates, new };
    let began = Instant::now();
    let mut limits = LOCK_TIMEOUTS_MS.into_iter();
    let mut blocked = String::new();
    loop {
        blocked = match look_first(work, &sessions).await? {
            Looked::Over(next) => return Ok(next),
            Looked::Wait(why) => why,
            Looked::Clear => {
                let Some(lock_timeout_ms) = limits.next() else {
                    return Ok(not_had(&blocked));
                };
                match attempt(work, &sessions, lock_timeout_ms).await? {
                    Attempt::Over(next) => return Ok(next),
                    Attempt::Blocked(holders) => holders,
                }
            }
        };
        if work
            .site
            .cutover_timeout
            .is_some_and(|limit| began.elapsed() > limit)
        {
            return Ok(not_had(&blocked));
        }
        let error = format!("waiting for the gates: {blocked}");
        task::progress(work.lead, work.task.id(), &json!({ "error": error })).await?;
        pause_at_random().await;
    }
}

/// *Fencing*, when the flip is committed already.
///
/// # Errors
/// When shard 0 does not answer.
pub async fn decided(work: &Work<'_>) -> Result<Next, WorkflowError> {
    task::advance(work.lead, work.task.id(), Event::FenceHeld, &Value::Null).await?;
    Ok(Next::Advance(Event::Decided, Value::Null))
}

fn not_had(blocked: &str) -> Next {
    let error = format!("the gates could not be had: {blocked}");
    Next::Advance(Event::FenceFailed, json!({ "error": error }))
}

enum Attempt {
    Over(Next),
    /// Who was in the way.
    Blocked(String),
}

async fn attempt(
    work: &Work<'_>,
    sessions: &Sessions,
    lock_timeout_ms: u32,
) -> Result<Attempt, WorkflowError> {
    let flip = flip::prepare_plan(work, sessions).await?;
    let started = Instant::now();
    let Err(error) = take(&sessions.gates, lock_timeout_ms).await else {
        let next = fenced(work, sessions, &flip, started).await?;
        return Ok(Attempt::Over(next));
    };
    release(&sessions.gates).await;
    if !error.is_lock_conflict() {
        return Err(error);
    }
    // Whoever was in the way for so long is still there.
    let holders = look::named(&look::holders(&sessions.gates).await?);
    let task_id = work.task.id();
    tracing::info!(%task_id, lock_timeout_ms, %holders, "gate is held");
    Ok(Attempt::Blocked(holders))
}

/// *Deciding*, found by somebody who did not begin it.
///
/// # Errors
/// When the new shard does not answer: nobody may decide then.
pub async fn decide(work: &Work<'_>) -> Result<Next, WorkflowError> {
    Ok(match recover::settle(work).await? {
        Settled::Committed => Next::Advance(Event::Decided, json!({ "recovered": true })),
        Settled::RolledBack => Next::Advance(Event::RolledBack, json!({ "recovered": true })),
    })
}

enum Looked {
    Clear,
    Wait(String),
    Over(Next),
}

async fn look_first(work: &Work<'_>, sessions: &Sessions) -> Result<Looked, WorkflowError> {
    let now = task::read(work.lead, work.task.id()).await?;
    if now.stopping || now.state()? != State::Fencing {
        // The next round reads the row again and does what it says.
        return Ok(Looked::Over(Next::Wait(Duration::ZERO)));
    }
    let stream = match data::watch(work).await? {
        Watched::Over(next) => return Ok(Looked::Over(next)),
        Watched::Alive(stream) => stream,
    };
    if !stream.is_close() {
        return Ok(Looked::Wait(format!(
            "the new shard is {} bytes behind",
            stream.lag_bytes
        )));
    }
    let holders = look::holders(&sessions.gates).await?;
    Ok(look::blocker(&holders).map_or(Looked::Clear, Looked::Wait))
}

/// All gates are held from here on, until the flip is prepared or they are released.
async fn fenced(
    work: &Work<'_>,
    sessions: &Sessions,
    flip: &Flip,
    started: Instant,
) -> Result<Next, WorkflowError> {
    let proof = proved(work, sessions, flip);
    let proof = within(MARKER_LIMIT + ANSWER, "waiting for the marker", proof).await;
    if !matches!(proof, Ok(Proof::Equal)) {
        release(&sessions.gates).await;
    }
    match proof? {
        Proof::Equal => {}
        Proof::Late => {
            // With the gates open: the stream needs a moment for itself.
            sleep(MARKER_LIMIT).await;
            let error = format!(
                "the marker did not reach the new shard within {} ms",
                MARKER_LIMIT.as_millis()
            );
            return Ok(Next::Advance(Event::FenceFailed, json!({ "error": error })));
        }
        Proof::Changed => {
            let error = "the omni tables' definitions changed since the copy began";
            return Ok(Next::Advance(Event::SlotLost, json!({ "error": error })));
        }
    }
    flip::flip(work, sessions, flip, started).await
}

enum Proof {
    /// The new shard has all of shard 0's omni rows, in the same tables.
    Equal,
    /// The marker is not there yet.
    Late,
    /// The copy is of other tables than shard 0 has now.
    Changed,
}

async fn proved(work: &Work<'_>, sessions: &Sessions, flip: &Flip) -> Result<Proof, WorkflowError> {
    let Some(first) = sessions.gates.first() else {
        return Err(WorkflowError::Wrong("no shard serves".into()));
    };
    let proof = tokio::try_join!(marker_arrives(work, &flip.gid), schema_is_same(work, first))?;
    Ok(match proof {
        (_, false) => Proof::Changed,
        (false, true) => Proof::Late,
        (true, true) => Proof::Equal,
    })
}

/// The marker goes through a session of its own: it must be committed to be sent.
async fn marker_arrives(work: &Work<'_>, gid: &FlipGid) -> Result<bool, WorkflowError> {
    let (task, attempt, value) = (gid.task, gid.attempt, literal(&gid.to_string()));
    let write = format!(
        "INSERT INTO pgdog.marker (task_id, attempt, value, written_at) \
         VALUES ({task}, {attempt}, {value}, now()) ON CONFLICT (task_id, attempt) \
         DO UPDATE SET value = excluded.value, written_at = excluded.written_at"
    );
    let read = format!(
        "SELECT FROM pgdog.marker WHERE task_id = {task} AND attempt = {attempt} \
         AND value = {value}"
    );
    let deadline = Instant::now() + MARKER_LIMIT;
    work.lead.batch("writing the marker", &write).await?;
    loop {
        if work.target.counted("waiting for the marker", &read).await? == [1] {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        sleep(MARKER_POLL).await;
    }
}

/// Compares the fingerprint and carries the sequences over. setval is not transactional: harmless
/// if the flip is rolled back, the next try sets them again.
async fn schema_is_same(work: &Work<'_>, first: &Node) -> Result<bool, WorkflowError> {
    let fingerprint = schema::fingerprint(first).await?;
    if work.task.fingerprint.as_deref() != Some(&fingerprint) {
        return Ok(false);
    }
    const SQL: &str = "SELECT schemaname::text, sequencename::text, last_value FROM pg_sequences \
         WHERE last_value IS NOT NULL AND schemaname <> 'pgdog'";
    let rows = first.rows("reading sequences", SQL, &[]).await?;
    let set = rows.iter().map(|row| {
        let name = format!("{}.{}", ident(row.get(0)), ident(row.get(1)));
        // A sequence that is missing there gives NULL, and nothing is set.
        format!(
            "setval(to_regclass({}), {})",
            literal(&name),
            row.get::<_, i64>(2)
        )
    });
    let set: Vec<String> = set.collect();
    // A target list holds 1664 columns at most.
    for part in set.chunks(1000) {
        let sql = format!("SELECT {}", part.join(", "));
        work.target.batch("setting sequences", &sql).await?;
    }
    Ok(true)
}
