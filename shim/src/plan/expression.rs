//! Walks expressions for what hides in them: subqueries, functions, parameters.
//!
//! Syntax that is not listed here makes the whole statement opaque rather than half read.

use pg_query::NodeEnum;
use pg_query::protobuf::{
    AConst, ColumnRef, FuncCall, JsonAggConstructor, JsonBehavior, JsonTable, JsonTableColumn,
    JsonValueExpr, Node, RangeTableFunc, SqlValueFunctionOp, SubLinkType, TypeCast, WindowDef,
    a_const,
};

use super::facts::Facts;
use super::function::{is_system_column, traits};
use super::value::string;
use super::{Called, Place};

impl Facts {
    /// Walks an optional expression.
    pub(super) fn optional(&mut self, node: Option<&Node>) {
        if let Some(node) = node {
            self.expression(node);
        }
    }

    /// Walks a list of expressions.
    pub(super) fn expressions(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.expression(node);
        }
    }

    /// Walks one expression.
    pub(super) fn expression(&mut self, node: &Node) {
        let Some(node) = &node.node else { return };
        match node {
            NodeEnum::AConst(constant) => self.constant(constant),
            NodeEnum::String(_)
            | NodeEnum::Integer(_)
            | NodeEnum::Float(_)
            | NodeEnum::Boolean(_)
            | NodeEnum::AStar(_)
            | NodeEnum::SetToDefault(_)
            | NodeEnum::MergeSupportFunc(_)
            | NodeEnum::TypeName(_) => {}
            NodeEnum::CurrentOfExpr(_) => self.diverges("CURRENT OF"),
            NodeEnum::ColumnRef(column) => self.column(column),
            NodeEnum::ParamRef(param) => {
                self.params = self.params.max(usize::try_from(param.number).unwrap_or(0));
            }
            NodeEnum::AExpr(expr) => {
                self.optional(expr.lexpr.as_deref());
                self.optional(expr.rexpr.as_deref());
            }
            NodeEnum::BoolExpr(expr) => self.expressions(&expr.args),
            NodeEnum::FuncCall(call) => self.call(call),
            NodeEnum::SqlvalueFunction(function) => self.value_function(function.op),
            NodeEnum::SubLink(link) => {
                self.optional(link.testexpr.as_deref());
                self.levels.expect(sublink_place(link.sub_link_type));
                self.subquery(link.subselect.as_deref());
            }
            NodeEnum::TypeCast(cast) => self.cast(cast),
            NodeEnum::CollateClause(collate) => self.optional(collate.arg.as_deref()),
            NodeEnum::NullTest(test) => self.optional(test.arg.as_deref()),
            NodeEnum::BooleanTest(test) => self.optional(test.arg.as_deref()),
            NodeEnum::CaseExpr(case) => {
                self.optional(case.arg.as_deref());
                self.expressions(&case.args);
                self.optional(case.defresult.as_deref());
            }
            NodeEnum::CaseWhen(when) => {
                self.optional(when.expr.as_deref());
                self.optional(when.result.as_deref());
            }
            NodeEnum::CoalesceExpr(expr) => self.expressions(&expr.args),
            NodeEnum::MinMaxExpr(expr) => self.expressions(&expr.args),
            NodeEnum::AArrayExpr(list) => self.expressions(&list.elements),
            NodeEnum::RowExpr(row) => self.expressions(&row.args),
            NodeEnum::List(list) => self.expressions(&list.items),
            NodeEnum::AIndirection(indirection) => {
                self.optional(indirection.arg.as_deref());
                self.expressions(&indirection.indirection);
            }
            NodeEnum::AIndices(indices) => {
                self.optional(indices.lidx.as_deref());
                self.optional(indices.uidx.as_deref());
            }
            NodeEnum::NamedArgExpr(arg) => self.optional(arg.arg.as_deref()),
            NodeEnum::ResTarget(target) => {
                self.expressions(&target.indirection);
                self.optional(target.val.as_deref());
            }
            NodeEnum::SortBy(sort) => self.optional(sort.node.as_deref()),
            NodeEnum::GroupingFunc(grouping) => self.expressions(&grouping.args),
            NodeEnum::GroupingSet(set) => self.expressions(&set.content),
            NodeEnum::WindowDef(window) => self.window(window),
            NodeEnum::DefElem(element) => self.optional(element.arg.as_deref()),
            other => self.document(other),
        }
    }

    /// XML and JSON constructors.
    fn document(&mut self, node: &NodeEnum) {
        match node {
            NodeEnum::XmlExpr(xml) => {
                self.expressions(&xml.named_args);
                self.expressions(&xml.args);
            }
            NodeEnum::XmlSerialize(xml) => self.optional(xml.expr.as_deref()),
            NodeEnum::JsonFuncExpr(json) => {
                self.json_value(json.context_item.as_deref());
                self.optional(json.pathspec.as_deref());
                self.expressions(&json.passing);
                self.json_behavior(json.on_empty.as_deref());
                self.json_behavior(json.on_error.as_deref());
            }
            NodeEnum::JsonValueExpr(json) => self.json_value(Some(json)),
            NodeEnum::JsonArgument(json) => self.json_value(json.val.as_deref()),
            NodeEnum::JsonObjectConstructor(json) => self.expressions(&json.exprs),
            NodeEnum::JsonArrayConstructor(json) => self.expressions(&json.exprs),
            NodeEnum::JsonKeyValue(json) => {
                self.optional(json.key.as_deref());
                self.json_value(json.value.as_deref());
            }
            NodeEnum::JsonObjectAgg(json) => {
                self.levels.note_call(None, "json_objectagg", true);
                if let Some(pair) = &json.arg {
                    self.optional(pair.key.as_deref());
                    self.json_value(pair.value.as_deref());
                }
                self.json_aggregate(json.constructor.as_deref());
            }
            NodeEnum::JsonArrayAgg(json) => {
                self.levels.note_call(None, "json_arrayagg", true);
                self.json_value(json.arg.as_deref());
                self.json_aggregate(json.constructor.as_deref());
            }
            NodeEnum::JsonIsPredicate(json) => self.optional(json.expr.as_deref()),
            NodeEnum::JsonParseExpr(json) => self.json_value(json.expr.as_deref()),
            NodeEnum::JsonScalarExpr(json) => self.optional(json.expr.as_deref()),
            NodeEnum::JsonSerializeExpr(json) => self.json_value(json.expr.as_deref()),
            _ => self.opaque("syntax that is not read yet"),
        }
    }

    fn json_aggregate(&mut self, json: Option<&JsonAggConstructor>) {
        let Some(json) = json else { return };
        self.optional(json.agg_filter.as_deref());
        self.expressions(&json.agg_order);
        if let Some(window) = &json.over {
            self.window(window);
        }
    }

    fn json_value(&mut self, json: Option<&JsonValueExpr>) {
        self.optional(json.and_then(|json| json.raw_expr.as_deref()));
    }

    fn json_behavior(&mut self, json: Option<&JsonBehavior>) {
        self.optional(json.and_then(|json| json.expr.as_deref()));
    }

    /// `XMLTABLE` in FROM.
    pub(super) fn xml_table(&mut self, table: &RangeTableFunc) {
        self.optional(table.docexpr.as_deref());
        self.optional(table.rowexpr.as_deref());
        self.expressions(&table.namespaces);
        for column in &table.columns {
            if let Some(NodeEnum::RangeTableFuncCol(column)) = &column.node {
                self.optional(column.colexpr.as_deref());
                self.optional(column.coldefexpr.as_deref());
            }
        }
    }

    /// `JSON_TABLE` in FROM.
    pub(super) fn json_table(&mut self, table: &JsonTable) {
        self.json_value(table.context_item.as_deref());
        self.expressions(&table.passing);
        self.json_behavior(table.on_error.as_deref());
        self.json_columns(&table.columns);
    }

    fn json_columns(&mut self, columns: &[Node]) {
        for column in columns {
            if let Some(NodeEnum::JsonTableColumn(column)) = &column.node {
                let JsonTableColumn {
                    on_empty,
                    on_error,
                    columns,
                    ..
                } = column.as_ref();
                self.json_behavior(on_empty.as_deref());
                self.json_behavior(on_error.as_deref());
                self.json_columns(columns);
            }
        }
    }

    fn column(&mut self, column: &ColumnRef) {
        if let Some(name) = column.fields.last().and_then(string)
            && is_system_column(name)
        {
            self.diverges(name);
        }
    }

    pub(super) fn window(&mut self, window: &WindowDef) {
        self.expressions(&window.partition_clause);
        self.expressions(&window.order_clause);
        self.optional(window.start_offset.as_deref());
        self.optional(window.end_offset.as_deref());
    }

    /// Walks a function call and notes what the function means.
    pub(super) fn call(&mut self, call: &FuncCall) {
        self.expressions(&call.args);
        self.expressions(&call.agg_order);
        self.optional(call.agg_filter.as_deref());
        if let Some(window) = &call.over {
            self.window(window);
        }
        let names: Vec<&str> = call.funcname.iter().filter_map(string).collect();
        let Some((name, path)) = names.split_last() else {
            return;
        };
        let found = traits(path.last().copied(), name);
        self.writes |= found.writes;
        let own = !self.levels.is_nested() || self.has_own_columns(call);
        self.levels.note_call(path.last().copied(), name, own);
        let called = Called {
            schema: path.last().map(|schema| (*schema).to_owned()),
            name: (*name).to_owned(),
            arguments: call.args.len(),
        };
        if !self.functions.called.contains(&called) {
            self.functions.called.push(called);
        }
        self.set_calls += usize::from(*name == "set_config");
        self.placement |= found.placement;
        self.functions.by_constants |= *name == "current_setting";
        self.functions.remembers |= matches!(*name, "currval" | "lastval");
        if found.shared && self.functions.shared.is_none() {
            self.functions.shared = Some((*name).to_owned());
        }
        if found.divergent {
            self.diverges(name);
        }
        let locks =
            name.starts_with("pg_advisory_lock") || name.starts_with("pg_try_advisory_lock");
        let advisory = name.contains("_advisory_") && self.functions.advisory.is_none();
        if locks || advisory {
            self.functions.advisory = Some((*name).to_owned());
        }
    }

    /// Whether all columns in the arguments of a call are surely of the innermost level.
    fn has_own_columns(&mut self, call: &FuncCall) -> bool {
        let names: Vec<String> = self
            .scopes
            .top()
            .items
            .iter()
            .map(|item| item.name.clone())
            .collect();
        let filter = call.agg_filter.as_deref();
        call.args
            .iter()
            .chain(filter)
            .all(|argument| are_own(argument, &names))
    }

    fn value_function(&mut self, op: i32) {
        let name = match SqlValueFunctionOp::try_from(op) {
            Ok(SqlValueFunctionOp::SvfopCurrentDate) => "CURRENT_DATE",
            Ok(SqlValueFunctionOp::SvfopCurrentTime | SqlValueFunctionOp::SvfopCurrentTimeN) => {
                "CURRENT_TIME"
            }
            Ok(
                SqlValueFunctionOp::SvfopCurrentTimestamp
                | SqlValueFunctionOp::SvfopCurrentTimestampN,
            ) => "CURRENT_TIMESTAMP",
            Ok(SqlValueFunctionOp::SvfopLocaltime | SqlValueFunctionOp::SvfopLocaltimeN) => {
                "LOCALTIME"
            }
            Ok(
                SqlValueFunctionOp::SvfopLocaltimestamp | SqlValueFunctionOp::SvfopLocaltimestampN,
            ) => "LOCALTIMESTAMP",
            Ok(SqlValueFunctionOp::SvfopCurrentCatalog) => "CURRENT_CATALOG",
            Ok(
                SqlValueFunctionOp::SvfopCurrentRole
                | SqlValueFunctionOp::SvfopCurrentUser
                | SqlValueFunctionOp::SvfopUser
                | SqlValueFunctionOp::SvfopSessionUser
                | SqlValueFunctionOp::SvfopCurrentSchema,
            ) => return,
            Ok(SqlValueFunctionOp::SqlvalueFunctionOpUndefined) | Err(_) => "this function",
        };
        self.diverges(name);
    }

    /// A bare `'now'` reads the clock where a time is expected, which cannot be seen here.
    fn constant(&mut self, constant: &AConst) {
        if let Some(a_const::Val::Sval(text)) = &constant.val
            && text.sval.trim().eq_ignore_ascii_case("now")
        {
            self.diverges("'now'");
        }
    }

    /// `'today'::date` and its like read the clock too; as bare words they are more often text.
    fn cast(&mut self, cast: &TypeCast) {
        self.optional(cast.arg.as_deref());
        let Some(NodeEnum::AConst(constant)) = cast.arg.as_ref().and_then(|arg| arg.node.as_ref())
        else {
            return;
        };
        let Some(a_const::Val::Sval(text)) = &constant.val else {
            return;
        };
        let type_name = cast
            .type_name
            .as_ref()
            .and_then(|t| t.names.last())
            .and_then(string);
        let is_time = matches!(
            type_name,
            Some("timestamptz" | "timestamp" | "date" | "time" | "timetz")
        );
        let word = text.sval.trim().to_ascii_lowercase();
        if is_time && matches!(word.as_str(), "now" | "today" | "tomorrow" | "yesterday") {
            self.diverges(&format!("'{word}'"));
        }
    }

    /// Notes the first thing whose value would differ between servers.
    pub(super) fn diverges(&mut self, name: &str) {
        self.levels.note_divergent(name);
        if self.functions.divergent.is_none() {
            self.functions.divergent = Some(name.to_owned());
        }
    }

    /// Notes the first reason why the statement cannot be judged.
    pub(super) fn opaque(&mut self, why: &'static str) {
        self.opaque.get_or_insert(why);
    }
}

fn sublink_place(link_type: i32) -> Place {
    match SubLinkType::try_from(link_type) {
        Ok(SubLinkType::ExistsSublink) => Place::Exists,
        Ok(SubLinkType::AnySublink) => Place::In,
        _ => Place::Value,
    }
}

/// Whether an expression is made of constants and of columns of these items alone.
fn are_own(node: &Node, items: &[String]) -> bool {
    let all = |nodes: &[Node]| nodes.iter().all(|node| are_own(node, items));
    let one = |node: &Option<Box<Node>>| node.as_deref().is_none_or(|node| are_own(node, items));
    match &node.node {
        None | Some(NodeEnum::AConst(_) | NodeEnum::ParamRef(_)) => true,
        Some(NodeEnum::ColumnRef(column)) => match column.fields.as_slice() {
            [table, _] => string(table).is_some_and(|name| items.iter().any(|item| item == name)),
            _ => false,
        },
        Some(NodeEnum::AExpr(expr)) => one(&expr.lexpr) && one(&expr.rexpr),
        Some(NodeEnum::BoolExpr(expr)) => all(&expr.args),
        Some(NodeEnum::TypeCast(cast)) => one(&cast.arg),
        Some(NodeEnum::NullTest(test)) => one(&test.arg),
        Some(NodeEnum::CoalesceExpr(expr)) => all(&expr.args),
        Some(NodeEnum::FuncCall(call)) => all(&call.args),
        Some(_) => false,
    }
}
