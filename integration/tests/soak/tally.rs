//! What became of the reads.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use anyhow::ensure;

/// One kind of outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A replica answered, with what was asked for.
    Replica,
    /// The primary did.
    Primary,
    /// Refused: no replica had it in time.
    Refused,
    /// Refused: a failover took the write.
    Lost,
    /// The connection, or the server's, broke.
    Broken,
}

const KINDS: usize = 5;

/// Counters of all readers.
#[derive(Debug, Default)]
pub struct Tally {
    outcomes: [AtomicU64; KINDS],
    commits: AtomicU64,
    stale: Mutex<Vec<String>>,
}

impl Tally {
    /// Counts a read.
    pub fn note(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    /// A commit was acknowledged.
    pub fn note_commit(&self) {
        self.commits.fetch_add(1, Relaxed);
    }

    /// A read was older than promised, or torn.
    pub fn note_stale(&self, what: String) {
        println!("    STALE {what}");
        self.stale().push(what);
    }

    /// Reads that were answered or refused for their floor.
    pub fn reads(&self) -> u64 {
        use Outcome::{Lost, Primary, Refused, Replica};
        [Replica, Primary, Refused, Lost]
            .map(|kind| self.of(kind))
            .iter()
            .sum()
    }

    fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Relaxed)
    }

    /// No read was older than promised.
    pub fn check(&self) -> anyhow::Result<()> {
        let stale = self.stale();
        ensure!(stale.is_empty(), "{} stale reads: {stale:?}", stale.len());
        Ok(())
    }

    /// Nobody was refused, and replicas did the work.
    pub fn check_undisturbed(&self) -> anyhow::Result<()> {
        ensure!(
            self.of(Outcome::Refused) == 0,
            "refused without faults: {self}"
        );
        ensure!(self.of(Outcome::Lost) == 0, "lost without faults: {self}");
        ensure!(
            self.of(Outcome::Broken) == 0,
            "broken without faults: {self}"
        );
        ensure!(
            self.of(Outcome::Replica) > self.of(Outcome::Primary),
            "{self}"
        );
        Ok(())
    }

    fn stale(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reads = self.reads().max(1) as f64;
        let share = |outcome| self.of(outcome) as f64 * 100.0 / reads;
        write!(
            f,
            "{} commits, {} reads, {} stale; by replicas {:.1} %, by the primary {:.1} %, \
             refused {:.1} %, lost in the failover {:.1} %; {} broken connections",
            self.commits.load(Relaxed),
            self.reads(),
            self.stale().len(),
            share(Outcome::Replica),
            share(Outcome::Primary),
            share(Outcome::Refused),
            share(Outcome::Lost),
            self.of(Outcome::Broken),
        )
    }
}
