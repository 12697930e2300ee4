//! Start, run, reload and stop: the composition of everything else.
//!
//! Order of the start: logging, pools, databases (each loads its topology from the nodes),
//! drivers of tasks, and the listener last, so that no statement is served by a picture that
//! nobody has checked.

mod accounts;
mod host;

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::nodes::{Cluster, Instance, Settings};
use crate::observe;
use crate::server::{PoolSettings, Pools};
use crate::session::{self, Services};
use crate::workflow::Driver;
use host::Process;

/// Clients that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Serves clients until the process is asked to stop.
///
/// # Errors
/// When the configured nodes or the port cannot be used.
pub fn run(config: Config) -> anyhow::Result<()> {
    observe::start_logging();
    let mut builder = match config.general.workers {
        // One thread needs no queues that others could steal from.
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder
        .worker_threads(config.general.workers.max(1))
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> anyhow::Result<()> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    for warning in accounts::unserved(&config) {
        tracing::warn!("{warning}");
    }
    let app = App::start(config).await?;
    let listener = app.listen()?;
    tracing::info!(addr = %listener.local_addr()?, "listening");
    app.accept(listener).await?;
    app.stop().await;
    Ok(())
}

/// The running process.
struct App {
    process: Arc<Process>,
    sessions: TaskTracker,
}

impl App {
    async fn start(config: Config) -> anyhow::Result<Self> {
        let general = &config.general;
        let pools = Pools::new(PoolSettings {
            size: general.default_pool_size,
            idle_timeout: general.idle_timeout.into(),
            connect_timeout: general.connect_timeout.into(),
            ..PoolSettings::default()
        });
        let services = Arc::new(Services::new(accounts::settings(&config), pools));
        let process = Process::new(config, services.clone());
        process.start_databases().await?;
        let handler = Arc::new(host::Operator::new(process.clone()));
        if services.admin.set(handler).is_err() {
            anyhow::bail!("the admin database has its handler already");
        }
        Ok(Self {
            process,
            sessions: TaskTracker::new(),
        })
    }

    fn listen(&self) -> anyhow::Result<TcpListener> {
        let config = self.process.config();
        let (host, port) = (&config.general.host, config.general.port);
        let addr = format!("{host}:{port}")
            .parse()
            .or_else(|_| format!("[{host}]:{port}").parse())
            .with_context(|| format!("[general] host \"{host}\" is no IP address"))?;
        let bind = || -> std::io::Result<TcpListener> {
            let socket = match addr {
                std::net::SocketAddr::V4(_) => TcpSocket::new_v4()?,
                std::net::SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            socket.listen(BACKLOG)
        };
        bind().with_context(|| format!("cannot listen on {addr}"))
    }

    /// Accepts clients until a signal or an operator ends it.
    async fn accept(&self, listener: TcpListener) -> anyhow::Result<()> {
        let shutdown = self.process.services().shutdown.clone();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let services = self.process.services().clone();
                        self.sessions.spawn(session::serve(stream, peer, services));
                    }
                    Err(error) => {
                        // Out of descriptors, say: what is connected goes on.
                        tracing::error!(%error, "cannot accept a client");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    if let Err(fault) = self.process.reload_files() {
                        tracing::error!(%fault, "configuration not reloaded");
                    }
                }
                () = shutdown.cancelled() => break,
            }
        }
        tracing::info!("stopping");
        shutdown.cancel();
        Ok(())
    }

    /// Waits for open transactions, then ends what is left.
    async fn stop(self) {
        let limit = self.process.config().general.shutdown_timeout.into();
        self.sessions.close();
        if tokio::time::timeout(limit, self.sessions.wait())
            .await
            .is_err()
        {
            let left = self.sessions.len();
            tracing::warn!(left, "clients in transactions are cut off");
        }
        for cluster in self.process.services().clusters.load().values() {
            cluster.stop().await;
        }
        tracing::info!("stopped");
    }
}

/// Pause after a failed accept.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

impl Process {
    /// Starts every configured database.
    async fn start_databases(&self) -> anyhow::Result<()> {
        let config = self.config();
        let mut clusters = HashMap::new();
        for name in config.database_names() {
            let Some(settings) = self.cluster_settings(&config, name) else {
                anyhow::bail!("database \"{name}\" has no user to log in with");
            };
            let cluster = Cluster::start(settings)
                .await
                .with_context(|| format!("cannot start database \"{name}\""))?;
            self.drive_tasks(&cluster);
            clusters.insert(name.to_owned(), cluster);
        }
        self.services().clusters.store(Arc::new(clusters));
        Ok(())
    }

    fn cluster_settings(&self, config: &Config, name: &str) -> Option<Settings> {
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
        Settings::from_config(config, name, instance)
    }

    /// Drives the database's tasks for as long as it is served.
    fn drive_tasks(&self, cluster: &Arc<Cluster>) {
        if cluster.is_plain() {
            return;
        }
        let stop: CancellationToken = self.services().shutdown.child_token();
        self.note_driver(cluster.name(), stop.clone());
        tokio::spawn(Driver::run(cluster.clone(), stop));
    }

    /// After a reload: starts databases that are new or declared differently, ends the others.
    async fn restart_databases(&self, config: &Config) {
        let mut clusters = (**self.services().clusters.load()).clone();
        let names = config.database_names();
        let mut ended: Vec<Arc<Cluster>> = Vec::new();
        clusters.retain(|name, cluster| {
            let stays = names.contains(&name.as_str());
            if !stays {
                ended.push(cluster.clone());
            }
            stays
        });
        for name in names {
            let Some(settings) = self.cluster_settings(config, name) else {
                continue;
            };
            let same = clusters.get(name).is_some_and(|cluster| {
                format!("{:?}", cluster.settings()) == format!("{settings:?}")
            });
            if same {
                continue;
            }
            // A running database takes the change as it is: caches, positions and the lock that
            // vouches for transactions under way stay. Only another login needs a new start.
            if let Some(cluster) = clusters.get(name)
                && cluster.can_take(&settings)
            {
                if let Err(fault) = cluster.reload(settings).await {
                    tracing::error!(database = name, %fault, "database stays as it was");
                }
                continue;
            }
            match Cluster::start(settings).await {
                Ok(cluster) => {
                    self.end_driver(name);
                    self.drive_tasks(&cluster);
                    ended.extend(clusters.insert(name.to_owned(), cluster));
                }
                Err(fault) => {
                    tracing::error!(database = name, %fault, "database stays as it was");
                }
            }
        }
        self.services().clusters.store(Arc::new(clusters));
        for cluster in ended {
            cluster.stop().await;
        }
        tracing::info!("configuration reloaded");
    }
}

/// The name of this machine.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
