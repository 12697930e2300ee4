//! One logical database: start, topology watch, refresh.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, Incarnation, ShardNumber, TopologyVersion};
use pgdog_core::lsn::Lsn;

use super::LookupKey;
use super::position::Position;
use super::settings::Settings;
use super::topology::{Address, Topology};

/// One logical database.
pub struct Cluster {
    settings: Settings,
    topology: ArcSwap<Topology>,
}

impl Cluster {
    /// Asks every declared node what it is, installs empty ones, adds missing declarations and
    /// loads the topology. Background work goes on until [`Cluster::stop`].
    pub async fn start(_settings: Settings) -> Result<Arc<Cluster>, Fault> {
        unimplemented!()
    }

    /// Name of the logical database.
    pub fn name(&self) -> &str {
        &self.settings.database
    }

    /// What it was started with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// This shim's identity.
    pub fn instance_id(&self) -> &str {
        &self.settings.instance.instance_id
    }

    /// The current picture.
    pub fn topology(&self) -> Arc<Topology> {
        self.topology.load_full()
    }

    /// Asks the nodes again; one flight for all callers.
    pub async fn refresh(&self) -> Result<Arc<Topology>, Fault> {
        unimplemented!()
    }

    /// Refreshes until the topology has at least this version (after `pgdog.omni_enter()`).
    pub async fn refresh_at_least(
        &self,
        _version: TopologyVersion,
    ) -> Result<Arc<Topology>, Fault> {
        unimplemented!()
    }

    /// Refreshes until this shard's epoch is at least this (after a `40001`).
    pub async fn refresh_epoch(
        &self,
        _shard: ShardNumber,
        _epoch: Epoch,
    ) -> Result<Arc<Topology>, Fault> {
        unimplemented!()
    }

    /// Last samples of the nodes of a shard, the primary first.
    pub fn positions(&self, _shard: ShardNumber) -> Vec<Position> {
        unimplemented!()
    }

    /// A guard passed on this server: it has replayed at least `lsn`.
    pub fn note_proof(&self, _address: &Address, _incarnation: &Incarnation, _lsn: Lsn) {
        unimplemented!()
    }

    /// Waits for a sample of a node of this shard that is newer than now (bounded by 1 s); while
    /// anybody waits the shard's nodes are polled quickly.
    pub async fn wait_for_sample(&self, _shard: ShardNumber) {
        unimplemented!()
    }

    /// The shard of one key.
    pub async fn lookup(
        &self,
        _topology: &Arc<Topology>,
        _key: &LookupKey,
    ) -> Result<ShardNumber, Fault> {
        unimplemented!()
    }

    /// The shards of several keys, in their order; the misses go out in one batch.
    pub async fn lookup_many(
        &self,
        _topology: &Arc<Topology>,
        _keys: &[LookupKey],
    ) -> Result<Vec<ShardNumber>, Fault> {
        unimplemented!()
    }

    /// A fresh control connection (`schema_admin`); it closes when the client is dropped.
    pub async fn control(&self, _address: &Address) -> Result<tokio_postgres::Client, Fault> {
        unimplemented!()
    }

    /// Control connection to a shard's primary; also of a provisioning shard.
    pub async fn control_shard(
        &self,
        _shard: ShardNumber,
    ) -> Result<tokio_postgres::Client, Fault> {
        unimplemented!()
    }

    /// Nodes declared as future shards that do not serve yet.
    pub fn provisioning(&self) -> Vec<(ShardNumber, Address)> {
        unimplemented!()
    }

    /// Name for a two-phase transaction whose lowest participant is `decider`. Waits until the
    /// lock that shows that this coordinator lives is held.
    pub async fn new_gid(&self, _decider: ShardNumber, _epoch: Epoch) -> Result<String, Fault> {
        unimplemented!()
    }

    /// Deregisters and ends background work.
    pub async fn stop(&self) {
        unimplemented!()
    }
}
