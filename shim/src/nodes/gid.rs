//! Names of two-phase transactions: who coordinates, and which shard decides. Pure but for the
//! set of names in use.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use pgdog_core::ids::{Epoch, ShardNumber};

/// The others are left out of a name that would get longer: names have 200 bytes at most.
const OTHERS_BYTES: usize = 60;

/// The parts of `pgdog_<database>_<instance>_<decider>[.<other>…]_<epoch>_<n>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GidName {
    /// Logical database, with `-` for everything but ASCII letters and digits.
    pub database: String,
    /// The coordinator: 16 hex digits.
    pub instance: String,
    /// The lowest participating shard: its commit is the decision.
    pub decider: ShardNumber,
    /// The other shards that are prepared; none when they are not told.
    pub others: Vec<ShardNumber>,
    /// Epoch of the decider when it began.
    pub epoch: Epoch,
    /// Counts the coordinator's transactions.
    pub number: u64,
}

impl GidName {
    /// Takes a name apart; None for names that are not of this form (flips have their own).
    pub fn parse(gid: &str) -> Option<Self> {
        let mut parts = gid.strip_prefix("pgdog_")?.rsplitn(5, '_');
        let number = parts.next()?.parse().ok()?;
        let epoch = parts.next()?.parse().ok()?;
        let mut shards = parts.next()?.split('.').map(str::parse);
        let decider = shards.next()?.ok()?;
        let others = shards.collect::<Result<_, _>>().ok()?;
        let instance = parts.next()?;
        let database = parts.next()?;
        let hex = instance.len() == 16 && instance.bytes().all(|b| b.is_ascii_hexdigit());
        (hex && !database.is_empty()).then(|| Self {
            database: database.to_owned(),
            instance: instance.to_owned(),
            decider,
            others,
            epoch,
            number,
        })
    }
}

impl fmt::Display for GidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            database,
            instance,
            decider,
            others,
            epoch,
            number,
        } = self;
        let others: String = others.iter().map(|shard| format!(".{shard}")).collect();
        write!(
            f,
            "pgdog_{database}_{instance}_{decider}{others}_{epoch}_{number}"
        )
    }
}

/// The other participants as they stand in a gid.
pub(super) fn others_part(others: &[ShardNumber]) -> Vec<ShardNumber> {
    let length: usize = others.iter().map(|shard| shard.to_string().len() + 1).sum();
    match length <= OTHERS_BYTES {
        true => others.to_vec(),
        false => Vec::new(),
    }
}

/// The database's name as it stands in a gid, safe inside quotes.
pub(super) fn database_part(database: &str) -> String {
    database
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(60)
        .collect()
}

/// The names that this process is using.
#[derive(Debug, Clone, Default)]
pub(super) struct InUse(Arc<Mutex<HashSet<String>>>);

impl InUse {
    pub(super) fn take(&self, name: &GidName) -> Gid {
        let text = name.to_string();
        self.names().insert(text.clone());
        Gid {
            text,
            in_use: self.clone(),
        }
    }

    pub(super) fn contains(&self, gid: &str) -> bool {
        self.names().contains(gid)
    }

    fn names(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.0
            .lock()
            .expect("no code that holds this lock can panic")
    }
}

/// A name in use. Keep it until the transaction is finished on every shard: once it is dropped,
/// recovery takes the transaction for abandoned.
#[derive(Debug)]
pub struct Gid {
    text: String,
    in_use: InUse,
}

impl Deref for Gid {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Drop for Gid {
    fn drop(&mut self) {
        self.in_use.names().remove(&self.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> GidName {
        GidName {
            database: "my-app".into(),
            instance: "00ff00ff00ff00ff".into(),
            decider: ShardNumber(1),
            others: vec![ShardNumber(2), ShardNumber(10)],
            epoch: Epoch(7),
            number: 42,
        }
    }

    #[test]
    fn a_name_is_read_back_whatever_the_database_is_called() {
        assert_eq!(
            name().to_string(),
            "pgdog_my-app_00ff00ff00ff00ff_1.2.10_7_42"
        );
        for database in ["my-app", "a_b", "flip", "x"] {
            let name = GidName {
                database: database.into(),
                ..name()
            };
            assert_eq!(GidName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn names_of_others_are_left_alone() {
        for gid in [
            "pgdog_flip_3_1_1",
            "pgdog_app_xyz_0_1_1",
            "pgdog_app_00ff00ff00ff00ff_0_1",
            "pgdog_app_00ff00ff00ff00ff_0.x_1_1",
            "pgdog_00ff00ff00ff00ff_0_1_1",
            "other_app_00ff00ff00ff00ff_0_1_1",
            "",
        ] {
            assert_eq!(GidName::parse(gid), None, "{gid}");
        }
    }

    #[test]
    fn a_name_that_would_get_too_long_leaves_out_the_others() {
        let many: Vec<_> = (1..100).map(ShardNumber).collect();
        assert_eq!(others_part(&many), []);
        assert_eq!(others_part(&many[..9]), many[..9]);
        let name = GidName {
            database: "d".repeat(60),
            others: others_part(&many[..20]),
            epoch: Epoch(u64::MAX),
            number: u64::MAX,
            ..name()
        };
        assert!(name.to_string().len() < 200, "{name}");
    }

    #[test]
    fn a_database_cannot_break_out_of_a_quoted_gid() {
        assert_eq!(database_part("o'neil_db"), "o-neil-db");
    }

    #[test]
    fn a_name_is_in_use_until_it_is_dropped() {
        let in_use = InUse::default();
        let gid = in_use.take(&name());
        assert!(in_use.contains(&gid));
        let text = gid.to_string();
        drop(gid);
        assert!(!in_use.contains(&text));
    }
}
