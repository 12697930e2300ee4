//! PostgreSQL servers that are alike but for the extension: made once, started from the same files
//! again and again.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use nix::unistd::{Uid, User};
use pgdog_integration::client::{Client, Login};
use pgdog_integration::pgbench::programs;

use super::targets::free_port;

/// Settings of each: nothing is written or cleaned up while others are measured.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
max_prepared_transactions = 20
shared_buffers = 512MB
huge_pages = off
max_wal_size = 8GB
checkpoint_timeout = 1h
autovacuum = off
fsync = off
synchronous_commit = off
jit = off
log_min_messages = fatal
";

/// Scale of pgbench's tables.
const SCALE: &str = "10";
/// Free room in a page, so that rows change within theirs.
const FILL: &str = "80";

/// The database, and the superuser who asks.
const NAME: &str = "postgres";

/// Whether a server has the extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As PostgreSQL comes.
    Plain,
    /// Loaded, created, declared as the only shard, with pgbench's tables sharded.
    WithExtension,
}

/// A server. It ends when this is dropped.
pub struct Server {
    kind: Kind,
    port: u16,
    data: PathBuf,
    /// What every start begins with.
    template: PathBuf,
    is_running: bool,
    /// What its clients say of themselves.
    pub options: String,
}

impl Server {
    /// Makes the files of a server below a directory.
    ///
    /// # Errors
    /// When a program fails.
    pub async fn make(dir: &Path, name: &str, kind: Kind) -> anyhow::Result<Self> {
        let mut server = Self {
            kind,
            port: free_port()?,
            data: dir.join(name),
            template: dir.join(format!("{name}.template")),
            is_running: false,
            options: String::new(),
        };
        let data = server.data.to_string_lossy().into_owned();
        let words = ["--username", NAME, "--auth", "trust", "--no-sync", "-D"];
        run(program("initdb")?.args(words).arg(&data))?;
        let conf = server.data.join("postgresql.conf");
        let library = match kind {
            Kind::Plain => "",
            Kind::WithExtension => "shared_preload_libraries = 'pgdog'\n",
        };
        let text = std::fs::read_to_string(&conf)? + SETTINGS + library;
        std::fs::write(&conf, text)?;
        server.start()?;
        let port = server.port.to_string();
        let words = ["-i", "-q", "-s", SCALE, "-F", FILL, "-h", "127.0.0.1", "-p"];
        run(program("pgbench")?
            .args(words)
            .args([&port, "-U", NAME, NAME]))?;
        if kind == Kind::WithExtension {
            server.declare().await?;
        }
        server.client().await?.batch_execute("CHECKPOINT").await?;
        server.stop("fast")?;
        std::fs::rename(&server.data, &server.template)?;
        Ok(server)
    }

    async fn declare(&mut self) -> anyhow::Result<()> {
        let client = self.client().await?;
        for sql in [
            "CREATE EXTENSION pgdog",
            "SELECT pgdog.install_node(0, 1)",
            "SELECT pgdog.shard_table('pgbench_accounts', 'aid')",
            "SELECT pgdog.shard_table('pgbench_tellers', 'tid')",
            "SELECT pgdog.shard_table('pgbench_branches', 'bid')",
            "SELECT pgdog.shard_table('pgbench_history', 'aid')",
        ] {
            client.batch_execute(sql).await.context(sql)?;
        }
        let epoch = client.value("SELECT epoch FROM pgdog.topology").await?;
        self.options = format!("-c pgdog.epoch={epoch}");
        Ok(())
    }

    /// Starts it from the files that it was made with.
    ///
    /// # Errors
    /// When they cannot be copied, or it does not start.
    pub fn start_anew(&mut self) -> anyhow::Result<()> {
        self.stop("immediate")?;
        if self.data.exists() {
            std::fs::remove_dir_all(&self.data)?;
        }
        run(owned(Command::new("cp"))?
            .arg("-a")
            .arg(&self.template)
            .arg(&self.data))?;
        self.start()
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let port = format!("-p {}", self.port);
        let words = ["start", "-s", "-w", "-l", "/dev/null", "-o", &port, "-D"];
        run(program("pg_ctl")?.args(words).arg(&self.data))?;
        self.is_running = true;
        Ok(())
    }

    fn stop(&mut self, mode: &str) -> anyhow::Result<()> {
        if !std::mem::take(&mut self.is_running) {
            return Ok(());
        }
        run(program("pg_ctl")?
            .args(["stop", "-s", "-w", "-m", mode, "-D"])
            .arg(&self.data))
    }

    /// A connection that is not measured.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let login = Login {
            port: self.port,
            user: NAME.into(),
            password: String::new(),
            database: NAME.into(),
            options: String::new(),
        };
        Client::connect(&login).await
    }

    /// TPC-B with prepared statements, until it is killed.
    ///
    /// # Errors
    /// When pgbench cannot be run.
    pub fn load(&self, clients: &str) -> anyhow::Result<Child> {
        let port = self.port.to_string();
        program("pgbench")?
            .args(["-n", "-M", "prepared", "-j", "1", "-T", "1000000"])
            .args(["-c", clients, "-h", "127.0.0.1", "-p", &port, "-U", NAME])
            .arg(NAME)
            .env("PGOPTIONS", &self.options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run pgbench")
    }

    /// Which it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its files go away with it.
        let _ = self.stop("immediate");
    }
}

/// Lets the user of the servers write in a directory.
///
/// # Errors
/// When there is no such user.
pub fn hand_over(dir: &Path) -> anyhow::Result<()> {
    if let Some(user) = owner()? {
        chown(dir, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    }
    Ok(())
}

/// PostgreSQL does not run as root.
fn owner() -> anyhow::Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let user = User::from_name("postgres")?.context("there is no user postgres")?;
    Ok(Some(user))
}

fn owned(mut command: Command) -> anyhow::Result<Command> {
    if let Some(user) = owner()? {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command.current_dir("/").stdin(Stdio::null());
    Ok(command)
}

fn program(name: &str) -> anyhow::Result<Command> {
    owned(Command::new(programs()?.join(name)))
}

/// What a server says goes nowhere: it would hold a pipe open for as long as it runs.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
