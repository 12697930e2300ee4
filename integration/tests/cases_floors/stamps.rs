//! Floors by commit timestamp.

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::client::Client;
use pgdog_integration::faults::while_paused;
use pgdog_integration::{Cluster, fixture, wait_until};

use super::{LIMIT, body_of, read_from_a_replica, role_of_answer};

/// Writes a row and returns a moment that is not before its commit, by the primary's clock.
async fn write_and_stamp(cluster: &Cluster, client: &Client, id: i64) -> anyhow::Result<String> {
    client
        .batch_execute(&format!("INSERT INTO notes VALUES ({id}, 'stamped')"))
        .await?;
    let primary = cluster.primary(0).await?;
    primary.value("SELECT clock_timestamp()").await
}

async fn stamp(client: &Client) -> anyhow::Result<String> {
    client.value("SHOW pgdog.min_commit_timestamp").await
}

pub async fn r081_a_commit_timestamp_is_a_floor(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    while_paused(cluster, 0, async {
        for (id, set) in [
            (8101, "SET SERVER XACT TIMESTAMP"),
            (8102, "SET pgdog.min_commit_timestamp ="),
        ] {
            let moment = write_and_stamp(cluster, &client, id).await?;
            client.batch_execute(&format!("{set} '{moment}'")).await?;
            ensure!(body_of(&client, id).await? == "stamped", "{set}");
            ensure!(role_of_answer(&client).await? == "primary", "{set}");
        }
        Ok(())
    })
    .await?;
    ensure!(read_from_a_replica_now(&client, 8102).await? == "stamped");
    Ok(())
}

/// Once the replicas have it they serve it, although the primary would be allowed.
async fn read_from_a_replica_now(client: &Client, id: i64) -> anyhow::Result<String> {
    wait_until("a replica that serves it", LIMIT, || async {
        let body = body_of(client, id).await?;
        Ok((role_of_answer(client).await? == "replica").then_some(body))
    })
    .await
}

pub async fn r081_the_spelling_of_a_timestamp_does_not_matter(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for spelled in [
        "2024-01-01 10:00:00.123456+02",
        "2024-01-01T08:00:00.123456Z",
        "2024-01-01 04:30:00.123456-03:30",
    ] {
        client
            .batch_execute(&format!("SET SERVER XACT TIMESTAMP '{spelled}'"))
            .await?;
        let shown = stamp(&client).await?;
        ensure!(
            shown == "2024-01-01 08:00:00.123456+00",
            "{spelled}: {shown}"
        );
    }
    client.batch_execute("SELECT 1").await?;
    ensure!(role_of_answer(&client).await? == "replica", "long ago");
    Ok(())
}

pub async fn r082_an_old_commit_is_served_by_a_replica_and_now_by_somebody(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let moment = write_and_stamp(cluster, &client, 82).await?;
    let token = client.value("SHOW pgdog.commit_lsn").await?;
    client
        .batch_execute(&format!("SET SERVER XACT TIMESTAMP '{moment}'"))
        .await?;
    ensure!(read_from_a_replica_now(&client, 82).await? == "stamped");
    // Nothing happens any more, and it is still served, at once and without asking the primary.
    for _ in 0..20 {
        ensure!(body_of(&client, 82).await? == "stamped");
        ensure!(role_of_answer(&client).await? == "replica", "at rest");
    }
    client
        .batch_execute("SET pgdog.min_commit_timestamp = ''")
        .await?;
    client
        .batch_execute(&format!("SET pgdog.min_lsn = '{token}'"))
        .await?;
    ensure!(read_from_a_replica(&client, 82).await? == "stamped");
    client.batch_execute("RESET ALL").await?;
    // Now, and what is still to come: the primary answers, nobody waits for ever.
    for ahead in ["0", "1 hour"] {
        let moment = client
            .value(&format!("SELECT clock_timestamp() + interval '{ahead}'"))
            .await?;
        client
            .batch_execute(&format!("SET SERVER XACT TIMESTAMP '{moment}'"))
            .await?;
        ensure!(body_of(&client, 82).await? == "stamped", "{ahead} ahead");
    }
    ensure!(role_of_answer(&client).await? == "primary", "the future");
    Ok(())
}

pub async fn min_commit_timestamp_is_set_and_taken_back_as_a_guc(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let at = |second: u8| format!("2024-01-01 00:00:{second:02}+00");
    let mut login = cluster.login(0);
    let option = " -c pgdog.min_commit_timestamp=2024-01-01T00:00:01Z";
    login.options.push_str(option);
    let client = Client::connect(&login).await?;
    ensure!(stamp(&client).await? == at(1), "startup option");
    client
        .batch_execute(&format!("SET SERVER XACT TIMESTAMP '{}'", at(2)))
        .await?;
    ensure!(stamp(&client).await? == at(2), "SET SERVER XACT TIMESTAMP");
    let sets = format!(
        "BEGIN; SET LOCAL pgdog.min_commit_timestamp = '{}'; SAVEPOINT a; \
         SET SERVER XACT TIMESTAMP '{}'",
        at(3),
        at(4)
    );
    for sql in sets.split("; ") {
        client.batch_execute(sql).await.context(sql.to_owned())?;
    }
    ensure!(stamp(&client).await? == at(4), "in a transaction");
    client.batch_execute("ROLLBACK TO a").await?;
    ensure!(stamp(&client).await? == at(3), "ROLLBACK TO");
    client.batch_execute("COMMIT").await?;
    ensure!(stamp(&client).await? == at(2), "end of SET LOCAL");
    for bad in ["yesterday", "2024-01-01 10:00:00", "0/10"] {
        client
            .refused(&format!("SET SERVER XACT TIMESTAMP '{bad}'"), "22023")
            .await?;
        ensure!(stamp(&client).await? == at(2), "{bad}");
    }
    let set = format!(
        "SELECT set_config('pgdog.min_commit_timestamp', '{}', false)",
        at(5)
    );
    client.rows(&set).await?;
    ensure!(stamp(&client).await? == at(5), "set_config");
    client
        .batch_execute("RESET pgdog.min_commit_timestamp")
        .await?;
    ensure!(stamp(&client).await? == at(1), "RESET");
    client
        .batch_execute("SET pgdog.min_commit_timestamp = ''")
        .await?;
    ensure!(stamp(&client).await?.is_empty(), "none");
    client.batch_execute("DISCARD ALL").await?;
    ensure!(stamp(&client).await? == at(1), "DISCARD ALL");
    Ok(())
}

/// Commits of one of the clients that commit at once; 100 000 of all together at full size.
fn rounds() -> usize {
    if fixture::full_size() { 10_000 } else { 40 }
}

/// Many commit at once; each reads under the very stamp of its commit, on another connection.
pub async fn every_commit_is_seen_under_its_own_timestamp(cluster: &Cluster) -> anyhow::Result<()> {
    let clients = (0..10).map(|client| async move {
        let (one, other) = (cluster.connect().await?, cluster.connect().await?);
        let primary = cluster.primary(0).await?;
        for round in 0..rounds() {
            let id = (9_000_000 + client * 100_000 + round) as i64;
            let insert = format!("INSERT INTO notes VALUES ({id}, 'own') RETURNING xmin");
            let xid = one.value(&insert).await?;
            let stamp = format!("SELECT pg_xact_commit_timestamp('{xid}'::xid)");
            let moment = primary.value(&stamp).await?;
            other
                .batch_execute(&format!("SET SERVER XACT TIMESTAMP '{moment}'"))
                .await?;
            ensure!(body_of(&other, id).await? == "own", "missed {id}");
        }
        Ok(())
    });
    try_join_all(clients).await?;
    Ok(())
}
