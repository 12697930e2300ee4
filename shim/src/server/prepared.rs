//! Which named statements a server connection knows; pure.

use std::collections::HashMap;

/// Names in the order of their last use, bounded.
///
/// A name that falls out is `evicted`: still known to the server until a Close goes out, and
/// taken back when it is asked for before that.
#[derive(Debug)]
pub(super) struct Prepared {
    limit: usize,
    /// Name → tick of its last use.
    used: HashMap<String, u64>,
    tick: u64,
    evicted: Vec<String>,
}

impl Prepared {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            used: HashMap::new(),
            tick: 0,
            evicted: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used.len() + self.evicted.len()
    }

    /// Whether the server knows the name; counts as a use.
    pub(super) fn touch(&mut self, name: &str) -> bool {
        self.tick += 1;
        if let Some(last) = self.used.get_mut(name) {
            *last = self.tick;
            return true;
        }
        match self.evicted.iter().position(|evicted| evicted == name) {
            Some(index) => {
                let name = self.evicted.swap_remove(index);
                self.insert(name);
                true
            }
            None => false,
        }
    }

    pub(super) fn insert(&mut self, name: String) {
        self.tick += 1;
        self.evicted.retain(|evicted| *evicted != name);
        self.used.insert(name, self.tick);
        while self.used.len() > self.limit {
            // Rare (only beyond the limit), so a walk is cheaper than an ordered list on each use.
            let oldest = self
                .used
                .iter()
                .min_by_key(|(_, tick)| **tick)
                .map(|(name, _)| name);
            let oldest = oldest
                .cloned()
                .expect("more names than a limit of at least one");
            self.used.remove(&oldest);
            self.evicted.push(oldest);
        }
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.used.remove(name);
        self.evicted.retain(|evicted| evicted != name);
    }

    pub(super) fn clear(&mut self) {
        self.used.clear();
        self.evicted.clear();
    }

    /// Names to be closed on the server now.
    pub(super) fn take_evicted(&mut self) -> Vec<String> {
        std::mem::take(&mut self.evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_name_is_evicted() {
        let mut prepared = Prepared::new(2);
        prepared.insert("a".to_owned());
        prepared.insert("b".to_owned());
        assert!(prepared.touch("a"));
        prepared.insert("c".to_owned());
        assert_eq!(prepared.take_evicted(), ["b"]);
        assert!(prepared.touch("a") && prepared.touch("c") && !prepared.touch("b"));
    }

    #[test]
    fn an_evicted_name_that_is_still_open_comes_back() {
        let mut prepared = Prepared::new(1);
        prepared.insert("a".to_owned());
        prepared.insert("b".to_owned());
        assert!(
            prepared.touch("a"),
            "the server has not been told to close it"
        );
        assert_eq!(prepared.take_evicted(), ["b"]);
        assert_eq!(prepared.len(), 1);
    }
}
