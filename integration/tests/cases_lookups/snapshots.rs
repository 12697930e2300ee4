//! Maps that change under those who are in the middle of something, and maps that stay.

use anyhow::{Context as _, ensure};
use pgdog_integration::Cluster;
use pgdog_integration::fixture::wire;
use pgdog_integration::wait_until;
use pgdog_integration::wire::{Batch, Wire, shape};

use crate::{LIMIT, done, line_on, log, refused};

async fn moved(cluster: &Cluster, tenant: i64, shard: u16) -> anyhow::Result<()> {
    let mut other = wire(cluster, 1).await?;
    let update = format!("UPDATE tenants SET shard_id = {shard} WHERE id = {tenant}");
    done(&mut other, &update).await
}

/// Nobody may find a row where the map does not say it is.
async fn nowhere(cluster: &Cluster, sku: &str) -> anyhow::Result<()> {
    let found = line_on(cluster, sku).await?;
    ensure!(found.is_empty(), "{sku} is on {found:?}");
    Ok(())
}

/// A transaction that is told of a newer topology by the gate, but reads by an older snapshot.
pub async fn an_old_snapshot_places_no_row(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    done(&mut client, "BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    done(
        &mut client,
        "SELECT count(*) FROM lines WHERE tenant_id = 13",
    )
    .await?;
    moved(cluster, 13, 1).await?;
    let entered = shape(&client.query("UPDATE rates SET pct = pct").await?);
    if !entered.contains("E(") {
        let insert = "INSERT INTO lines VALUES (13, 1, 'old-snapshot')";
        refused(&mut client, insert, "40001").await?;
    }
    done(&mut client, "ROLLBACK").await?;
    nowhere(cluster, "old-snapshot").await?;
    moved(cluster, 13, 0).await
}

/// What was written by the old map is not committed once the new one is.
pub async fn rows_of_an_old_map_are_not_committed(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    // On one shard, and on two of them.
    for more in ["SELECT 1", "INSERT INTO lines VALUES (12, 1, 'old-map')"] {
        done(&mut client, "BEGIN").await?;
        done(&mut client, "INSERT INTO lines VALUES (13, 1, 'old-map')").await?;
        done(&mut client, more).await?;
        moved(cluster, 13, 1).await?;
        refused(&mut client, "COMMIT", "40001").await?;
        nowhere(cluster, "old-map").await?;
        moved(cluster, 13, 0).await?;
    }
    // Its own move is no reason.
    done(&mut client, "BEGIN").await?;
    done(&mut client, "INSERT INTO lines VALUES (12, 1, 'own-move')").await?;
    done(&mut client, "UPDATE tenants SET shard_id = 1 WHERE id = 13").await?;
    done(&mut client, "INSERT INTO lines VALUES (13, 1, 'own-move')").await?;
    done(&mut client, "COMMIT").await?;
    let found = line_on(cluster, "own-move").await?;
    ensure!(found == [1], "{found:?}");
    moved(cluster, 13, 0).await
}

/// Rows that flow while their key moves, in a transaction whose snapshot is from before.
pub async fn a_copy_by_an_old_snapshot_is_refused(cluster: &Cluster) -> anyhow::Result<()> {
    for begin in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN"] {
        let mut client = wire(cluster, 0).await?;
        done(&mut client, begin).await?;
        client
            .send(&Batch::new().query("COPY lines FROM STDIN").bytes)
            .await?;
        while client.read().await?.tag != 'G' {}
        let row = Batch::new().copy_data(b"13\t1\told-copy\n");
        client.send(&row.bytes).await?;
        let node = cluster.primary(0).await?;
        wait_until("the COPY on shard 0", LIMIT, || async {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'copy%lines%'";
            Ok((node.value(sql).await? != "0").then_some(()))
        })
        .await?;
        moved(cluster, 13, 1).await?;
        client
            .send(&Batch::new().copy_done().bytes)
            .await
            .context("the end of the COPY")?;
        let found = shape(&client.until_ready().await?);
        ensure!(found.contains("E(40001) Z(E)"), "{begin}: {found}");
        done(&mut client, "ROLLBACK").await?;
        nowhere(cluster, "old-copy").await?;
        moved(cluster, 13, 0).await?;
    }
    Ok(())
}

/// Shards whose maps differ for good: nobody guesses.
pub async fn maps_that_differ_are_told(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    let node = cluster.primary(0).await?;
    node.batch_execute("UPDATE tenants SET shard_id = 1 WHERE id = 13")
        .await?;
    let insert = "INSERT INTO lines VALUES (13, 1, 'differ')";
    let text = refused(&mut client, insert, "58000").await?;
    ensure!(text.contains("shard 0 says that key 13"), "{text}");
    nowhere(cluster, "differ").await?;
    node.batch_execute("UPDATE tenants SET shard_id = 0 WHERE id = 13")
        .await?;
    done(&mut client, insert).await
}

/// The messages that a statement costs once its key is known: its own.
pub async fn a_known_key_costs_no_message(cluster: &Cluster) -> anyhow::Result<()> {
    const STATEMENTS: usize = 20;
    let asked = || -> anyhow::Result<usize> {
        let logs = [log(cluster, 0)?, log(cluster, 1)?];
        Ok(logs
            .iter()
            .map(|log| log.matches("$1 = '14'").count())
            .sum())
    };
    let read = |mark: &str| format!("SELECT count(*) FROM lines WHERE tenant_id = 14 -- {mark}");
    let mut client: Wire = wire(cluster, 0).await?;
    done(&mut client, &read("first")).await?;
    wait_until("both lookups in the logs", LIMIT, || async {
        Ok((asked()? >= 2).then_some(()))
    })
    .await?;
    let before = asked()?;
    for _ in 0..STATEMENTS {
        done(&mut client, &read("known")).await?;
    }
    done(&mut client, &read("known last")).await?;
    wait_until("the last statement in the log", LIMIT, || async {
        Ok(log(cluster, 1)?.contains("-- known last").then_some(()))
    })
    .await?;
    ensure!(
        asked()? == before,
        "{} lookups instead of {before}",
        asked()?
    );
    let log = log(cluster, 1)?;
    let received: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("LOG:  statement:") || line.contains("LOG:  execute"))
        .collect();
    let known = |line: &&&str| line.contains("-- known");
    let all = received.iter().filter(known).count();
    ensure!(all == STATEMENTS + 1, "{all} statements");
    // On each connection that they took, nothing in between.
    let process = |line: &str| line.split(['[', ']']).nth(1).map(str::to_owned);
    for first in received.iter().filter(known) {
        let own = process(first);
        let of_own: Vec<_> = received
            .iter()
            .filter(|line| process(line) == own)
            .collect();
        let begin = of_own.iter().position(known);
        let end = of_own.iter().rposition(known);
        let (Some(begin), Some(end)) = (begin, end) else {
            continue;
        };
        for line in &of_own[begin..=end] {
            ensure!(known(line), "a message more: {line}");
        }
    }
    Ok(())
}
