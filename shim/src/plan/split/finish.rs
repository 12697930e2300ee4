//! The last step, done by PostgreSQL: the answer of all rows that the shards have found.
//!
//! The rows travel as arrays, one for each column. Types and collations are not written down:
//! the query of the shards itself stands beside them, without a row, in a UNION that takes them
//! from it.

use std::fmt::Write as _;

use pg_query::NodeEnum;
use pg_query::protobuf::{LimitOption, Node, SelectStmt};

use super::column::Column;
use super::rewrite::{self, parse};
use super::shape::shape;
use super::{SortKey, Unsplit, grouped};

/// How to finish.
#[derive(Debug)]
pub struct Finish {
    /// What the shards were asked, for its types.
    alike: SelectStmt,
    how: How,
    /// ORDER BY, LIMIT and OFFSET of the statement, where they are not written by the merge.
    limit: Limit,
}

#[derive(Debug)]
pub(super) enum How {
    /// Rows are ordered, and those that are alike are left out.
    Rows {
        distinct: Distinct,
        keys: Vec<SortKey>,
        /// Columns behind the client's own.
        extra: usize,
    },
    /// Groups are put together. The query reads from a table that stands for all rows.
    Groups(Box<SelectStmt>),
}

/// Which rows are left out as there are others like them; `On` has places among the columns behind
/// the client's own.
#[derive(Debug)]
pub(super) enum Distinct {
    None,
    All,
    On(Vec<usize>),
}

#[derive(Debug, Clone)]
struct Limit {
    count: Option<Box<Node>>,
    offset: Option<Box<Node>>,
    option: i32,
}

/// What stands for all rows.
pub(super) const ALL_ROWS: &str = "pgdog_rows";

/// The name of a column there, counted from 0.
pub(super) fn column_name(place: usize) -> String {
    format!("pgdog_{}", place + 1)
}

impl Finish {
    /// For rows: `select` is the statement, `asked` what the shards are asked.
    pub(super) fn of_rows(
        select: &SelectStmt,
        asked: &SelectStmt,
        (distinct, keys, extra): (Distinct, &[SortKey], usize),
    ) -> Self {
        let how = How::Rows {
            distinct,
            keys: keys.to_vec(),
            extra,
        };
        Self::new(select, asked, how)
    }

    /// For groups: `all` computes the answer from the table that stands for all rows.
    pub(super) fn of_groups(select: &SelectStmt, asked: &SelectStmt, all: SelectStmt) -> Self {
        Self::new(select, asked, How::Groups(Box::new(all)))
    }

    fn new(select: &SelectStmt, asked: &SelectStmt, how: How) -> Self {
        let mut alike = asked.clone();
        alike.distinct_clause.clear();
        alike.sort_clause.clear();
        alike.limit_offset = None;
        alike.limit_count = parse("SELECT 1 LIMIT 0").and_then(|none| none.limit_count);
        alike.limit_option = LimitOption::Count as i32;
        let limit = Limit {
            count: select.limit_count.clone(),
            offset: select.limit_offset.clone(),
            option: select.limit_option,
        };
        Self { alike, how, limit }
    }

    /// How many columns of what the shards have found are not the client's.
    pub fn extra(&self) -> usize {
        match &self.how {
            How::Rows { extra, .. } => *extra,
            How::Groups(_) => 0,
        }
    }

    /// The query for all rows, which are its parameters behind the first `params`: an array for
    /// each of these columns.
    ///
    /// # Errors
    /// A sum of a type whose sums cannot be added.
    pub fn text(&self, columns: &[Column], params: usize) -> Result<String, Unsplit> {
        let mut query = match &self.how {
            How::Rows {
                distinct,
                keys,
                extra,
            } => {
                let own = columns.len().saturating_sub(*extra);
                let mut query = read(&rows_query(own, columns.len(), (distinct, keys)))?;
                query.limit_count = self.limit.count.clone();
                query.limit_offset = self.limit.offset.clone();
                query.limit_option = self.limit.option;
                query
            }
            How::Groups(all) => {
                let mut query = all.as_ref().clone();
                grouped::settle_types(&mut query, columns)?;
                query
            }
        };
        let rows = self.all_rows(columns.len(), params)?;
        let placed = place_rows(&mut query, &rows);
        debug_assert!(placed, "every query reads from what stands for all rows");
        rewrite::text(&query)
    }

    /// `(query without a row UNION ALL SELECT * FROM unnest(...)) AS pgdog_rows(...)`
    fn all_rows(&self, columns: usize, params: usize) -> Result<Node, Unsplit> {
        let mut text = "SELECT * FROM ((SELECT 1) UNION ALL SELECT * FROM unnest(".to_owned();
        for place in 0..columns {
            let comma = if place == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}${}", params + place + 1);
        }
        let names: Vec<String> = (0..columns).map(column_name).collect();
        let _ = write!(text, ")) AS {ALL_ROWS} ({})", names.join(", "));
        let mut query = read(&text)?;
        let mut item = query.from_clause.pop().unwrap_or_default();
        if let Some(NodeEnum::RangeSubselect(rows)) = &mut item.node
            && let Some(NodeEnum::SelectStmt(union)) =
                rows.subquery.as_mut().and_then(|query| query.node.as_mut())
        {
            union.larg = Some(Box::new(self.alike.clone()));
        }
        Ok(item)
    }
}

/// The places of DISTINCT ON's expressions among the columns behind the client's own: those by
/// which rows are ordered come first.
pub(super) fn on_columns(expressions: &[Node], ordered: &[Node]) -> Vec<usize> {
    let mut next = ordered.len();
    let shapes: Vec<String> = ordered.iter().map(shape).collect();
    let place = |expression: &Node| {
        let shape = shape(expression);
        let known = shapes.iter().position(|other| *other == shape);
        known.unwrap_or_else(|| {
            next += 1;
            next - 1
        })
    };
    expressions.iter().map(place).collect()
}

/// Reads a text that was made here.
fn read(text: &str) -> Result<SelectStmt, Unsplit> {
    parse(text).ok_or_else(|| Unsplit::new("its last step cannot be written"))
}

/// `SELECT own columns FROM (SELECT DISTINCT all columns FROM pgdog_rows) AS d ORDER BY keys`
fn rows_query(own: usize, all: usize, (distinct, keys): (&Distinct, &[SortKey])) -> String {
    let list = |places: &mut dyn Iterator<Item = usize>| {
        places.map(column_name).collect::<Vec<_>>().join(", ")
    };
    let order: Vec<String> = keys
        .iter()
        .enumerate()
        .map(|(nth, key)| {
            let direction = if key.descending { "DESC" } else { "ASC" };
            let nulls = if key.nulls_first { "FIRST" } else { "LAST" };
            format!("{} {direction} NULLS {nulls}", column_name(own + nth))
        })
        .collect();
    let order = match order.is_empty() {
        true => String::new(),
        false => format!(" ORDER BY {}", order.join(", ")),
    };
    let distinct = match distinct {
        Distinct::None => {
            return format!("SELECT {} FROM {ALL_ROWS}{order}", list(&mut (0..own)));
        }
        Distinct::All => format!("SELECT DISTINCT {} FROM {ALL_ROWS}", list(&mut (0..all))),
        Distinct::On(on) => {
            let on = list(&mut on.iter().map(|place| own + place));
            format!(
                "SELECT DISTINCT ON ({on}) {} FROM {ALL_ROWS}{order}",
                list(&mut (0..all))
            )
        }
    };
    format!(
        "SELECT {} FROM ({distinct}) AS pgdog_distinct{order}",
        list(&mut (0..own))
    )
}

/// Puts the rows where `pgdog_rows` stands; tells whether it was found.
fn place_rows(query: &mut SelectStmt, rows: &Node) -> bool {
    for item in &mut query.from_clause {
        match &mut item.node {
            Some(NodeEnum::RangeVar(table)) if table.relname == ALL_ROWS => {
                *item = rows.clone();
                return true;
            }
            Some(NodeEnum::RangeSubselect(inner)) => {
                if let Some(NodeEnum::SelectStmt(select)) = inner
                    .subquery
                    .as_mut()
                    .and_then(|query| query.node.as_mut())
                    && place_rows(select, rows)
                {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}
