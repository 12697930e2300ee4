//! Which named statements a server connection knows; pure.

use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::HashMap;

/// Text of statements that one connection keeps at most, in bytes.
const BYTES_LIMIT: usize = 8 << 20;

/// A point in the order of things that happen in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Later than every moment before.
    pub fn now() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A statement that a server knows.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Tick of its last use.
    used: u64,
    bytes: usize,
    /// When its Parse was sent.
    parsed: Moment,
}

/// Names in the order of their last use, bounded in number and in bytes.
///
/// A name that falls out is `evicted`: still known to the server until a Close goes out, and
/// taken back when it is asked for before that.
#[derive(Debug)]
pub(super) struct Prepared {
    limit: usize,
    known: HashMap<String, Known>,
    bytes: usize,
    tick: u64,
    evicted: Vec<(String, Known)>,
    keeps_all: bool,
}

impl Prepared {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            known: HashMap::default(),
            bytes: 0,
            tick: 0,
            evicted: Vec::new(),
            keeps_all: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len() + self.evicted.len()
    }

    /// When the server was given the name, if it knows it; counts as a use.
    pub(super) fn touch(&mut self, name: &str) -> Option<Moment> {
        self.tick += 1;
        if let Some(known) = self.known.get_mut(name) {
            known.used = self.tick;
            return Some(known.parsed);
        }
        let index = self
            .evicted
            .iter()
            .position(|(evicted, _)| evicted == name)?;
        // Nothing else falls out for it yet: that could be of the same batch.
        let (name, mut known) = self.evicted.swap_remove(index);
        known.used = self.tick;
        self.bytes += known.bytes;
        self.known.insert(name, known);
        Some(known.parsed)
    }

    pub(super) fn insert(&mut self, name: String, bytes: usize, parsed: Moment) {
        self.forget(&name);
        self.tick += 1;
        self.bytes += bytes;
        let known = Known {
            used: self.tick,
            bytes,
            parsed,
        };
        self.known.insert(name, known);
        self.trim();
    }

    /// Lets the names that were used longest ago fall out, down to the bounds.
    pub(super) fn trim(&mut self) {
        let bounded = !self.keeps_all;
        while bounded
            && self.known.len() > 1
            && (self.known.len() > self.limit || self.bytes > BYTES_LIMIT)
        {
            self.evict_oldest();
        }
    }

    fn evict_oldest(&mut self) {
        // Rare (only beyond the limit), so a walk is cheaper than an ordered list on each use.
        let oldest = self
            .known
            .iter()
            .min_by_key(|(_, known)| known.used)
            .map(|(name, _)| name.clone());
        if let Some(name) = oldest {
            self.evict(&name);
        }
    }

    /// The server's statement does not fit its tables any more: it counts as older than all others.
    pub(super) fn spoil(&mut self, name: &str) {
        if let Some(known) = self.known.get_mut(name) {
            known.parsed = Moment(0);
        }
    }

    fn evict(&mut self, name: &str) {
        if let Some((name, known)) = self.known.remove_entry(name) {
            self.bytes -= known.bytes;
            self.evicted.push((name, known));
        }
    }

    pub(super) fn forget(&mut self, name: &str) {
        if let Some(known) = self.known.remove(name) {
            self.bytes -= known.bytes;
        }
        self.evicted.retain(|(evicted, _)| evicted != name);
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.evicted.clear();
        self.bytes = 0;
        self.keeps_all = false;
    }

    /// Nothing falls out any more, until all is forgotten.
    pub(super) fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    /// Whether there are names to be closed on the server.
    pub(super) fn has_evicted(&self) -> bool {
        !self.evicted.is_empty()
    }

    /// Names to be closed on the server now.
    pub(super) fn take_evicted(&mut self) -> Vec<String> {
        let evicted = std::mem::take(&mut self.evicted);
        evicted.into_iter().map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(prepared: &mut Prepared, name: &str, bytes: usize) {
        prepared.insert(name.to_owned(), bytes, Moment::now());
    }

    #[test]
    fn the_least_recently_used_name_is_evicted() {
        let mut prepared = Prepared::new(2);
        insert(&mut prepared, "a", 1);
        insert(&mut prepared, "b", 1);
        assert!(prepared.touch("a").is_some());
        insert(&mut prepared, "c", 1);
        assert_eq!(prepared.take_evicted(), ["b"]);
        assert!(["a", "c"].iter().all(|name| prepared.touch(name).is_some()));
        assert!(prepared.touch("b").is_none());
    }

    #[test]
    fn long_texts_are_evicted_before_the_number_is_reached() {
        let mut prepared = Prepared::new(100);
        for name in ["a", "b", "c"] {
            insert(&mut prepared, name, BYTES_LIMIT / 2);
        }
        assert_eq!(prepared.take_evicted(), ["a"]);
        insert(&mut prepared, "d", 2 * BYTES_LIMIT);
        assert_eq!(prepared.take_evicted().len(), 2);
        assert!(prepared.touch("d").is_some(), "one is always kept");
    }

    #[test]
    fn an_evicted_name_that_is_still_open_comes_back() {
        let mut prepared = Prepared::new(1);
        insert(&mut prepared, "a", 1);
        insert(&mut prepared, "b", 1);
        let back = prepared.touch("a");
        assert!(back.is_some(), "the server has not been told to close it");
        assert_eq!(
            prepared.len(),
            2,
            "what is about to be used stays meanwhile"
        );
        prepared.trim();
        assert_eq!(prepared.take_evicted(), ["b"]);
        assert_eq!(prepared.len(), 1);
    }

    #[test]
    fn a_name_that_is_parsed_again_is_of_the_later_moment() {
        let mut prepared = Prepared::new(2);
        insert(&mut prepared, "a", 5);
        let between = Moment::now();
        insert(&mut prepared, "a", 5);
        assert!(prepared.touch("a").is_some_and(|parsed| parsed > between));
        assert_eq!(prepared.bytes, 5);
    }
}
