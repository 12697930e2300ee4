//! Two-phase transactions that are not finished, as an operator sees them. Pure.

use pgdog_core::ids::ShardNumber;

use super::gid::GidName;
use super::recovery::Look;

/// A coordinator that lives has decided long before.
pub(super) const PATIENCE_S: u64 = 10;

/// How far an unfinished transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Its coordinator or recovery is at work.
    InProgress,
    /// Nobody can finish it now: the deciding shard cannot be asked, or a part cannot be reached.
    InDoubt,
    /// It is committed on some shards and was rolled back on others: a person must look.
    Broken,
}

impl Doubt {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::InProgress, Self::InDoubt, Self::Broken];

    /// As it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in progress",
            Self::InDoubt => "in doubt",
            Self::Broken => "broken",
        }
    }
}

/// One transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Its name.
    pub gid: String,
    /// How far it is.
    pub doubt: Doubt,
    /// The shard that decides.
    pub decider: ShardNumber,
    /// The shim that began it.
    pub coordinator: String,
    /// Shards that hold it prepared, with its locks.
    pub prepared_on: Vec<ShardNumber>,
    /// Shards that have lost it.
    pub lost_on: Vec<ShardNumber>,
    /// For how long.
    pub age_s: u64,
}

/// What one look at all shards has found, the eldest first.
pub(super) fn unfinished(look: &Look) -> Vec<Unfinished> {
    let prepared = look.unfinished();
    let settled = |name: &&GidName| look.settled_s.contains_key(*name);
    let recorded = look.late.values().flatten().filter(|name| !settled(name));
    let shown = recorded.filter(|name| {
        let away = look.is_decided(name) && look.silent(name);
        away || !look.lost_on(name).is_empty()
    });
    let names: std::collections::BTreeSet<&GidName> = prepared.keys().chain(shown).collect();
    let mut all: Vec<_> = names.into_iter().map(|name| one(look, name)).collect();
    all.sort_by(|one, other| other.age_s.cmp(&one.age_s).then(one.gid.cmp(&other.gid)));
    all
}

fn one(look: &Look, name: &GidName) -> Unfinished {
    let holders = look.prepared.iter();
    let prepared_on = holders.filter(|(_, names)| names.contains(name));
    let prepared_on: Vec<_> = prepared_on.map(|(shard, _)| *shard).collect();
    let lost_on = look.lost_on(name);
    let prepared_s = look.prepared_s.get(name).copied();
    // A row is as old as its transaction, which may have taken long before it was prepared.
    let recorded_s = look.recorded_s.get(name).copied();
    let doubt = match () {
        () if !lost_on.is_empty() => Doubt::Broken,
        () if look.silent(name) => Doubt::InDoubt,
        () if prepared_s.is_some_and(|age| age > PATIENCE_S) => Doubt::InDoubt,
        () => Doubt::InProgress,
    };
    let age_s = prepared_s.or(recorded_s).unwrap_or_default();
    Unfinished {
        gid: name.to_string(),
        doubt,
        decider: name.decider,
        coordinator: name.instance.clone(),
        prepared_on,
        lost_on,
        age_s,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const GID: &str = "pgdog_app.1_00ff00ff00ff00ff_0_1_1";

    fn sets(entries: &[(u16, bool)]) -> BTreeMap<ShardNumber, BTreeSet<GidName>> {
        let entries = entries.iter().map(|(shard, holds)| {
            let name = holds.then(|| GidName::parse(GID).expect("well formed"));
            (ShardNumber(*shard), name.into_iter().collect())
        });
        entries.collect()
    }

    fn only(look: &Look) -> Unfinished {
        let mut all = unfinished(look);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn a_silent_decider_leaves_the_others_in_doubt() {
        let look = Look {
            prepared: sets(&[(1, true)]),
            ..Look::default()
        };
        let found = only(&look);
        assert_eq!(found.doubt, Doubt::InDoubt);
        assert_eq!(found.prepared_on, [ShardNumber(1)]);
        assert_eq!(found.gid, GID);
    }

    #[test]
    fn what_is_young_is_in_progress() {
        let mut look = Look {
            prepared: sets(&[(0, true), (1, true)]),
            late: sets(&[(0, false), (1, false)]),
            ..Look::default()
        };
        assert_eq!(only(&look).doubt, Doubt::InProgress);
        let name = GidName::parse(GID).expect("well formed");
        look.recorded_s.insert(name.clone(), PATIENCE_S + 1);
        assert_eq!(only(&look).doubt, Doubt::InProgress, "it began long before");
        look.prepared_s.insert(name, PATIENCE_S + 1);
        assert_eq!(only(&look).doubt, Doubt::InDoubt);
    }

    #[test]
    fn a_decided_transaction_is_in_doubt_while_a_part_is_away() {
        let mut look = Look {
            early: sets(&[(0, true)]),
            prepared: sets(&[(0, false)]),
            late: sets(&[(0, true)]),
            ..Look::default()
        };
        let found = only(&look);
        assert_eq!((found.doubt, found.lost_on), (Doubt::InDoubt, vec![]));
        let name = GidName::parse(GID).expect("well formed");
        look.settled_s.insert(name, 0);
        assert_eq!(unfinished(&look), [], "all was done before");
    }

    #[test]
    fn a_lost_part_is_shown_although_nothing_is_prepared() {
        let look = Look {
            early: sets(&[(0, true), (1, false)]),
            prepared: sets(&[(0, false), (1, false)]),
            late: sets(&[(0, true), (1, false)]),
            ..Look::default()
        };
        let found = only(&look);
        assert_eq!(
            (found.doubt, found.lost_on),
            (Doubt::Broken, vec![ShardNumber(1)])
        );
        assert_eq!(unfinished(&Look::default()), []);
    }
}
