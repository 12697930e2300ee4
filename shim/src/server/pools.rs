//! All pools of a shim.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use pgdog_core::fault::Fault;
use tokio::sync::Semaphore;

use super::lease::Lease;
use super::pool::Pool;
use super::settings::PoolSettings;
use super::stats::{PoolStats, ServerStats, lock};
use super::{Endpoint, Login};

/// How often idle connections are looked at, at most and at least.
const PERIOD: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

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
    settings: Arc<ArcSwap<PoolSettings>>,
    pools: RwLock<HashMap<Key, Arc<Pool>>>,
    /// Who leads among those who want connections of several pools, by user.
    leads: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// Endpoints whose pools are paused, those that are made later too.
    paused: Mutex<HashSet<Endpoint>>,
}

impl Pools {
    /// No pools yet; they are made at their first use. Must be called inside a Tokio runtime,
    /// where a task closes idle connections for as long as the result lives.
    pub fn new(settings: PoolSettings) -> Arc<Self> {
        let pools = Arc::new(Self {
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            pools: RwLock::default(),
            leads: Mutex::default(),
            paused: Mutex::default(),
        });
        let weak = Arc::downgrade(&pools);
        tokio::spawn(async move {
            loop {
                let Some(pools) = weak.upgrade() else { return };
                let period = pools.settings.load().idle_timeout / 4;
                for pool in pools.all() {
                    pool.expire();
                    pool.fill();
                }
                pools.forget_unused();
                drop(pools);
                tokio::time::sleep(period.clamp(PERIOD.0, PERIOD.1)).await;
            }
        });
        pools
    }

    /// Takes other settings. Connections that fit them stay as they are.
    pub fn configure(&self, settings: PoolSettings) {
        if **self.settings.load() != settings {
            self.settings.store(Arc::new(settings));
            self.all().iter().for_each(|pool| pool.adjust());
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<PoolSettings> {
        self.settings.load_full()
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
            let mut pools = self.write();
            let new = || self.make(endpoint, login);
            pools.entry(key).or_insert_with(new).clone()
        });
        pool.set_login(login);
        pool
    }

    fn make(&self, endpoint: &Endpoint, login: &Login) -> Arc<Pool> {
        let mut leads = lock(&self.leads);
        leads.retain(|_, lead| lead.strong_count() > 0);
        let known = leads.get(&login.user).and_then(Weak::upgrade);
        let lead = known.unwrap_or_else(|| Arc::new(Semaphore::new(1)));
        leads.insert(login.user.clone(), Arc::downgrade(&lead));
        let pool = Pool::new(endpoint, login, self.settings.clone(), lead);
        if lock(&self.paused).contains(endpoint) {
            pool.pause();
        }
        Arc::new(pool)
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

    /// Nobody who has no connection yet gets one to these endpoints, until [`Pools::resume`].
    pub fn pause(&self, endpoints: &[Endpoint]) {
        // Both at one moment, in the order in which new pools take these locks.
        let pools = self.read();
        lock(&self.paused).extend(endpoints.iter().cloned());
        let meant = |pool: &&Arc<Pool>| endpoints.contains(pool.endpoint());
        pools.values().filter(meant).for_each(|pool| pool.pause());
    }

    /// Ends a pause.
    pub fn resume(&self, endpoints: &[Endpoint]) {
        for endpoint in endpoints {
            lock(&self.paused).remove(endpoint);
            self.of(endpoint).for_each(|pool| pool.resume());
        }
    }

    /// Gives up the pools of endpoints that are not served any more: idle connections now, lent
    /// ones when they come back.
    pub fn keep_only(&self, served: impl Fn(&Endpoint) -> bool) {
        lock(&self.paused).retain(|endpoint| served(endpoint));
        let mut gone = Vec::new();
        self.write().retain(|key, pool| {
            let stays = served(&key.endpoint);
            if !stays {
                gone.push(pool.clone());
            }
            stays
        });
        for pool in gone {
            pool.close_all();
            pool.resume();
        }
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
        let mut pools = self.write();
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

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Key, Arc<Pool>>> {
        self.pools
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Key, Arc<Pool>>> {
        self.pools
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
