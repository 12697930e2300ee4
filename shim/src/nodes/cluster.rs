//! One logical database: what sessions ask, and the background work that keeps the answers true.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, ShardNumber, TopologyVersion};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::LookupKey;
use super::control::{self, Login, Session};
use super::coordinator::Coordinator;
use super::doubt::Unfinished;
use super::gid::Gid;
use super::lookup::{LookupStats, Lookups};
use super::manifest::Seen;
use super::node::Node;
use super::observed::NodeState;
use super::position::Role;
use super::refresh::{self, Flight};
use super::retire::House;
use super::settings::Settings;
use super::topology::{Address, Topology};
use super::verifiers::Verifiers;
use super::{install, instances, sweep, trouble};

/// How long `refresh_at_least` and `refresh_epoch` go on asking.
const CONVERGENCE_WAIT: Duration = Duration::from_secs(5);

/// One logical database.
pub struct Cluster {
    name: String,
    instance_id: String,
    settings: ArcSwap<Settings>,
    login: Arc<Login>,
    pub(super) nodes: RwLock<BTreeMap<Address, Arc<Node>>>,
    topology: ArcSwap<Topology>,
    pub(super) picture: AtomicU64,
    behind: ArcSwap<Vec<ShardNumber>>,
    /// Counts stored topologies, for those who wait for a change.
    changes: watch::Sender<u64>,
    /// A node said something new.
    news: Notify,
    flight: Flight,
    lookups: Lookups,
    pub(super) verifiers: Verifiers,
    pub(super) coordinator: Coordinator,
    pub(super) unfinished: ArcSwap<Vec<Unfinished>>,
    pub(super) house: House,
    stop: CancellationToken,
    work: TaskTracker,
}

impl Cluster {
    /// Asks every declared node what it is, installs empty ones, adds missing declarations and
    /// loads the topology. Background work goes on until [`Cluster::stop`].
    ///
    /// # Errors
    /// A serving shard without a primary that answers; nodes, declarations or configuration that
    /// contradict each other; more than one shard without the extension.
    pub async fn start(settings: Settings) -> Result<Arc<Cluster>, Fault> {
        let login = Arc::new(Login {
            user: settings.user.clone(),
            password: settings.password.clone(),
            connect_timeout: settings.connect_timeout,
            dialer: settings.dialer.clone(),
        });
        let lookups = Lookups::new(login.clone(), settings.lookup_cache_bytes);
        let cluster = Arc::new(Cluster {
            topology: ArcSwap::from_pointee(Topology::empty(settings.unlisted)),
            behind: ArcSwap::default(),
            picture: AtomicU64::new(0),
            changes: watch::Sender::new(0),
            news: Notify::new(),
            nodes: RwLock::default(),
            flight: Flight::default(),
            lookups,
            verifiers: Verifiers::new(),
            coordinator: Coordinator::new(),
            unfinished: ArcSwap::default(),
            house: House::default(),
            stop: CancellationToken::new(),
            work: TaskTracker::new(),
            login,
            name: settings.database.clone(),
            instance_id: settings.instance.instance_id.clone(),
            settings: ArcSwap::from_pointee(settings),
        });
        if let Err(fault) = install::prepare(&cluster).await {
            cluster.stop.cancel();
            return Err(fault);
        }
        cluster.clone().begin_work();
        Ok(cluster)
    }

    /// Everything that goes on behind the sessions.
    fn begin_work(self: Arc<Self>) {
        let follow = self.clone();
        self.work
            .spawn(async move { refresh::follow(&follow).await });
        if self.is_plain() {
            return;
        }
        let lock = self.clone();
        self.work
            .spawn(async move { lock.coordinator.hold(&lock).await });
        let beat = self.clone();
        self.work.spawn(async move { instances::run(&beat).await });
        let recover = self.clone();
        self.work.spawn(async move { sweep::run(&recover).await });
    }

    /// Name of the logical database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the configuration declares.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Whether [`Cluster::reload`] can take these settings: the login stays, and the nodes have the
    /// extension, without which nothing of the background work was begun.
    pub fn can_take(&self, settings: &Settings) -> bool {
        let same_login =
            self.login.user == settings.user && self.login.password == settings.password;
        same_login && !self.is_plain()
    }

    /// Takes a changed configuration: nodes and declarations are added. Topology, caches and
    /// positions stay; so does the login of the control connections.
    ///
    /// # Errors
    /// As [`Cluster::start`]; then the old configuration stays.
    pub async fn reload(&self, settings: Settings) -> Result<(), Fault> {
        let before = self.settings.swap(Arc::new(settings));
        let prepared = install::prepare(self).await;
        match prepared {
            Ok(()) => self.news.notify_one(),
            Err(_) => self.settings.store(before),
        }
        prepared
    }

    /// This shim's identity.
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// The current picture.
    pub fn topology(&self) -> Arc<Topology> {
        self.topology.load_full()
    }

    /// Counts the pictures: changes when [`Cluster::topology`] does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Serving shards whose node does not know the topology's version yet: a flip is being
    /// finished there.
    pub fn behind(&self) -> Arc<Vec<ShardNumber>> {
        self.behind.load_full()
    }

    /// True when the nodes lack the extension: one shard, roles only.
    pub fn is_plain(&self) -> bool {
        self.topology().version == TopologyVersion(0)
    }

    /// Asks the nodes again; one flight for all callers.
    ///
    /// # Errors
    /// No node answers, or their answers contradict each other; the old picture stays.
    pub async fn refresh(&self) -> Result<Arc<Topology>, Fault> {
        self.flight.join(self).await
    }

    /// Refreshes until the topology has at least this version (after `pgdog.omni_enter()`).
    ///
    /// # Errors
    /// 55000 when no node says so within 5 s.
    pub async fn refresh_at_least(&self, version: TopologyVersion) -> Result<Arc<Topology>, Fault> {
        let shown = self
            .refresh_until(|topology| topology.version >= version)
            .await;
        shown.ok_or_else(|| {
            let ours = self.topology().version;
            trouble::wrong_state(
                &format!("no node has shown topology version {version} yet, only {ours}"),
                "Retry in a moment; SHOW TOPOLOGY tells which node lags.",
            )
        })
    }

    /// Refreshes until this shard's epoch is at least this (after a `40001`).
    ///
    /// # Errors
    /// 40001 when the node does not say so within 5 s.
    pub async fn refresh_epoch(
        &self,
        shard: ShardNumber,
        epoch: Epoch,
    ) -> Result<Arc<Topology>, Fault> {
        self.refresh_until(|topology| {
            topology
                .shards
                .get(usize::from(shard.0))
                .is_some_and(|nodes| nodes.epoch >= epoch)
        })
        .await
        .ok_or_else(|| {
            let topology = self.topology();
            let ours = topology
                .shards
                .get(usize::from(shard.0))
                .map(|nodes| nodes.epoch);
            Fault::StaleTopology {
                session: ours.unwrap_or_default(),
                node: epoch,
            }
        })
    }

    async fn refresh_until(&self, enough: impl Fn(&Topology) -> bool) -> Option<Arc<Topology>> {
        let asking = async {
            let mut topology = self.topology();
            while !enough(&topology) {
                match self.refresh().await {
                    Ok(fresh) if enough(&fresh) => return fresh,
                    Ok(fresh) => topology = fresh,
                    Err(fault) => {
                        tracing::debug!(database = self.name(), error = %fault.message(),
                            "refresh failed");
                    }
                }
                // The nodes do not tell when they follow: asked again, but not without pause.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            topology
        };
        tokio::time::timeout(CONVERGENCE_WAIT, asking).await.ok()
    }

    /// The shard of one key.
    ///
    /// # Errors
    /// 58000 and 23514, as `core::lookup` says.
    pub async fn lookup(
        &self,
        topology: &Arc<Topology>,
        key: &LookupKey,
    ) -> Result<ShardNumber, Fault> {
        let found = self
            .lookup_many(topology, std::slice::from_ref(key))
            .await?;
        Ok(found[0])
    }

    /// The shards of several keys, in their order; the misses go out in one batch.
    ///
    /// # Errors
    /// As [`Cluster::lookup`].
    pub async fn lookup_many(
        &self,
        topology: &Arc<Topology>,
        keys: &[LookupKey],
    ) -> Result<Vec<ShardNumber>, Fault> {
        let limit = self.settings().lookup_timeout;
        self.lookups.find(topology, keys, limit).await
    }

    /// For `SHOW LOOKUPS`.
    pub fn lookup_stats(&self) -> LookupStats {
        self.lookups.stats()
    }

    /// A fresh control connection (`schema_admin`); it closes when the client is dropped.
    ///
    /// # Errors
    /// 08001.
    pub async fn control(&self, address: &Address) -> Result<tokio_postgres::Client, Fault> {
        control::connect(address, &self.login).await
    }

    /// Control connection to a shard's primary; also of a provisioning shard.
    ///
    /// # Errors
    /// 08001, 57P03 for a shard without a primary.
    pub async fn control_shard(&self, shard: ShardNumber) -> Result<tokio_postgres::Client, Fault> {
        self.control(&self.primary(shard).ok_or(trouble::no_primary(shard))?)
            .await
    }

    /// Where writes of a shard go; for a provisioning one, where it is declared.
    pub fn primary(&self, shard: ShardNumber) -> Option<Address> {
        let topology = self.topology();
        let serving = topology
            .shards
            .get(usize::from(shard.0))
            .map(|nodes| nodes.primary.clone());
        serving.or_else(|| {
            let mut spares = self
                .provisioning()
                .into_iter()
                .filter(|(number, _)| *number == shard);
            let first = spares.next().map(|(_, address)| address);
            let is_primary =
                |address: &Address| self.node(address).view().role == Some(Role::Primary);
            self.provisioning()
                .into_iter()
                .find(|(number, address)| *number == shard && is_primary(address))
                .map(|(_, address)| address)
                .or(first)
        })
    }

    /// Nodes declared as future shards that do not serve yet.
    pub fn provisioning(&self) -> Vec<(ShardNumber, Address)> {
        let serving = self.topology().shards.len();
        self.settings()
            .nodes
            .iter()
            .filter(|node| node.provisioning && usize::from(node.shard.0) >= serving)
            .map(|node| (node.shard, node.address.clone()))
            .collect()
    }

    /// Shards of which a primary answers us, provisioning ones included.
    pub fn reachable(&self) -> Vec<ShardNumber> {
        let mut shards: Vec<ShardNumber> = self
            .topology()
            .shards
            .iter()
            .map(|shard| shard.shard)
            .collect();
        shards.extend(self.provisioning().into_iter().map(|(shard, _)| shard));
        shards.sort_unstable();
        shards.dedup();
        shards.retain(|shard| {
            self.primary(*shard)
                .is_some_and(|address| self.node(&address).view().facts.is_some())
        });
        shards
    }

    /// Name for a two-phase transaction of a shard that decides, the lowest, and others. Waits
    /// until the lock that shows that this coordinator lives is held.
    ///
    /// # Errors
    /// 55000 when a shard cannot prepare transactions, 08006 when the lock cannot be had.
    pub async fn new_gid(
        &self,
        shards: (ShardNumber, &[ShardNumber]),
        epoch: Epoch,
    ) -> Result<Gid, Fault> {
        self.coordinator.new_gid(self, shards, epoch).await
    }

    /// Deregisters and ends background work.
    pub async fn stop(&self) {
        if !self.is_plain()
            && let Err(fault) = instances::deregister(self).await
        {
            tracing::warn!(database = self.name(), error = %fault.message(), "not deregistered");
        }
        self.stop.cancel();
        self.work.close();
        self.work.wait().await;
    }

    pub(super) fn login(&self) -> &Login {
        &self.login
    }

    /// Resolves when the cluster is being stopped.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + '_ {
        self.stop.cancelled()
    }

    pub(super) fn uses_gid(&self, gid: &str) -> bool {
        self.coordinator.in_use.contains(gid)
    }

    /// Shared control session of a shard's primary.
    pub(super) async fn shard_session(&self, shard: ShardNumber) -> Result<Arc<Session>, Fault> {
        let address = self.primary(shard).ok_or(trouble::no_primary(shard))?;
        self.node(&address).link.session().await
    }

    /// The node at this address, put under watch if it was not.
    pub(super) fn node(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = self.nodes().get(address) {
            return node.clone();
        }
        let mut nodes = self
            .nodes
            .write()
            .expect("no code that holds this lock can panic");
        nodes
            .entry(address.clone())
            .or_insert_with(|| Arc::new(Node::new(address.clone(), self.login.clone())))
            .clone()
    }

    pub(super) fn knows(&self, address: &Address) -> bool {
        self.nodes().contains_key(address)
    }

    pub(super) fn all_nodes(&self) -> Vec<Arc<Node>> {
        self.nodes().values().cloned().collect()
    }

    pub(super) fn nodes(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Address, Arc<Node>>> {
        self.nodes
            .read()
            .expect("no code that holds this lock can panic")
    }

    /// What the reachable nodes said last.
    pub(super) fn seen(&self) -> Vec<Seen> {
        let answering = self.all_nodes().into_iter().filter_map(|node| {
            Some(Seen {
                address: node.address.clone(),
                facts: node.view().facts?,
            })
        });
        self.without_dethroned(answering.collect())
    }

    /// Asks these nodes at the same time.
    pub(super) async fn poll(&self, nodes: &[Arc<Node>]) {
        join_all(nodes.iter().map(|node| node.poll())).await;
    }

    pub(super) fn news(&self) -> &Notify {
        &self.news
    }

    /// Starts the watch of a node; ends when the cluster stops.
    pub(super) fn watch(self: &Arc<Self>, node: Arc<Node>) {
        let cluster = self.clone();
        self.work.spawn(async move {
            let idle = cluster.settings().lsn_check_interval;
            node.watch(idle, &cluster.news, &cluster.stop).await;
        });
    }

    /// Puts a new picture in place.
    pub(super) fn store(&self, topology: Topology, behind: Vec<ShardNumber>) -> Arc<Topology> {
        self.behind.store(Arc::new(behind));
        let current = self.topology();
        if *current == topology {
            return current;
        }
        tracing::info!(
            database = self.name(),
            version = topology.version.0,
            shards = topology.shards.len(),
            generation = topology.generation(),
            "topology changed"
        );
        self.lookups.follow(&topology);
        let topology = Arc::new(topology);
        self.topology.store(topology.clone());
        self.picture.fetch_add(1, Ordering::Release);
        self.changes.send_modify(|count| *count += 1);
        topology
    }

    /// How far a node's installation is, as it said last.
    pub fn state_of(&self, address: &Address) -> Option<NodeState> {
        Some(self.node(address).view().facts?.extension?.state)
    }

    /// Why a node could not be asked last.
    pub fn error_of(&self, address: &Address) -> Option<String> {
        self.node(address).view().error
    }
}
