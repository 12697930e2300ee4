//! What floors and tokens cost, in messages that servers get.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Client;
use pgdog_integration::cluster::Server;
use pgdog_integration::counter::{Asked, Counter};
use pgdog_integration::http::free_port;
use pgdog_integration::{Cluster, faults, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// How often everything is done.
const TIMES: usize = 40;

/// Moves a server to another port and puts a relay in its place.
async fn put_relay(cluster: &Cluster, server: &Server) -> anyhow::Result<Counter> {
    let moved = Server {
        port: free_port()?,
        data: server.data.clone(),
    };
    let stopped = faults::stop_server(server).await?;
    let path = server.data.join("postgresql.conf");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, format!("{text}port = {}\n", moved.port))?;
    let counter = Counter::start(server.port, moved.port).await?;
    stopped.restart(cluster, &moved).await?;
    Ok(counter)
}

/// Both servers behind relays, in the order primary, replica.
struct Servers {
    counters: [Counter; 2],
}

impl Servers {
    /// What the application's statements made the shim send, as (type, text), by server. Lookups of
    /// timestamps are asked by the shim itself, and count.
    fn take(&self) -> [Vec<(char, String)>; 2] {
        let counts = |one: &Asked| one.user == "app" || one.text.contains("lsn_for_timestamp");
        self.counters.each_ref().map(|counter| {
            let asked = counter.take().into_iter().filter(counts);
            asked.map(|one| (one.tag, one.text)).collect()
        })
    }
}

/// Reads with the simple and the extended protocol.
async fn reads(client: &Client) -> anyhow::Result<()> {
    let statement = client.prepare("SELECT count(*) FROM notes").await?;
    // The connection of the pool gets to know the statement.
    client.query_one(&statement, &[]).await?;
    for _ in 0..TIMES {
        client.rows("SELECT body FROM notes WHERE id = 1").await?;
        client.query_one(&statement, &[]).await?;
    }
    Ok(())
}

/// Commits of one statement and of a block.
async fn writes(client: &Client) -> anyhow::Result<()> {
    for _ in 0..TIMES {
        for sql in [
            "UPDATE notes SET body = 'again' WHERE id = 1",
            "BEGIN",
            "UPDATE notes SET body = 'and again' WHERE id = 1",
            "COMMIT",
        ] {
            client.batch_execute(sql).await?;
        }
    }
    Ok(())
}

/// The messages that a session with these options has its servers get, once everything is known.
async fn cost_of(
    servers: &Servers,
    cluster: &Cluster,
    (options, set): (&str, &str),
    statements: impl AsyncFn(&Client) -> anyhow::Result<()>,
) -> anyhow::Result<[Vec<(char, String)>; 2]> {
    let mut login = cluster.login(0);
    login.options = options.to_owned();
    let client = Client::connect(&login).await?;
    if !set.is_empty() {
        client.batch_execute(set).await?;
    }
    // The first time servers are shown what the session is like.
    statements(&client).await?;
    servers.take();
    statements(&client).await?;
    Ok(servers.take())
}

pub async fn a_floor_that_is_passed_costs_no_message(cluster: &Cluster) -> anyhow::Result<()> {
    let shard = cluster.shard(0)?;
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO notes VALUES (1, 'counted') ON CONFLICT DO NOTHING")
        .await?;
    let token = client.write_for_token("UPDATE notes SET body = 'x' WHERE id = 1");
    let token = token.await?;
    let moment = client
        .value("/* pgdog_role: primary */ SELECT now()")
        .await?;
    let servers = Servers {
        counters: [
            put_relay(cluster, &shard.primary).await?,
            put_relay(cluster, &shard.replicas[0]).await?,
        ],
    };
    let floor = format!("SET pgdog.min_lsn = '{token}'");
    wait_until(
        "a read from the replica, behind its relay",
        LIMIT,
        || async {
            let client = Client::connect(&cluster.login(0)).await?;
            client.batch_execute(&floor).await?;
            let Ok(rows) = client.rows("SELECT pg_is_in_recovery()").await else {
                return Ok(None);
            };
            Ok((rows.concat() == ["t"]).then_some(()))
        },
    )
    .await?;
    let without = cost_of(&servers, cluster, ("", ""), reads).await?;
    // Which server is asked what a statement looks like does not matter.
    let executed = |(tag, _): &&(char, String)| matches!(*tag, 'Q' | 'E');
    let on_primary = without[0].iter().filter(executed).count();
    ensure!(on_primary == 0, "reads on the primary: {without:?}");
    let queries = without[1].iter().filter(|(tag, _)| *tag == 'Q').count();
    ensure!(queries == TIMES, "{queries} queries for {TIMES} reads");
    let stamp = format!("SET SERVER XACT TIMESTAMP '{moment}'");
    for floor in [&floor, &stamp] {
        let under = cost_of(&servers, cluster, ("", floor), reads).await?;
        ensure!(under == without, "{floor}: {under:?}, without: {without:?}");
    }
    let without = cost_of(&servers, cluster, ("", ""), writes).await?;
    ensure!(without[1].is_empty(), "writes on the replica: {without:?}");
    let queries = without[0].iter().filter(|(tag, _)| *tag == 'Q').count();
    ensure!(
        queries == TIMES * 4,
        "{queries} queries for {TIMES} times 4"
    );
    let options = "-c pgdog.report_commit_lsn=on -c pgdog.read_your_writes=session";
    let with = cost_of(&servers, cluster, (options, ""), writes).await?;
    ensure!(with == without, "with tokens {with:?}, without {without:?}");
    // One write, then only reads: the first one passes the floor, the others cost nothing.
    let one = cost_of(
        &servers,
        cluster,
        (options, "UPDATE notes SET body = 'y' WHERE id = 1"),
        reads,
    )
    .await
    .context("own writes")?;
    let plain = cost_of(&servers, cluster, ("", ""), reads).await?;
    ensure!(one == plain, "own writes: {one:?}, without {plain:?}");
    Ok(())
}
