//! What is measured: a server, and three proxies of one thread each in front of it.

use std::fs::{File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::{Uid, User};
use pgdog_integration::fixture::configure;
use pgdog_integration::{Cluster, wait_until};
use tokio::net::TcpStream;

use super::load::Mode;

/// The server itself.
pub const DIRECT: &str = "direct";
/// The relay of this program.
pub const RELAY: &str = "relay";
/// Debian's PgBouncer.
pub const BOUNCER: &str = "PgBouncer";
/// The shim.
pub const PGDOG: &str = "pgdog";

/// How long a proxy may take to listen.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Where to connect, and whose time counts.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// The proxy's process.
    pub pid: Option<u32>,
}

/// Something that answers queries.
#[derive(Debug)]
pub struct Target {
    /// Its name in the table.
    pub name: &'static str,
    usual: Endpoint,
    /// Another process of it, for prepared statements.
    prepared: Option<Endpoint>,
}

impl Target {
    fn new(name: &'static str, port: u16, pid: Option<u32>) -> Self {
        Self {
            name,
            usual: Endpoint { port, pid },
            prepared: None,
        }
    }

    /// Where queries of a mode go.
    pub fn endpoint(&self, mode: Mode) -> Endpoint {
        match mode {
            Mode::Prepared => self.prepared.unwrap_or(self.usual),
            Mode::Simple | Mode::Extended => self.usual,
        }
    }
}

/// All targets. The proxies end when this is dropped.
pub struct Targets {
    targets: Vec<Target>,
    _proxies: Vec<Proxy>,
}

impl Targets {
    /// Starts the proxies in front of a cluster of one server.
    ///
    /// # Errors
    /// When one of them does not listen in time.
    pub async fn start(cluster: &Cluster, most_clients: usize) -> anyhow::Result<Self> {
        let server = cluster.shard(0)?.primary.port;
        let relay = Proxy::relay(server)?;
        let bouncer = Proxy::bouncer(cluster, "transaction", most_clients)?;
        let session_bouncer = Proxy::bouncer(cluster, "session", most_clients)?;
        let shim = one_thread(cluster, most_clients).await?;
        let proxies = vec![relay, bouncer, session_bouncer];
        for proxy in &proxies {
            proxy.listens().await?;
        }
        let mut targets = vec![
            Target::new(DIRECT, server, None),
            Target::new(RELAY, proxies[0].port, Some(proxies[0].child.id())),
            Target::new(BOUNCER, proxies[1].port, Some(proxies[1].child.id())),
            Target::new(PGDOG, cluster.login(0).port, Some(shim)),
        ];
        // Debian's PgBouncer (1.18) has prepared statements in session mode only.
        targets[2].prepared = Some(Endpoint {
            port: proxies[2].port,
            pid: Some(proxies[2].child.id()),
        });
        Ok(Self {
            targets,
            _proxies: proxies,
        })
    }

    /// Leaves out all but these, and none if none is named.
    pub fn keep_only(&mut self, names: &[String]) {
        let named = |target: &Target| names.iter().any(|name| name == target.name);
        self.targets
            .retain(|target| names.is_empty() || named(target));
    }

    /// All of them, another one first in every turn.
    pub fn in_turn(&self, turn: usize) -> impl Iterator<Item = &Target> {
        let count = self.targets.len();
        self.targets
            .iter()
            .cycle()
            .skip(turn % count.max(1))
            .take(count)
    }
}

/// Gives the cluster's shim one thread and as many connections as there are clients, and lets
/// clients in without a password, as PgBouncer does. Tells its process.
async fn one_thread(cluster: &Cluster, most_clients: usize) -> anyhow::Result<u32> {
    let size = format!("default_pool_size = {most_clients}");
    let lines = ["workers = 1", &size, "auth_type = \"trust\""];
    configure(cluster, 0, &lines).await?;
    let pid = cluster.shim_pid(0).context("the shim has ended")?;
    Ok(u32::try_from(pid)?)
}

/// A process in front of the server.
struct Proxy {
    child: Child,
    port: u16,
}

impl Proxy {
    fn relay(server: u16) -> anyhow::Result<Self> {
        let port = free_port()?;
        let child = Command::new(std::env::current_exe()?)
            .args(["relay", &port.to_string(), &server.to_string()])
            .spawn()?;
        Ok(Self { child, port })
    }

    fn bouncer(cluster: &Cluster, mode: &str, most_clients: usize) -> anyhow::Result<Self> {
        let port = free_port()?;
        let ini = cluster.dir().join(format!("pgbouncer-{mode}.ini"));
        std::fs::write(&ini, bouncer_ini(cluster, mode, port, most_clients)?)?;
        let log = File::create(ini.with_extension("log"))?;
        let mut command = Command::new("pgbouncer");
        command
            .arg(&ini)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if Uid::effective().is_root() {
            run_as_postgres(&mut command, &ini)?;
        }
        let child = command
            .spawn()
            .context("cannot run pgbouncer, which `make bench` installs")?;
        Ok(Self { child, port })
    }

    async fn listens(&self) -> anyhow::Result<()> {
        let address = ("127.0.0.1", self.port);
        wait_until("a proxy listens", START_LIMIT, || async {
            Ok(TcpStream::connect(address).await.ok())
        })
        .await
        .map(drop)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself, which its users have noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bouncer_ini(
    cluster: &Cluster,
    mode: &str,
    port: u16,
    most_clients: usize,
) -> anyhow::Result<String> {
    let d = cluster.description();
    let (server, name) = (cluster.shard(0)?.primary.port, &d.database);
    let (user, password) = (&d.user, &d.password);
    Ok(format!(
        "[databases]
{name} = host=127.0.0.1 port={server} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {most_clients}
max_client_conn = 1000
log_connections = 0
log_disconnections = 0
"
    ))
}

/// PgBouncer refuses to run as root. Its file holds a password.
fn run_as_postgres(command: &mut Command, ini: &Path) -> anyhow::Result<()> {
    let postgres = User::from_name("postgres")?.context("there is no user postgres")?;
    std::fs::set_permissions(ini, Permissions::from_mode(0o600))?;
    chown(
        ini,
        Some(postgres.uid.as_raw()),
        Some(postgres.gid.as_raw()),
    )?;
    command
        .uid(postgres.uid.as_raw())
        .gid(postgres.gid.as_raw());
    Ok(())
}

/// A port that nobody listens on.
///
/// # Errors
/// When there is none.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port())
}
