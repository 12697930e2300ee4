//! *Syncing data*, *replicating*, *awaiting cutover*: native logical replication does the work, we
//! start it and watch it.

use std::time::Duration;

use pgdog_core::workflow::Event;
use serde_json::{Value, json};
use tokio_postgres::types::ToSql;

use super::error::WorkflowError;
use super::facts::{self, TableFacts};
use super::node::{conninfo, ident, literal};
use super::task;
use super::work::{Next, Work};

/// Lag under which the fence may be tried, in bytes.
pub const SMALL_LAG_BYTES: i64 = 1 << 20;

const POLL: Duration = Duration::from_millis(250);
/// How long a stream must have survived to be called repaired.
const REPAIR_POLL: Duration = Duration::from_secs(3);
const PARKED_POLL: Duration = Duration::from_millis(500);
const BLIND_POLL: Duration = Duration::from_secs(1);
/// Slot creation waits for every transaction on shard 0's server that has an xid.
const SLOT_TIMEOUT: &str = "15s";

/// Starts publication and subscription where they are missing, then waits for the copy.
///
/// # Errors
/// When a node fails; the step can be repeated.
pub async fn copy(work: &Work<'_>) -> Result<Next, WorkflowError> {
    let tables = facts::tables(work.lead).await?;
    if !subscribed(work).await? {
        publish(work, &tables).await?;
        subscribe(work).await?;
    }
    let stream = match watch(work).await? {
        Watched::Over(next) => return Ok(next),
        Watched::Alive(stream) => stream,
    };
    report_copy(work, &tables).await?;
    if stream.tables_ready == stream.tables {
        return Ok(Next::Advance(Event::DataCopied, Value::Null));
    }
    // Every table's copy makes a slot of its own.
    let error = facts::slot_blockers(work.lead).await?;
    task::progress(work.lead, work.task.id(), &json!({ "error": error })).await?;
    Ok(Next::Wait(POLL))
}

/// Waits until the new shard is close behind shard 0.
///
/// # Errors
/// When a node does not answer.
pub async fn catch_up(work: &Work<'_>) -> Result<Next, WorkflowError> {
    Ok(match watch(work).await? {
        Watched::Over(next) => next,
        Watched::Alive(stream) if stream.is_close() => caught_up(work, &stream).await?,
        Watched::Alive(_) => Next::Wait(POLL),
    })
}

/// Nobody is asked before a cutover by itself, so it waits for what CUTOVER would refuse.
async fn caught_up(work: &Work<'_>, stream: &Stream) -> Result<Next, WorkflowError> {
    if work.task.auto && !work.task.cutover_requested {
        let blind = facts::blind(work.lead, work.shard).await?;
        if !blind.is_empty() {
            let error = format!("the new shard is not reached by {}", blind.join(", "));
            task::progress(work.lead, work.task.id(), &json!({ "error": error })).await?;
            return Ok(Next::Wait(BLIND_POLL));
        }
    }
    let mut detail = json!({ "lag_bytes": stream.lag_bytes });
    if let Some(error) = work.task.error.as_ref().filter(|_| !work.task.auto) {
        // Why the last cutover failed is for whoever asks for the next one.
        detail["error"] = json!(error);
    }
    Ok(Next::Advance(Event::CaughtUp, detail))
}

/// Keeps an eye on the stream until somebody asks for the cutover.
///
/// # Errors
/// When a node does not answer.
pub async fn parked(work: &Work<'_>) -> Result<Next, WorkflowError> {
    Ok(match watch(work).await? {
        Watched::Over(next) => next,
        Watched::Alive(_) if work.task.cutover_requested => {
            Next::Advance(Event::CutoverRequested, Value::Null)
        }
        Watched::Alive(_) => Next::Wait(PARKED_POLL),
    })
}

/// *Broken*: enables the subscription again, now and then. PostgreSQL disables it for a conflict
/// and for a lost connection alike: a restart of shard 0 heals by itself, a conflict disables it at
/// once and waits for a person. What still runs after the pause goes on.
///
/// # Errors
/// When a node does not answer.
pub async fn repaired(work: &Work<'_>) -> Result<Next, WorkflowError> {
    Ok(match watch(work).await? {
        Watched::Over(Next::Advance(Event::ApplyBroken, _)) => {
            let enable = format!(
                "ALTER SUBSCRIPTION {} ENABLE",
                ident(&work.task.stream_name())
            );
            work.target
                .batch("enabling the subscription again", &enable)
                .await?;
            Next::Wait(REPAIR_POLL)
        }
        Watched::Over(next) => next,
        Watched::Alive(stream) if stream.running && stream.tables_ready == stream.tables => {
            Next::Advance(Event::DataCopied, Value::Null)
        }
        Watched::Alive(_) => Next::Wait(REPAIR_POLL),
    })
}

/// The stream as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Whether an apply worker runs.
    pub running: bool,
    /// Tables subscribed to.
    pub tables: i64,
    /// Tables that are copied and caught up.
    pub tables_ready: i64,
    /// How far the new shard is behind shard 0.
    pub lag_bytes: i64,
    /// WAL that shard 0 keeps for us.
    pub retained_wal_bytes: i64,
}

impl Stream {
    /// Whether a fence would be short.
    pub fn is_close(&self) -> bool {
        self.running && self.tables_ready == self.tables && self.lag_bytes < SMALL_LAG_BYTES
    }
}

/// What watching found.
pub enum Watched {
    /// It streams, or will again by itself.
    Alive(Stream),
    /// It never will by itself.
    Over(Next),
}

/// Looks at both ends and reports the lag.
///
/// # Errors
/// When a node does not answer.
pub async fn watch(work: &Work<'_>) -> Result<Watched, WorkflowError> {
    if let Some(why) = moved(work).await? {
        return Ok(Watched::Over(Next::Advance(
            Event::SlotLost,
            json!({ "error": why }),
        )));
    }
    let slot = work.task.slot_name(&work.site.database);
    let stream = work.task.stream_name();
    let Some(row) = work
        .target
        .rows("looking at the subscription", SUBSCRIPTION, &[&stream])
        .await?
        .into_iter()
        .next()
    else {
        let why = format!("subscription {stream} is gone from the new shard");
        return Ok(Watched::Over(Next::Advance(
            Event::SlotLost,
            json!({ "error": why }),
        )));
    };
    if !row.get::<_, bool>("enabled") {
        let why = format!(
            "subscription {stream} was disabled by an error on the new shard ({} on apply, {} on \
             copy); the error is in that server's log",
            row.get::<_, i64>("apply_errors"),
            row.get::<_, i64>("sync_errors")
        );
        return Ok(Watched::Over(Next::Advance(
            Event::ApplyBroken,
            json!({ "error": why }),
        )));
    }
    let received: Option<String> = row.get("latest_end_lsn");
    let params: [&(dyn ToSql + Sync); 2] = [&slot, &received];
    let slots = work.lead.rows("looking at the slot", SLOT, &params).await?;
    let lost = match slots.first() {
        None => Some("is gone".to_owned()),
        Some(slot) => {
            let status: Option<String> = slot.get("wal_status");
            (status.as_deref() == Some("lost")).then(|| "lost the WAL it needs".to_owned())
        }
    };
    if let Some(what) = lost {
        let why = format!("replication slot {slot} on shard 0 {what}");
        return Ok(Watched::Over(Next::Advance(
            Event::SlotLost,
            json!({ "error": why }),
        )));
    }
    let watched = Stream {
        running: row.get("running"),
        tables: row.get("tables"),
        tables_ready: row.get("ready"),
        lag_bytes: slots[0].get("lag_bytes"),
        retained_wal_bytes: slots[0].get("retained_bytes"),
    };
    let columns = json!({
        "lag_bytes": watched.lag_bytes,
        "retained_wal_bytes": watched.retained_wal_bytes,
    });
    task::progress(work.lead, work.task.id(), &columns).await?;
    Ok(Watched::Alive(watched))
}

/// Why the copy cannot be trusted any more: one end was replaced by another server or timeline. A
/// promoted standby may lack rows that the slot counts as delivered, without any error.
async fn moved(work: &Work<'_>) -> Result<Option<String>, WorkflowError> {
    let task = work.task;
    let ends = [
        (
            work.lead,
            "shard 0",
            &task.source_sysid,
            task.source_timeline,
        ),
        (
            work.target,
            "the new shard",
            &task.target_sysid,
            task.target_timeline,
        ),
    ];
    for (node, name, sysid, timeline) in ends {
        let now = facts::identity(node).await?;
        let then = (
            sysid.clone().unwrap_or_default(),
            timeline.unwrap_or_default(),
        );
        if now != then {
            return Ok(Some(format!(
                "{name} was system {} timeline {} when the copy began, now {} timeline {}",
                then.0, then.1, now.0, now.1
            )));
        }
    }
    Ok(None)
}

async fn subscribed(work: &Work<'_>) -> Result<bool, WorkflowError> {
    const SQL: &str = "SELECT 1 FROM pg_subscription WHERE subname = $1 \
         AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let name = work.task.stream_name();
    Ok(!work
        .target
        .rows("looking for the subscription", SQL, &[&name])
        .await?
        .is_empty())
}

/// Our publication: the leaves of the omni tables unless the operator brings his own, and always
/// the marker.
async fn publish(work: &Work<'_>, tables: &[TableFacts]) -> Result<(), WorkflowError> {
    const SQL: &str = "SELECT 1 FROM pg_publication WHERE pubname = $1";
    let name = work.task.stream_name();
    if !work
        .lead
        .rows("looking for the publication", SQL, &[&name])
        .await?
        .is_empty()
    {
        return Ok(());
    }
    let mut members = vec!["pgdog.marker".to_owned()];
    if work.task.publication.is_none() {
        let leaves = tables
            .iter()
            .map(|t| format!("{}.{}", ident(&t.schema), ident(&t.name)));
        members.extend(leaves);
    }
    let sql = format!(
        "CREATE PUBLICATION {} FOR TABLE {}",
        ident(&name),
        members.join(", ")
    );
    work.lead.batch("creating the publication", &sql).await
}

async fn subscribe(work: &Work<'_>) -> Result<(), WorkflowError> {
    if let Some(blockers) = facts::slot_blockers(work.lead).await? {
        return Err(WorkflowError::Wrong(blockers));
    }
    let (site, name) = (work.site, work.task.stream_name());
    let slot = work.task.slot_name(&site.database);
    // Left by one who died between making the slot and making the subscription.
    super::cleanup::drop_slots(work.lead, &slot, None).await?;
    let source = site.first()?;
    let port = source.port.to_string();
    let mut pairs = vec![
        ("host", source.host.as_str()),
        ("port", &port),
        ("dbname", &source.database),
        ("user", &site.user),
        ("application_name", &slot),
    ];
    // The files of roots are the shim's: the target knows none of them.
    if site.dialer.must_encrypt() {
        pairs.push(("sslmode", "require"));
    }
    if let Some(password) = &site.password {
        pairs.push(("password", password));
    }
    let publications: Vec<String> = work
        .task
        .publication
        .iter()
        .chain([&name])
        .map(|name| ident(name))
        .collect();
    let sql = format!(
        "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {} WITH (slot_name = {}, \
         disable_on_error = true, streaming = off, two_phase = off, synchronous_commit = off)",
        ident(&name),
        literal(&conninfo(&pairs)),
        publications.join(", "),
        literal(&slot)
    );
    let session = work.another_target().await?;
    // The statement holds a password: it must not reach the server's log.
    let quiet = format!(
        "SET log_statement = 'none'; SET log_min_duration_statement = -1; \
         SET log_min_error_statement = 'panic'; SET statement_timeout = '{SLOT_TIMEOUT}'"
    );
    session.batch("preparing the subscription", &quiet).await?;
    session.batch("creating the subscription", &sql).await
}

async fn report_copy(work: &Work<'_>, tables: &[TableFacts]) -> Result<(), WorkflowError> {
    let rows = work
        .target
        .rows(
            "reading the copy's progress",
            COPY_PROGRESS,
            &[&work.task.stream_name()],
        )
        .await?;
    let (mut done, mut rows_done, mut bytes_done) = (0i32, 0i64, 0i64);
    for row in &rows {
        let (schema, name): (&str, &str) = (row.get(0), row.get(1));
        let Some(table) = tables.iter().find(|t| t.schema == schema && t.name == name) else {
            continue;
        };
        let tuples: i64 = row.get(3);
        let complete: bool = row.get(2);
        // Bytes that COPY counts are text; the table's own size in the same proportion tells more.
        let share = match complete {
            true => 1.0,
            false => (tuples as f64 / table.rows.max(1) as f64).min(1.0),
        };
        done += i32::from(complete);
        rows_done += if complete { table.rows } else { tuples };
        bytes_done += (table.bytes as f64 * share) as i64;
    }
    let columns = json!({
        "tables_total": tables.len(),
        "tables_done": done,
        "rows_total": tables.iter().map(|t| t.rows).sum::<i64>(),
        "rows_done": rows_done,
        "bytes_total": tables.iter().map(|t| t.bytes).sum::<i64>(),
        "bytes_done": bytes_done,
    });
    task::progress(work.lead, work.task.id(), &columns).await
}

const SUBSCRIPTION: &str = "
SELECT s.subenabled AS enabled,
       EXISTS (SELECT FROM pg_stat_subscription t
               WHERE t.subid = s.oid AND t.relid IS NULL AND t.pid IS NOT NULL) AS running,
       (SELECT max(t.latest_end_lsn)::text FROM pg_stat_subscription t
        WHERE t.subid = s.oid AND t.relid IS NULL) AS latest_end_lsn,
       (SELECT count(*) FROM pg_subscription_rel r WHERE r.srsubid = s.oid) AS tables,
       (SELECT count(*) FROM pg_subscription_rel r
        WHERE r.srsubid = s.oid AND r.srsubstate = 'r') AS ready,
       coalesce(e.apply_error_count, 0) AS apply_errors,
       coalesce(e.sync_error_count, 0) AS sync_errors
FROM pg_subscription s LEFT JOIN pg_stat_subscription_stats e ON e.subid = s.oid
WHERE s.subname = $1
  AND s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())";

// The worker reports as confirmed only what it has flushed, up to half a second late; what it says
// to have applied is nearer to the truth, and the marker under the fence proves it.
const SLOT: &str = "
SELECT wal_status,
       greatest(pg_wal_lsn_diff(pg_current_wal_insert_lsn(),
                                greatest(confirmed_flush_lsn, $2::text::pg_lsn)), 0)::bigint
         AS lag_bytes,
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint AS retained_bytes
FROM pg_replication_slots WHERE slot_name = $1";

const COPY_PROGRESS: &str = "
SELECT n.nspname::text, c.relname::text, r.srsubstate IN ('f', 's', 'r') AS complete,
       coalesce(p.tuples_processed, 0)::bigint
FROM pg_subscription s
JOIN pg_subscription_rel r ON r.srsubid = s.oid
JOIN pg_class c ON c.oid = r.srrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_progress_copy p ON p.relid = c.oid AND p.command = 'COPY FROM'
WHERE s.subname = $1";
