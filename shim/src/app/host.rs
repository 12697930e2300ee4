//! The running process as operators see it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use pgdog_core::fault::Fault;
use tokio_util::sync::CancellationToken;

use crate::admin::host::{ClientRow, Later, PoolRow, ServerRow, StatsRow};
use crate::admin::{Admin, Host};
use crate::config::Config;
use crate::net::Dialer;
use crate::nodes::{Address, Cluster, Instance};
use crate::observe::Counted;
use crate::server::{Endpoint, PoolStats, ServerState};
use crate::session::{AdminHandler, AdminReply, AdminResult, Services};

/// What there is one of.
pub struct Process {
    config: ArcSwap<Config>,
    services: Arc<Services>,
    dialer: Arc<Dialer>,
    instance_id: String,
    drivers: Mutex<HashMap<String, CancellationToken>>,
    /// Held while the configuration changes: settings that count before those of the files.
    pub(super) reloading: tokio::sync::Mutex<Vec<(String, String)>>,
}

impl Process {
    /// A process that serves nothing yet.
    pub fn new(config: Config, services: Arc<Services>, dialer: Arc<Dialer>) -> Arc<Self> {
        Arc::new(Self {
            config: ArcSwap::from_pointee(config),
            services,
            dialer,
            instance_id: Instance::new_id(),
            drivers: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
        })
    }

    /// The configuration as of the last load.
    pub fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// What sessions share.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// How nodes are connected to.
    pub fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    /// This shim in `pgdog.instances`.
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// Remembers how to end the driver of a database.
    pub fn note_driver(&self, database: &str, stop: CancellationToken) {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.insert(database.to_owned(), stop);
    }

    /// Ends the driver of a database.
    pub fn end_driver(&self, database: &str) {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = drivers.remove(database) {
            stop.cancel();
        }
    }

    /// Why no clients should be sent here, if so: the process stops, serves no database, or cannot
    /// serve clients as it is told to; or a shard has no primary.
    pub fn trouble(&self) -> Option<String> {
        if self.services.shutdown.is_cancelled() {
            return Some("stopping".to_owned());
        }
        let config = self.config();
        let mut names = config.database_names().into_iter();
        let clusters = self.services.clusters.load();
        // One of several that is not served is no reason to keep the clients of the others away.
        if let (true, Some(absent)) = (clusters.is_empty(), names.find(|name| self.is_absent(name)))
        {
            return Some(format!("database {absent} is not served"));
        }
        if self.is_bare() {
            return Some("tls_certificate is not there: clients are served without TLS".to_owned());
        }
        clusters.values().find_map(|cluster| {
            let shards = cluster.topology();
            let lost = shards
                .shards
                .iter()
                .find(|shard| cluster.error_of(&shard.primary).is_some())?;
            Some(format!(
                "database {}: no answer from the primary of shard {}",
                cluster.name(),
                lost.shard
            ))
        })
    }

    /// Whether the tasks of a database are driven.
    pub fn is_driven(&self, database: &str) -> bool {
        let drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.contains_key(database)
    }

    /// Replaces the configuration.
    pub fn keep_config(&self, config: Config) {
        self.config.store(Arc::new(config));
    }
}

impl Host for Process {
    fn clusters(&self) -> Vec<Arc<Cluster>> {
        let mut clusters: Vec<_> = self.services.clusters.load().values().cloned().collect();
        clusters.sort_by(|a, b| a.name().cmp(b.name()));
        clusters
    }

    fn absent(&self) -> Vec<(String, String)> {
        Process::absent(self)
    }

    fn clients(&self) -> Vec<ClientRow> {
        let clients = self.services.clients.list();
        clients
            .iter()
            .map(|client| {
                let totals = client.totals();
                ClientRow {
                    id: client.session_id,
                    user: client.user.clone(),
                    database: client.database.clone(),
                    state: client.state().as_str().to_owned(),
                    addr: client.addr.ip().to_string(),
                    port: client.addr.port(),
                    connected_s: client.connected_at.elapsed().as_secs(),
                    application_name: client.application_name.clone(),
                    queries: totals.of(Counted::Queries),
                    transactions: totals.of(Counted::Transactions),
                    errors: totals.of(Counted::Errors),
                    received_bytes: totals.of(Counted::Received),
                    sent_bytes: totals.of(Counted::Sent),
                    query_us: totals.of(Counted::QueryTime),
                    transaction_us: totals.of(Counted::TransactionTime),
                    wait_us: totals.of(Counted::WaitTime),
                    pinned: client.pinned().to_owned(),
                }
            })
            .collect()
    }

    fn servers(&self) -> Vec<ServerRow> {
        let servers = self.services.pools.servers();
        servers
            .into_iter()
            .map(|server| ServerRow {
                database: server.endpoint.database.clone(),
                user: server.user,
                host: server.endpoint.host.clone(),
                port: server.endpoint.port,
                state: server.state.as_str().to_owned(),
                backend_pid: server.pid,
                age_s: server.age.as_secs(),
                rest_s: server.rest.as_secs(),
                queries: server.batches,
                transactions: server.transactions,
                prepared: server.prepared as u64,
                incarnation: server
                    .incarnation
                    .map(|i| i.to_string())
                    .unwrap_or_default(),
            })
            .collect()
    }

    fn pools(&self) -> Vec<PoolRow> {
        let pools = self.services.pools.stats();
        let servers = self.services.pools.servers();
        let mode = Process::config(self).general.pooler_mode;
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let resting = |pool: &PoolStats| {
            let of_pool = servers
                .iter()
                .filter(|s| s.endpoint == pool.endpoint && s.user == pool.user);
            of_pool
                .filter(|s| matches!(s.state, ServerState::InTransaction | ServerState::Failed))
                .count() as u64
        };
        pools
            .into_iter()
            .map(|pool| PoolRow {
                idle_in_transaction: resting(&pool),
                min: pool.min as u64,
                mode: format!("{mode:?}").to_lowercase(),
                paused: pool.paused,
                waited_us: us(pool.waited),
                connects: pool.connects,
                database: pool.endpoint.database.clone(),
                user: pool.user,
                host: pool.endpoint.host.clone(),
                port: pool.endpoint.port,
                waiting: pool.cl_waiting as u64,
                idle: pool.sv_idle as u64,
                active: pool.sv_active as u64,
                size: pool.size as u64,
                checkouts: pool.checkouts,
                max_wait_us: us(pool.maxwait),
                errors: pool.errors,
            })
            .collect()
    }

    fn stats(&self) -> Vec<StatsRow> {
        let totals = self.services.clients.totals();
        totals
            .into_iter()
            .map(|((database, user), totals)| StatsRow {
                database,
                user,
                transactions: totals.of(Counted::Transactions),
                queries: totals.of(Counted::Queries),
                received_bytes: totals.of(Counted::Received),
                sent_bytes: totals.of(Counted::Sent),
                errors: totals.of(Counted::Errors),
                primary_queries: totals.of(Counted::Primary),
                replica_queries: totals.of(Counted::Replica),
                query_us: totals.of(Counted::QueryTime),
                transaction_us: totals.of(Counted::TransactionTime),
                wait_us: totals.of(Counted::WaitTime),
            })
            .collect()
    }

    fn config(&self) -> Vec<(String, String)> {
        Process::config(self).entries()
    }

    fn users(&self) -> usize {
        Process::config(self).users.users.len()
    }

    fn prepared(&self) -> Vec<(String, String, u64)> {
        self.services.prepared.list()
    }

    fn bans(&self) -> Vec<(String, u16, u64)> {
        let bans = self.services.bans.list().into_iter();
        bans.map(|((host, port), since)| {
            let banned_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            (host, port, banned_ms)
        })
        .collect()
    }

    fn ban(&self, host: &str, port: u16, banned: bool) -> bool {
        match banned {
            true => {
                self.services.bans.ban(host, port);
                true
            }
            false => self.services.bans.lift(host, port),
        }
    }

    fn pause(&self, database: Option<&str>, paused: bool) -> Result<(), Fault> {
        let clusters = self.services.clusters.load();
        let named = |cluster: &&Arc<Cluster>| database.is_none_or(|name| cluster.name() == name);
        let chosen: Vec<_> = clusters.values().filter(named).collect();
        if let (Some(name), true) = (database, chosen.is_empty()) {
            return Err(Fault::UnknownDatabase {
                database: name.to_owned(),
            });
        }
        let addresses = chosen.iter().flat_map(|cluster| cluster.addresses());
        let endpoints: Vec<Endpoint> = addresses.map(endpoint).collect();
        match paused {
            true => self.services.pools.pause(&endpoints),
            false => self.services.pools.resume(&endpoints),
        }
        Ok(())
    }

    fn reload(&self) -> Later<'_> {
        Box::pin(Process::reload(self))
    }

    fn set<'a>(&'a self, name: &'a str, value: &'a str) -> Later<'a> {
        Box::pin(Process::set(self, name, value))
    }

    fn reconnect(&self) {
        for pool in self.services.pools.stats() {
            self.services.pools.close_all(&pool.endpoint);
        }
    }

    fn shutdown(&self) {
        self.services.shutdown.cancel();
    }
}

/// Where a node is, for pools.
pub fn endpoint(address: Address) -> Endpoint {
    Endpoint {
        host: address.host,
        port: address.port,
        database: address.database,
    }
}

/// Answers the admin database.
pub struct Operator {
    admin: Admin,
}

impl Operator {
    /// Commands about this process.
    pub fn new(process: Arc<Process>) -> Self {
        Self {
            admin: Admin::new(process),
        }
    }
}

impl AdminHandler for Operator {
    fn run<'a>(&'a self, sql: &'a str) -> AdminReply<'a> {
        Box::pin(async move {
            let output = self.admin.run(sql).await?;
            Ok(AdminResult {
                columns: output.columns.into_iter().map(str::to_owned).collect(),
                rows: output.rows,
                tag: output.tag,
            })
        })
    }
}
