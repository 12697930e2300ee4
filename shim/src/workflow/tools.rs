//! `pg_dump` and `pg_restore` of the server's own version.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::nodes::Address;

use super::error::WorkflowError;
use super::site::Site;

/// A dump of shard 0's schema in custom format; its folder goes away with it.
pub struct Dump {
    folder: PathBuf,
    bindir: Option<PathBuf>,
}

impl Dump {
    /// Dumps everything but our own schema, without data.
    ///
    /// # Errors
    /// When `pg_dump` is missing or fails.
    pub async fn take(site: &Site, source: &Address, major: i32) -> Result<Self, WorkflowError> {
        let folder =
            std::env::temp_dir().join(format!("pgdog-dump-{:016x}", rand::random::<u64>()));
        // Only for us: a schema may tell secrets too.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|error| tool("pg_dump", format!("{}: {error}", folder.display())))?;
        let dump = Self {
            folder,
            bindir: bindir(site, major).await,
        };
        let mut command = dump.command("pg_dump");
        command
            .args([
                "--schema-only",
                "--format=custom",
                "--exclude-schema=pgdog",
                "--no-password",
            ])
            .arg("--file")
            .arg(dump.archive())
            .args(["--host", &source.host, "--port", &source.port.to_string()])
            .args(["--username", &site.user, "--dbname", &source.database])
            .env(
                "PGCONNECT_TIMEOUT",
                site.connect_timeout.as_secs().max(1).to_string(),
            )
            .env("PGAPPNAME", "pgdog workflow");
        command.envs(site.dialer.libpq());
        if let Some(password) = &site.password {
            command.env("PGPASSWORD", password);
        }
        run("pg_dump", command).await?;
        Ok(dump)
    }

    /// The table of contents.
    ///
    /// # Errors
    /// When `pg_restore` is missing or fails.
    pub async fn listing(&self) -> Result<String, WorkflowError> {
        let mut command = self.command("pg_restore");
        command.arg("--list").arg(self.archive());
        run("pg_restore", command).await
    }

    /// The script of some of its entries; empty for an empty list.
    ///
    /// # Errors
    /// When `pg_restore` is missing or fails.
    pub async fn script(&self, entries: &str) -> Result<String, WorkflowError> {
        if entries.is_empty() {
            return Ok(String::new());
        }
        let list = self.folder.join("list");
        fs::write(&list, entries).map_err(|error| tool("pg_restore", error.to_string()))?;
        let mut command = self.command("pg_restore");
        command
            .arg("--file=-")
            .arg("--use-list")
            .arg(list)
            .arg(self.archive());
        run("pg_restore", command).await
    }

    fn archive(&self) -> PathBuf {
        self.folder.join("schema.dump")
    }

    fn command(&self, program: &str) -> Command {
        let path = match &self.bindir {
            Some(bindir) => bindir.join(program),
            None => PathBuf::from(program),
        };
        Command::new(path)
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        // A leftover in the temporary folder does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The configured folder, else Debian's for this major version, else what `pg_config` says, else
/// none: `PATH` is searched. An older `pg_dump` than the server refuses to work.
async fn bindir(site: &Site, major: i32) -> Option<PathBuf> {
    if let Some(bindir) = &site.bindir {
        return Some(bindir.clone());
    }
    let debian = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
    if has(&debian, "pg_dump") {
        return Some(debian);
    }
    let mut command = Command::new("pg_config");
    command.arg("--bindir");
    let bindir = PathBuf::from(run("pg_config", command).await.ok()?.trim());
    has(&bindir, "pg_dump").then_some(bindir)
}

fn has(bindir: &Path, program: &str) -> bool {
    bindir.join(program).is_file()
}

async fn run(name: &'static str, mut command: Command) -> Result<String, WorkflowError> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command
        .output()
        .await
        .map_err(|error| tool(name, error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(tool(name, text.trim().to_owned()));
    }
    String::from_utf8(output.stdout).map_err(|_| tool(name, "its output is not UTF-8".into()))
}

fn tool(tool: &'static str, output: String) -> WorkflowError {
    WorkflowError::Tool { tool, output }
}
