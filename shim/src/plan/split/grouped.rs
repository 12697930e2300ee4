//! Groups and aggregates: every shard aggregates its own rows, and a server puts the groups of all
//! shards together.
//!
//! ```text
//!   count(x)   of each: count(x)              of all: sum(c)::bigint
//!   sum(x)     of each: sum(x)                of all: sum(c), in the type of the sums
//!   avg(x)     of each: sum(x), count(x)      of all: sum(c1) / sum(c2)
//!   min, max, bool_and, bit_or ...            of all: the same of them
//! ```

use pg_query::NodeEnum;
use pg_query::protobuf::{ColumnRef, FuncCall, LimitOption, Node, SelectStmt, TypeName};

use super::super::scalar::is_mergeable;
use super::super::value::string;
use super::column::{Column, FLOAT4, FLOAT8, INT8, INTERVAL, MONEY, NUMERIC};
use super::finish::{ALL_ROWS, Finish, column_name};
use super::rewrite::{self, Seen, parse, walk};
use super::shape::{is_shaped, shape};
use super::{Alias, Bounds, Split, Unsplit, named, named_target, target};

/// Names of types that are not known before the shards have answered: that of a column's sums, that
/// by which its sums are divided, and that of the sum of all.
const SUM_OF: &str = "pgdog_sum_of";
const DIVISOR_OF: &str = "pgdog_divisor_of";
const ZERO_OF: &str = "pgdog_zero_of";

/// Whether a query has groups.
///
/// # Errors
/// It cannot be told whether it calls aggregates.
pub(super) fn is_grouped(select: &SelectStmt) -> Result<bool, Unsplit> {
    let calls = calls_aggregate(rewrite::results(select))?;
    Ok(calls || !select.group_clause.is_empty() || select.having_clause.is_some())
}

fn calls_aggregate<'n>(nodes: impl IntoIterator<Item = &'n Node>) -> Result<bool, Unsplit> {
    rewrite::any_of(nodes, &|node| aggregate(node).is_some())
}

/// The aggregate that is called here.
fn aggregate(node: &Node) -> Option<(&FuncCall, &str)> {
    let Some(NodeEnum::FuncCall(call)) = &node.node else {
        return None;
    };
    let names: Vec<&str> = call.funcname.iter().filter_map(string).collect();
    match names.as_slice() {
        [name] | ["pg_catalog", name] if is_mergeable(name) => Some((call, *name)),
        _ => None,
    }
}

/// What is collected while the query is taken apart.
struct Parts {
    /// Columns of what each shard finds: groups first.
    columns: Vec<Node>,
    /// Shapes of the groups' expressions.
    groups: Vec<String>,
    /// Shapes of aggregates that have columns already, with the first of them.
    known: Vec<(String, usize)>,
    /// Names that are taken for columns of the result.
    aliases: Vec<Alias>,
}

/// Splits a query with groups.
pub(super) fn split(select: SelectStmt, params: usize) -> Result<Split, Unsplit> {
    if select.group_distinct {
        return Err(Unsplit::new("GROUP BY DISTINCT is not merged"));
    }
    let mut asked = select.clone();
    asked.distinct_clause.clear();
    asked.having_clause = None;
    asked.sort_clause.clear();
    asked.limit_count = None;
    asked.limit_offset = None;
    asked.limit_option = LimitOption::Default as i32;
    let mut parts = Parts {
        columns: Vec::new(),
        groups: Vec::new(),
        known: Vec::new(),
        aliases: Vec::new(),
    };
    asked.group_clause.clear();
    for item in &select.group_clause {
        let (column, group) = parts.group(item, &select)?;
        parts.columns.push(column);
        asked.group_clause.push(group);
    }
    let mut all = parse(&format!("SELECT 1 FROM {ALL_ROWS}"))
        .ok_or_else(|| Unsplit::new("its last step cannot be written"))?;
    all.target_list.clear();
    for column in &select.target_list {
        let name = rewrite::output_name(column);
        let Some(expression) = rewrite::expression_of(column) else {
            return Err(Unsplit::new("a column of an unknown kind"));
        };
        let merged = parts.merged(expression)?;
        all.target_list.push(match name.is_empty() {
            true => target(merged),
            false => named(merged, name),
        });
    }
    for place in 0..select.group_clause.len() {
        all.group_clause.push(column_ref(place));
    }
    if let Some(having) = &select.having_clause {
        all.having_clause = Some(Box::new(parts.merged(having)?));
    }
    all.distinct_clause = parts.distinct(&select)?;
    all.sort_clause = parts.sorted(&select)?;
    all.limit_count = select.limit_count.clone();
    all.limit_offset = select.limit_offset.clone();
    all.limit_option = select.limit_option;
    if parts.columns.is_empty() {
        return Err(Unsplit::new(
            "it has groups, but nothing of them is asked for",
        ));
    }
    asked.target_list = parts.columns;
    let finish = Finish::of_groups(&select, &asked, all);
    Ok(Split {
        sql: rewrite::text(&asked)?,
        counted: false,
        params,
        counts: Vec::new(),
        aliases: parts.aliases,
        bounds: Bounds::default(),
        keys: Vec::new(),
        finish,
        must_finish: true,
    })
}

impl Parts {
    /// The column of a group, and what each shard groups by.
    fn group(&mut self, item: &Node, select: &SelectStmt) -> Result<(Node, Node), Unsplit> {
        if let Some(NodeEnum::GroupingSet(_)) = &item.node {
            return Err(Unsplit::new(
                "GROUPING SETS, ROLLUP and CUBE are not merged",
            ));
        }
        let found = named_target(item, &select.target_list)?;
        let expression = found.unwrap_or(item);
        self.groups.push(shape(expression));
        let place = i32::try_from(self.columns.len() + 1).unwrap_or(i32::MAX);
        let by_place = parse(&format!("SELECT 1 GROUP BY {place}"))
            .and_then(|mut select| select.group_clause.pop())
            .ok_or_else(|| Unsplit::new("its groups cannot be written"))?;
        let Some(name) = bare_name(item) else {
            return Ok((target(expression.clone()), by_place));
        };
        if shape(item) == shape(expression) {
            return Ok((target(expression.clone()), by_place));
        }
        // A column of a table goes before an output column of the same name.
        let reads_name = rewrite::any(expression, |node| column_named(node, &name));
        match reads_name {
            true => Err(Unsplit::with(
                format!("GROUP BY {name} may mean a column of a table or of the result"),
                "Group by the expression, or by its position.",
            )),
            false => {
                let probe = probe(item, &name, select)?;
                let name = name.clone();
                self.aliases.push(Alias { name, probe });
                Ok((target(expression.clone()), by_place))
            }
        }
    }

    /// An expression over rows, as one over what the shards have found.
    fn merged(&mut self, expression: &Node) -> Result<Node, Unsplit> {
        let mut merged = expression.clone();
        walk(&mut merged, &mut |node| {
            let known = self.groups.iter().position(|group| is_shaped(node, group));
            if let Some(place) = known {
                *node = column_ref(place);
                return Ok(Seen::Done);
            }
            if aggregate(node).is_some() {
                *node = self.aggregated(node)?;
                return Ok(Seen::Done);
            }
            match &node.node {
                Some(NodeEnum::ColumnRef(column)) => {
                    let name = column.fields.iter().rev().find_map(string).unwrap_or("*");
                    Err(Unsplit::with(
                        format!("column \"{name}\" is not grouped by itself"),
                        "Add it to GROUP BY.",
                    ))
                }
                Some(NodeEnum::SubLink(_)) => Err(Unsplit::new(
                    "a subquery beside aggregates would run where rows of one shard are",
                )),
                _ => Ok(Seen::Deeper),
            }
        })?;
        Ok(merged)
    }

    /// An aggregate of all rows, by those of each shard.
    fn aggregated(&mut self, node: &Node) -> Result<Node, Unsplit> {
        let Some((call, name)) = aggregate(node) else {
            return Err(Unsplit::new("an aggregate of an unknown kind"));
        };
        let refuse = |what: &str| {
            Err(Unsplit::new(format!(
                "{what} needs all rows of a group at once"
            )))
        };
        if call.agg_within_group || !call.agg_order.is_empty() {
            return refuse("an ordered aggregate");
        }
        let keeps_all = !matches!(name, "min" | "max" | "bool_and" | "bool_or" | "every");
        if call.agg_distinct && keeps_all {
            return refuse(&format!("{name}(DISTINCT ...)"));
        }
        if call.func_variadic || has_aggregate_inside(call)? {
            return Err(Unsplit::new("an aggregate of an unknown kind"));
        }
        let first = match name {
            "avg" => {
                let sum = self.column(node, "sum");
                self.column(node, "count");
                sum
            }
            name => self.column(node, name),
        };
        let text = match name {
            "count" => format!("pg_catalog.sum({})::bigint", path(first)),
            "sum" => format!(
                "pg_catalog.sum({})::{SUM_OF}.{}",
                path(first),
                column_name(first)
            ),
            "avg" => format!(
                // PostgreSQL begins with 0, which takes the sign from a zero.
                "(pg_catalog.sum({}) + '0'::{ZERO_OF}.{column}) / \
                 NULLIF(pg_catalog.sum({}), 0)::{DIVISOR_OF}.{column}",
                path(first),
                path(first + 1),
                column = column_name(first)
            ),
            name => format!("pg_catalog.{name}({})", path(first)),
        };
        expression(&text)
    }

    /// The column of an aggregate by this name, with this one's arguments.
    fn column(&mut self, node: &Node, name: &str) -> usize {
        let mut node = node.clone();
        if let Some(NodeEnum::FuncCall(call)) = &mut node.node
            && let Some(last) = call.funcname.last_mut()
        {
            last.node = Some(NodeEnum::String(pg_query::protobuf::String {
                sval: name.to_owned(),
            }));
        }
        let wanted = shape(&node);
        // An average needs two columns side by side.
        let pair = name == "count" || name == "sum";
        let known = self
            .known
            .iter()
            .find(|(shape, _)| *shape == wanted && !pair);
        if let Some((_, place)) = known {
            return *place;
        }
        self.columns.push(target(node));
        self.known.push((wanted, self.columns.len() - 1));
        self.columns.len() - 1
    }

    fn distinct(&mut self, select: &SelectStmt) -> Result<Vec<Node>, Unsplit> {
        let mut distinct = Vec::new();
        for item in &select.distinct_clause {
            distinct.push(match item.node {
                None => item.clone(),
                Some(_) => self.output_or_merged(item, &select.target_list)?,
            });
        }
        Ok(distinct)
    }

    fn sorted(&mut self, select: &SelectStmt) -> Result<Vec<Node>, Unsplit> {
        let mut sorted = Vec::new();
        for item in &select.sort_clause {
            let mut item = item.clone();
            let Some(NodeEnum::SortBy(sort)) = &mut item.node else {
                return Err(Unsplit::new("ORDER BY of an unknown kind"));
            };
            if let Some(node) = &mut sort.node {
                **node = self.output_or_merged(node, &select.target_list)?;
            }
            sorted.push(item);
        }
        Ok(sorted)
    }

    /// A position or the name of an output column stays as it is: the last step has the same ones.
    fn output_or_merged(&mut self, node: &Node, targets: &[Node]) -> Result<Node, Unsplit> {
        match named_target(node, targets)? {
            Some(_) => Ok(node.clone()),
            None => self.merged(node),
        }
    }
}

/// Whether an aggregate's own arguments have aggregates.
fn has_aggregate_inside(call: &FuncCall) -> Result<bool, Unsplit> {
    calls_aggregate(call.args.iter().chain(call.agg_filter.as_deref()))
}

/// A query that tells by the types of its columns whether the tables of a query have a column of
/// this name: otherwise the name means what stands around them, of another type each time.
fn probe(item: &Node, name: &str, select: &SelectStmt) -> Result<String, Unsplit> {
    let unwritten = || Unsplit::new("its groups cannot be looked up");
    let inner = SelectStmt {
        target_list: vec![target(item.clone())],
        from_clause: select.from_clause.clone(),
        with_clause: select.with_clause.clone(),
        ..parse("SELECT 1 LIMIT 0").ok_or_else(unwritten)?
    };
    let inner = rewrite::text(&inner)?;
    let name = name.replace('"', "\"\"");
    let of_type = |type_name: &str| {
        format!("(SELECT ({inner}) FROM (SELECT NULL::{type_name}) AS pgdog_probe (\"{name}\"))")
    };
    Ok(format!(
        "SELECT {}, {}",
        of_type("boolean"),
        of_type("bigint")
    ))
}

fn bare_name(node: &Node) -> Option<String> {
    match &node.node {
        Some(NodeEnum::ColumnRef(column)) => match column.fields.as_slice() {
            [field] => string(field).map(str::to_owned),
            _ => None,
        },
        _ => None,
    }
}

fn column_named(node: &Node, name: &str) -> bool {
    match &node.node {
        Some(NodeEnum::ColumnRef(ColumnRef { fields, .. })) => {
            fields.last().and_then(string) == Some(name)
        }
        _ => false,
    }
}

/// `pgdog_rows.pgdog_3`
fn path(place: usize) -> String {
    format!("{ALL_ROWS}.{}", column_name(place))
}

fn column_ref(place: usize) -> Node {
    expression(&path(place)).unwrap_or_default()
}

/// Reads an expression that was made here.
fn expression(text: &str) -> Result<Node, Unsplit> {
    parse(&format!("SELECT {text}"))
        .and_then(|select| rewrite::expression_of(select.target_list.first()?).cloned())
        .ok_or_else(|| Unsplit::new("its last step cannot be written"))
}

/// Writes the types that are known now.
pub(super) fn settle_types(query: &mut SelectStmt, columns: &[Column]) -> Result<(), Unsplit> {
    let mut settle = |node: &mut Node| {
        if let Some(NodeEnum::TypeCast(cast)) = &mut node.node
            && let Some(name) = &mut cast.type_name
        {
            settle_type(name, columns)?;
        }
        Ok(Seen::Deeper)
    };
    let having = query.having_clause.as_deref_mut();
    let lists = query.target_list.iter_mut().chain(&mut query.sort_clause);
    let lists = lists.chain(query.distinct_clause.iter_mut()).chain(having);
    for node in lists {
        walk(node, &mut settle)?;
    }
    Ok(())
}

fn settle_type(name: &mut TypeName, columns: &[Column]) -> Result<(), Unsplit> {
    let words: Vec<&str> = name.names.iter().filter_map(string).collect();
    let [kind @ (SUM_OF | DIVISOR_OF | ZERO_OF), column] = words.as_slice() else {
        return Ok(());
    };
    let place = (0..columns.len()).find(|place| column_name(*place) == **column);
    let type_oid = place.map_or(0, |place| columns[place].type_oid);
    let word = match (*kind, type_oid) {
        (SUM_OF, INT8) => "bigint",
        (SUM_OF, NUMERIC) | (_, INT8 | NUMERIC) => "numeric",
        (SUM_OF, FLOAT4) => "real",
        (SUM_OF | ZERO_OF, INTERVAL) => "interval",
        (SUM_OF, MONEY) => "money",
        (SUM_OF, FLOAT8) | (_, FLOAT8 | INTERVAL) => "double precision",
        (_, FLOAT4) => {
            return Err(Unsplit::with(
                "an average of type real is computed in more digits than its sum has",
                "Cast it: avg(x::double precision).",
            ));
        }
        _ => return Err(Unsplit::new("sums of this type cannot be added")),
    };
    let cast = expression(&format!("NULL::{word}"))?;
    if let Some(NodeEnum::TypeCast(cast)) = cast.node
        && let Some(type_name) = cast.type_name
    {
        *name = type_name;
    }
    Ok(())
}
