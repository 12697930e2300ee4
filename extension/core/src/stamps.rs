//! From the stamp of a commit to a position in WAL that covers it.
//!
//! Commits do not enter WAL in the order of their stamps, so no single commit says anything about
//! another one. A *sample* does: it is taken by reading the clock, then waiting until every commit
//! that may have read the clock before has written its record, then reading the end of WAL. All
//! commits stamped up to that moment end at or before that position. The ring keeps samples; the
//! earliest that was taken after a stamp gives the position to wait for.
//!
//! That holds as long as the clock is not set back. The distance between the wall clock and one
//! that only moves forward tells: when it changes, the ring starts anew. What was written before
//! the new first sample is covered by it, whatever it is stamped. A clock that is set back and set
//! right again between two looks at it is not noticed.

use crate::lsn::Lsn;

/// Two clocks read together, in microseconds since any fixed moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The clock that commits are stamped by.
    pub wall_us: i64,
    /// A clock that nobody can set.
    pub monotonic_us: i64,
}

impl Reading {
    fn distance(self) -> i64 {
        self.wall_us.wrapping_sub(self.monotonic_us)
    }
}

/// The distance between the clocks may seem to change by this much: two clocks cannot be read in
/// one moment. A smaller step back is not seen.
pub const TOLERANCE_US: i64 = 500;

/// So much earlier than its clock said does a sample count: one tolerance that the clock may have
/// been ahead then, and one that it may be behind since.
const SLACK_US: i64 = 2 * TOLERANCE_US;

/// All commits stamped up to `stamp_us` end at or before `position`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Stamps up to here.
    pub stamp_us: i64,
    /// End of WAL.
    pub position: Lsn,
}

/// What the ring knows of a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covered {
    /// Every commit with a stamp up to the asked one ends at or before this.
    By(Lsn),
    /// Nothing yet; a sample taken when the wall clock shows this will tell.
    From {
        /// Not before.
        wall_us: i64,
    },
    /// The stamp lies in the future: commits that have it may still come.
    Never,
}

/// Samples in order of stamp and position, the latest ones close together, older ones farther
/// apart.
#[derive(Debug, Clone, Copy)]
pub struct Ring<const N: usize> {
    samples: [Sample; N],
    count: usize,
    /// Distance of the clocks since the first sample.
    distance: Option<i64>,
}

impl<const N: usize> Default for Ring<N> {
    fn default() -> Self {
        Self {
            samples: [Sample::default(); N],
            count: 0,
            distance: None,
        }
    }
}

impl<const N: usize> Ring<N> {
    /// Takes a sample: the clocks before the wait, those after it, and the end of WAL in between.
    pub fn note(&mut self, began: Reading, ended: Reading, position: Lsn) {
        if self.distance.is_none() || self.is_set(ended) {
            self.count = 0;
            self.distance = Some(ended.distance());
        }
        // The clock was set while the sample was taken: nothing is known about its stamp.
        if self.is_set(began) {
            return;
        }
        let stamp_us = began.wall_us.saturating_sub(SLACK_US);
        if self.last().is_some_and(|last| last.stamp_us >= stamp_us) {
            return;
        }
        while self.last().is_some_and(|last| last.position >= position) {
            self.count -= 1; // the new one says more
        }
        if self.count == N {
            self.thin_out();
        }
        self.samples[self.count] = Sample { stamp_us, position };
        self.count += 1;
    }

    /// What is known of a stamp, with the clocks as they are now.
    #[must_use]
    pub fn covering(&self, stamp_us: i64, now: Reading) -> Covered {
        let known = &self.samples[..self.count];
        let at = known.partition_point(|sample| sample.stamp_us < stamp_us);
        match known.get(at) {
            Some(sample) if !self.is_set(now) => Covered::By(sample.position),
            _ if stamp_us > now.wall_us => Covered::Never,
            _ => Covered::From {
                wall_us: stamp_us.saturating_add(SLACK_US),
            },
        }
    }

    /// The latest sample.
    #[must_use]
    pub fn last(&self) -> Option<Sample> {
        self.samples[..self.count].last().copied()
    }

    /// Whether the wall clock was set since the ring began.
    fn is_set(&self, reading: Reading) -> bool {
        self.distance
            .is_some_and(|distance| distance.abs_diff(reading.distance()) > TOLERANCE_US as u64)
    }

    /// Drops every second sample of the older half. Without it a stamp is covered by the next one,
    /// which is later and so just as true.
    fn thin_out(&mut self) {
        let half = N / 2;
        let mut kept = 0;
        for at in 0..N {
            if at >= half || at % 2 == 1 {
                self.samples[kept] = self.samples[at];
                kept += 1;
            }
        }
        // A ring of one has no half: it keeps the latest.
        self.count = kept.min(N - 1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(wall_us: i64) -> Reading {
        Reading {
            wall_us,
            monotonic_us: wall_us - 500_000,
        }
    }

    fn ring(samples: &[(i64, u64)]) -> Ring<8> {
        let mut ring = Ring::default();
        for &(wall_us, position) in samples {
            ring.note(at(wall_us), at(wall_us + 10), Lsn(position));
        }
        ring
    }

    const MS: i64 = 1_000;

    #[test]
    fn the_earliest_sample_after_the_stamp_covers_it() {
        let ring = ring(&[(10 * MS, 100), (20 * MS, 200), (30 * MS, 300)]);
        let now = at(31 * MS);
        let covering = |stamp| ring.covering(stamp, now);
        assert_eq!(covering(i64::MIN), Covered::By(Lsn(100)));
        assert_eq!(covering(9 * MS), Covered::By(Lsn(100)));
        assert_eq!(covering(9 * MS + 1), Covered::By(Lsn(200)));
        assert_eq!(covering(29 * MS), Covered::By(Lsn(300)));
        let later = Covered::From {
            wall_us: 30 * MS + 1,
        };
        assert_eq!(covering(29 * MS + 1), later);
        assert_eq!(covering(31 * MS + 1), Covered::Never);
        assert_eq!(covering(i64::MAX), Covered::Never);
    }

    #[test]
    fn an_idle_server_needs_one_sample_only() {
        let ring = ring(&[(10 * MS, 100), (20 * MS, 100), (30 * MS, 100)]);
        assert_eq!(ring.count, 1);
        assert_eq!(ring.covering(29 * MS, at(30 * MS)), Covered::By(Lsn(100)));
    }

    #[test]
    fn a_clock_that_was_set_voids_what_was_known() {
        let mut ring = ring(&[(1_000 * MS, 100), (1_010 * MS, 200)]);
        let back = |wall_us| Reading {
            wall_us,
            monotonic_us: wall_us + 400 * MS,
        };
        // Seen by who asks, even before the next sample sees it.
        let stamp = 999 * MS;
        assert!(matches!(
            ring.covering(stamp, at(1_011 * MS)),
            Covered::By(_)
        ));
        assert_eq!(ring.covering(stamp, back(100 * MS)), Covered::Never);
        ring.note(at(1_020 * MS), back(101 * MS), Lsn(300));
        assert_eq!(ring.count, 0);
        ring.note(back(102 * MS), back(102 * MS), Lsn(300));
        assert_eq!(
            ring.covering(50 * MS, back(103 * MS)),
            Covered::By(Lsn(300))
        );
        assert_eq!(ring.covering(stamp, back(103 * MS)), Covered::Never);
    }

    #[test]
    fn a_full_ring_keeps_its_newest_samples_and_thins_the_others() {
        let mut ring = Ring::<8>::default();
        for nth in 1..=100 {
            ring.note(at(nth * 10 * MS), at(nth * 10 * MS), Lsn(nth as u64));
        }
        assert_eq!(ring.last().map(|last| last.position), Some(Lsn(100)));
        let known: Vec<_> = ring.samples[..ring.count].to_vec();
        assert!(
            known
                .windows(2)
                .all(|two| two[0].stamp_us < two[1].stamp_us && two[0].position < two[1].position)
        );
        assert_eq!(known[ring.count - 2].position, Lsn(99));
    }

    /// A server whose commits read the clock, dawdle, and write their record.
    #[derive(Debug, Default)]
    struct World {
        wall_us: i64,
        monotonic_us: i64,
        end: u64,
        /// Stamped, not written: (stamp, number).
        pending: Vec<(i64, usize)>,
        began: usize,
        /// Begun samples: clocks, and how many commits had begun.
        sampling: Vec<(Reading, usize)>,
        ring: Ring<5>,
        /// What was said: (stamp, position, how many commits had begun).
        said: Vec<(i64, Lsn, usize)>,
        /// Written: (stamp, position, number).
        written: Vec<(i64, u64, usize)>,
    }

    #[derive(Debug, Clone)]
    enum Happening {
        Pass { us: i64 },
        Set { by_us: i64 },
        Begin,
        Write { nth: usize },
        Look,
        Note { nth: usize },
        Ask { back_us: i64 },
        AskOf { nth: usize },
    }

    fn happening() -> impl Strategy<Value = Happening> {
        use Happening as H;
        prop_oneof![
            6 => (1i64..3_000).prop_map(|us| H::Pass { us }),
            1 => prop_oneof![-50_000i64..50_000, -900i64..900]
                .prop_map(|by_us| H::Set { by_us }),
            4 => Just(H::Begin),
            4 => (0usize..9).prop_map(|nth| H::Write { nth }),
            3 => Just(H::Look),
            3 => (0usize..4).prop_map(|nth| H::Note { nth }),
            2 => (-9_000i64..20_000).prop_map(|back_us| H::Ask { back_us }),
            4 => (0usize..9).prop_map(|nth| H::AskOf { nth }),
        ]
    }

    impl World {
        fn now(&self) -> Reading {
            Reading {
                wall_us: self.wall_us,
                monotonic_us: self.monotonic_us,
            }
        }

        fn happen(&mut self, happening: &Happening) {
            match *happening {
                Happening::Pass { us } => {
                    self.wall_us += us;
                    self.monotonic_us += us;
                }
                Happening::Set { by_us } if !self.is_set_unseen() => self.wall_us += by_us,
                Happening::Begin => {
                    self.pending.push((self.wall_us, self.began));
                    self.began += 1;
                }
                Happening::Write { nth } if nth < self.pending.len() => {
                    let (stamp, number) = self.pending.remove(nth);
                    self.end += 10;
                    self.written.push((stamp, self.end, number));
                }
                Happening::Look => self.sampling.push((self.now(), self.began)),
                Happening::Note { nth } if nth < self.sampling.len() => {
                    // It has to wait for those that had begun before.
                    let before = self.sampling[nth].1;
                    if self.pending.iter().all(|&(_, number)| number >= before) {
                        let (began, _) = self.sampling.remove(nth);
                        self.ring.note(began, self.now(), Lsn(self.end));
                    }
                }
                Happening::Ask { back_us } => self.ask(self.wall_us - back_us),
                Happening::AskOf { nth } => {
                    if let Some(&(stamp, ..)) = self.written.iter().rev().nth(nth) {
                        self.ask(stamp);
                    }
                }
                Happening::Set { .. } | Happening::Write { .. } | Happening::Note { .. } => {}
            }
        }

        /// Whether the clock was set since a look that still counts. If it were set once more, the
        /// two could cancel out.
        fn is_set_unseen(&self) -> bool {
            let looks = self.sampling.iter().map(|(look, _)| look.distance());
            let now = self.now().distance();
            let unseen = |then: i64| then.abs_diff(now) > TOLERANCE_US as u64;
            looks.chain(self.ring.distance).any(unseen)
        }

        fn ask(&mut self, stamp: i64) {
            if let Covered::By(position) = self.ring.covering(stamp, self.now()) {
                self.said.push((stamp, position, self.began));
            }
        }

        /// A commit that nobody had begun when the answer was given is not its business, unless the
        /// clock stood still since: stamps are then later anyway.
        fn broken(&self) -> Option<String> {
            let missed = |&(asked, covered, began): &(i64, Lsn, usize)| {
                self.written.iter().find(|&&(stamp, end, number)| {
                    number < began && stamp <= asked && end > covered.0
                })
            };
            let said = self.said.iter();
            said.filter_map(|one| missed(one).map(|commit| format!("{one:?} misses {commit:?}")))
                .next()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: ProptestConfig::default().cases.max(800),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_answer_misses_a_commit(happenings in prop::collection::vec(happening(), 1..150)) {
            let mut world = World::default();
            for happening in &happenings {
                world.happen(happening);
                if let Some(broken) = world.broken() {
                    prop_assert!(false, "{broken}\n{world:#?}");
                }
            }
        }
    }
}
