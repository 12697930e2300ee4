//! Declarations of the configuration against those that a shard keeps. Pure.

use std::collections::HashSet;

use pgdog_core::fault::Fault;

use super::observed::{Kept, ShardedRow};
use super::settings::DeclaredTable;
use super::trouble;

/// A declaration that a shard lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// For `pgdog.shard_table`.
    Sharded(DeclaredTable),
    /// For `pgdog.omni_table`: schema and name.
    Omnisharded(String, String),
}

/// What one shard lacks, given what it keeps and which tables it has as (schema, name). A table
/// that does not exist yet is left for later.
///
/// # Errors
/// 55000 when configuration and database say different things about a table.
pub fn missing(
    sharded: &[DeclaredTable],
    omnisharded: &[(String, String)],
    kept: &Kept,
    tables: &HashSet<(String, String)>,
) -> Result<Vec<Missing>, Fault> {
    let mut lacking = Vec::new();
    // Omnisharded ones first: a lookup may only read such tables.
    for name in omnisharded {
        if let Some(row) = kept
            .sharded
            .iter()
            .find(|row| row.schema == name.0 && row.table == name.1)
        {
            return Err(contradiction(name, "omnisharded", &describe_row(row)));
        }
        if !kept.is_omnisharded(name) && tables.contains(name) {
            lacking.push(Missing::Omnisharded(name.0.clone(), name.1.clone()));
        }
    }
    for table in sharded {
        let name = (table.schema.clone(), table.table.clone());
        if kept.is_omnisharded(&name) {
            return Err(contradiction(
                &name,
                &describe_declared(table),
                "omnisharded",
            ));
        }
        // Rules for "every table with this column" stand beside each other, one per column.
        let same = kept.sharded.iter().find(|row| {
            row.table == table.table
                && if table.table.is_empty() {
                    row.column == table.column
                } else {
                    row.schema == table.schema
                }
        });
        match same {
            Some(row) if agrees(table, row) => {}
            Some(row) => {
                return Err(contradiction(
                    &name,
                    &describe_declared(table),
                    &describe_row(row),
                ));
            }
            None if table.table.is_empty() || tables.contains(&name) => {
                lacking.push(Missing::Sharded(table.clone()));
            }
            None => {}
        }
    }
    Ok(lacking)
}

fn agrees(table: &DeclaredTable, row: &ShardedRow) -> bool {
    let result_counts = table.lookup_query.is_some();
    table.column == row.column
        && table.data_type == row.data_type
        && squeeze(table.lookup_query.as_deref()) == squeeze(row.lookup_query.as_deref())
        && (!result_counts || table.lookup_result == row.lookup_result)
        && json(table.mapping.as_deref()) == json(row.mapping.as_deref())
}

/// White space in a query is layout.
fn squeeze(query: Option<&str>) -> Option<String> {
    query.map(|text| {
        let text = text.trim().trim_end_matches(';');
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}

fn json(text: Option<&str>) -> Option<serde_json::Value> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

fn describe_declared(table: &DeclaredTable) -> String {
    describe(
        &table.column,
        &table.data_type,
        table.lookup_query.as_deref(),
        &table.lookup_result,
        table.mapping.is_some(),
    )
}

fn describe_row(row: &ShardedRow) -> String {
    describe(
        &row.column,
        &row.data_type,
        row.lookup_query.as_deref(),
        &row.lookup_result,
        row.mapping.is_some(),
    )
}

fn describe(
    column: &str,
    data_type: &str,
    query: Option<&str>,
    result: &str,
    mapped: bool,
) -> String {
    let how = match query {
        Some(query) => format!("lookup_query ({result}) {query}"),
        None if mapped => "an explicit mapping".to_owned(),
        None => "hash".to_owned(),
    };
    format!("sharded by {column} {data_type}, {how}")
}

fn contradiction(name: &(String, String), ours: &str, theirs: &str) -> Fault {
    let table = match name.1.as_str() {
        "" => "every table with that column".to_owned(),
        table => format!("{}.{table}", name.0),
    };
    trouble::contradiction(&table, ours, theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::topology::OmniTable;

    fn declared() -> DeclaredTable {
        DeclaredTable {
            schema: "public".into(),
            table: "orders".into(),
            column: "tenant_id".into(),
            data_type: "bigint".into(),
            lookup_query: Some("SELECT shard_id FROM tenants WHERE id = $1".into()),
            lookup_result: "shard".into(),
            mapping: None,
        }
    }

    fn row() -> ShardedRow {
        ShardedRow {
            schema: "public".into(),
            table: "orders".into(),
            column: "tenant_id".into(),
            data_type: "bigint".into(),
            strategy: "lookup_query".into(),
            lookup_query: Some("SELECT shard_id\n  FROM tenants WHERE id = $1;".into()),
            lookup_result: "shard".into(),
            ..ShardedRow::default()
        }
    }

    fn name(table: &str) -> (String, String) {
        ("public".into(), table.into())
    }

    fn omni(table: &str) -> OmniTable {
        OmniTable {
            schema: "public".into(),
            table: table.into(),
            declared: true,
            ..OmniTable::default()
        }
    }

    fn tables() -> HashSet<(String, String)> {
        [name("orders"), name("plans")].into()
    }

    #[test]
    fn what_exists_undeclared_is_missing_and_what_does_not_exist_waits() {
        let mut absent = declared();
        absent.table = "later".into();
        let omni = [name("plans"), name("nowhere")];
        let found = missing(&[declared(), absent], &omni, &Kept::default(), &tables());
        let plans = Missing::Omnisharded("public".into(), "plans".into());
        assert_eq!(found, Ok(vec![plans, Missing::Sharded(declared())]));
    }

    #[test]
    fn a_declaration_that_is_kept_is_not_missing() {
        let kept = Kept {
            sharded: vec![row()],
            omnisharded: vec![omni("plans")],
            nodes: Vec::new(),
            functions: Default::default(),
            shadows: Default::default(),
        };
        assert_eq!(
            missing(&[declared()], &[name("plans")], &kept, &tables()),
            Ok(vec![])
        );
    }

    #[test]
    fn another_rule_for_the_same_table_is_a_contradiction_that_names_both() {
        for change in [
            |row: &mut ShardedRow| row.column = "user_id".into(),
            |row: &mut ShardedRow| row.data_type = "uuid".into(),
            |row: &mut ShardedRow| row.lookup_query = None,
            |row: &mut ShardedRow| row.lookup_result = "value".into(),
            |row: &mut ShardedRow| row.mapping = Some("[]".into()),
        ] {
            let mut theirs = row();
            change(&mut theirs);
            let kept = Kept {
                sharded: vec![theirs],
                ..Kept::default()
            };
            let fault = missing(&[declared()], &[], &kept, &tables()).expect_err("differs");
            assert_eq!(fault.sqlstate(), "55000");
            let text = format!("{} {:?}", fault.message(), fault.detail());
            assert!(text.contains("tenant_id bigint"), "{text}");
        }
    }

    #[test]
    fn sharded_here_and_omnisharded_there_is_a_contradiction() {
        let kept = Kept {
            omnisharded: vec![omni("orders")],
            ..Kept::default()
        };
        assert!(missing(&[declared()], &[], &kept, &tables()).is_err());
        let kept = Kept {
            sharded: vec![row()],
            ..Kept::default()
        };
        assert!(missing(&[], &[name("orders")], &kept, &tables()).is_err());
    }

    #[test]
    fn rules_for_every_table_stand_beside_each_other() {
        let every = |column: &str| DeclaredTable {
            table: String::new(),
            column: column.into(),
            lookup_query: None,
            lookup_result: "value".into(),
            ..declared()
        };
        let theirs = ShardedRow {
            schema: String::new(),
            table: String::new(),
            lookup_query: None,
            lookup_result: "value".into(),
            ..row()
        };
        let kept = Kept {
            sharded: vec![theirs],
            ..Kept::default()
        };
        let ours = [every("tenant_id"), every("account_id")];
        let found = missing(&ours, &[], &kept, &tables());
        assert_eq!(found, Ok(vec![Missing::Sharded(every("account_id"))]));
    }
}
