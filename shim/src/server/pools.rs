//! All pools of a shim.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use pgdog_core::fault::Fault;
use pgdog_core::ids::Incarnation;

use super::lease::Lease;
use super::login::PREPARED_LIMIT;
use super::pool::Pool;
use super::stats::{PoolStats, ServerStats};
use super::{Endpoint, Login};

/// What all pools share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Connections of one user to one endpoint, unless the login says otherwise.
    pub size: usize,
    /// Idle connections are closed after so long.
    pub idle_timeout: Duration,
    /// A connection must be logged in within so long.
    pub connect_timeout: Duration,
    /// Named statements that one connection keeps.
    pub prepared_statements_limit: usize,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            size: 10,
            idle_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            prepared_statements_limit: PREPARED_LIMIT,
        }
    }
}

/// What makes two connections interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    endpoint: Endpoint,
    user: String,
    params: Vec<(String, String)>,
}

/// See the module.
#[derive(Debug)]
pub struct Pools {
    settings: PoolSettings,
    pools: RwLock<HashMap<Key, Arc<Pool>>>,
}

impl Pools {
    /// No pools yet; they are made at their first use. Must be called inside a Tokio runtime,
    /// where a task closes idle connections for as long as the result lives.
    pub fn new(settings: PoolSettings) -> Arc<Self> {
        let period =
            (settings.idle_timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let pools = Arc::new(Self {
            settings,
            pools: RwLock::default(),
        });
        let weak = Arc::downgrade(&pools);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(period);
            loop {
                ticks.tick().await;
                let Some(pools) = weak.upgrade() else { return };
                pools.all().iter().for_each(|pool| pool.expire());
                pools.forget_unused();
            }
        });
        pools
    }

    /// The pool of a login, for a caller that keeps it over many checkouts.
    pub fn pool(&self, endpoint: &Endpoint, login: &Login) -> Arc<Pool> {
        let key = Key {
            endpoint: endpoint.clone(),
            user: login.user.clone(),
            params: login.params.clone(),
        };
        let found = self.read().get(&key).cloned();
        let pool = found.unwrap_or_else(|| {
            let mut pools = self
                .pools
                .write()
                .unwrap_or_else(|poison| poison.into_inner());
            let new = || Arc::new(Pool::new(endpoint, login, self.settings.clone()));
            pools.entry(key).or_insert_with(new).clone()
        });
        pool.set_login(login);
        pool
    }

    /// Lends a connection; see [`Pool::checkout`].
    ///
    /// # Errors
    /// When no turn came within `limit`, or the server can't be reached.
    pub async fn checkout(
        &self,
        endpoint: &Endpoint,
        login: &Login,
        limit: Duration,
    ) -> Result<Lease, Fault> {
        self.pool(endpoint, login).checkout(limit).await
    }

    /// Closes all connections to an endpoint: idle ones now, lent ones when they come back.
    pub fn close_all(&self, endpoint: &Endpoint) {
        self.of(endpoint).for_each(|pool| pool.close_all());
    }

    /// A node was restarted, or another server answers at its address: connections to any other
    /// start than `current` are not lent again.
    pub fn retire_others(&self, endpoint: &Endpoint, current: &Incarnation) {
        self.of(endpoint)
            .for_each(|pool| pool.retire_others(current));
    }

    /// For SHOW POOLS, ordered by endpoint and user.
    pub fn stats(&self) -> Vec<PoolStats> {
        let mut stats: Vec<_> = self.all().iter().map(|pool| pool.stats()).collect();
        stats.sort_by(|a, b| (&a.endpoint, &a.user).cmp(&(&b.endpoint, &b.user)));
        stats
    }

    /// For SHOW SERVERS, ordered by endpoint and process.
    pub fn servers(&self) -> Vec<ServerStats> {
        let mut servers: Vec<_> = self.all().iter().flat_map(|pool| pool.servers()).collect();
        servers.sort_by(|a, b| (&a.endpoint, a.pid).cmp(&(&b.endpoint, b.pid)));
        servers
    }

    /// Forgets pools of unusual startup parameters that nobody holds and that have no connection:
    /// clients can make up any number of them.
    fn forget_unused(&self) {
        let mut pools = self
            .pools
            .write()
            .unwrap_or_else(|poison| poison.into_inner());
        // A pool is only handed out under this lock, so a count of one stays one.
        let in_use = |pool: &Arc<Pool>| Arc::strong_count(pool) > 1 || pool.stats().sv_idle > 0;
        pools.retain(|key, pool| key.params.is_empty() || in_use(pool));
    }

    fn of(&self, endpoint: &Endpoint) -> impl Iterator<Item = Arc<Pool>> {
        self.all()
            .into_iter()
            .filter(move |pool| **pool.endpoint() == *endpoint)
    }

    fn all(&self) -> Vec<Arc<Pool>> {
        self.read().values().cloned().collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Key, Arc<Pool>>> {
        self.pools
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
