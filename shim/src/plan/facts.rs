//! What the conditions of a statement say about the rows that it touches.
//!
//! A fact about a relation holds for every row of it that matters for the result: rows that do
//! not fulfil it could be absent without changing anything. Conditions of an outer join therefore
//! bind only its nullable side, and conditions below OR or NOT bind nothing.

use std::ops::Range;

use pg_query::NodeEnum;
use pg_query::protobuf::{
    AExpr, AExprKind, BoolExpr, BoolExprType, Node, NullTestType, SubLink, SubLinkType,
};

use super::scope::{Column, Outputs, Scopes};
use super::value::{members, string, value};
use super::{Change, Functions, Levels, Place, Relation, Value};

/// Everything gathered while one statement is read.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) relations: Vec<Relation>,
    pub(super) functions: Functions,
    /// Calls of `set_config`, wherever they stand.
    pub(super) set_calls: usize,
    /// Something in it must run on a primary.
    pub(super) writes: bool,
    /// It changes placement.
    pub(super) placement: bool,
    /// Highest parameter number.
    pub(super) params: usize,
    pub(super) opaque: Option<&'static str>,
    pub(super) levels: Levels,
    pub(super) change: Option<Change>,
    /// The target of the last UPDATE or DELETE that was read, and what its FROM names.
    pub(super) changed: Range<usize>,
    pub(super) scopes: Scopes,
    /// Names of CTEs in scope, innermost last.
    pub(super) ctes: Vec<(String, Outputs)>,
}

/// One side of an equality.
enum Term {
    Columns(Vec<Column>),
    Plain(Value),
}

impl Facts {
    /// Reads a condition that every result row fulfils. `binds` are the relations that it may
    /// narrow.
    pub(super) fn condition(&mut self, node: &Node, binds: &[usize]) {
        match &node.node {
            Some(NodeEnum::BoolExpr(expr)) if is_and(expr) => {
                for part in &expr.args {
                    self.condition(part, binds);
                }
            }
            Some(NodeEnum::AExpr(expr)) if is_equality(expr) => self.equality(expr, binds),
            Some(NodeEnum::SubLink(link)) if is_in_subquery(link) => self.in_query(link, binds),
            Some(NodeEnum::NullTest(test)) if test.nulltesttype == NullTestType::IsNull as i32 => {
                let Some(arg) = &test.arg else { return };
                // Above an outer join, IS NULL finds the rows that have no partner.
                let strict = !self.scopes.top().outer_join;
                if let (Term::Columns(columns), true) = (self.term(arg), strict) {
                    self.bind(&columns, &[Value::Null], binds);
                }
            }
            _ => self.expression(node),
        }
    }

    /// Reads the conditions of an optional WHERE.
    pub(super) fn filter(&mut self, node: Option<&Node>) {
        if let Some(node) = node {
            let binds = self.tables_of_level();
            self.levels.enter_condition();
            self.condition(node, &binds);
            self.levels.leave_condition();
        }
    }

    /// The stored relations of the innermost query level.
    pub(super) fn tables_of_level(&mut self) -> Vec<usize> {
        self.scopes
            .top()
            .items
            .iter()
            .filter_map(super::scope::Item::table)
            .collect()
    }

    fn equality(&mut self, expr: &AExpr, binds: &[usize]) {
        let (Some(left), Some(right)) = (&expr.lexpr, &expr.rexpr) else {
            return;
        };
        match AExprKind::try_from(expr.kind) {
            Ok(AExprKind::AexprOp) => self.pair(left, right, binds),
            Ok(AExprKind::AexprIn) => self.in_list(left, right, binds),
            Ok(AExprKind::AexprOpAny) => {
                self.expression(right);
                if let Term::Columns(columns) = self.term(left) {
                    self.bind(&columns, &members(right), binds);
                }
            }
            _ => {
                self.expression(left);
                self.expression(right);
            }
        }
    }

    fn pair(&mut self, left: &Node, right: &Node, binds: &[usize]) {
        if let (Some(lefts), Some(rights)) = (row(left), row(right))
            && lefts.len() == rights.len()
        {
            for (left, right) in lefts.iter().zip(rights) {
                self.pair(left, right, binds);
            }
            return;
        }
        match (self.term(left), self.term(right)) {
            (Term::Columns(columns), Term::Plain(value))
            | (Term::Plain(value), Term::Columns(columns)) => self.bind(&columns, &[value], binds),
            (Term::Columns(lefts), Term::Columns(rights)) => self.join(&lefts, &rights, binds),
            (Term::Plain(_), Term::Plain(_)) => {}
        }
    }

    fn in_list(&mut self, left: &Node, right: &Node, binds: &[usize]) {
        let Some(NodeEnum::List(list)) = &right.node else {
            self.expression(left);
            self.expression(right);
            return;
        };
        for item in &list.items {
            self.expression(item);
        }
        let Some(columns) = row(left) else {
            if let Term::Columns(columns) = self.term(left) {
                let values: Vec<Value> = list.items.iter().map(value).collect();
                self.bind(&columns, &values, binds);
            }
            return;
        };
        for (position, column) in columns.iter().enumerate() {
            let at = |item| row(item).and_then(|items| items.get(position));
            let values: Vec<Value> = list
                .items
                .iter()
                .map(|item| at(item).map_or(Value::Unknown, value))
                .collect();
            if let Term::Columns(columns) = self.term(column) {
                self.bind(&columns, &values, binds);
            }
        }
    }

    /// `column IN (SELECT ...)`: the column is one of the subquery's values.
    fn in_query(&mut self, link: &SubLink, binds: &[usize]) {
        let Some(test) = link.testexpr.as_deref() else {
            return;
        };
        self.levels.expect(Place::In);
        let outputs = self.subquery(link.subselect.as_deref());
        let columns = row(test).unwrap_or(std::slice::from_ref(test));
        for (position, column) in columns.iter().enumerate() {
            if let Term::Columns(columns) = self.term(column) {
                // The subquery's own relations are not narrowed by what is outside.
                self.follow(&columns, outputs.at(position), binds);
            }
        }
    }

    fn term(&mut self, node: &Node) -> Term {
        match &node.node {
            Some(NodeEnum::ColumnRef(column)) => {
                self.expression(node);
                Term::Columns(self.scopes.resolve(&column.fields))
            }
            Some(NodeEnum::SubLink(link))
                if link.sub_link_type == SubLinkType::ExprSublink as i32 =>
            {
                self.levels.expect(Place::Value);
                let outputs = self.subquery(link.subselect.as_deref());
                Term::Columns(outputs.at(0).to_vec())
            }
            _ => {
                self.expression(node);
                Term::Plain(value(node))
            }
        }
    }

    /// `columns` have one of `values`.
    fn bind(&mut self, columns: &[Column], values: &[Value], binds: &[usize]) {
        for column in columns {
            if let Column::Stored { relation, name } = column
                && binds.contains(relation)
            {
                self.relations[*relation]
                    .bound
                    .push((name.clone(), values.to_vec()));
            }
        }
    }

    /// Both sides are equal.
    pub(super) fn join(&mut self, lefts: &[Column], rights: &[Column], binds: &[usize]) {
        self.follow(lefts, rights, binds);
        self.follow(rights, lefts, binds);
    }

    /// Each of `columns` takes its values from every one of `others`.
    fn follow(&mut self, columns: &[Column], others: &[Column], binds: &[usize]) {
        for column in columns {
            let Column::Stored { relation, name } = column else {
                continue;
            };
            if !binds.contains(relation) {
                continue;
            }
            for other in others {
                self.link(*relation, name, other);
            }
        }
    }

    /// `relations[relation].name` takes its values from `other`.
    pub(super) fn link(&mut self, relation: usize, name: &str, other: &Column) {
        let own = &mut self.relations[relation];
        match other {
            Column::Stored {
                relation: there,
                name: column,
            } => {
                if (*there, column.as_str()) != (relation, name) {
                    own.joined.push((name.to_owned(), *there, column.clone()));
                }
            }
            Column::Listed(values) => own.bound.push((name.to_owned(), values.clone())),
        }
    }
}

fn is_and(expr: &BoolExpr) -> bool {
    expr.boolop == BoolExprType::AndExpr as i32
}

/// PostgreSQL's own `=`; an operator of that name in another schema may do anything.
fn is_equality(expr: &AExpr) -> bool {
    let names: Vec<&str> = expr.name.iter().filter_map(string).collect();
    matches!(names.as_slice(), ["="] | ["pg_catalog", "="])
}

fn is_in_subquery(link: &SubLink) -> bool {
    let names: Vec<&str> = link.oper_name.iter().filter_map(string).collect();
    link.sub_link_type == SubLinkType::AnySublink as i32
        && matches!(names.as_slice(), [] | ["="] | ["pg_catalog", "="])
}

fn row(node: &Node) -> Option<&[Node]> {
    match &node.node {
        Some(NodeEnum::RowExpr(row)) => Some(&row.args),
        _ => None,
    }
}
