//! A PostgreSQL server of its own for each test program, and a scripted one.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "shared by several test programs"
)]

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use pgdog_shim::proto::{Frame, backend, startup};
use pgdog_shim::server::{Conn, Endpoint, Lease, Login, PoolSettings, Pools, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Interval;

/// Nothing here should take longer.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Who may log in, by which method.
const HBA: &str = "\
host all trusted 127.0.0.1/32 trust
host all md5 127.0.0.1/32 md5
host all clear 127.0.0.1/32 password
host all all 127.0.0.1/32 scram-sha-256
";

const CONF: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
max_connections = 60
max_prepared_transactions = 10
";

struct Server {
    port: u16,
    /// Holds the pipe whose end stops the server when this process is gone, however it ends.
    _keeper: Child,
}

/// Endpoint of this program's server, started at the first call.
pub fn endpoint() -> Endpoint {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let port = SERVER.get_or_init(start).port;
    Endpoint {
        host: "127.0.0.1".to_owned(),
        port,
        database: "postgres".to_owned(),
    }
}

/// A login; the password is `secret` for all that have one.
pub fn login(user: &str) -> Login {
    let secret = match user {
        "trusted" => Secret::None,
        _ => Secret::password("secret"),
    };
    Login {
        user: user.to_owned(),
        secret,
        ..Login::default()
    }
}

/// A connection as superuser without a password.
pub async fn connect() -> Conn {
    Conn::connect(&endpoint(), &login("trusted"), LIMIT)
        .await
        .expect("the server is up")
}

/// Polls until the statement's only value is `expected`.
pub async fn wait_for(conn: &mut Conn, sql: &str, expected: &str) {
    let mut poll = Poll::new();
    while conn.simple(sql).await.expect("a valid statement")[0][0].as_deref() != Some(expected) {
        poll.next(sql).await;
    }
}

/// Paces the looks at a condition, and ends the test when it does not come true.
pub struct Poll {
    ticks: Interval,
    deadline: Instant,
}

impl Poll {
    pub fn new() -> Self {
        let ticks = tokio::time::interval(Duration::from_millis(2));
        Self {
            ticks,
            deadline: Instant::now() + LIMIT,
        }
    }

    pub async fn next(&mut self, what: &str) {
        assert!(Instant::now() < self.deadline, "waited in vain: {what}");
        self.ticks.tick().await;
    }
}

fn start() -> Server {
    let bindir = bindir();
    let dir = tempfile::Builder::new()
        .prefix("pgdog_server_")
        .tempdir()
        .unwrap()
        .keep();
    let data = dir.join("data");
    fs::write(dir.join("password"), "secret").unwrap();
    let is_root = nix::unistd::Uid::effective().is_root();
    if is_root {
        run(Command::new("chown").args(["-R", "postgres:"]).arg(&dir));
    }
    let as_postgres = if is_root {
        "setpriv --reuid postgres --regid postgres --clear-groups"
    } else {
        ""
    };
    let (bin, dir_text) = (bindir.trim(), dir.display());
    sh(&format!(
        "{as_postgres} {bin}/initdb -N -D {dir_text}/data -U postgres -A scram-sha-256 \
         --pwfile {dir_text}/password >{dir_text}/initdb.log"
    ));
    append(&data.join("postgresql.conf"), CONF);
    fs::write(data.join("pg_hba.conf"), HBA).unwrap();
    let roles = "CREATE ROLE trusted SUPERUSER LOGIN;\n\
        CREATE ROLE scram LOGIN PASSWORD 'secret';\n\
        CREATE ROLE clear LOGIN PASSWORD 'secret';\n\
        SET password_encryption = 'md5';\n\
        CREATE ROLE md5 LOGIN PASSWORD 'secret';\n";
    fs::write(dir.join("roles.sql"), roles).unwrap();
    sh(&format!(
        "{as_postgres} {bin}/postgres --single -j -D {dir_text}/data postgres \
         <{dir_text}/roles.sql >{dir_text}/single.log 2>&1"
    ));
    let port = free_port();
    // The shell stops the server and cleans up when its standard input ends with this process.
    let script = format!(
        "env -u RUST_BACKTRACE {as_postgres} {bin}/postgres -D {dir_text}/data -p {port} \
         >{dir_text}/log 2>&1 </dev/null & server=$!; cat >/dev/null; kill -INT $server; \
         wait $server; rm -rf {dir_text}"
    );
    let mut keeper = Command::new("sh");
    keeper.args(["-c", &script]).stdin(Stdio::piped());
    let keeper = keeper.spawn().unwrap();
    wait_until_open(port);
    Server {
        port,
        _keeper: keeper,
    }
}

/// On a thread of its own: the caller may be inside another runtime.
fn wait_until_open(port: u16) {
    let probing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let host = "127.0.0.1".to_owned();
        let endpoint = Endpoint {
            host,
            port,
            database: "postgres".to_owned(),
        };
        runtime.block_on(async {
            let mut poll = Poll::new();
            while Conn::connect(&endpoint, &login("trusted"), LIMIT)
                .await
                .is_err()
            {
                poll.next("the server starts").await;
            }
        });
    });
    probing.join().unwrap();
}

fn bindir() -> String {
    let config = std::env::var("PG_CONFIG").unwrap_or_else(|_| "pg_config".to_owned());
    let output = Command::new(config)
        .arg("--bindir")
        .output()
        .expect("pg_config is installed");
    String::from_utf8(output.stdout).unwrap()
}

fn free_port() -> u16 {
    let first = 21_100 + (std::process::id() % 100) as u16;
    let ports = (first..21_200).chain(21_100..first);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a free port between 21100 and 21199")
}

fn append(path: &Path, text: &str) {
    fs::OpenOptions::new()
        .append(true)
        .open(path)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
}

fn sh(script: &str) {
    run(Command::new("sh").args(["-c", script]));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A server that lets everybody in, reports `settings`, and then answers each message that it
/// gets by the next of `answers`; it keeps going for further connections.
pub async fn scripted(settings: Vec<(&'static str, String)>, answers: Vec<Vec<Frame>>) -> Endpoint {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let (settings, answers) = (settings.clone(), answers.clone());
            tokio::spawn(async move {
                let mut buffer = BytesMut::new();
                while startup::take_startup(&mut buffer).unwrap().is_none() {
                    io.read_buf(&mut buffer).await.unwrap();
                }
                let mut out = BytesMut::new();
                backend::auth_ok(&mut out);
                for (name, value) in settings {
                    backend::parameter_status(name, &value, &mut out);
                }
                backend::ready_for_query(pgdog_shim::proto::TxStatus::Idle, &mut out);
                io.write_all(&out).await.unwrap();
                for answer in answers {
                    if !asked(&mut io).await {
                        return;
                    }
                    let mut out = BytesMut::new();
                    answer.iter().for_each(|frame| frame.encode(&mut out));
                    io.write_all(&out).await.unwrap();
                }
                // Stay until the peer leaves.
                while asked(&mut io).await {}
            });
        }
    });
    Endpoint {
        host: "127.0.0.1".to_owned(),
        port,
        database: "postgres".to_owned(),
    }
}

/// Waits for a message, having told a pool that its role has no settings; false when the peer
/// leaves.
async fn asked(io: &mut tokio::net::TcpStream) -> bool {
    loop {
        let mut buffer = BytesMut::with_capacity(1 << 16);
        if !io.read_buf(&mut buffer).await.is_ok_and(|count| count > 0) {
            return false;
        }
        if !String::from_utf8_lossy(&buffer).contains("pg_db_role_setting") {
            return true;
        }
        let mut out = BytesMut::new();
        backend::command_complete("SELECT 0", &mut out);
        backend::ready_for_query(pgdog_shim::proto::TxStatus::Idle, &mut out);
        io.write_all(&out).await.unwrap();
    }
}

/// Pools of so many connections each.
pub fn pools(size: usize) -> Arc<Pools> {
    Pools::new(PoolSettings {
        size,
        ..PoolSettings::default()
    })
}

/// A connection without a password.
pub async fn lend(pools: &Pools) -> Lease {
    pools
        .checkout(&endpoint(), &login("trusted"), LIMIT)
        .await
        .unwrap()
}

/// Waits until a condition on the pools holds.
pub async fn until(pools: &Pools, what: &str, condition: impl Fn(&Pools) -> bool) {
    let mut poll = Poll::new();
    while !condition(pools) {
        poll.next(what).await;
    }
}
