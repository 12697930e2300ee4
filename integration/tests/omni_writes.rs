//! Writes to omnisharded tables: the same on every shard, or nowhere.
//!
//! Shown on three shards; every shard is asked directly.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use pgdog_integration::load::{Load, Pressure};
use pgdog_integration::wire::{Batch, Wire, shape};
use pgdog_integration::{Cluster, Shape, claims, shop, suite, tasks, wait_until};

const SHARDS: u16 = 3;
/// For what happens within moments.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let shape = Shape::shards(SHARDS).shims(2);
    suite::run(
        shape,
        shop::SMALL,
        claims![
            a_write_is_on_every_shard,
            a_rolled_back_write_is_on_no_shard,
            an_error_of_one_shard_undoes_all,
            a_failed_transaction_answers_rollback_to_commit,
            a_close_fails_no_transaction,
            rows_are_counted_once,
            returning_answers_once,
            a_savepoint_is_rolled_back_everywhere,
            definitions_reach_every_shard,
            concurrent_writers_leave_identical_shards,
            no_prepared_transaction_is_left,
        ],
    )
}

async fn everywhere(cluster: &Cluster, query: &str, expected: &str) -> anyhow::Result<()> {
    for shard in 0..SHARDS {
        let found = cluster.primary(shard).await?.value(query).await?;
        ensure!(
            found == expected,
            "shard {shard}: {found} instead of {expected}: {query}"
        );
    }
    Ok(())
}

async fn a_write_is_on_every_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO plans VALUES ('w', 'Written', 1)")
        .await?;
    everywhere(
        cluster,
        "SELECT title FROM plans WHERE code = 'w'",
        "Written",
    )
    .await?;
    let done = client
        .execute(
            "UPDATE plans SET title = $1 WHERE code = $2",
            &[&"Changed", &"w"],
        )
        .await?;
    ensure!(done == 1);
    everywhere(
        cluster,
        "SELECT title FROM plans WHERE code = 'w'",
        "Changed",
    )
    .await?;
    client
        .batch_execute("DELETE FROM plans WHERE code = 'w'")
        .await?;
    everywhere(cluster, "SELECT count(*) FROM plans WHERE code = 'w'", "0").await
}

async fn a_rolled_back_write_is_on_no_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("INSERT INTO plans VALUES ('r', 'Rolled back', 1)")
        .await?;
    ensure!(
        client
            .value("SELECT count(*) FROM plans WHERE code = 'r'")
            .await?
            == "1"
    );
    client.batch_execute("ROLLBACK").await?;
    everywhere(cluster, "SELECT count(*) FROM plans WHERE code = 'r'", "0").await
}

async fn an_error_of_one_shard_undoes_all(cluster: &Cluster) -> anyhow::Result<()> {
    // A row that only shard 2 has makes the same insert fail there and nowhere else.
    let last = cluster.primary(2).await?;
    last.batch_execute("INSERT INTO plans VALUES ('e', 'In the way', 1)")
        .await?;
    let client = cluster.connect().await?;
    client
        .refused("INSERT INTO plans VALUES ('e', 'Everywhere', 1)", "23505")
        .await?;
    last.batch_execute("DELETE FROM plans WHERE code = 'e'")
        .await?;
    everywhere(cluster, "SELECT count(*) FROM plans WHERE code = 'e'", "0").await?;
    client
        .batch_execute("INSERT INTO plans VALUES ('e', 'Everywhere', 1)")
        .await?;
    everywhere(cluster, "SELECT count(*) FROM plans WHERE code = 'e'", "1").await?;
    client
        .batch_execute("DELETE FROM plans WHERE code = 'e'")
        .await?;
    Ok(())
}

async fn a_failed_transaction_answers_rollback_to_commit(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("INSERT INTO plans VALUES ('f', 'First', 1)")
        .await?;
    ensure!(
        client
            .batch_execute("INSERT INTO plans VALUES ('f', 'Again', 1)")
            .await
            .is_err()
    );
    client.refused("SELECT 1", "25P02").await?;
    client.batch_execute("COMMIT").await?;
    everywhere(cluster, "SELECT count(*) FROM plans WHERE code = 'f'", "0").await
}

/// Drivers do not look at what a Close is answered. If it told of a lost server, and the COMMIT
/// behind it were answered by ROLLBACK, a write would be lost that its client takes for done.
async fn a_close_fails_no_transaction(cluster: &Cluster) -> anyhow::Result<()> {
    let closes = Batch::new().close("s").sync();
    let portals = Batch::new().message(b'C', b"Pp\0").sync();
    for shard in 0..SHARDS {
        for close in [&closes, &portals] {
            // The shards take turns in being the one that a client's other statements go to.
            let mut wire = Wire::connect(&cluster.login(0)).await?;
            wire.query("BEGIN").await?;
            let insert = "INSERT INTO plans VALUES ('c', 'Closed', 1)";
            wire.ask(&Batch::new().run(insert, &[]).sync()).await?;
            lose_transactions(cluster, shard).await?;
            let closed = shape(&wire.ask(close).await?);
            ensure!(closed == "3 Z(T)", "shard {shard}: {closed}");
            let ended = shape(&wire.query("COMMIT").await?);
            ensure!(
                ["E(08006) Z(I)", "E(57P01) Z(I)"].contains(&ended.as_str()),
                "shard {shard}: {ended}"
            );
            everywhere(cluster, "SELECT count(*) FROM plans WHERE code = 'c'", "0").await?;
            wire.query("BEGIN; SELECT 1/0").await?;
            let closed = shape(&wire.ask(close).await?);
            ensure!(closed == "3 Z(E)", "in a failed transaction: {closed}");
            let ended = shape(&wire.query("COMMIT").await?);
            ensure!(ended == "C(ROLLBACK) Z(I)", "nothing was lost: {ended}");
        }
    }
    Ok(())
}

/// Ends the connections to a shard that have a transaction open.
async fn lose_transactions(cluster: &Cluster, shard: u16) -> anyhow::Result<()> {
    let node = cluster.primary(shard).await?;
    let open = "FROM pg_stat_activity WHERE usename = 'app' AND state = 'idle in transaction'";
    let ended = format!("SELECT count(pg_terminate_backend(pid)) {open}");
    ensure!(node.value(&ended).await? == "1");
    wait_until("the end of a backend", LIMIT, || async {
        let left = node.value(&format!("SELECT count(*) {open}")).await?;
        Ok((left == "0").then_some(()))
    })
    .await
}

async fn rows_are_counted_once(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let done = client
        .execute("UPDATE plans SET price_cents = price_cents + 0", &[])
        .await?;
    ensure!(done == 3, "{done} rows instead of 3");
    Ok(())
}

async fn returning_answers_once(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let rows = client
        .query(
            "INSERT INTO plans VALUES ('q', 'Q', 7) RETURNING code, price_cents",
            &[],
        )
        .await?;
    ensure!(
        rows.len() == 1 && rows[0].get::<_, i32>(1) == 7,
        "{} rows",
        rows.len()
    );
    client
        .batch_execute("DELETE FROM plans WHERE code = 'q'")
        .await?;
    Ok(())
}

async fn a_savepoint_is_rolled_back_everywhere(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("INSERT INTO plans VALUES ('s1', 'S', 1)")
        .await?;
    client.batch_execute("SAVEPOINT s").await?;
    client
        .batch_execute("INSERT INTO plans VALUES ('s2', 'S', 1)")
        .await?;
    ensure!(
        client
            .batch_execute("INSERT INTO plans VALUES ('s1', 'S', 1)")
            .await
            .is_err()
    );
    client.batch_execute("ROLLBACK TO s").await?;
    client
        .batch_execute("INSERT INTO plans VALUES ('s3', 'S', 1)")
        .await?;
    client.batch_execute("COMMIT").await?;
    let codes = "SELECT string_agg(code, ' ' ORDER BY code) FROM plans WHERE code LIKE 's_'";
    everywhere(cluster, codes, "s1 s3").await?;
    client
        .batch_execute("DELETE FROM plans WHERE code LIKE 's_'")
        .await?;
    Ok(())
}

async fn definitions_reach_every_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("ALTER TABLE plans ADD COLUMN note text DEFAULT 'none'")
        .await?;
    everywhere(cluster, "SELECT min(note) FROM plans", "none").await?;
    client
        .refused("ALTER TABLE plans ADD COLUMN note text", "42701")
        .await?;
    client
        .batch_execute("ALTER TABLE plans DROP COLUMN note")
        .await?;
    Ok(())
}

async fn concurrent_writers_leave_identical_shards(cluster: &Cluster) -> anyhow::Result<()> {
    let load = Load::start(
        cluster,
        Pressure {
            omni_writers: 8,
            sharded_writers: 2,
            readers: 2,
            tenants: 20,
        },
    );
    wait_until("2000 statements", LIMIT, || async {
        Ok((load.done() >= 2000).then_some(()))
    })
    .await?;
    let account = load.finish().await?;
    account.expect_no_errors()?;
    account.verify(cluster, SHARDS).await?;
    tasks::omni_tables_agree(cluster, SHARDS).await
}

async fn no_prepared_transaction_is_left(cluster: &Cluster) -> anyhow::Result<()> {
    everywhere(cluster, "SELECT count(*) FROM pg_prepared_xacts", "0").await
}
