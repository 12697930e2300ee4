//! What is remembered of a primary: in one life it stays on one timeline, whatever comes later.

use std::sync::Arc;

use pgdog_core::fault::Fault;
use pgdog_core::floor::{Fork, Lineage};
use pgdog_core::ids::{Incarnation, ShardNumber, Timeline};
use pgdog_core::lsn::Lsn;

use super::cluster::Cluster;
use super::control::Session;
use super::manifest::Seen;
use super::node::{Node, POLL_TIMEOUT};
use super::observed::{Facts, NodeFacts};
use super::topology::Address;

/// A server as primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reign {
    /// Which life of it.
    pub(super) incarnation: Incarnation,
    /// Which cluster of PostgreSQL.
    pub(super) system_identifier: String,
    /// Of which shard, if of any.
    pub(super) shard: Option<ShardNumber>,
    /// Its timeline, and where that left earlier ones.
    pub(super) lineage: Arc<Lineage>,
}

const HISTORY: &str = "SELECT timeline::int4, ended_at FROM pgdog.timeline_history()";

impl Reign {
    /// What a node's facts say of it as a primary; `known` if that is the same still.
    pub(super) async fn of(
        session: &Session,
        facts: &Facts,
        known: Option<Arc<Reign>>,
    ) -> Result<Option<Arc<Reign>>, Fault> {
        let Some(node) = facts.extension.as_ref().filter(|_| !facts.in_recovery) else {
            return Ok(known);
        };
        if let Some(known) = known
            && known.incarnation == node.incarnation
            && known.lineage.current == Some(node.timeline)
            && known.shard == node.shard
        {
            return Ok(Some(known));
        }
        let forks = match node.timeline {
            Timeline(0 | 1) => Vec::new(),
            Timeline(_) => forks(session).await?,
        };
        Ok(Some(Arc::new(Reign {
            incarnation: node.incarnation.clone(),
            system_identifier: node.system_identifier.clone(),
            shard: node.shard,
            lineage: Arc::new(Lineage {
                current: Some(node.timeline),
                forks,
            }),
        })))
    }

    fn timeline(&self) -> Timeline {
        self.lineage.current.unwrap_or_default()
    }

    /// Whether it came after this primary. Only within a shard: one that was made from a copy of
    /// another has the same identifier, and timelines of its own.
    fn replaced(&self, primary: &NodeFacts) -> bool {
        self.shard == primary.shard
            && self.system_identifier == primary.system_identifier
            && self.timeline() > primary.timeline
    }
}

async fn forks(session: &Session) -> Result<Vec<Fork>, Fault> {
    let rows = session.query_within(POLL_TIMEOUT, HISTORY, &[]).await?;
    let forks = rows.iter().filter_map(|row| {
        Some(Fork {
            timeline: Timeline(u32::try_from(row.get::<_, i32>(0)).ok()?),
            ended_at: row.get::<_, &str>(1).parse::<Lsn>().ok()?,
        })
    });
    Ok(forks.collect())
}

impl Cluster {
    /// The timelines of a shard, as its primary told them last.
    pub fn lineage(&self, shard: ShardNumber) -> Arc<Lineage> {
        let topology = self.topology();
        let nodes = topology.shards.get(usize::from(shard.0));
        let primary = nodes.and_then(|nodes| self.nodes().get(&nodes.primary).cloned());
        let reign = primary.and_then(|node| node.reign());
        reign.map_or_else(Arc::default, |reign| reign.lineage.clone())
    }

    /// The timeline that this life of a server writes on; it is asked if that is not known yet.
    /// None if it does not answer, or is another life, or no primary.
    pub async fn timeline_of(
        &self,
        address: &Address,
        incarnation: &Incarnation,
    ) -> Option<Timeline> {
        let node = self.nodes().get(address).cloned()?;
        node.meet(incarnation).await;
        node.reign()
            .filter(|reign| reign.incarnation == *incarnation)
            .map(|reign| reign.timeline())
    }

    /// Takes out primaries that a promotion has replaced, also while the promoted one is away: what
    /// was written there would be lost.
    pub(super) fn without_dethroned(&self, mut seen: Vec<Seen>) -> Vec<Seen> {
        let reigns: Vec<_> = self.all_nodes().iter().filter_map(|n| n.reign()).collect();
        seen.retain(|one| {
            let Some(facts) = one.facts.extension.as_ref() else {
                return true;
            };
            one.facts.in_recovery || !reigns.iter().any(|reign| reign.replaced(facts))
        });
        seen
    }
}

impl Node {
    /// Asks what it is unless it is known to be this life of a primary.
    async fn meet(&self, incarnation: &Incarnation) {
        let known = |reign: &Arc<Reign>| reign.incarnation == *incarnation;
        if !self.reign().as_ref().is_some_and(known) {
            self.poll_unless(|| self.reign().as_ref().is_some_and(known))
                .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::manifest::tests::node;

    #[test]
    fn a_promotion_replaces_primaries_of_its_own_shard_only() {
        let facts = |shard| node(1, shard, 2, 1).facts.extension.expect("it has one");
        let reign = |shard: u16, timeline| Reign {
            incarnation: Incarnation("promoted".into()),
            // Shard 1 was made from a base backup of shard 0.
            system_identifier: "s0".into(),
            shard: Some(ShardNumber(shard)),
            lineage: Arc::new(Lineage {
                current: Some(Timeline(timeline)),
                forks: Vec::new(),
            }),
        };
        assert!(reign(0, 2).replaced(&facts(0)));
        assert!(!reign(0, 1).replaced(&facts(0)));
        assert!(!reign(1, 2).replaced(&facts(0)));
    }
}
