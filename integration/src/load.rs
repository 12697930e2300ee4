//! Writers and readers that keep account of what was acknowledged.
//!
//! Every omni write leaves a row in `ledger`, and three of four also add 1 to a counter in the same
//! transaction. So a lost write is an acknowledged ledger row that is missing, and a doubled one is
//! a counter that is ahead of the ledger.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::task::JoinHandle;

use crate::client::{Client, Login, describe};
use crate::cluster::Cluster;
use crate::shop::COUNTERS;

/// How much load.
#[derive(Debug, Clone, Copy)]
pub struct Pressure {
    /// Clients that write omnisharded tables.
    pub omni_writers: i32,
    /// Clients that write a sharded table.
    pub sharded_writers: i32,
    /// Clients that read both.
    pub readers: i32,
    /// Tenants that exist.
    pub tenants: i64,
}

/// Load that goes on until `finish`.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    workers: Vec<JoinHandle<Account>>,
}

/// What one client, or all together, saw.
#[derive(Debug, Default)]
pub struct Account {
    /// Acknowledged rows of `ledger`.
    pub omni: BTreeSet<(i32, i64)>,
    /// Acknowledged rows of `orders`.
    pub orders: BTreeSet<(i64, i64)>,
    /// Writes whose connection broke before the answer: both outcomes are right.
    pub unknown: BTreeSet<(i32, i64)>,
    /// Reads answered.
    pub reads: u64,
    /// Errors other than a broken connection.
    pub errors: Vec<String>,
    /// Connections that broke.
    pub broken: u64,
    /// Start and duration of every acknowledged omni write.
    pub omni_times: Vec<(Instant, Duration)>,
}

/// What a client does, over and over.
#[derive(Clone, Copy)]
enum Role {
    OmniWriter,
    ShardedWriter,
    Reader,
}

struct Worker {
    role: Role,
    number: i32,
    login: Login,
    tenants: i64,
    /// Number that its writes begin with.
    first: i64,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

/// Loads of one process follow one another on the same tables without meeting their keys.
static LOADS: AtomicI64 = AtomicI64::new(0);
/// Writes of one client in one load, at most.
const WRITES: i64 = 100_000;

impl Load {
    /// Starts the clients, spread over all shims.
    pub fn start(cluster: &Cluster, pressure: Pressure) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let roles = [
            (Role::OmniWriter, pressure.omni_writers),
            (Role::ShardedWriter, pressure.sharded_writers),
            (Role::Reader, pressure.readers),
        ];
        let shims = cluster.description().shims.len();
        let first = WRITES * LOADS.fetch_add(1, Ordering::Relaxed);
        let mut workers = Vec::new();
        for (role, count) in roles {
            for number in 0..count {
                let worker = Worker {
                    role,
                    number,
                    login: cluster.login(number as usize % shims),
                    tenants: pressure.tenants,
                    first,
                    stop: Arc::clone(&stop),
                    done: Arc::clone(&done),
                };
                workers.push(tokio::spawn(worker.run()));
            }
        }
        Self {
            stop,
            done,
            workers,
        }
    }

    /// Statements and transactions answered so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Lets every client finish what it is at, and adds up.
    ///
    /// # Errors
    /// When a client panicked.
    pub async fn finish(self) -> anyhow::Result<Account> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Account::default();
        for worker in self.workers {
            sum.add(worker.await.context("a client of the load panicked")?);
        }
        Ok(sum)
    }
}

impl Worker {
    async fn run(self) -> Account {
        let mut account = Account::default();
        let mut n = self.first;
        while !self.stopped() {
            let client = match Client::connect(&self.login).await {
                Ok(client) => client,
                Err(_) => {
                    // The shim is gone for now: a test that kills it counts on clients coming back.
                    account.broken += 1;
                    // It does not tell when it is back; asking without pause would only hold it up.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            while !self.stopped() && !client.is_closed() {
                n += 1;
                if let Err(error) = self.step(&client, n, &mut account).await {
                    if client.is_closed() || error.as_db_error().is_none() {
                        account.broken += 1;
                        account.unknown.insert((self.number, n));
                        break;
                    }
                    if in_doubt(&error) {
                        account.unknown.insert((self.number, n));
                    }
                    account.errors.push(describe(&error));
                    // The transaction is over either way; what ROLLBACK answers does not matter.
                    let _ = client.batch_execute("ROLLBACK").await;
                }
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        }
        account
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    async fn step(
        &self,
        client: &Client,
        n: i64,
        account: &mut Account,
    ) -> Result<(), tokio_postgres::Error> {
        match self.role {
            Role::OmniWriter => {
                let began = Instant::now();
                omni_write(client, self.number, n).await?;
                account.omni_times.push((began, began.elapsed()));
                account.omni.insert((self.number, n));
            }
            Role::ShardedWriter => {
                let (tenant, id) = (1 + n % self.tenants, own_id(self.number, n));
                client
                    .execute(
                        "INSERT INTO orders (tenant_id, id, user_id, total_cents) \
                         VALUES ($1, $2, 1, 100)",
                        &[&tenant, &id],
                    )
                    .await?;
                account.orders.insert((tenant, id));
            }
            Role::Reader => {
                let tenant = 1 + n % self.tenants;
                let row = client
                    .query_one(
                        "SELECT total_cents FROM orders WHERE tenant_id = $1 AND id = 1",
                        &[&tenant],
                    )
                    .await?;
                let _: i32 = row.get(0);
                let plans: i64 = client
                    .query_one("SELECT count(*) FROM plans", &[])
                    .await?
                    .get(0);
                if plans != 3 {
                    account
                        .errors
                        .push(format!("{plans} plans instead of 3 were read"));
                }
                account.reads += 2;
            }
        }
        Ok(())
    }
}

/// A transaction of two statements three times of four, else a single statement.
async fn omni_write(client: &Client, writer: i32, n: i64) -> Result<(), tokio_postgres::Error> {
    let insert = "INSERT INTO ledger (writer, n) VALUES ($1, $2)";
    let Some(counter) = counter_of(n) else {
        client.execute(insert, &[&writer, &n]).await?;
        return Ok(());
    };
    client.batch_execute("BEGIN").await?;
    client.execute(insert, &[&writer, &n]).await?;
    client
        .execute(
            "UPDATE counters SET value = value + 1 WHERE name = $1",
            &[&counter],
        )
        .await?;
    client.batch_execute("COMMIT").await
}

/// Whether the write that got this error may have happened all the same: a server was lost.
fn in_doubt(error: &tokio_postgres::Error) -> bool {
    let code = error.code().map_or("", |state| state.code());
    code.starts_with("08") || code.starts_with("57P")
}

/// The counter that the `n`th omni write of a writer increments.
fn counter_of(n: i64) -> Option<&'static str> {
    (n % 4 != 0).then(|| COUNTERS[n as usize % COUNTERS.len()])
}

/// Ids that the loaded data set does not use.
fn own_id(writer: i32, n: i64) -> i64 {
    10_000_000 * (1 + i64::from(writer)) + n
}

impl Account {
    fn add(&mut self, other: Account) {
        self.omni.extend(other.omni);
        self.orders.extend(other.orders);
        self.unknown.extend(other.unknown);
        self.reads += other.reads;
        self.errors.extend(other.errors);
        self.broken += other.broken;
        self.omni_times.extend(other.omni_times);
    }

    /// No error and no broken connection reached a client, and work was done.
    ///
    /// # Errors
    /// Names the first few errors.
    pub fn expect_no_errors(&self) -> anyhow::Result<()> {
        let first: Vec<&String> = self.errors.iter().take(3).collect();
        ensure!(
            self.errors.is_empty(),
            "{} client errors: {first:?}",
            self.errors.len()
        );
        ensure!(self.broken == 0, "{} connections broke", self.broken);
        ensure!(!self.omni.is_empty(), "no omni write was acknowledged");
        Ok(())
    }

    /// Every shard has exactly the acknowledged omni writes, each one once, and every order is on
    /// its own shard only.
    ///
    /// # Errors
    /// Names what is lost, doubled or misplaced.
    pub async fn verify(&self, cluster: &Cluster, shards: u16) -> anyhow::Result<()> {
        let mut orders: BTreeSet<(i64, i64)> = BTreeSet::new();
        for shard in 0..shards {
            let node = cluster.primary(shard).await?;
            self.verify_ledger(&node, shard).await?;
            for row in node
                .query("SELECT tenant_id, id FROM orders WHERE id >= 10000000", &[])
                .await?
            {
                let order = (row.get(0), row.get(1));
                ensure!(orders.insert(order), "order {order:?} is on two shards");
            }
        }
        if let Some(lost) = self.orders.difference(&orders).next() {
            anyhow::bail!("acknowledged order {lost:?} is on no shard");
        }
        Ok(())
    }

    async fn verify_ledger(&self, node: &Client, shard: u16) -> anyhow::Result<()> {
        let ledger: BTreeSet<(i32, i64)> = node
            .query("SELECT writer, n FROM ledger", &[])
            .await?
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        let lost: Vec<_> = self.omni.difference(&ledger).collect();
        if let Some(first) = lost.first() {
            anyhow::bail!(
                "{} acknowledged writes are lost on shard {shard}, {first:?} first",
                lost.len()
            );
        }
        let mut extra = ledger
            .difference(&self.omni)
            .filter(|w| !self.unknown.contains(w));
        if let Some(extra) = extra.next() {
            anyhow::bail!("write {extra:?} is on shard {shard} and was never acknowledged");
        }
        for row in node.query("SELECT name, value FROM counters", &[]).await? {
            let (name, value): (String, i64) = (row.get(0), row.get(1));
            let due = ledger
                .iter()
                .filter(|(_, n)| counter_of(*n) == Some(name.as_str()))
                .count();
            ensure!(
                value == due as i64,
                "counter {name} on shard {shard} is {value}; its ledger rows say {due}"
            );
        }
        Ok(())
    }

    /// How long the omni writes took that were under way in a time span.
    pub fn omni_latency(&self, from: Instant, to: Instant) -> Option<Latency> {
        let mut times: Vec<f64> = self
            .omni_times
            .iter()
            .filter(|(began, took)| *began <= to && *began + *took >= from)
            .map(|(_, took)| took.as_secs_f64() * 1000.0)
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        (!times.is_empty()).then(|| Latency {
            count: times.len(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: at(1.0),
        })
    }
}

/// How long a set of writes took.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// How many writes.
    pub count: usize,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}
