//! SELECT, VALUES, set operations and WITH: scopes, and the relations in them.

use std::ops::Range;

use pg_query::NodeEnum;
use pg_query::protobuf::{
    Alias, ColumnRef, JoinExpr, JoinType, LockWaitPolicy, Node, RangeFunction, RangeVar,
    SelectStmt, SetOperation, SubLinkType, WithClause,
};

use super::facts::Facts;
use super::levels::{OuterJoin, Place, UNORDERED};
use super::scope::{Column, Item, Outputs, Scope, Source, natural_name};
use super::value::{string, value};
use super::{Relation, Value};

impl Facts {
    /// Reads a query, or a data-modifying statement in its place.
    pub(super) fn subquery(&mut self, node: Option<&Node>) -> Outputs {
        match node.and_then(|node| node.node.as_ref()) {
            Some(NodeEnum::SelectStmt(select)) => self.select(select),
            Some(NodeEnum::InsertStmt(insert)) => self.insert(insert),
            Some(NodeEnum::UpdateStmt(update)) => self.update(update),
            Some(NodeEnum::DeleteStmt(delete)) => self.delete(delete),
            Some(NodeEnum::MergeStmt(merge)) => self.merge(merge),
            _ => {
                self.opaque("a query of an unknown kind");
                Outputs::unknown()
            }
        }
    }

    /// Reads a SELECT.
    pub(super) fn select(&mut self, select: &SelectStmt) -> Outputs {
        self.enter_level(select);
        let outer_ctes = self.with(select.with_clause.as_ref());
        let outputs = match (&select.larg, &select.rarg) {
            (Some(left), Some(right)) if select.op != SetOperation::SetopNone as i32 => {
                self.levels.expect(Place::From);
                let left = self.select(left);
                self.levels.expect(Place::From);
                let right = self.select(right);
                self.scopes.0.push(Scope::default());
                self.tail(select);
                self.scopes.0.pop();
                left.union(&right)
            }
            _ if !select.values_lists.is_empty() => {
                self.scopes.0.push(Scope::default());
                let outputs = self.values(&select.values_lists);
                self.tail(select);
                self.scopes.0.pop();
                outputs
            }
            _ => self.plain_select(select),
        };
        self.ctes.truncate(outer_ctes);
        self.leave_level();
        outputs
    }

    fn plain_select(&mut self, select: &SelectStmt) -> Outputs {
        self.scopes.0.push(Scope::default());
        let first = self.relations.len();
        for item in &select.from_clause {
            self.read_item(item);
        }
        self.note_from(first);
        self.filter(select.where_clause.as_deref());
        self.levels.enter_targets();
        let outputs = self.targets(&select.target_list);
        self.levels.leave_targets();
        self.expressions(&select.distinct_clause);
        self.expressions(&select.group_clause);
        self.optional(select.having_clause.as_deref());
        self.expressions(&select.window_clause);
        self.tail(select);
        self.scopes.0.pop();
        outputs
    }

    /// ORDER BY, LIMIT and row locks.
    fn tail(&mut self, select: &SelectStmt) {
        self.expressions(&select.sort_clause);
        self.optional(select.limit_offset.as_deref());
        self.optional(select.limit_count.as_deref());
        let limited = select.limit_offset.is_some()
            || select
                .limit_count
                .as_ref()
                .is_some_and(|limit| value(limit) != Value::Null);
        if limited && select.sort_clause.is_empty() {
            self.diverges(UNORDERED);
        }
        for clause in &select.locking_clause {
            self.writes = true;
            if let Some(NodeEnum::LockingClause(clause)) = &clause.node
                && clause.wait_policy == LockWaitPolicy::LockWaitSkip as i32
            {
                self.diverges("SKIP LOCKED");
            }
        }
    }

    fn values(&mut self, rows: &[Node]) -> Outputs {
        let rows = self.value_rows(rows);
        let mut outputs = Outputs::default();
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        for position in 0..width {
            let cell = |row: &Vec<Value>| row.get(position).cloned().unwrap_or(Value::Unknown);
            let cells = rows.iter().map(cell).collect();
            outputs.push(
                format!("column{}", position + 1),
                vec![Column::Listed(cells)],
            );
        }
        outputs
    }

    /// The rows of a VALUES list.
    pub(super) fn value_rows(&mut self, rows: &[Node]) -> Vec<Vec<Value>> {
        let mut read = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(NodeEnum::List(list)) = &row.node else {
                continue;
            };
            let mut cells = Vec::with_capacity(list.items.len());
            for cell in &list.items {
                self.expression(cell);
                cells.push(value(cell));
            }
            read.push(cells);
        }
        read
    }

    /// Reads a target or RETURNING list.
    pub(super) fn targets(&mut self, targets: &[Node]) -> Outputs {
        let mut outputs = Outputs::default();
        for target in targets {
            let Some(NodeEnum::ResTarget(target)) = &target.node else {
                continue;
            };
            let Some(expression) = target.val.as_deref() else {
                continue;
            };
            if let Some(NodeEnum::ColumnRef(column)) = &expression.node
                && is_star(column)
            {
                self.star(column, &mut outputs);
                continue;
            }
            let trace = self.trace(expression);
            let name = match target.name.as_str() {
                "" => natural_name(expression),
                name => name.to_owned(),
            };
            outputs.push(name, trace);
        }
        outputs
    }

    /// Reads an expression and tells where its value comes from; empty means unknown.
    pub(super) fn trace(&mut self, node: &Node) -> Vec<Column> {
        match &node.node {
            Some(NodeEnum::ColumnRef(column)) => {
                self.expression(node);
                self.scopes.resolve(&column.fields)
            }
            Some(NodeEnum::SubLink(link))
                if link.sub_link_type == SubLinkType::ExprSublink as i32 =>
            {
                self.levels.expect(Place::Value);
                self.subquery(link.subselect.as_deref()).at(0).to_vec()
            }
            _ => {
                self.expression(node);
                match value(node) {
                    Value::Unknown => Vec::new(),
                    known => vec![Column::Listed(vec![known])],
                }
            }
        }
    }

    fn star(&mut self, column: &ColumnRef, outputs: &mut Outputs) {
        let scope = self.scopes.top();
        let qualifier = column.fields.iter().rev().nth(1).and_then(string);
        let mut chosen: Vec<Item> = Vec::new();
        for (index, item) in scope.items.iter().enumerate() {
            match qualifier {
                None if scope.merges(index) => outputs.open = true,
                Some(name) if item.name != name => {}
                None | Some(_) => chosen.push(item.clone()),
            }
        }
        // `*` over a join may merge columns, so positions are lost.
        if chosen.len() != 1 {
            outputs.open = true;
        }
        for item in chosen {
            match item.source {
                Source::Table(relation) => outputs.stars.push(relation),
                Source::Query(inner) => {
                    let (certain, rest) = inner.columns.split_at(inner.ordered);
                    for (name, trace) in certain {
                        outputs.push(name.clone(), trace.clone());
                    }
                    outputs.stars.extend(inner.stars);
                    outputs.open |= inner.open;
                    for (name, trace) in rest {
                        outputs.push(name.clone(), trace.clone());
                    }
                }
                Source::Other => outputs.open = true,
            }
        }
    }

    /// Reads WITH; the answer is the number of CTEs to go back to at the end of the statement.
    pub(super) fn with(&mut self, with: Option<&WithClause>) -> usize {
        let outer = self.ctes.len();
        let Some(with) = with else { return outer };
        let ctes: Vec<_> = with
            .ctes
            .iter()
            .filter_map(|cte| match &cte.node {
                Some(NodeEnum::CommonTableExpr(cte)) => Some(cte),
                _ => None,
            })
            .collect();
        if with.recursive {
            self.ctes.extend(
                ctes.iter()
                    .map(|cte| (cte.ctename.clone(), Outputs::unknown())),
            );
        }
        for (position, cte) in ctes.iter().enumerate() {
            let is_select = matches!(
                cte.ctequery.as_ref().and_then(|query| query.node.as_ref()),
                Some(NodeEnum::SelectStmt(_))
            );
            self.writes |= !is_select;
            self.levels.expect(Place::With);
            let mut outputs = self.subquery(cte.ctequery.as_deref());
            outputs.rename(&cte.aliascolnames);
            outputs.open |= cte.search_clause.is_some() || cte.cycle_clause.is_some();
            if with.recursive {
                self.ctes[outer + position].1 = outputs;
            } else {
                self.ctes.push((cte.ctename.clone(), outputs));
            }
        }
        outer
    }

    /// Reads one item of FROM; the answer is its place among the items of this level.
    pub(super) fn read_item(&mut self, node: &Node) -> Range<usize> {
        let start = self.scopes.top().items.len();
        match &node.node {
            Some(NodeEnum::RangeVar(table)) => self.read_table(table),
            Some(NodeEnum::RangeSubselect(query)) => {
                let level = self.scopes.0.len().saturating_sub(1);
                self.scopes.top().hidden = !query.lateral;
                self.levels.expect(Place::From);
                let outputs = self.subquery(query.subquery.as_deref());
                self.scopes.0[level].hidden = false;
                self.add_query(query.alias.as_ref(), "", outputs);
            }
            Some(NodeEnum::JoinExpr(join)) => self.read_join(join),
            Some(NodeEnum::RangeFunction(function)) => self.read_function(function),
            Some(NodeEnum::RangeTableSample(sample)) => {
                self.diverges("TABLESAMPLE");
                self.expressions(&sample.args);
                if let Some(relation) = &sample.relation {
                    self.read_item(relation);
                }
            }
            Some(NodeEnum::RangeTableFunc(table)) => {
                self.xml_table(table);
                self.add_query(table.alias.as_ref(), "xmltable", Outputs::unknown());
            }
            Some(NodeEnum::JsonTable(table)) => {
                self.json_table(table);
                self.add_query(table.alias.as_ref(), "json_table", Outputs::unknown());
            }
            _ => self.opaque("a FROM item of an unknown kind"),
        }
        start..self.scopes.top().items.len()
    }

    fn read_table(&mut self, table: &RangeVar) {
        if table.schemaname.is_empty()
            && let Some((name, outputs)) = self
                .ctes
                .iter()
                .rev()
                .find(|(name, _)| *name == table.relname)
                .cloned()
        {
            self.add_query(table.alias.as_ref(), &name, outputs);
            return;
        }
        let relation = self.relation(table, false);
        self.add_table(table, relation);
    }

    /// Adds an appearance of a stored relation.
    pub(super) fn relation(&mut self, table: &RangeVar, written: bool) -> usize {
        let schema = (!table.schemaname.is_empty()).then(|| table.schemaname.clone());
        self.relations.push(Relation {
            schema,
            name: table.relname.clone(),
            written,
            ..Relation::default()
        });
        self.relations.len() - 1
    }

    /// Brings a stored relation into scope.
    pub(super) fn add_table(&mut self, table: &RangeVar, relation: usize) {
        let item = match &table.alias {
            Some(alias) => Item {
                name: alias.aliasname.clone(),
                schema: None,
                source: match alias.colnames.as_slice() {
                    [] => Source::Table(relation),
                    // Renamed columns hide which one is the key.
                    _ => Source::Other,
                },
            },
            None => Item {
                name: table.relname.clone(),
                schema: (!table.schemaname.is_empty()).then(|| table.schemaname.clone()),
                source: Source::Table(relation),
            },
        };
        self.scopes.top().items.push(item);
    }

    fn add_query(&mut self, alias: Option<&Alias>, name: &str, mut outputs: Outputs) {
        let name = alias.map_or(name, |alias| &alias.aliasname).to_owned();
        if let Some(alias) = alias {
            outputs.rename(&alias.colnames);
        }
        let source = Source::Query(outputs);
        self.scopes.top().items.push(Item {
            name,
            schema: None,
            source,
        });
    }

    fn read_function(&mut self, function: &RangeFunction) {
        let mut name = String::new();
        for part in &function.functions {
            // A list of the call and its column definitions.
            let Some(NodeEnum::List(list)) = &part.node else {
                continue;
            };
            if let Some(call) = list.items.first() {
                self.expression(call);
                name = natural_name(call);
            }
        }
        self.add_query(function.alias.as_ref(), &name, Outputs::unknown());
    }

    fn read_join(&mut self, join: &JoinExpr) {
        let (Some(left), Some(right)) = (&join.larg, &join.rarg) else {
            return;
        };
        let first = self.relations.len();
        let left = self.read_item(left);
        let middle = self.relations.len();
        let right = self.read_item(right);
        let sides = (first..middle, middle..self.relations.len());
        let (binds_left, binds_right) = match JoinType::try_from(join.jointype) {
            Ok(JoinType::JoinInner) => (true, true),
            Ok(JoinType::JoinLeft) => (false, true),
            Ok(JoinType::JoinRight) => (true, false),
            _ => (false, false),
        };
        if !(binds_left && binds_right) {
            let (kept, filled) = match binds_left {
                true => (sides.1, sides.0),
                false => sides,
            };
            let full = !(binds_left || binds_right);
            self.levels
                .outer_joins
                .push(OuterJoin { kept, filled, full });
        }
        let scope = self.scopes.top();
        scope.outer_join |= !(binds_left && binds_right);
        let tables = |range: Range<usize>| scope.items[range].iter().filter_map(Item::table);
        let mut binds = Vec::new();
        if binds_left {
            binds.extend(tables(left.clone()));
        }
        if binds_right {
            binds.extend(tables(right.clone()));
        }
        for column in join.using_clause.iter().filter_map(string) {
            let scope = self.scopes.top();
            let lefts = scope.unqualified(left.clone(), column).unwrap_or_default();
            let rights = scope.unqualified(right.clone(), column).unwrap_or_default();
            self.join(&lefts, &rights, &binds);
        }
        let mut nullable = Vec::new();
        if !binds_left {
            nullable.push(right.clone());
        }
        if !binds_right {
            nullable.push(left.clone());
        }
        self.merge_columns(join, &nullable);
        if let Some(condition) = &join.quals {
            self.levels.enter_condition();
            self.condition(condition, &binds);
            self.levels.leave_condition();
        }
        self.alias_join(join, left.start);
    }

    /// After an outer join an unqualified merged column is the preserved side's.
    fn merge_columns(&mut self, join: &JoinExpr, nullable: &[Range<usize>]) {
        let mut names: Vec<_> = join
            .using_clause
            .iter()
            .map(|c| string(c).map(str::to_owned))
            .collect();
        if join.is_natural {
            names.push(None);
        }
        for name in names {
            let hidden = nullable.iter().map(|items| (name.clone(), items.clone()));
            self.scopes.top().merged.extend(hidden);
        }
    }

    /// `(a JOIN b ...) AS j` hides the names `a` and `b`.
    fn alias_join(&mut self, join: &JoinExpr, start: usize) {
        let aliases = [join.alias.as_ref(), join.join_using_alias.as_ref()];
        let items = &mut self.scopes.top().items;
        if let Some(alias) = &join.alias {
            for item in &mut items[start..] {
                item.name.clear();
                if !alias.colnames.is_empty() {
                    item.source = Source::Other;
                }
            }
        }
        for alias in aliases.into_iter().flatten() {
            let name = alias.aliasname.clone();
            items.push(Item {
                name,
                schema: None,
                source: Source::Other,
            });
        }
    }
}

fn is_star(column: &ColumnRef) -> bool {
    matches!(
        column.fields.last().and_then(|f| f.node.as_ref()),
        Some(NodeEnum::AStar(_))
    )
}
