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
    let decided = look.late.iter().flat_map(|(shard, names)| {
        let decides = move |name: &&GidName| name.decider == *shard;
        names.iter().filter(decides)
    });
    let lost = decided.filter(|name| !look.lost_on(name).is_empty());
    let names: std::collections::BTreeSet<&GidName> = prepared.keys().chain(lost).collect();
    let mut all: Vec<_> = names.into_iter().map(|name| one(look, name)).collect();
    all.sort_by(|one, other| other.age_s.cmp(&one.age_s).then(one.gid.cmp(&other.gid)));
    all
}

fn one(look: &Look, name: &GidName) -> Unfinished {
    let holders = look.prepared.iter();
    let prepared_on = holders.filter(|(_, names)| names.contains(name));
    let prepared_on: Vec<_> = prepared_on.map(|(shard, _)| *shard).collect();
    let lost_on = look.lost_on(name);
    let age_s = look.ages_s.get(name).copied().unwrap_or_default();
    let is_silent = |shard: &ShardNumber| !look.prepared.contains_key(shard);
    let doubt = match () {
        () if !lost_on.is_empty() => Doubt::Broken,
        () if is_silent(&name.decider) || name.others.iter().any(is_silent) => Doubt::InDoubt,
        () if age_s > PATIENCE_S => Doubt::InDoubt,
        () => Doubt::InProgress,
    };
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

    const GID: &str = "pgdog_app_00ff00ff00ff00ff_0.1_1_1";

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
            ..Look::default()
        };
        assert_eq!(only(&look).doubt, Doubt::InProgress);
        let name = GidName::parse(GID).expect("well formed");
        look.ages_s.insert(name, PATIENCE_S + 1);
        assert_eq!(only(&look).doubt, Doubt::InDoubt);
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
