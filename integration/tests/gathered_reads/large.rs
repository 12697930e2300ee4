//! Results that do not fit into memory, and reads that take too long.

use std::time::Duration;

use pgdog_integration::{Cluster, fixture, wait_until};

use super::{generated, gives};

use anyhow::ensure;

/// For what happens within moments.
const LIMIT: Duration = Duration::from_secs(60);

pub async fn a_large_result_passes_through_in_order(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    // About 40 MB of rows, made where they are read.
    let rows = "FROM orders o, generate_series(1, 8000) n";
    let filler = "repeat('x', 800)";
    client.rows("SELECT count(*) FROM orders").await?;
    let idle = fixture::watch_peak(cluster, 0)?;
    for order in ["", " ORDER BY n, o.tenant_id, o.id"] {
        let sql = format!("SELECT n, o.tenant_id, o.id, {filler} {rows}{order}");
        let params: [&str; 0] = [];
        let stream = client.query_raw(&sql, params).await?;
        let counted = tokio::time::timeout(LIMIT * 2, generated::count(stream)).await??;
        ensure!(counted.rows == 48_000, "{} rows", counted.rows);
        ensure!(order.is_empty() || counted.in_order, "rows out of order");
    }
    let peak = fixture::peak_kb(cluster, 0)?;
    ensure!(
        peak < idle + 24 * 1024,
        "{peak} KB at most, {idle} KB before"
    );
    println!("    peak {} KB above idle", peak.saturating_sub(idle));
    let much = format!("SELECT DISTINCT n, o.tenant_id, {filler} {rows}");
    client.refused(&much, "53200").await?;
    gives(&client, "SELECT count(*) FROM orders", &[&["6"]]).await
}

pub async fn a_cancelled_read_ends_on_every_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let token = client.cancel_token();
    let sql = "SELECT count(*) FROM orders o, generate_series(1, 2000000000) n";
    let read = client.refused(sql, "57014");
    let cancel = async {
        let node = cluster.primary(2).await?;
        let runs = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' \
                    AND query LIKE '%generate_series(1, 2000000000)%' \
                    AND pid <> pg_backend_pid()";
        wait_until("the read runs", LIMIT, || async {
            Ok((node.value(runs).await? != "0").then_some(()))
        })
        .await?;
        token.cancel_query(tokio_postgres::NoTls).await?;
        anyhow::Ok((node, runs))
    };
    let (cancelled, running) = tokio::join!(read, cancel);
    cancelled?;
    let (node, runs) = running?;
    wait_until("the read has ended", LIMIT, || async {
        Ok((node.value(runs).await? == "0").then_some(()))
    })
    .await?;
    gives(&client, "SELECT count(*) FROM orders", &[&["6"]]).await
}
