//! Sequences and generated ids on several shards, and after a shard was added.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{create, wire};
use pgdog_integration::wire::{Wire, rows, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite, tasks};

const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2).spares(1).shims(2),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r141_a_sequence_in_a_sharded_row_returns_what_is_stored,
            r140_ids_of_an_omnisharded_table_go_on_after_a_shard_was_added,
            ids_are_unique_over_all_shards,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    let client = cluster.connect().await?;
    for sql in [
        "CREATE SEQUENCE oid_s",
        "CREATE TABLE items (id serial PRIMARY KEY, body text)",
        "SELECT pgdog.omni_table('items')",
        "CREATE TABLE kept (tenant_id bigint, id bigint DEFAULT pgdog.next_id(), \
         other bigint DEFAULT pgdog.unique_id())",
        "SELECT pgdog.shard_table('kept', 'tenant_id', lookup_result => 'shard', \
         lookup_query => 'SELECT shard_id FROM tenants WHERE id = $1')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    Ok(())
}

async fn done(wire: &mut Wire, sql: &str) -> anyhow::Result<()> {
    let found = shape(&wire.query(sql).await?);
    ensure!(!found.contains("E("), "{sql}: {found}");
    Ok(())
}

async fn r141_a_sequence_in_a_sharded_row_returns_what_is_stored(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    for round in 1..=3 {
        done(&mut client, "BEGIN").await?;
        let answer = client
            .query(
                "WITH v AS (SELECT 'x' m) INSERT INTO orders (tenant_id, id, memo) \
                 SELECT 12, nextval('oid_s'), m FROM v RETURNING id",
            )
            .await?;
        let found = shape(&answer);
        ensure!(found == "T D C(INSERT 0 1) Z(T)", "{found}");
        let returned = value(&answer).context("no id was returned")?;
        let current = client.query("SELECT currval('oid_s')").await?;
        let agrees = value(&current).is_some_and(|current| current == returned);
        let refused = shape(&current).contains("E(");
        ensure!(
            agrees || refused,
            "round {round}: {returned}, then {}",
            shape(&current)
        );
        if refused {
            // Nothing of the failed transaction is stored; once more without the question.
            done(&mut client, "ROLLBACK").await?;
            continue;
        }
        done(&mut client, "COMMIT").await?;
        let node = cluster.primary(1).await?;
        let stored =
            format!("SELECT count(*) FROM orders WHERE tenant_id = 12 AND id = {returned}");
        ensure!(
            node.value(&stored).await? == "1",
            "{returned} is not stored"
        );
    }
    let answer = client
        .query(
            "WITH v AS (SELECT 'x' m) INSERT INTO orders (tenant_id, id, memo) \
             SELECT 12, nextval('oid_s'), m FROM v RETURNING id",
        )
        .await?;
    let returned = value(&answer).context("no id was returned")?;
    let node = cluster.primary(1).await?;
    let stored = format!("SELECT count(*) FROM orders WHERE tenant_id = 12 AND id = {returned}");
    ensure!(
        node.value(&stored).await? == "1",
        "{returned} is not stored"
    );
    Ok(())
}

/// An id that a shard would draw itself is refused. The sequence is one for the whole cluster when
/// it is asked first.
async fn r140_ids_of_an_omnisharded_table_go_on_after_a_shard_was_added(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut clients = [wire(cluster, 0).await?, wire(cluster, 1).await?];
    insert_many(&mut clients, 500).await?;
    let before = ids(cluster, 2).await?;
    ensure!(before.len() == 500);
    let task = tasks::order(cluster, "ADD SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    cluster.admin(0).await?.rows("CUTOVER SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "done", LIMIT).await?;
    insert_many(&mut clients, 100).await?;
    let after = ids(cluster, 3).await?;
    ensure!(after.len() == 600, "{} ids", after.len());
    let highest = before.last().context("no ids")?;
    let new: Vec<_> = after.difference(&before).collect();
    ensure!(new.len() == 100 && new.iter().all(|id| *id > highest));
    Ok(())
}

async fn insert_many(clients: &mut [Wire; 2], count: usize) -> anyhow::Result<()> {
    for nth in 0..count {
        let client = &mut clients[nth % 2];
        let insert = "INSERT INTO items (body) VALUES ('left out')";
        if nth < 2 {
            let found = shape(&client.query(insert).await?);
            ensure!(found == "E(0A000) Z(I)", "{found}");
        }
        let drawn = client.query("SELECT nextval('items_id_seq')").await?;
        let id = value(&drawn).context("no value was drawn")?;
        done(client, &format!("INSERT INTO items VALUES ({id}, 'drawn')")).await?;
    }
    Ok(())
}

/// The ids of the omnisharded table, the same on every shard.
async fn ids(cluster: &Cluster, shards: u16) -> anyhow::Result<BTreeSet<i64>> {
    let mut all: Option<BTreeSet<i64>> = None;
    for shard in 0..shards {
        let node = cluster.primary(shard).await?;
        let rows = node.rows("SELECT id FROM items").await?;
        let found: Result<BTreeSet<i64>, _> = rows.iter().map(|row| row[0].parse()).collect();
        let found = found?;
        ensure!(found.len() == rows.len());
        ensure!(
            all.is_none_or(|all| all == found),
            "shard {shard} has other ids"
        );
        all = Some(found);
    }
    all.context("no shards")
}

/// On the third shard, too.
async fn ids_are_unique_over_all_shards(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    done(&mut client, "INSERT INTO tenants VALUES (1402, 2)").await?;
    let (mut next, mut unique, mut drawn) = (BTreeSet::new(), BTreeSet::new(), 0);
    for shim in 0..2 {
        let mut client = wire(cluster, shim).await?;
        for tenant in [11, 12, 1402] {
            for _ in 0..20 {
                let insert = format!("INSERT INTO kept VALUES ({tenant}) RETURNING id, other");
                let answer = client.query(&insert).await?;
                let row = rows(&answer).into_iter().next();
                let row = row.with_context(|| shape(&answer))?;
                next.insert(row[0].clone());
                unique.insert(row[1].clone());
                drawn += 1;
            }
        }
        let answer = client
            .query("SELECT pgdog.next_id(), pgdog.unique_id()")
            .await?;
        let row = rows(&answer).into_iter().next();
        let row = row.with_context(|| shape(&answer))?;
        next.insert(row[0].clone());
        unique.insert(row[1].clone());
        drawn += 1;
    }
    ensure!(
        next.len() == drawn && unique.len() == drawn,
        "an id was given twice"
    );
    // None is burnt: what a shard gives away rises by one.
    for shard in 0..3 {
        let node = cluster.primary(shard).await?;
        let gaps = "SELECT max(id >> 10) - min(id >> 10) + 1 - count(*) FROM kept";
        let gaps: i64 = node.value(gaps).await?.parse()?;
        ensure!(
            gaps <= i64::from(shard == 0),
            "shard {shard}: {gaps} were burnt"
        );
    }
    Ok(())
}
