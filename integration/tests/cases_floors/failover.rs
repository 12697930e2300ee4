//! A promotion, and what it makes of tokens.

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Client;
use pgdog_integration::{Cluster, wait_until};

use super::{LIMIT, REPLICAS, body_of, role_of_answer};

pub async fn tokens_name_the_timeline(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let token = client
        .write_for_token("INSERT INTO notes VALUES (84, 'kept')")
        .await?;
    ensure!(token.ends_with("@1"), "pushed {token}");
    ensure!(client.value("SHOW pgdog.commit_lsn").await? == token);
    // It can be set as it came.
    client
        .batch_execute(&format!("SET pgdog.min_lsn = '{token}'"))
        .await?;
    ensure!(client.value("SHOW pgdog.min_lsn").await? == token);
    Ok(())
}

/// Takes the replicas off their primary: what it writes from now on, they will never have.
async fn cut_off_replicas(cluster: &Cluster) -> anyhow::Result<()> {
    for replica in 0..REPLICAS {
        let node = cluster.replica(0, replica).await?;
        node.batch_execute("ALTER SYSTEM SET primary_conninfo = ''")
            .await?;
        node.batch_execute("SELECT pg_reload_conf()").await?;
    }
    let primary = cluster.primary(0).await?;
    wait_until("no standby connected", LIMIT, || async {
        let left = primary
            .value("SELECT count(*) FROM pg_stat_replication")
            .await?;
        Ok((left == "0").then_some(()))
    })
    .await
}

async fn refused_as_lost(client: &Client) -> anyhow::Result<()> {
    let error = client
        .refused("SELECT count(*) FROM notes", "58000")
        .await?;
    let said = error.as_db_error().context("not said by a server")?;
    let text = format!("{} {}", said.message(), said.detail().unwrap_or_default());
    ensure!(text.contains("write lost in failover"), "{text}");
    Ok(())
}

/// The old primary stays alive all the time, and still has the write.
pub async fn r084_a_write_lost_in_a_failover_is_said_to_be_lost(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let kept = client
        .write_for_token("INSERT INTO notes VALUES (8400, 'kept')")
        .await?;
    for replica in 0..REPLICAS {
        let node = cluster.replica(0, replica).await?;
        node.batch_execute("SET pgdog.wait_lsn_timeout = '60s'")
            .await?;
        node.batch_execute(&format!("SET pgdog.wait_lsn = '{kept}'"))
            .await?;
    }
    cut_off_replicas(cluster).await?;
    let lost = client
        .write_for_token("INSERT INTO notes VALUES (8401, 'lost')")
        .await?;
    ensure!(
        kept.ends_with("@1") && lost.ends_with("@1"),
        "{kept} {lost}"
    );
    let promoted = cluster.replica(0, 0).await?;
    promoted.batch_execute("SELECT pg_promote()").await?;
    // Both shims follow, by themselves.
    let port = cluster.shard(0)?.replicas[0].port.to_string();
    for shim in 0..2 {
        let login = cluster.login(shim);
        wait_until("the promoted server takes writes", LIMIT, || async {
            let follower = Client::connect(&login).await?;
            let sql = "/* pgdog_role: primary */ SELECT current_setting('port')";
            Ok((follower.value(sql).await? == port).then_some(()))
        })
        .await?;
    }
    let new = client
        .write_for_token("INSERT INTO notes VALUES (8402, 'new')")
        .await?;
    ensure!(new.ends_with("@2"), "{new}");
    for shim in 0..2 {
        let reader = Client::connect(&cluster.login(shim)).await?;
        for fallback in ["off", "on"] {
            reader
                .batch_execute(&format!("SET pgdog.min_lsn_primary_fallback = {fallback}"))
                .await?;
            reader
                .batch_execute(&format!("SET pgdog.min_lsn = '{lost}'"))
                .await?;
            refused_as_lost(&reader).await?;
        }
        // Writes do not care, and the session lives.
        reader
            .batch_execute(&format!(
                "UPDATE notes SET body = 'new' WHERE id = {}",
                8402
            ))
            .await?;
        // What was written before the fork is there; what was written behind it as well.
        for (token, id, body) in [(&kept, 8400, "kept"), (&new, 8402, "new")] {
            reader
                .batch_execute(&format!("SET pgdog.min_lsn = '{token}'"))
                .await?;
            ensure!(body_of(&reader, id).await? == body, "{token}");
        }
        // The replica that was left behind does not serve what is new.
        ensure!(role_of_answer(&reader).await? == "primary");
    }
    Ok(())
}
