//! *Syncing schema* and *indexing*: shard 0's schema, restored in two parts.
//!
//! Each part is one transaction on the new shard that also leaves a note, so schema and note cannot
//! disagree, and a part that died midway left nothing behind. Between the parts the DDL freeze
//! keeps the schema; the fingerprint proves it.

use std::collections::HashSet;
use std::time::Duration;

use pgdog_core::workflow::Event;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::error::WorkflowError;
use super::facts;
use super::listing::{self, Lists};
use super::node::{Node, ident, literal};
use super::task;
use super::tools::Dump;
use super::work::{Next, Work};

/// Notes on the new shard are rows of `pgdog.marker` with an attempt below zero: shard 0 never
/// sends such rows.
const EARLY_NOTE: i32 = -1;
const LATE_NOTE: i32 = -2;

/// How long the apply worker may take to leave after `DISABLE`.
const WORKER_LEAVES: Duration = Duration::from_secs(30);

/// Types, tables, keys, functions, grants: all that the copy needs.
///
/// # Errors
/// When a node or a tool fails; nothing is left behind then.
pub async fn early(work: &Work<'_>) -> Result<Next, WorkflowError> {
    if !noted(work, EARLY_NOTE).await? {
        let before = fingerprint(work.lead).await?;
        let (dump, lists) = dump(work).await?;
        let schemas = script(&dump, &lists.schemas).await?;
        let early = script(&dump, &lists.early).await?;
        let extensions = create_extensions(work).await?;
        if fingerprint(work.lead).await? != before {
            return Err(changed("while it was dumped"));
        }
        task::progress(work.lead, work.task.id(), &json!({ "fingerprint": before })).await?;
        let session = work.another_target().await?;
        let note = note(work, EARLY_NOTE);
        let declarations = declarations(work.lead).await?;
        let sql = format!(
            "BEGIN;\n{schemas}\n{extensions}\n{early}\n{};\n\
             SELECT pgdog.provision_node({shard});\n{note};\nCOMMIT",
            redeclare(&declarations),
            shard = work.shard
        );
        session.batch("restoring the schema", &sql).await?;
    }
    Ok(Next::Advance(Event::SchemaSynced, Value::Null))
}

/// Foreign keys, triggers, plain indexes, policies: all that would disturb the copy. The apply
/// worker is away meanwhile: it would deadlock with us.
///
/// # Errors
/// When a node or a tool fails; the step can be repeated.
pub async fn late(work: &Work<'_>) -> Result<Next, WorkflowError> {
    let stream = ident(&work.task.stream_name());
    if !noted(work, LATE_NOTE).await? {
        let (dump, lists) = dump(work).await?;
        let late = script(&dump, &lists.late).await?;
        if work.task.fingerprint.as_deref() != Some(&fingerprint(work.lead).await?) {
            return Err(changed("since it was restored"));
        }
        let disable = format!("ALTER SUBSCRIPTION {stream} DISABLE");
        work.target
            .batch("pausing the subscription", &disable)
            .await?;
        wait_until_idle(work).await?;
        let session = work.another_target().await?;
        let sql = format!(
            "BEGIN;\n{late}\nSELECT pgdog.follow_lookups();\n{};\nCOMMIT",
            note(work, LATE_NOTE)
        );
        session
            .batch("restoring indexes and constraints", &sql)
            .await?;
    }
    for table in facts::tables(work.lead).await? {
        let sql = format!("ANALYZE {}.{}", ident(&table.schema), ident(&table.name));
        work.target.batch("analyzing", &sql).await?;
    }
    let enable = format!("ALTER SUBSCRIPTION {stream} ENABLE");
    work.target
        .batch("resuming the subscription", &enable)
        .await?;
    Ok(Next::Advance(Event::Indexed, Value::Null))
}

/// Fingerprint of the omni tables' columns and keys.
///
/// # Errors
/// When the node does not answer.
pub async fn fingerprint(node: &Node) -> Result<String, WorkflowError> {
    let sql = "SELECT pgdog.catalog_fingerprint()";
    Ok(node
        .one("taking the catalog's fingerprint", sql, &[])
        .await?
        .get(0))
}

/// The declared tables of a node, as two JSON texts: sharded, omnisharded.
async fn declarations(node: &Node) -> Result<(String, String), WorkflowError> {
    let row = node.one("reading declarations", DECLARATIONS, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

async fn dump(work: &Work<'_>) -> Result<(Dump, Lists), WorkflowError> {
    const SQL: &str = "
        SELECT n.nspname || ' ' || c.relname FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE i.indisreplident
           OR EXISTS (SELECT FROM pg_constraint k
                      WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))";
    let rows = work.lead.rows("listing indexes", SQL, &[]).await?;
    let early_indexes: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let sql = "SELECT current_setting('server_version_num')::int / 10000";
    let major = work.lead.one("reading the version", sql, &[]).await?.get(0);
    let dump = Dump::take(work.site, work.site.first()?, major).await?;
    let lists = listing::split(&dump.listing().await?, &early_indexes);
    Ok((dump, lists))
}

async fn script(dump: &Dump, entries: &str) -> Result<String, WorkflowError> {
    Ok(listing::without_restrict(&dump.script(entries).await?))
}

/// `CREATE EXTENSION` in shard 0's versions and schemas: a dump names no version.
async fn create_extensions(work: &Work<'_>) -> Result<String, WorkflowError> {
    const SQL: &str = "SELECT e.extname::text, e.extversion, n.nspname::text FROM pg_extension e \
         JOIN pg_namespace n ON n.oid = e.extnamespace \
         WHERE e.extname NOT IN ('pgdog', 'plpgsql') ORDER BY e.oid";
    let rows = work.lead.rows("listing extensions", SQL, &[]).await?;
    let create = rows.iter().map(|row| {
        let (name, version, schema): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        format!(
            "CREATE EXTENSION IF NOT EXISTS {} WITH SCHEMA {} VERSION {};\n",
            ident(name),
            ident(schema),
            literal(version)
        )
    });
    Ok(create.collect())
}

async fn wait_until_idle(work: &Work<'_>) -> Result<(), WorkflowError> {
    const SQL: &str = "SELECT count(*) FROM pg_stat_subscription \
         WHERE subname = $1 AND pid IS NOT NULL";
    let deadline = Instant::now() + WORKER_LEAVES;
    let name = work.task.stream_name();
    loop {
        let row = work
            .target
            .one("waiting for the apply worker", SQL, &[&name])
            .await?;
        if row.get::<_, i64>(0) == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            let text = format!("the apply worker of {name} does not end");
            return Err(WorkflowError::Wrong(text));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn noted(work: &Work<'_>, note: i32) -> Result<bool, WorkflowError> {
    const SQL: &str = "SELECT 1 FROM pgdog.marker WHERE task_id = $1 AND attempt = $2";
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&work.task.id().0, &note];
    Ok(!work
        .target
        .rows("reading notes", SQL, &params)
        .await?
        .is_empty())
}

fn note(work: &Work<'_>, note: i32) -> String {
    let what = match note {
        EARLY_NOTE => "schema restored",
        _ => "indexes restored",
    };
    format!(
        "INSERT INTO pgdog.marker (task_id, attempt, value, written_at) \
         VALUES ({}, {note}, '{what}', pg_catalog.now())",
        work.task.id()
    )
}

fn redeclare((sharded, omnisharded): &(String, String)) -> String {
    let copy = |table: &str, rows: &str| {
        format!(
            "DELETE FROM pgdog.{table}; INSERT INTO pgdog.{table} \
             SELECT * FROM pg_catalog.jsonb_populate_recordset(NULL::pgdog.{table}, {}::jsonb)",
            literal(rows)
        )
    };
    format!(
        "{}; {}",
        copy("sharded_tables", sharded),
        copy("omnisharded_tables", omnisharded)
    )
}

fn changed(when: &str) -> WorkflowError {
    WorkflowError::Wrong(format!(
        "the schema of the omni tables on shard 0 changed {when}"
    ))
}

const DECLARATIONS: &str = "
SELECT (SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.schema_name, s.table_name, s.column_name),
                        '[]')::text FROM pgdog.sharded_tables s),
       (SELECT coalesce(jsonb_agg(to_jsonb(o) ORDER BY o.schema_name, o.table_name),
                        '[]')::text FROM pgdog.omnisharded_tables o)";
