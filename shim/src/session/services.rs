//! What all sessions of a process share.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use tokio_util::sync::CancellationToken;

use super::bans::Bans;
use super::prepared::Registry;
use super::seats::Seats;
use super::settings::Settings;
use crate::nodes::Cluster;
use crate::observe::{Clients, Logins};
use crate::plan::PlanCache;
use crate::proto::CancelKey;
use crate::proto::scram::Verifier;
use crate::server::{CancelToken, Pools};

/// Bytes of texts with their plans that are kept.
const PLAN_CACHE_BYTES: u64 = 64 << 20;
/// How long a cancel request to a server may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

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
    /// Server connections.
    pub pools: Arc<Pools>,
    /// Logical databases by name.
    pub clusters: ArcSwap<HashMap<String, Arc<Cluster>>>,
    /// Plans by text.
    pub plans: PlanCache,
    /// Prepared statements of all clients.
    pub prepared: Registry,
    /// Who is connected.
    pub clients: Clients,
    /// What became of those who wanted to be.
    pub logins: Logins,
    /// How many there may be.
    pub seats: Seats,
    /// Nodes that no read goes to.
    pub bans: Bans,
    /// Who answers on the admin database; set once by the composition.
    pub admin: OnceLock<Arc<dyn AdminHandler>>,
    /// Cancelled when the process is to end: sessions leave at the end of their transaction.
    pub shutdown: CancellationToken,
    cancels: Mutex<HashMap<i32, Arc<Running>>>,
    verifiers: Mutex<HashMap<String, Verifier>>,
    secret: [u8; 32],
}

/// What one client's statements run on at the moment.
#[derive(Debug)]
pub struct Running {
    secret: [u8; 4],
    tokens: Mutex<Vec<(ShardNumber, CancelToken)>>,
}

impl Running {
    /// A server connection is the client's from now on.
    pub fn add(&self, shard: ShardNumber, token: CancelToken) {
        lock(&self.tokens).push((shard, token));
    }

    /// Whether the client has a server connection.
    pub fn is_any(&self) -> bool {
        !lock(&self.tokens).is_empty()
    }

    /// It is not any more.
    pub fn remove(&self, shard: ShardNumber) {
        lock(&self.tokens).retain(|(other, _)| *other != shard);
    }
}

impl Services {
    /// Services without databases yet.
    pub fn new(settings: Settings, pools: Arc<Pools>) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            pools,
            clusters: ArcSwap::default(),
            plans: PlanCache::new(PLAN_CACHE_BYTES),
            prepared: Registry::default(),
            clients: Clients::default(),
            logins: Logins::default(),
            seats: Seats::default(),
            bans: Bans::default(),
            admin: OnceLock::new(),
            shutdown: CancellationToken::new(),
            cancels: Mutex::default(),
            verifiers: Mutex::default(),
            secret: rand::random(),
        }
    }

    /// A key for a new client's cancel requests, and where its statements are noted.
    pub fn enter_cancel(&self) -> (CancelKey, Arc<Running>) {
        let running = Arc::new(Running {
            secret: rand::random(),
            tokens: Mutex::default(),
        });
        let mut cancels = lock(&self.cancels);
        let pid = loop {
            let pid = rand::random::<i32>() & i32::MAX;
            if pid != 0 && !cancels.contains_key(&pid) {
                break pid;
            }
        };
        cancels.insert(pid, running.clone());
        (CancelKey::new(pid, running.secret), running)
    }

    /// The client left.
    pub fn leave_cancel(&self, key: &CancelKey) {
        lock(&self.cancels).remove(&key.pid);
    }

    /// Cancels whatever the client of that key runs; a wrong key does nothing.
    pub async fn cancel(&self, key: &CancelKey) {
        use subtle::ConstantTimeEq;
        let Some(running) = lock(&self.cancels).get(&key.pid).cloned() else {
            return;
        };
        if !bool::from(running.secret[..].ct_eq(&key.secret)) {
            return;
        }
        let tokens = lock(&running.tokens).clone();
        for (shard, token) in tokens {
            if let Err(fault) = token.cancel(CANCEL_LIMIT).await {
                tracing::warn!(%shard, error = %fault, "cancel request failed");
            }
        }
    }

    /// Cancels whatever all clients run.
    pub async fn cancel_all(&self) {
        let all: Vec<_> = lock(&self.cancels).values().cloned().collect();
        let tokens = all.iter().flat_map(|running| lock(&running.tokens).clone());
        let cancels = tokens.map(|(_, token)| async move { token.cancel(CANCEL_LIMIT).await });
        for failed in futures_util::future::join_all(cancels).await {
            if let Err(fault) = failed {
                tracing::debug!(%fault, "cancel request failed");
            }
        }
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

    /// For a user that does not exist.
    pub fn mock_verifier(&self, user: &str) -> Verifier {
        Verifier::mock(user, &self.secret)
    }
}

/// None of the states behind these locks can be half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
