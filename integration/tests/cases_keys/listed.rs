//! Keys in a list that live on different shards.

use anyhow::ensure;
use pgdog_integration::{Client, Cluster};

/// How often it is asked in each way.
const TIMES: usize = 50;

pub async fn r089_keys_of_two_shards_are_both_answered_every_time(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = "SELECT tenant_id, count(*) FROM orders WHERE tenant_id IN (11, 12) GROUP BY 1";
    let expected = [
        (11, on_its_shard(cluster, 0, 11).await?),
        (12, on_its_shard(cluster, 1, 12).await?),
    ];
    ensure!(expected.iter().all(|(_, rows)| *rows > 0), "{expected:?}");
    let prepared = client.prepare(sql).await?;
    let by_list = "SELECT tenant_id, count(*) FROM orders WHERE tenant_id = ANY ($1) GROUP BY 1";
    let by_list = client.prepare(by_list).await?;
    for time in 0..TIMES {
        let simple = client.rows(sql).await?;
        let simple = simple
            .iter()
            .map(|row| Ok((row[0].parse()?, row[1].parse()?)));
        let simple: Vec<(i64, i64)> = simple.collect::<anyhow::Result<_>>()?;
        let named = client.query(&prepared, &[]).await?;
        let listed = client.query(&by_list, &[&[12i64, 11].as_slice()]).await?;
        let binary = |rows: Vec<tokio_postgres::Row>| -> Vec<(i64, i64)> {
            rows.iter().map(|row| (row.get(0), row.get(1))).collect()
        };
        for mut found in [simple, binary(named), binary(listed)] {
            found.sort_unstable();
            ensure!(
                found == expected,
                "time {time}: {found:?} instead of {expected:?}"
            );
        }
    }
    Ok(())
}

/// Rows of a tenant as its own server counts them.
async fn on_its_shard(cluster: &Cluster, shard: u16, tenant: i64) -> anyhow::Result<i64> {
    let node: Client = cluster.primary(shard).await?;
    let sql = format!("SELECT count(*) FROM orders WHERE tenant_id = {tenant}");
    Ok(node.value(&sql).await?.parse()?)
}
