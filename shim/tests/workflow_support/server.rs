//! One temporary PostgreSQL server with the installed extension.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

/// Stopped when dropped.
pub struct Server {
    pub port: u16,
    folder: TempDir,
}

impl Server {
    /// Makes and starts a server; as user postgres when we are root.
    pub fn start(port: u16) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("pgdog-workflow-")
            .tempdir()
            .unwrap();
        let server = Self { port, folder };
        if nix::unistd::geteuid().is_root() {
            let user = nix::unistd::User::from_name("postgres")
                .unwrap()
                .expect("user postgres");
            let path = server.folder.path();
            std::os::unix::fs::chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
                .unwrap();
        }
        let data = server.data();
        server.run(
            "initdb",
            ["-A", "trust", "-U", "postgres", "--no-sync", "-D"],
            &data,
        );
        let options = format!(
            "-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' \
             -c shared_preload_libraries=pgdog -c wal_level=logical \
             -c max_prepared_transactions=50 -c max_replication_slots=10 -c max_wal_senders=10 \
             -c wal_retrieve_retry_interval=500ms -c shared_buffers=32MB -c fsync=off \
             -c max_connections=60"
        );
        let log = server.folder.path().join("log");
        let log = log.to_str().unwrap();
        server.run(
            "pg_ctl",
            ["-w", "-l", log, "-o", &options, "start", "-D"],
            &data,
        );
        server
    }

    /// A session in this database.
    pub async fn client(&self, database: &str) -> Client {
        let config = format!(
            "host=127.0.0.1 port={} user=postgres dbname={database} application_name=test",
            self.port
        );
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn run<const N: usize>(&self, program: &str, args: [&str; N], data: &Path) {
        let output = command(program).args(args).arg(data).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {error}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stop = ["-m", "immediate", "stop", "-D"];
        let _ = command("pg_ctl").args(stop).arg(self.data()).output();
    }
}

fn command(program: impl AsRef<OsStr>) -> Command {
    let output = Command::new("pg_config")
        .arg("--bindir")
        .output()
        .expect("pg_config");
    let bindir = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let program = bindir.join(program.as_ref());
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    // A backtrace variable would put forty lines into every error of the extension.
    command
        .env_remove("RUST_BACKTRACE")
        .env("HOME", "/tmp")
        .current_dir("/tmp");
    command
}
