//! *Validating*: all guards, then the freeze.

use pgdog_core::workflow::Event;
use serde_json::{Value, json};

use super::cleanup;
use super::error::WorkflowError;
use super::facts::{self, Witnesses};
use super::guards::{self, Verdict};
use super::node::{Node, literal};
use super::task;
use super::work::{Next, Work};

/// Asks both ends, judges, and when nothing stands against it freezes definitions on every serving
/// shard and writes down who the two ends are.
///
/// # Errors
/// When a node does not answer; the step can be repeated.
pub async fn validate(work: &Work<'_>) -> Result<Next, WorkflowError> {
    let serving = work.old_shards().await?;
    let witnesses = Witnesses {
        serving: &serving,
        target: work.target,
        publication: work.task.publication.as_deref(),
    };
    let facts = facts::gather(work.site, work.shard, &witnesses).await?;
    let findings = guards::check(&facts);
    for finding in findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Warn)
    {
        tracing::warn!(task_id = %work.task.id(), guard = finding.guard, "{}", finding.reason);
    }
    if let Some(error) = guards::blockers(&findings) {
        // One who died after the freeze may have been luckier with the guards.
        for node in &serving {
            cleanup::thaw(node, work.task.id()).await?;
        }
        return Ok(Next::Advance(
            Event::GuardsFailed,
            json!({ "error": error }),
        ));
    }
    create_extension(work, facts.source.extensions.get("pgdog")).await?;
    for node in &serving {
        freeze(work, node).await?;
    }
    let columns = json!({
        "source_sysid": facts.source.system_identifier,
        "source_timeline": facts.source.timeline,
        "target_sysid": facts.target.system_identifier,
        "target_timeline": facts.target.timeline,
        "tables_total": facts.tables.len(),
        "rows_total": facts.tables.iter().map(|table| table.rows).sum::<i64>(),
        "bytes_total": facts.tables.iter().map(|table| table.bytes).sum::<i64>(),
    });
    task::progress(work.lead, work.task.id(), &columns).await?;
    Ok(Next::Advance(Event::GuardsPassed, Value::Null))
}

async fn create_extension(work: &Work<'_>, version: Option<&String>) -> Result<(), WorkflowError> {
    let version = version
        .map(|v| format!(" VERSION {}", literal(v)))
        .unwrap_or_default();
    let sql = format!("CREATE EXTENSION IF NOT EXISTS pgdog{version}");
    work.target.batch("creating the extension", &sql).await
}

/// The gate is taken for a moment so that a change of placement that has already looked for a
/// freeze is finished before this one stands.
async fn freeze(work: &Work<'_>, node: &Node) -> Result<(), WorkflowError> {
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = '3s'; \
         LOCK TABLE pgdog.gate IN SHARE ROW EXCLUSIVE MODE; \
         INSERT INTO pgdog.task_intents (task_id, kind, shard) VALUES ({}, 'add_shard', {}) \
         ON CONFLICT DO NOTHING; COMMIT",
        work.task.id(),
        work.shard
    );
    let frozen = node.batch("freezing definitions", &sql).await;
    if frozen.is_err() {
        // The error to report is the first one; a session that is gone has nothing to roll back.
        let _ = node.batch("rolling back", "ROLLBACK").await;
    }
    frozen
}
