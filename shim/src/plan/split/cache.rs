//! Split statements by text: a text seen before is not split again.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::{Split, Unsplit, split};

/// Bytes of all that is kept, as far as can be told.
const CAPACITY_BYTES: u64 = 32 << 20;
/// Entries that are expected.
const ENTRIES: usize = 1024;

/// What a text turned out to be.
type Known = Result<Arc<Split>, Unsplit>;

/// Shared by every client of the process.
pub struct SplitCache(Cache<String, Known, Bytes>);

impl Default for SplitCache {
    fn default() -> Self {
        Self(Cache::with_weighter(ENTRIES, CAPACITY_BYTES, Bytes))
    }
}

impl SplitCache {
    /// The parts of `sql`, found now if it is new.
    ///
    /// # Errors
    /// As [`split`].
    pub fn get_or_split(&self, sql: &str, params: usize) -> Known {
        match self.0.get(sql) {
            // A client may declare more parameters than there are in the text.
            Some(Ok(known)) if known.params != params => return split(sql, params).map(Arc::new),
            Some(known) => return known,
            None => {}
        }
        let found = split(sql, params).map(Arc::new);
        if weight(sql, &found) <= CAPACITY_BYTES / 8 {
            self.0.insert(sql.to_owned(), found.clone());
        }
        found
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<String, Known> for Bytes {
    fn weight(&self, sql: &String, known: &Known) -> u64 {
        weight(sql, known)
    }
}

/// Trees are kept with the text, which may have a node for every two characters.
fn weight(sql: &str, known: &Known) -> u64 {
    const OVERHEAD_BYTES: usize = 2048;
    const TREE_BYTES: usize = 128;
    let trees = match known {
        Ok(split) => split.sql.len().max(sql.len()) * TREE_BYTES,
        Err(_) => 0,
    };
    (OVERHEAD_BYTES + 2 * sql.len() + trees) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_are_declared_only_are_counted() {
        let cache = SplitCache::default();
        let sql = "SELECT a FROM t LIMIT 3";
        for (params, expected) in [(0, "LIMIT $1"), (2, "LIMIT $3"), (0, "LIMIT $1")] {
            let split = cache.get_or_split(sql, params).expect("a split");
            assert!(split.sql.ends_with(expected), "{params}: {}", split.sql);
        }
    }

    #[test]
    fn many_long_texts_are_not_all_kept() {
        let cache = SplitCache::default();
        let list = vec!["1"; 2000].join(",");
        let text = |n: usize| format!("SELECT a FROM t WHERE b IN ({n},{list})");
        let split = split(&text(0), 0).expect("a split");
        let one = weight(&text(0), &Ok(Arc::new(split)));
        assert!(
            one > text(0).len() as u64 * 50,
            "trees are many times the text"
        );
        let room = usize::try_from(CAPACITY_BYTES / one).expect("a number of texts");
        for n in 0..room + 8 {
            assert!(cache.get_or_split(&text(n), 0).is_ok());
        }
        assert!(cache.0.weight() <= CAPACITY_BYTES);
        let short = cache.get_or_split("SELECT a FROM t", 0).expect("a split");
        let again = cache.get_or_split("SELECT a FROM t", 0).expect("a split");
        assert!(Arc::ptr_eq(&short, &again));
    }
}
