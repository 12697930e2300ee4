//! Nodes that an operator has taken out of the reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::nodes::Address;

/// Host and port.
type Place = (String, u16);

/// See the module.
#[derive(Debug, Default)]
pub struct Bans {
    any: AtomicBool,
    since: Mutex<BTreeMap<Place, Instant>>,
}

impl Bans {
    /// No read goes there until [`Bans::lift`].
    pub fn ban(&self, host: &str, port: u16) {
        let mut since = self.lock();
        since
            .entry((host.to_owned(), port))
            .or_insert_with(Instant::now);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Ends a ban; false when there was none.
    pub fn lift(&self, host: &str, port: u16) -> bool {
        let mut since = self.lock();
        let lifted = since.remove(&(host.to_owned(), port)).is_some();
        self.any.store(!since.is_empty(), Ordering::SeqCst);
        lifted
    }

    /// Whether no read goes there.
    pub fn is_banned(&self, address: &Address) -> bool {
        self.any.load(Ordering::Relaxed)
            && self
                .lock()
                .contains_key(&(address.host.clone(), address.port))
    }

    /// Everything that is banned, and since when.
    pub fn list(&self) -> Vec<(Place, Instant)> {
        let since = self.lock();
        since
            .iter()
            .map(|(place, since)| (place.clone(), *since))
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Place, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
