//! Faults that tests bring about, and a writer that measures how long they hold others up.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, User};
use tokio::task::JoinHandle;

use crate::client::{Client, Login, describe};
use crate::cluster::{Cluster, Server};
use crate::tasks;
use crate::wait::wait_until;

/// For what happens within moments.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a standby may take to pause its replay, or to go on.
const PAUSE_LIMIT: Duration = Duration::from_secs(30);

/// Pauses or resumes the replay of all replicas of a shard, and waits until they say so.
///
/// # Errors
/// When one of them cannot be asked, or does not follow in time.
pub async fn replay(cluster: &Cluster, shard: u16, on: bool) -> anyhow::Result<()> {
    let (call, state) = match on {
        true => ("SELECT pg_wal_replay_resume()", "not paused"),
        false => ("SELECT pg_wal_replay_pause()", "paused"),
    };
    for replica in 0..cluster.shard(shard)?.replicas.len() {
        let node = cluster.replica(shard, replica).await?;
        node.batch_execute(call).await?;
        wait_until(&format!("replay {state}"), PAUSE_LIMIT, || async {
            let now = node.value("SELECT pg_get_wal_replay_pause_state()").await?;
            Ok((now == state).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Runs a check with all replay of a shard paused; it goes on afterwards, whatever the outcome.
///
/// # Errors
/// Those of the check and of [`replay`].
pub async fn while_paused<F>(cluster: &Cluster, shard: u16, check: F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    replay(cluster, shard, false).await?;
    let outcome = check.await;
    replay(cluster, shard, true).await?;
    outcome
}

/// The shim that drives a task.
///
/// # Errors
/// When none says so in time.
pub async fn coordinator(cluster: &Cluster, task: i64) -> anyhow::Result<usize> {
    let node = cluster.primary(0).await?;
    let id = wait_until("a coordinator", LIMIT, || async {
        Ok(tasks::get(&node, task).await?.coordinator)
    })
    .await?;
    let sql = format!("SELECT addr FROM pgdog.instances WHERE instance_id = '{id}'");
    let addr = node.value(&sql).await?;
    let shims = &cluster.description().shims;
    shims
        .iter()
        .position(|shim| addr.ends_with(&format!(":{}", shim.port)))
        .with_context(|| format!("no shim has the address {addr}"))
}

/// Ends what a claim that failed has left running, so that the next one fails for its own reasons.
///
/// # Errors
/// When it cannot be ended.
pub async fn calm(cluster: &Cluster) -> anyhow::Result<()> {
    let Some(task) = tasks::latest(cluster).await? else {
        return Ok(());
    };
    if !["done", "aborted"].contains(&task.status.as_str()) {
        let admin = cluster.admin(0).await?;
        admin.rows(&format!("STOP_TASK {}", task.id)).await?;
        tasks::wait_for_end(cluster, task.id, LIMIT).await?;
    }
    Ok(())
}

/// Kills a server with -9 as an operating system would that runs out of memory.
///
/// # Errors
/// When it does not run.
pub fn kill_server(server: &Server) -> anyhow::Result<Killed> {
    let (pid, killed) = running(server)?;
    kill(pid, Signal::SIGKILL)?;
    // One that we restarted is a child of ours and, until it is reaped, looks alive to its
    // successor. Of others there is nothing to reap.
    let _ = waitpid(pid, None);
    Ok(killed)
}

/// Stops a server in an orderly way: its standbys get all that it wrote.
///
/// # Errors
/// When it does not run, or goes on running.
pub async fn stop_server(server: &Server) -> anyhow::Result<Killed> {
    end_server(server, Signal::SIGINT).await
}

/// Stops a server at once, as `pg_ctl -m immediate` does.
///
/// # Errors
/// When it does not run, or goes on running.
pub async fn quit_server(server: &Server) -> anyhow::Result<Killed> {
    end_server(server, Signal::SIGQUIT).await
}

async fn end_server(server: &Server, how: Signal) -> anyhow::Result<Killed> {
    let (pid, killed) = running(server)?;
    kill(pid, how)?;
    wait_until("the end of the server", LIMIT, || async {
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        Ok((!server.data.join("postmaster.pid").exists()).then_some(()))
    })
    .await?;
    Ok(killed)
}

fn running(server: &Server) -> anyhow::Result<(Pid, Killed)> {
    let file = std::fs::read_to_string(server.data.join("postmaster.pid"))?;
    let pid: i32 = file.lines().next().context("no pid")?.trim().parse()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline"))?;
    let mut words = line
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .filter(|word| !word.is_empty());
    let program = words.next().context("the server has no command line")?;
    let arguments = words.collect();
    Ok((Pid::from_raw(pid), Killed { program, arguments }))
}

/// Kills one process of a server with -9; false if there is none of that kind.
///
/// The server takes all others down and starts anew by itself.
///
/// # Errors
/// When the server cannot be asked.
pub async fn kill_process(
    cluster: &Cluster,
    server: &Server,
    condition: &str,
) -> anyhow::Result<bool> {
    let node = cluster.node(server).await?;
    let sql = format!(
        "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND ({condition}) LIMIT 1"
    );
    let Some(pid) = node.rows(&sql).await?.into_iter().flatten().next() else {
        return Ok(false);
    };
    // It may have ended by itself meanwhile.
    let _ = kill(Pid::from_raw(pid.parse()?), Signal::SIGKILL);
    Ok(true)
}

/// Replaces a server by a copy of another one, behind the same port, that follows it.
///
/// # Errors
/// When the copy cannot be made or does not come up.
pub async fn clone_server(
    cluster: &Cluster,
    source: &Server,
    target: &Server,
) -> anyhow::Result<()> {
    let stopped = quit_server(target).await?;
    clone_stopped(cluster, source, (target, &stopped)).await
}

/// As [`clone_server`], of one that was stopped or killed.
///
/// # Errors
/// As [`clone_server`].
pub async fn clone_stopped(
    cluster: &Cluster,
    source: &Server,
    (target, stopped): (&Server, &Killed),
) -> anyhow::Result<()> {
    // The last process of a killed server may still write there.
    wait_until("the old data directory is gone", LIMIT, || async {
        match std::fs::remove_dir_all(&target.data) {
            Ok(()) => Ok(Some(())),
            Err(_) => Ok(None),
        }
    })
    .await?;
    let superuser = &cluster.description().superuser;
    let programs = std::path::Path::new(&stopped.program)
        .parent()
        .context("a server without a directory of programs")?;
    let mut backup = Command::new(programs.join("pg_basebackup"));
    as_postgres(&mut backup)?;
    let made = backup
        .args(["--checkpoint=fast", "--wal-method=stream", "--no-sync"])
        .args(["--write-recovery-conf", "--dbname"])
        .arg(format!(
            "host=127.0.0.1 port={} user={} application_name=clone",
            source.port, superuser.user
        ))
        .arg("--pgdata")
        .arg(&target.data)
        .current_dir(cluster.dir())
        .env("PGPASSWORD", &superuser.password)
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        made.status.success(),
        "pg_basebackup: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    for (file, line) in [
        ("postgresql.conf", format!("port = {}\n", target.port)),
        (
            "postgresql.auto.conf",
            "primary_slot_name = ''\n".to_owned(),
        ),
    ] {
        let path = target.data.join(file);
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, text + &line)?;
    }
    stopped.restart(cluster, target).await
}

/// Makes standbys follow another server than their primary of before.
///
/// # Errors
/// When one of them cannot be told.
pub async fn follow(
    cluster: &Cluster,
    standbys: &[&Server],
    (old, new): (&Server, &Server),
) -> anyhow::Result<()> {
    for standby in standbys {
        let node = cluster.node(standby).await?;
        let conninfo = node.value("SHOW primary_conninfo").await?;
        let (old, new) = (format!("port={}", old.port), format!("port={}", new.port));
        let conninfo = conninfo.replace(&old, &new).replace('\'', "''");
        for sql in [
            &format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'"),
            "ALTER SYSTEM SET primary_slot_name = ''",
            "SELECT pg_reload_conf()",
        ] {
            node.batch_execute(sql).await.context(sql.to_owned())?;
        }
    }
    Ok(())
}

/// Servers and their programs do not run as root.
fn as_postgres(command: &mut Command) -> anyhow::Result<()> {
    if nix::unistd::getuid().is_root() {
        let user = User::from_name("postgres")?.context("no user postgres")?;
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    Ok(())
}

/// How to start a killed server again.
pub struct Killed {
    program: String,
    arguments: Vec<String>,
}

impl Killed {
    /// Starts it on the same data and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up in time.
    pub async fn restart(&self, cluster: &Cluster, server: &Server) -> anyhow::Result<()> {
        wait_until("the restarted server", LIMIT, || async {
            // It refuses until the last process of its former life is gone.
            let mut child = self.command()?.spawn()?;
            loop {
                if cluster.node(server).await.is_ok() {
                    return Ok(Some(()));
                }
                if child.try_wait()?.is_some() {
                    return Ok(None);
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    fn command(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        as_postgres(&mut command)?;
        Ok(command)
    }
}

/// An omni writer on a row of its own, which meets no other writer: what holds it up is the gate.
pub struct Probe {
    stop: Arc<AtomicBool>,
    worker: JoinHandle<anyhow::Result<Duration>>,
}

impl Probe {
    /// Writes through one shim until `finish`.
    pub fn start(cluster: &Cluster, shim: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let worker = tokio::spawn(Self::run(cluster.login(shim), Arc::clone(&stop)));
        Self { stop, worker }
    }

    async fn run(login: Login, stop: Arc<AtomicBool>) -> anyhow::Result<Duration> {
        let client = Client::connect(&login).await?;
        let mut longest = Duration::ZERO;
        let mut price = 0;
        while !stop.load(Ordering::Relaxed) {
            price += 1;
            let began = Instant::now();
            let sql = format!("UPDATE plans SET price_cents = {price} WHERE code = 'free'");
            client
                .batch_execute(&sql)
                .await
                .map_err(|error| anyhow::anyhow!("an omni write: {}", describe(&error)))?;
            longest = longest.max(began.elapsed());
        }
        if price > 0 {
            let sql = "SELECT price_cents FROM plans WHERE code = 'free'";
            let value = client.value(sql).await?;
            ensure!(
                value == price.to_string(),
                "{price} was written, {value} is read"
            );
        }
        Ok(longest)
    }

    /// The longest that one write took.
    ///
    /// # Errors
    /// When a write failed, or the last one is not there.
    pub async fn finish(mut self) -> anyhow::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        (&mut self.worker).await.context("the probe panicked")?
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // A claim that failed must not go on writing under the next one.
        self.stop.store(true, Ordering::Relaxed);
    }
}
