//! What all sessions of a process share.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use pgdog_core::fault::Fault;
use tokio_util::sync::CancellationToken;

use super::account::Known;
use super::balance::Balancer;
use super::bans::Bans;
use super::busy::Accepted;
use super::left::Keepers;
use super::prepared::Registry;
use super::running::Running;
use super::seats::Seats;
use super::sequences::Followed;
use super::settings::Settings;
use crate::net::Inbound;
use crate::nodes::Cluster;
use crate::observe::{Clients, Logins};
use crate::plan::{PlanCache, SplitCache};
use crate::proto::CancelKey;
use crate::proto::scram::Verifier;
use crate::server::Pools;

/// Bytes of texts with their plans that are kept.
const PLAN_CACHE_BYTES: u64 = 64 << 20;

/// An operator's command, answered by the admin database.
pub trait AdminHandler: Send + Sync {
    /// Runs one command.
    fn run<'a>(&'a self, sql: &'a str) -> AdminReply<'a>;
}

/// A command at work.
pub type AdminReply<'a> = Pin<Box<dyn Future<Output = Result<AdminResult, Fault>> + Send + 'a>>;

/// A result set, or only a tag when there are no columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdminResult {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Values.
    pub rows: Vec<Vec<Option<String>>>,
    /// Command tag.
    pub tag: String,
}

/// See the module.
pub struct Services {
    /// What sessions need of the configuration.
    pub settings: ArcSwap<Settings>,
    /// The number of those, which costs less to look at.
    settings_number: AtomicU64,
    /// Server connections.
    pub pools: Arc<Pools>,
    /// Logical databases by name.
    pub clusters: ArcSwap<HashMap<String, Arc<Cluster>>>,
    /// Databases that are configured and not served, with what their clients are told.
    pub absent: ArcSwap<HashMap<String, Fault>>,
    /// Plans by text.
    pub plans: PlanCache,
    /// Reads over several shards by text.
    pub splits: SplitCache,
    /// How clients are served behind TLS; none are when empty.
    pub tls: ArcSwapOption<Inbound>,
    /// Prepared statements of all clients.
    pub prepared: Registry,
    /// Statements that servers have accepted.
    pub accepted: Accepted,
    /// Who is connected.
    pub clients: Clients,
    /// What became of those who wanted to be.
    pub logins: Logins,
    /// How many there may be.
    pub seats: Seats,
    /// Whose turn it is to take a read.
    pub balancer: Balancer,
    /// Nodes that no read goes to.
    pub bans: Bans,
    /// Databases in which sessions ask for their values of sequences.
    pub sequences: Followed,
    /// Code that was seen to leave something on replicas.
    pub keepers: Keepers,
    /// Who answers on the admin database; set once by the composition.
    pub admin: OnceLock<Arc<dyn AdminHandler>>,
    /// Cancelled when the process is to end: sessions leave at the end of their transaction.
    pub shutdown: CancellationToken,
    cancels: Mutex<HashMap<i32, Arc<Running>>>,
    verifiers: Mutex<HashMap<String, Verifier>>,
    login_number: AtomicU64,
    secret: [u8; 32],
}

impl Services {
    /// Services without databases yet.
    pub fn new(settings: Settings, pools: Arc<Pools>) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            settings_number: AtomicU64::new(0),
            pools,
            clusters: ArcSwap::default(),
            absent: ArcSwap::default(),
            plans: PlanCache::new(PLAN_CACHE_BYTES),
            splits: SplitCache::default(),
            tls: ArcSwapOption::empty(),
            prepared: Registry::default(),
            accepted: Accepted::default(),
            clients: Clients::default(),
            logins: Logins::default(),
            seats: Seats::default(),
            balancer: Balancer::default(),
            bans: Bans::default(),
            admin: OnceLock::new(),
            shutdown: CancellationToken::new(),
            sequences: Followed::default(),
            keepers: Keepers::default(),
            cancels: Mutex::default(),
            verifiers: Mutex::default(),
            login_number: AtomicU64::new(0),
            secret: rand::random(),
        }
    }

    /// Puts new settings in place.
    pub fn set_settings(&self, mut settings: Settings) {
        settings.number = self.settings_number() + 1;
        let number = settings.number;
        self.settings.store(Arc::new(settings));
        // Who sees the number finds what has it.
        self.settings_number.store(number, Ordering::Release);
    }

    /// The number of the settings.
    pub fn settings_number(&self) -> u64 {
        self.settings_number.load(Ordering::Acquire)
    }

    /// The number of a new login: higher than all before.
    pub fn next_login(&self) -> u64 {
        self.login_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A key for a new client's cancel requests, and where its statements are noted.
    /// A secret is as long as the client's protocol allows.
    pub fn enter_cancel(&self, protocol_minor: u16) -> (CancelKey, Arc<Running>) {
        let running = Arc::new(Running::new(secret(protocol_minor)));
        let mut cancels = lock(&self.cancels);
        let pid = loop {
            let pid = rand::random::<i32>() & i32::MAX;
            if pid != 0 && !cancels.contains_key(&pid) {
                break pid;
            }
        };
        cancels.insert(pid, running.clone());
        let secret = running.secret.clone();
        (CancelKey { pid, secret }, running)
    }

    /// As that key, with the number of the server process that is the client's for good, unless
    /// somebody has that number.
    pub fn name_cancel(&self, key: &mut CancelKey, pid: i32) {
        let mut cancels = lock(&self.cancels);
        if !cancels.contains_key(&pid)
            && let Some(running) = cancels.remove(&key.pid)
        {
            cancels.insert(pid, running);
            key.pid = pid;
        }
    }

    /// The client left.
    pub fn leave_cancel(&self, key: &CancelKey) {
        lock(&self.cancels).remove(&key.pid);
    }

    /// Cancels whatever the client of that key runs; a wrong key does nothing.
    pub async fn cancel(&self, key: &CancelKey) {
        let Some(running) = lock(&self.cancels).get(&key.pid).cloned() else {
            return;
        };
        if running.is_secret(&key.secret) {
            running.cancel().await;
        }
    }

    /// Cancels whatever all clients run.
    pub async fn cancel_all(&self) {
        let all: Vec<_> = lock(&self.cancels).values().cloned().collect();
        futures_util::future::join_all(all.iter().map(|running| running.cancel())).await;
    }

    /// What checks a password; made once for each, as that takes milliseconds.
    pub fn verifier(&self, password: &str) -> Verifier {
        if let Some(known) = lock(&self.verifiers).get(password) {
            return known.clone();
        }
        let made = Verifier::from_password(password);
        lock(&self.verifiers)
            .entry(password.to_owned())
            .or_insert(made)
            .clone()
    }

    /// Makes what [`Services::verifier`] returns beforehand: the first login must not be known by
    /// its time.
    pub fn prepare_verifiers(&self) {
        for account in &self.settings.load().accounts {
            if let Known::Password(password) = &account.known {
                self.verifier(password.as_str());
            }
        }
    }

    /// From which salts of users come that do not exist.
    pub fn mock_secret(&self, settings: &Settings) -> [u8; 32] {
        settings.mock_secret.unwrap_or(self.secret)
    }
}

/// As PostgreSQL: 4 bytes up to protocol 3.1, 32 since 3.2.
fn secret(protocol_minor: u16) -> Bytes {
    match protocol_minor {
        0 | 1 => Bytes::copy_from_slice(&rand::random::<[u8; 4]>()),
        _ => Bytes::copy_from_slice(&rand::random::<[u8; 32]>()),
    }
}

/// None of the states behind these locks can be half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
