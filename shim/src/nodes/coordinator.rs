//! The sign that this shim lives: a session advisory lock on shard 0, held by a connection of its
//! own. While it is lost no two-phase transaction is begun, since recovery elsewhere would take it
//! for abandoned.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, Incarnation, ShardNumber};
use tokio::sync::watch;

use super::cluster::Cluster;
use super::control;
use super::gid::{Gid, GidName, InUse, database_part, others_part};
use super::topology::Address;
use super::trouble;

/// How long `new_gid` waits for a lock that is being taken anew.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The key of an instance's lock, as an SQL expression with the instance as text.
pub(super) const LOCK_KEY: &str = "('x' || $1::text)::bit(64)::bigint";

pub(super) struct Coordinator {
    held: watch::Sender<bool>,
    next: AtomicU64,
    pub(super) in_use: InUse,
}

impl Cluster {
    /// Why transactions cannot be prepared on the serving primaries, if so.
    pub(super) fn against_two_phase(&self) -> Option<Fault> {
        let topology = self.topology();
        let mut servers: Vec<(Incarnation, &Address)> = Vec::new();
        for shard in &topology.shards {
            let address = &shard.primary;
            let Some(facts) = self.node(address).view().facts else {
                continue;
            };
            let Some(node) = facts.extension else {
                continue;
            };
            if node.max_prepared == 0 {
                return Some(trouble::no_two_phase(address));
            }
            // A server has the names of prepared transactions in common for its databases.
            if let Some((_, other)) = servers.iter().find(|(own, _)| *own == node.incarnation) {
                return Some(trouble::one_server(other, address));
            }
            servers.push((node.incarnation, address));
        }
        None
    }
}

impl Coordinator {
    pub(super) fn new() -> Self {
        Self {
            held: watch::Sender::new(false),
            next: AtomicU64::new(1),
            in_use: InUse::default(),
        }
    }

    pub(super) async fn new_gid(
        &self,
        cluster: &Cluster,
        (decider, others): (ShardNumber, &[ShardNumber]),
        epoch: Epoch,
    ) -> Result<Gid, Fault> {
        if let Some(fault) = cluster.against_two_phase() {
            return Err(fault);
        }
        let mut held = self.held.subscribe();
        let waited = tokio::time::timeout(LOCK_WAIT, held.wait_for(|held| *held)).await;
        if !matches!(waited, Ok(Ok(_))) {
            return Err(Fault::ServerLost {
                node: shard_0(cluster).map_or_else(|| "shard 0".into(), |a| a.to_string()),
                why: "the coordinator's lock there could not be taken again in time".into(),
            });
        }
        Ok(self.name(cluster, (decider, others), epoch))
    }

    /// A new name for a transaction, in use. It looks abandoned to others unless the lock is held.
    pub(super) fn name(
        &self,
        cluster: &Cluster,
        (decider, others): (ShardNumber, &[ShardNumber]),
        epoch: Epoch,
    ) -> Gid {
        self.in_use.take(&GidName {
            database: database_part(cluster.name()),
            instance: cluster.instance_id().to_owned(),
            decider,
            others: others_part(others),
            behind_decider: false,
            epoch,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Holds the lock until the cluster stops, taking it anew when the connection or the primary
    /// is lost.
    pub(super) async fn hold(&self, cluster: &Cluster) {
        let mut pause = Duration::from_millis(20);
        loop {
            if let Some(address) = shard_0(cluster) {
                match self.hold_at(cluster, &address).await {
                    Ok(()) => pause = Duration::from_millis(20),
                    Err(fault) => {
                        tracing::warn!(database = cluster.name(), node = %address,
                            error = %fault.message(), "coordinator lock not held");
                    }
                }
                self.held.send_replace(false);
            }
            tokio::select! {
                () = cluster.stopped() => return,
                // A node that is away is not asked without pause, and ever more seldom.
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(1)),
            }
        }
    }

    /// Takes the lock and returns when it is lost.
    async fn hold_at(&self, cluster: &Cluster, address: &Address) -> Result<(), Fault> {
        let (client, connection) = control::open(address, cluster.login()).await?;
        let mut connection = tokio::spawn(connection);
        // Shared: the process may know the same node by several names of databases.
        let sql = format!("SELECT pg_catalog.pg_advisory_lock_shared({LOCK_KEY})");
        client
            .query(&sql, &[&cluster.instance_id()])
            .await
            .map_err(|error| trouble::from_node(address, &error))?;
        self.held.send_replace(true);
        let moved = async {
            let mut changes = cluster.changes();
            while shard_0(cluster).as_ref() == Some(address) && changes.changed().await.is_ok() {}
        };
        tokio::select! {
            _ = &mut connection => {}
            () = cluster.stopped() => {}
            () = moved => {}
        }
        Ok(())
    }
}

fn shard_0(cluster: &Cluster) -> Option<Address> {
    cluster
        .topology()
        .shards
        .first()
        .map(|shard| shard.primary.clone())
}
