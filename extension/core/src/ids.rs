//! Newtypes for numbers and names that must not be mixed up.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                text.parse().map(Self)
            }
        }
    };
}

number!(
    /// A shard, counted from 0.
    ShardNumber(u16)
);
number!(
    /// A row of `pgdog.tasks`.
    TaskId(i64)
);
number!(
    /// A node's own fence counter; only ever compared with other epochs of the same node.
    Epoch(u64)
);
number!(
    /// The cluster-wide topology version; changed by flips only.
    TopologyVersion(u64)
);
number!(
    /// A PostgreSQL timeline, counted from 1.
    Timeline(u32)
);

/// One start of one server: replay positions vouch only for the incarnation that reported them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub String);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
