//! What `CREATE INDEX CONCURRENTLY` makes, by name: it is left behind, unusable, when it fails.

use pg_query::NodeEnum;

/// An index that is built while others write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrentIndex {
    /// Schema of its table, as it is written.
    pub schema: Option<String>,
    /// Its table.
    pub table: String,
    /// Its own name.
    pub name: String,
}

/// The index that a text builds, if it does nothing else and names it.
pub fn concurrent_index(sql: &str) -> Option<ConcurrentIndex> {
    let parsed = pg_query::parse(sql, 0).ok()?;
    let [statement] = parsed.protobuf.stmts.as_slice() else {
        return None;
    };
    let Some(NodeEnum::IndexStmt(index)) = &statement.stmt.as_ref()?.node else {
        return None;
    };
    let relation = index.relation.as_ref()?;
    let named = index.concurrent && !index.idxname.is_empty();
    named.then(|| ConcurrentIndex {
        schema: Some(relation.schemaname.clone()).filter(|schema| !schema.is_empty()),
        table: relation.relname.clone(),
        name: index.idxname.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_behind_by_name_is_found() {
        let found = concurrent_index(
            "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS \"By Qty\" ON shop.orders (qty)",
        );
        let expected = ConcurrentIndex {
            schema: Some("shop".into()),
            table: "orders".into(),
            name: "By Qty".into(),
        };
        assert_eq!(found, Some(expected));
        for sql in [
            "CREATE INDEX by_qty ON orders (qty)",
            "CREATE INDEX CONCURRENTLY ON orders (qty)",
            "DROP INDEX CONCURRENTLY by_qty",
            "VACUUM",
            "",
        ] {
            assert_eq!(concurrent_index(sql), None, "{sql}");
        }
    }
}
