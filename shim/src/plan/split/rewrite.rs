//! Reading, changing and writing of libpg_query's trees.

use pg_query::protobuf::{AExprKind, MinMaxOp, Node, SelectStmt, SubLinkType, Token};
use pg_query::{DeparseOptions, NodeEnum};

use super::super::scalar::is_drawn as is_drawn_function;
use super::super::value::string;
use super::Unsplit;
use super::shape::shape;

/// What becomes of a node that was looked at.
pub(super) enum Seen {
    /// It is as it should be.
    Done,
    /// What is in it is to be looked at.
    Deeper,
}

/// Writes a query, and makes sure that PostgreSQL's grammar reads the same from it.
///
/// # Errors
/// It cannot be written so that nothing is lost.
pub(super) fn text(select: &SelectStmt) -> Result<String, Unsplit> {
    let lossy = || Unsplit::new("its text cannot be written anew");
    let node = NodeEnum::SelectStmt(Box::new(select.clone()));
    let text = node
        .deparse(DeparseOptions::default())
        .map_err(|_| lossy())?;
    let read = parse(&text).ok_or_else(lossy)?;
    match shape(&read) == shape(select) {
        true => Ok(text),
        false => Err(lossy()),
    }
}

/// The only SELECT of a text.
pub(super) fn parse(text: &str) -> Option<SelectStmt> {
    let mut parsed = pg_query::parse(text, 0).ok()?.protobuf;
    let raw = parsed.stmts.pop().filter(|_| parsed.stmts.is_empty())?;
    match raw.stmt?.node? {
        NodeEnum::SelectStmt(select) => Some(*select),
        _ => None,
    }
}

/// Numbers of the parameters in a text.
///
/// # Errors
/// It cannot be read.
pub(super) fn params(sql: &str) -> Result<Vec<usize>, Unsplit> {
    let unread = || Unsplit::new("its parameters cannot be told");
    let scanned = pg_query::scan(sql).map_err(|_| unread())?;
    let params = scanned.tokens.iter();
    let params = params.filter(|token| token.token == Token::Param as i32);
    params
        .map(|token| {
            let start = usize::try_from(token.start).ok()?;
            let end = usize::try_from(token.end).ok()?;
            sql.get(start..end)?.strip_prefix('$')?.parse().ok()
        })
        .map(|number| number.ok_or_else(unread))
        .collect()
}

/// Walks an expression from the outside in. What is in a subquery is not looked at.
///
/// # Errors
/// Those of `see`, and syntax that is not known here.
pub(super) fn walk(
    node: &mut Node,
    see: &mut dyn FnMut(&mut Node) -> Result<Seen, Unsplit>,
) -> Result<(), Unsplit> {
    match see(node)? {
        Seen::Done => Ok(()),
        Seen::Deeper => {
            let mut inner = children(node)?;
            inner.iter_mut().try_for_each(|child| walk(child, see))
        }
    }
}

fn children(node: &mut Node) -> Result<Vec<&mut Node>, Unsplit> {
    let mut all: Vec<&mut Node> = Vec::new();
    let Some(node) = &mut node.node else {
        return Ok(all);
    };
    match node {
        NodeEnum::AConst(_)
        | NodeEnum::String(_)
        | NodeEnum::Integer(_)
        | NodeEnum::Float(_)
        | NodeEnum::Boolean(_)
        | NodeEnum::AStar(_)
        | NodeEnum::ColumnRef(_)
        | NodeEnum::ParamRef(_)
        | NodeEnum::SqlvalueFunction(_)
        | NodeEnum::TypeName(_) => {}
        NodeEnum::AExpr(expr) => {
            all.extend(expr.lexpr.as_deref_mut());
            all.extend(expr.rexpr.as_deref_mut());
        }
        NodeEnum::BoolExpr(expr) => all.extend(&mut expr.args),
        NodeEnum::FuncCall(call) => {
            all.extend(&mut call.args);
            all.extend(&mut call.agg_order);
            all.extend(call.agg_filter.as_deref_mut());
        }
        NodeEnum::SubLink(link) => all.extend(link.testexpr.as_deref_mut()),
        NodeEnum::TypeCast(cast) => all.extend(cast.arg.as_deref_mut()),
        NodeEnum::CollateClause(collate) => all.extend(collate.arg.as_deref_mut()),
        NodeEnum::NullTest(test) => all.extend(test.arg.as_deref_mut()),
        NodeEnum::BooleanTest(test) => all.extend(test.arg.as_deref_mut()),
        NodeEnum::CaseExpr(case) => {
            all.extend(case.arg.as_deref_mut());
            all.extend(&mut case.args);
            all.extend(case.defresult.as_deref_mut());
        }
        NodeEnum::CaseWhen(when) => {
            all.extend(when.expr.as_deref_mut());
            all.extend(when.result.as_deref_mut());
        }
        NodeEnum::CoalesceExpr(expr) => all.extend(&mut expr.args),
        NodeEnum::MinMaxExpr(expr) => all.extend(&mut expr.args),
        NodeEnum::AArrayExpr(list) => all.extend(&mut list.elements),
        NodeEnum::RowExpr(row) => all.extend(&mut row.args),
        NodeEnum::List(list) => all.extend(&mut list.items),
        NodeEnum::AIndirection(indirection) => {
            all.extend(indirection.arg.as_deref_mut());
            all.extend(&mut indirection.indirection);
        }
        NodeEnum::AIndices(indices) => {
            all.extend(indices.lidx.as_deref_mut());
            all.extend(indices.uidx.as_deref_mut());
        }
        NodeEnum::NamedArgExpr(arg) => all.extend(arg.arg.as_deref_mut()),
        NodeEnum::ResTarget(target) => all.extend(target.val.as_deref_mut()),
        NodeEnum::SortBy(sort) => all.extend(sort.node.as_deref_mut()),
        _ => return Err(Unsplit::new("it has syntax that is not split yet")),
    }
    Ok(all)
}

/// Whether something in an expression fulfils this; true also when it cannot be told.
pub(super) fn any(node: &Node, holds: impl Fn(&Node) -> bool) -> bool {
    let mut found = false;
    let walked = walk(&mut node.clone(), &mut |node| {
        found |= holds(node);
        Ok(Seen::Deeper)
    });
    found || walked.is_err()
}

/// Whether something in these expressions fulfils this.
///
/// # Errors
/// It cannot be told: there is syntax that is not known here, in which it may hide.
pub(super) fn any_of<'n>(
    nodes: impl IntoIterator<Item = &'n Node>,
    holds: &dyn Fn(&Node) -> bool,
) -> Result<bool, Unsplit> {
    let mut found = false;
    for node in nodes {
        walk(&mut node.clone(), &mut |node| {
            found |= holds(node);
            Ok(Seen::Deeper)
        })?;
    }
    Ok(found)
}

/// The expressions in which a query itself, and no subquery, may call aggregates and window
/// functions, besides HAVING.
pub(super) fn results(select: &SelectStmt) -> impl Iterator<Item = &Node> {
    let lists = select.target_list.iter().chain(&select.sort_clause);
    lists.chain(&select.distinct_clause)
}

/// Whether the query itself, and no subquery, calls a window function.
///
/// # Errors
/// As [`any_of`].
pub(super) fn has_window(select: &SelectStmt) -> Result<bool, Unsplit> {
    let is_window = |node: &Node| match &node.node {
        Some(NodeEnum::FuncCall(call)) => call.over.is_some(),
        _ => false,
    };
    any_of(results(select), &is_window)
}

/// Whether it has another value each time it is computed.
pub(super) fn is_drawn(node: &Node) -> bool {
    any(node, |node| match &node.node {
        Some(NodeEnum::FuncCall(call)) => {
            let name = call.funcname.last().and_then(string);
            name.is_some_and(is_drawn_function)
        }
        _ => false,
    })
}

/// Whether an output column is a `*`.
pub(super) fn is_star(target: &Node) -> bool {
    match expression_of(target).and_then(|node| node.node.as_ref()) {
        Some(NodeEnum::ColumnRef(column)) => matches!(
            column.fields.last().and_then(|field| field.node.as_ref()),
            Some(NodeEnum::AStar(_))
        ),
        Some(NodeEnum::AIndirection(indirection)) => matches!(
            indirection
                .indirection
                .last()
                .and_then(|field| field.node.as_ref()),
            Some(NodeEnum::AStar(_))
        ),
        _ => false,
    }
}

/// What an output column shows.
pub(super) fn expression_of(target: &Node) -> Option<&Node> {
    match &target.node {
        Some(NodeEnum::ResTarget(target)) => target.val.as_deref(),
        _ => None,
    }
}

/// The name of an output column; empty where PostgreSQL shows `?column?`.
pub(super) fn output_name(target: &Node) -> String {
    match &target.node {
        Some(NodeEnum::ResTarget(target)) if !target.name.is_empty() => target.name.clone(),
        Some(NodeEnum::ResTarget(target)) => {
            let natural = target.val.as_deref().and_then(natural_name);
            natural.map(|(name, _)| name).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// The name that PostgreSQL gives an expression, and whether it is more than a guess.
fn natural_name(node: &Node) -> Option<(String, bool)> {
    let firm = |name: &str| Some((name.to_owned(), true));
    match node.node.as_ref()? {
        NodeEnum::ColumnRef(column) => firm(column.fields.iter().rev().find_map(string)?),
        NodeEnum::AIndirection(indirection) => {
            match indirection.indirection.iter().rev().find_map(string) {
                Some(name) => firm(name),
                None => natural_name(indirection.arg.as_deref()?),
            }
        }
        NodeEnum::FuncCall(call) => firm(call.funcname.last().and_then(string)?),
        NodeEnum::AExpr(expr) if expr.kind == AExprKind::AexprNullif as i32 => firm("nullif"),
        NodeEnum::TypeCast(cast) => match cast.arg.as_deref().and_then(natural_name) {
            Some((name, true)) => Some((name, true)),
            _ => {
                let name = cast.type_name.as_ref()?.names.last().and_then(string)?;
                Some((name.to_owned(), false))
            }
        },
        NodeEnum::CollateClause(collate) => natural_name(collate.arg.as_deref()?),
        NodeEnum::GroupingFunc(_) => firm("grouping"),
        NodeEnum::SubLink(link) => match SubLinkType::try_from(link.sub_link_type) {
            Ok(SubLinkType::ExistsSublink) => firm("exists"),
            Ok(SubLinkType::ArraySublink) => firm("array"),
            Ok(SubLinkType::ExprSublink) => match link.subselect.as_deref()?.node.as_ref()? {
                NodeEnum::SelectStmt(select) => match output_name(select.target_list.first()?) {
                    name if name.is_empty() => None,
                    name => Some((name, true)),
                },
                _ => None,
            },
            _ => None,
        },
        NodeEnum::CaseExpr(case) => match case.defresult.as_deref().and_then(natural_name) {
            Some((name, true)) => Some((name, true)),
            _ => Some(("case".to_owned(), false)),
        },
        NodeEnum::AArrayExpr(_) => firm("array"),
        NodeEnum::RowExpr(_) => firm("row"),
        NodeEnum::CoalesceExpr(_) => firm("coalesce"),
        NodeEnum::MinMaxExpr(expr) if expr.op == MinMaxOp::IsLeast as i32 => firm("least"),
        NodeEnum::MinMaxExpr(_) => firm("greatest"),
        _ => None,
    }
}
