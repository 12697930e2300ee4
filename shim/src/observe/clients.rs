//! Who is connected and what they did.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ClientState {
    /// Nothing.
    Idle = 0,
    /// A statement runs.
    Active = 1,
    /// It waits for a server connection or for a replica.
    Waiting = 2,
    /// Nothing, inside a transaction.
    IdleInTransaction = 3,
}

impl ClientState {
    /// As `SHOW CLIENTS` prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            ClientState::Idle => "idle",
            ClientState::Active => "active",
            ClientState::Waiting => "waiting",
            ClientState::IdleInTransaction => "idle in transaction",
        }
    }

    fn from_u8(code: u8) -> Self {
        match code {
            1 => ClientState::Active,
            2 => ClientState::Waiting,
            3 => ClientState::IdleInTransaction,
            _ => ClientState::Idle,
        }
    }
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Statements run.
    Queries,
    /// Transactions finished.
    Transactions,
    /// Errors sent.
    Errors,
    /// Bytes from the client.
    Received,
    /// Bytes to the client.
    Sent,
    /// Statements that went to a primary.
    Primary,
    /// Statements that went to a replica.
    Replica,
    /// Microseconds from a message to the end of its answer.
    QueryTime,
    /// Microseconds from the beginning of transactions to their end.
    TransactionTime,
    /// Microseconds of waiting for server connections.
    WaitTime,
}

const KINDS: usize = 10;

/// Counters by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals([u64; KINDS]);

impl Totals {
    /// One counter.
    pub fn of(&self, what: Counted) -> u64 {
        self.0[what as usize]
    }
}

/// One connected client.
#[derive(Debug)]
pub struct Client {
    /// Number of the session, never used twice.
    pub session_id: u64,
    /// User.
    pub user: String,
    /// Logical database.
    pub database: String,
    /// Where it connects from.
    pub addr: SocketAddr,
    /// Its `application_name` at login.
    pub application_name: String,
    /// When it logged in.
    pub connected_at: Instant,
    state: AtomicU8,
    counters: [AtomicU64; KINDS],
    pinned: Mutex<&'static str>,
}

impl Client {
    /// Notes what it is doing.
    pub fn set_state(&self, state: ClientState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// What it is doing.
    pub fn state(&self) -> ClientState {
        ClientState::from_u8(self.state.load(Ordering::Relaxed))
    }

    /// Counts. Only the client's own session does, so no count gets lost.
    pub fn count(&self, what: Counted, by: u64) {
        let counter = &self.counters[what as usize];
        counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }

    /// Its counters.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (total, counter) in totals.0.iter_mut().zip(&self.counters) {
            *total = counter.load(Ordering::Relaxed);
        }
        totals
    }

    /// Notes why it keeps its server connection.
    pub fn set_pinned(&self, why: &'static str) {
        *self.pinned.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why it keeps its server connection; empty if it does not.
    pub fn pinned(&self) -> &'static str {
        *self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All connected clients, and what those that left have counted.
#[derive(Debug, Default)]
pub struct Clients {
    next_id: AtomicU64,
    connected: Mutex<HashMap<u64, Arc<Client>>>,
    left: Mutex<BTreeMap<(String, String), Totals>>,
}

impl Clients {
    /// A client logged in.
    pub fn enter(
        &self,
        user: &str,
        database: &str,
        addr: SocketAddr,
        application_name: &str,
    ) -> Arc<Client> {
        let client = Arc::new(Client {
            session_id: self.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            user: user.to_owned(),
            database: database.to_owned(),
            addr,
            application_name: application_name.to_owned(),
            connected_at: Instant::now(),
            state: AtomicU8::new(ClientState::Idle as u8),
            counters: Default::default(),
            pinned: Mutex::new(""),
        });
        let mut connected = lock(&self.connected);
        connected.insert(client.session_id, client.clone());
        client
    }

    /// It left.
    pub fn leave(&self, client: &Client) {
        lock(&self.connected).remove(&client.session_id);
        let key = (client.database.clone(), client.user.clone());
        add(lock(&self.left).entry(key).or_default(), &client.totals());
    }

    /// Everybody who is connected, in the order of arrival.
    pub fn list(&self) -> Vec<Arc<Client>> {
        let mut list: Vec<_> = lock(&self.connected).values().cloned().collect();
        list.sort_by_key(|client| client.session_id);
        list
    }

    /// Counters since the start by (database, user).
    pub fn totals(&self) -> BTreeMap<(String, String), Totals> {
        let mut totals = lock(&self.left).clone();
        for client in self.list() {
            let key = (client.database.clone(), client.user.clone());
            add(totals.entry(key).or_default(), &client.totals());
        }
        totals
    }
}

fn add(total: &mut Totals, more: &Totals) {
    for (sum, part) in total.0.iter_mut().zip(more.0) {
        *sum += part;
    }
}

/// Counters stay usable even if somebody panicked while he held the lock.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_counted_stays_after_it_left() {
        let clients = Clients::default();
        let addr = "127.0.0.1:5".parse().unwrap();
        let one = clients.enter("u", "d", addr, "a");
        let two = clients.enter("u", "d", addr, "a");
        assert_ne!(one.session_id, two.session_id);
        one.count(Counted::Queries, 2);
        two.count(Counted::Queries, 3);
        clients.leave(&one);
        assert_eq!(clients.list().len(), 1);
        let totals = clients.totals();
        let key = ("d".to_owned(), "u".to_owned());
        assert_eq!(totals[&key].of(Counted::Queries), 5);
        assert_eq!(totals[&key].of(Counted::Errors), 0);
    }
}
