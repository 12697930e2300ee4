//! Who committed? The rule by which anybody finishes a flip that somebody else began.
//!
//! The prepared transaction on the *new* shard is the decider: COMMIT and ROLLBACK PREPARED
//! of one gid exclude each other, so whoever is first decides, also against a coordinator that was
//! only frozen. The old shards are listed *before* the new one is looked at: a gid seen there was
//! prepared after the one on the new shard, so what the new shard says covers it.

use futures_util::future::join_all;
use pgdog_core::ids::{ShardNumber, TaskId, TopologyVersion};
use pgdog_core::workflow::State;

use crate::nodes::Address;

use super::error::WorkflowError;
use super::gid::FlipGid;
use super::node::{Node, literal};
use super::work::Work;

/// How a flip ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The new shard serves.
    Committed,
    /// It does not, and nothing is prepared anywhere.
    RolledBack,
}

/// What the new shard says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewShard {
    /// Its topology version when it serves.
    pub serving: Option<TopologyVersion>,
    /// Flips of this task that are prepared there.
    pub prepared: Vec<FlipGid>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Commit these where they are left.
    Commit(Vec<(ShardNumber, FlipGid)>),
    /// Roll this back on the new shard, then look at everything again.
    Decide(FlipGid),
    /// Roll these back where they are left.
    RollBack(Vec<(ShardNumber, FlipGid)>),
    /// Commit this on the new shard, which has lost the decision in a failover, then look at
    /// everything again.
    Confirm(FlipGid),
    /// The new shard has lost its part of what was decided: nobody may end the others' parts.
    Lost,
}

/// The rule. `left` was read before `new`; `decided` is the attempt that is on record as committed.
pub fn judge(left: Vec<(ShardNumber, FlipGid)>, new: &NewShard, decided: Option<i32>) -> Verdict {
    if let Some(version) = new.serving {
        return Verdict::Commit(
            left.into_iter()
                .filter(|(_, g)| g.version <= version)
                .collect(),
        );
    }
    let mut prepared = new.prepared.iter();
    match decided {
        Some(attempt) => {
            let own = prepared.find(|gid| gid.attempt == attempt);
            own.map_or(Verdict::Lost, |gid| Verdict::Confirm(*gid))
        }
        None => prepared
            .next()
            .map_or(Verdict::RollBack(left), |gid| Verdict::Decide(*gid)),
    }
}

/// Applies the rule until nothing is left to decide. Old shards that do not answer are passed over
/// first and reported at the end: the gates of the others open meanwhile.
///
/// # Errors
/// When the new shard does not answer (nobody may decide then), or an old one did not.
pub async fn settle(work: &Work<'_>) -> Result<Settled, WorkflowError> {
    let task = work.task.id();
    let is_decided = matches!(work.task.state()?, State::Activating | State::Cleaning);
    let decided = is_decided.then(|| work.task.attempt());
    loop {
        let mut old = Vec::new();
        let mut missing = None;
        let mut left = Vec::new();
        for (number, address) in work.site.old_shards(work.shard).iter().enumerate() {
            let shard = ShardNumber(u16::try_from(number).unwrap_or(u16::MAX));
            match flips_on(work, address).await {
                Ok((node, gids)) => {
                    left.extend(gids.into_iter().map(|gid| (shard, gid)));
                    old.push((shard, node));
                }
                Err(error) => missing = Some(error),
            }
        }
        let new = NewShard {
            serving: serving_as(work.target, work.shard).await?,
            prepared: flips(work.target, task).await?,
        };
        let settled = match judge(left, &new, decided) {
            Verdict::Confirm(gid) => {
                tracing::warn!(task_id = %task, %gid, "committing the flip on the new shard again");
                finish(work.target, gid, Ending::Commit).await?;
                continue;
            }
            Verdict::Lost => {
                let text = format!(
                    "shard {} has lost in a failover that it serves: the flip is committed on \
                     other shards, and it must be restored from a server that has it",
                    work.shard
                );
                return Err(WorkflowError::Wrong(text));
            }
            Verdict::Decide(gid) => {
                tracing::info!(task_id = %task, %gid, "rolling back the flip on the new shard");
                finish(work.target, gid, Ending::RollBack).await?;
                continue;
            }
            Verdict::Commit(gids) => {
                finish_all(&old, &gids, Ending::Commit).await?;
                Settled::Committed
            }
            Verdict::RollBack(gids) => {
                finish_all(&old, &gids, Ending::RollBack).await?;
                Settled::RolledBack
            }
        };
        return missing.map_or(Ok(settled), Err);
    }
}

/// How to end a prepared transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `COMMIT PREPARED`
    Commit,
    /// `ROLLBACK PREPARED`
    RollBack,
}

/// Ends one prepared transaction. That somebody else has ended it already is no error: what he did
/// is seen when one looks again.
///
/// # Errors
/// When the node does not answer.
pub async fn finish(node: &Node, gid: FlipGid, ending: Ending) -> Result<(), WorkflowError> {
    let verb = match ending {
        Ending::Commit => "COMMIT PREPARED",
        Ending::RollBack => "ROLLBACK PREPARED",
    };
    let sql = format!("{verb} {}", literal(&gid.to_string()));
    match node.batch("finishing the flip", &sql).await {
        Err(error) if !error.is_missing() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The version with which this node serves as that shard; none while it does not.
///
/// # Errors
/// When the node does not answer.
pub async fn serving_as(
    node: &Node,
    shard: ShardNumber,
) -> Result<Option<TopologyVersion>, WorkflowError> {
    const SQL: &str = "SELECT version FROM pgdog.topology WHERE state = 'serving' AND shard = $1";
    let rows = node
        .rows("reading the topology", SQL, &[&i32::from(shard.0)])
        .await?;
    Ok(rows
        .first()
        .map(|row| TopologyVersion(row.get::<_, i64>(0).unsigned_abs())))
}

/// Flips of this task that are prepared in this node's database.
///
/// # Errors
/// When the node does not answer.
pub async fn flips(node: &Node, task: TaskId) -> Result<Vec<FlipGid>, WorkflowError> {
    const SQL: &str = "SELECT gid::text FROM pg_prepared_xacts WHERE database = current_database()";
    let rows = node.rows("listing prepared transactions", SQL, &[]).await?;
    let gids = rows
        .iter()
        .filter_map(|row| row.get::<_, &str>(0).parse::<FlipGid>().ok());
    Ok(gids.filter(|gid| gid.task == task).collect())
}

async fn flips_on(
    work: &Work<'_>,
    address: &Address,
) -> Result<(Node, Vec<FlipGid>), WorkflowError> {
    let node = Node::connect(work.site, address, Some(work.task.id())).await?;
    let gids = flips(&node, work.task.id()).await?;
    Ok((node, gids))
}

async fn finish_all(
    nodes: &[(ShardNumber, Node)],
    gids: &[(ShardNumber, FlipGid)],
    ending: Ending,
) -> Result<(), WorkflowError> {
    let work = gids.iter().filter_map(|(shard, gid)| {
        let (_, node) = nodes.iter().find(|(number, _)| number == shard)?;
        Some(finish(node, *gid, ending))
    });
    join_all(work).await.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(attempt: i32) -> FlipGid {
        FlipGid {
            version: TopologyVersion(2),
            task: TaskId(1),
            attempt,
        }
    }

    fn new(serving: Option<u64>, prepared: &[FlipGid]) -> NewShard {
        NewShard {
            serving: serving.map(TopologyVersion),
            prepared: prepared.to_vec(),
        }
    }

    /// What is found after a kill at each step, and the verdict that must follow.
    #[test]
    fn every_crash_point_has_its_verdict() {
        let (zero, one) = ((ShardNumber(0), gid(1)), (ShardNumber(1), gid(1)));
        // Before anything was prepared.
        assert_eq!(
            judge(vec![], &new(None, &[]), None),
            Verdict::RollBack(vec![])
        );
        // Prepared on the new shard only, and on some or all of the others.
        for left in [vec![], vec![zero], vec![zero, one]] {
            assert_eq!(
                judge(left, &new(None, &[gid(1)]), None),
                Verdict::Decide(gid(1))
            );
        }
        // Rolled back on the new shard, left elsewhere.
        assert_eq!(
            judge(vec![zero], &new(None, &[]), None),
            Verdict::RollBack(vec![zero])
        );
        // Committed on the new shard, left elsewhere.
        let left = vec![zero, one];
        assert_eq!(
            judge(left.clone(), &new(Some(2), &[]), None),
            Verdict::Commit(left)
        );
        // Committed everywhere.
        assert_eq!(
            judge(vec![], &new(Some(2), &[]), None),
            Verdict::Commit(vec![])
        );
    }

    #[test]
    fn a_decision_is_never_taken_from_an_old_shard() {
        // All votes are in, yet only the new shard's own row would say "commit".
        let left = vec![(ShardNumber(0), gid(2)), (ShardNumber(1), gid(2))];
        assert_eq!(
            judge(left, &new(None, &[gid(2)]), None),
            Verdict::Decide(gid(2))
        );
    }

    /// A standby of the new shard was promoted that lacks the COMMIT PREPARED, or the PREPARE too.
    #[test]
    fn what_is_on_record_as_decided_is_never_rolled_back() {
        let left = vec![(ShardNumber(1), gid(2))];
        let ask = |new: &NewShard| judge(left.clone(), new, Some(2));
        assert_eq!(ask(&new(None, &[gid(2)])), Verdict::Confirm(gid(2)));
        assert_eq!(ask(&new(None, &[gid(1), gid(2)])), Verdict::Confirm(gid(2)));
        assert_eq!(ask(&new(None, &[gid(1)])), Verdict::Lost);
        assert_eq!(ask(&new(None, &[])), Verdict::Lost);
        assert_eq!(ask(&new(Some(2), &[])), Verdict::Commit(left.clone()));
    }
}
