//! What the answer of a lookup query means.

use crate::fault::Fault;
use crate::ids::ShardNumber;
use crate::placement::{self, Key, LookupResult, Strategy, TableRule};

/// One asked key: for messages.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The sharded table that the key is of.
    pub table: &'a str,
    /// The key in canonical text form.
    pub key: &'a str,
}

/// The shard that an answer names.
///
/// `rows` is the one column of every returned row in text form; two rows are enough to refuse.
///
/// # Errors
/// 58000, retryable for no row and NULL, since a later write of the lookup table can cure those.
/// A mapped value without a rule is 23514.
pub fn interpret(
    rule: &TableRule,
    asked: Asked<'_>,
    rows: &[Option<&str>],
    shards: u16,
) -> Result<ShardNumber, Fault> {
    let (table, key) = (asked.table.to_owned(), asked.key.to_owned());
    let value = match rows {
        [] => return Err(Fault::LookupMissing { table, key }),
        [None] => return Err(Fault::LookupNull { table, key }),
        [Some(value)] => *value,
        [_, _, ..] => {
            return Err(Fault::LookupAmbiguous {
                table,
                key,
                rows: rows.len(),
            });
        }
    };
    match &rule.strategy {
        Strategy::LookupQuery {
            result: LookupResult::Shard,
            ..
        } => shard_number(asked, value, shards),
        Strategy::LookupQuery {
            result: LookupResult::Value | LookupResult::Mapped(_),
            ..
        }
        | Strategy::WholeMap { .. }
        | Strategy::Hash
        | Strategy::Mapping(_) => {
            let translated = Key::parse(rule.data_type, value).map_err(|_| {
                let (value, expected) = (value.to_owned(), rule.data_type.name());
                Fault::LookupWrongType {
                    table,
                    key,
                    value,
                    expected,
                }
            })?;
            placement::place_value(&rule.strategy, &translated, shards)
        }
    }
}

/// A number of any integer type, as PostgreSQL prints it.
fn shard_number(asked: Asked<'_>, value: &str, shards: u16) -> Result<ShardNumber, Fault> {
    let (table, key) = (asked.table.to_owned(), asked.key.to_owned());
    match Key::parse(placement::DataType::Bigint, value) {
        Ok(Key::Bigint(number)) => match u16::try_from(number) {
            Ok(number) if number < shards => Ok(ShardNumber(number)),
            Ok(_) | Err(_) => Err(Fault::LookupOutOfRange {
                table,
                key,
                value: value.to_owned(),
                shards,
            }),
        },
        Ok(Key::Varchar(_) | Key::Uuid(_)) | Err(_) => {
            let value = value.to_owned();
            Err(Fault::LookupWrongType {
                table,
                key,
                value,
                expected: "shard number",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{DataType, Mapping, MappingRule, Match};

    fn rule(result: LookupResult) -> TableRule {
        let query = "SELECT s FROM m WHERE k = $1".into();
        TableRule {
            data_type: DataType::Bigint,
            strategy: Strategy::LookupQuery { query, result },
        }
    }

    fn ask(result: LookupResult, rows: &[Option<&str>]) -> Result<ShardNumber, Fault> {
        interpret(
            &rule(result),
            Asked {
                table: "orders",
                key: "42",
            },
            rows,
            2,
        )
    }

    #[test]
    fn one_row_in_range_is_a_shard() {
        assert_eq!(ask(LookupResult::Shard, &[Some("0")]), Ok(ShardNumber(0)));
        assert_eq!(ask(LookupResult::Shard, &[Some("1")]), Ok(ShardNumber(1)));
    }

    #[test]
    fn every_other_answer_is_its_own_error() {
        let fault = |rows: &[Option<&str>]| ask(LookupResult::Shard, rows).unwrap_err();
        assert!(matches!(fault(&[]), Fault::LookupMissing { .. }));
        assert!(matches!(fault(&[None]), Fault::LookupNull { .. }));
        assert!(matches!(
            fault(&[Some("0"), Some("0")]),
            Fault::LookupAmbiguous { .. }
        ));
        assert!(matches!(
            fault(&[Some("one")]),
            Fault::LookupWrongType { .. }
        ));
        assert!(matches!(
            fault(&[Some("1.0")]),
            Fault::LookupWrongType { .. }
        ));
        for value in ["2", "-1", "65536"] {
            assert!(
                matches!(fault(&[Some(value)]), Fault::LookupOutOfRange { .. }),
                "{value}"
            );
        }
        assert!(fault(&[]).retryable() && fault(&[None]).retryable());
        assert!(!fault(&[Some("2")]).retryable());
        assert!(fault(&[]).message().contains("key 42 of \"orders\""));
    }

    #[test]
    fn a_value_is_hashed_or_mapped() {
        let hash = crate::hash::combined(crate::hash::bigint(7));
        let hashed = ask(LookupResult::Value, &[Some("07")]);
        assert_eq!(hashed, Ok(crate::hash::shard_of(hash, 2)));
        let list = Match::List(vec![Key::Bigint(7)]);
        let mapping = Mapping::new(vec![MappingRule {
            keys: list,
            shard: ShardNumber(1),
        }])
        .unwrap();
        let mapped = |value| ask(LookupResult::Mapped(mapping.clone()), &[Some(value)]);
        assert_eq!(mapped("7"), Ok(ShardNumber(1)));
        assert_eq!(mapped("8").unwrap_err().sqlstate(), "23514");
        assert!(matches!(
            mapped("x").unwrap_err(),
            Fault::LookupWrongType { .. }
        ));
    }
}
