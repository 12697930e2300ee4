//! Where a row lives: the rule of one sharded table, and what it makes of a key.

mod key;
mod mapping;

pub use key::Key;
pub use mapping::{Mapping, MappingRule, Match};

use std::fmt;
use std::str::FromStr;

use crate::fault::Fault;
use crate::hash;
use crate::ids::ShardNumber;

/// Type of a sharding key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataType {
    /// `bigint`, also for `integer` and `smallint` columns.
    Bigint,
    /// `varchar`, also for `text` columns.
    Varchar,
    /// `uuid`.
    Uuid,
}

/// How a key of one table becomes a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRule {
    /// Type of the sharding key, and of what a lookup returns as a value.
    pub data_type: DataType,
    /// What is done with the key.
    pub strategy: Strategy,
}

/// What is done with a key to find its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// PostgreSQL's own hash partitioning, modulus = number of shards.
    Hash,
    /// Lists, ranges and a default.
    Mapping(Mapping),
    /// A query per key, with the key as `$1`.
    LookupQuery {
        /// A read-only SELECT of one column.
        query: String,
        /// What its result means.
        result: LookupResult,
    },
    /// A whole map, loaded at once; its values are hashed.
    WholeMap {
        /// The omnisharded table that is read, for messages.
        table: String,
        /// A SELECT of two columns: key and value.
        query: String,
    },
}

/// What the answer of a lookup query means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupResult {
    /// The shard's number.
    Shard,
    /// A value of the key's type, to be hashed.
    Value,
    /// A value of the key's type, to be mapped.
    Mapped(Mapping),
}

/// What `place` found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// The row lives here.
    Shard(ShardNumber),
    /// Only the database knows: ask it with this key, then see `lookup::interpret`.
    Lookup(Key),
}

/// The shard of a key given as text.
///
/// # Errors
/// 22P02 and 22003 for a text that is no key, 23514 for a key without a mapping rule.
pub fn place(rule: &TableRule, key: &str, shards: u16) -> Result<Placed, Fault> {
    place_key(rule, &Key::parse(rule.data_type, key)?, shards)
}

/// The shard of a parsed key.
///
/// # Errors
/// 23514 for a key without a mapping rule, and for a rule that names a shard that isn't there.
pub fn place_key(rule: &TableRule, key: &Key, shards: u16) -> Result<Placed, Fault> {
    match &rule.strategy {
        Strategy::Hash => Ok(Placed::Shard(hash::shard_of(key.hash(), shards))),
        Strategy::Mapping(mapping) => mapping.shard_of(key, shards).map(Placed::Shard),
        Strategy::LookupQuery { .. } | Strategy::WholeMap { .. } => Ok(Placed::Lookup(key.clone())),
    }
}

/// The shard of a value that a lookup translated a key into.
///
/// # Errors
/// As `place_key`.
pub(crate) fn place_value(
    strategy: &Strategy,
    value: &Key,
    shards: u16,
) -> Result<ShardNumber, Fault> {
    match strategy {
        Strategy::Mapping(mapping)
        | Strategy::LookupQuery {
            result: LookupResult::Mapped(mapping),
            ..
        } => mapping.shard_of(value, shards),
        Strategy::Hash
        | Strategy::WholeMap { .. }
        | Strategy::LookupQuery {
            result: LookupResult::Shard | LookupResult::Value,
            ..
        } => Ok(hash::shard_of(value.hash(), shards)),
    }
}

impl TableRule {
    /// True if rows stay where they are when a shard is added: nothing is a function of the
    /// number of shards.
    #[must_use]
    pub fn is_placement_stable(&self) -> bool {
        match &self.strategy {
            Strategy::Mapping(_)
            | Strategy::LookupQuery {
                result: LookupResult::Shard | LookupResult::Mapped(_),
                ..
            } => true,
            Strategy::Hash
            | Strategy::WholeMap { .. }
            | Strategy::LookupQuery {
                result: LookupResult::Value,
                ..
            } => false,
        }
    }

    /// The strategy's name in `pgdog.sharded_tables`.
    #[must_use]
    pub fn strategy_name(&self) -> &'static str {
        match &self.strategy {
            Strategy::Hash => "hash",
            Strategy::Mapping(_) => "mapping",
            Strategy::LookupQuery { .. } => "lookup_query",
            Strategy::WholeMap { .. } => "lookup",
        }
    }
}

impl DataType {
    /// The name that configuration and SQL use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DataType::Bigint => "bigint",
            DataType::Varchar => "varchar",
            DataType::Uuid => "uuid",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataType {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "bigint" => Ok(DataType::Bigint),
            "varchar" => Ok(DataType::Varchar),
            "uuid" => Ok(DataType::Uuid),
            _ => Err(Fault::BadParameter {
                name: "data_type".into(),
                value: text.into(),
                why: "expected bigint, varchar or uuid".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(result: LookupResult) -> TableRule {
        let query = "SELECT shard_id FROM tenants WHERE id = $1".into();
        TableRule {
            data_type: DataType::Bigint,
            strategy: Strategy::LookupQuery { query, result },
        }
    }

    #[test]
    fn a_lookup_is_asked_with_the_canonical_key() {
        let placed = place(&lookup(LookupResult::Shard), " +0012 ", 2);
        assert_eq!(placed, Ok(Placed::Lookup(Key::Bigint(12))));
    }

    #[test]
    fn a_key_of_the_wrong_type_goes_nowhere() {
        let rule = TableRule {
            data_type: DataType::Uuid,
            strategy: Strategy::Hash,
        };
        assert_eq!(place(&rule, "42", 2).unwrap_err().sqlstate(), "22P02");
    }

    #[test]
    fn only_rules_without_the_number_of_shards_survive_growth() {
        let hash = TableRule {
            data_type: DataType::Bigint,
            strategy: Strategy::Hash,
        };
        assert!(!hash.is_placement_stable());
        assert!(!lookup(LookupResult::Value).is_placement_stable());
        assert!(lookup(LookupResult::Shard).is_placement_stable());
    }

    #[test]
    fn the_three_type_names_are_read_back() {
        for data_type in [DataType::Bigint, DataType::Varchar, DataType::Uuid] {
            assert_eq!(data_type.name().parse(), Ok(data_type));
        }
        assert!("text".parse::<DataType>().is_err());
    }
}
