//! Where the last statement went. Kept as it is and put into words only when somebody asks.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use pgdog_core::ids::ShardNumber;

use super::party::Place;
use crate::nodes::Address;
use crate::route::AllReason;

/// As `SHOW pgdog.last_route` prints it.
#[derive(Debug, Clone)]
pub enum LastRoute {
    /// Nothing has run yet.
    None,
    /// To one node.
    Node {
        /// Where it listens.
        address: Arc<Address>,
        /// What it is.
        place: Place,
        /// Its shard.
        shard: ShardNumber,
        /// Why there.
        reason: Cow<'static, str>,
        /// How long the floor was waited for, in ms.
        waited_ms: u64,
    },
    /// To every shard, for rows that were merged.
    Merged {
        /// How many shards.
        shards: usize,
        /// What their nodes are: `primary`, `replica` or `mixed`.
        role: &'static str,
        /// How the rows were merged.
        how: &'static str,
        /// How long the floors were waited for, in ms.
        waited_ms: u64,
    },
    /// To every shard's primary.
    All {
        /// How many shards.
        shards: usize,
        /// Why everywhere.
        reason: AllReason,
    },
}

impl fmt::Display for LastRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Node {
                address,
                place,
                shard,
                reason,
                waited_ms,
            } => write!(
                f,
                "node={}:{} role={} shard={shard} reason={reason} waited_ms={waited_ms}",
                address.host,
                address.port,
                place.as_str(),
            ),
            Self::Merged {
                shards,
                role,
                how,
                waited_ms,
            } => write!(
                f,
                "node=all role={role} shard=0..{} reason=rows on every shard, {how} \
                 waited_ms={waited_ms}",
                shards.saturating_sub(1),
            ),
            Self::All { shards, reason } => write!(
                f,
                "node=all role=primary shard=0..{} reason={} waited_ms=0",
                shards.saturating_sub(1),
                match reason {
                    AllReason::OmniWrite => "OmniWrite",
                    AllReason::Ddl => "Ddl",
                    AllReason::Placement => "Placement",
                    AllReason::Read => "Read",
                    AllReason::Change => "Change",
                    AllReason::Rows(_) => "Rows",
                },
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_told_in_one_line() {
        assert_eq!(LastRoute::None.to_string(), "");
        let one = LastRoute::Node {
            address: Arc::new(Address {
                host: "h".to_owned(),
                port: 5,
                database: "d".to_owned(),
            }),
            place: Place::Replica,
            shard: ShardNumber(1),
            reason: "key id=7".into(),
            waited_ms: 3,
        };
        let text = "node=h:5 role=replica shard=1 reason=key id=7 waited_ms=3";
        assert_eq!(one.to_string(), text);
        let merged = LastRoute::Merged {
            shards: 3,
            role: "replica",
            how: "merged in their order",
            waited_ms: 5,
        };
        let text = "node=all role=replica shard=0..2 reason=rows on every shard, merged in their \
                    order waited_ms=5";
        assert_eq!(merged.to_string(), text);
        let all = LastRoute::All {
            shards: 2,
            reason: AllReason::Ddl,
        };
        let text = "node=all role=primary shard=0..1 reason=Ddl waited_ms=0";
        assert_eq!(all.to_string(), text);
    }
}
