//! INSERT, UPDATE, DELETE and MERGE: what is written, and where its key comes from.

use pg_query::NodeEnum;
use pg_query::protobuf::{
    CmdType, DeleteStmt, InsertStmt, MergeMatchKind, MergeStmt, MergeWhenClause, Node,
    OnConflictClause, OverridingKind, RangeVar, ReturningClause, SelectStmt, SetOperation,
    UpdateStmt,
};

use super::facts::Facts;
use super::scope::{Column, Item, Outputs, Scope, Source};
use super::value::{string, value};
use super::{Origin, Value};

impl Facts {
    /// Reads an INSERT.
    pub(super) fn insert(&mut self, insert: &InsertStmt) -> Outputs {
        self.writes = true;
        let Some(table) = &insert.relation else {
            return Outputs::unknown();
        };
        let outer_ctes = self.with(insert.with_clause.as_ref());
        let target = self.relation(table, true);
        self.overriding(target, insert.r#override);
        self.relations[target].insert_columns =
            insert.cols.iter().filter_map(target_name).collect();
        match insert
            .select_stmt
            .as_ref()
            .and_then(|select| select.node.as_ref())
        {
            None => self.relations[target].positional = Some(vec![Vec::new()]),
            Some(NodeEnum::SelectStmt(select)) if is_plain_values(select) => {
                self.scopes.0.push(Scope::default());
                let rows = self.value_rows(&select.values_lists);
                self.scopes.0.pop();
                self.insert_rows(target, rows);
            }
            Some(_) => {
                let outputs = self.subquery(insert.select_stmt.as_deref());
                self.insert_outputs(target, &outputs);
            }
        }
        self.scopes.0.push(Scope::default());
        self.add_table(table, target);
        if let Some(conflict) = &insert.on_conflict_clause {
            self.on_conflict(target, conflict);
        }
        let outputs = self.returning(insert.returning_clause.as_ref());
        self.scopes.0.pop();
        self.ctes.truncate(outer_ctes);
        outputs
    }

    /// `OVERRIDING USER VALUE` takes identity columns from their sequence whatever is given.
    fn overriding(&mut self, target: usize, kind: i32) {
        if kind == OverridingKind::OverridingUserValue as i32 {
            self.relations[target].overrides_user = true;
            self.diverges("OVERRIDING USER VALUE");
        }
    }

    fn insert_rows(&mut self, target: usize, rows: Vec<Vec<Value>>) {
        let relation = &mut self.relations[target];
        if relation.insert_columns.is_empty() {
            relation.positional = Some(rows);
            return;
        }
        let mut columns: Vec<Vec<Value>> = relation
            .insert_columns
            .iter()
            .map(|_| Vec::with_capacity(rows.len()))
            .collect();
        for row in rows {
            let mut cells = row.into_iter();
            for column in &mut columns {
                column.push(cells.next().unwrap_or(Value::Unknown));
            }
        }
        relation.bound = relation
            .insert_columns
            .iter()
            .cloned()
            .zip(columns)
            .collect();
    }

    fn insert_outputs(&mut self, target: usize, outputs: &Outputs) {
        let positions = 0..outputs.ordered;
        let origins = positions
            .map(|position| origins(outputs.at(position)))
            .collect();
        self.relations[target].selected = Some(origins);
        self.relations[target].selected_more = !outputs.is_complete();
        if let ([star], true, false) = (
            outputs.stars.as_slice(),
            outputs.columns.is_empty(),
            outputs.open,
        ) {
            self.relations[target].selected_star = Some(*star);
        }
    }

    fn on_conflict(&mut self, target: usize, conflict: &OnConflictClause) {
        if let Some(infer) = &conflict.infer {
            for element in &infer.index_elems {
                if let Some(NodeEnum::IndexElem(element)) = &element.node {
                    self.optional(element.expr.as_deref());
                }
            }
            self.optional(infer.where_clause.as_deref());
        }
        let excluded = Item {
            name: "excluded".into(),
            schema: None,
            source: Source::Other,
        };
        self.scopes.top().items.push(excluded);
        self.assignments(target, &conflict.target_list, true);
        self.optional(conflict.where_clause.as_deref());
    }

    /// Reads an UPDATE.
    pub(super) fn update(&mut self, update: &UpdateStmt) -> Outputs {
        let Some(table) = &update.relation else {
            return Outputs::unknown();
        };
        let outer_ctes = self.with(update.with_clause.as_ref());
        let target = self.written_target(table);
        for item in &update.from_clause {
            self.read_item(item);
        }
        self.changed = target..self.relations.len();
        self.filter(update.where_clause.as_deref());
        self.assignments(target, &update.target_list, false);
        self.finish_change(update.returning_clause.as_ref(), outer_ctes)
    }

    /// Reads a DELETE.
    pub(super) fn delete(&mut self, delete: &DeleteStmt) -> Outputs {
        let Some(table) = &delete.relation else {
            return Outputs::unknown();
        };
        let outer_ctes = self.with(delete.with_clause.as_ref());
        let target = self.written_target(table);
        for item in &delete.using_clause {
            self.read_item(item);
        }
        self.changed = target..self.relations.len();
        self.filter(delete.where_clause.as_deref());
        self.finish_change(delete.returning_clause.as_ref(), outer_ctes)
    }

    fn written_target(&mut self, table: &RangeVar) -> usize {
        self.writes = true;
        let target = self.relation(table, true);
        self.scopes.0.push(Scope::default());
        self.add_table(table, target);
        target
    }

    fn finish_change(&mut self, returning: Option<&ReturningClause>, outer_ctes: usize) -> Outputs {
        let outputs = self.returning(returning);
        self.scopes.0.pop();
        self.ctes.truncate(outer_ctes);
        outputs
    }

    /// Reads a MERGE: the source is outer-joined to the target unless every row must match.
    pub(super) fn merge(&mut self, merge: &MergeStmt) -> Outputs {
        let Some(table) = &merge.relation else {
            return Outputs::unknown();
        };
        let outer_ctes = self.with(merge.with_clause.as_ref());
        let target = self.written_target(table);
        let clauses: Vec<&MergeWhenClause> = merge
            .merge_when_clauses
            .iter()
            .filter_map(|clause| match &clause.node {
                Some(NodeEnum::MergeWhenClause(clause)) => Some(clause.as_ref()),
                _ => None,
            })
            .collect();
        let source = match &merge.source_relation {
            Some(source) => self.read_item(source),
            None => 0..0,
        };
        let has = |kind: MergeMatchKind| clauses.iter().any(|c| c.match_kind == kind as i32);
        let mut binds = Vec::new();
        if !has(MergeMatchKind::MergeWhenNotMatchedBySource) {
            binds.push(target);
        }
        if !has(MergeMatchKind::MergeWhenNotMatchedByTarget) {
            binds.extend(
                self.scopes.top().items[source]
                    .iter()
                    .filter_map(Item::table),
            );
        }
        self.scopes.top().outer_join = true;
        if let Some(condition) = &merge.join_condition {
            self.condition(condition, &binds);
        }
        for clause in clauses {
            self.merge_clause(table, target, clause);
        }
        self.finish_change(merge.returning_clause.as_ref(), outer_ctes)
    }

    fn merge_clause(&mut self, table: &RangeVar, target: usize, clause: &MergeWhenClause) {
        self.optional(clause.condition.as_deref());
        if clause.command_type == CmdType::CmdUpdate as i32 {
            self.assignments(target, &clause.target_list, false);
        }
        if clause.command_type != CmdType::CmdInsert as i32 {
            return;
        }
        // The inserted rows are an appearance of their own: ON says nothing about them.
        let inserted = self.relation(table, true);
        self.overriding(inserted, clause.r#override);
        let columns = clause.target_list.iter().filter_map(target_name).collect();
        let values = clause
            .values
            .iter()
            .map(|node| origins(&self.trace(node)))
            .collect();
        self.relations[inserted].insert_columns = columns;
        self.relations[inserted].selected = Some(values);
    }

    /// Reads the assignments of an UPDATE; `in_conflict`: of an ON CONFLICT.
    fn assignments(&mut self, target: usize, targets: &[Node], in_conflict: bool) {
        for node in targets {
            let Some(NodeEnum::ResTarget(assigned)) = &node.node else {
                continue;
            };
            self.expressions(&assigned.indirection);
            let Some(expression) = assigned.val.as_deref() else {
                continue;
            };
            let expression = match &expression.node {
                Some(NodeEnum::MultiAssignRef(multi)) => {
                    // All columns of `(a, b) = ...` repeat the same source.
                    if multi.colno == 1 {
                        self.optional(multi.source.as_deref());
                    }
                    multi
                        .source
                        .as_deref()
                        .and_then(|source| row_member(source, multi.colno))
                }
                _ => {
                    self.expression(expression);
                    Some(expression)
                }
            };
            let name = assigned.name.clone();
            let keeps = |expression: &Node| {
                (in_conflict && is_excluded(&name, expression))
                    || self.keeps(target, &name, expression)
            };
            if assigned.indirection.is_empty() && expression.is_some_and(keeps) {
                continue;
            }
            let known = expression
                .map(value)
                .filter(|value| *value != Value::Unknown);
            let known = known.filter(|_| assigned.indirection.is_empty());
            self.relations[target].assigned.push((name, known));
        }
    }

    /// `k = k`: the row stays where it is.
    fn keeps(&self, target: usize, name: &str, expression: &Node) -> bool {
        let Some(NodeEnum::ColumnRef(column)) = &expression.node else {
            return false;
        };
        self.scopes
            .resolve(&column.fields)
            .contains(&Column::Stored {
                relation: target,
                name: name.to_owned(),
            })
    }

    fn returning(&mut self, returning: Option<&ReturningClause>) -> Outputs {
        let Some(returning) = returning else {
            return Outputs::default();
        };
        for name in ["old", "new"] {
            let source = Source::Query(Outputs::default());
            self.scopes.top().items.push(Item {
                name: name.into(),
                schema: None,
                source,
            });
        }
        self.targets(&returning.exprs)
    }
}

/// `k = excluded.k` in ON CONFLICT: the new key is on the shard of this statement anyway.
fn is_excluded(name: &str, expression: &Node) -> bool {
    let Some(NodeEnum::ColumnRef(column)) = &expression.node else {
        return false;
    };
    let fields: Vec<&str> = column.fields.iter().filter_map(string).collect();
    fields == ["excluded", name]
}

fn origins(trace: &[Column]) -> Vec<Origin> {
    trace
        .iter()
        .map(|column| match column {
            Column::Stored { relation, name } => Origin::Column(*relation, name.clone()),
            Column::Listed(values) => Origin::Values(values.clone()),
        })
        .collect()
}

fn is_plain_values(select: &SelectStmt) -> bool {
    !select.values_lists.is_empty()
        && select.op == SetOperation::SetopNone as i32
        && select.with_clause.is_none()
        && select.limit_count.is_none()
        && select.limit_offset.is_none()
        && select.sort_clause.is_empty()
}

fn target_name(node: &Node) -> Option<String> {
    match &node.node {
        Some(NodeEnum::ResTarget(target)) => Some(target.name.clone()),
        _ => None,
    }
}

fn row_member(source: &Node, number: i32) -> Option<&Node> {
    match &source.node {
        Some(NodeEnum::RowExpr(row)) => usize::try_from(number)
            .ok()
            .and_then(|number| row.args.get(number.checked_sub(1)?)),
        _ => None,
    }
}
