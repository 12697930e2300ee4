//! Do the shards agree? Counts and hashes of every omni table, of one moment.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;

use super::cut;
use super::error::WorkflowError;
use super::node::Node;
use super::site::Site;

/// One omni table on one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableHash {
    /// The table.
    pub table: String,
    /// Its rows.
    pub rows: i64,
    /// Hash that does not depend on their order.
    pub hash: String,
}

/// One row of `VERIFY SHARD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The table.
    pub table: String,
    /// 0-based shard.
    pub shard: usize,
    /// Rows there; none when the table is missing.
    pub rows: Option<i64>,
    /// Hash there.
    pub hash: Option<String>,
    /// Whether it is as on shard 0.
    pub agrees: bool,
}

/// Hashes of every serving shard, index = shard number.
///
/// # Errors
/// When a shard does not answer or a gate cannot be had.
pub async fn hashes(site: &Site) -> Result<Vec<Vec<TableHash>>, WorkflowError> {
    let readers = cut::cut(site, &site.serving).await?;
    try_join_all(readers.iter().map(of)).await
}

/// The omni tables that are not equal on all shards.
pub fn disagreeing(shards: &[Vec<TableHash>]) -> Vec<String> {
    let wrong = compare(shards)
        .into_iter()
        .filter(|row| !row.agrees)
        .map(|row| row.table);
    wrong.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Every table on every shard, against shard 0.
pub fn compare(shards: &[Vec<TableHash>]) -> Vec<Verified> {
    let by_name: Vec<BTreeMap<&str, &TableHash>> = shards
        .iter()
        .map(|tables| {
            tables
                .iter()
                .map(|table| (table.table.as_str(), table))
                .collect()
        })
        .collect();
    let names: BTreeSet<&str> = by_name
        .iter()
        .flat_map(|tables| tables.keys().copied())
        .collect();
    let mut rows = Vec::new();
    for name in names {
        let first = by_name.first().and_then(|tables| tables.get(name));
        for (shard, tables) in by_name.iter().enumerate() {
            let here = tables.get(name);
            rows.push(Verified {
                table: name.to_owned(),
                shard,
                rows: here.map(|table| table.rows),
                hash: here.map(|table| table.hash.clone()),
                agrees: here.is_some() && here == first,
            });
        }
    }
    rows
}

async fn of(node: &Node) -> Result<Vec<TableHash>, WorkflowError> {
    const SQL: &str = "SELECT table_name, rows, md5(hash::text) FROM pgdog.omni_hashes()";
    let rows = node.rows("hashing omni tables", SQL, &[]).await?;
    let hashes = rows.iter().map(|row| TableHash {
        table: row.get(0),
        rows: row.get(1),
        hash: row.get(2),
    });
    Ok(hashes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(table: &str, rows: i64, hash: &str) -> TableHash {
        TableHash {
            table: table.into(),
            rows,
            hash: hash.into(),
        }
    }

    #[test]
    fn equal_shards_agree() {
        let shard = vec![table("a", 1, "x"), table("b", 0, "0")];
        assert_eq!(disagreeing(&[shard.clone(), shard]), Vec::<String>::new());
    }

    #[test]
    fn a_missing_table_and_another_hash_both_disagree() {
        let shards = [
            vec![table("a", 1, "x"), table("b", 2, "y"), table("c", 1, "z")],
            vec![table("a", 1, "other"), table("c", 1, "z")],
        ];
        assert_eq!(disagreeing(&shards), ["a", "b"]);
        let rows = compare(&shards);
        assert_eq!(rows.len(), 6);
        assert!(
            rows.iter()
                .any(|row| row.table == "b" && row.shard == 1 && row.rows.is_none())
        );
    }
}
