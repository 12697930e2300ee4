//! Plans by text: a text seen before is never parsed again.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::{Plan, PlanError, parse};

/// What a text turned out to be.
pub type Planned = Result<Arc<Plan>, PlanError>;

/// Bounded by bytes, shared by every client of the process.
pub struct PlanCache {
    plans: Cache<String, Planned, Bytes>,
    max_text_bytes: u64,
}

impl PlanCache {
    /// A cache of about `capacity_bytes`; a text longer than an eighth of it is never kept.
    pub fn new(capacity_bytes: u64) -> Self {
        let typical_entry_bytes = 2048;
        let entries = usize::try_from(capacity_bytes / typical_entry_bytes).unwrap_or(usize::MAX);
        Self {
            plans: Cache::with_weighter(entries.max(16), capacity_bytes, Bytes),
            max_text_bytes: capacity_bytes / 8,
        }
    }

    /// The plan of `sql`, parsed now if it is new.
    ///
    /// # Errors
    /// The text is not SQL: send it to any server, which reports it as PostgreSQL does.
    pub fn get_or_parse(&self, sql: &str) -> Planned {
        if let Some(planned) = self.plans.get(sql) {
            return planned;
        }
        let planned = parse(sql).map(Arc::new);
        if weight(sql, &planned) <= self.max_text_bytes {
            self.plans.insert(sql.to_owned(), planned.clone());
        }
        planned
    }

    /// Number of texts kept.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// True when no text is kept.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<String, Planned> for Bytes {
    fn weight(&self, sql: &String, planned: &Planned) -> u64 {
        weight(sql, planned)
    }
}

/// Text, tree overhead, and the values of INSERT lists, which grow with the text.
fn weight(sql: &str, planned: &Planned) -> u64 {
    const ENTRY_OVERHEAD_BYTES: usize = 256;
    const VALUE_BYTES: usize = 48;
    let values: usize = planned.as_ref().map_or(0, |plan| {
        let relations = plan
            .statements
            .iter()
            .flat_map(|statement| &statement.relations);
        relations
            .map(|relation| {
                let bound: usize = relation.bound.iter().map(|(_, values)| values.len()).sum();
                let rows = relation
                    .positional
                    .as_ref()
                    .map_or(0, |rows| rows.iter().map(Vec::len).sum());
                4 + bound + rows
            })
            .sum()
    });
    (ENTRY_OVERHEAD_BYTES + 2 * sql.len() + values * VALUE_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_seen_before_is_not_parsed_again() {
        let cache = PlanCache::new(1 << 20);
        let first = cache.get_or_parse("SELECT 1").unwrap();
        let second = cache.get_or_parse("SELECT 1").unwrap();
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn errors_are_kept_too() {
        let cache = PlanCache::new(1 << 20);
        assert!(cache.get_or_parse("SELEC 1").is_err());
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn the_cache_is_bounded_by_bytes() {
        let cache = PlanCache::new(64 << 10);
        for n in 0..2000 {
            cache
                .get_or_parse(&format!("SELECT {n} AS a_rather_long_name_for_a_column"))
                .unwrap();
        }
        assert!(cache.len() < 300, "{} texts kept", cache.len());
        let huge = format!("SELECT '{}'", "x".repeat(20_000));
        let kept = cache.len();
        cache.get_or_parse(&huge).unwrap();
        assert!(cache.len() <= kept, "a huge text is not kept");
    }
}
