//! Whether a read may be split: every shard joins and filters its own rows, and what all of them
//! find is what one database with all rows would have found.
//!
//! That holds when
//! - rows of sharded tables meet only through their keys, so that they are on one shard, and
//! - no row of a table that every shard has counts by itself: it would be counted by each.

use std::collections::BTreeSet;
use std::ops::Range;

use super::class::Class;
use super::decide::Decision;
use super::{Outcome, refuse};
use crate::plan::{Called, Kind, Level, Place};

impl Decision<'_> {
    /// Whether the statement may run on every shard, each with its own rows.
    ///
    /// # Errors
    /// Why it may not; none when it is no read at all.
    pub(super) fn scattered(&self) -> Result<(), Option<Outcome>> {
        let statement = self.statement;
        let writes = statement.relations.iter().any(|relation| relation.written);
        let Some(top) = statement.levels.all.first() else {
            return Err(None);
        };
        let reads = statement.kind == Kind::Read && !writes && statement.change.is_none();
        if !reads || statement.prepared.is_some() {
            return Err(None);
        }
        self.is_split(top)
            .map_err(|why| Some(refuse::unmerged(why)))
    }

    /// Whether every shard finds its part of the rows by itself.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn is_split(&self, top: &Level) -> Result<(), String> {
        let (statement, levels) = (self.statement, &self.statement.levels);
        let own = |class, _| !matches!(class, Class::Sharded(_) | Class::Omni(_));
        if let Some(own) = self.first(own) {
            let name = self.name(own);
            return unmerged(format!("every node has rows of its own in \"{name}\""));
        }
        if let Some(why) = levels.unclear {
            return unmerged(why);
        }
        if let Some(name) = &levels.unknown_function {
            return unmerged(format!(
                "it is not known whether function \"{name}\" looks at one row only"
            ));
        }
        let system = |called: &&Called| called.schema.as_deref() == Some("pg_catalog");
        let mut called = statement.functions.called.iter();
        if let Some(called) =
            called.find(|called| !system(called) && self.topology.shadows.contains(&called.name))
        {
            let name = &called.name;
            return unmerged(format!(
                "there is a function \"{name}\" besides PostgreSQL's own: write \
                 pg_catalog.{name} if that one is meant"
            ));
        }
        if let Some(name) = &levels.unsteady {
            return unmerged(format!("every shard has another value for {name}"));
        }
        if top.from.is_empty() {
            return unmerged(
                "it has no FROM of its own whose rows could be merged: it is a set operation, or \
                 reads in subqueries only",
            );
        }
        if !self.has_direct(&top.from) {
            return unmerged("every shard has all rows of what stands in FROM");
        }
        for join in &levels.outer_joins {
            let kept_everywhere = !self.has_direct(&join.kept) || join.full;
            if kept_everywhere && self.sharded_in(&join.filled).next().is_some()
                || join.full && self.sharded_in(&join.kept).next().is_some()
            {
                return unmerged(
                    "an outer join keeps rows that have partners on other shards only",
                );
            }
        }
        for level in levels.all.iter().skip(1) {
            self.check_level(level)?;
        }
        self.check_joined()
    }

    /// A query inside of the statement: what it finds on one shard must be all that there is for
    /// the rows around it.
    fn check_level(&self, level: &Level) -> Result<(), String> {
        let mut sharded = self.sharded_in(&level.relations).peekable();
        if sharded.peek().is_none() {
            return match level.limited {
                true => unmerged("shards may choose different rows in a subquery"),
                false => Ok(()),
            };
        }
        let joins_only = match level.place {
            Place::Top | Place::From | Place::Exists | Place::In => level.plain,
            Place::With | Place::Value => false,
        };
        if joins_only {
            return Ok(());
        }
        if level.place == Place::With {
            return unmerged("a WITH query reads rows of several shards");
        }
        for relation in sharded {
            let meets = self.reached_from(relation);
            if !meets.iter().any(|other| !level.relations.contains(other)) {
                let name = self.name(relation);
                return unmerged(format!(
                    "a subquery reads rows of table \"{name}\" that are on other shards"
                ));
            }
        }
        Ok(())
    }

    /// All sharded relations must meet through their keys.
    fn check_joined(&self) -> Result<(), String> {
        let all = 0..self.classes.len();
        let mut groups: Vec<BTreeSet<usize>> = Vec::new();
        for relation in self.sharded_in(&all) {
            let mut group = self.reached_from(relation);
            groups.retain(|other| {
                let meets = !other.is_disjoint(&group);
                if meets {
                    group.extend(other);
                }
                !meets
            });
            groups.push(group);
        }
        let mut names = groups.iter().filter_map(|group| group.first());
        match (names.next(), names.next()) {
            (Some(one), Some(other)) => {
                let (one, other) = (self.name(*one), self.name(*other));
                unmerged(format!(
                    "rows of \"{one}\" and \"{other}\" that belong together may be on different \
                     shards"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Sharded relations whose key the key of this one is surely equal to, and itself.
    fn reached_from(&self, start: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([start]);
        let mut open = vec![start];
        while let Some(index) = open.pop() {
            let Class::Sharded(table) = self.classes[index] else {
                continue;
            };
            let own = self.binder.table(table);
            for (column, other, other_column) in &self.statement.relations[index].joined {
                let Some(Class::Sharded(there)) = self.classes.get(*other) else {
                    continue;
                };
                let there = self.binder.table(*there);
                let by_key = *column == own.column
                    && *other_column == there.column
                    && own.rule == there.rule;
                if by_key && reached.insert(*other) {
                    open.push(*other);
                }
            }
        }
        reached
    }

    /// Sharded relations among some.
    fn sharded_in(&self, range: &Range<usize>) -> impl Iterator<Item = usize> {
        let is_sharded = |index: &usize| matches!(self.classes[*index], Class::Sharded(_));
        range.clone().filter(is_sharded)
    }

    /// Whether some have rows of a sharded relation, not only conditions about it.
    fn has_direct(&self, range: &Range<usize>) -> bool {
        let nested = |index: usize| {
            let levels = self.statement.levels.all.iter().skip(1);
            levels
                .filter(|level| level.place != Place::From)
                .any(|level| level.relations.contains(&index))
        };
        self.sharded_in(range).any(|index| !nested(index))
    }
}

fn unmerged(why: impl Into<String>) -> Result<(), String> {
    Err(why.into())
}
