//! What became of the reads under a floor, by the node that answered them; refusals are counted at
//! the shard's primary.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cluster::Cluster;
use super::topology::Address;

/// How a read under a floor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The node was known to have it.
    Proved,
    /// The node was asked together with the statement, and had it.
    Guarded,
    /// No replica had it in time: the primary answered.
    FellBack,
    /// No replica had it in time.
    Refused,
    /// Nobody has it any more: a failover took it.
    Lost,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 5] = [
        Outcome::Proved,
        Outcome::Guarded,
        Outcome::FellBack,
        Outcome::Refused,
        Outcome::Lost,
    ];

    /// As columns and labels name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Proved => "proved",
            Outcome::Guarded => "guarded",
            Outcome::FellBack => "fell_back",
            Outcome::Refused => "refused",
            Outcome::Lost => "lost",
        }
    }
}

/// Upper bounds of the classes of waits, in ms; what is longer is in a class of its own.
pub const WAIT_BOUNDS_MS: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];

const CLASSES: usize = WAIT_BOUNDS_MS.len() + 1;

/// The counters of one node.
#[derive(Debug, Default)]
pub(super) struct Tally {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    waits: [AtomicU64; CLASSES],
    waited_ms: AtomicU64,
}

/// What they say at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tallied {
    outcomes: [u64; Outcome::ALL.len()],
    /// Answered reads that waited, by class: [`WAIT_BOUNDS_MS`] and one more.
    pub waits: [u64; CLASSES],
    /// Sum of all waits.
    pub waited_ms: u64,
}

impl Tallied {
    /// Reads that ended so.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Answered reads that waited.
    pub fn waited(&self) -> u64 {
        self.waits.iter().sum()
    }
}

impl Tally {
    fn note(&self, outcome: Outcome, waited_ms: u64) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        let answered = !matches!(outcome, Outcome::Refused | Outcome::Lost);
        if answered && waited_ms > 0 {
            let class = WAIT_BOUNDS_MS.partition_point(|bound| *bound < waited_ms);
            self.waits[class].fetch_add(1, Ordering::Relaxed);
            self.waited_ms.fetch_add(waited_ms, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Tallied {
        let all = |counters: &[AtomicU64], at: usize| counters[at].load(Ordering::Relaxed);
        Tallied {
            outcomes: std::array::from_fn(|at| all(&self.outcomes, at)),
            waits: std::array::from_fn(|at| all(&self.waits, at)),
            waited_ms: self.waited_ms.load(Ordering::Relaxed),
        }
    }
}

impl Cluster {
    /// Counts a read under a floor.
    pub fn note_floor(&self, address: &Address, outcome: Outcome, waited_ms: u64) {
        if let Some(node) = self.nodes().get(address) {
            node.tally.note(outcome, waited_ms);
        }
    }

    /// What was counted of a node.
    pub fn tallied(&self, address: &Address) -> Tallied {
        let nodes = self.nodes();
        nodes
            .get(address)
            .map_or_else(Tallied::default, |node| node.tally.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_sorted_into_classes_and_refusals_are_not_waits() {
        let tally = Tally::default();
        for waited_ms in [0, 1, 2, 3, 100, 101, 9_000] {
            tally.note(Outcome::Guarded, waited_ms);
        }
        tally.note(Outcome::Refused, 100);
        let read = tally.read();
        assert_eq!(read.of(Outcome::Guarded), 7);
        assert_eq!(read.of(Outcome::Refused), 1);
        assert_eq!(read.waits, [1, 1, 1, 0, 0, 0, 1, 2]);
        assert_eq!((read.waited(), read.waited_ms), (6, 9_207));
    }
}
