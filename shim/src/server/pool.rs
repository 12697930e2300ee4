//! The connections of one user to one endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pgdog_core::fault::Fault;
use pgdog_core::ids::Incarnation;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::conn::Conn;
use super::lease::Lease;
use super::pools::PoolSettings;
use super::stats::{PoolStats, ServerInfo, ServerStats, lock};
use super::{Endpoint, Login, faults};

/// How long a reset may take before the connection is closed instead.
const RESET_LIMIT: Duration = Duration::from_secs(5);

/// See the module. Permits bound the connections that are lent or being reset; a permit is held
/// from checkout until the connection is back among the idle ones or closed. Tokio's semaphore
/// is first come, first served.
#[derive(Debug)]
pub struct Pool {
    endpoint: Arc<Endpoint>,
    login: ArcSwap<Login>,
    settings: PoolSettings,
    size: usize,
    permits: Arc<Semaphore>,
    /// As many again, for those who hold a connection of another pool meanwhile: two transactions
    /// that each wait for what the other one holds would wait for ever.
    reserve: Arc<Semaphore>,
    /// The most recently used is at the back and is taken first, so that a quiet pool shrinks.
    idle: Mutex<VecDeque<Idle>>,
    servers: Mutex<Vec<Weak<ServerInfo>>>,
    /// Raised by [`Pool::close_all`]: connections of an older generation are not lent again.
    generation: AtomicU64,
    /// Connections to another server start than this are not lent again.
    current: Mutex<Option<Incarnation>>,
    counters: Counters,
}

#[derive(Debug)]
struct Idle {
    /// Boxed: it changes hands for every statement.
    conn: Box<Conn>,
    generation: u64,
    since: Instant,
}

#[derive(Debug, Default)]
struct Counters {
    active: AtomicUsize,
    checkouts: AtomicU64,
    waited_us: AtomicU64,
    connects: AtomicU64,
    errors: AtomicU64,
    tickets: AtomicU64,
    waiters: Mutex<BTreeMap<u64, Instant>>,
}

impl Pool {
    pub(super) fn new(endpoint: &Endpoint, login: &Login, settings: PoolSettings) -> Self {
        let size = login.pool_size.unwrap_or(settings.size).max(1);
        Self {
            endpoint: Arc::new(endpoint.clone()),
            login: ArcSwap::from_pointee(login.clone()),
            settings,
            size,
            permits: Arc::new(Semaphore::new(size)),
            reserve: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
            servers: Mutex::default(),
            generation: AtomicU64::new(0),
            current: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Where the pool leads.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Lends a connection at rest outside any transaction, waiting up to `limit` for a turn and
    /// for the login.
    ///
    /// Cancel safety: dropping the future leaves the queue and gives back what it had.
    ///
    /// # Errors
    /// When no turn came in time, or the server can't be reached.
    pub async fn checkout(self: &Arc<Self>, limit: Duration) -> Result<Lease, Fault> {
        self.lend(limit, false).await
    }

    /// As [`Pool::checkout`], for somebody who holds a connection of another pool meanwhile: there
    /// may be twice as many connections as the pool's size for these.
    ///
    /// # Errors
    /// As [`Pool::checkout`].
    pub async fn checkout_another(self: &Arc<Self>, limit: Duration) -> Result<Lease, Fault> {
        self.lend(limit, true).await
    }

    async fn lend(self: &Arc<Self>, limit: Duration, another: bool) -> Result<Lease, Fault> {
        let (permit, waited) = self.turn(limit, another).await?;
        let generation = self.generation.load(Ordering::SeqCst);
        let conn = match self.take_idle() {
            Some(conn) => conn,
            None => self.open(limit.saturating_sub(waited)).await?,
        };
        self.counters.checkouts.fetch_add(1, Ordering::Relaxed);
        self.counters.active.fetch_add(1, Ordering::Relaxed);
        conn.info.set_lent(true);
        Ok(Lease::new(conn, generation, permit, self.clone()))
    }

    /// A permit, and how long it took; the clock is only looked at when there is a queue.
    async fn turn(
        &self,
        limit: Duration,
        another: bool,
    ) -> Result<(OwnedSemaphorePermit, Duration), Fault> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Ok((permit, Duration::ZERO));
        }
        if another && let Ok(permit) = self.reserve.clone().try_acquire_owned() {
            return Ok((permit, Duration::ZERO));
        }
        let begun = Instant::now();
        let _waiting = Waiting::new(&self.counters);
        let permit = tokio::time::timeout(limit, self.permits.clone().acquire_owned()).await;
        let waited = begun.elapsed();
        self.counters
            .waited_us
            .fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
        match permit {
            Ok(permit) => Ok((permit.expect("the semaphore is never closed"), waited)),
            Err(_) => {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
                let user = &self.login.load().user;
                Err(faults::pool_timeout(&self.endpoint, user, limit))
            }
        }
    }

    fn take_idle(&self) -> Option<Box<Conn>> {
        loop {
            let mut idle = lock(&self.idle).pop_back()?;
            if self.is_current(&idle.conn, idle.generation) && idle.conn.refresh().is_ok() {
                return Some(idle.conn);
            }
        }
    }

    async fn open(&self, limit: Duration) -> Result<Box<Conn>, Fault> {
        let login = self.login.load_full();
        let limit = self
            .settings
            .connect_timeout
            .min(limit.max(Duration::from_millis(1)));
        let prepared = self.settings.prepared_statements_limit;
        let opened = Conn::open(self.endpoint.clone(), &login, limit, prepared).await;
        match &opened {
            Ok(conn) => {
                self.counters.connects.fetch_add(1, Ordering::Relaxed);
                let mut servers = lock(&self.servers);
                servers.retain(|info| info.strong_count() > 0);
                servers.push(Arc::downgrade(&conn.info));
            }
            Err(_) => {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        opened.map(Box::new)
    }

    /// A lease ended. What can't be used again is closed.
    pub(super) fn take_back(
        self: &Arc<Self>,
        conn: Box<Conn>,
        generation: u64,
        permit: OwnedSemaphorePermit,
    ) {
        self.counters.active.fetch_sub(1, Ordering::Relaxed);
        conn.info.set_lent(false);
        if !conn.is_reusable() || !self.is_current(&conn, generation) {
            drop(permit);
            return close(conn);
        }
        if !conn.is_dirty() {
            return self.keep(conn, generation, permit);
        }
        // The next client waits for the permit, not for this task by name: the queue stays fair.
        let pool = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Some(conn) = reset(conn).await {
                    pool.keep(conn, generation, permit);
                }
            });
        }
    }

    fn keep(&self, mut conn: Box<Conn>, generation: u64, permit: OwnedSemaphorePermit) {
        conn.shrink();
        let mut idle = lock(&self.idle);
        if idle.len() >= self.size {
            // One of the reserve.
            drop(permit);
            return close(conn);
        }
        idle.push_back(Idle {
            conn,
            generation,
            since: Instant::now(),
        });
        drop(idle);
        // After the connection is there: who gets the permit finds it.
        drop(permit);
    }

    fn is_current(&self, conn: &Conn, generation: u64) -> bool {
        let current = lock(&self.current);
        let same_start = match (&*current, conn.incarnation()) {
            (Some(current), Some(own)) => current == own,
            _ => true,
        };
        same_start && generation == self.generation.load(Ordering::SeqCst)
    }

    /// Closes idle connections, and lent ones when they come back.
    pub fn close_all(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().for_each(|idle| close(idle.conn));
    }

    /// Only connections to this server start may be lent from now on.
    pub fn retire_others(&self, current: &Incarnation) {
        *lock(&self.current) = Some(current.clone());
    }

    pub(super) fn set_login(&self, login: &Login) {
        if **self.login.load() != *login {
            self.login.store(Arc::new(login.clone()));
        }
    }

    /// Closes what was idle for too long.
    pub(super) fn expire(&self) {
        let mut expired = Vec::new();
        {
            let mut idle = lock(&self.idle);
            // The front is the one that was used longest ago.
            while idle.front().is_some_and(|idle| self.is_expired(idle)) {
                expired.extend(idle.pop_front());
            }
        }
        expired.into_iter().for_each(|idle| close(idle.conn));
    }

    fn is_expired(&self, idle: &Idle) -> bool {
        idle.since.elapsed() >= self.settings.idle_timeout
            || !self.is_current(&idle.conn, idle.generation)
    }

    /// For SHOW POOLS.
    pub fn stats(&self) -> PoolStats {
        let waiters = lock(&self.counters.waiters);
        let maxwait = waiters.first_key_value().map(|(_, since)| since.elapsed());
        let cl_waiting = waiters.len();
        drop(waiters);
        PoolStats {
            endpoint: (*self.endpoint).clone(),
            user: self.login.load().user.clone(),
            size: self.size,
            cl_waiting,
            sv_idle: lock(&self.idle).len(),
            sv_active: self.counters.active.load(Ordering::Relaxed),
            maxwait: maxwait.unwrap_or_default(),
            checkouts: self.counters.checkouts.load(Ordering::Relaxed),
            waited: Duration::from_micros(self.counters.waited_us.load(Ordering::Relaxed)),
            connects: self.counters.connects.load(Ordering::Relaxed),
            errors: self.counters.errors.load(Ordering::Relaxed),
        }
    }

    /// For SHOW SERVERS.
    pub fn servers(&self) -> Vec<ServerStats> {
        let user = self.login.load().user.clone();
        let infos = lock(&self.servers);
        infos
            .iter()
            .filter_map(|info| info.upgrade())
            .map(|info| info.stats(&self.endpoint, &user))
            .collect()
    }
}

/// Makes a connection as new, or closes it.
async fn reset(mut conn: Box<Conn>) -> Option<Box<Conn>> {
    let done = tokio::time::timeout(RESET_LIMIT, conn.simple("DISCARD ALL")).await;
    if matches!(done, Ok(Ok(_))) {
        conn.note_reset();
        return Some(conn);
    }
    close(conn);
    None
}

/// Ends a connection. One that still runs a statement is cancelled first: the server would not
/// notice the closed socket before the statement ends. Meanwhile the server has one connection
/// more than the pool counts.
fn close(mut conn: Box<Conn>) {
    let busy = conn.may_be_running();
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    runtime.spawn(async move {
        if busy {
            // Best effort: the socket is closed in any case.
            let _ = conn.cancel_token().cancel(Duration::from_secs(2)).await;
        } else {
            conn.say_goodbye();
        }
    });
}

/// One client in the queue; leaves it when dropped.
struct Waiting<'a> {
    counters: &'a Counters,
    ticket: u64,
}

impl<'a> Waiting<'a> {
    fn new(counters: &'a Counters) -> Self {
        let ticket = counters.tickets.fetch_add(1, Ordering::Relaxed);
        lock(&counters.waiters).insert(ticket, Instant::now());
        Self { counters, ticket }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.counters.waiters).remove(&self.ticket);
    }
}
