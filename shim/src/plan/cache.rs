//! Plans by text: a text seen before is never parsed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::shape::{Shape, of_all_alike};
use super::{Plan, PlanError, parse};

/// What a text turned out to be.
pub type Planned = Result<Arc<Plan>, PlanError>;

/// Longer texts are looked up as they are: they are rarely sent often, and every session would
/// keep room for their shape.
const MAX_SHAPE_BYTES: usize = 16 << 10;

/// Bounded by bytes, shared by every client of the process.
pub struct PlanCache {
    /// Texts that were asked for in more than one round.
    plans: Cache<String, Planned, Bytes>,
    /// All others, each with the round it came in: most texts with constants in them never come
    /// back, and must not push out those that do.
    passing: ArcSwap<Passing>,
    passing_bytes: u64,
    round: AtomicU64,
    /// By shape: plans that hold for all texts of the shape.
    shapes: Cache<String, Planned, Bytes>,
    max_text_bytes: u64,
}

impl PlanCache {
    /// A cache of about `capacity_bytes`; a text longer than an eighth of it is never kept.
    pub fn new(capacity_bytes: u64) -> Self {
        let part = capacity_bytes / 4;
        let rest = capacity_bytes - 2 * part;
        Self {
            plans: Cache::with_weighter(entries(rest), rest, Bytes),
            passing: ArcSwap::from_pointee(passing(part)),
            passing_bytes: part,
            round: AtomicU64::new(0),
            shapes: Cache::with_weighter(entries(part), part, Bytes),
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
        let round = self.round.load(Ordering::Relaxed);
        let passing = self.passing.load();
        if let Some((planned, since)) = passing.get(sql) {
            if since != round {
                passing.remove(sql);
                self.plans.insert(sql.to_owned(), planned.clone());
            }
            return planned;
        }
        let planned = parse(sql).map(Arc::new);
        if weight(sql, &planned) <= self.max_text_bytes {
            let entry = (planned.clone(), round);
            passing.insert(sql.to_owned(), entry);
        }
        planned
    }

    /// Begins another round. A message may ask for its text several times; whoever asks in a later
    /// round is another one, if rounds are as long as messages take.
    pub fn begin_round(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives up the texts that were asked for in one round only.
    pub fn forget_passing(&self) {
        // Another one: an empty cache would keep the room of a full one.
        self.passing.store(Arc::new(passing(self.passing_bytes)));
    }

    /// As [`PlanCache::get_or_parse`] where values of keys do not matter: the plan may be of
    /// another text, which differs in its constants only (it is `alike` then). `scratch` is room
    /// to work in, so that nothing is allocated.
    ///
    /// # Errors
    /// As [`PlanCache::get_or_parse`].
    pub fn get_alike(&self, sql: &str, scratch: &mut Shape) -> Planned {
        if sql.len() > MAX_SHAPE_BYTES || !scratch.become_of(sql) {
            return self.get_or_parse(sql);
        }
        if let Some(planned) = self.shapes.get(scratch.as_str()) {
            return planned;
        }
        let planned = self.get_or_parse(sql);
        if let Ok(plan) = &planned
            && let Some(general) = of_all_alike(plan)
        {
            self.shapes
                .insert(scratch.as_str().to_owned(), Ok(Arc::new(general)));
        }
        planned
    }

    /// Number of texts kept.
    pub fn len(&self) -> usize {
        self.plans.len() + self.passing.load().len()
    }

    /// True when no text is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Plans with the rounds they came in.
type Passing = Cache<String, (Planned, u64), BytesInRound>;

fn passing(bytes: u64) -> Passing {
    Cache::with_weighter(entries(bytes), bytes, BytesInRound)
}

/// How many plans may be expected in so many bytes.
fn entries(bytes: u64) -> usize {
    const TYPICAL_BYTES: u64 = 2048;
    let entries = usize::try_from(bytes / TYPICAL_BYTES).unwrap_or(usize::MAX);
    entries.max(16)
}

#[derive(Clone)]
struct Bytes;

impl Weighter<String, Planned> for Bytes {
    fn weight(&self, sql: &String, planned: &Planned) -> u64 {
        weight(sql, planned)
    }
}

#[derive(Clone)]
struct BytesInRound;

impl Weighter<String, (Planned, u64)> for BytesInRound {
    fn weight(&self, sql: &String, (planned, _): &(Planned, u64)) -> u64 {
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
    fn texts_that_differ_in_constants_share_a_plan() {
        let cache = PlanCache::new(1 << 20);
        let mut scratch = Shape::default();
        let first = cache.get_alike("SELECT * FROM t WHERE a = 1", &mut scratch);
        assert!(!first.unwrap().statements[0].alike);
        let second = cache.get_alike("SELECT * FROM t WHERE a = 23", &mut scratch);
        assert!(second.unwrap().statements[0].alike);
        assert_eq!(cache.len(), 1, "the second was not parsed");
        let other = cache.get_alike("SELECT * FROM t WHERE b = 23", &mut scratch);
        assert!(!other.unwrap().statements[0].alike);
    }

    #[test]
    fn a_text_that_never_comes_back_is_given_up_first() {
        let cache = PlanCache::new(64 << 10);
        let first = cache.get_or_parse("SELECT 1").unwrap();
        cache.begin_round();
        cache.get_or_parse("SELECT 1").unwrap();
        for n in 2..2000 {
            for _ in 0..3 {
                cache.get_or_parse(&format!("SELECT {n}")).unwrap();
            }
        }
        let still = cache.get_or_parse("SELECT 1").unwrap();
        assert!(Arc::ptr_eq(&first, &still), "others have pushed it out");
        cache.forget_passing();
        assert_eq!(cache.len(), 1);
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
