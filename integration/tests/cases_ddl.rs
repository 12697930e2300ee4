//! Definitions: on every shard or on none; and where that cannot be, what was done is told.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{create, wire};
use pgdog_integration::wire::{Fields, Wire, shape};
use pgdog_integration::{Cluster, Shape, claims, suite, tasks, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2).spares(1),
        ("prepare", |cluster| Box::pin(create(cluster))),
        claims![
            r142_a_definition_that_fails_on_one_shard_is_on_none,
            r143_what_cannot_be_undone_tells_what_was_done,
            r143_an_index_that_another_one_builds_is_left_alone,
            r143_other_commands_of_their_own_run_on_every_shard,
            r144_definitions_wait_for_the_end_of_a_growth,
        ],
    )
}

async fn done(wire: &mut Wire, sql: &str) -> anyhow::Result<()> {
    let found = shape(&wire.query(sql).await?);
    ensure!(!found.contains("E("), "{sql}: {found}");
    Ok(())
}

/// Message and detail of the error that a statement is answered with.
async fn refused(wire: &mut Wire, sql: &str, code: &str) -> anyhow::Result<String> {
    let answer = wire.query(sql).await?;
    let found = shape(&answer);
    ensure!(
        found.starts_with(&format!("E({code}) Z(")),
        "{sql}: {found}"
    );
    let fields = Fields::of(&answer[0]);
    Ok(format!("{} {}", fields.text(), fields.get('D')))
}

/// The same value on both shards.
async fn everywhere(cluster: &Cluster, sql: &str, expected: [&str; 2]) -> anyhow::Result<()> {
    for (shard, expected) in (0..2).zip(expected) {
        let found = cluster.primary(shard).await?.value(sql).await?;
        ensure!(found == expected, "shard {shard}: {sql}: {found}");
    }
    Ok(())
}

async fn r142_a_definition_that_fails_on_one_shard_is_on_none(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    done(&mut client, "INSERT INTO orders VALUES (11, 142, 1, 'x')").await?;
    done(&mut client, "INSERT INTO orders VALUES (12, 142, 1, NULL)").await?;
    let change = "ALTER TABLE orders ALTER memo SET NOT NULL";
    let nullable = "SELECT attnotnull FROM pg_attribute \
                    WHERE attrelid = 'orders'::regclass AND attname = 'memo'";
    refused(&mut client, change, "23502").await?;
    everywhere(cluster, nullable, ["f", "f"]).await?;
    let second = "ALTER TABLE lines ADD COLUMN price int";
    for (first, then) in [(second, change), (change, second)] {
        done(&mut client, "BEGIN").await?;
        let mut failed = false;
        for sql in [first, then] {
            let found = shape(&client.query(sql).await?);
            failed |= found == "E(23502) Z(E)";
        }
        ensure!(failed, "{first}; {then}");
        let ended = shape(&client.query("COMMIT").await?);
        ensure!(ended == "C(ROLLBACK) Z(I)", "{ended}");
        everywhere(cluster, nullable, ["f", "f"]).await?;
        let added = "SELECT count(*) FROM pg_attribute \
                     WHERE attrelid = 'lines'::regclass AND attname = 'price'";
        everywhere(cluster, added, ["0", "0"]).await?;
    }
    done(
        &mut client,
        "DELETE FROM orders WHERE tenant_id = 12 AND id = 142",
    )
    .await?;
    done(&mut client, change).await?;
    everywhere(cluster, nullable, ["t", "t"]).await
}

const VALID: &str = "SELECT coalesce((SELECT indisvalid FROM pg_index \
                     WHERE indexrelid = to_regclass('orders_qty')), false)";

async fn r143_what_cannot_be_undone_tells_what_was_done(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    done(&mut client, "DELETE FROM orders WHERE tenant_id = 11").await?;
    for row in ["(11, 1, 5, 'a')", "(12, 1, 5, 'b')", "(12, 2, 5, 'c')"] {
        done(&mut client, &format!("INSERT INTO orders VALUES {row}")).await?;
    }
    let index = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS orders_qty ON orders (qty)";
    for _ in 0..2 {
        // Again, with what the first one has left.
        let text = refused(&mut client, index, "23505").await?;
        ensure!(
            text.contains("failed on shard 1") && text.contains("done on shard 0"),
            "{text}"
        );
        everywhere(cluster, VALID, ["t", "f"]).await?;
    }
    done(
        &mut client,
        "UPDATE orders SET qty = 6 WHERE tenant_id = 12 AND id = 2",
    )
    .await?;
    done(&mut client, index).await?;
    everywhere(cluster, VALID, ["t", "t"]).await?;
    done(&mut client, "DROP INDEX CONCURRENTLY orders_qty").await?;
    everywhere(cluster, VALID, ["f", "f"]).await?;

    // One that was left invalid by a crash is not taken for done.
    for row in ["(11, 3, 5, 'a')", "(11, 4, 6, 'b')"] {
        done(&mut client, &format!("INSERT INTO orders VALUES {row}")).await?;
    }
    let node = cluster.primary(0).await?;
    let left = node.batch_execute("CREATE UNIQUE INDEX CONCURRENTLY orders_qty ON orders (qty)");
    ensure!(left.await.is_err());
    done(&mut client, "DELETE FROM orders WHERE tenant_id = 11").await?;
    let text = refused(&mut client, index, "55000").await?;
    ensure!(text.contains("failed on shard 0"), "{text}");
    node.batch_execute("DROP INDEX orders_qty").await?;
    done(&mut client, index).await?;
    everywhere(cluster, VALID, ["t", "t"]).await?;
    done(&mut client, "DROP INDEX orders_qty").await
}

/// A migration that was started twice: the second one gives up and takes nothing away.
async fn r143_an_index_that_another_one_builds_is_left_alone(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let index = "CREATE INDEX CONCURRENTLY orders_memo ON orders (memo)";
    let mut client = wire(cluster, 0).await?;
    done(&mut client, "INSERT INTO orders VALUES (11, 9, 9, 'held')").await?;
    let holder = cluster.primary(0).await?;
    holder
        .batch_execute("BEGIN; UPDATE orders SET qty = 10 WHERE memo = 'held'")
        .await?;
    let mut first = wire(cluster, 0).await?;
    let first = tokio::spawn(async move { done(&mut first, index).await });
    let node = cluster.primary(0).await?;
    wait_until("the first build", LIMIT, || async {
        let sql = "SELECT count(*) FROM pg_stat_progress_create_index WHERE index_relid = \
                   coalesce(to_regclass('orders_memo'), 0::oid::regclass)";
        Ok((node.value(sql).await? == "1").then_some(()))
    })
    .await?;
    done(&mut client, "SET lock_timeout = '500ms'").await?;
    refused(&mut client, index, "55P03").await?;
    done(&mut client, "RESET lock_timeout").await?;
    holder.batch_execute("COMMIT").await?;
    tokio::time::timeout(LIMIT, first)
        .await
        .context("the first statement never ends")???;
    let valid = VALID.replace("orders_qty", "orders_memo");
    everywhere(cluster, &valid, ["t", "t"]).await?;
    done(&mut client, "DROP INDEX orders_memo").await
}

async fn r143_other_commands_of_their_own_run_on_every_shard(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    done(&mut client, "CREATE TYPE mood AS ENUM ('sad', 'ok')").await?;
    done(&mut client, "ALTER TYPE mood ADD VALUE 'happy'").await?;
    let values = "SELECT count(*) FROM pg_enum WHERE enumtypid = 'mood'::regtype";
    everywhere(cluster, values, ["3", "3"]).await?;
    done(&mut client, "VACUUM orders").await?;
    done(&mut client, "VACUUM").await?;
    // Who is in a transaction is told as PostgreSQL tells him.
    done(&mut client, "BEGIN").await?;
    refused(&mut client, "VACUUM orders", "25001").await?;
    done(&mut client, "ROLLBACK").await?;
    // Nobody is told "done" when one shard has failed.
    let databases = "SELECT count(*) FROM pg_database WHERE datname = 'other'";
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        node.batch_execute("CREATE DATABASE other OWNER app")
            .await?;
    }
    let held = pgdog_integration::Client::connect(&pgdog_integration::client::Login {
        database: "other".to_owned(),
        ..pgdog_integration::fixture::direct(cluster, 1)?
    })
    .await?;
    held.batch_execute("SELECT 1").await?;
    let text = refused(&mut client, "DROP DATABASE other", "55006").await?;
    ensure!(text.contains("failed on shard 1"), "{text}");
    everywhere(cluster, databases, ["0", "1"]).await?;
    drop(held);
    pgdog_integration::wait_until("the other session's end", LIMIT, || async {
        let found = shape(&client_query(cluster, "DROP DATABASE IF EXISTS other").await?);
        Ok((!found.contains("E(")).then_some(()))
    })
    .await?;
    everywhere(cluster, databases, ["0", "0"]).await
}

async fn client_query(
    cluster: &Cluster,
    sql: &str,
) -> anyhow::Result<Vec<pgdog_integration::wire::Message>> {
    wire(cluster, 0).await?.query(sql).await
}

async fn r144_definitions_wait_for_the_end_of_a_growth(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    let task = tasks::order(cluster, "ADD SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    for sql in [
        "ALTER TABLE rates ADD COLUMN x int",
        "CREATE TABLE fresh (id bigint PRIMARY KEY)",
        "SELECT pgdog.omni_table('orders')",
        "CREATE INDEX late ON rates (pct)",
        "CREATE INDEX CONCURRENTLY late ON rates (pct)",
    ] {
        let text = refused(&mut client, sql, "55000").await?;
        ensure!(text.contains("frozen"), "{sql}: {text}");
    }
    // Rows may be written all the time.
    done(&mut client, "INSERT INTO rates VALUES ('r144', 1)").await?;
    cluster.admin(0).await?.rows("CUTOVER SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "done", LIMIT).await?;
    let mut client = wire(cluster, 0).await?;
    for sql in [
        "ALTER TABLE rates ADD COLUMN x int DEFAULT 144",
        "CREATE TABLE fresh (id bigint PRIMARY KEY)",
        "SELECT pgdog.omni_table('fresh')",
        "CREATE INDEX late ON rates (pct)",
    ] {
        done(&mut client, sql).await?;
    }
    for shard in 0..3 {
        let node = cluster.primary(shard).await?;
        let x = node
            .value("SELECT x FROM rates WHERE code = 'r144'")
            .await
            .context("the new shard lacks a row or a column")?;
        ensure!(x == "144", "shard {shard}: {x}");
        let there = "SELECT count(*) FROM pg_class WHERE relname IN ('late', 'fresh')";
        ensure!(node.value(there).await? == "2", "shard {shard}");
    }
    Ok(())
}
