//! What SHOW POOLS and SHOW SERVERS tell.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pgdog_core::ids::Incarnation;

use super::Endpoint;
use crate::proto::TxStatus;

/// One pool, as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStats {
    /// Where it leads.
    pub endpoint: Endpoint,
    /// As whom.
    pub user: String,
    /// Most connections it may have.
    pub size: usize,
    /// Connections that it keeps when idle.
    pub min: usize,
    /// Nobody gets a connection for now.
    pub paused: bool,
    /// Clients waiting for a connection.
    pub cl_waiting: usize,
    /// Connections that nobody uses.
    pub sv_idle: usize,
    /// Connections lent to a client.
    pub sv_active: usize,
    /// How long the first in the queue has been waiting.
    pub maxwait: Duration,
    /// Connections lent since the start.
    pub checkouts: u64,
    /// Time that clients waited for them, in total.
    pub waited: Duration,
    /// Connections opened since the start.
    pub connects: u64,
    /// Checkouts and connection attempts that failed.
    pub errors: u64,
}

/// What a server connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// In the pool.
    Idle,
    /// Lent, outside a transaction.
    Active,
    /// Lent, inside a transaction.
    InTransaction,
    /// Lent, inside a failed transaction.
    Failed,
}

impl ServerState {
    /// As SHOW SERVERS prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Active => "active",
            Self::InTransaction => "idle in transaction",
            Self::Failed => "idle in transaction (aborted)",
        }
    }
}

/// One server connection, as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStats {
    /// Where it leads.
    pub endpoint: Endpoint,
    /// As whom.
    pub user: String,
    /// Backend process id.
    pub pid: i32,
    /// The server start it talks to.
    pub incarnation: Option<Incarnation>,
    /// What it is doing.
    pub state: ServerState,
    /// Since when it is open.
    pub age: Duration,
    /// Since when it is lent, or is not.
    pub rest: Duration,
    /// Batches answered.
    pub batches: u64,
    /// Batches after which no transaction was open.
    pub transactions: u64,
    /// Statements prepared on it.
    pub prepared: usize,
}

/// Counters of one connection, shared with its pool.
#[derive(Debug)]
pub(super) struct ServerInfo {
    opened: Instant,
    identity: Mutex<(i32, Option<Incarnation>)>,
    lent: AtomicU8,
    tx: AtomicU8,
    batches: AtomicU64,
    transactions: AtomicU64,
    /// Microseconds from the opening to the last time it was lent or given back.
    turned_us: AtomicU64,
    prepared: AtomicUsize,
}

impl ServerInfo {
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            identity: Mutex::default(),
            lent: AtomicU8::new(0),
            tx: AtomicU8::new(TxStatus::Idle.byte()),
            batches: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            turned_us: AtomicU64::new(0),
            prepared: AtomicUsize::new(0),
        }
    }

    /// How long the connection has been open.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.opened)
    }

    pub(super) fn set_identity(&self, pid: i32, incarnation: Option<Incarnation>) {
        *lock(&self.identity) = (pid, incarnation);
    }

    /// Notes a loan or its end; tells how many microseconds the connection has been open.
    pub(super) fn set_lent(&self, lent: bool, now: Instant) -> u64 {
        self.lent.store(lent.into(), Ordering::Relaxed);
        let age_us = microseconds(self.age(now));
        self.turned_us.store(age_us, Ordering::Relaxed);
        age_us
    }

    pub(super) fn note_batch(&self, tx: TxStatus, prepared: usize) {
        // Only the connection's holder counts.
        let count = |counter: &AtomicU64| {
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        count(&self.batches);
        if tx == TxStatus::Idle {
            count(&self.transactions);
        }
        self.tx.store(tx.byte(), Ordering::Relaxed);
        self.prepared.store(prepared, Ordering::Relaxed);
    }

    pub(super) fn stats(&self, endpoint: &Endpoint, user: &str) -> ServerStats {
        let (pid, incarnation) = lock(&self.identity).clone();
        let lent = self.lent.load(Ordering::Relaxed) != 0;
        let state = match TxStatus::from_byte(self.tx.load(Ordering::Relaxed)) {
            Some(TxStatus::InTransaction) => ServerState::InTransaction,
            Some(TxStatus::Failed) => ServerState::Failed,
            Some(TxStatus::Idle) | None if lent => ServerState::Active,
            Some(TxStatus::Idle) | None => ServerState::Idle,
        };
        ServerStats {
            endpoint: endpoint.clone(),
            user: user.to_owned(),
            pid,
            incarnation,
            state,
            age: self.opened.elapsed(),
            rest: self.opened.elapsed().saturating_sub(Duration::from_micros(
                self.turned_us.load(Ordering::Relaxed),
            )),
            transactions: self.transactions.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            prepared: self.prepared.load(Ordering::Relaxed),
        }
    }
}

/// As many microseconds as fit.
pub(super) fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A lock whose data stays sound whatever its holder did: plain assignments only.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
