//! Which way an unfinished two-phase transaction goes. Pure.
//!
//! The coordinator prepares on the deciding (lowest) shard first, then on the others, and commits
//! on the decider when all are prepared. So whoever lists the *other* shards first and looks at
//! the decider afterwards knows:
//!
//! | seen on the decider | what is true | so |
//! |---|---|---|
//! | its decision row | it was committed there | commit the rest |
//! | prepared, coordinator gone | undecided | roll back there; only then the rest |
//! | prepared, coordinator lives | it may decide at any moment | leave it, for a while |
//! | neither | it was prepared there first, so it was rolled back | roll back the rest |
//!
//! A coordinator that wakes up late finds no such prepared transaction at its decision (42704).
//!
//! Every other participant leaves a row of the same name, too, which is visible once it is
//! committed there. A decided transaction that is neither prepared nor has its row on one of the
//! shards that its name tells was rolled back there by somebody else: that cannot be mended here,
//! see `doubt`. Nor can it when a part is committed and its decider knows nothing, which a failover
//! may have lost.
//!
//! For that to be seen rows are purged in an order: once all of them are there, a mark is set
//! beside the decider's; after a while the rows of the others go; when they have gone, the
//! decider's and the mark.

use std::collections::{BTreeMap, BTreeSet};

use pgdog_core::ids::ShardNumber;

use super::gid::GidName;

/// For how long rows stay once all is done: who had asked for the decision and was not answered can
/// look for them.
pub(super) const KEPT_S: u64 = 20;
/// Shims of before purged the decider's row first, and those of the others in their next round.
const PURGED_BY_THEN_S: u64 = 30;

/// What the decider says about one transaction, looked at after all other shards were listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// The decision row is visible.
    Recorded,
    /// Still prepared.
    Prepared {
        /// The coordinator's lock is held, or the name is in use in this very process.
        coordinator_lives: bool,
    },
    /// Neither.
    Neither,
    /// It could not be asked.
    Unknown,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// COMMIT PREPARED wherever it is prepared.
    CommitRest,
    /// ROLLBACK PREPARED on the decider, and only if that succeeded on the others.
    RollbackDeciderFirst,
    /// ROLLBACK PREPARED on the other shards.
    RollbackRest,
    /// Nothing now.
    Leave,
}

/// The table above.
pub fn verdict(decider: Decider) -> Verdict {
    match decider {
        Decider::Recorded => Verdict::CommitRest,
        Decider::Prepared {
            coordinator_lives: false,
        } => Verdict::RollbackDeciderFirst,
        Decider::Prepared {
            coordinator_lives: true,
        }
        | Decider::Unknown => Verdict::Leave,
        Decider::Neither => Verdict::RollbackRest,
    }
}

/// One look at all shards, taken in this order: decision rows (`early`), prepared transactions from
/// the highest shard down to the lowest, decision rows again, from the highest shard down as well.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Decision rows per shard before anything was listed; only of shards that could be asked.
    pub early: BTreeMap<ShardNumber, BTreeSet<GidName>>,
    /// Prepared per shard; only of shards that could be asked.
    pub prepared: BTreeMap<ShardNumber, BTreeSet<GidName>>,
    /// Decision rows per shard afterwards.
    pub late: BTreeMap<ShardNumber, BTreeSet<GidName>>,
    /// For how many seconds each has been marked as settled.
    pub settled_s: BTreeMap<GidName, u64>,
    /// For how many seconds the eldest part of each has been prepared.
    pub prepared_s: BTreeMap<GidName, u64>,
    /// How many seconds ago the transaction began of which there is a row.
    pub recorded_s: BTreeMap<GidName, u64>,
}

/// What is to be done about the rows of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Get a mark.
    pub mark: Vec<GidName>,
    /// Go, with their marks.
    pub delete: Vec<GidName>,
}

impl Look {
    /// Every transaction seen prepared with the shards (but the decider) that hold it.
    pub fn unfinished(&self) -> BTreeMap<GidName, BTreeSet<ShardNumber>> {
        let mut found: BTreeMap<GidName, BTreeSet<ShardNumber>> = BTreeMap::new();
        for (shard, names) in &self.prepared {
            for name in names {
                let others = found.entry(name.clone()).or_default();
                if *shard != name.decider {
                    others.insert(*shard);
                }
            }
        }
        found
    }

    /// What the decider said about it, or did before a failover: nobody is committed before it, so
    /// the row of any of them speaks for it.
    pub fn decider(&self, name: &GidName, coordinator_lives: bool) -> Decider {
        if self.late.values().any(|rows| rows.contains(name)) {
            return Decider::Recorded;
        }
        // The rows first: a transaction that was committed between the two looks is in both.
        let (Some(prepared), Some(_)) = (
            self.prepared.get(&name.decider),
            self.late.get(&name.decider),
        ) else {
            return Decider::Unknown;
        };
        if prepared.contains(name) {
            Decider::Prepared { coordinator_lives }
        } else {
            Decider::Neither
        }
    }

    /// What is to be done about the rows, as above. Nothing if a shard was not asked.
    pub fn upkeep(&self, shards: u16) -> BTreeMap<ShardNumber, Upkeep> {
        let asked = |shard| self.prepared.contains_key(&shard) && self.late.contains_key(&shard);
        if !(0..shards).map(ShardNumber).all(asked) {
            return BTreeMap::new();
        }
        let mut all: BTreeMap<ShardNumber, Upkeep> = BTreeMap::new();
        let held: BTreeSet<&GidName> = self.prepared.values().flatten().collect();
        let is_old = |name| self.settled_s.get(name).is_some_and(|age| *age >= KEPT_S);
        let rows = self.early.iter();
        let rows = rows.flat_map(|(shard, rows)| rows.iter().map(move |name| (*shard, name)));
        for (shard, name) in rows.filter(|(_, name)| !held.contains(name)) {
            if shard != name.decider && is_old(name) {
                all.entry(shard).or_default().delete.push(name.clone());
            }
            let is_marked = self.settled_s.contains_key(name);
            if shard == name.decider && !is_marked && self.is_settled(name, shards) {
                all.entry(shard).or_default().mark.push(name.clone());
            }
        }
        for name in self.settled_s.keys().filter(|name| is_old(name)) {
            if !held.contains(name) && !self.has_row_of_another(name) {
                let upkeep = all.entry(name.decider).or_default();
                upkeep.delete.push(name.clone());
            }
        }
        all
    }

    /// The decider's row was there before the shards were listed, so every participant had been
    /// prepared; none holds it any more, and all have their rows.
    fn is_settled(&self, name: &GidName, shards: u16) -> bool {
        let mut others = name.others.iter().filter(|other| other.0 < shards);
        others.all(|other| self.late.get(other).is_some_and(|rows| rows.contains(name)))
    }

    fn has_row_of_another(&self, name: &GidName) -> bool {
        let mut others = self
            .late
            .iter()
            .filter(|(shard, _)| **shard != name.decider);
        others.any(|(_, rows)| rows.contains(name))
    }

    /// Shards on which a transaction that was decided is lost.
    pub fn lost_on(&self, name: &GidName) -> Vec<ShardNumber> {
        if self.settled_s.contains_key(name) {
            return Vec::new();
        }
        let holds = |looked: &BTreeMap<ShardNumber, BTreeSet<GidName>>, shard: &ShardNumber| {
            Some(looked.get(shard)?.contains(name))
        };
        let lost = |shard: &&ShardNumber| {
            holds(&self.prepared, shard) == Some(false) && holds(&self.late, shard) == Some(false)
        };
        if self.is_decided(name) {
            return name.others.iter().filter(lost).copied().collect();
        }
        // Before that it may just have been decided.
        let forgotten = holds(&self.early, &name.decider) == Some(false)
            && lost(&&name.decider)
            && self
                .recorded_s
                .get(name)
                .is_some_and(|age| *age >= PURGED_BY_THEN_S);
        match forgotten && self.has_row_of_another(name) {
            true => vec![name.decider],
            false => Vec::new(),
        }
    }

    /// The decider's row was there all the time.
    pub fn is_decided(&self, name: &GidName) -> bool {
        let has = |looked: &BTreeMap<ShardNumber, BTreeSet<GidName>>| {
            let rows = looked.get(&name.decider);
            rows.is_some_and(|rows| rows.contains(name))
        };
        has(&self.early) && has(&self.late)
    }

    /// Shards that take part and that could not be asked everything.
    pub fn silent(&self, name: &GidName) -> bool {
        let mut shards = std::iter::once(&name.decider).chain(&name.others);
        shards.any(|shard| !self.prepared.contains_key(shard) || !self.late.contains_key(shard))
    }
}

#[cfg(test)]
mod tests {
    use pgdog_core::ids::Epoch;

    use super::*;

    fn name(number: u64) -> GidName {
        GidName {
            database: "app".into(),
            instance: "00ff00ff00ff00ff".into(),
            decider: ShardNumber(0),
            others: Vec::new(),
            behind_decider: false,
            epoch: Epoch(1),
            number,
        }
    }

    fn sets(entries: &[(u16, &[u64])]) -> BTreeMap<ShardNumber, BTreeSet<GidName>> {
        entries
            .iter()
            .map(|(shard, numbers)| {
                (
                    ShardNumber(*shard),
                    numbers.iter().map(|number| name(*number)).collect(),
                )
            })
            .collect()
    }

    fn outcome(look: &Look, number: u64, lives: bool) -> Verdict {
        verdict(look.decider(&name(number), lives))
    }

    #[test]
    fn a_part_that_is_committed_decides_for_a_decider_that_has_forgotten() {
        // Its standby took over before it had replayed the decision.
        let mut look = Look {
            prepared: sets(&[(0, &[1]), (1, &[])]),
            late: sets(&[(0, &[]), (1, &[1])]),
            ..Look::default()
        };
        assert_eq!(outcome(&look, 1, false), Verdict::CommitRest);
        look.prepared = sets(&[(1, &[]), (2, &[1])]);
        look.late = sets(&[(1, &[1]), (2, &[])]);
        assert_eq!(outcome(&look, 1, false), Verdict::CommitRest, "it is away");
        look.late = sets(&[(1, &[]), (2, &[])]);
        assert_eq!(outcome(&look, 1, false), Verdict::Leave);
    }

    #[test]
    fn a_recorded_decision_is_carried_out_even_if_the_coordinator_lives() {
        let look = Look {
            prepared: sets(&[(0, &[]), (1, &[1])]),
            late: sets(&[(0, &[1])]),
            ..Look::default()
        };
        assert_eq!(outcome(&look, 1, true), Verdict::CommitRest);
        assert_eq!(
            look.unfinished(),
            [(name(1), [ShardNumber(1)].into())].into()
        );
    }

    #[test]
    fn committed_between_the_two_looks_at_the_decider_is_committed() {
        let look = Look {
            prepared: sets(&[(0, &[1]), (1, &[1])]),
            late: sets(&[(0, &[1])]),
            ..Look::default()
        };
        assert_eq!(outcome(&look, 1, false), Verdict::CommitRest);
    }

    #[test]
    fn undecided_is_rolled_back_only_when_its_coordinator_is_gone() {
        let look = Look {
            prepared: sets(&[(0, &[1]), (1, &[1])]),
            late: sets(&[(0, &[])]),
            ..Look::default()
        };
        assert_eq!(outcome(&look, 1, true), Verdict::Leave);
        assert_eq!(outcome(&look, 1, false), Verdict::RollbackDeciderFirst);
    }

    #[test]
    fn prepared_on_the_decider_alone_is_found() {
        let look = Look {
            prepared: sets(&[(0, &[1]), (1, &[])]),
            late: sets(&[(0, &[])]),
            ..Look::default()
        };
        assert_eq!(look.unfinished(), [(name(1), BTreeSet::new())].into());
    }

    #[test]
    fn gone_from_the_decider_without_a_row_was_rolled_back() {
        let look = Look {
            prepared: sets(&[(0, &[]), (1, &[1])]),
            late: sets(&[(0, &[])]),
            ..Look::default()
        };
        assert_eq!(outcome(&look, 1, true), Verdict::RollbackRest);
    }

    #[test]
    fn nothing_is_decided_without_the_decider() {
        let look = Look {
            prepared: sets(&[(1, &[1])]),
            ..Look::default()
        };
        assert_eq!(outcome(&look, 1, false), Verdict::Leave);
        let look = Look {
            prepared: sets(&[(0, &[]), (1, &[1])]),
            ..Look::default()
        };
        assert_eq!(
            outcome(&look, 1, false),
            Verdict::Leave,
            "its rows could not be read"
        );
    }

    fn marked(name: GidName) -> BTreeMap<ShardNumber, Upkeep> {
        let mark = vec![name];
        let upkeep = Upkeep {
            mark,
            ..Upkeep::default()
        };
        [(ShardNumber(0), upkeep)].into()
    }

    fn deleted(shard: u16, name: &GidName) -> BTreeMap<ShardNumber, Upkeep> {
        let delete = vec![name.clone()];
        let upkeep = Upkeep {
            delete,
            ..Upkeep::default()
        };
        [(ShardNumber(shard), upkeep)].into()
    }

    #[test]
    fn rows_are_purged_once_no_shard_holds_the_transaction() {
        let mut look = Look {
            early: sets(&[(0, &[1, 2])]),
            prepared: sets(&[(0, &[]), (1, &[2])]),
            late: sets(&[(0, &[1, 2, 3]), (1, &[])]),
            ..Look::default()
        };
        assert_eq!(look.upkeep(2), marked(name(1)));
        look.settled_s.insert(name(1), KEPT_S - 1);
        assert_eq!(look.upkeep(2), BTreeMap::new());
        look.settled_s.insert(name(1), KEPT_S);
        assert_eq!(look.upkeep(2), deleted(0, &name(1)));
        look.prepared.remove(&ShardNumber(1));
        assert_eq!(
            look.upkeep(2),
            BTreeMap::new(),
            "the silent shard may hold it"
        );
    }

    /// A transaction of shards 0 and 1: its rows before and after, and where it is prepared.
    fn of_two(early: [bool; 2], prepared: [bool; 2], late: [bool; 2]) -> (Look, GidName) {
        let name = GidName {
            others: vec![ShardNumber(1)],
            ..name(1)
        };
        let sets = |held: [bool; 2]| {
            let sets = held.iter().zip(0..).map(|(held, shard)| {
                let names = held.then(|| name.clone());
                (ShardNumber(shard), names.into_iter().collect())
            });
            sets.collect()
        };
        let look = Look {
            early: sets(early),
            prepared: sets(prepared),
            late: sets(late),
            ..Look::default()
        };
        (look, name)
    }

    #[test]
    fn rolled_back_behind_the_decision_is_lost_and_never_purged() {
        let (look, name) = of_two([true, false], [false, false], [true, false]);
        assert_eq!(look.lost_on(&name), [ShardNumber(1)]);
        assert_eq!(look.upkeep(2), BTreeMap::new());
    }

    #[test]
    fn what_is_being_committed_is_not_lost() {
        for (early, prepared, late) in [
            ([true, false], [false, true], [true, false]),
            ([true, false], [false, true], [true, true]),
            ([true, false], [false, false], [true, true]),
            // Another shim has purged it meanwhile.
            ([true, true], [false, false], [false, false]),
            ([true, true], [false, false], [false, true]),
            // Rolled back everywhere.
            ([false, false], [false, true], [false, false]),
        ] {
            let (look, name) = of_two(early, prepared, late);
            assert_eq!(look.lost_on(&name), [], "{early:?} {prepared:?} {late:?}");
        }
        let (mut look, name) = of_two([true, false], [false, false], [true, false]);
        look.late.remove(&ShardNumber(1));
        assert_eq!(look.lost_on(&name), [], "not looked at");
    }

    #[test]
    fn the_decision_is_purged_behind_the_rows_of_the_others() {
        let (mut look, name) = of_two([true, true], [false, false], [true, true]);
        assert_eq!(look.upkeep(2), marked(name.clone()));
        look.settled_s.insert(name.clone(), KEPT_S);
        assert_eq!(look.upkeep(2), deleted(1, &name));
        for late in [[true, false], [false, false]] {
            let (mut look, name) = of_two([true, false], [false, false], late);
            look.settled_s.insert(name.clone(), KEPT_S);
            assert_eq!(look.upkeep(2), deleted(0, &name));
            assert_eq!(look.lost_on(&name), []);
        }
    }

    #[test]
    fn a_decider_that_knows_nothing_is_lost_and_nothing_is_purged() {
        let (mut look, name) = of_two([false, true], [false, false], [false, true]);
        assert_eq!(look.upkeep(2), BTreeMap::new());
        assert_eq!(look.lost_on(&name), [], "it may be new");
        look.recorded_s.insert(name.clone(), PURGED_BY_THEN_S);
        assert_eq!(look.lost_on(&name), [ShardNumber(0)]);
        let (mut look, name) = of_two([false, true], [true, false], [false, true]);
        look.recorded_s.insert(name.clone(), PURGED_BY_THEN_S);
        assert_eq!(look.lost_on(&name), [], "it is about to be committed");
    }
}
