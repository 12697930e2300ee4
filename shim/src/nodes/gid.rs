//! Names of two-phase transactions: who coordinates, and which shard decides. Pure but for the
//! set of names in use.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use pgdog_core::ids::{Epoch, ShardNumber};

/// The others are left out of a name that would get longer: names have 200 bytes at most, also with
/// [`SETTLED`].
const OTHERS_BYTES: usize = 60;

/// Follows the name of a transaction that is done everywhere, in a row beside that of its decider.
/// Shims of before do not take it for a name.
pub(super) const SETTLED: &str = ":settled";

/// The parts of `pgdog_<database>[.<other>…]_<instance>_<decider>_<epoch>_<n>`, where `.x<hex>`
/// stands for many others. Shims of before take them for a part of the database's name, and do the
/// same.
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
    /// The others stand behind the decider, as they once did.
    pub behind_decider: bool,
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
        let (decider, behind) = split(parts.next()?);
        let decider = decider.parse().ok()?;
        let instance = parts.next()?;
        let (database, before) = split(parts.next()?);
        let others = match (before, behind) {
            (None, None) => Some(Vec::new()),
            (Some(others), None) => list(others).or_else(|| bits(others)),
            (None, Some(others)) => list(others),
            (Some(_), Some(_)) => None,
        };
        let hex = instance.len() == 16 && instance.bytes().all(|b| b.is_ascii_hexdigit());
        let name = Self {
            database: database.to_owned(),
            instance: instance.to_owned(),
            decider,
            others: others?,
            behind_decider: behind.is_some(),
            epoch,
            number,
        };
        // Whatever cannot be told as it stands cannot be finished.
        (hex && !database.is_empty() && name.to_string() == gid).then_some(name)
    }

    /// In a row beside that of the decider: it is done everywhere.
    pub(super) fn settled(&self) -> String {
        format!("{self}{SETTLED}")
    }
}

fn split(part: &str) -> (&str, Option<&str>) {
    match part.split_once('.') {
        Some((first, others)) => (first, Some(others)),
        None => (part, None),
    }
}

fn list(text: &str) -> Option<Vec<ShardNumber>> {
    text.split('.').map(|shard| shard.parse().ok()).collect()
}

fn dotted(others: &[ShardNumber]) -> String {
    others.iter().map(|shard| format!(".{shard}")).collect()
}

/// Shard 0 is the lowest bit of the first digit; the digits stand in the order of the shards.
fn bits(text: &str) -> Option<Vec<ShardNumber>> {
    let mut others = Vec::new();
    for (digit, first) in text.strip_prefix('x')?.chars().zip((0..).step_by(4)) {
        let digit = digit.to_digit(16)?;
        let set = (0..4).filter(|bit| digit >> bit & 1 == 1);
        others.extend(set.map(|bit| ShardNumber(first + bit)));
    }
    Some(others)
}

fn as_bits(others: &[ShardNumber]) -> String {
    let last = others.iter().map(|shard| shard.0).max().unwrap_or_default();
    let digits = (0..=last / 4).map(|at| {
        let bits = others.iter().filter(|shard| shard.0 / 4 == at);
        bits.fold(0, |digit, shard| digit | 1_u16 << (shard.0 % 4))
    });
    digits.fold(".x".to_owned(), |text, digit| text + &format!("{digit:x}"))
}

/// As they stand in a name; empty if they would take too much of it.
fn told(others: &[ShardNumber]) -> String {
    let texts = [dotted(others), as_bits(others)];
    let fits = |text: &String| text.len() <= OTHERS_BYTES;
    texts.into_iter().find(fits).unwrap_or_default()
}

impl fmt::Display for GidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            database,
            instance,
            decider,
            others,
            behind_decider,
            epoch,
            number,
        } = self;
        let (before, behind) = match behind_decider {
            true => (String::new(), dotted(others)),
            false => (told(others), String::new()),
        };
        write!(
            f,
            "pgdog_{database}{before}_{instance}_{decider}{behind}_{epoch}_{number}"
        )
    }
}

/// The other participants as they stand in a gid.
pub(super) fn others_part(others: &[ShardNumber]) -> Vec<ShardNumber> {
    match told(others).is_empty() {
        true => Vec::new(),
        false => others.to_vec(),
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
            behind_decider: false,
            epoch: Epoch(7),
            number: 42,
        }
    }

    #[test]
    fn a_name_is_read_back_whatever_the_database_is_called() {
        assert_eq!(
            name().to_string(),
            "pgdog_my-app.2.10_00ff00ff00ff00ff_1_7_42"
        );
        for database in ["my-app", "a_b", "flip", "x"] {
            let name = GidName {
                database: database.into(),
                ..name()
            };
            assert_eq!(GidName::parse(&name.to_string()), Some(name));
        }
        let name = GidName {
            behind_decider: true,
            ..name()
        };
        let gid = "pgdog_my-app_00ff00ff00ff00ff_1.2.10_7_42";
        assert_eq!(GidName::parse(gid), Some(name));
    }

    /// They read the database's name as whatever stands before the instance, and know no others.
    #[test]
    fn shims_of_before_can_finish_it() {
        let gid = name().to_string();
        let mut parts = gid.strip_prefix("pgdog_").unwrap().rsplitn(5, '_');
        assert_eq!(parts.next().and_then(|n| n.parse().ok()), Some(42));
        assert_eq!(parts.next().and_then(|n| n.parse().ok()), Some(Epoch(7)));
        assert_eq!(
            parts.next().and_then(|n| n.parse().ok()),
            Some(ShardNumber(1))
        );
        assert_eq!(parts.next(), Some("00ff00ff00ff00ff"));
        assert_eq!(parts.next(), Some("my-app.2.10"));
        // A mark is no name to them.
        assert_eq!(GidName::parse(&name().settled()), None);
    }

    #[test]
    fn names_of_others_are_left_alone() {
        for gid in [
            "pgdog_flip_3_1_1",
            "pgdog_app_xyz_0_1_1",
            "pgdog_app_00ff00ff00ff00ff_0_1",
            "pgdog_app_00ff00ff00ff00ff_0.x_1_1",
            "pgdog_app.x_00ff00ff00ff00ff_0_1_1",
            "pgdog_app.01_00ff00ff00ff00ff_0_1_1",
            "pgdog_app.1_00ff00ff00ff00ff_0.2_1_1",
            "pgdog_00ff00ff00ff00ff_0_1_1",
            "other_app_00ff00ff00ff00ff_0_1_1",
            "",
        ] {
            assert_eq!(GidName::parse(gid), None, "{gid}");
        }
    }

    #[test]
    fn many_others_take_little_room() {
        for shards in [20, 24, 25, 100, 232] {
            let name = GidName {
                database: "d".repeat(60),
                decider: ShardNumber(0),
                others: others_part(&(1..shards).map(ShardNumber).collect::<Vec<_>>()),
                epoch: Epoch(u64::MAX),
                number: u64::MAX,
                ..name()
            };
            assert_eq!(name.others.len(), usize::from(shards) - 1);
            assert!(name.settled().len() < 200, "{name}");
            assert_eq!(GidName::parse(&name.to_string()), Some(name));
        }
        let too_many: Vec<_> = (1..300).map(ShardNumber).collect();
        assert_eq!(others_part(&too_many), []);
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
