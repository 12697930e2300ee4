//! The shards where a sharded relation's rows can be, by the facts of the plan.
//!
//! Every fact about the key is a set of values that holds the key of each touched row. Facts come
//! from the relation itself, and through equal columns from other relations of the statement. The
//! rows are where *all* facts allow.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use pgdog_core::fault::{Fault, NodeError};
use pgdog_core::ids::ShardNumber;
use pgdog_core::placement::{Key, Placed, place_key};

use crate::nodes::topology::{ShardedTable, Topology};
use crate::plan::{Origin, Relation, Statement, Value};

use super::class::Class;
use super::key::{Read, read};
use super::{LookupKey, Params, SessionView};

/// What is known about where the touched rows of one relation are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// On these shards only; none at all when no row can match.
    To {
        shards: BTreeSet<ShardNumber>,
        /// `key tenant_id=42`
        reason: String,
    },
    /// Anywhere.
    Unbound,
}

/// Everything that finding keys needs.
pub(super) struct Binder<'a> {
    pub(super) statement: &'a Statement,
    pub(super) classes: &'a [Class],
    pub(super) params: &'a dyn Params,
    topology: &'a Topology,
    shards: u16,
    known: HashMap<&'a LookupKey, ShardNumber>,
    /// Keys that only the database can place.
    pub(super) wanted: Vec<LookupKey>,
}

/// A set of values that holds the key of every touched row.
struct Fact<'a> {
    values: Vec<&'a Value>,
    /// Given in the statement as the very values of inserted rows.
    inserted: bool,
    /// Values that are stored as the key, also by an INSERT that takes them from elsewhere.
    stored: bool,
}

impl<'a> Binder<'a> {
    pub(super) fn new(
        statement: &'a Statement,
        classes: &'a [Class],
        params: &'a dyn Params,
        (topology, session): (&'a Topology, &SessionView<'a>),
    ) -> Self {
        Self {
            statement,
            classes,
            params,
            topology,
            shards: u16::try_from(topology.shards.len()).unwrap_or(u16::MAX),
            known: session
                .lookups
                .iter()
                .map(|(key, shard)| (key, *shard))
                .collect(),
            wanted: Vec::new(),
        }
    }

    /// The declaration of a sharded relation.
    pub(super) fn table(&self, index: usize) -> &'a ShardedTable {
        &self.topology.sharded[index]
    }

    /// Where the touched rows of a relation are.
    ///
    /// # Errors
    /// 23502 for an inserted row without a key, 22P02 for a value that is no key, 23514 for a key
    /// that no mapping covers.
    pub(super) fn bind(&mut self, relation: usize, table: usize) -> Result<Bound, Fault> {
        let declared = self.table(table);
        let inserts = is_insert(&self.statement.relations[relation]);
        let facts = self.facts(relation, &declared.column);
        if inserts && !facts.iter().any(|fact| fact.inserted) && self.lacks_key(relation, declared)
        {
            return Err(null_key(declared));
        }
        let mut found: Option<(BTreeSet<ShardNumber>, String)> = None;
        for fact in &facts {
            let Some((shards, reason)) = self.place(fact, table)? else {
                continue;
            };
            found = Some(match found {
                None => (shards, reason),
                Some((before, _)) if shards.len() < before.len() => {
                    (shards.intersection(&before).copied().collect(), reason)
                }
                Some((before, reason)) => (before.intersection(&shards).copied().collect(), reason),
            });
        }
        Ok(match found {
            Some((shards, reason)) => Bound::To { shards, reason },
            None => Bound::Unbound,
        })
    }

    /// The single key that a relation is bound to by each of its facts.
    pub(super) fn keys(&self, relation: usize, table: usize) -> Result<Vec<Key>, Fault> {
        let declared = self.table(table);
        let mut keys = Vec::new();
        for fact in self.facts(relation, &declared.column) {
            let mut distinct = BTreeSet::new();
            let mut certain = true;
            for value in fact.values {
                for read in read(value, declared.rule.data_type, self.params)? {
                    match read {
                        Read::Key(key) => {
                            distinct.insert(key);
                        }
                        Read::Null | Read::Nowhere => {}
                        Read::Unknown => certain = false,
                    }
                }
            }
            if certain && distinct.len() == 1 {
                keys.extend(distinct);
            }
        }
        Ok(keys)
    }

    /// The shard of one key, if it is known already.
    ///
    /// # Errors
    /// 23514 for a key that no mapping covers.
    pub(super) fn shard_of(
        &mut self,
        key: &Key,
        table: usize,
    ) -> Result<Option<ShardNumber>, Fault> {
        let rule = &self.table(table).rule;
        match place_key(rule, key, self.shards)? {
            Placed::Shard(shard) => Ok(Some(shard)),
            Placed::Lookup(key) => {
                let wanted = LookupKey {
                    rule: self.first_with_rule(table),
                    key: key.to_string(),
                };
                if let Some(shard) = self.known.get(&wanted) {
                    return Ok(Some(*shard));
                }
                if !self.wanted.contains(&wanted) {
                    self.wanted.push(wanted);
                }
                Ok(None)
            }
        }
    }

    /// Tables of one statement with the same rule share a lookup.
    fn first_with_rule(&self, table: usize) -> usize {
        let rule = &self.table(table).rule;
        let same = |class: &Class| match class {
            Class::Sharded(index) if self.table(*index).rule == *rule => Some(*index),
            _ => None,
        };
        self.classes.iter().find_map(same).unwrap_or(table)
    }

    /// The shards of a fact; `None` when it has a value that cannot be known.
    fn place(
        &mut self,
        fact: &Fact<'_>,
        table: usize,
    ) -> Result<Option<(BTreeSet<ShardNumber>, String)>, Fault> {
        let declared = self.table(table);
        let max_length = declared.max_length.filter(|_| fact.stored);
        let mut keys: BTreeMap<Key, ()> = BTreeMap::new();
        for value in &fact.values {
            for read in read(value, declared.rule.data_type, self.params)? {
                match read {
                    Read::Key(key) => {
                        fits(&key, max_length)?;
                        keys.insert(key, ());
                    }
                    Read::Null if fact.inserted => return Err(null_key(declared)),
                    // A number that is rounded when it is stored.
                    Read::Nowhere if fact.inserted => return Ok(None),
                    Read::Null | Read::Nowhere => {}
                    Read::Unknown => return Ok(None),
                }
            }
        }
        let mut shards = BTreeSet::new();
        let mut complete = true;
        for key in keys.keys() {
            match self.shard_of(key, table)? {
                Some(shard) => {
                    shards.insert(shard);
                }
                None => complete = false,
            }
        }
        let reason = reason(declared, keys.keys());
        // With keys still to be looked up the answer is asked for again.
        Ok(complete.then_some((shards, reason)))
    }

    /// All facts about a column, also through columns that are equal to it.
    fn facts(&self, relation: usize, column: &str) -> Vec<Fact<'a>> {
        let statement = self.statement;
        let mut facts = Vec::new();
        let mut seen: HashSet<(usize, String)> = HashSet::new();
        let mut open = vec![(relation, column.to_owned())];
        let stored = is_insert(&statement.relations[relation]);
        while let Some((index, column)) = open.pop() {
            if !seen.insert((index, column.clone())) {
                continue;
            }
            let Some(relation) = statement.relations.get(index) else {
                continue;
            };
            let inserted = is_insert(relation);
            for (name, values) in &relation.bound {
                if *name == column {
                    facts.push(Fact {
                        values: values.iter().collect(),
                        inserted,
                        stored,
                    });
                }
            }
            for (name, other, other_column) in &relation.joined {
                if *name == column {
                    open.push((*other, other_column.clone()));
                }
            }
            if let Some(position) = self.position(index, &column) {
                self.inserted(relation, position, &mut facts, &mut open);
            }
        }
        facts
    }

    /// Facts from the rows of an INSERT without a column list, or from its SELECT.
    fn inserted(
        &self,
        relation: &'a Relation,
        position: usize,
        facts: &mut Vec<Fact<'a>>,
        open: &mut Vec<(usize, String)>,
    ) {
        if let Some(rows) = &relation.positional {
            let cells: Option<Vec<&Value>> = rows.iter().map(|row| row.get(position)).collect();
            if let Some(values) = cells {
                facts.push(Fact {
                    values,
                    inserted: true,
                    stored: true,
                });
            }
        }
        let origins = relation
            .selected
            .as_ref()
            .and_then(|selected| selected.get(position));
        for origin in origins.into_iter().flatten() {
            match origin {
                Origin::Values(values) => {
                    facts.push(Fact {
                        values: values.iter().collect(),
                        inserted: true,
                        stored: true,
                    });
                }
                Origin::Column(other, column) => open.push((*other, column.clone())),
            }
        }
        if let Some(star) = relation.selected_star
            && let Some(Class::Sharded(table)) = self.classes.get(star)
            && self.table(*table).position == Some(position)
        {
            open.push((star, self.table(*table).column.clone()));
        }
    }

    /// Where a column stands among the inserted ones.
    fn position(&self, relation: usize, column: &str) -> Option<usize> {
        let inserted = &self.statement.relations[relation];
        if !inserted.insert_columns.is_empty() {
            return inserted
                .insert_columns
                .iter()
                .position(|name| name == column);
        }
        match self.classes.get(relation) {
            Some(Class::Sharded(table)) if self.table(*table).column == column => {
                self.table(*table).position
            }
            _ => None,
        }
    }

    /// True when the INSERT surely gives no key.
    fn lacks_key(&self, relation: usize, declared: &ShardedTable) -> bool {
        let inserted = &self.statement.relations[relation];
        if !inserted.insert_columns.is_empty() {
            return !inserted.insert_columns.contains(&declared.column);
        }
        match (&inserted.positional, declared.position) {
            (Some(rows), Some(position)) => rows.iter().any(|row| row.len() <= position),
            _ => false,
        }
    }
}

/// Whether rows are added, so that their key is given rather than found.
pub(super) fn is_insert(relation: &Relation) -> bool {
    relation.written
        && (relation.positional.is_some()
            || relation.selected.is_some()
            || !relation.insert_columns.is_empty())
}

/// `varchar(n)` cuts spaces behind its length off without a word: the key would be another one.
///
/// # Errors
/// 22001, as for any other text of that length.
pub(super) fn fits(key: &Key, max_length: Option<usize>) -> Result<(), Fault> {
    match (key, max_length) {
        (Key::Varchar(text), Some(length)) if text.chars().count() > length => {
            Err(Fault::Node(Box::new(NodeError {
                code: "22001".to_owned(),
                message: format!("value too long for type character varying({length})"),
                detail: Some("A sharding key is not cut, not even spaces at its end.".to_owned()),
                ..NodeError::default()
            })))
        }
        _ => Ok(()),
    }
}

pub(super) fn null_key(declared: &ShardedTable) -> Fault {
    Fault::NullKey {
        table: declared.table.clone(),
        column: declared.column.clone(),
    }
}

fn reason<'k>(declared: &ShardedTable, keys: impl ExactSizeIterator<Item = &'k Key>) -> String {
    use pgdog_core::placement::Strategy;
    let how = match declared.rule.strategy {
        Strategy::Hash | Strategy::Mapping(_) => "key",
        Strategy::LookupQuery { .. } | Strategy::WholeMap { .. } => "lookup",
    };
    let column = &declared.column;
    let count = keys.len();
    let shown: Vec<String> = keys.take(3).map(ToString::to_string).collect();
    match (count, shown.as_slice()) {
        (0, _) => format!("no row has {column}=NULL"),
        (1, [key]) => format!("{how} {column}={key}"),
        (4.., shown) => format!("{how} {column} in ({}, ...)", shown.join(", ")),
        (_, shown) => format!("{how} {column} in ({})", shown.join(", ")),
    }
}
