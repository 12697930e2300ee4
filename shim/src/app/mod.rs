//! Start, run, reload and stop: the composition of everything else.
//!
//! Order of the start: logging, pools, databases (each loads its topology from the nodes),
//! drivers of tasks, and the listener last, so that no statement is served by a picture that
//! nobody has checked.

mod absent;
mod accounts;
mod host;
mod http;
mod limits;
mod measure;
mod memory;
mod reload;
mod tls;

use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::config::{Config, LogFormat};
use crate::net::Dialer;
use crate::observe;
use crate::server::Pools;
use crate::session::{self, Services};
use host::Process;
use tls::{Missing, Tls};

/// Clients that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Serves clients until the process is asked to stop.
///
/// # Errors
/// When the configured nodes or the port cannot be used.
pub fn run(config: Config) -> anyhow::Result<()> {
    let json = config.general.log_format == LogFormat::Json;
    observe::start_logging(&config.general.log_level, json);
    limits::raise_descriptors();
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
    let (metrics, health) = (
        config.general.openmetrics_port,
        config.general.healthcheck_port,
    );
    let app = App::start(config).await?;
    let listener = app.listen()?;
    for (port, page) in [(metrics, http::Page::Metrics), (health, http::Page::Health)] {
        if let Some(port) = port {
            http::serve(app.process.clone(), port, page).await?;
        }
    }
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
        let tls = Tls::load(&config.general, Missing::IsTold)
            .map_err(|fault| anyhow::anyhow!("{}", fault.message()))?;
        let dialer = Dialer::new(tls.outbound);
        let pools = Pools::new(limits::pools(&config, dialer.clone()));
        let services = Arc::new(Services::new(accounts::settings(&config), pools));
        services.tls.store(tls.inbound.map(Arc::new));
        prepare_verifiers(&services);
        memory::give_back_after_clients(services.clone());
        let process = Process::new(config, services.clone(), dialer);
        process.start_databases().await?;
        process.look_for_absent();
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
                    let process = self.process.clone();
                    tokio::spawn(async move {
                        if let Err(fault) = process.reload().await {
                            tracing::error!(%fault, "configuration not reloaded");
                        }
                    });
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
        let config = self.process.config();
        let limit = config.general.shutdown_timeout.into();
        self.sessions.close();
        if timeout(limit, self.sessions.wait()).await.is_err() {
            let left = self.sessions.len();
            tracing::warn!(left, "clients in transactions are cut off");
            // Without this the servers would go on with statements that nobody waits for.
            self.process.services().cancel_all().await;
            let grace = config.general.shutdown_termination_timeout;
            let _ = timeout(grace.map_or(GRACE, Into::into), self.sessions.wait()).await;
        }
        for cluster in self.process.services().clusters.load().values() {
            cluster.stop().await;
        }
        tracing::info!("stopped");
    }
}

/// How long cancelled statements may take to end.
const GRACE: std::time::Duration = std::time::Duration::from_secs(1);
/// Pause after a failed accept.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// In the background: passwords are many, and each takes milliseconds.
fn prepare_verifiers(services: &Arc<Services>) {
    let services = services.clone();
    tokio::task::spawn_blocking(move || services.prepare_verifiers());
}
