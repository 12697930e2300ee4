//! Throw-away PostgreSQL servers with the installed extension, and settings that name them.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use pgdog_core::ids::ShardNumber;
use pgdog_shim::nodes::{
    Address, Cluster, DeclaredNode, DeclaredRole, Instance, Settings, Unlisted,
};
use tokio_postgres::NoTls;

static NEXT_PORT: AtomicU16 = AtomicU16::new(21300);

/// One running server; stopped and removed when dropped.
pub struct Server {
    pub port: u16,
    home: PathBuf,
}

impl Server {
    /// A new primary with a database `app`.
    pub async fn primary() -> Self {
        let server = Self::place();
        let data = server.data();
        server.run(
            "initdb",
            &["--no-sync", "-A", "trust", "-U", "postgres", "-D", &data],
        );
        std::fs::write(
            Path::new(&data).join("postgresql.auto.conf"),
            "fsync = off\nshared_preload_libraries = 'pgdog'\nmax_prepared_transactions = 20\n\
             wal_level = logical\nhot_standby_feedback = off\n",
        )
        .expect("the data directory was just made");
        server.start();
        server.sql("postgres", "CREATE DATABASE app").await;
        server
    }

    /// A new primary with the extension in `app`.
    pub async fn with_extension() -> Self {
        let server = Self::primary().await;
        server.sql("app", "CREATE EXTENSION pgdog").await;
        server
    }

    /// A streaming replica.
    pub async fn replica_of(primary: &Server) -> Self {
        let server = Self::place();
        let port = primary.port.to_string();
        server.run(
            "pg_basebackup",
            &[
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                "postgres",
                "-R",
                "-c",
                "fast",
                "--no-sync",
                "-D",
                &server.data(),
            ],
        );
        server.start();
        server
    }

    fn place() -> Self {
        let port = loop {
            let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
            assert!(port < 21400, "all ports of the range are taken");
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                break port;
            }
        };
        let home = std::env::temp_dir().join(format!("pgdog-nodes-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&home).expect("the temporary directory is writable");
        if is_root() {
            let owned = Command::new("chown").arg("postgres").arg(&home).status();
            assert!(owned.expect("chown runs").success());
        }
        Self { port, home }
    }

    fn data(&self) -> String {
        self.home.join("data").display().to_string()
    }

    pub fn start(&self) {
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories={}",
            self.port,
            self.home.display()
        );
        let log = self.home.join("log").display().to_string();
        self.run(
            "pg_ctl",
            &[
                "start",
                "-w",
                "-D",
                &self.data(),
                "-l",
                &log,
                "-o",
                &options,
            ],
        );
    }

    /// As a crash does it.
    pub fn kill(&self) {
        self.run("pg_ctl", &["stop", "-m", "immediate", "-D", &self.data()]);
    }

    /// It follows nobody, and stays as it is.
    pub fn restart_as_standby(&self) {
        self.run("pg_ctl", &["stop", "-m", "fast", "-D", &self.data()]);
        let signal = Path::new(&self.data()).join("standby.signal");
        std::fs::write(signal, "").expect("the data directory is there");
        self.start();
    }

    pub fn promote(&self) {
        self.run("pg_ctl", &["promote", "-w", "-D", &self.data()]);
    }

    fn run(&self, program: &str, args: &[&str]) {
        let output = postgres_command(program)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("PostgreSQL's programs are installed");
        assert!(
            output.status.success(),
            "{program} {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub fn address(&self) -> Address {
        Address {
            host: "127.0.0.1".into(),
            port: self.port,
            database: "app".into(),
        }
    }

    pub fn declared(&self, shard: u16) -> DeclaredNode {
        DeclaredNode {
            shard: ShardNumber(shard),
            address: self.address(),
            role: DeclaredRole::Auto,
            provisioning: false,
            weight: u8::MAX,
        }
    }

    pub async fn client(&self, database: &str) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::Config::new()
            .host("127.0.0.1")
            .port(self.port)
            .user("postgres")
            .dbname(database)
            .connect(NoTls)
            .await
            .expect("the server runs");
        tokio::spawn(connection);
        client
    }

    pub async fn sql(&self, database: &str, sql: &str) {
        self.client(database)
            .await
            .batch_execute(sql)
            .await
            .expect(sql);
    }

    /// One text value of `app`.
    pub async fn value(&self, sql: &str) -> String {
        let rows = self.client("app").await.query(sql, &[]).await.expect(sql);
        rows[0].get(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut stop = postgres_command("pg_ctl");
        // A test may have stopped it: then there is nothing to stop.
        let _ = stop
            .args(["stop", "-m", "immediate", "-D", &self.data()])
            .output();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A program of the installation, as a user who may run servers.
fn postgres_command(program: &str) -> Command {
    let pg_config = std::env::var("PG_CONFIG").unwrap_or_else(|_| "/usr/bin/pg_config".into());
    let found = Command::new(pg_config)
        .arg("--bindir")
        .output()
        .expect("pg_config runs");
    let bindir = String::from_utf8(found.stdout).expect("a path");
    let path = Path::new(bindir.trim()).join(program);
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
            .arg(path);
        command
    } else {
        Command::new(path)
    };
    // With it every error that passes the extension carries a backtrace to the client.
    command
        .env_remove("RUST_BACKTRACE")
        .env("LC_ALL", "C")
        .current_dir("/");
    command
}

pub fn settings(nodes: Vec<DeclaredNode>) -> Settings {
    Settings {
        dialer: std::sync::Arc::default(),
        database: "app".into(),
        nodes,
        sharded: Vec::new(),
        omnisharded: Vec::new(),
        unlisted: Unlisted::Refused,
        user: "postgres".into(),
        password: None,
        two_phase_commit: true,
        lag_limits: Default::default(),
        lsn_check_interval: Duration::from_millis(200),
        connect_timeout: Duration::from_secs(5),
        cutover_timeout: Some(Duration::from_secs(30)),
        lookup_timeout: Duration::from_secs(5),
        lookup_cache_bytes: 1 << 20,
        instance: Instance {
            instance_id: Instance::new_id(),
            name: "test".into(),
            addr: "127.0.0.1:1".into(),
            version: "0".into(),
            databases: vec!["app".into()],
        },
    }
}

pub async fn start(nodes: Vec<DeclaredNode>) -> Arc<Cluster> {
    Cluster::start(settings(nodes))
        .await
        .expect("the cluster can be served")
}

/// Waits for a claim to become true; 20 s at most.
pub async fn eventually(claim: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut look = tokio::time::interval(Duration::from_millis(10));
    while !holds().await {
        assert!(Instant::now() < deadline, "not within 60 s: {claim}");
        look.tick().await;
    }
}
