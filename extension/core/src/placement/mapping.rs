//! Mapping rules: lists, ranges and a default.

use std::collections::HashMap;

use super::{DataType, Key};
use crate::fault::Fault;
use crate::ids::ShardNumber;

/// Checked rules of one table: no key is claimed twice within lists or within ranges.
///
/// A list wins over a range, both win over the default; the order of rules doesn't matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    rules: Vec<MappingRule>,
    listed: HashMap<Key, ShardNumber>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingRule {
    /// Which keys it is about.
    pub keys: Match,
    /// Where they live.
    pub shard: ShardNumber,
}

/// Which keys a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// These keys.
    List(Vec<Key>),
    /// From `start` (inclusive) to `end` (exclusive); a missing bound is open.
    Range {
        /// First key of the range.
        start: Option<Key>,
        /// First key behind the range.
        end: Option<Key>,
    },
    /// Every other key.
    Default,
}

impl MappingRule {
    /// A rule from its parts as configuration and `pgdog.sharded_tables.mapping` have them:
    /// `kind` is `list`, `range` or `default`.
    ///
    /// # Errors
    /// 22023 for an unknown kind or parts that don't fit it, 22P02 or 22003 for a bad key.
    pub fn from_parts(
        data_type: DataType,
        kind: &str,
        values: &[String],
        bounds: (Option<&str>, Option<&str>),
        shard: ShardNumber,
    ) -> Result<MappingRule, Fault> {
        let key = |text: &str| Key::parse(data_type, text);
        let (start, end) = bounds;
        let open = start.is_none() && end.is_none();
        let keys = match kind {
            "list" if !values.is_empty() && open => Match::List(
                values
                    .iter()
                    .map(|text| key(text))
                    .collect::<Result<_, _>>()?,
            ),
            "range" if values.is_empty() && !open => Match::Range {
                start: start.map(key).transpose()?,
                end: end.map(key).transpose()?,
            },
            "default" if values.is_empty() && open => Match::Default,
            "list" => return Err(bad(kind, "a list rule has values and no bounds")),
            "range" => {
                return Err(bad(
                    kind,
                    "a range rule has start, end or both, and no values",
                ));
            }
            "default" => return Err(bad(kind, "a default rule has neither values nor bounds")),
            _ => return Err(bad(kind, "expected list, range or default")),
        };
        Ok(MappingRule { keys, shard })
    }
}

impl Mapping {
    /// Checks the rules against each other.
    ///
    /// # Errors
    /// 22023 for no rules, a key in two lists, an empty range, ranges that overlap, two defaults,
    /// or keys of two types.
    pub fn new(rules: Vec<MappingRule>) -> Result<Mapping, Fault> {
        if rules.is_empty() {
            return Err(bad("", "a mapping has at least one rule"));
        }
        let mut listed = HashMap::new();
        let mut ranges: Vec<(&Option<Key>, &Option<Key>)> = Vec::new();
        let mut types: Vec<DataType> = Vec::new();
        let mut defaults = 0;
        for rule in &rules {
            match &rule.keys {
                Match::List(keys) => {
                    for key in keys {
                        types.push(key.data_type());
                        if listed.insert(key.clone(), rule.shard).is_some() {
                            return Err(bad(&key.to_string(), "the key is listed twice"));
                        }
                    }
                }
                Match::Range { start, end } => {
                    types.extend([start, end].into_iter().flatten().map(Key::data_type));
                    if let (Some(first), Some(behind)) = (start, end)
                        && first >= behind
                    {
                        return Err(bad(&first.to_string(), "the range is empty"));
                    }
                    ranges.push((start, end));
                }
                Match::Default => defaults += 1,
            }
        }
        if defaults > 1 {
            return Err(bad("default", "there is more than one default rule"));
        }
        if types.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(bad("", "all keys of a mapping have one type"));
        }
        check_overlap(ranges)?;
        Ok(Mapping { rules, listed })
    }

    /// The rules as they were given.
    #[must_use]
    pub fn rules(&self) -> &[MappingRule] {
        &self.rules
    }

    /// The shard of a key.
    ///
    /// # Errors
    /// 23514 if no rule covers the key; 22023 if the rule's shard does not exist (yet).
    pub fn shard_of(&self, key: &Key, shards: u16) -> Result<ShardNumber, Fault> {
        let shard = self
            .listed
            .get(key)
            .copied()
            .or_else(|| self.first(|keys| in_range(keys, key)))
            .or_else(|| self.first(|keys| matches!(keys, Match::Default)))
            .ok_or_else(|| Fault::NoMappingRule {
                key: key.to_string(),
            })?;
        if shard.0 >= shards {
            let why = format!("key {key} is mapped to shard {shard}, there are {shards} shards");
            return Err(bad(&shard.to_string(), &why));
        }
        Ok(shard)
    }

    fn first(&self, covers: impl Fn(&Match) -> bool) -> Option<ShardNumber> {
        self.rules
            .iter()
            .find(|rule| covers(&rule.keys))
            .map(|rule| rule.shard)
    }
}

fn in_range(keys: &Match, key: &Key) -> bool {
    match keys {
        Match::Range { start, end } => {
            start.as_ref().is_none_or(|start| start <= key)
                && end.as_ref().is_none_or(|end| key < end)
        }
        Match::List(_) | Match::Default => false,
    }
}

/// Sorted by start, each range must end before the next one begins.
fn check_overlap(mut ranges: Vec<(&Option<Key>, &Option<Key>)>) -> Result<(), Fault> {
    ranges.sort();
    for pair in ranges.windows(2) {
        let ((_, end), (next, _)) = (pair[0], pair[1]);
        let apart = match (end, next) {
            (Some(end), Some(next)) => end <= next,
            // The first has no end, or both have no start.
            (None, _) | (_, None) => false,
        };
        if !apart {
            let at = next
                .as_ref()
                .map_or("the open start".into(), Key::to_string);
            return Err(bad(&at, "two ranges overlap"));
        }
    }
    Ok(())
}

fn bad(value: &str, why: &str) -> Fault {
    Fault::BadParameter {
        name: "mapping".into(),
        value: value.into(),
        why: why.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(value: i64) -> Key {
        Key::Bigint(value)
    }

    fn list(values: &[i64], shard: u16) -> MappingRule {
        let keys = Match::List(values.iter().copied().map(key).collect());
        MappingRule {
            keys,
            shard: ShardNumber(shard),
        }
    }

    fn range(start: Option<i64>, end: Option<i64>, shard: u16) -> MappingRule {
        let keys = Match::Range {
            start: start.map(key),
            end: end.map(key),
        };
        MappingRule {
            keys,
            shard: ShardNumber(shard),
        }
    }

    fn default(shard: u16) -> MappingRule {
        MappingRule {
            keys: Match::Default,
            shard: ShardNumber(shard),
        }
    }

    #[test]
    fn a_list_wins_over_a_range_and_both_over_the_default() {
        let mapping = Mapping::new(vec![
            default(2),
            range(Some(10), Some(20), 1),
            list(&[15], 0),
        ])
        .unwrap();
        for (value, shard) in [(15, 0), (10, 1), (19, 1), (20, 2), (9, 2)] {
            assert_eq!(
                mapping.shard_of(&key(value), 3),
                Ok(ShardNumber(shard)),
                "{value}"
            );
        }
    }

    #[test]
    fn a_key_without_a_rule_is_an_error_not_a_broadcast() {
        let mapping = Mapping::new(vec![list(&[1], 0), range(None, Some(0), 1)]).unwrap();
        assert_eq!(
            mapping.shard_of(&key(2), 2).unwrap_err().sqlstate(),
            "23514"
        );
        assert_eq!(mapping.shard_of(&key(i64::MIN), 2), Ok(ShardNumber(1)));
    }

    #[test]
    fn a_rule_may_name_a_future_shard_but_nothing_is_sent_there() {
        let mapping = Mapping::new(vec![list(&[1], 2)]).unwrap();
        assert_eq!(
            mapping.shard_of(&key(1), 2).unwrap_err().sqlstate(),
            "22023"
        );
        assert_eq!(mapping.shard_of(&key(1), 3), Ok(ShardNumber(2)));
    }

    #[test]
    fn contradicting_rules_are_refused() {
        let text = MappingRule {
            keys: Match::List(vec![Key::Varchar("x".into())]),
            shard: ShardNumber(0),
        };
        let cases = [
            vec![],
            vec![list(&[1, 1], 0)],
            vec![list(&[1], 0), list(&[1], 1)],
            vec![range(Some(2), Some(2), 0)],
            vec![range(Some(1), Some(5), 0), range(Some(4), Some(9), 1)],
            vec![range(None, Some(5), 0), range(None, Some(3), 1)],
            vec![range(Some(7), None, 0), range(Some(9), None, 1)],
            vec![default(0), default(1)],
            vec![list(&[1], 0), text],
        ];
        for rules in cases {
            assert!(Mapping::new(rules.clone()).is_err(), "{rules:?}");
        }
        assert!(Mapping::new(vec![range(None, Some(5), 0), range(Some(5), None, 1)]).is_ok());
    }

    #[test]
    fn parts_must_fit_their_kind() {
        let parts = |kind, values: &[&str], start, end| {
            let values: Vec<String> = values.iter().map(|&v| v.to_owned()).collect();
            MappingRule::from_parts(
                DataType::Bigint,
                kind,
                &values,
                (start, end),
                ShardNumber(0),
            )
        };
        assert_eq!(
            parts("list", &["01", "2"], None, None),
            Ok(list(&[1, 2], 0))
        );
        assert_eq!(
            parts("range", &[], Some("1"), None),
            Ok(range(Some(1), None, 0))
        );
        assert_eq!(parts("default", &[], None, None), Ok(default(0)));
        for (kind, values, start) in [
            ("list", &[][..], None),
            ("list", &["1"][..], Some("1")),
            ("range", &[][..], None),
            ("default", &["1"][..], None),
            ("other", &[][..], None),
        ] {
            assert_eq!(
                parts(kind, values, start, None).unwrap_err().sqlstate(),
                "22023"
            );
        }
        assert_eq!(
            parts("list", &["x"], None, None).unwrap_err().sqlstate(),
            "22P02"
        );
    }

    proptest! {
        /// Ranges that are accepted cover each key at most once.
        #[test]
        fn accepted_ranges_do_not_overlap(
            bounds in prop::collection::vec((-9i64..9, -9i64..9), 1..5),
            probe in -10i64..10,
        ) {
            let rules: Vec<_> =
                bounds.iter().map(|&(start, end)| range(Some(start), Some(end), 0)).collect();
            if let Ok(mapping) = Mapping::new(rules) {
                let covering =
                    mapping.rules().iter().filter(|r| in_range(&r.keys, &key(probe))).count();
                prop_assert!(covering <= 1);
            }
        }
    }
}
