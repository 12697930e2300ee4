//! A read over several shards in two parts: what every shard is asked, and how one answer is made
//! of theirs. Pure; made from libpg_query's tree, by its own words.
//!
//! ```text
//!   SELECT a FROM t ORDER BY b DESC LIMIT 3 OFFSET 2
//!     every shard    SELECT a, b FROM t ORDER BY b DESC LIMIT 5      merged by the last column
//!   SELECT a, avg(b) FROM t GROUP BY a
//!     every shard    SELECT a, sum(b), count(b) FROM t GROUP BY 1
//!     one of them    SELECT c1, sum(c2) / sum(c3) FROM (what they all found) GROUP BY c1
//! ```
//! PostgreSQL itself does the last step wherever the order of texts, equality or arithmetic count.

mod cache;
mod column;
mod finish;
mod grouped;
mod rewrite;
mod shape;
#[cfg(test)]
mod tests;

use pg_query::NodeEnum;
use pg_query::protobuf::{
    AConst, LimitOption, Node, ParamRef, ResTarget, SelectStmt, SetOperation, SortBy, SortByDir,
    SortByNulls, a_const,
};

use super::Value;
use super::definition::option;
use super::value::{string, value};
pub use cache::SplitCache;
pub use column::{Column, array_type};
pub use finish::Finish;

/// A statement that was split.
#[derive(Debug)]
pub struct Split {
    /// What every shard is asked. With `bounds` that can be told its last parameter, behind the
    /// client's own, is how many rows are wanted at most.
    pub sql: String,
    /// Whether `sql` has that parameter.
    pub counted: bool,
    /// Highest parameter number of the client's.
    pub params: usize,
    /// Parameters of which nothing but LIMIT and OFFSET speaks: they are numbers.
    pub counts: Vec<usize>,
    /// Names that stand for columns of the result unless a table has such a column.
    pub aliases: Vec<Alias>,
    /// LIMIT and OFFSET, where the shim applies them.
    pub bounds: Bounds,
    /// The columns behind the client's own, by which rows are merged.
    pub keys: Vec<SortKey>,
    /// How a server makes the answer of all rows.
    pub finish: Finish,
    /// Merging rows is not enough: a server must finish.
    pub must_finish: bool,
}

/// LIMIT and OFFSET.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bounds {
    /// How many rows; none for all.
    pub limit: Option<Value>,
    /// How many are left out before them.
    pub offset: Option<Value>,
    /// Rows that are equal to the last one come along.
    pub with_ties: bool,
}

/// One column of ORDER BY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    /// `DESC`.
    pub descending: bool,
    /// NULLs come first.
    pub nulls_first: bool,
    /// Texts are ordered by their bytes: `COLLATE "C"` is written there.
    pub bytewise: bool,
}

/// Why a statement cannot be split, and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsplit {
    /// The reason.
    pub why: String,
    /// The remedy.
    pub hint: Option<&'static str>,
}

/// How an answer is made that merging rows cannot make.
pub const FINISHED: &str = "finished by one server from what all have found";

impl Unsplit {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            hint: None,
        }
    }

    fn with(why: impl Into<String>, hint: &'static str) -> Self {
        Self {
            why: why.into(),
            hint: Some(hint),
        }
    }
}

impl Split {
    /// In a few words, how one answer is made.
    pub fn how(&self) -> &'static str {
        match (self.must_finish, self.keys.is_empty()) {
            (true, _) => FINISHED,
            (false, true) => "put side by side",
            (false, false) => "merged in their order",
        }
    }
}

/// A name in GROUP BY, which means a column of a table before it means one of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The name.
    pub name: String,
    /// A query of two columns: their types are `boolean` and `bigint` if no table has such a
    /// column.
    pub probe: String,
}

/// Splits a statement of which it is known that its tables allow it. `params` is the highest
/// parameter number in it.
///
/// # Errors
/// Its parts would not make the whole, or it is not known how.
pub fn split(sql: &str, params: usize) -> Result<Split, Unsplit> {
    let parsed = pg_query::parse(sql, 0).map_err(|_| Unsplit::new("it cannot be read"))?;
    let nodes = parsed.protobuf.stmts;
    let [raw] = nodes.as_slice() else {
        return Err(Unsplit::new("it is not one statement"));
    };
    let mut node = raw.stmt.as_ref().and_then(|node| node.node.as_ref());
    if let Some(NodeEnum::ExplainStmt(explain)) = node
        && option(&explain.options, "pgdog")
    {
        node = explain.query.as_ref().and_then(|query| query.node.as_ref());
    }
    let Some(NodeEnum::SelectStmt(select)) = node else {
        return Err(Unsplit::with(
            "only the rows of a SELECT can be merged",
            "EXPLAIN (PGDOG) tells how a SELECT is merged.",
        ));
    };
    let select = select.as_ref().clone();
    if select.op != SetOperation::SetopNone as i32 || !select.values_lists.is_empty() {
        return Err(Unsplit::new(
            "the arms of UNION, INTERSECT and EXCEPT are not merged",
        ));
    }
    if !select.window_clause.is_empty() || rewrite::has_window(&select)? {
        return Err(Unsplit::new(
            "a window function sees the rows of one shard only",
        ));
    }
    if grouped::is_grouped(&select)? {
        return grouped::split(select, params);
    }
    rows(select, params)
}

/// A query whose rows are those of the shards.
fn rows(select: SelectStmt, params: usize) -> Result<Split, Unsplit> {
    let distinct = distinct(&select)?;
    let bounds = bounds(&select);
    let mut keys = Vec::new();
    let mut hidden = Vec::new();
    for item in &select.sort_clause {
        let (key, expression) = sort_key(item, &select.target_list)?;
        keys.push(key);
        hidden.push(expression);
    }
    let on = match &distinct {
        Distinct::On(expressions) => finish::on_columns(expressions, &hidden),
        Distinct::None | Distinct::All => Vec::new(),
    };
    if let Some(unmatched) = unmatched_key(&on, hidden.len()) {
        return Err(Unsplit::with(
            format!(
                "item {} of ORDER BY and DISTINCT ON may be one column by two names",
                unmatched + 1
            ),
            "Write the expressions of DISTINCT ON as in ORDER BY, and first there.",
        ));
    }
    let mut asked = select.clone();
    let further = match &distinct {
        Distinct::On(expressions) => expressions.as_slice(),
        Distinct::None | Distinct::All => &[],
    };
    let further = further.iter().zip(&on);
    let further = further.filter(|(_, place)| **place >= hidden.len());
    let further = further.map(|(expression, _)| expression);
    for (nth, expression) in hidden.iter().chain(further).enumerate() {
        // A name of its own, or it could be taken for an output column of the client's.
        let name = format!("pgdog_key_{}", nth + 1);
        asked.target_list.push(named(expression.clone(), name));
    }
    let must_finish = distinct != Distinct::None;
    let (bounds, counted) = match bounds {
        Ok(bounds) => {
            let counted = bounds.limit.is_some();
            (bounds, counted)
        }
        // The server that finishes can compute it.
        Err(_) if must_finish => (Bounds::default(), false),
        Err(unsplit) => return Err(unsplit),
    };
    asked.limit_offset = None;
    asked.limit_count = counted.then(|| Box::new(param(params + 1)));
    asked.limit_option = match (counted, bounds.with_ties) {
        (false, _) => LimitOption::Default,
        (true, false) => LimitOption::Count,
        (true, true) => LimitOption::WithTies,
    } as i32;
    let extra = asked.target_list.len() - select.target_list.len();
    let finish = Finish::of_rows(&select, &asked, (distinct.kind(on), &keys, extra));
    let sql = rewrite::text(&asked)?;
    Ok(Split {
        counts: counts(&bounds, &sql)?,
        sql,
        counted,
        params,
        aliases: Vec::new(),
        bounds,
        keys,
        finish,
        must_finish,
    })
}

/// DISTINCT, DISTINCT ON, or neither.
#[derive(Debug, PartialEq)]
enum Distinct {
    None,
    All,
    On(Vec<Node>),
}

impl Distinct {
    fn kind(&self, on: Vec<usize>) -> finish::Distinct {
        match self {
            Distinct::None => finish::Distinct::None,
            Distinct::All => finish::Distinct::All,
            Distinct::On(_) => finish::Distinct::On(on),
        }
    }
}

fn distinct(select: &SelectStmt) -> Result<Distinct, Unsplit> {
    match select.distinct_clause.as_slice() {
        [] => Ok(Distinct::None),
        [Node { node: None }] => Ok(Distinct::All),
        expressions => {
            let mut on = Vec::with_capacity(expressions.len());
            for expression in expressions {
                let named = named_target(expression, &select.target_list)?;
                on.push(named.unwrap_or(expression).clone());
            }
            Ok(Distinct::On(on))
        }
    }
}

/// The first column of ORDER BY that DISTINCT ON does not name, although it names others that are
/// not ordered by: they would have to be ordered by first.
fn unmatched_key(on: &[usize], keys: usize) -> Option<usize> {
    on.iter().find(|place| **place >= keys)?;
    (0..keys).find(|key| !on.contains(key))
}

/// LIMIT and OFFSET, if they can be told before the statement runs.
fn bounds(select: &SelectStmt) -> Result<Bounds, Unsplit> {
    let bound = |node: &Option<Box<Node>>| -> Result<Option<Value>, Unsplit> {
        match node.as_deref().map(value) {
            None | Some(Value::Null) => Ok(None),
            Some(found @ (Value::Text(_) | Value::Param(_) | Value::TypedParam(..))) => {
                Ok(Some(found))
            }
            Some(Value::Default | Value::ArrayParam(_) | Value::Unknown) => Err(Unsplit::with(
                "LIMIT or OFFSET is an expression",
                "Write a number or a parameter.",
            )),
        }
    };
    Ok(Bounds {
        limit: bound(&select.limit_count)?,
        offset: bound(&select.limit_offset)?,
        with_ties: select.limit_option == LimitOption::WithTies as i32,
    })
}

/// Parameters of bounds that are nowhere in the text that shards see.
fn counts(bounds: &Bounds, sql: &str) -> Result<Vec<usize>, Unsplit> {
    let bounds = [&bounds.limit, &bounds.offset];
    let numbers = bounds.into_iter().filter_map(|bound| match bound {
        Some(Value::Param(number) | Value::TypedParam(number, _)) => Some(*number),
        _ => None,
    });
    let mut counts: Vec<usize> = numbers.collect();
    if !counts.is_empty() {
        let seen = rewrite::params(sql)?;
        counts.retain(|number| !seen.contains(number));
    }
    Ok(counts)
}

/// One item of ORDER BY, and the expression by which rows are ordered.
fn sort_key(item: &Node, targets: &[Node]) -> Result<(SortKey, Node), Unsplit> {
    let (key, node) = sort_item(item)?;
    let expression = named_target(node, targets)?.unwrap_or(node).clone();
    if rewrite::is_drawn(&expression) {
        return Err(Unsplit::new(
            "rows are ordered by something that has another value each time it is computed",
        ));
    }
    let bytewise = is_bytewise(&expression);
    Ok((SortKey { bytewise, ..key }, expression))
}

/// How an item of ORDER BY orders, and what.
fn sort_item(item: &Node) -> Result<(SortKey, &Node), Unsplit> {
    let Some(NodeEnum::SortBy(sort)) = &item.node else {
        return Err(Unsplit::new("ORDER BY of an unknown kind"));
    };
    let SortBy {
        node: Some(node),
        sortby_dir,
        sortby_nulls,
        ..
    } = sort.as_ref()
    else {
        return Err(Unsplit::new("ORDER BY of an unknown kind"));
    };
    let descending = match SortByDir::try_from(*sortby_dir) {
        Ok(SortByDir::SortbyDefault | SortByDir::SortbyAsc) => false,
        Ok(SortByDir::SortbyDesc) => true,
        _ => return Err(Unsplit::new("ORDER BY ... USING is not merged")),
    };
    let nulls_first = match SortByNulls::try_from(*sortby_nulls) {
        Ok(SortByNulls::SortbyNullsFirst) => true,
        Ok(SortByNulls::SortbyNullsLast) => false,
        _ => descending,
    };
    let key = SortKey {
        descending,
        nulls_first,
        bytewise: false,
    };
    Ok((key, node))
}

/// The output column that a number or a bare name in ORDER BY or GROUP BY means.
fn named_target<'t>(node: &Node, targets: &'t [Node]) -> Result<Option<&'t Node>, Unsplit> {
    match &node.node {
        Some(NodeEnum::AConst(AConst {
            val: Some(a_const::Val::Ival(number)),
            ..
        })) => {
            let place = usize::try_from(number.ival)
                .ok()
                .and_then(|n| n.checked_sub(1));
            let before = targets.get(..=place.unwrap_or(usize::MAX - 1));
            match (place, before) {
                (Some(place), Some(before)) if !before.iter().any(rewrite::is_star) => {
                    Ok(rewrite::expression_of(&targets[place]))
                }
                _ if targets.iter().any(rewrite::is_star) => Err(Unsplit::with(
                    "a position in ORDER BY or GROUP BY counts columns behind *",
                    "Name the column.",
                )),
                // PostgreSQL has a word for it.
                _ => Ok(None),
            }
        }
        Some(NodeEnum::ColumnRef(column)) => {
            let [field] = column.fields.as_slice() else {
                return Ok(None);
            };
            let Some(name) = string(field) else {
                return Ok(None);
            };
            let mut same = targets
                .iter()
                .filter(|target| rewrite::output_name(target) == name);
            Ok(same.next().and_then(rewrite::expression_of))
        }
        _ => Ok(None),
    }
}

/// Whether an expression ends in `COLLATE "C"`.
fn is_bytewise(node: &Node) -> bool {
    let Some(NodeEnum::CollateClause(collate)) = &node.node else {
        return false;
    };
    let names: Vec<&str> = collate.collname.iter().filter_map(string).collect();
    matches!(
        names.as_slice(),
        ["C" | "POSIX"] | ["pg_catalog", "C" | "POSIX"]
    )
}

/// A parameter.
fn param(number: usize) -> Node {
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    Node {
        node: Some(NodeEnum::ParamRef(ParamRef {
            number,
            location: -1,
        })),
    }
}

/// An output column.
fn target(expression: Node) -> Node {
    named(expression, String::new())
}

/// An output column with a name.
fn named(expression: Node, name: String) -> Node {
    Node {
        node: Some(NodeEnum::ResTarget(Box::new(ResTarget {
            name,
            val: Some(Box::new(expression)),
            location: -1,
            ..ResTarget::default()
        }))),
    }
}
