//! How far replicas are behind their primary, in bytes and in time.
//!
//! Time is measured by the clock of this process alone: what a replica has not replayed was there
//! on the primary at a moment that is remembered, and has been missing for at least as long. So a
//! shard where nothing is written has no lag, and one whose stream is cut has one that grows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pgdog_core::ids::{Incarnation, Timeline};
use pgdog_core::lsn::Lsn;

use super::cluster::Cluster;
use super::topology::Address;

/// Points that are remembered of a primary, at most.
const POINTS: usize = 512;
/// When there are more, the distance of two need not be less than this part of their age.
const COARSENESS: u32 = 32;

/// How far a primary had come, and when it was seen to.
#[derive(Debug, Default)]
pub(super) struct Past {
    life: Option<(Incarnation, Timeline)>,
    points: VecDeque<(Instant, Lsn)>,
}

impl Past {
    /// It was seen there.
    pub(super) fn note(&mut self, life: (&Incarnation, Timeline), at: Instant, written: Lsn) {
        let same = |known: &(Incarnation, Timeline)| (&known.0, known.1) == life;
        if !self.life.as_ref().is_some_and(same) {
            self.life = Some((life.0.clone(), life.1));
            self.points.clear();
        }
        let written = written.to_replay();
        if self.points.back().is_some_and(|last| last.1 >= written) {
            return;
        }
        self.points.push_back((at, written));
        if self.points.len() > POINTS {
            self.thin_out();
        }
    }

    fn thin_out(&mut self) {
        let Some((newest, _)) = self.points.back().copied() else {
            return;
        };
        let mut kept: VecDeque<(Instant, Lsn)> = VecDeque::with_capacity(POINTS);
        for point in self.points.iter().rev() {
            let needed = (newest - point.0) / COARSENESS;
            if kept.front().is_none_or(|next| next.0 - point.0 >= needed) {
                kept.push_front(*point);
            }
        }
        self.points = kept;
    }

    /// What a replica had not replayed that is at `replayed` at that moment, as far as the primary
    /// was seen by then: what it has written since is no delay. None: it was never seen.
    fn missing(&self, replayed: Lsn, at: Instant) -> Option<u64> {
        let seen = self.points.partition_point(|(seen, _)| *seen <= at);
        let written = match seen.checked_sub(1) {
            Some(last) => self.points.get(last)?.1,
            None if self.points.is_empty() => return None,
            None => replayed,
        };
        Some(written.0.saturating_sub(replayed.0))
    }

    /// For how long something had been missing to a replica that had replayed so much.
    fn missing_for(&self, replayed: Lsn, at: Instant) -> Duration {
        let first = self.points.partition_point(|(_, lsn)| *lsn <= replayed);
        let since = self.points.get(first).map(|(since, _)| *since);
        since.map_or(Duration::ZERO, |since| at.saturating_duration_since(since))
    }
}

/// How far a replica is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// What it has not replayed.
    pub bytes: u64,
    /// For how long that has been so, at least.
    pub time: Duration,
}

/// How far a replica may be behind and take reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LagLimits {
    /// `ban_replica_lag_bytes`
    pub bytes: Option<u64>,
    /// `ban_replica_lag`
    pub time: Option<Duration>,
}

impl LagLimits {
    fn any(&self) -> bool {
        self.bytes.is_some() || self.time.is_some()
    }

    fn exceeded_by(&self, lag: Lag) -> bool {
        self.bytes.is_some_and(|most| lag.bytes > most)
            || self.time.is_some_and(|most| lag.time > most)
    }
}

impl Cluster {
    /// How far a replica is behind its primary, as far as both were seen; None: never.
    pub fn lag(&self, primary: &Address, replica: &Address) -> Option<Lag> {
        let nodes = self.nodes();
        let (replayed, at) = nodes.get(replica)?.replayed()?;
        let past = nodes.get(primary)?.past();
        Some(Lag {
            bytes: past.missing(replayed, at)?,
            time: past.missing_for(replayed, at),
        })
    }

    /// Whether a replica is too far behind to be read from.
    pub fn lags(&self, primary: &Address, replica: &Address) -> bool {
        let limits = self.settings().lag_limits;
        let lag = limits.any().then(|| self.lag(primary, replica)).flatten();
        lag.is_some_and(|lag| limits.exceeded_by(lag))
    }

    /// Whether a node did not answer when it was asked last.
    pub fn is_silent(&self, address: &Address) -> bool {
        self.nodes()
            .get(address)
            .is_some_and(|node| node.is_silent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn life(name: &str) -> Incarnation {
        Incarnation(name.to_owned())
    }

    /// 100 bytes a second, seen once a second.
    fn past(start: Instant, seconds: u32) -> Past {
        let mut past = Past::default();
        for second in 0..=seconds {
            let written = Lsn(u64::from(second) * 100);
            past.note((&life("a"), Timeline(1)), start + SECOND * second, written);
        }
        past
    }

    #[test]
    fn what_is_missing_has_been_so_since_it_was_first_seen() {
        let start = Instant::now();
        let past = past(start, 10);
        let at = start + SECOND * 10;
        assert_eq!(past.missing_for(Lsn(1000), at), Duration::ZERO);
        assert_eq!(past.missing_for(Lsn(999), at), Duration::ZERO);
        assert_eq!(past.missing_for(Lsn(899), at), SECOND);
        assert_eq!(past.missing_for(Lsn(0), at), SECOND * 9);
        // It stood still and is asked later.
        assert_eq!(past.missing_for(Lsn(0), at + SECOND), SECOND * 10);
        // It was asked before the primary was.
        assert_eq!(
            past.missing_for(Lsn(899), start + SECOND * 8),
            Duration::ZERO
        );
    }

    #[test]
    fn where_nothing_is_written_nothing_is_missing() {
        let start = Instant::now();
        let mut past = past(start, 3);
        for second in 4..100 {
            past.note((&life("a"), Timeline(1)), start + SECOND * second, Lsn(300));
        }
        let at = start + SECOND * 100;
        assert_eq!(past.missing_for(Lsn(300), at), Duration::ZERO);
        assert_eq!(past.missing_for(Lsn(299), at), SECOND * 97);
    }

    #[test]
    fn a_long_past_is_remembered_coarsely() {
        let start = Instant::now();
        let past = past(start, 5000);
        assert!(past.points.len() <= POINTS);
        let at = start + SECOND * 5000;
        for behind in [5000_u32, 1000, 100, 10] {
            let replayed = Lsn(u64::from(5000 - behind) * 100);
            let missing = past.missing_for(replayed, at).as_secs();
            let true_one = u64::from(behind) - 1;
            let least = true_one - true_one / u64::from(COARSENESS / 2) - 1;
            assert!((least..=true_one).contains(&missing), "{behind}: {missing}");
        }
    }

    #[test]
    fn another_life_or_timeline_begins_anew() {
        let start = Instant::now();
        let mut past = past(start, 10);
        past.note((&life("a"), Timeline(2)), start + SECOND * 11, Lsn(500));
        assert_eq!(past.missing(Lsn(0), start + SECOND * 11), Some(500));
        past.note((&life("b"), Timeline(2)), start + SECOND * 12, Lsn(400));
        assert_eq!(past.missing(Lsn(0), start + SECOND * 12), Some(400));
    }

    #[test]
    fn bytes_are_those_of_the_moment_when_the_replica_was_asked() {
        // A clock need not have been running for long.
        let start = Instant::now() + SECOND;
        assert_eq!(Past::default().missing(Lsn(0), start), None);
        let past = past(start, 10);
        let then = start + SECOND * 5;
        assert_eq!(past.missing(Lsn(500), then), Some(0), "500 more came since");
        assert_eq!(past.missing(Lsn(480), then + SECOND / 2), Some(20));
        assert_eq!(past.missing(Lsn(600), then), Some(0));
        assert_eq!(past.missing(Lsn(900), start + SECOND * 60), Some(100));
        // It was asked before the primary ever was.
        assert_eq!(past.missing(Lsn(0), start - SECOND), Some(0));
    }

    #[test]
    fn an_empty_page_is_nothing_to_replay() {
        let start = Instant::now();
        let mut past = past(start, 1);
        let life = life("a");
        past.note((&life, Timeline(1)), start + SECOND * 2, Lsn(0x500_0028));
        let at = start + SECOND * 9;
        assert_eq!(past.missing(Lsn(0x500_0000), at), Some(0));
        assert_eq!(past.missing_for(Lsn(0x500_0000), at), Duration::ZERO);
        assert_eq!(past.missing(Lsn(0x4ff_ff00), at), Some(0x100));
    }

    #[test]
    fn either_limit_is_enough() {
        let lag = Lag {
            bytes: 10,
            time: SECOND,
        };
        let limits = |bytes, time| LagLimits { bytes, time };
        assert!(!limits(None, None).exceeded_by(lag));
        assert!(!limits(Some(10), Some(SECOND)).exceeded_by(lag));
        assert!(limits(Some(9), Some(SECOND)).exceeded_by(lag));
        assert!(limits(None, Some(SECOND / 2)).exceeded_by(lag));
    }
}
