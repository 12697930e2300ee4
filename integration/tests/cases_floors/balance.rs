//! Who of those that may answer a read answers it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Client;
use pgdog_integration::fixture::configure;
use pgdog_integration::http::{free_port, get, metric};
use pgdog_integration::wait::pause;
use pgdog_integration::{Cluster, wait_until};

use super::{LIMIT, REPLICAS};

const PORT: &str = "SELECT current_setting('port')";

/// How often each server answers `count` reads.
async fn answers(client: &Client, count: usize) -> anyhow::Result<BTreeMap<u16, usize>> {
    let mut answers = BTreeMap::new();
    for _ in 0..count {
        let port = client.value(PORT).await?.parse()?;
        *answers.entry(port).or_default() += 1;
    }
    Ok(answers)
}

/// Waits until every node has answered the shim when it was asked last: on a busy machine one may
/// have been late, and takes no reads meanwhile.
async fn nobody_is_silent(admin: &Client) -> anyhow::Result<()> {
    wait_until("an answer from every node", LIMIT, || async {
        let nodes = admin.named_rows("SHOW DATABASES").await?;
        Ok(nodes.iter().all(|row| row["error"] == "NULL").then_some(()))
    })
    .await
}

/// The same by server: both replicas, then the primary. What another strategy has left of turns is
/// settled before.
async fn shares(cluster: &Cluster, client: &Client, count: usize) -> anyhow::Result<[usize; 3]> {
    let shard = cluster.shard(0)?;
    nobody_is_silent(&cluster.admin(0).await?).await?;
    answers(client, 20).await?;
    let answers = answers(client, count).await?;
    let servers = [&shard.replicas[0], &shard.replicas[1], &shard.primary];
    Ok(servers.map(|server| answers.get(&server.port).copied().unwrap_or_default()))
}

/// Reads by server are shared out as they are due; one may have gone to another server's turn.
fn as_due(shares: [usize; 3], due: [usize; 3]) -> anyhow::Result<()> {
    let near = shares
        .iter()
        .zip(due)
        .all(|(share, due)| share.abs_diff(due) <= 1);
    ensure!(near, "{shares:?} instead of {due:?}");
    Ok(())
}

/// Gives one replica the share that the configuration file of the first shim names.
fn weigh(cluster: &Cluster, replica: usize, weight: u8) -> anyhow::Result<()> {
    let path = &cluster.description().shims[0].config;
    let port = format!("port = {}\n", cluster.shard(0)?.replicas[replica].port);
    let text = std::fs::read_to_string(path)?;
    ensure!(text.contains(&port), "{text}");
    let weighed = text.replace(&port, &format!("{port}lb_weight = {weight}\n"));
    Ok(std::fs::write(path, weighed)?)
}

pub async fn reads_are_shared_out_as_the_strategy_says(cluster: &Cluster) -> anyhow::Result<()> {
    let (admin, client) = (cluster.admin(0).await?, cluster.connect().await?);
    let set = async |name: &str, value: &str| {
        let sql = format!("SET {name} TO {value}");
        admin.batch_execute(&sql).await.context(sql)
    };
    set("load_balancing_strategy", "round_robin").await?;
    as_due(shares(cluster, &client, 40).await?, [20, 20, 0])?;
    // Under a floor that all have passed, too.
    client.batch_execute("SET pgdog.min_lsn = '0/1'").await?;
    as_due(shares(cluster, &client, 40).await?, [20, 20, 0])?;
    client.batch_execute("RESET pgdog.min_lsn").await?;

    set("load_balancing_strategy", "random").await?;
    let random = shares(cluster, &client, 60).await?;
    ensure!(
        random[0] > 0 && random[1] > 0 && random[2] == 0,
        "{random:?}"
    );

    set("load_balancing_strategy", "least_active_connections").await?;
    let busy = cluster.connect().await?;
    busy.batch_execute("BEGIN READ ONLY").await?;
    let at = busy.value(PORT).await?.parse()?;
    let others = answers(&client, 20).await?;
    ensure!(!others.contains_key(&at), "busy {at}: {others:?}");
    busy.batch_execute("COMMIT").await?;

    set("load_balancing_strategy", "round_robin").await?;
    set("read_write_split", "include_primary").await?;
    as_due(shares(cluster, &client, 30).await?, [10, 10, 10])?;
    set("read_write_split", "prefer_primary").await?;
    as_due(shares(cluster, &client, 10).await?, [0, 0, 10])?;
    client.batch_execute("SET pgdog.role = 'replica'").await?;
    as_due(shares(cluster, &client, 10).await?, [5, 5, 0])?;
    client.batch_execute("RESET pgdog.role").await?;
    set("read_write_split", "include_primary_if_replica_banned").await?;
    as_due(shares(cluster, &client, 10).await?, [5, 5, 0])?;

    weigh(cluster, 0, 200)?;
    weigh(cluster, 1, 50)?;
    admin.batch_execute("RELOAD").await?;
    set("load_balancing_strategy", "weighted_round_robin").await?;
    as_due(shares(cluster, &client, 50).await?, [40, 10, 0])?;
    admin.batch_execute("RELOAD").await?;
    Ok(())
}

pub async fn a_transaction_goes_where_its_strategy_says(cluster: &Cluster) -> anyhow::Result<()> {
    let (admin, client) = (cluster.admin(0).await?, cluster.connect().await?);
    let in_recovery = "SELECT pg_is_in_recovery()";
    let first = async || -> anyhow::Result<String> {
        client.batch_execute("BEGIN").await?;
        client.value(in_recovery).await
    };
    ensure!(first().await? == "f", "conservative");
    client.batch_execute("COMMIT").await?;
    admin
        .batch_execute("SET read_write_strategy TO aggressive")
        .await?;
    ensure!(first().await? == "t", "aggressive");
    // Its second statement finds out.
    client
        .refused("INSERT INTO notes VALUES (90, 'on a replica')", "25006")
        .await?;
    client.batch_execute("ROLLBACK").await?;
    ensure!(first().await? == "t", "after a rollback");
    client.batch_execute("COMMIT").await?;
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("INSERT INTO notes VALUES (90, 'first')")
        .await?;
    ensure!(client.value(in_recovery).await? == "f", "a write first");
    client.batch_execute("COMMIT").await?;
    // What says that it writes, or can only be on a primary, goes there.
    for begin in [
        "BEGIN READ WRITE",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
        "BEGIN; SET TRANSACTION READ WRITE",
        "BEGIN; SET LOCAL transaction_isolation TO serializable",
        "BEGIN; SET LOCAL transaction_read_only TO off",
    ] {
        client.batch_execute(begin).await.context(begin)?;
        let at = client.value(in_recovery).await.context(begin)?;
        ensure!(at == "f", "{begin}");
        client.batch_execute("COMMIT").await.context(begin)?;
    }
    // So does what calls functions that may do anything, as soon as they are known.
    client
        .batch_execute(
            "CREATE FUNCTION whereabouts() RETURNS bool LANGUAGE plpgsql AS \
             'BEGIN RETURN pg_is_in_recovery(); END'",
        )
        .await?;
    wait_until("a function on the primary", LIMIT, || async {
        client.batch_execute("BEGIN").await?;
        // A replica may not have the function yet.
        let at = client.value("SELECT whereabouts()").await;
        client.batch_execute("ROLLBACK").await?;
        Ok(at.is_ok_and(|at| at == "f").then_some(()))
    })
    .await?;
    client.batch_execute("DROP FUNCTION whereabouts()").await?;
    ensure!(first().await? == "t", "nothing is said");
    client.batch_execute("COMMIT").await?;
    // Statements of one message are no transaction that anybody has opened.
    client
        .batch_execute("SELECT 1; INSERT INTO notes VALUES (91, 'second')")
        .await?;
    admin.batch_execute("RELOAD").await?;
    Ok(())
}

/// Where nothing is written nothing is missing: after a change of segments the primary stands
/// behind the header of a page, and replicas get to its beginning.
pub async fn a_change_of_segments_is_no_lag(cluster: &Cluster) -> anyhow::Result<()> {
    let (admin, node) = (cluster.admin(0).await?, cluster.primary(0).await?);
    admin.batch_execute("SET ban_replica_lag TO 300").await?;
    let at = "SELECT pg_current_wal_insert_lsn()";
    // The server itself may write now and then; then it is tried once more.
    wait_until("replicas without lag", LIMIT, || async {
        node.rows("SELECT pg_switch_wal()").await?;
        let begun = node.value(at).await?;
        // A lag would be too large by the end of that.
        pause(Duration::from_secs(1)).await;
        let rows = admin.named_rows("SHOW REPLICATION").await?;
        let level = rows
            .iter()
            .filter(|row| row["too_far_behind"] == "f" && row["bytes_behind"] == "0")
            .filter(|row| row["role"] == "replica");
        let quiet = begun.ends_with("000028") && node.value(at).await? == begun;
        Ok((quiet && level.count() == REPLICAS).then_some(()))
    })
    .await?;
    admin.batch_execute("RELOAD").await?;
    Ok(())
}

/// Waits until the operator sees that so many replicas are too far behind.
async fn told(admin: &Client, count: usize) -> anyhow::Result<()> {
    wait_until(
        &format!("{count} replicas too far behind"),
        LIMIT,
        || async {
            let rows = admin.named_rows("SHOW REPLICATION").await?;
            let far = rows.iter().filter(|row| row["too_far_behind"] == "t");
            let banned = admin.named_rows("SHOW BANS").await?;
            let said = banned
                .iter()
                .filter(|row| row["ban_reason"] == "too far behind");
            Ok((far.count() == count && said.count() == count).then_some(()))
        },
    )
    .await
}

/// Writes more than a replica may be behind, whatever compression makes of it.
const LONG: &str = "INSERT INTO notes SELECT 9000, \
     (SELECT string_agg(md5(i::text || clock_timestamp()), '') FROM generate_series(1, 400) i) \
     ON CONFLICT (id) DO UPDATE SET body = excluded.body";

pub async fn a_replica_too_far_behind_takes_no_reads(cluster: &Cluster) -> anyhow::Result<()> {
    let metrics = free_port()?;
    configure(cluster, 1, &[&format!("openmetrics_port = {metrics}")]).await?;
    let admin = cluster.admin(1).await?;
    let client = Client::connect(&cluster.login(1)).await?;
    let shard = cluster.shard(0)?;
    let paused = |on: bool, replica: usize| async move {
        let call = if on { "pause" } else { "resume" };
        let node = cluster.replica(0, replica).await?;
        let sql = format!("SELECT pg_wal_replay_{call}()");
        node.batch_execute(&sql).await.context(sql)
    };
    for limit in ["ban_replica_lag_bytes TO 4000", "ban_replica_lag TO 300"] {
        admin.batch_execute(&format!("SET {limit}")).await?;
        told(&admin, 0).await?;
        paused(true, 0).await?;
        client.batch_execute(LONG).await?;
        told(&admin, 1).await?;
        let seen = answers(&client, 20).await?;
        ensure!(
            !seen.contains_key(&shard.replicas[0].port),
            "{limit}: {seen:?}"
        );
        let text = get(metrics, "/metrics").await?;
        let label = format!("port=\"{}\"", shard.replicas[0].port);
        ensure!(metric(&text, "pgdog_replica_too_far_behind", &label)? == 1.0);
        ensure!(metric(&text, "pgdog_replica_lag_bytes", &label)? > 0.0);
        // Floors choose among what is left; what is left without any is the primary.
        paused(true, 1).await?;
        client.batch_execute(LONG).await?;
        told(&admin, REPLICAS).await?;
        let seen = answers(&client, 5).await?;
        ensure!(
            seen.get(&shard.primary.port) == Some(&5),
            "{limit}: {seen:?}"
        );
        client.batch_execute("SET pgdog.min_lsn = '0/1'").await?;
        client.refused("SELECT 1", "58000").await?;
        client.batch_execute("RESET pgdog.min_lsn").await?;
        for replica in 0..REPLICAS {
            paused(false, replica).await?;
        }
        told(&admin, 0).await?;
        wait_until("reads from both replicas", LIMIT, || async {
            let seen = answers(&client, 20).await?;
            let both = shard
                .replicas
                .iter()
                .all(|one| seen.contains_key(&one.port));
            Ok(both.then_some(()))
        })
        .await?;
        admin.batch_execute("RELOAD").await?;
    }
    Ok(())
}
