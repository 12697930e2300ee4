//! `make demo`: what pgdog does, shown on a real cluster. Exit status 0 only if every claim held.
//!
//! With `KEEP=1` the cluster stays, and how to connect to it is printed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pgdog_integration::{Client, Cluster, Shape, shop, wait_until};

mod growth;
mod transcript;

use transcript::Transcript;

/// How many tenants there are, half of them on each shard.
const TENANTS: i64 = 40;
const SIZE: shop::Size = shop::Size {
    tenants: TENANTS,
    users: 100,
    orders: 2_400,
};

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let shown = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(show()));
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("\nThe demonstration failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn show() -> anyhow::Result<()> {
    let began = Instant::now();
    let mut out = Transcript::default();
    out.step("A cluster on this machine");
    let mut cluster = Cluster::start(Shape::shards(2).replicas(1).spares(1))?;
    out.note(&format!(
        "pgdog dev --shards 2 --replicas 1 --spares 1: serving after {:.1} s",
        began.elapsed().as_secs_f64()
    ));
    let outcome = chapters(&cluster, &mut out).await;
    if std::env::var("KEEP").is_ok_and(|keep| keep == "1") {
        cluster.keep();
        how_to_connect(&cluster);
    }
    outcome?;
    println!(
        "\n{} claims, all checked, in {:.0} s.",
        out.claims(),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

async fn chapters(cluster: &Cluster, out: &mut Transcript) -> anyhow::Result<()> {
    load_data(cluster, out).await?;
    token(cluster, out).await?;
    floor(cluster, out).await?;
    tenants(cluster, out).await?;
    growth::show(cluster, out).await
}

async fn load_data(cluster: &Cluster, out: &mut Transcript) -> anyhow::Result<()> {
    out.step("A multi-tenant shop");
    let began = Instant::now();
    shop::create(cluster, SIZE).await?;
    out.note(&format!(
        "{TENANTS} tenants, {} users, {} orders, loaded through the shim in {:.1} s",
        TENANTS * SIZE.users,
        TENANTS * SIZE.orders,
        began.elapsed().as_secs_f64()
    ));
    let mut orders = 0;
    for shard in 0..2 {
        let count = cluster
            .primary(shard)
            .await?
            .value("SELECT count(*) FROM orders")
            .await?;
        out.note(&format!("shard {shard}: {count} orders"));
        orders += count.parse::<i64>()?;
    }
    out.claim(
        orders == TENANTS * SIZE.orders,
        "every order is on exactly one shard",
    )
}

/// A write, its pushed token, and the same row from a replica under that floor.
async fn token(cluster: &Cluster, out: &mut Transcript) -> anyhow::Result<()> {
    out.step("A replica that has my write");
    let client = cluster.connect().await?;
    let write = "UPDATE orders SET memo = 'changed just now' WHERE tenant_id = 7 AND id = 1";
    println!("app=> {write};");
    let token = client.write_for_token(write).await?;
    out.note(&format!(
        "pushed with the commit: pgdog.commit_lsn = {token}"
    ));
    out.run("app", &client, "SET pgdog.min_lsn_wait = '5s'")
        .await?;
    out.run("app", &client, &format!("SET pgdog.min_lsn = '{token}'"))
        .await?;
    let read = "SELECT memo, pg_is_in_recovery() FROM orders WHERE tenant_id = 7 AND id = 1";
    let row = out.run("app", &client, read).await?.concat();
    let route = out
        .run("app", &client, "SHOW pgdog.last_route")
        .await?
        .concat()
        .concat();
    out.claim(
        row == ["changed just now", "t"],
        "a node in recovery answered with the new value",
    )?;
    let replica = cluster.shard(1)?.replicas[0].port.to_string();
    out.claim(
        route.contains(&replica),
        "the shim says that it was the replica of shard 1",
    )
}

/// A floor that no replica has: waited for, refused with an ETA, served once replay goes on.
async fn floor(cluster: &Cluster, out: &mut Transcript) -> anyhow::Result<()> {
    out.step("A replica that does not have it yet");
    let replica = cluster.replica(1, 0).await?;
    out.run("replica 1", &replica, "SELECT pg_wal_replay_pause()")
        .await?;
    wait_until("the pause", Duration::from_secs(30), || async {
        let state = replica
            .value("SELECT pg_get_wal_replay_pause_state()")
            .await?;
        Ok((state == "paused").then_some(()))
    })
    .await?;
    let client = cluster.connect().await?;
    let write = "UPDATE orders SET memo = 'not replayed' WHERE tenant_id = 7 AND id = 2";
    println!("app=> {write};");
    let token = client.write_for_token(write).await?;
    out.note(&format!(
        "pushed with the commit: pgdog.commit_lsn = {token}"
    ));
    out.run("app", &client, &format!("SET pgdog.min_lsn = '{token}'"))
        .await?;
    out.run("app", &client, "SET pgdog.min_lsn_wait = '300ms'")
        .await?;
    let read = "SELECT memo, pg_is_in_recovery() FROM orders WHERE tenant_id = 7 AND id = 2";
    let began = Instant::now();
    let refusal = out.run_refused("app", &client, read).await?;
    let waited = began.elapsed();
    let detail = refusal.detail().unwrap_or_default();
    out.claim(
        refusal.code().code() == "58000",
        "refused rather than answered with the old value",
    )?;
    out.claim(
        detail.contains("eta_ms="),
        &format!("it names its ETA, after {} ms", waited.as_millis()),
    )?;
    served_once_replayed(cluster, out, &client, &replica).await
}

async fn served_once_replayed(
    cluster: &Cluster,
    out: &mut Transcript,
    client: &Client,
    replica: &Client,
) -> anyhow::Result<()> {
    out.run("app", client, "SET pgdog.min_lsn_wait = '10s'")
        .await?;
    let read = "SELECT memo, pg_is_in_recovery() FROM orders WHERE tenant_id = 7 AND id = 2";
    let began = Instant::now();
    let (row, resumed) = tokio::join!(
        out.run("app", client, read),
        out.run("replica 1", replica, "SELECT pg_wal_replay_resume()"),
    );
    resumed?;
    let row = row.context("the read that waited")?.concat();
    out.claim(
        row == ["not replayed", "t"],
        &format!(
            "served by the replica {} ms later",
            began.elapsed().as_millis()
        ),
    )?;
    let route = out
        .run("app", client, "SHOW pgdog.last_route")
        .await?
        .concat()
        .concat();
    let port = cluster.shard(1)?.replicas[0].port.to_string();
    out.claim(route.contains(&port), "and the shim says so")
}

async fn tenants(cluster: &Cluster, out: &mut Transcript) -> anyhow::Result<()> {
    out.step("Two tenants on two shards");
    let client = cluster.connect().await?;
    let map = "SELECT id, name, shard_id FROM tenants WHERE id IN (7, 8) ORDER BY id";
    let map = out.run("app", &client, map).await?;
    for row in map {
        let (tenant, home) = (&row[0], row[2].parse::<u16>()?);
        let query = format!("SELECT count(*) FROM orders WHERE tenant_id = {tenant}");
        let seen = out.run("app", &client, &query).await?.concat().concat();
        out.run("app", &client, "SHOW pgdog.last_route").await?;
        let here = cluster.primary(home).await?.value(&query).await?;
        let there = cluster.primary(1 - home).await?.value(&query).await?;
        out.claim(
            seen == here && there == "0",
            &format!("tenant {tenant}: {here} orders on shard {home}, {there} on the other"),
        )?;
    }
    let unknown = "SELECT * FROM orders WHERE tenant_id = 999";
    let refusal = out.run_refused("app", &client, unknown).await?;
    out.claim(
        refusal.code().code() == "58000",
        "a tenant without a row is refused, not guessed",
    )
}

fn how_to_connect(cluster: &Cluster) {
    let d = cluster.description();
    println!("\nThe cluster goes on running. To connect:");
    println!(
        "  PGPASSWORD={} psql -h 127.0.0.1 -p {} -U {} {}",
        d.password, d.port, d.user, d.database
    );
    println!(
        "  PGPASSWORD={} psql -h 127.0.0.1 -p {} -U {} {}   -- operator: SHOW TASKS",
        d.admin.password, d.port, d.admin.user, d.admin.database
    );
    println!(
        "To end it:\n  target/release/pgdog dev --stop --dir {}",
        cluster.dir().display()
    );
}
