//! Names in scope: what a column reference of a query can mean.
//!
//! No catalog is at hand, so an unqualified column is taken to belong to *every* stored relation
//! of its query level. That is sound for the one use that is made of it: the router asks only for
//! the sharding key of tables that surely have it. If two of them have it, PostgreSQL itself
//! rejects the reference as ambiguous; on a table that lacks it the entry is an alias that
//! nobody reads.

use std::ops::Range;

use pg_query::NodeEnum;
use pg_query::protobuf::Node;

use super::Value;
use super::value::string;

/// What one column of a query can be traced to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Column {
    /// A column of the relation with this index.
    Stored {
        /// Index into `Statement::relations`.
        relation: usize,
        /// Its name there.
        name: String,
    },
    /// One of these values.
    Listed(Vec<Value>),
}

/// The columns that a query yields, as far as they can be traced.
#[derive(Debug, Clone, Default)]
pub(super) struct Outputs {
    /// Named columns; an empty trace means "could be anything".
    pub(super) columns: Vec<(String, Vec<Column>)>,
    /// How many of `columns` have a certain position (those before the first `*`).
    pub(super) ordered: usize,
    /// Relations whose columns are all included by a `*`.
    pub(super) stars: Vec<usize>,
    /// True when there may be more columns than are listed here.
    pub(super) open: bool,
}

impl Outputs {
    /// A query of which nothing is known.
    pub(super) fn unknown() -> Self {
        Self {
            open: true,
            ..Self::default()
        }
    }

    /// Adds a column behind the others.
    pub(super) fn push(&mut self, name: String, trace: Vec<Column>) {
        if self.stars.is_empty() && !self.open {
            self.ordered = self.columns.len() + 1;
        }
        self.columns.push((name, trace));
    }

    /// The trace of the column at a position, empty if it is not certain.
    pub(super) fn at(&self, position: usize) -> &[Column] {
        if position < self.ordered {
            &self.columns[position].1
        } else {
            &[]
        }
    }

    /// The trace of a column by name; `None` when the query surely has no such column.
    pub(super) fn named(&self, name: &str) -> Option<Vec<Column>> {
        let mut same = self.columns.iter().filter(|(column, _)| column == name);
        match (same.next(), same.next()) {
            (Some((_, trace)), None) => Some(trace.clone()),
            (Some(_), Some(_)) => Some(Vec::new()),
            (None, _) if !self.stars.is_empty() => Some(
                self.stars
                    .iter()
                    .map(|&relation| Column::Stored {
                        relation,
                        name: name.to_owned(),
                    })
                    .collect(),
            ),
            (None, _) if self.open => Some(Vec::new()),
            (None, _) => None,
        }
    }

    /// Whether it has these columns in this order and no others.
    pub(super) fn is_complete(&self) -> bool {
        self.ordered == self.columns.len() && self.stars.is_empty() && !self.open
    }

    /// Applies the column names of an alias.
    pub(super) fn rename(&mut self, names: &[Node]) {
        if names.len() > self.ordered {
            *self = Self::unknown();
            return;
        }
        for (column, name) in self.columns.iter_mut().zip(names) {
            string(name).unwrap_or_default().clone_into(&mut column.0);
        }
    }

    /// What `self UNION other` yields: traceable only where both sides are plain values.
    pub(super) fn union(self, other: &Self) -> Self {
        if !self.is_complete() || other.ordered != self.ordered {
            return Self::unknown();
        }
        let mut outputs = Self::default();
        for (position, (name, trace)) in self.columns.into_iter().enumerate() {
            let trace = match (trace.as_slice(), other.at(position)) {
                ([Column::Listed(left)], [Column::Listed(right)]) => {
                    vec![Column::Listed(left.iter().chain(right).cloned().collect())]
                }
                _ => Vec::new(),
            };
            outputs.push(name, trace);
        }
        outputs
    }
}

/// Where the columns of a FROM item come from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// A stored relation, by index.
    Table(usize),
    /// A subquery or a CTE.
    Query(Outputs),
    /// A function or a relation whose columns were renamed: anything.
    Other,
}

/// One item of a FROM list.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// Alias, or the relation's own name.
    pub(super) name: String,
    /// Schema as written, when the relation has no alias.
    pub(super) schema: Option<String>,
    pub(super) source: Source,
}

/// One query level.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) items: Vec<Item>,
    /// Off while a FROM subquery without LATERAL is read: it does not see its siblings.
    pub(super) hidden: bool,
    /// Some join of this level is an outer one.
    pub(super) outer_join: bool,
    /// Items on the nullable side of an outer join with USING (of this column) or NATURAL (any
    /// column): the merged column may hold the other side's value where theirs is NULL.
    pub(super) merged: Vec<(Option<String>, Range<usize>)>,
}

/// Query levels from the outermost to the innermost.
#[derive(Debug, Default)]
pub(super) struct Scopes(pub(super) Vec<Scope>);

impl Scopes {
    /// The innermost level.
    pub(super) fn top(&mut self) -> &mut Scope {
        if self.0.is_empty() {
            self.0.push(Scope::default());
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Everything that a column reference can mean; empty when that is unknown.
    pub(super) fn resolve(&self, fields: &[Node]) -> Vec<Column> {
        let names: Option<Vec<&str>> = fields.iter().map(string).collect();
        let visible = || self.0.iter().rev().filter(|scope| !scope.hidden);
        match names.as_deref() {
            Some([column]) => visible()
                .find_map(|scope| scope.unqualified(0..scope.items.len(), column))
                .unwrap_or_default(),
            Some([relation, column]) => visible()
                .find_map(|scope| scope.qualified(None, relation, column))
                .unwrap_or_default(),
            Some([schema, relation, column]) => visible()
                .find_map(|scope| scope.qualified(Some(schema), relation, column))
                .unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}

impl Scope {
    /// What an unqualified column can mean among some items; `None` when none of them has it.
    pub(super) fn unqualified(&self, items: Range<usize>, column: &str) -> Option<Vec<Column>> {
        let mut found: Option<Vec<Column>> = None;
        for index in items {
            let trace = if self.is_merged(index, column) {
                Some(Vec::new())
            } else {
                self.items[index].column(column)
            };
            if let Some(trace) = trace {
                found.get_or_insert_default().extend(trace);
            }
        }
        found
    }

    fn is_merged(&self, item: usize, column: &str) -> bool {
        self.merged.iter().any(|(name, items)| {
            items.contains(&item) && name.as_deref().is_none_or(|name| name == column)
        })
    }

    /// Whether some column of the item is not its own under an unqualified name.
    pub(super) fn merges(&self, item: usize) -> bool {
        self.merged.iter().any(|(_, items)| items.contains(&item))
    }

    fn qualified(&self, schema: Option<&str>, name: &str, column: &str) -> Option<Vec<Column>> {
        let mut same = self.items.iter().filter(|item| {
            item.name == name && schema.is_none_or(|schema| item.schema.as_deref() == Some(schema))
        });
        let item = same.next()?;
        if same.next().is_some() {
            return Some(Vec::new());
        }
        Some(item.column(column).unwrap_or_default())
    }
}

impl Item {
    fn column(&self, name: &str) -> Option<Vec<Column>> {
        match &self.source {
            Source::Table(relation) => Some(vec![Column::Stored {
                relation: *relation,
                name: name.to_owned(),
            }]),
            Source::Query(outputs) => outputs.named(name),
            Source::Other => Some(Vec::new()),
        }
    }

    /// The relation, when the item is one.
    pub(super) fn table(&self) -> Option<usize> {
        match self.source {
            Source::Table(relation) => Some(relation),
            Source::Query(_) | Source::Other => None,
        }
    }
}

/// The name under which PostgreSQL shows an expression without `AS`, where it matters here.
pub(super) fn natural_name(node: &Node) -> String {
    match &node.node {
        Some(NodeEnum::ColumnRef(column)) => column
            .fields
            .last()
            .and_then(string)
            .unwrap_or_default()
            .to_owned(),
        Some(NodeEnum::TypeCast(cast)) => cast.arg.as_deref().map(natural_name).unwrap_or_default(),
        Some(NodeEnum::FuncCall(call)) => call
            .funcname
            .last()
            .and_then(string)
            .unwrap_or_default()
            .to_owned(),
        _ => String::new(),
    }
}
