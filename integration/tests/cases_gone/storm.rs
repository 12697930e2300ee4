//! Clients that write and vanish, in numbers.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{count, full_size, none_left, plain, resident_kb};
use pgdog_integration::wire::{Batch, Wire, shape, value};
use pgdog_integration::{Cluster, wait_until};

use super::LIMIT;

/// As many clients as there are server connections.
const FEW: usize = 20;

/// Ways to leave without having ended the transaction.
#[derive(Debug, Clone, Copy)]
pub enum Leave {
    /// With Terminate.
    Terminate,
    /// With the end of the stream.
    Close,
    /// With a reset.
    Reset,
}

impl Leave {
    /// Leaves.
    pub async fn now(self, mut client: Wire) -> anyhow::Result<()> {
        match self {
            Leave::Terminate => client.send(&Batch::new().message(b'X', b"").bytes).await,
            Leave::Close => Ok(()),
            Leave::Reset => client.reset(),
        }
    }
}

/// A storm of them: nothing is left, and who stays is told the truth.
pub async fn clients_that_vanish_at_random_points_leave_nothing(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (clients, length) = match full_size() {
        true => (1000, Duration::from_secs(60)),
        false => (100, Duration::from_secs(8)),
    };
    // The start is a shim that a few clients have used: what is there once and for all, as the
    // connections to its servers, is no growth.
    storm(cluster, FEW, Duration::from_secs(4)).await?;
    let before = resident_kb(cluster, 0)?;
    let vanished = storm(cluster, clients, length).await?;
    for shard in 0..2 {
        none_left(cluster, shard, "state <> 'idle'").await?;
        ensure!(count(cluster, shard, "orders WHERE memo = 'lost'").await? == 0);
        let connections = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' \
                           AND state = 'idle' AND client_port IS NOT NULL";
        let left: usize = cluster
            .primary(shard)
            .await?
            .value(connections)
            .await?
            .parse()?;
        // A pool of twenty, one of one, one of five.
        ensure!(left <= 2 * 26, "{left} server connections are left");
    }
    // What an allocator keeps does not shrink with the process.
    let bound = before + (before / 10).max(6 * 1024);
    wait_until("the memory from before", LIMIT, || async {
        Ok((resident_kb(cluster, 0)? <= bound).then_some(()))
    })
    .await
    .with_context(|| {
        format!(
            "{before} KB before, {} after",
            resident_kb(cluster, 0).unwrap_or(0)
        )
    })?;
    eprintln!(
        "{vanished} clients vanished; {before} KB before, {} KB after",
        resident_kb(cluster, 0)?
    );
    Ok(())
}

/// Clients that write and vanish, and four that stay and check what they are told.
async fn storm(cluster: &Cluster, clients: usize, length: Duration) -> anyhow::Result<usize> {
    let end = Instant::now() + length;
    let honest = (0..4_i64).map(|nth| {
        let login = plain(cluster, 0);
        tokio::spawn(async move {
            let mut client = Wire::connect(&login).await?;
            let id = 100 + nth;
            let tenant = 11 + nth % 2;
            let clear = format!("DELETE FROM orders WHERE tenant_id = {tenant} AND id = {id}");
            client.query(&clear).await?;
            let insert = format!("INSERT INTO orders VALUES ({tenant}, {id}, 0, 'kept')");
            client.query(&insert).await?;
            let mut counted = 0;
            while Instant::now() < end {
                counted += 1;
                let update = format!(
                    "UPDATE orders SET qty = qty + 1 WHERE tenant_id = {tenant} AND id = {id} \
                     RETURNING qty, '{nth}'"
                );
                let answers = client.query(&update).await?;
                let qty = value(&answers).with_context(|| shape(&answers))?;
                ensure!(qty == counted.to_string(), "{qty} after {counted} updates");
            }
            Ok(())
        })
    });
    let honest: Vec<_> = honest.collect();
    let vanishing = (0..clients).map(|_| {
        let login = plain(cluster, 0);
        tokio::spawn(async move {
            let mut vanished = 0;
            let mut half_open = None;
            while Instant::now() < end {
                let client = Wire::connect(&login).await?;
                if let Some(silent) = vanish(client).await? {
                    half_open = Some(silent);
                }
                vanished += 1;
            }
            drop(half_open);
            anyhow::Ok(vanished)
        })
    });
    let mut vanished = 0;
    for task in vanishing.collect::<Vec<_>>() {
        vanished += task.await??;
    }
    for task in honest {
        task.await??;
    }
    Ok(vanished)
}

/// Writes something and leaves at a random point in a random way; what is returned stays open for
/// a while without a word.
async fn vanish(mut client: Wire) -> anyhow::Result<Option<Wire>> {
    let id: u32 = rand::random_range(1_000_000..2_000_000_000);
    let tenant = [11, 12][rand::random_range(0..2)];
    let insert = format!("INSERT INTO orders VALUES ({tenant}, {id}, 1, 'lost')");
    let copy = "/* pgdog_shard: 0 */ COPY lines FROM STDIN";
    let what = rand::random_range(0..7);
    let batch = match what {
        0 => Batch::new(),
        1 => Batch::new().query("BEGIN").query(&insert),
        2 => Batch::new().run("BEGIN", &[]).run(&insert, &[]).sync(),
        3 => Batch::new()
            .run(&insert, &[])
            .run("SELECT 1/0", &[])
            .flush(),
        4 => Batch::new().query("SELECT repeat('x', 100000) FROM generate_series(1, 1000)"),
        5 => Batch::new()
            .query("BEGIN")
            .query(copy)
            .copy_data(b"11\t1\tx\n"),
        _ => Batch::new()
            .query("BEGIN")
            .query(&insert)
            .query("SELECT pg_sleep(60)"),
    };
    // Maybe in the middle of a message.
    let cut = match rand::random_range(0..3) {
        0 if batch.bytes.len() > 8 => batch.bytes.len() - rand::random_range(1..8),
        _ => batch.bytes.len(),
    };
    client.send(&batch.bytes[..cut]).await?;
    if !batch.bytes.is_empty() && rand::random() {
        // Any answer; none may come for half a message.
        let _ = tokio::time::timeout(Duration::from_millis(50), client.read()).await;
    }
    match rand::random_range(0..4) {
        0 => Leave::Terminate.now(client).await?,
        1 => Leave::Reset.now(client).await?,
        2 if what == 0 => return Ok(Some(client)),
        _ => Leave::Close.now(client).await?,
    }
    Ok(None)
}
