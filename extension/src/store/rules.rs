//! Placement rules and look-ups, read by SPI with the caller's snapshot and privileges.

use std::str::FromStr;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::placement::{
    DataType, Key, LookupResult, Mapping, MappingRule, Strategy, TableRule,
};
use pgrx::datum::DatumWithOid;
use pgrx::spi::Spi;

/// A declaration by name goes before one by column.
const RULE: &str =
    "SELECT s.data_type, s.strategy, coalesce(s.pinned_query, s.lookup_query), s.lookup_result,
        s.lookup_table, s.mapping::text
   FROM pgdog.sharded_tables s
  WHERE (s.schema_name OPERATOR(pg_catalog.=) $1 AND s.table_name OPERATOR(pg_catalog.=) $2)
     OR (s.table_name OPERATOR(pg_catalog.=) '' AND EXISTS (
            SELECT FROM pg_catalog.pg_attribute a
              JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid
              JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
             WHERE n.nspname OPERATOR(pg_catalog.=) $1::name
               AND c.relname OPERATOR(pg_catalog.=) $2::name
               AND a.attname OPERATOR(pg_catalog.=) s.column_name::name))
  ORDER BY s.table_name DESC LIMIT 1";

const MAPPING: &str = "SELECT r->>'kind',
        ARRAY(SELECT pg_catalog.jsonb_array_elements_text(coalesce(r->'values', '[]'))),
        r->>'start', r->>'end', (r->>'shard')::int
   FROM pg_catalog.jsonb_array_elements($1::jsonb) r";

/// The rule of a table.
pub(crate) fn rule_of(schema: &str, table: &str) -> Result<TableRule, Fault> {
    let columns = Spi::connect(|client| {
        let rows = client.select(RULE, Some(1), &[schema.into(), table.into()])?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(None);
        };
        let texts = (1..=6).map(|column| row.get::<String>(column));
        texts.collect::<Result<Vec<_>, _>>().map(Some)
    });
    let columns = columns.map_err(internal)?;
    let Some(Ok([Some(data_type), strategy, query, result, of, mapping])) =
        columns.map(<[Option<String>; 6]>::try_from)
    else {
        return Err(Fault::UndeclaredTable {
            table: table.into(),
        });
    };
    let data_type = DataType::from_str(&data_type)?;
    let mapping = mapping
        .map(|text| mapping_of(data_type, &text))
        .transpose()?;
    let by_shard = result.as_deref() == Some("shard");
    let strategy = match (strategy.as_deref(), query, mapping) {
        (Some("mapping"), _, Some(mapping)) => Strategy::Mapping(mapping),
        (Some("lookup_query"), Some(query), mapping) => Strategy::LookupQuery {
            query,
            result: match mapping {
                Some(mapping) => LookupResult::Mapped(mapping),
                None if by_shard => LookupResult::Shard,
                None => LookupResult::Value,
            },
        },
        (Some("lookup"), Some(query), _) => Strategy::WholeMap {
            table: of.unwrap_or_default(),
            query,
        },
        _ => Strategy::Hash,
    };
    Ok(TableRule {
        data_type,
        strategy,
    })
}

/// A rule that hashes keys of this type.
pub(crate) fn hash_rule(data_type: &str) -> Result<TableRule, Fault> {
    let data_type = DataType::from_str(data_type)?;
    Ok(TableRule {
        data_type,
        strategy: Strategy::Hash,
    })
}

/// What the rule's query answers for a key: its one column, as text, of at most two rows.
pub(crate) fn lookup(rule: &TableRule, key: &Key) -> Result<Vec<Option<String>>, Fault> {
    let text = match &rule.strategy {
        Strategy::LookupQuery { query, .. } => {
            format!(
                "SELECT q.answer::text FROM ({}) q(answer) LIMIT 2",
                trimmed(query)
            )
        }
        Strategy::WholeMap { query, .. } => format!(
            "SELECT q.answer::text FROM ({}) q(asked, answer) \
             WHERE q.asked OPERATOR(pg_catalog.=) $1 LIMIT 2",
            trimmed(query)
        ),
        Strategy::Hash | Strategy::Mapping(_) => return Ok(Vec::new()),
    };
    let argument: DatumWithOid<'_> = match key {
        Key::Bigint(value) => (*value).into(),
        Key::Varchar(value) => value.clone().into(),
        Key::Uuid(bytes) => pgrx::Uuid::from_bytes(*bytes).into(),
    };
    Spi::connect(|client| {
        let rows = client.select(&text, Some(2), &[argument])?;
        rows.into_iter()
            .map(|row| row.get::<String>(1))
            .collect::<Result<_, _>>()
    })
    .map_err(internal)
}

fn mapping_of(data_type: DataType, text: &str) -> Result<Mapping, Fault> {
    type Parts = (
        Option<String>,
        Vec<String>,
        Option<String>,
        Option<String>,
        Option<i32>,
    );
    let rows: Vec<Parts> = Spi::connect(|client| {
        let rows = client.select(MAPPING, None, &[text.into()])?;
        rows.into_iter()
            .map(|row| {
                Ok((
                    row.get(1)?,
                    row.get(2)?.unwrap_or_default(),
                    row.get(3)?,
                    row.get(4)?,
                    row.get(5)?,
                ))
            })
            .collect::<Result<_, pgrx::spi::Error>>()
    })
    .map_err(internal)?;
    let rules = rows.into_iter().map(|(kind, values, start, end, shard)| {
        let shard = shard
            .and_then(|shard| u16::try_from(shard).ok())
            .ok_or_else(|| Fault::BadParameter {
                name: "mapping".into(),
                value: text.into(),
                why: "every rule names a shard".into(),
            })?;
        MappingRule::from_parts(
            data_type,
            kind.as_deref().unwrap_or("list"),
            &values,
            (start.as_deref(), end.as_deref()),
            ShardNumber(shard),
        )
    });
    Mapping::new(rules.collect::<Result<_, _>>()?)
}

fn trimmed(query: &str) -> &str {
    query.trim().trim_end_matches(';')
}

fn internal(error: pgrx::spi::Error) -> Fault {
    Fault::Internal {
        why: error.to_string(),
    }
}
