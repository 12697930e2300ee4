//! What sessions ask about positions. The polling itself is `node`'s.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use pgdog_core::fault::Fault;
use pgdog_core::ids::{Incarnation, ShardNumber, Timeline};
use pgdog_core::lsn::{self, Lsn};
use pgdog_core::moment::Moment;

use super::cluster::Cluster;
use super::node::{Node, View};
use super::position::{Position, Role};
use super::topology::Address;
use super::trouble;

const COVERING: &str = "
SELECT pgdog.lsn_for_timestamp($1::text::timestamptz)::text, timeline::int4
FROM pgdog.node_facts()";

/// Longest wait for a sample before the caller looks again.
const SAMPLE_WAIT: Duration = Duration::from_secs(1);

impl Cluster {
    /// Last samples of the nodes of a shard, the primary first. A node that does not answer has no
    /// sample; one that claims a role which the topology does not give it is not here.
    pub fn positions(&self, shard: ShardNumber) -> Vec<Position> {
        let topology = self.topology();
        let Some(nodes) = topology.shards.get(usize::from(shard.0)) else {
            return Vec::new();
        };
        let mut positions: Vec<Position> = self
            .members(shard)
            .into_iter()
            .filter_map(|(node, view)| {
                let role = if nodes.primary == node.address {
                    Role::Primary
                } else if nodes.replicas.contains(&node.address) || view.facts.is_none() {
                    Role::Replica
                } else {
                    return None;
                };
                Some(Position {
                    address: node.address.clone(),
                    role,
                    sample: view.sample,
                })
            })
            .collect();
        positions.sort_by_key(|position| position.role == Role::Replica);
        positions
    }

    /// The nodes of a shard as they say themselves; those that do not answer as they said last, or
    /// as they are declared.
    fn members(&self, shard: ShardNumber) -> Vec<(Arc<Node>, View)> {
        let settings = self.settings();
        let declared = |address: &Address| {
            let mut nodes = settings.nodes.iter();
            nodes.any(|node| node.address == *address && node.shard == shard && !node.provisioning)
        };
        self.all_nodes()
            .into_iter()
            .filter_map(|node| {
                let view = node.view();
                let is_member = match view.shard {
                    Some(theirs) => theirs == shard,
                    None => declared(&node.address),
                };
                is_member.then_some((node, view))
            })
            .collect()
    }

    /// A position of a shard that covers every commit stamped up to a moment; None if its primary
    /// knows of none. Many may ask at once: one sample there answers all.
    ///
    /// # Errors
    /// The primary does not answer, or lacks the extension.
    pub async fn covering(
        &self,
        shard: ShardNumber,
        moment: Moment,
    ) -> Result<Option<lsn::Position>, Fault> {
        let address = self.primary(shard).ok_or(trouble::no_primary(shard))?;
        let session = self.node(&address).slow.session().await?;
        let rows = session.query(COVERING, &[&moment.to_string()]).await?;
        Ok(rows.first().and_then(|row| {
            let lsn = row.get::<_, Option<String>>(0)?.parse::<Lsn>().ok()?;
            let timeline = u32::try_from(row.get::<_, i32>(1)).ok()?;
            Some((lsn, Some(Timeline(timeline))))
        }))
    }

    /// A guard passed on this server: it has replayed at least this.
    pub fn note_proof(&self, address: &Address, incarnation: &Incarnation, proved: lsn::Position) {
        if let Some(node) = self.nodes().get(address) {
            node.note_proof(incarnation, proved);
        }
    }

    /// Waits for a sample of a replica of this shard that is newer than now (bounded by 1 s);
    /// while anybody waits the shard's replicas are polled quickly, once for all who wait.
    pub async fn wait_for_sample(&self, shard: ShardNumber) {
        let replicas: Vec<Arc<Node>> = self
            .members(shard)
            .into_iter()
            .filter(|(_, view)| view.role == Some(Role::Replica))
            .map(|(node, _)| node)
            .collect();
        if replicas.is_empty() {
            // Nobody to wait for: only keep the caller from spinning.
            tokio::time::sleep(Duration::from_millis(20)).await;
            return;
        }
        let _hurry: Vec<_> = replicas.iter().map(|node| node.hurry()).collect();
        let samples = replicas.iter().map(|node| {
            let mut view = node.subscribe();
            Box::pin(async move { view.changed().await.is_ok() })
        });
        // Running out of time is an answer too: the caller looks at what there is.
        let _ = tokio::time::timeout(SAMPLE_WAIT, select_all(samples)).await;
    }
}
