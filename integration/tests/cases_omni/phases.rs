//! The end of transactions on several shards.

use std::time::Duration;

use anyhow::ensure;
use pgdog_integration::fixture::{create_deferred, plain};
use pgdog_integration::wire::{Wire, shape, value};
use pgdog_integration::{Cluster, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

pub async fn none_prepared(cluster: &Cluster) -> anyhow::Result<()> {
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        wait_until("no prepared transaction", LIMIT, || async {
            let left = node.value("SELECT count(*) FROM pg_prepared_xacts").await?;
            Ok((left == "0").then_some(()))
        })
        .await?;
    }
    Ok(())
}

pub async fn r113_a_constraint_that_fails_at_the_end_undoes_both(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    create_deferred(cluster).await?;
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    for sql in [
        "BEGIN",
        "SET work_mem = '3MB'",
        "INSERT INTO parents VALUES (11, 1)",
        "INSERT INTO children VALUES (12, 1)",
    ] {
        let found = shape(&wire.query(sql).await?);
        ensure!(found.ends_with("Z(T)"), "{sql}: {found}");
    }
    let found = shape(&wire.query("COMMIT").await?);
    ensure!(found == "E(23503) Z(I)", "{found}");
    // A server that has prepared keeps what was set, whatever comes then; nobody is to meet it.
    for shard in 0..2 {
        let sql = format!("/* pgdog_shard: {shard} */ SELECT current_setting('work_mem')");
        for client in [&mut Wire::connect(&plain(cluster, 0)).await?, &mut wire] {
            let work_mem = value(&client.query(&sql).await?);
            ensure!(work_mem.as_deref() == Some("4MB"), "{shard}: {work_mem:?}");
        }
    }
    for (shard, table) in [(0, "parents"), (1, "children")] {
        let node = cluster.primary(shard).await?;
        let left = node.value(&format!("SELECT count(*) FROM {table}")).await?;
        ensure!(left == "0", "{table}: {left}");
    }
    none_prepared(cluster).await
}

pub async fn r117_one_shard_and_reads_need_no_two_phases(cluster: &Cluster) -> anyhow::Result<()> {
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        node.batch_execute("ALTER SYSTEM SET log_statement = 'all'")
            .await?;
        node.batch_execute("SELECT pg_reload_conf()").await?;
        wait_until("the setting", LIMIT, || async {
            Ok((node.value("SHOW log_statement").await? == "all").then_some(()))
        })
        .await?;
    }
    let log =
        |shard: u16| std::fs::read_to_string(cluster.dir().join(format!("shard-{shard}.log")));
    let prepared = |shard: u16| -> anyhow::Result<usize> {
        Ok(log(shard)?.matches("PREPARE TRANSACTION").count())
    };
    let logged = [prepared(0)?, prepared(1)?];
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    for sql in [
        "BEGIN",
        "INSERT INTO orders VALUES (12, 11701, 1, 'x')",
        "UPDATE orders SET qty = 2 WHERE tenant_id = 12 AND id = 11701",
        "COMMIT",
        "BEGIN",
        "SELECT memo FROM orders WHERE tenant_id = 11",
        "SELECT memo FROM orders WHERE tenant_id = 12",
        "COMMIT",
    ] {
        let found = shape(&wire.query(sql).await?);
        ensure!(!found.contains("E("), "{sql}: {found}");
    }
    wait_until("the statements in the log", LIMIT, || async {
        Ok(log(1)?
            .contains("qty = 2 WHERE tenant_id = 12 AND id = 11701")
            .then_some(()))
    })
    .await?;
    for shard in 0..2 {
        let more = prepared(shard)? - logged[usize::from(shard)];
        ensure!(more == 0, "shard {shard} has prepared something");
        let node = cluster.primary(shard).await?;
        node.batch_execute("ALTER SYSTEM RESET log_statement")
            .await?;
        node.batch_execute("SELECT pg_reload_conf()").await?;
    }
    Ok(())
}
