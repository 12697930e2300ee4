//! Prepared statements: what a client calls them, and what they are called on the servers.
//!
//! Equal texts with equal parameter types share one server-side name, whoever prepared them and
//! whatever he calls them, as long as the text means the same: database, `search_path` and role are
//! part of what makes two texts equal. A name is made of what it stands for, so a server connection
//! that has a name has the right text.
//!
//! The server-side statement may still be older than a change of its tables. A client that prepares
//! a statement now must not meet the old one: what it holds carries the moment of its Parse, and a
//! connection on which the statement is older prepares it anew.

use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwapOption;
use foldhash::HashMap;

use crate::plan::{Plan, PlanCache, Planned, Statement};
use crate::server::Moment;

/// A statement that some client prepared.
#[derive(Debug)]
pub struct Prepared {
    /// Its name on servers.
    pub server_name: String,
    /// Tells unnamed statements apart, of which servers know one only.
    pub number: u64,
    /// The text.
    pub sql: Arc<str>,
    /// Types of the parameters as the client declared them; 0 is "not said".
    pub types: Vec<u32>,
    /// What the text is.
    pub planned: Planned,
    /// Whether it is a named statement; the unnamed one stays unnamed on the servers.
    pub named: bool,
    /// Made by SQL: what follows the name in `PREPARE name (types) AS text`.
    pub by_sql: Option<Arc<str>>,
    /// The statement that it runs, if it is an EXECUTE.
    pub executes: Option<Held>,
    /// It has its client's own name, on the connection that only this client uses.
    pub own: bool,
    described: ArcSwapOption<Vec<u32>>,
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
            0 => self.described.load().as_ref().map_or(0, |types| at(types)),
            oid => oid,
        }
    }

    /// Whether another Parse of the unnamed statement means the same, whatever has happened since.
    pub fn is_same_as(&self, sql: &[u8], types: impl Iterator<Item = u32>) -> bool {
        let statement = self.plan().and_then(|plan| plan.statements.first());
        let is_execute = || statement.is_some_and(|statement| statement.prepared.is_some());
        !self.named
            && self.sql.as_bytes() == sql
            && self.types.iter().copied().eq(types)
            && self.described.load().is_none()
            && !is_execute()
    }

    /// Remembers what a server said about the parameters.
    pub fn note_described(&self, types: Vec<u32>) {
        self.described.store(Some(Arc::new(types)));
    }
}

/// A statement in the hands of one client.
#[derive(Debug, Clone)]
pub struct Held {
    /// The statement.
    pub prepared: Arc<Prepared>,
    /// When this client prepared it: an older one on a server does not do.
    pub since: Moment,
}

impl Held {
    /// Prepared by its client at this moment.
    pub fn now(prepared: Arc<Prepared>) -> Self {
        Self {
            prepared,
            since: Moment::now(),
        }
    }
}

impl Deref for Held {
    type Target = Prepared;

    fn deref(&self) -> &Prepared {
        &self.prepared
    }
}

#[derive(Debug, PartialEq, Eq, Hash, Clone)]
struct Key {
    sql: Arc<str>,
    types: Vec<u32>,
    by_sql: bool,
    context: u64,
}

#[derive(Default)]
struct Shelf {
    by_key: HashMap<Key, Weak<Prepared>>,
    /// Entries at which those that nobody holds are thrown out.
    sweep_at: usize,
}

/// The named statements that clients of this process hold at the moment.
///
/// A statement that nobody holds any more is forgotten here. Servers keep theirs within their own
/// bound, under a name that the same text gets again.
#[derive(Default)]
pub struct Registry {
    shelf: Mutex<Shelf>,
    next: AtomicU64,
    /// Secret, so that nobody can make up two texts with one name.
    hashers: (RandomState, RandomState),
}

impl Registry {
    /// The statement for a text and types. `context` names what else the text's meaning hangs on.
    pub fn prepare(
        &self,
        sql: &str,
        types: Vec<u32>,
        context: u64,
        plans: &PlanCache,
    ) -> Arc<Prepared> {
        let key = Key {
            sql: Arc::from(sql),
            types,
            by_sql: false,
            context,
        };
        self.shelved(key, |name, key| Prepared {
            server_name: name,
            number: 0,
            planned: plans.get_or_parse(&key.sql),
            sql: key.sql.clone(),
            types: key.types.clone(),
            named: true,
            by_sql: None,
            executes: None,
            own: false,
            described: ArcSwapOption::empty(),
        })
    }

    /// The statement that SQL prepares: `tail` follows the name, `statement` is what it runs.
    pub fn prepare_by_sql(&self, tail: &str, statement: &Statement, context: u64) -> Arc<Prepared> {
        let key = Key {
            sql: Arc::from(tail),
            types: Vec::new(),
            by_sql: true,
            context,
        };
        self.shelved(key, |name, key| Prepared {
            server_name: name,
            number: 0,
            planned: Ok(Arc::new(Plan {
                statements: vec![statement.clone()],
            })),
            sql: key.sql.clone(),
            types: Vec::new(),
            named: true,
            by_sql: Some(key.sql.clone()),
            executes: None,
            own: false,
            described: ArcSwapOption::empty(),
        })
    }

    /// A statement that is not shared: the unnamed one, or an EXECUTE of what its client holds.
    pub fn alone(
        &self,
        sql: &str,
        types: Vec<u32>,
        executes: Option<Held>,
        plans: &PlanCache,
    ) -> Arc<Prepared> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Arc::new(Prepared {
            server_name: String::new(),
            number,
            planned: plans.get_or_parse(sql),
            sql: Arc::from(sql),
            types,
            named: false,
            by_sql: None,
            executes,
            own: false,
            described: ArcSwapOption::empty(),
        })
    }

    /// A statement that its client names on a connection of his own, where the server minds names.
    pub fn own(&self, name: &str, sql: &str, types: Vec<u32>, plans: &PlanCache) -> Arc<Prepared> {
        Arc::new(Prepared {
            server_name: name.to_owned(),
            number: 0,
            planned: plans.get_or_parse(sql),
            sql: Arc::from(sql),
            types,
            named: true,
            by_sql: None,
            executes: None,
            own: true,
            described: ArcSwapOption::empty(),
        })
    }

    fn shelved(&self, key: Key, make: impl FnOnce(String, &Key) -> Prepared) -> Arc<Prepared> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shelf.by_key.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        let made = Arc::new(make(self.name_of(&key), &key));
        shelf.by_key.insert(key, Arc::downgrade(&made));
        if shelf.by_key.len() > shelf.sweep_at {
            shelf.by_key.retain(|_, held| held.strong_count() > 0);
            shelf.sweep_at = (2 * shelf.by_key.len()).max(SWEEP_FROM);
        }
        made
    }

    fn name_of(&self, key: &Key) -> String {
        let (one, two) = (self.hashers.0.hash_one(key), self.hashers.1.hash_one(key));
        format!("__pgdog_{one:016x}{two:016x}")
    }

    /// (server-side name, text, clients that hold it), by text.
    pub fn list(&self) -> Vec<(String, String, u64)> {
        let shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let held = shelf.by_key.values().filter_map(|held| {
            let prepared = held.upgrade()?;
            let clients = Arc::strong_count(&prepared).saturating_sub(1) as u64;
            (clients > 0).then_some((prepared, clients))
        });
        let mut all: Vec<_> = held
            .map(|(p, clients)| (p.server_name.clone(), p.sql.to_string(), clients))
            .collect();
        all.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
        all
    }
}

/// Below this many entries nobody looks for those that are not held.
const SWEEP_FROM: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_a_name_and_other_types_or_contexts_do_not() {
        let (registry, plans) = (Registry::default(), PlanCache::new(1 << 20));
        let one = registry.prepare("SELECT $1", vec![], 0, &plans);
        let same = registry.prepare("SELECT $1", vec![], 0, &plans);
        let typed = registry.prepare("SELECT $1", vec![23], 0, &plans);
        let elsewhere = registry.prepare("SELECT $1", vec![], 1, &plans);
        assert!(Arc::ptr_eq(&one, &same));
        assert_ne!(one.server_name, typed.server_name);
        assert_ne!(one.server_name, elsewhere.server_name);
        assert_eq!(registry.list().iter().map(|held| held.2).max(), Some(2));
    }

    #[test]
    fn what_nobody_holds_is_forgotten_and_comes_back_under_its_name() {
        let (registry, plans) = (Registry::default(), PlanCache::new(1 << 20));
        let first = registry.prepare("SELECT 1", vec![], 0, &plans);
        let name = first.server_name.clone();
        drop(first);
        assert!(registry.list().is_empty());
        for n in 0..4 * SWEEP_FROM {
            registry.prepare(&format!("SELECT {n}"), vec![], 0, &plans);
        }
        let kept = registry.shelf.lock().unwrap().by_key.len();
        assert!(kept <= SWEEP_FROM + 1, "{kept}");
        let again = registry.prepare("SELECT 1", vec![], 0, &plans);
        assert_eq!(again.server_name, name);
    }

    #[test]
    fn declared_types_win_over_described_ones() {
        let (registry, plans) = (Registry::default(), PlanCache::new(1 << 20));
        let prepared = registry.prepare("SELECT $1, $2", vec![20], 0, &plans);
        prepared.note_described(vec![23, 25]);
        let types = [1, 2, 3].map(|number| prepared.type_of(number));
        assert_eq!(types, [20, 25, 0]);
        prepared.note_described(vec![23, 23]);
        assert_eq!(prepared.type_of(2), 23, "the tables have changed");
    }
}
