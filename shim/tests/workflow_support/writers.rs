//! Omni writers as a shim would be one: enter on shard 0, fan out by it, commit in two phases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::{Client, Error};

use super::Shop;

/// How often one writes, at most: the new shard applies all of it alone, and must be able to follow
/// where others use the machine, too.
const PACE: Duration = Duration::from_millis(20);

/// Writers at work.
pub struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicI64>,
    handles: Vec<JoinHandle<(i64, Duration)>>,
}

impl Writers {
    /// Starts this many.
    pub async fn start(shop: &Shop, count: i32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicI64::new(0));
        let mut handles = Vec::new();
        for writer in 0..count {
            let sessions = [
                shop.client(0).await,
                shop.client(1).await,
                shop.client(2).await,
            ];
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            handles.push(tokio::spawn(async move {
                let (mut n, mut slowest) = (0, Duration::ZERO);
                let mut pace = tokio::time::interval(PACE);
                pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !stop.load(Ordering::Relaxed) {
                    pace.tick().await;
                    n += 1;
                    let started = Instant::now();
                    write(&sessions, writer, n)
                        .await
                        .unwrap_or_else(|error| panic!("writer {writer} at {n}: {error:?}"));
                    slowest = slowest.max(started.elapsed());
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                (n, slowest)
            }));
        }
        Self {
            stop,
            acknowledged,
            handles,
        }
    }

    /// Transactions acknowledged so far.
    pub fn acknowledged(&self) -> i64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends them: transactions of each writer, and the slowest of all.
    pub async fn stop(self) -> (Vec<i64>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut counts, mut slowest) = (Vec::new(), Duration::ZERO);
        for handle in self.handles {
            let (count, duration) = handle.await.expect("no writer may fail");
            counts.push(count);
            slowest = slowest.max(duration);
        }
        (counts, slowest)
    }
}

async fn write(sessions: &[Client; 3], writer: i32, n: i64) -> Result<(), Error> {
    let first = &sessions[0];
    first.batch_execute("BEGIN").await?;
    let row = first
        .query_one("SELECT shards FROM pgdog.omni_enter()", &[])
        .await?;
    let shards = usize::try_from(row.get::<_, i32>(0)).expect("a count");
    let row = first
        .query_one("SELECT nextval('shop.ledger_id_seq')", &[])
        .await?;
    let id: i64 = row.get(0);
    let statements = format!(
        "UPDATE shop.counters SET n = n + 1 WHERE writer = {writer}; \
         INSERT INTO shop.ledger (id, writer, n, plan) VALUES ({id}, {writer}, {n}, 'p1'); \
         UPDATE shop.rates SET rate = rate + 1 WHERE day = date '2026-01-02' + {writer}; \
         UPDATE shop.notes SET body = body || '.' WHERE body LIKE 'note 1{writer}%'; \
         INSERT INTO shop.visits VALUES (date '2025-12-30' + {n}::int % 5, {unique})",
        unique = 1_000_000 * (i64::from(writer) + 1) + n
    );
    let gid = format!("pgdog_prod_test{writer}_1_{n}");
    for (shard, session) in sessions[..shards].iter().enumerate() {
        if shard > 0 {
            session.batch_execute("BEGIN").await?;
        }
        session.batch_execute(&statements).await?;
    }
    first
        .batch_execute(&format!("SELECT pgdog.two_phase_record('{gid}')"))
        .await?;
    for verb in ["PREPARE TRANSACTION", "COMMIT PREPARED"] {
        for session in &sessions[..shards] {
            session.batch_execute(&format!("{verb} '{gid}'")).await?;
        }
    }
    Ok(())
}
