//! PostgreSQL's own load generator: 50 clients on a pool of 5 connections.
//!
//! pgbench serves many clients with one thread, and waits in that thread for the answer to a Parse:
//! whoever makes it wait there for a connection that another client of the thread holds has it
//! wait for ever.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::configure;
use pgdog_integration::pgbench::{number_after, pgbench};
use pgdog_integration::{Client, Cluster, Shape, claims, suite};

/// Server connections.
const POOL: usize = 5;
/// Clients on them.
const CLIENTS: usize = 50;
/// Transactions of each client and script.
const TRANSACTIONS: usize = 10;
/// Statements that a server connection may keep: fewer than the scripts have.
const KEPT: usize = 4;

const SCRIPTS: [&str; 3] = ["tpcb-like", "simple-update", "select-only"];

/// The built-in scripts, each transaction in one pipeline.
const PIPELINES: [&str; 3] = [
    "\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
\\startpipeline
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
    VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
\\endpipeline
",
    "\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
\\startpipeline
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
    VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
\\endpipeline
",
    "\\set aid random(1, 100000 * :scale)
\\startpipeline
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
\\endpipeline
",
];

fn main() -> ExitCode {
    let shape = Shape::shards(1);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            scripts_run_in_simple_mode,
            scripts_run_in_extended_mode,
            scripts_run_in_prepared_mode,
            pipelines_run_in_extended_mode,
            pipelines_run_in_prepared_mode,
            backends_keep_as_many_statements_as_they_may,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let pool = format!("default_pool_size = {POOL}");
    let kept = format!("prepared_statements_limit = {KEPT}");
    configure(cluster, 0, &[&pool, &kept]).await?;
    let server = cluster.shard(0)?.primary.port;
    pgbench(cluster, server, &["-i", "-q", "-s", "5"]).map(drop)
}

async fn scripts_run_in_simple_mode(cluster: &Cluster) -> anyhow::Result<()> {
    run_scripts(cluster, "simple")
}

async fn scripts_run_in_extended_mode(cluster: &Cluster) -> anyhow::Result<()> {
    run_scripts(cluster, "extended")
}

async fn scripts_run_in_prepared_mode(cluster: &Cluster) -> anyhow::Result<()> {
    run_scripts(cluster, "prepared")
}

async fn pipelines_run_in_extended_mode(cluster: &Cluster) -> anyhow::Result<()> {
    run_pipelines(cluster, "extended")
}

async fn pipelines_run_in_prepared_mode(cluster: &Cluster) -> anyhow::Result<()> {
    run_pipelines(cluster, "prepared")
}

fn run_scripts(cluster: &Cluster, mode: &str) -> anyhow::Result<()> {
    for script in SCRIPTS {
        run(cluster, mode, &["-b", script]).context(script)?;
    }
    Ok(())
}

fn run_pipelines(cluster: &Cluster, mode: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    for (number, script) in PIPELINES.iter().enumerate() {
        let path = folder.path().join(format!("{number}.sql"));
        std::fs::write(&path, script)?;
        let path = path.to_str().context("a path that is no text")?;
        let scale = ["-D", "scale=5"];
        run(cluster, mode, &[&["-f", path][..], &scale].concat()).context(SCRIPTS[number])?;
    }
    Ok(())
}

/// Every transaction of every client succeeds.
fn run(cluster: &Cluster, mode: &str, what: &[&str]) -> anyhow::Result<()> {
    let (clients, transactions) = (CLIENTS.to_string(), TRANSACTIONS.to_string());
    let how = [
        "-n",
        "-M",
        mode,
        "-c",
        &clients,
        "-j",
        "2",
        "-t",
        &transactions,
    ];
    let port = cluster.login(0).port;
    let printed = pgbench(cluster, port, &[&how[..], what].concat())?;
    let done = number_after(&printed, "number of transactions actually processed:")?;
    ensure!(done == (CLIENTS * TRANSACTIONS) as f64, "{printed}");
    Ok(())
}

/// Looks into every server connection of the pool, by holding all of them at once.
async fn backends_keep_as_many_statements_as_they_may(cluster: &Cluster) -> anyhow::Result<()> {
    run(cluster, "prepared", &["-b", "tpcb-like"])?;
    let mut holders: Vec<Client> = Vec::new();
    let mut kept: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..POOL {
        let client = cluster.connect().await?;
        client.batch_execute("BEGIN").await?;
        let backend = client.value("SELECT pg_backend_pid()").await?;
        let names = client
            .value("SELECT count(*) FROM pg_prepared_statements")
            .await?;
        kept.insert(backend, names.parse()?);
        holders.push(client);
    }
    ensure!(
        kept.len() == POOL,
        "not every connection was seen: {kept:?}"
    );
    ensure!(kept.values().all(|names| *names <= KEPT), "{kept:?}");
    ensure!(
        kept.values().any(|names| *names == KEPT),
        "none was full: {kept:?}"
    );
    Ok(())
}
