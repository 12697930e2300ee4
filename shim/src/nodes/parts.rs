//! Parts of two-phase transactions of which this shim is the coordinator, and with which their own
//! connections could not be done.

use std::time::{Duration, Instant};

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::lsn::Lsn;

use super::cluster::Cluster;
use super::control::Session;
use super::gid::SETTLED;
use super::recovery::KEPT_S;
use super::sweep::session;

/// How long a commit that is decided waits for a part whose connection was lost.
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

const HAS_ROW: &str = "SELECT FROM pgdog.two_phase_commits WHERE gid = $1";
const POSITION: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text";

/// What became of one part of a decided transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It is committed, before this position.
    Committed(Lsn),
    /// It was rolled back, or lost by a failover.
    Lost,
    /// It was, and the decider does not know of the decision either.
    Gone,
    /// Nobody answers, or too late: recovery will see.
    Unknown,
}

impl Cluster {
    /// Commits a part of a decided transaction whose own connection could not, or tells what became
    /// of it. Of the decider itself that is the decision, asked for at that moment.
    pub async fn finish_part(
        &self,
        gid: &str,
        shard: ShardNumber,
        (decider, asked): (ShardNumber, Instant),
    ) -> Part {
        let finishing = async {
            loop {
                match finish(self, gid, shard, decider).await {
                    // The decision is not shown for ever.
                    Ok(Part::Gone) if asked.elapsed().as_secs() >= KEPT_S / 2 => {
                        return Part::Unknown;
                    }
                    Ok(part) => return part,
                    Err(fault) => tracing::debug!(%shard, gid, error = %fault.message(),
                        "a decided part is not committed yet"),
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let finished = tokio::time::timeout(LIMIT, finishing).await;
        finished.unwrap_or(Part::Unknown)
    }

    /// Rolls back a part of a transaction that this shim has not decided. False if it may be
    /// committed, or nobody answers.
    pub async fn undo_part(&self, gid: &str, shard: ShardNumber) -> bool {
        let undone = undo(self, gid, shard).await;
        undone.unwrap_or_else(|fault| {
            tracing::debug!(%shard, gid, error = %fault.message(), "a part is not rolled back yet");
            false
        })
    }
}

async fn finish(
    cluster: &Cluster,
    gid: &str,
    shard: ShardNumber,
    decider: ShardNumber,
) -> Result<Part, Fault> {
    let part = session(cluster, shard).await?;
    match part.batch(&format!("COMMIT PREPARED '{gid}'")).await {
        Ok(()) => return end_of(&part).await,
        Err(fault) if fault.sqlstate() == "42704" => {}
        Err(fault) => return Err(fault),
    }
    if has_row(&part, gid).await? {
        return end_of(&part).await;
    }
    // Recovery keeps the decider's row for long enough, and purges ours only when all is done.
    let node = session(cluster, decider).await?;
    if has_row(&node, &format!("{gid}{SETTLED}")).await? {
        return end_of(&part).await;
    }
    let decided = has_row(&node, gid).await?;
    Ok(if decided { Part::Lost } else { Part::Gone })
}

async fn undo(cluster: &Cluster, gid: &str, shard: ShardNumber) -> Result<bool, Fault> {
    let part = session(cluster, shard).await?;
    match part.batch(&format!("ROLLBACK PREPARED '{gid}'")).await {
        Ok(()) => Ok(true),
        Err(fault) if fault.sqlstate() == "42704" => Ok(!has_row(&part, gid).await?),
        Err(fault) => Err(fault),
    }
}

async fn has_row(node: &Session, gid: &str) -> Result<bool, Fault> {
    Ok(!node.query(HAS_ROW, &[&gid]).await?.is_empty())
}

/// A position that covers what is committed.
async fn end_of(node: &Session) -> Result<Part, Fault> {
    let rows = node.query(POSITION, &[]).await?;
    let text = rows.first().map_or("", |row| row.get::<_, &str>(0));
    let end: Lsn = text.parse().map_err(|_| Fault::ProtocolViolation {
        why: format!("\"{text}\" is no position"),
    })?;
    Ok(Part::Committed(end.to_replay()))
}
