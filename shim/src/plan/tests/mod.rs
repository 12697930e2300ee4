//! Facts and kinds of statements, by table.

mod facts;
mod kinds;
mod values;

use super::{Plan, Relation, Statement, Value, parse};

fn plan(sql: &str) -> Plan {
    parse(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn one(sql: &str) -> Statement {
    let mut statements = plan(sql).statements;
    assert_eq!(statements.len(), 1, "{sql}");
    statements.remove(0)
}

fn relations(sql: &str) -> Vec<Relation> {
    one(sql).relations
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

/// What is known about a column of the nth relation, without following joins.
fn bound(sql: &str, relation: usize, column: &str) -> Vec<Vec<Value>> {
    let relation = &relations(sql)[relation];
    relation
        .bound
        .iter()
        .filter(|(name, _)| name == column)
        .map(|(_, v)| v.clone())
        .collect()
}
