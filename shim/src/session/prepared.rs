//! Prepared statements: what a client calls them, and what they are called on the servers.
//!
//! Equal texts with equal parameter types share one server-side name, whoever prepared them and
//! whatever he calls them. A name is never given to another text, so a server connection that
//! has a name has the right text.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::plan::{Plan, PlanCache, Planned};

/// A statement that some client prepared.
#[derive(Debug)]
pub struct Prepared {
    /// Its name on servers.
    pub server_name: String,
    /// Number in the name; names a statement on a server connection.
    pub number: u64,
    /// The text.
    pub sql: Arc<str>,
    /// Types of the parameters as the client declared them; 0 is "not said".
    pub types: Vec<u32>,
    /// What the text is.
    pub planned: Planned,
    /// Whether it is a named statement; the unnamed one stays unnamed on the servers.
    pub named: bool,
    described: OnceLock<Vec<u32>>,
    uses: AtomicU64,
}

impl Prepared {
    /// The plan of its only statement.
    pub fn plan(&self) -> Option<&Plan> {
        self.planned.as_deref().ok()
    }

    /// Type of parameter `number`, 1-based; 0 when nobody said.
    pub fn type_of(&self, number: usize) -> u32 {
        let at = |types: &[u32]| types.get(number.wrapping_sub(1)).copied().unwrap_or(0);
        match at(&self.types) {
            0 => self.described.get().map_or(0, |types| at(types)),
            oid => oid,
        }
    }

    /// Remembers what a server said about the parameters.
    pub fn note_described(&self, types: Vec<u32>) {
        // The first answer stays: all servers have the same tables.
        let _ = self.described.set(types);
    }

    /// How often a client prepared it.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    fn weight(&self) -> usize {
        256 + 2 * self.sql.len() + 4 * self.types.len()
    }
}

#[derive(PartialEq, Eq, Clone)]
struct Key {
    sql: Arc<str>,
    types: Vec<u32>,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sql.hash(state);
        self.types.hash(state);
    }
}

#[derive(Default)]
struct Shelf {
    by_key: std::collections::HashMap<Key, Arc<Prepared>>,
    /// Oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

/// All prepared statements of the process, bounded by bytes.
///
/// A statement that falls out lives on with the clients that have it; who prepares the same text
/// later gets a new name.
pub struct Registry {
    shelf: Mutex<Shelf>,
    next: AtomicU64,
    capacity_bytes: usize,
}

impl Registry {
    /// A registry that keeps about so many bytes.
    pub fn new(capacity_bytes: usize) -> Self {
        Self {
            shelf: Mutex::default(),
            next: AtomicU64::new(1),
            capacity_bytes,
        }
    }

    /// The statement for a text and types.
    pub fn prepare(&self, sql: &str, types: Vec<u32>, plans: &PlanCache) -> Arc<Prepared> {
        let key = Key {
            sql: Arc::from(sql),
            types,
        };
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shelf.by_key.get(&key) {
            known.uses.fetch_add(1, Ordering::Relaxed);
            return known.clone();
        }
        let made = self.make(key.sql.clone(), key.types.clone(), true, plans);
        shelf.bytes += made.weight();
        shelf.order.push_back(key.clone());
        shelf.by_key.insert(key, made.clone());
        while shelf.bytes > self.capacity_bytes && shelf.order.len() > 1 {
            if let Some(gone) = shelf
                .order
                .pop_front()
                .and_then(|k| shelf.by_key.remove(&k))
            {
                shelf.bytes -= gone.weight();
            }
        }
        made
    }

    /// The unnamed statement: not shared.
    pub fn unnamed(&self, sql: &str, types: Vec<u32>, plans: &PlanCache) -> Arc<Prepared> {
        self.make(Arc::from(sql), types, false, plans)
    }

    fn make(
        &self,
        sql: Arc<str>,
        types: Vec<u32>,
        named: bool,
        plans: &PlanCache,
    ) -> Arc<Prepared> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Arc::new(Prepared {
            server_name: format!("__pgdog_{number}"),
            number,
            planned: plans.get_or_parse(&sql),
            sql,
            types,
            named,
            described: OnceLock::new(),
            uses: AtomicU64::new(1),
        })
    }

    /// (server-side name, text, uses), by name.
    pub fn list(&self) -> Vec<(String, String, u64)> {
        let shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = shelf.by_key.values().cloned().collect();
        all.sort_by_key(|prepared| prepared.number);
        all.iter()
            .map(|p| (p.server_name.clone(), p.sql.to_string(), p.uses()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_a_name_and_other_types_do_not() {
        let (registry, plans) = (Registry::new(1 << 20), PlanCache::new(1 << 20));
        let one = registry.prepare("SELECT $1", vec![], &plans);
        let same = registry.prepare("SELECT $1", vec![], &plans);
        let typed = registry.prepare("SELECT $1", vec![23], &plans);
        assert!(Arc::ptr_eq(&one, &same));
        assert_ne!(one.server_name, typed.server_name);
        assert_eq!(registry.list()[0].2, 2);
    }

    #[test]
    fn a_statement_that_fell_out_comes_back_under_a_new_name() {
        let (registry, plans) = (Registry::new(1_000), PlanCache::new(1 << 20));
        let first = registry.prepare("SELECT 1", vec![], &plans);
        for n in 2..20 {
            registry.prepare(&format!("SELECT {n}"), vec![], &plans);
        }
        assert!(registry.list().len() < 6);
        let again = registry.prepare("SELECT 1", vec![], &plans);
        assert_ne!(first.server_name, again.server_name);
    }

    #[test]
    fn declared_types_win_over_described_ones() {
        let (registry, plans) = (Registry::new(1 << 20), PlanCache::new(1 << 20));
        let prepared = registry.prepare("SELECT $1, $2", vec![20], &plans);
        prepared.note_described(vec![23, 25]);
        assert_eq!(
            (
                prepared.type_of(1),
                prepared.type_of(2),
                prepared.type_of(3)
            ),
            (20, 25, 0)
        );
    }
}
