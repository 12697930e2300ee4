//! Columns of omnisharded tables that a write leaves to a default which differs between shards.
//!
//! The topology knows those columns, the text knows which of them it gives. Triggers and rules can
//! compute values as well; neither the text nor the topology shows that.

use crate::nodes::topology::OmniTable;
use crate::plan::{Origin, Relation, Value};

use super::bind::is_insert;
use super::class::Class;
use super::decide::Decision;
use super::{Outcome, refuse};

impl Decision<'_> {
    /// The refusal of the first such column.
    pub(super) fn differing_default(&self) -> Option<Outcome> {
        let relations = self.statement.relations.iter().zip(self.classes);
        for (index, (relation, class)) in relations.enumerate() {
            let Class::Omni(table) = *class else {
                continue;
            };
            if !relation.written {
                continue;
            }
            let Some(table) = table else {
                if is_insert(relation) || sets_default(relation, None) {
                    return Some(refuse::unknown_columns(self.name(index)));
                }
                continue;
            };
            let table = &self.topology.omnisharded[table];
            let left_out = table
                .computed
                .iter()
                .find(|column| self.is_left_out(relation, table, column));
            if let Some(column) = left_out {
                return Some(refuse::differing_default(self.name(index), column));
            }
        }
        None
    }

    /// Whether a write may leave this column to its default.
    fn is_left_out(&self, relation: &Relation, table: &OmniTable, column: &str) -> bool {
        if sets_default(relation, Some(column)) {
            return true;
        }
        if !is_insert(relation) {
            return false;
        }
        let listed = !relation.insert_columns.is_empty();
        let names = if listed {
            &relation.insert_columns
        } else {
            &table.columns
        };
        let Some(position) = names.iter().position(|name| name == column) else {
            return true;
        };
        let named = relation.bound.iter().filter(|(name, _)| name == column);
        if named.into_iter().any(|(_, values)| has_default(values)) {
            return true;
        }
        let rows = relation.positional.iter().flatten();
        if rows
            .into_iter()
            .any(|row| matches!(row.get(position), None | Some(Value::Default)))
        {
            return true;
        }
        match &relation.selected {
            None => false,
            Some(selected) => match selected.get(position) {
                Some(origins) => origins
                    .iter()
                    .any(|origin| matches!(origin, Origin::Values(values) if has_default(values))),
                // A list of columns with too few values is an error of PostgreSQL's.
                None if listed => false,
                None => !relation.selected_more || self.star_columns(relation) <= Some(position),
            },
        }
    }

    /// How many columns the `*` of `INSERT ... SELECT *` stands for, if that is known.
    fn star_columns(&self, relation: &Relation) -> Option<usize> {
        match self.classes.get(relation.selected_star?)? {
            Class::Omni(Some(table)) => Some(self.topology.omnisharded[*table].columns.len()),
            Class::Omni(None)
            | Class::Sharded(_)
            | Class::Catalog
            | Class::Central
            | Class::Temporary
            | Class::Unlisted => None,
        }
    }
}

/// `SET column = DEFAULT`, of an UPDATE, a MERGE or ON CONFLICT; of any column without a name.
fn sets_default(relation: &Relation, column: Option<&str>) -> bool {
    relation.assigned.iter().any(|(name, value)| {
        *value == Some(Value::Default) && column.is_none_or(|column| column == name)
    })
}

fn has_default(values: &[Value]) -> bool {
    values.contains(&Value::Default)
}
