//! The dry run: every guard, what there is to copy, and nothing written.

use pgdog_core::ids::ShardNumber;

use super::error::WorkflowError;
use super::facts::{self, Witnesses};
use super::guards::{self, Finding, Verdict};
use super::node::Node;
use super::site::Site;

/// Copy rate with the primary key in place, bytes of heap per second. Measured on one small
/// machine: the estimate is an order of magnitude, not a promise.
const COPY_BYTES_PER_S: i64 = 26_000_000;

/// What `PLAN SHARD` answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Every guard, in the order of judging.
    pub findings: Vec<Finding>,
    /// Tables to copy.
    pub tables: usize,
    /// Rows to copy, estimated.
    pub rows: i64,
    /// Bytes to copy.
    pub bytes: i64,
    /// Estimated time of the copy.
    pub copy_s: i64,
}

impl Plan {
    /// Whether `ADD SHARD` would go ahead.
    pub fn is_clear(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.verdict != Verdict::Fail)
    }
}

/// Gathers and judges.
///
/// # Errors
/// When the shard is not declared or a node does not answer.
pub async fn plan(
    site: &Site,
    shard: ShardNumber,
    publication: Option<&str>,
) -> Result<Plan, WorkflowError> {
    let Some(address) = site.new_shard(shard) else {
        return Err(WorkflowError::Wrong(format!(
            "shard {shard} of database \"{}\" is not declared with provisioning = true",
            site.database
        )));
    };
    let target = Node::connect(site, address, None).await?;
    let mut serving = Vec::new();
    for address in site.old_shards(shard) {
        serving.push(Node::connect(site, address, None).await?);
    }
    let witnesses = Witnesses {
        serving: &serving,
        target: &target,
        publication,
    };
    let facts = facts::gather(site, shard, &witnesses).await?;
    let bytes = facts.tables.iter().map(|table| table.bytes).sum::<i64>();
    Ok(Plan {
        findings: guards::check(&facts),
        tables: facts.tables.len(),
        rows: facts.tables.iter().map(|table| table.rows).sum(),
        bytes,
        copy_s: 1 + bytes / COPY_BYTES_PER_S,
    })
}
