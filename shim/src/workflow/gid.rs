//! Names of the flip's prepared transactions. Pure.

use std::fmt;
use std::str::FromStr;

use pgdog_core::ids::{TaskId, TopologyVersion};

const PREFIX: &str = "pgdog_flip_";

/// `pgdog_flip_<version after the flip>_<task>_<attempt>`: every attempt has a name of its own, so
/// a coordinator that wakes up late cannot finish somebody else's attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlipGid {
    /// The topology version that the flip brings.
    pub version: TopologyVersion,
    /// The task.
    pub task: TaskId,
    /// The attempt, counted from 1.
    pub attempt: i32,
}

impl fmt::Display for FlipGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_{}_{}", self.version, self.task, self.attempt)
    }
}

/// The text is not the name of a flip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAFlip;

impl FromStr for FlipGid {
    type Err = NotAFlip;

    fn from_str(text: &str) -> Result<Self, NotAFlip> {
        let rest = text.strip_prefix(PREFIX).ok_or(NotAFlip)?;
        let mut parts = rest.split('_');
        let (Some(version), Some(task), Some(attempt), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NotAFlip);
        };
        Ok(Self {
            version: version.parse().map_err(|_| NotAFlip)?,
            task: task.parse().map_err(|_| NotAFlip)?,
            attempt: attempt.parse().map_err(|_| NotAFlip)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_as_it_was_written() {
        let gid = FlipGid {
            version: TopologyVersion(7),
            task: TaskId(12),
            attempt: 3,
        };
        assert_eq!(gid.to_string(), "pgdog_flip_7_12_3");
        assert_eq!(gid.to_string().parse(), Ok(gid));
    }

    #[test]
    fn other_transactions_are_no_flips() {
        for text in [
            "",
            "pgdog_prod_0011223344556677_3_1",
            "pgdog_flip_1_2",
            "pgdog_flip_1_2_3_4",
            "pgdog_flip_x_2_3",
            "xpgdog_flip_1_2_3",
        ] {
            assert_eq!(text.parse::<FlipGid>(), Err(NotAFlip), "{text}");
        }
    }
}
