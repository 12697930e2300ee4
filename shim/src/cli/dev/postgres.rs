//! One PostgreSQL server of a local cluster: made, started, cloned.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use nix::unistd::{Uid, User};
use tokio::process::Command;

use super::layout::{APP_USER, DATABASE, Layout, SUPERUSER, Server, Shard};
use super::{connect, wait_for};

/// Settings of every server.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_preload_libraries = 'pgdog'
wal_level = logical
max_connections = 200
max_prepared_transactions = 200
max_wal_senders = 20
max_replication_slots = 20
max_worker_processes = 16
max_logical_replication_workers = 8
wal_retrieve_retry_interval = 500ms
wal_receiver_status_interval = 1s
wal_keep_size = 128MB
shared_buffers = 64MB
max_wal_size = 1GB
hot_standby = on
hot_standby_feedback = on
password_encryption = scram-sha-256
logging_collector = off
log_min_messages = warning
log_lock_waits = on
log_line_prefix = '%m [%p] %q%u@%d '
timezone = 'UTC'
log_timezone = 'UTC'
";

const HBA: &str = "\
# TYPE  DATABASE     USER  ADDRESS       METHOD
host    all          all   127.0.0.1/32  scram-sha-256
host    replication  all   127.0.0.1/32  scram-sha-256
";

/// A PostgreSQL that is installed here.
pub(super) struct Installation {
    /// Where its programs are.
    pub(super) bin: PathBuf,
    /// Who the servers run as, when this process is root.
    pub(super) run_as: Option<User>,
}

impl Installation {
    /// Asks `pg_config`, and checks that the extension is installed.
    pub(super) fn find(pg_config: &Path) -> anyhow::Result<Self> {
        let ask = |what: &str| -> anyhow::Result<PathBuf> {
            let output = std::process::Command::new(pg_config)
                .arg(what)
                .output()
                .with_context(|| format!("cannot run {}", pg_config.display()))?;
            Ok(PathBuf::from(
                String::from_utf8_lossy(&output.stdout).trim(),
            ))
        };
        let bin = ask("--bindir")?;
        if !bin.join("initdb").exists() {
            bail!(
                "{} has no initdb; install the PostgreSQL server",
                bin.display()
            );
        }
        let control = ask("--sharedir")?.join("extension/pgdog.control");
        if !control.exists() {
            bail!(
                "the extension is not installed ({} is missing); run `make install PG_CONFIG={}`",
                control.display(),
                pg_config.display()
            );
        }
        let run_as = match Uid::effective().is_root() {
            true => {
                let user = User::from_name("postgres")?;
                Some(
                    user.context("PostgreSQL does not run as root, and there is no user postgres")?,
                )
            }
            false => None,
        };
        Ok(Self { bin, run_as })
    }

    /// Whether the user of the servers can enter a directory.
    pub(super) fn check_reach(&self, dir: &Path) -> anyhow::Result<()> {
        let mut test = std::process::Command::new("/usr/bin/test");
        self.as_owner_std(&mut test);
        if !test.arg("-w").arg(dir).status()?.success() {
            bail!(
                "user postgres cannot reach {}: a directory above it is closed to others; \
                 choose one below /tmp or open the path with chmod o+x",
                dir.display()
            );
        }
        Ok(())
    }

    fn as_owner_std(&self, command: &mut std::process::Command) {
        use std::os::unix::process::CommandExt as _;
        if let Some(user) = &self.run_as {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
    }

    /// A program of this installation, to run as the user of the servers.
    fn program(&self, name: &str, layout: &Layout) -> Command {
        let mut command = Command::new(self.bin.join(name));
        // A set RUST_BACKTRACE would put a backtrace into the DETAIL of errors.
        command
            .current_dir(&layout.dir)
            .env_remove("RUST_BACKTRACE")
            .env("HOME", &layout.dir)
            .env("LC_ALL", "C.UTF-8")
            .env("PGPASSWORD", &layout.superuser_password)
            .stdin(Stdio::null());
        if let Some(user) = &self.run_as {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }
}

/// initdb, start, roles, database, extension.
pub(super) async fn create_primary(
    installation: &Installation,
    layout: &Layout,
    server: &Server,
) -> anyhow::Result<()> {
    let secret = layout.dir.join(format!(".{}.secret", server.name));
    write_secret(&secret, &layout.superuser_password, installation)?;
    let mut initdb = installation.program("initdb", layout);
    initdb
        .args([
            "--username",
            SUPERUSER,
            "--auth",
            "scram-sha-256",
            "--encoding",
            "UTF8",
        ])
        .args([
            "--locale",
            "C.UTF-8",
            "--no-sync",
            "--no-instructions",
            "--pwfile",
        ])
        .arg(&secret)
        .arg("--pgdata")
        .arg(&server.data);
    let made = succeed(initdb, "initdb").await;
    fs::remove_file(&secret)?;
    made?;
    fs::write(server.data.join("pg_hba.conf"), HBA)?;
    append(&server.data.join("postgresql.conf"), SETTINGS)?;
    append(&server.data.join("postgresql.conf"), WHILE_MADE)?;
    start(installation, layout, server).await?;

    let superuser = &layout.superuser_password;
    let client = connect(server.port, SUPERUSER, superuser, "postgres").await?;
    client
        .batch_execute(&format!(
            "CREATE ROLE {APP_USER} LOGIN PASSWORD '{}'",
            layout.app_password
        ))
        .await?;
    client
        .batch_execute(&format!("CREATE DATABASE {DATABASE} OWNER {APP_USER}"))
        .await?;
    let client = connect(server.port, SUPERUSER, superuser, DATABASE).await?;
    client
        .batch_execute("CREATE EXTENSION pgdog")
        .await
        .with_context(|| format!("CREATE EXTENSION on {}", server.name))
}

/// Base backup with a slot of its own, start.
pub(super) async fn create_replica(
    installation: &Installation,
    layout: &Layout,
    shard: &Shard,
    replica: &Server,
) -> anyhow::Result<()> {
    let mut backup = installation.program("pg_basebackup", layout);
    backup
        .args([
            "--checkpoint",
            "fast",
            "--wal-method",
            "stream",
            "--write-recovery-conf",
        ])
        .args([
            "--no-sync",
            "--create-slot",
            "--slot",
            &replica.slot(),
            "--dbname",
        ])
        .arg(format!(
            "host=127.0.0.1 port={} user={SUPERUSER} application_name={}",
            shard.primary.port, replica.name
        ))
        .arg("--pgdata")
        .arg(&replica.data);
    succeed(backup, "pg_basebackup").await?;
    start(installation, layout, replica).await
}

/// Servers are made without fsync, which saves seconds, and serve with it.
const WHILE_MADE: &str = "fsync = off\n";
const WHEN_MADE: &str = "fsync = on\n";

/// From now on, what is acknowledged is there after a crash.
pub(super) async fn make_durable(layout: &Layout, server: &Server) -> anyhow::Result<()> {
    append(&server.data.join("postgresql.conf"), WHEN_MADE)?;
    let client = connect(server.port, SUPERUSER, &layout.superuser_password, DATABASE).await?;
    client.batch_execute("SELECT pg_reload_conf()").await?;
    wait_for("fsync", || async {
        let fsync: String = client.query_one("SHOW fsync", &[]).await?.get(0);
        if fsync != "on" {
            bail!("fsync is {fsync} on {}", server.name);
        }
        Ok(())
    })
    .await
}

/// Until every replica of the shard streams.
pub(super) async fn wait_until_streaming(layout: &Layout, shard: &Shard) -> anyhow::Result<()> {
    if shard.replicas.is_empty() {
        return Ok(());
    }
    let client = connect(
        shard.primary.port,
        SUPERUSER,
        &layout.superuser_password,
        DATABASE,
    )
    .await?;
    let query = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    wait_for("streaming to the replicas", || async {
        let streaming: i64 = client.query_one(query, &[]).await?.get(0);
        if streaming < shard.replicas.len() as i64 {
            bail!("{streaming} of {} replicas stream", shard.replicas.len());
        }
        Ok(())
    })
    .await
}

/// The pid of a running server.
pub(super) fn pid(server: &Server) -> anyhow::Result<i32> {
    let file = server.data.join("postmaster.pid");
    let text = fs::read_to_string(&file).with_context(|| format!("{} is gone", file.display()))?;
    let first = text.lines().next().unwrap_or_default();
    first
        .trim()
        .parse()
        .with_context(|| format!("{} holds no pid", file.display()))
}

async fn start(
    installation: &Installation,
    layout: &Layout,
    server: &Server,
) -> anyhow::Result<()> {
    append(
        &server.data.join("postgresql.conf"),
        &format!("port = {}\n", server.port),
    )?;
    let mut pg_ctl = installation.program("pg_ctl", layout);
    pg_ctl.args(["start", "--silent", "--wait", "--timeout", "60", "--log"]);
    pg_ctl.arg(server.log()).arg("--pgdata").arg(&server.data);
    succeed(pg_ctl, "pg_ctl")
        .await
        .with_context(|| tail(&server.log()))
}

/// Runs a program to its end; what it said becomes the error when it fails.
async fn succeed(mut command: Command, name: &str) -> anyhow::Result<()> {
    let output = command
        .output()
        .await
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// The last lines of a log, for an error message.
pub(super) fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let mut tail = format!("end of {}:", log.display());
    for line in &lines[lines.len().saturating_sub(8)..] {
        // Writing to a String does not fail.
        let _ = write!(tail, "\n  {line}");
    }
    tail
}

fn append(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

fn write_secret(path: &Path, secret: &str, installation: &Installation) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(secret.as_bytes())?;
    if let Some(owner) = &installation.run_as {
        std::os::unix::fs::chown(path, Some(owner.uid.as_raw()), Some(owner.gid.as_raw()))?;
    }
    Ok(())
}
