//! A `pgdog dev` cluster: started, connected to, damaged, stopped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use crate::client::{Client, Login};
use crate::wait::wait_until;

/// How big a cluster is.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Serving shards.
    pub shards: u16,
    /// Replicas of each shard.
    pub replicas: u16,
    /// Empty servers, declared as the next shards.
    pub spares: u16,
    /// Shims.
    pub shims: u16,
}

impl Shape {
    /// This many shards without replicas, behind one shim.
    pub fn shards(shards: u16) -> Self {
        Self {
            shards,
            replicas: 0,
            spares: 0,
            shims: 1,
        }
    }

    /// With so many replicas of each shard.
    pub fn replicas(self, replicas: u16) -> Self {
        Self { replicas, ..self }
    }

    /// With so many empty servers, declared as the next shards.
    pub fn spares(self, spares: u16) -> Self {
        Self { spares, ..self }
    }

    /// Behind so many shims.
    pub fn shims(self, shims: u16) -> Self {
        Self { shims, ..self }
    }
}

/// `dev.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Description {
    /// Port of the first shim.
    pub port: u16,
    /// The database.
    pub database: String,
    /// Its owner.
    pub user: String,
    /// Password of the owner.
    pub password: String,
    /// The operator.
    pub admin: Operator,
    /// Superuser of every server.
    pub superuser: Account,
    /// Serving shards.
    pub shards: Vec<Shard>,
    /// Empty servers.
    pub spares: Vec<Shard>,
    /// Configuration file of the first shim.
    pub config: PathBuf,
    /// Users file.
    pub users: PathBuf,
    /// The shims.
    pub shims: Vec<Shim>,
}

/// The admin database and its user.
#[derive(Debug, Clone, Deserialize)]
pub struct Operator {
    /// Database.
    pub database: String,
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
}

/// A role of the servers.
#[derive(Debug, Clone, Deserialize)]
pub struct Account {
    /// Name.
    pub user: String,
    /// Password.
    pub password: String,
}

/// The servers of a shard.
#[derive(Debug, Clone, Deserialize)]
pub struct Shard {
    /// Number.
    pub shard: u16,
    /// Takes the writes.
    pub primary: Server,
    /// Follow the primary.
    pub replicas: Vec<Server>,
}

/// A server.
#[derive(Debug, Clone, Deserialize)]
pub struct Server {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Data directory.
    pub data: PathBuf,
}

/// A shim.
#[derive(Debug, Clone, Deserialize)]
pub struct Shim {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Its pid at the start of the cluster.
    pub pid: i32,
    /// Its configuration file.
    pub config: PathBuf,
}

/// A running cluster. Dropping it stops everything.
pub struct Cluster {
    dir: PathBuf,
    program: PathBuf,
    keep: bool,
    description: Description,
    /// Current pids of the shims; `None` when killed.
    pids: Mutex<Vec<Option<i32>>>,
}

impl Cluster {
    /// Starts a cluster in a new directory.
    ///
    /// # Errors
    /// When `pgdog dev` fails; its message is the error.
    pub fn start(shape: Shape) -> anyhow::Result<Self> {
        let program = program()?;
        let dir = tempfile::Builder::new().prefix("pgdog-").tempdir()?.keep();
        let pg_config = std::env::var("PG_CONFIG").unwrap_or("/usr/bin/pg_config".to_owned());
        let output = Command::new(&program)
            .args(["dev", "--pg-config", &pg_config, "--dir"])
            .arg(&dir)
            .args(["--shards", &shape.shards.to_string()])
            .args(["--replicas", &shape.replicas.to_string()])
            .args(["--spares", &shape.spares.to_string()])
            .args(["--shims", &shape.shims.to_string()])
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!("pgdog dev: {}", String::from_utf8_lossy(&output.stderr));
        }
        let description: Description = serde_json::from_slice(&output.stdout)
            .context("pgdog dev printed something else than dev.json")?;
        let pids = Mutex::new(
            description
                .shims
                .iter()
                .map(|shim| Some(shim.pid))
                .collect(),
        );
        Ok(Self {
            dir,
            program,
            keep: false,
            description,
            pids,
        })
    }

    /// Leaves the cluster running when this value is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// The directory with data and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ports, users and passwords.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// How the application logs in through a shim.
    pub fn login(&self, shim: usize) -> Login {
        let d = &self.description;
        Login {
            port: d.shims[shim].port,
            user: d.user.clone(),
            password: d.password.clone(),
            database: d.database.clone(),
            options: "-c pgdog.report_commit_lsn=on".to_owned(),
        }
    }

    /// The application through the first shim, with tokens pushed.
    ///
    /// # Errors
    /// When the login fails.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(&self.login(0)).await
    }

    /// The operator.
    ///
    /// # Errors
    /// When the login fails.
    pub async fn admin(&self, shim: usize) -> anyhow::Result<Client> {
        let d = &self.description;
        Client::connect(&Login {
            port: d.shims[shim].port,
            user: d.admin.user.clone(),
            password: d.admin.password.clone(),
            database: d.admin.database.clone(),
            options: String::new(),
        })
        .await
    }

    /// The superuser, directly on a server.
    ///
    /// # Errors
    /// When the login fails.
    pub async fn node(&self, server: &Server) -> anyhow::Result<Client> {
        let d = &self.description;
        Client::connect(&Login {
            port: server.port,
            user: d.superuser.user.clone(),
            password: d.superuser.password.clone(),
            database: d.database.clone(),
            options: String::new(),
        })
        .await
    }

    /// The superuser on the primary of a shard; a spare counts as the shard it is declared as.
    ///
    /// # Errors
    /// When there is no such shard or the login fails.
    pub async fn primary(&self, shard: u16) -> anyhow::Result<Client> {
        self.node(&self.shard(shard)?.primary).await
    }

    /// The superuser on a replica (0-based) of a shard.
    ///
    /// # Errors
    /// When there is no such replica or the login fails.
    pub async fn replica(&self, shard: u16, replica: usize) -> anyhow::Result<Client> {
        let replicas = &self.shard(shard)?.replicas;
        self.node(replicas.get(replica).context("no such replica")?)
            .await
    }

    /// The servers of a shard.
    ///
    /// # Errors
    /// When there is no such shard.
    pub fn shard(&self, number: u16) -> anyhow::Result<&Shard> {
        let d = &self.description;
        d.shards
            .iter()
            .chain(&d.spares)
            .find(|s| s.shard == number)
            .with_context(|| format!("no shard {number}"))
    }

    /// Kills a shim with -9.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_shim(&self, shim: usize) -> anyhow::Result<()> {
        let pid = self.pids()[shim].take().context("this shim does not run")?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        Ok(())
    }

    /// Sends a signal to a shim.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal_shim(&self, shim: usize, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pids()[shim].context("this shim does not run")?;
        kill(Pid::from_raw(pid), signal)?;
        Ok(())
    }

    /// The process of a shim; `None` when it was killed.
    pub fn shim_pid(&self, shim: usize) -> Option<i32> {
        self.pids()[shim]
    }

    /// Starts a killed shim again and waits until it serves.
    ///
    /// # Errors
    /// When it runs already, or does not answer in time.
    pub async fn restart_shim(&self, shim: usize) -> anyhow::Result<()> {
        if self.pids()[shim].is_some() {
            bail!("shim {shim} still runs");
        }
        // A process with many connections is not gone as soon as it is killed.
        let port = self.login(shim).port;
        wait_until(
            "the killed shim's port",
            Duration::from_secs(30),
            || async { Ok(std::net::TcpListener::bind(("127.0.0.1", port)).ok()) },
        )
        .await?;
        let child = self.run_shim(
            &self.description.shims[shim].config,
            &self.description.users,
            &self.dir.join(format!("shim-{shim}.log")),
        )?;
        self.pids()[shim] = Some(i32::try_from(child.id())?);
        wait_until("the restarted shim", Duration::from_secs(30), || async {
            Ok(Client::connect(&self.login(shim)).await.ok())
        })
        .await?;
        Ok(())
    }

    /// Starts a shim with files of the caller's, who also ends it.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn run_shim(&self, config: &Path, users: &Path, log: &Path) -> anyhow::Result<Child> {
        let log = File::options().append(true).create(true).open(log)?;
        let child = Command::new(&self.program)
            .arg("run")
            .arg("--config")
            .arg(config)
            .arg("--users")
            .arg(users)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(child)
    }

    fn pids(&self) -> std::sync::MutexGuard<'_, Vec<Option<i32>>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends everything; the directory is removed unless its logs are wanted.
    ///
    /// # Errors
    /// When something keeps running.
    pub fn stop(&self, logs: Logs) -> anyhow::Result<()> {
        let output = Command::new(&self.program)
            .args(["dev", "--stop", "--dir"])
            .arg(&self.dir)
            .output()?;
        if !output.status.success() {
            bail!(
                "pgdog dev --stop: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        match logs {
            Logs::Removed => std::fs::remove_dir_all(&self.dir)?,
            Logs::Kept => eprintln!("logs are in {}", self.dir.display()),
        }
        Ok(())
    }
}

/// What happens with a stopped cluster's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logs {
    /// It is removed.
    Removed,
    /// It stays.
    Kept,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.keep || !self.dir.exists() {
            return;
        }
        let logs = match std::env::var_os("KEEP_LOGS") {
            Some(_) => Logs::Kept,
            None => Logs::Removed,
        };
        if let Err(error) = self.stop(logs) {
            eprintln!("{} may still run: {error:#}", self.dir.display());
        }
    }
}

/// The shim's program: `PGDOG_BIN`, else beside this one in the target directory.
fn program() -> anyhow::Result<PathBuf> {
    if let Some(program) = std::env::var_os("PGDOG_BIN") {
        return Ok(PathBuf::from(program));
    }
    let this = std::env::current_exe()?;
    this.ancestors()
        .map(|dir| dir.join("pgdog"))
        .find(|candidate| candidate.is_file())
        .context("no program pgdog beside the tests; run `make build`, or set PGDOG_BIN")
}
