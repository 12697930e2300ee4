//! *Activating* and *cleaning* after the flip, and undoing before it. Every step is "if exists".

use std::time::Duration;

use pgdog_core::ids::{ShardNumber, TaskId};
use pgdog_core::workflow::{Event, State};
use serde_json::{Value, json};
use tokio_postgres::types::ToSql;

use super::error::WorkflowError;
use super::node::{Node, ident, literal};
use super::recover::{self, Settled};
use super::work::{Next, Work};
use super::{facts, fence};

/// *Activating*: every shard has committed the flip, or commits it now.
///
/// # Errors
/// When a shard does not answer; repeated for ever.
pub async fn activate(work: &Work<'_>) -> Result<Next, WorkflowError> {
    if recover::settle(work).await? == Settled::RolledBack {
        let text = format!("shard {} no longer says that it serves", work.shard);
        return Err(WorkflowError::Wrong(text));
    }
    let Some(version) = recover::serving_as(work.target, work.shard).await? else {
        return Ok(Next::Wait(Duration::from_secs(1)));
    };
    for (number, node) in (0u16..).zip(work.old_shards().await?) {
        let have = recover::serving_as(&node, ShardNumber(number)).await?;
        if have < Some(version) {
            repeat_flip(work, &node, version.0).await?;
        }
    }
    Ok(Next::Advance(Event::Activated, Value::Null))
}

/// *Cleaning*: nothing is left but the task's row.
///
/// # Errors
/// When a shard does not answer; repeated for ever.
pub async fn clean(work: &Work<'_>) -> Result<Next, WorkflowError> {
    drop_stream(work).await?;
    for node in work.old_shards().await? {
        thaw(&node, work.task.id()).await?;
    }
    let own = format!(
        "DELETE FROM pgdog.marker WHERE task_id = {}",
        work.task.id()
    );
    work.lead.batch("removing markers", &own).await?;
    work.target
        .batch("removing markers", "DELETE FROM pgdog.marker")
        .await?;
    Ok(Next::Advance(Event::Cleaned, Value::Null))
}

/// Takes back everything that the task has made. Only before the point of no return.
///
/// # Errors
/// When a shard does not answer; repeated until it does.
pub async fn undo(work: &Work<'_>) -> Result<Next, WorkflowError> {
    // A frozen coordinator's PREPARE may have come through since; nothing can be dropped under it.
    if has_extension(work.target).await? && recover::settle(work).await? == Settled::Committed {
        if work.task.state()? == State::Fencing {
            return fence::decided(work).await;
        }
        let text = format!("shard {} serves already", work.shard);
        return Err(WorkflowError::Wrong(text));
    }
    drop_stream(work).await?;
    empty_target(work).await?;
    for node in work.old_shards().await? {
        thaw(&node, work.task.id()).await?;
    }
    let own = format!(
        "DELETE FROM pgdog.marker WHERE task_id = {}",
        work.task.id()
    );
    work.lead.batch("removing markers", &own).await?;
    let left = facts::contents(work.target).await?;
    let detail = match left.is_empty() {
        true => Value::Null,
        false => json!({ "error": format!("left on the new shard: {}", left.join(", ")) }),
    };
    Ok(Next::Advance(Event::Undone, detail))
}

/// As [`undo`], when the new shard does not answer: the slot on shard 0 must not keep WAL for ever.
///
/// # Errors
/// When an old shard does not answer, or somebody has prepared a flip: then only the new shard can
/// tell how it ended.
pub async fn undo_without_target(
    work_lead: &Node,
    old: &[Node],
    task: &super::task::Task,
    database: &str,
) -> Result<Next, WorkflowError> {
    for node in old {
        if let Some(gid) = recover::flips(node, task.id()).await?.first() {
            let text = format!(
                "{gid} is prepared on {}; the new shard decides",
                node.name()
            );
            return Err(WorkflowError::Wrong(text));
        }
    }
    let slot = task.slot_name(database);
    // Which subscription it had cannot be asked: all that the target has of this database.
    let sysid = task.target_sysid.as_deref();
    let copies = sysid.map(|sysid| format!("^pg_\\d+_sync_\\d+_{sysid}$"));
    drop_slots(work_lead, &slot, copies.as_deref()).await?;
    drop_publication(work_lead, &task.stream_name()).await?;
    for node in old {
        thaw(node, task.id()).await?;
    }
    let error = "the new shard did not answer and was not emptied";
    Ok(Next::Advance(Event::Undone, json!({ "error": error })))
}

/// Drops the slot of a task on shard 0 and those of its table copies, whose names are told by a
/// regular expression. Only slots of this database: others have tasks and subscriptions, too.
///
/// # Errors
/// When shard 0 does not answer, or a slot is still in use.
pub async fn drop_slots(
    lead: &Node,
    slot: &str,
    copies: Option<&str>,
) -> Result<(), WorkflowError> {
    const END: &str = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots \
         WHERE active_pid IS NOT NULL AND database = current_database() \
           AND (slot_name = $1 OR slot_name ~ $2)";
    const DROP: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
         WHERE database = current_database() AND (slot_name = $1 OR slot_name ~ $2)";
    let copies = copies.unwrap_or("^$");
    let params: [&(dyn ToSql + Sync); 2] = [&slot, &copies];
    lead.rows("ending the slot's sender", END, &params).await?;
    lead.rows("dropping the slot", DROP, &params).await?;
    Ok(())
}

async fn drop_stream(work: &Work<'_>) -> Result<(), WorkflowError> {
    let name = work.task.stream_name();
    let slot = work.task.slot_name(&work.site.database);
    let copies = match subscription(work.target, &name).await? {
        None => None,
        Some(oid) => {
            // Table copies use slots named pg_<subscription>_sync_<table>_<system identifier>.
            let copies = format!("^pg_{oid}_sync_\\d+_\\d+$");
            // Without a slot of its own it can be dropped whatever state shard 0 is in.
            let stream = ident(&name);
            let (disable, let_go, drop) = (
                format!("ALTER SUBSCRIPTION {stream} DISABLE"),
                format!("ALTER SUBSCRIPTION {stream} SET (slot_name = NONE)"),
                format!("DROP SUBSCRIPTION {stream}"),
            );
            let target = work.target;
            target.batch("stopping the subscription", &disable).await?;
            target.batch("letting go of the slot", &let_go).await?;
            // As long as it is there, it tells whose slots these are.
            drop_slots(work.lead, &slot, Some(&copies)).await?;
            target.batch("dropping the subscription", &drop).await?;
            Some(copies)
        }
    };
    drop_slots(work.lead, &slot, copies.as_deref()).await?;
    drop_publication(work.lead, &name).await
}

/// OID of a task's subscription on the new shard, if it is there.
async fn subscription(target: &Node, name: &str) -> Result<Option<u32>, WorkflowError> {
    const SQL: &str = "SELECT oid FROM pg_subscription WHERE subname = $1 \
         AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let rows = target
        .rows("looking for the subscription", SQL, &[&name])
        .await?;
    Ok(rows.first().map(|row| row.get(0)))
}

async fn drop_publication(lead: &Node, name: &str) -> Result<(), WorkflowError> {
    let sql = format!("DROP PUBLICATION IF EXISTS {}", ident(name));
    lead.batch("dropping the publication", &sql).await
}

/// Lifts this task's freeze of definitions.
///
/// # Errors
/// When the node does not answer.
pub async fn thaw(node: &Node, task: TaskId) -> Result<(), WorkflowError> {
    const SQL: &str = "DELETE FROM pgdog.task_intents WHERE task_id = $1";
    node.execute("lifting the freeze", SQL, &[&task.0]).await?;
    Ok(())
}

/// The database was empty when the task began, so whatever is there is the task's. Extensions stay:
/// they do not count as contents.
async fn empty_target(work: &Work<'_>) -> Result<(), WorkflowError> {
    if !has_extension(work.target).await? {
        return Ok(());
    }
    const OURS: &str = "SELECT 1 FROM pgdog.topology WHERE state = 'provisioning' AND shard = $1";
    let shard = i32::from(work.shard.0);
    if work
        .target
        .rows("reading the topology", OURS, &[&shard])
        .await?
        .is_empty()
    {
        // The early schema was never committed: nothing there is ours.
        return Ok(());
    }
    let rows = work.target.rows("listing what to drop", DROPS, &[]).await?;
    let drops: String = rows
        .iter()
        .map(|row| format!("{};\n", row.get::<_, &str>(0)))
        .collect();
    let sql = format!(
        "BEGIN; {drops} DELETE FROM pgdog.sharded_tables; DELETE FROM pgdog.omnisharded_tables; \
         DELETE FROM pgdog.marker; DELETE FROM pgdog.shards; \
         UPDATE pgdog.topology SET state = 'empty', shard = NULL; COMMIT"
    );
    let session = work.another_target().await?;
    session.batch("emptying the new shard", &sql).await
}

/// Whether this database has the extension.
///
/// # Errors
/// When the node does not answer.
pub async fn has_extension(node: &Node) -> Result<bool, WorkflowError> {
    const SQL: &str = "SELECT to_regclass('pgdog.topology') IS NOT NULL";
    Ok(node
        .one("looking for the extension", SQL, &[])
        .await?
        .get(0))
}

/// A failover without a synchronous standby can lose a committed flip on an old shard. The update
/// is repeated there, under its gate.
async fn repeat_flip(work: &Work<'_>, node: &Node, version: u64) -> Result<(), WorkflowError> {
    tracing::warn!(task_id = %work.task.id(), node = node.name(), "repeating a lost flip");
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = '3s'; \
         LOCK TABLE pgdog.gate IN SHARE ROW EXCLUSIVE MODE; \
         UPDATE pgdog.topology SET version = {version}, shards = {shards}, epoch = epoch + 1 \
         WHERE version < {version}; \
         INSERT INTO pgdog.shards (shard, role, host, port, database_name) \
         VALUES ({shard}, 'auto', {host}, {port}, {database}) ON CONFLICT DO NOTHING; COMMIT",
        shards = work.shard.0 + 1,
        shard = work.shard,
        host = literal(&work.address.host),
        port = work.address.port,
        database = literal(&work.address.database),
    );
    let repeated = node.batch("repeating a lost flip", &sql).await;
    if repeated.is_err() {
        // The error to report is the first one; a session that is gone has nothing to roll back.
        let _ = node.batch("rolling back", "ROLLBACK").await;
    }
    repeated
}

// Schemas go with all they hold; in public each thing goes by itself, because the schema's owner,
// grants and extensions stay.
const DROPS: &str = "
WITH of_extension AS (
  SELECT classid, objid FROM pg_depend WHERE deptype = 'e'
)
SELECT format('DROP EVENT TRIGGER IF EXISTS %I', e.evtname) FROM pg_event_trigger e
WHERE (('pg_event_trigger'::regclass, e.oid)) NOT IN (SELECT classid, objid FROM of_extension)
UNION ALL
SELECT format('DROP SCHEMA IF EXISTS %I CASCADE', n.nspname) FROM pg_namespace n
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgdog', 'public')
  AND n.nspname !~ '^pg_(toast|temp)'
  AND (('pg_namespace'::regclass, n.oid)) NOT IN (SELECT classid, objid FROM of_extension)
  AND NOT EXISTS (SELECT FROM pg_extension x WHERE x.extnamespace = n.oid)
UNION ALL
SELECT format('DROP %s IF EXISTS %s CASCADE',
              CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
                             WHEN 'S' THEN 'SEQUENCE' WHEN 'f' THEN 'FOREIGN TABLE'
                             ELSE 'TABLE' END, format('public.%I', c.relname))
FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
  AND (('pg_class'::regclass, c.oid)) NOT IN (SELECT classid, objid FROM of_extension)
UNION ALL
SELECT format('DROP ROUTINE IF EXISTS public.%I(%s) CASCADE', p.proname,
              pg_get_function_identity_arguments(p.oid))
FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND p.prokind IN ('f', 'p')
  AND (('pg_proc'::regclass, p.oid)) NOT IN (SELECT classid, objid FROM of_extension)
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass
                  AND d.objid = p.oid AND d.deptype = 'i')
UNION ALL
SELECT format('DROP TYPE IF EXISTS public.%I CASCADE', t.typname) FROM pg_type t
WHERE t.typnamespace = 'public'::regnamespace AND t.typtype IN ('e', 'd', 'r')
  AND (('pg_type'::regclass, t.oid)) NOT IN (SELECT classid, objid FROM of_extension)
UNION ALL
SELECT format('DROP AGGREGATE IF EXISTS public.%I(%s) CASCADE', p.proname,
              pg_get_function_identity_arguments(p.oid))
FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND p.prokind = 'a'
  AND (('pg_proc'::regclass, p.oid)) NOT IN (SELECT classid, objid FROM of_extension)";
