//! Split statements by text: a text seen before is not split again.

use std::sync::Arc;

use quick_cache::sync::Cache;

use super::{Split, Unsplit, split};

/// Texts kept.
const CAPACITY: usize = 1024;
/// A longer text is split each time, in bytes.
const LONGEST: usize = 64 << 10;

/// What a text turned out to be.
type Known = Result<Arc<Split>, Unsplit>;

/// Shared by every client of the process.
pub struct SplitCache(Cache<String, Known>);

impl Default for SplitCache {
    fn default() -> Self {
        Self(Cache::new(CAPACITY))
    }
}

impl SplitCache {
    /// The parts of `sql`, found now if it is new.
    ///
    /// # Errors
    /// As [`split`].
    pub fn get_or_split(&self, sql: &str, params: usize) -> Known {
        if let Some(known) = self.0.get(sql) {
            return known;
        }
        let found = split(sql, params).map(Arc::new);
        if sql.len() <= LONGEST {
            self.0.insert(sql.to_owned(), found.clone());
        }
        found
    }
}
