//! Everything that runs from a directory, ended.
//!
//! The processes are found in /proc by their arguments, not by remembered pids: a pid may belong to
//! somebody else by now, and a shim or a server may have been restarted since.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a process has to end by itself before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// How long a killed process may take to disappear.
const LIMIT: Duration = Duration::from_secs(15);

/// A process of a local cluster.
pub(super) struct Process {
    /// Its pid.
    pub(super) pid: i32,
    kind: Kind,
}

/// What it is, and so how it is asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Shim,
    Server,
}

/// Ends everything of the directory and says so.
pub(super) async fn run(dir: &Path) -> anyhow::Result<()> {
    let dir = dir
        .canonicalize()
        .with_context(|| format!("there is no {}", dir.display()))?;
    let ended = end_all(&dir).await?;
    println!("{ended} processes of {} ended", dir.display());
    Ok(())
}

/// Ends everything of the directory; returns how many processes that were.
pub(super) async fn end_all(dir: &Path) -> anyhow::Result<usize> {
    let began = Instant::now();
    let mut asked: Vec<i32> = Vec::new();
    loop {
        let processes = processes_of(dir)?;
        if processes.is_empty() {
            return Ok(asked.len());
        }
        if began.elapsed() > LIMIT {
            bail!("process {} does not end", processes[0].pid);
        }
        for process in &processes {
            if began.elapsed() > GRACE {
                signal(process.pid, Signal::SIGKILL)?;
            } else if !asked.contains(&process.pid) {
                asked.push(process.pid);
                signal(process.pid, process.kind.request())?;
                // A frozen process ends only once it goes on.
                signal(process.pid, Signal::SIGCONT)?;
            }
        }
        // They are not our children: their end can only be looked for.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Kind {
    fn request(self) -> Signal {
        match self {
            Kind::Shim => Signal::SIGTERM,
            // Immediate: the data is not used again, and a replica need not be waited for.
            Kind::Server => Signal::SIGQUIT,
        }
    }
}

/// The shims and servers whose arguments name a file or a data directory below `dir`.
pub(super) fn processes_of(dir: &Path) -> anyhow::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // Gone since, or a zombie, whose arguments are empty: neither runs.
        let Ok(arguments) = fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let arguments: Vec<&OsStr> = arguments
            .split(|byte| *byte == 0)
            .map(OsStr::from_bytes)
            .collect();
        if let Some(kind) = kind_of(&arguments, dir) {
            found.push(Process { pid, kind });
        }
    }
    Ok(found)
}

fn kind_of(arguments: &[&OsStr], dir: &Path) -> Option<Kind> {
    let program = Path::new(arguments.first()?).file_name()?;
    let below = |flag: &str| {
        arguments
            .windows(2)
            .any(|pair| pair[0] == flag && PathBuf::from(pair[1]).parent() == Some(dir))
    };
    let is_server = program == "postgres" || program == "postmaster";
    if is_server && below("-D") {
        return Some(Kind::Server);
    }
    (arguments.get(1).is_some_and(|verb| *verb == "run") && below("--config")).then_some(Kind::Shim)
}

fn signal(pid: i32, signal: Signal) -> anyhow::Result<()> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot signal process {pid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(arguments: &[&str]) -> Option<Kind> {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        kind_of(&arguments, Path::new("/tmp/d"))
    }

    #[test]
    fn only_shims_and_servers_of_the_directory_are_ours() {
        assert!(kind(&["/x/postgres", "-D", "/tmp/d/shard-0"]) == Some(Kind::Server));
        assert!(kind(&["/x/pgdog", "run", "--config", "/tmp/d/pgdog.toml"]) == Some(Kind::Shim));
        assert!(kind(&["/x/postgres", "-D", "/tmp/d2/shard-0"]).is_none());
        assert!(kind(&["/x/pgdog", "check", "--config", "/tmp/d/pgdog.toml"]).is_none());
        assert!(kind(&["vi", "/tmp/d/pgdog.toml"]).is_none());
        assert!(kind(&[""]).is_none());
    }
}
