//! The running process as operators see it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use pgdog_core::fault::Fault;
use tokio_util::sync::CancellationToken;

use super::accounts;
use crate::admin::host::{ClientRow, PoolRow, ServerRow, StatsRow};
use crate::admin::{Admin, Host};
use crate::config::Config;
use crate::nodes::{Cluster, Instance};
use crate::observe::Counted;
use crate::session::{AdminHandler, AdminReply, AdminResult, Services};

/// What there is one of.
pub struct Process {
    config: ArcSwap<Config>,
    services: Arc<Services>,
    instance_id: String,
    drivers: Mutex<HashMap<String, CancellationToken>>,
    myself: std::sync::Weak<Process>,
}

impl Process {
    /// A process that serves nothing yet.
    pub fn new(config: Config, services: Arc<Services>) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            config: ArcSwap::from_pointee(config),
            services,
            instance_id: Instance::new_id(),
            drivers: Mutex::default(),
            myself: myself.clone(),
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

    /// Reads the files again. Users, defaults and limits count at once; databases that are
    /// declared differently are started anew in the background and then replace the old ones.
    ///
    /// # Errors
    /// The files are not accepted: everything stays as it was.
    pub fn reload_files(&self) -> Result<(), Fault> {
        let old = self.config();
        let config =
            Config::load(&old.path, &old.users_path).map_err(|error| Fault::BadConfig {
                place: old.path.display().to_string(),
                why: error.problems.join("; "),
                hint: None,
            })?;
        self.services
            .settings
            .store(Arc::new(accounts::settings(&config)));
        self.config.store(Arc::new(config));
        if let Some(process) = self.myself.upgrade() {
            tokio::spawn(async move {
                let config = process.config();
                process.restart_databases(&config).await;
            });
        }
        Ok(())
    }
}

impl Host for Process {
    fn clusters(&self) -> Vec<Arc<Cluster>> {
        let mut clusters: Vec<_> = self.services.clusters.load().values().cloned().collect();
        clusters.sort_by(|a, b| a.name().cmp(b.name()));
        clusters
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
                incarnation: server
                    .incarnation
                    .map(|i| i.to_string())
                    .unwrap_or_default(),
            })
            .collect()
    }

    fn pools(&self) -> Vec<PoolRow> {
        let pools = self.services.pools.stats();
        pools
            .into_iter()
            .map(|pool| PoolRow {
                database: pool.endpoint.database.clone(),
                user: pool.user,
                host: pool.endpoint.host.clone(),
                port: pool.endpoint.port,
                waiting: pool.cl_waiting as u64,
                idle: pool.sv_idle as u64,
                active: pool.sv_active as u64,
                size: pool.size as u64,
                checkouts: pool.checkouts,
                max_wait_ms: u64::try_from(pool.maxwait.as_millis()).unwrap_or(u64::MAX),
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
            })
            .collect()
    }

    fn config(&self) -> Vec<(String, String)> {
        let config = Process::config(self);
        let general = &config.general;
        let ms = |value: crate::config::Ms| value.0.to_string();
        [
            ("host", general.host.clone()),
            ("port", general.port.to_string()),
            ("workers", general.workers.to_string()),
            ("default_pool_size", general.default_pool_size.to_string()),
            (
                "pooler_mode",
                format!("{:?}", general.pooler_mode).to_lowercase(),
            ),
            ("checkout_timeout", ms(general.checkout_timeout)),
            ("idle_timeout", ms(general.idle_timeout)),
            ("connect_timeout", ms(general.connect_timeout)),
            ("client_login_timeout", ms(general.client_login_timeout)),
            ("shutdown_timeout", ms(general.shutdown_timeout)),
            (
                "auth_type",
                format!("{:?}", general.auth_type).to_lowercase(),
            ),
            ("two_phase_commit", general.two_phase_commit.to_string()),
            ("min_lsn_wait", ms(general.min_lsn_wait)),
            (
                "min_lsn_primary_fallback",
                general.min_lsn_primary_fallback.to_string(),
            ),
            ("lsn_check_interval", ms(general.lsn_check_interval)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    fn prepared(&self) -> Vec<(String, String, u64)> {
        self.services.prepared.list()
    }

    fn reload(&self) -> Result<(), Fault> {
        self.reload_files()
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
