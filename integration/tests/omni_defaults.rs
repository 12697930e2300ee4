//! Defaults that every shard would compute for itself: their values must be in the statement.
//!
//! Shown on two shards and two shims; the shards' own rows are compared at the end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use pgdog_integration::client::{Client, sqlstate};
use pgdog_integration::{Cluster, Shape, claims, shop, suite, tasks, wait_until};

const SHARDS: u16 = 2;

fn main() -> ExitCode {
    let shape = Shape::shards(SHARDS).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            a_default_that_differs_is_refused,
            a_given_value_is_the_same_everywhere,
            a_default_set_later_is_refused_by_every_shim,
            a_default_set_behind_our_back_is_refused,
            stored_rows_are_not_filled_with_what_differs,
            the_shards_agree,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    shop::create(cluster, shop::Size::SMALL).await?;
    let client = cluster.connect().await?;
    client
        .batch_execute(
            "CREATE TABLE notices (id serial PRIMARY KEY, body text DEFAULT 'none',
             at timestamptz NOT NULL DEFAULT now())",
        )
        .await?;
    client.rows("SELECT pgdog.omni_table('notices')").await?;
    Ok(())
}

/// Refused with the column's name in the detail.
async fn refused(client: &Client, sql: &str, column: &str) -> anyhow::Result<()> {
    let error = client.refused(sql, "0A000").await?;
    let text = format!("{error:?}");
    ensure!(text.contains(column), "{sql}: {text}");
    Ok(())
}

async fn a_default_that_differs_is_refused(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for (sql, column) in [
        ("INSERT INTO notices (body) VALUES ('a')", "id"),
        ("INSERT INTO notices (id, body) VALUES (1, 'a')", "at"),
        ("INSERT INTO notices VALUES (1, 'a')", "at"),
        ("INSERT INTO notices VALUES (1, 'a', DEFAULT)", "at"),
        ("INSERT INTO notices DEFAULT VALUES", "id"),
        ("UPDATE notices SET at = DEFAULT", "at"),
        ("COPY notices (id, body) FROM STDIN", "at"),
    ] {
        refused(&client, sql, column).await?;
    }
    for shard in 0..SHARDS {
        let node = cluster.primary(shard).await?;
        let rows = node.value("SELECT count(*) FROM notices").await?;
        ensure!(rows == "0", "{rows} rows on shard {shard}");
    }
    Ok(())
}

async fn a_given_value_is_the_same_everywhere(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO notices VALUES (1, DEFAULT, '2026-01-01')")
        .await?;
    client
        .execute(
            "INSERT INTO notices (at, id) VALUES ('2026-01-01', $1)",
            &[&2_i32],
        )
        .await?;
    tasks::omni_tables_agree(cluster, SHARDS).await
}

async fn a_default_set_later_is_refused_by_every_shim(cluster: &Cluster) -> anyhow::Result<()> {
    let first = cluster.connect().await?;
    let second = Client::connect(&cluster.login(1)).await?;
    let insert = "INSERT INTO plans (code, title, price_cents) VALUES ('d', 'D', 1)";
    for client in [&first, &second] {
        client.batch_execute(insert).await?;
        client
            .batch_execute("DELETE FROM plans WHERE code = 'd'")
            .await?;
    }
    first
        .batch_execute("ALTER TABLE plans ADD COLUMN seen timestamptz")
        .await?;
    first
        .batch_execute("ALTER TABLE plans ALTER COLUMN seen SET DEFAULT clock_timestamp()")
        .await?;
    // At once: the epoch of the nodes tells the other shim.
    for client in [&second, &first] {
        refused(client, insert, "seen").await?;
    }
    first
        .batch_execute("ALTER TABLE plans DROP COLUMN seen")
        .await?;
    // A refusal asks no node: the other shim knows what is allowed again with its next look.
    for client in [&first, &second] {
        wait_until("the insert is let in", Duration::from_secs(30), || async {
            Ok(client.batch_execute(insert).await.ok())
        })
        .await?;
        client
            .batch_execute("DELETE FROM plans WHERE code = 'd'")
            .await?;
    }
    Ok(())
}

async fn a_default_set_behind_our_back_is_refused(cluster: &Cluster) -> anyhow::Result<()> {
    for shard in 0..SHARDS {
        cluster
            .primary(shard)
            .await?
            .batch_execute("ALTER TABLE plans ALTER COLUMN price_cents SET DEFAULT random() * 100")
            .await?;
    }
    let client = Client::connect(&cluster.login(1)).await?;
    refused(
        &client,
        "INSERT INTO plans (code, title) VALUES ('b', 'B')",
        "price_cents",
    )
    .await?;
    for shard in 0..SHARDS {
        cluster
            .primary(shard)
            .await?
            .batch_execute("ALTER TABLE plans ALTER COLUMN price_cents DROP DEFAULT")
            .await?;
    }
    wait_until("the insert is let in", Duration::from_secs(30), || async {
        let insert = "INSERT INTO plans (code, title) VALUES ('b', 'B')";
        Ok(match client.batch_execute(insert).await {
            Ok(()) => Some(()),
            // NOT NULL: it was let in.
            Err(error) => (sqlstate(&error) == "23502").then_some(()),
        })
    })
    .await?;
    client
        .batch_execute("DELETE FROM plans WHERE code = 'b'")
        .await?;
    Ok(())
}

async fn stored_rows_are_not_filled_with_what_differs(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    refused(
        &client,
        "ALTER TABLE plans ADD COLUMN made timestamptz DEFAULT now()",
        "plans",
    )
    .await?;
    refused(
        &client,
        "ALTER TABLE plans ADD COLUMN number serial",
        "plans",
    )
    .await
}

async fn the_shards_agree(cluster: &Cluster) -> anyhow::Result<()> {
    tasks::omni_tables_agree(cluster, SHARDS).await
}
