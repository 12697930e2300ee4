//! A row of `pgdog.sharded_tables` -> the rule that core applies. Pure.

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::placement::{DataType, LookupResult, Mapping, MappingRule, Strategy, TableRule};
use serde_json::Value;

use super::observed::ShardedRow;
use super::topology::ShardedTable;

/// Reads a row.
///
/// # Errors
/// 22023 or a key's own code when the row makes no rule: nothing is served by half a placement.
pub(super) fn sharded_table(row: &ShardedRow) -> Result<ShardedTable, Fault> {
    let data_type: DataType = row.data_type.parse()?;
    let mapping = row
        .mapping
        .as_deref()
        .map(|text| mapping(data_type, text))
        .transpose()?;
    let query = row.pinned_query.as_ref().or(row.lookup_query.as_ref());
    let strategy = match (row.strategy.as_str(), query, mapping) {
        ("hash", None, None) => Strategy::Hash,
        ("mapping", None, Some(mapping)) => Strategy::Mapping(mapping),
        ("lookup_query", Some(query), mapping) => Strategy::LookupQuery {
            query: query.clone(),
            result: match (row.lookup_result.as_str(), mapping) {
                ("shard", None) => LookupResult::Shard,
                ("value", None) => LookupResult::Value,
                ("value", Some(mapping)) => LookupResult::Mapped(mapping),
                (other, _) => return Err(bad(row, other, "expected value or shard")),
            },
        },
        (other, _, _) => return Err(bad(row, other, "the strategy does not fit its columns")),
    };
    // A rule without a name stands for each table that it found; one that found none yet keeps its
    // empty name, which no statement has.
    let (schema, table) = match &row.found {
        Some(found) => (&found.schema, &found.table),
        None => (&row.schema, &row.table),
    };
    Ok(ShardedTable {
        schema: schema.clone(),
        table: table.clone(),
        column: row.column.clone(),
        position: row.found.as_ref().map(|found| found.position),
        copied: row.found.as_ref().and_then(|found| found.copied),
        identity: row.found.as_ref().is_some_and(|found| found.identity),
        max_length: row.found.as_ref().and_then(|found| found.max_length),
        unfit: row.found.as_ref().and_then(|found| found.unfit.clone()),
        rule: TableRule {
            data_type,
            strategy,
        },
    })
}

fn bad(row: &ShardedRow, value: &str, why: &str) -> Fault {
    Fault::BadParameter {
        name: format!("pgdog.sharded_tables of {}.{}", row.schema, row.table),
        value: value.into(),
        why: why.into(),
    }
}

fn mapping(data_type: DataType, text: &str) -> Result<Mapping, Fault> {
    let parsed: Value = serde_json::from_str(text).map_err(|error| Fault::BadParameter {
        name: "mapping".into(),
        value: text.into(),
        why: error.to_string(),
    })?;
    let rules = parsed.as_array().map(Vec::as_slice).unwrap_or_default();
    Mapping::new(
        rules
            .iter()
            .map(|rule| mapping_rule(data_type, rule))
            .collect::<Result<_, _>>()?,
    )
}

fn mapping_rule(data_type: DataType, rule: &Value) -> Result<MappingRule, Fault> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let bound = |name: &str| rule.get(name).filter(|value| !value.is_null()).map(text);
    let values: Vec<String> = rule
        .get("values")
        .and_then(Value::as_array)
        .map(|values| values.iter().map(text).collect())
        .unwrap_or_default();
    let shard = rule
        .get("shard")
        .and_then(Value::as_u64)
        .and_then(|n| u16::try_from(n).ok());
    let Some(shard) = shard else {
        return Err(Fault::BadParameter {
            name: "mapping".into(),
            value: rule.to_string(),
            why: "a rule has a shard, a number from 0 to 65535".into(),
        });
    };
    let kind = rule.get("kind").and_then(Value::as_str).unwrap_or_default();
    let (start, end) = (bound("start"), bound("end"));
    let bounds = (start.as_deref(), end.as_deref());
    MappingRule::from_parts(data_type, kind, &values, bounds, ShardNumber(shard))
}

#[cfg(test)]
mod tests {
    use pgdog_core::placement::{Placed, place};

    use super::*;
    use crate::nodes::observed::FoundTable;
    use crate::nodes::topology::Copied;

    fn row(strategy: &str) -> ShardedRow {
        ShardedRow {
            schema: "public".into(),
            table: "orders".into(),
            column: "tenant_id".into(),
            data_type: "bigint".into(),
            strategy: strategy.into(),
            lookup_result: "value".into(),
            ..ShardedRow::default()
        }
    }

    #[test]
    fn each_strategy_is_read() {
        let rule = |row: &ShardedRow| sharded_table(row).map(|table| table.rule.strategy);
        assert_eq!(rule(&row("hash")), Ok(Strategy::Hash));
        let mut lookup = row("lookup_query");
        lookup.lookup_query = Some("SELECT 1".into());
        lookup.lookup_result = "shard".into();
        // What is run is what it meant when it was declared.
        lookup.pinned_query = Some("SELECT 2".into());
        let query = "SELECT 2".into();
        let expected = Strategy::LookupQuery {
            query,
            result: LookupResult::Shard,
        };
        assert_eq!(rule(&lookup), Ok(expected));
    }

    #[test]
    fn a_mapping_places_numbers_and_texts_alike() {
        let mut mapped = row("mapping");
        mapped.mapping = Some(
            r#"[{"kind":"list","values":[1,"2"],"shard":1},{"kind":"default","shard":0}]"#.into(),
        );
        let rule = sharded_table(&mapped).expect("well formed").rule;
        for (key, shard) in [("1", 1), ("2", 1), ("3", 0)] {
            assert_eq!(place(&rule, key, 2), Ok(Placed::Shard(ShardNumber(shard))));
        }
    }

    #[test]
    fn a_rule_without_a_name_stands_for_the_table_that_it_found() {
        let every = ShardedRow {
            schema: String::new(),
            table: String::new(),
            found: Some(FoundTable {
                schema: "crm".into(),
                table: "calls".into(),
                position: 3,
                copied: Some(Copied { key: 2, columns: 4 }),
                identity: true,
                max_length: Some(5),
                unfit: Some("is generated".into()),
            }),
            ..row("hash")
        };
        let table = sharded_table(&every).expect("well formed");
        assert_eq!(
            (table.schema.as_str(), table.table.as_str()),
            ("crm", "calls")
        );
        let copied = table.copied.map(|copied| (copied.key, copied.columns));
        assert_eq!((table.position, copied), (Some(3), Some((2, 4))));
        assert!(table.identity);
        assert_eq!(table.max_length, Some(5));
        assert_eq!(table.unfit.as_deref(), Some("is generated"));
    }

    #[test]
    fn a_row_that_makes_no_rule_is_refused() {
        let mut half = row("mapping");
        assert!(sharded_table(&half).is_err());
        half.mapping = Some(r#"[{"kind":"list","values":[1]}]"#.into());
        assert!(sharded_table(&half).is_err(), "a rule without its shard");
        assert!(sharded_table(&row("lookup_query")).is_err());
        assert!(sharded_table(&row("something new")).is_err());
    }
}
