//! The connections of one user to one endpoint.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pgdog_core::fault::Fault;
use tokio::sync::{Semaphore, watch};

use super::conn::Conn;
use super::lease::Lease;
use super::restore::restore;
use super::settings::{PoolLimits, PoolSettings};
use super::stats::{PoolStats, ServerInfo, ServerStats, lock, microseconds};
use super::turns::{Claim, Turn, Turns};
use super::{Endpoint, Login, faults};

/// See the module. A turn is held from checkout until the connection is back among the idle ones or
/// closed; a new connection is opened only by somebody whose turn it is and who finds no idle one.
/// So there are never more connections than turns.
#[derive(Debug)]
pub struct Pool {
    endpoint: Arc<Endpoint>,
    login: ArcSwap<Login>,
    settings: Arc<ArcSwap<PoolSettings>>,
    limits: ArcSwap<PoolLimits>,
    /// The lifetime among them, which is looked at after every loan.
    lifetime_us: AtomicU64,
    turns: Arc<Turns>,
    /// While true, nobody who has no connection yet gets one.
    paused: watch::Sender<bool>,
    /// The same, for a quick look.
    is_paused: AtomicBool,
    /// The most recently used is at the back and is taken first, so that a quiet pool shrinks.
    idle: Mutex<VecDeque<Idle>>,
    servers: Mutex<Vec<Weak<ServerInfo>>>,
    /// Raised by [`Pool::close_all`]: connections of an older generation are not lent again.
    generation: AtomicU64,
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
    pub(super) fn new(
        endpoint: &Endpoint,
        login: &Login,
        settings: Arc<ArcSwap<PoolSettings>>,
        lead: Arc<Semaphore>,
    ) -> Self {
        let limits = settings.load().limits(endpoint, &login.user);
        Self {
            endpoint: Arc::new(endpoint.clone()),
            login: ArcSwap::from_pointee(login.clone()),
            settings,
            turns: Turns::new(limits.size.max(1), lead),
            lifetime_us: AtomicU64::new(microseconds(limits.lifetime)),
            limits: ArcSwap::from_pointee(limits),
            paused: watch::Sender::new(false),
            is_paused: AtomicBool::new(false),
            idle: Mutex::default(),
            servers: Mutex::default(),
            generation: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Where the pool leads.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Lends a connection at rest outside any transaction, waiting up to `limit` for a turn.
    /// A pause of the pool does not count.
    ///
    /// Cancel safety: dropping the future leaves the queue and gives back what it had.
    ///
    /// # Errors
    /// When no turn came in time, or the server can't be reached.
    pub async fn checkout(self: &Arc<Self>, limit: Duration) -> Result<Lease, Fault> {
        self.checkout_for(Claim::Alone, limit).await
    }

    /// As [`Pool::checkout`], for somebody who may need connections of other pools meanwhile.
    ///
    /// # Errors
    /// As [`Pool::checkout`].
    pub async fn checkout_for(
        self: &Arc<Self>,
        claim: Claim<'_>,
        limit: Duration,
    ) -> Result<Lease, Fault> {
        if !matches!(claim, Claim::Several { holds: true, .. }) && *self.paused.borrow() {
            // An error would mean that the pool is gone, and with it the pause.
            let _ = self.paused.subscribe().wait_for(|paused| !paused).await;
        }
        let (turn, waited) = self.turn(claim, limit).await?;
        let generation = self.generation.load(Ordering::SeqCst);
        let conn = match self.take_idle() {
            Some(conn) => conn,
            None => self.open().await?,
        };
        let lease = self.lend(conn, generation, turn, Instant::now());
        Ok(lease.after(waited))
    }

    /// Lends an idle connection to somebody who wants it at once, and needs no other one
    /// meanwhile; `None` when there is none, or others wait.
    pub fn checkout_now(self: &Arc<Self>, now: Instant) -> Option<Lease> {
        if self.is_paused.load(Ordering::SeqCst) {
            return None;
        }
        let turn = self.turns.try_take(&Claim::Alone)?;
        let generation = self.generation.load(Ordering::SeqCst);
        let conn = self.take_idle()?;
        Some(self.lend(conn, generation, turn, now))
    }

    fn lend(self: &Arc<Self>, conn: Box<Conn>, generation: u64, turn: Turn, now: Instant) -> Lease {
        self.counters.checkouts.fetch_add(1, Ordering::Relaxed);
        self.counters.active.fetch_add(1, Ordering::Relaxed);
        conn.info.set_lent(true, now);
        Lease::new(conn, generation, turn, self.clone())
    }

    /// A turn, and how long it took; the clock is only looked at when there is a queue.
    async fn turn(&self, claim: Claim<'_>, limit: Duration) -> Result<(Turn, Duration), Fault> {
        if let Some(turn) = self.turns.try_take(&claim) {
            return Ok((turn, Duration::ZERO));
        }
        let begun = Instant::now();
        let _waiting = Waiting::new(&self.counters);
        match tokio::time::timeout(limit, self.turns.take(claim)).await {
            Ok(turn) => Ok((turn, begun.elapsed())),
            Err(_) => {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
                let user = &self.login.load().user;
                Err(faults::pool_timeout(&self.endpoint, user, limit))
            }
        }
    }

    /// Whether a client that needs a connection now may have to wait for one.
    pub fn is_all_lent(&self) -> bool {
        let others = self.turns.size().saturating_sub(1).max(1);
        self.turns.taken() >= others
    }

    /// Connections that are lent, or being opened for somebody.
    pub fn lent(&self) -> usize {
        self.turns.taken()
    }

    fn take_idle(&self) -> Option<Box<Conn>> {
        loop {
            let mut idle = lock(&self.idle).pop_back()?;
            if self.is_current(idle.generation) && idle.conn.refresh().is_ok() {
                return Some(idle.conn);
            }
        }
    }

    /// The limit for waiting is not the one for a login: a server that is slow to let us in would
    /// be blamed on those who waited for their turn.
    async fn open(&self) -> Result<Box<Conn>, Fault> {
        let login = self.login.load_full();
        let settings = self.settings.load_full();
        let limit = settings.connect_timeout;
        let begun = Instant::now();
        let mut opened = Conn::open(self.endpoint.clone(), &login, limit, &settings).await;
        if let Ok(conn) = &mut opened
            && let Err(fault) = conn
                .note_role_settings(limit.saturating_sub(begun.elapsed()))
                .await
        {
            opened = Err(fault);
        }
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
    pub(super) fn take_back(self: &Arc<Self>, mut conn: Box<Conn>, generation: u64, turn: Turn) {
        self.counters.active.fetch_sub(1, Ordering::Relaxed);
        let now = Instant::now();
        let age_us = conn.info.set_lent(false, now);
        let outlived = age_us >= self.lifetime_us.load(Ordering::Relaxed);
        if !conn.is_restorable() || outlived || !self.is_current(generation) {
            return close(conn, Some(turn));
        }
        if conn.is_reusable() && !conn.is_dirty() {
            conn.sequences_are_own = false;
            return self.keep(conn, generation, turn, now);
        }
        // The next client waits for the turn, not for this task by name: the queue stays fair.
        let pool = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                match restore(conn).await {
                    Ok(conn) => pool.keep(conn, generation, turn, Instant::now()),
                    Err(conn) => close(conn, Some(turn)),
                }
            });
        }
    }

    fn keep(&self, mut conn: Box<Conn>, generation: u64, turn: Turn, since: Instant) {
        conn.shrink();
        if self.turns.is_shrinking() {
            return close(conn, Some(turn));
        }
        lock(&self.idle).push_back(Idle {
            conn,
            generation,
            since,
        });
        // After the connection is there: who gets the turn finds it.
        drop(turn);
    }

    fn is_current(&self, generation: u64) -> bool {
        generation == self.generation.load(Ordering::SeqCst)
    }

    /// Closes idle connections, and lent ones when they come back.
    pub fn close_all(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().for_each(|idle| close(idle.conn, None));
    }

    /// Nobody who has no connection gets one until [`Pool::resume`].
    pub(super) fn pause(&self) {
        self.set_paused(true);
    }

    /// Ends a pause.
    pub(super) fn resume(&self) {
        self.set_paused(false);
    }

    /// Both under one lock: two operators may be at it at once.
    fn set_paused(&self, paused: bool) {
        self.paused.send_modify(|known| {
            *known = paused;
            self.is_paused.store(paused, Ordering::SeqCst);
        });
    }

    pub(super) fn set_login(&self, login: &Login) {
        let known = self.login.load();
        // Somebody who logged in before a password was changed is still here: his does not count.
        if known.secret != login.secret && known.number <= login.number {
            self.login.store(Arc::new(login.clone()));
        }
    }

    /// Takes the bounds that the settings have for this pool now.
    pub(super) fn adjust(&self) {
        let user = self.login.load().user.clone();
        let limits = self.settings.load().limits(&self.endpoint, &user);
        if **self.limits.load() == limits {
            return;
        }
        self.turns.resize(limits.size.max(1));
        let lifetime_us = microseconds(limits.lifetime);
        self.lifetime_us.store(lifetime_us, Ordering::Relaxed);
        self.limits.store(Arc::new(limits));
        let mut surplus = Vec::new();
        let mut idle = lock(&self.idle);
        while idle.len() + self.turns.taken() > limits.size {
            let Some(oldest) = idle.pop_front() else {
                break;
            };
            surplus.push(oldest);
        }
        drop(idle);
        surplus.into_iter().for_each(|idle| close(idle.conn, None));
    }

    /// Closes what was idle or open for too long.
    pub(super) fn expire(&self) {
        let limits = self.limits.load();
        let now = Instant::now();
        let mut expired = Vec::new();
        {
            let mut idle = lock(&self.idle);
            // The front is the one that was used longest ago.
            for one in std::mem::take(&mut *idle) {
                let unwanted = one.since.elapsed() >= limits.idle_timeout;
                let left = idle.len() + self.turns.taken();
                let outlived = one.conn.info.age(now) >= limits.lifetime;
                let useless = outlived || !self.is_current(one.generation);
                match useless || (unwanted && left >= limits.min) {
                    true => expired.push(one),
                    false => idle.push_back(one),
                }
            }
        }
        expired.into_iter().for_each(|idle| close(idle.conn, None));
    }

    /// Opens one connection if the pool is in use and has fewer than it should keep.
    pub(super) fn fill(self: &Arc<Self>) {
        let used = self.counters.connects.load(Ordering::Relaxed) > 0;
        let wanted = self.limits.load().min.min(self.turns.size());
        let open = lock(&self.idle).len() + self.turns.taken();
        if !used || open >= wanted || *self.paused.borrow() {
            return;
        }
        let Some(turn) = self.turns.try_take(&Claim::Alone) else {
            return;
        };
        let pool = self.clone();
        tokio::spawn(async move {
            let generation = pool.generation.load(Ordering::SeqCst);
            // A server that is not there is no news: the next client is told.
            if let Ok(conn) = pool.open().await {
                pool.keep(conn, generation, turn, Instant::now());
            }
        });
    }

    /// For SHOW POOLS.
    pub fn stats(&self) -> PoolStats {
        let limits = self.limits.load();
        let waiters = lock(&self.counters.waiters);
        let maxwait = waiters.first_key_value().map(|(_, since)| since.elapsed());
        let cl_waiting = waiters.len();
        drop(waiters);
        PoolStats {
            endpoint: (*self.endpoint).clone(),
            user: self.login.load().user.clone(),
            size: self.turns.size(),
            min: limits.min,
            paused: *self.paused.borrow(),
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

/// Ends a connection, and with it the turn. One that still runs a statement is cancelled first: the
/// server would not notice the closed socket before the statement ends.
fn close(mut conn: Box<Conn>, turn: Option<Turn>) {
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
        drop(conn);
        drop(turn);
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
        if let Some(since) = lock(&self.counters.waiters).remove(&self.ticket) {
            let waited_us = microseconds(since.elapsed());
            self.counters
                .waited_us
                .fetch_add(waited_us, Ordering::Relaxed);
        }
    }
}
