//! What a read over several shards has to know of a query besides its relations: where they stand.

use std::ops::Range;

use pg_query::protobuf::{LimitOption, SelectStmt, SetOperation};

use super::Change;
use super::facts::Facts;
use super::scalar::{is_clock, is_drawn, is_mergeable, is_scalar};

/// Where a query level stands in the one around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// The statement itself.
    Top,
    /// An item of FROM, or an arm of a set operation.
    From,
    /// A WITH query.
    With,
    /// Below `EXISTS`.
    Exists,
    /// On the right of `IN` or `= ANY`.
    In,
    /// Where a value is expected, or an array.
    #[default]
    Value,
}

/// One query level. All ranges are of indexes into `Statement::relations`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Level {
    /// Where it stands.
    pub place: Place,
    /// Everything in it, with what is nested.
    pub relations: Range<usize>,
    /// What its FROM names, with what is nested there.
    pub from: Range<usize>,
    /// It joins and filters rows, and no more: no groups, no limits, no set operation.
    pub plain: bool,
    /// Which rows it has may hang on the order in which they are found.
    pub limited: bool,
}

/// A join that keeps rows of one side that have no partner on the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OuterJoin {
    /// The side of which all rows are kept.
    pub kept: Range<usize>,
    /// The side that is filled up with NULL.
    pub filled: Range<usize>,
    /// Both sides are kept.
    pub full: bool,
}

/// Facts for reads over several shards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Levels {
    /// Every query level, an outer one before those in it.
    pub all: Vec<Level>,
    /// Every outer join.
    pub outer_joins: Vec<OuterJoin>,
    /// The first function that is not known to look at one row only, or to be an aggregate that
    /// can be merged.
    pub unknown_function: Option<String>,
    /// The first thing that differs from server to server and is no filter by the time.
    pub unsteady: Option<String>,
    /// Why the levels cannot be told apart.
    pub unclear: Option<&'static str>,
    /// Those that are being read, innermost last.
    open: Vec<usize>,
    /// Where the next level stands.
    next: Option<Place>,
    /// How many conditions are being read.
    conditions: usize,
    /// What the statement itself shows is being read.
    shown: bool,
}

impl Levels {
    /// The next level that is read stands here.
    pub(super) fn expect(&mut self, place: Place) {
        self.next = Some(place);
    }

    /// Whether a level inside of another one is being read.
    pub(super) fn is_nested(&self) -> bool {
        self.open.len() > 1
    }

    fn innermost(&mut self) -> Option<&mut Level> {
        let index = *self.open.last()?;
        self.all.get_mut(index)
    }

    /// Notes something that is not the same on every server.
    pub(super) fn note_divergent(&mut self, name: &str) {
        let is_filter = self.conditions > 0 && is_clock(name);
        let is_order = name == UNORDERED;
        // Elsewhere one value may be for all rows.
        let is_of_row = self.shown && !self.is_nested() && is_drawn(name);
        if !is_filter && !is_order && !is_of_row && self.unsteady.is_none() {
            self.unsteady = Some(name.to_owned());
        }
    }

    /// Notes a function. `own` tells whether all columns in its arguments are surely of the level
    /// that it stands in.
    pub(super) fn note_call(&mut self, schema: Option<&str>, name: &str, own: bool) {
        let known = matches!(schema, None | Some("pg_catalog"));
        if known && is_scalar(name) {
            return;
        }
        if !known || !is_mergeable(name) {
            self.unknown_function.get_or_insert_with(|| name.to_owned());
        }
        if self.is_nested() && !own {
            self.unclear
                .get_or_insert("an aggregate in a subquery may belong to the query around it");
        }
        if let Some(level) = self.innermost() {
            level.plain = false;
        }
    }

    /// Begins the reading of what the innermost level shows.
    pub(super) fn enter_targets(&mut self) {
        self.shown |= !self.is_nested();
    }

    /// See [`Levels::enter_targets`].
    pub(super) fn leave_targets(&mut self) {
        self.shown &= self.is_nested();
    }

    /// Begins and ends the reading of a condition.
    pub(super) fn enter_condition(&mut self) {
        self.conditions += 1;
    }

    /// See [`Levels::enter_condition`].
    pub(super) fn leave_condition(&mut self) {
        self.conditions -= 1;
    }
}

/// What counts as divergent although only the order of rows is not fixed.
pub(super) const UNORDERED: &str = "LIMIT without ORDER BY";

impl Facts {
    /// Opens a query level.
    pub(super) fn enter_level(&mut self, select: &SelectStmt) {
        let levels = &mut self.levels;
        let place = match levels.all.is_empty() {
            true => Place::Top,
            false => levels.next.take().unwrap_or_default(),
        };
        levels.open.push(levels.all.len());
        let start = self.relations.len();
        let limited = select.limit_count.is_some()
            || select.limit_offset.is_some()
            || !select.distinct_clause.is_empty();
        levels.all.push(Level {
            place,
            relations: start..start,
            from: start..start,
            plain: is_plain(select) && !limited,
            limited,
        });
    }

    /// Reads an UPDATE or DELETE that is the statement itself: a level of its own.
    pub(super) fn change(&mut self, shows: bool, read: impl FnOnce(&mut Self)) {
        self.levels.open.push(self.levels.all.len());
        self.levels.all.push(Level {
            place: Place::Top,
            plain: true,
            ..Level::default()
        });
        read(self);
        if let Some(level) = self.levels.innermost() {
            level.from = self.changed.clone();
        }
        self.leave_level();
        let target = self.changed.start;
        self.change = Some(Change {
            targets: target..target + 1,
            shows,
        });
    }

    /// Its FROM is read, which began with this relation.
    pub(super) fn note_from(&mut self, start: usize) {
        let end = self.relations.len();
        if let Some(level) = self.levels.innermost() {
            level.from = start..end;
        }
    }

    /// Closes the innermost query level.
    pub(super) fn leave_level(&mut self) {
        let end = self.relations.len();
        if let Some(level) = self.levels.innermost() {
            level.relations.end = end;
        }
        self.levels.open.pop();
    }
}

fn is_plain(select: &SelectStmt) -> bool {
    select.op == SetOperation::SetopNone as i32
        && select.group_clause.is_empty()
        && select.having_clause.is_none()
        && select.window_clause.is_empty()
        && select.values_lists.is_empty()
        && select.locking_clause.is_empty()
        && select.into_clause.is_none()
        && select.limit_option != LimitOption::WithTies as i32
}
