//! A network that loses packets, and a client that hardly reads.
//!
//! The whole cluster lives in a network namespace of its own, where a rule of routing drops what
//! goes to and comes from one server: established connections hear nothing, as with a firewall
//! that drops. (New ones are refused by the system at once instead of after the connect timeout.)
//! That takes the rights of root, as the servers of `pgdog dev` do.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use pgdog_integration::client::{Client, sqlstate};
use pgdog_integration::fixture::{create, full_size, none_left, plain, resident_kb};
use pgdog_integration::wire::{Batch, Wire};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};
use tokio::io::AsyncReadExt as _;

/// Set for the process that is inside of the namespace.
const INSIDE: &str = "PGDOG_TEST_NAMESPACE";
const LIMIT: Duration = Duration::from_secs(60);
/// A loss is noticed within 15 s where the limit is 10 s; as much again is for a busy machine.
const NOTICED: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    if std::env::var_os(INSIDE).is_none() {
        return enter();
    }
    if let Err(error) = prepare_network() {
        println!("no network: {error:#}");
        return ExitCode::FAILURE;
    }
    suite::run(
        Shape::shards(2),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r155_a_server_that_falls_silent_is_given_up_and_comes_back,
            r156_a_slow_reader_costs_no_memory_and_leaves_no_backend,
        ],
    )
}

/// Runs this program again inside a new namespace.
fn enter() -> ExitCode {
    let Ok(program) = std::env::current_exe() else {
        return ExitCode::FAILURE;
    };
    let error = Command::new("unshare")
        .args(["--net", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    println!("cannot enter a network namespace: {error}");
    ExitCode::FAILURE
}

fn ip(command: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(command.split(' ')).output()?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "ip {command}: {told}");
    Ok(())
}

/// The rule for local addresses, usually the first of all, makes room for rules before it.
fn prepare_network() -> anyhow::Result<()> {
    ip("link set lo up")?;
    ip("rule add pref 100 lookup local")?;
    ip("rule del pref 0")
}

/// While this lives, nothing goes to or comes from the port.
struct Silence(u16);

impl Silence {
    fn of(port: u16) -> anyhow::Result<Self> {
        let silence = Self(port);
        ip(&format!(
            "rule add pref 10 ipproto tcp dport {port} blackhole"
        ))?;
        ip(&format!(
            "rule add pref 11 ipproto tcp sport {port} blackhole"
        ))?;
        Ok(silence)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        for pref in [10, 11] {
            if let Err(error) = ip(&format!("rule del pref {pref}")) {
                println!("port {} stays silent: {error}", self.0);
            }
        }
    }
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    let path = &cluster.description().config;
    let text = std::fs::read_to_string(path)?;
    let tcp = "\n[tcp]\ntime = 3000\ninterval = 1000\nretries = 3\nuser_timeout = 10000\n";
    std::fs::write(path, text + tcp)?;
    cluster.kill_shim(0)?;
    cluster.restart_shim(0).await
}

fn on(tenant: i64) -> String {
    format!("SELECT count(*) FROM orders WHERE tenant_id = {tenant}")
}

/// The packets of S1 are dropped in mid-query and while connections are idle.
async fn r155_a_server_that_falls_silent_is_given_up_and_comes_back(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let other_shard = async {
        let client = cluster.connect().await?;
        let mut slowest = Duration::ZERO;
        while !stop.load(Ordering::SeqCst) {
            let began = Instant::now();
            client.value(&on(11)).await?;
            slowest = slowest.max(began.elapsed());
            served.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
        ensure!(
            slowest < Duration::from_secs(5),
            "shard 0 was slow: {slowest:?}"
        );
        anyhow::Ok(())
    };
    let faults = async {
        let ended = silence_and_return(cluster, &served).await;
        stop.store(true, Ordering::SeqCst);
        ended
    };
    let (other_shard, faults) = tokio::join!(other_shard, faults);
    faults.and(other_shard)
}

async fn silence_and_return(cluster: &Cluster, served: &AtomicUsize) -> anyhow::Result<()> {
    let (running, idle) = (cluster.connect().await?, cluster.connect().await?);
    let (inside, on_12) = (cluster.connect().await?, on(12));
    inside.batch_execute("BEGIN").await?;
    inside.value(&on_12).await?;
    idle.value(&on_12).await?;
    let slow = "SELECT pg_sleep(300) FROM (SELECT count(*) FROM orders WHERE tenant_id = 12) AS c";
    let asked = running.batch_execute(slow);
    tokio::pin!(asked);
    let silence = tokio::select! {
        ended = &mut asked => bail!("ended before: {ended:?}"),
        silence = silence_while_running(cluster) => silence?,
    };
    let (began, before) = (Instant::now(), served.load(Ordering::SeqCst));
    let lost = tokio::join!(
        asked,
        idle.batch_execute(&on_12),
        inside.batch_execute(&on_12)
    );
    for (what, result) in [
        ("running", lost.0),
        ("idle", lost.1),
        ("in a transaction", lost.2),
    ] {
        let error = result.err();
        let error = error.with_context(|| format!("{what}: answered by a silent server"))?;
        let code = sqlstate(&error);
        ensure!(
            code.starts_with("08") || code.starts_with("57P"),
            "{what}: {error}"
        );
    }
    ensure!(
        began.elapsed() < NOTICED,
        "noticed after {:?}",
        began.elapsed()
    );
    ensure!(
        served.load(Ordering::SeqCst) > before,
        "shard 0 stood still meanwhile"
    );
    drop(silence);
    wait_until("answers of the server that is back", LIMIT, || async {
        Ok(idle.value(&on_12).await.ok())
    })
    .await?;
    inside.batch_execute("ROLLBACK").await?;
    ensure!(inside.value(&on_12).await? == "0");
    Ok(())
}

async fn silence_while_running(cluster: &Cluster) -> anyhow::Result<Silence> {
    let node = cluster.primary(1).await?;
    wait_until("the running statement", LIMIT, || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' \
                   AND query LIKE '%pg_sleep(300)%' AND pid <> pg_backend_pid()";
        Ok((node.value(sql).await? != "0").then_some(()))
    })
    .await?;
    Silence::of(cluster.shard(1)?.primary.port)
}

/// 1 kB/s of a large result while others work; then the reader is gone. 500 MB and 60 s at full
/// size: what is buffered does not depend on how much is still to come.
async fn r156_a_slow_reader_costs_no_memory_and_leaves_no_backend(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (megabytes, seconds, clients) = if full_size() {
        (500, 60, 50)
    } else {
        (100, 5, 10)
    };
    let mut others = Vec::new();
    for _ in 0..clients {
        let client = Client::connect(&plain(cluster, 0)).await?;
        client.value(&on(11)).await?;
        others.push(client);
    }
    let mut reader = Wire::connect(&plain(cluster, 0)).await?;
    let before = resident_kb(cluster, 0)?;
    let sql = format!(
        "/* pgdog_shard: 0 */ SELECT repeat('x', 1000) FROM generate_series(1, {megabytes} * 1000)"
    );
    reader.send(&Batch::new().query(&sql).bytes).await?;
    let mut some = [0; 256];
    let mut ticks = tokio::time::interval(Duration::from_millis(250));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < deadline {
        ticks.tick().await;
        ensure!(reader.stream.read(&mut some).await? > 0, "sent away");
        for client in &others {
            client.value(&on(11)).await?;
        }
    }
    let growth_kb = resident_kb(cluster, 0)?.saturating_sub(before);
    ensure!(growth_kb < 16 * 1024, "{growth_kb} kB for a slow reader");
    none_left(cluster, 1, "query LIKE '%generate_series%'").await?;
    reader.reset()?;
    none_left(cluster, 0, "query LIKE '%generate_series%'").await
}
