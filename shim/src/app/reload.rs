//! Databases come and go with the configuration: all of a change, or nothing of it.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context as _;
use pgdog_core::fault::Fault;
use tokio_util::sync::CancellationToken;

use super::absent::{self, Absent};
use super::host::{Process, endpoint};
use super::tls::{Missing, Tls};
use super::{accounts, limits};
use crate::config::Config;
use crate::nodes::{Cluster, Instance, Settings};
use crate::server::Endpoint;
use crate::workflow::Driver;

/// Databases that fit the new configuration, and how to go back.
#[derive(Default)]
struct Change {
    started: Vec<Arc<Cluster>>,
    taken: Vec<(Arc<Cluster>, Arc<Settings>)>,
    absent: Absent,
}

impl Process {
    /// Starts every configured database. One that cannot be started does not keep the others from
    /// being served.
    ///
    /// # Errors
    /// None of them can be started.
    pub async fn start_databases(&self) -> anyhow::Result<()> {
        let config = self.config();
        let mut absent = absent::by_configuration(&config);
        let mut first = None;
        for name in config.database_names() {
            match self.start_database(&config, name).await {
                Ok(cluster) => self.serve(cluster),
                Err(fault) => {
                    tracing::error!(database = name, %fault, "database not served");
                    first.get_or_insert((name, fault.clone()));
                    absent.insert(name.to_owned(), fault);
                }
            }
        }
        match first {
            Some((name, fault)) if self.services().clusters.load().is_empty() => {
                Err(fault).with_context(|| format!("cannot start database \"{name}\""))
            }
            Some(_) | None => {
                self.services().absent.store(Arc::new(absent));
                Ok(())
            }
        }
    }

    /// Reads the files again and takes what they say. Clients, caches, floors, roles and server
    /// connections stay, but for databases that are not in the files any more: their clients leave
    /// at the end of their transactions.
    ///
    /// # Errors
    /// The files, or the nodes that they name, are not accepted: everything stays as it was.
    pub async fn reload(&self) -> Result<(), Fault> {
        let mut set = self.reloading.lock().await;
        self.load(&[]).await?;
        set.clear();
        for warning in &self.config().warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!("configuration reloaded");
        Ok(())
    }

    /// Changes a setting of `[general]` until the files are read again.
    ///
    /// # Errors
    /// 22023: there is no such setting, it has no such value, or it counts after a restart only.
    pub async fn set(&self, name: &str, value: &str) -> Result<(), Fault> {
        let refused = |why: String| Fault::BadParameter {
            name: name.to_owned(),
            value: value.to_owned(),
            why,
        };
        if FIXED.contains(&name) {
            return Err(refused("it counts after a restart only".to_owned()));
        }
        let mut set = self.reloading.lock().await;
        let mut wanted = set.clone();
        wanted.retain(|(known, _)| known != name);
        wanted.push((name.to_owned(), value.to_owned()));
        match self.load(&wanted).await {
            Err(Fault::BadConfig { why, .. }) => return Err(refused(why)),
            other => other?,
        }
        *set = wanted;
        tracing::info!(name, value, "setting changed by an operator");
        Ok(())
    }

    async fn load(&self, set: &[(String, String)]) -> Result<(), Fault> {
        let old = self.config();
        let config = Config::load_with(&old.path, &old.users_path, set).map_err(|error| {
            Fault::BadConfig {
                place: old.path.display().to_string(),
                why: error.problems.join("; "),
                hint: None,
            }
        })?;
        if let Some(why) = self.would_end(&config) {
            return Err(Fault::BadConfig {
                place: old.path.display().to_string(),
                why,
                hint: None,
            });
        }
        // Renewed certificates stand in the same files: they are read every time.
        let missing = match self.services().tls.load().is_some() {
            true => Missing::IsWrong,
            false => Missing::IsTold,
        };
        let tls = Tls::load(&config.general, missing)?;
        let before = self.dialer().rules();
        self.dialer().follow(tls.outbound.into());
        let change = match self.prepare(&config).await {
            Ok(change) => change,
            Err(fault) => {
                self.dialer().follow(before);
                return Err(fault);
            }
        };
        self.services().tls.store(tls.inbound.map(Arc::new));
        for warning in fixed(&old, &config) {
            tracing::warn!("{warning}");
        }
        self.take(config, change);
        Ok(())
    }

    /// Why a database that is served could not be any more: its clients would pay for a mistake in
    /// the files. Who means to end it takes it out of them.
    fn would_end(&self, config: &Config) -> Option<String> {
        let running = self.services().clusters.load();
        let listed: Vec<_> = config.databases.iter().map(|node| &node.name).collect();
        let unserved = &mut config.unserved.iter();
        let (name, why) =
            unserved.find(|(name, _)| running.contains_key(*name) && listed.contains(name))?;
        Some(format!("database \"{name}\" is in service: {why}"))
    }

    /// Starts what is new and tells running databases what changed, without showing it to clients.
    async fn prepare(&self, config: &Config) -> Result<Change, Fault> {
        let running = self.services().clusters.load_full();
        let mut change = Change::default();
        for name in config.database_names() {
            let prepared = match self.cluster_settings(config, name) {
                Ok(settings) => prepare_one(running.get(name), settings, &mut change).await,
                Err(fault) => Err(fault),
            };
            match prepared {
                Ok(()) => {}
                // It was not there before: the change makes nothing worse.
                Err(fault) if self.is_absent(name) => {
                    change.absent.insert(name.to_owned(), fault);
                }
                Err(fault) => {
                    change.undo().await;
                    return Err(fault);
                }
            }
        }
        Ok(change)
    }

    /// Shows the new configuration to everybody. Nothing can fail here.
    fn take(&self, config: Config, change: Change) {
        let services = self.services();
        let mut clusters = (**services.clusters.load()).clone();
        let mut ended: Vec<Arc<Cluster>> = Vec::new();
        let names = config.database_names();
        clusters.retain(|name, cluster| {
            let stays = names.contains(&name.as_str());
            if !stays {
                ended.push(cluster.clone());
            }
            stays
        });
        for cluster in change.started {
            ended.extend(clusters.insert(cluster.name().to_owned(), cluster));
        }
        for cluster in &ended {
            self.end_driver(cluster.name());
        }
        for (name, cluster) in &clusters {
            if !self.is_driven(name) {
                self.drive_tasks(cluster);
            }
        }
        let served = served(&config, &clusters);
        services.set_settings(accounts::settings(&config));
        services
            .pools
            .configure(limits::pools(&config, self.dialer().clone()));
        super::prepare_verifiers(services);
        services.clusters.store(Arc::new(clusters));
        let mut absent = absent::by_configuration(&config);
        absent.extend(change.absent);
        services.absent.store(Arc::new(absent));
        let limit = config.general.shutdown_timeout.into();
        self.keep_config(config);
        let pools = services.pools.clone();
        tokio::spawn(async move {
            for cluster in ended {
                cluster.retire(limit).await;
            }
            pools.keep_only(|endpoint| served.contains(endpoint));
        });
    }

    pub(super) fn cluster_settings(&self, config: &Config, name: &str) -> Result<Settings, Fault> {
        let instance = Instance {
            instance_id: self.instance_id().to_owned(),
            name: host_name(),
            addr: format!("{}:{}", config.general.host, config.general.port),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            databases: config
                .database_names()
                .into_iter()
                .map(str::to_owned)
                .collect(),
        };
        Settings::from_config(config, name, instance, self.dialer().clone()).ok_or_else(|| {
            Fault::BadConfig {
                place: config.users_path.display().to_string(),
                why: format!("database \"{name}\" has no user to log in with"),
                hint: None,
            }
        })
    }

    /// Drives the database's tasks for as long as it is served.
    pub(super) fn drive_tasks(&self, cluster: &Arc<Cluster>) {
        if cluster.is_plain() {
            return;
        }
        let stop: CancellationToken = self.services().shutdown.child_token();
        self.note_driver(cluster.name(), stop.clone());
        tokio::spawn(Driver::run(cluster.clone(), stop));
    }
}

async fn prepare_one(
    running: Option<&Arc<Cluster>>,
    settings: Settings,
    change: &mut Change,
) -> Result<(), Fault> {
    match running {
        Some(cluster) if format!("{:?}", cluster.settings()) == format!("{settings:?}") => Ok(()),
        // A running database takes the change as it is: caches, positions and the lock that vouches
        // for transactions under way stay. Only another login needs a new start.
        Some(cluster) if cluster.can_take(&settings) => {
            let before = cluster.settings();
            cluster.reload(settings).await?;
            change.taken.push((cluster.clone(), before));
            Ok(())
        }
        Some(_) | None => {
            change.started.push(Cluster::start(settings).await?);
            Ok(())
        }
    }
}

impl Change {
    async fn undo(self) {
        for cluster in self.started {
            cluster.stop().await;
        }
        for (cluster, before) in self.taken {
            if let Err(fault) = cluster.reload((*before).clone()).await {
                tracing::error!(database = cluster.name(), %fault, "cannot go back");
            }
        }
    }
}

/// Endpoints that clients may be led to.
fn served(
    config: &Config,
    clusters: &HashMap<String, Arc<Cluster>>,
) -> std::collections::HashSet<Endpoint> {
    let declared = config.databases.iter().map(limits::endpoint);
    let known = clusters.values().flat_map(|cluster| cluster.addresses());
    let known = known.map(endpoint);
    declared.chain(known).collect()
}

/// Settings that need a new process.
const FIXED: &[&str] = &[
    "host",
    "port",
    "workers",
    "openmetrics_port",
    "healthcheck_port",
    "log_format",
    "log_level",
];

/// Those of them that were changed.
fn fixed(old: &Config, new: &Config) -> Vec<String> {
    let value = |entries: &[(String, String)], name: &str| {
        let entry = entries.iter().find(|(known, _)| known == name);
        entry.map(|(_, value)| value.clone())
    };
    let (old, new) = (old.entries(), new.entries());
    let changed = FIXED
        .iter()
        .filter(|name| value(&old, name) != value(&new, name));
    changed
        .map(|name| format!("{name} counts after a restart only"))
        .collect()
}

/// The name of this machine.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
