//! From a text to statements, and from a statement to its kind.

use std::ops::Range;

use pg_query::NodeEnum;
use pg_query::protobuf::{
    CopyStmt, CreateTableAsStmt, DiscardMode, DoStmt, ExecuteStmt, ExplainStmt, Node, RangeVar,
    RawStmt, SelectStmt, TransactionStmt, TransactionStmtKind,
};

use super::copy::copy_in;
use super::definition::{has_option, is_temporary, option};
use super::explained::explained_text;
use super::facts::Facts;
use super::hint::hints;
use super::setting::{current_setting, read_only, server_timestamp, set, set_config, set_configs};
use super::value::{string, value};
use super::{Change, CopyIn, Kind, Plan, PlanError, Prepared, Statement};

/// Reads the facts of a text. Nothing is resolved against a catalog.
///
/// # Errors
/// The text is not in PostgreSQL's grammar.
pub fn parse(sql: &str) -> Result<Plan, PlanError> {
    // PostgreSQL's grammar has EXPLAIN for few kinds of statement.
    let from = sql.len() - explained_text(sql).len();
    if from > 0
        && let Ok(plan) = parse_text(&sql[from..])
        && !plan.statements.is_empty()
    {
        return Ok(with_first_explained(sql, from, plan));
    }
    parse_text(sql)
}

fn parse_text(sql: &str) -> Result<Plan, PlanError> {
    if let Some(timestamp) = server_timestamp(sql) {
        let kind = Kind::SetServerTimestamp(timestamp);
        return Ok(whole(
            sql,
            Statement {
                kind,
                ..Statement::default()
            },
        ));
    }
    let parsed = match pg_query::parse(sql, 0) {
        Ok(parsed) => parsed.protobuf,
        Err(pg_query::Error::Decode(_)) => return Ok(too_deep(sql)),
        Err(error) => {
            let message = error.to_string();
            if message.contains("stack depth") {
                return Ok(too_deep(sql));
            }
            return Err(PlanError { message });
        }
    };
    let mut statements = Vec::with_capacity(parsed.stmts.len());
    let mut start = 0;
    for (position, raw) in parsed.stmts.iter().enumerate() {
        let is_last = position + 1 == parsed.stmts.len();
        let span = span(raw, sql);
        let Some(node) = raw.stmt.as_ref().and_then(|node| node.node.as_ref()) else {
            continue;
        };
        // Comments in front of a statement are its own, those behind the last one too.
        let commented = start..if is_last { sql.len() } else { span.end };
        start = span.end;
        let found = hints(sql, commented);
        statements.push(Statement {
            span,
            hint: found.place,
            role: found.role,
            ..statement(node)
        });
    }
    Ok(Plan { statements })
}

/// The plan of a text from the plan of what stands behind its `EXPLAIN (PGDOG)`.
fn with_first_explained(sql: &str, from: usize, mut plan: Plan) -> Plan {
    for statement in &mut plan.statements {
        statement.span = statement.span.start + from..statement.span.end + from;
    }
    let is_last = plan.statements.len() == 1;
    let first = &mut plan.statements[0];
    let span = 0..first.span.end;
    let found = hints(sql, 0..if is_last { sql.len() } else { span.end });
    let explained = Statement {
        hint: found.place,
        role: found.role,
        ..std::mem::take(first)
    };
    *first = Statement {
        kind: Kind::ExplainRoute,
        span,
        explained: Some(Box::new(explained)),
        ..Statement::default()
    };
    plan
}

fn whole(sql: &str, statement: Statement) -> Plan {
    let found = hints(sql, 0..sql.len());
    let span = 0..sql.len();
    let statement = Statement {
        span,
        hint: found.place,
        role: found.role,
        ..statement
    };
    Plan {
        statements: vec![statement],
    }
}

/// A text beyond the depth to which trees are read: sent as it is where there is only one shard.
fn too_deep(sql: &str) -> Plan {
    let opaque = Some("it is nested too deeply");
    whole(
        sql,
        Statement {
            kind: Kind::Write,
            opaque,
            ..Statement::default()
        },
    )
}

fn span(raw: &RawStmt, sql: &str) -> Range<usize> {
    let start = usize::try_from(raw.stmt_location)
        .unwrap_or(0)
        .min(sql.len());
    let end = match usize::try_from(raw.stmt_len) {
        Ok(len) if len > 0 => (start + len).min(sql.len()),
        _ => sql.len(),
    };
    start..end
}

fn statement(node: &NodeEnum) -> Statement {
    let mut facts = Facts::default();
    let mut extra = Extra::default();
    let mut kind = kind(node, &mut facts, &mut extra);
    facts.functions.sets = facts.set_calls > facts.functions.settings.len();
    if facts.placement {
        kind = Kind::Placement;
    } else if kind == Kind::Read && facts.writes {
        kind = Kind::Write;
    }
    Statement {
        kind,
        span: 0..0,
        relations: facts.relations,
        hint: None,
        role: None,
        params: facts.params,
        functions: facts.functions,
        levels: facts.levels,
        change: facts.change,
        opaque: facts.opaque,
        explained: extra.explained,
        temporary: extra.temporary,
        prepared: extra.prepared,
        copy_in: extra.copy_in,
        alike: false,
    }
}

/// What some kinds add to the facts.
#[derive(Default)]
struct Extra {
    explained: Option<Box<Statement>>,
    temporary: Option<String>,
    prepared: Option<Prepared>,
    copy_in: Option<Box<CopyIn>>,
}

fn kind(node: &NodeEnum, facts: &mut Facts, extra: &mut Extra) -> Kind {
    match node {
        NodeEnum::SelectStmt(select) => select_kind(select, facts, extra),
        NodeEnum::InsertStmt(insert) => {
            facts.insert(insert);
            Kind::Write
        }
        NodeEnum::UpdateStmt(update) => {
            facts.change(update.returning_clause.is_some(), |facts| {
                facts.update(update);
            });
            Kind::Write
        }
        NodeEnum::DeleteStmt(delete) => {
            facts.change(delete.returning_clause.is_some(), |facts| {
                facts.delete(delete);
            });
            Kind::Write
        }
        NodeEnum::MergeStmt(merge) => {
            facts.merge(merge);
            Kind::Write
        }
        NodeEnum::CopyStmt(copy) => copy_kind(copy, facts, extra),
        NodeEnum::ExplainStmt(explain) => explain_kind(explain, facts, extra),
        NodeEnum::TransactionStmt(transaction) => transaction_kind(transaction),
        NodeEnum::VariableSetStmt(stmt) => set(stmt),
        NodeEnum::VariableShowStmt(show) => Kind::Show(show.name.to_ascii_lowercase()),
        NodeEnum::DiscardStmt(discard) => Kind::Discard {
            all: discard.target == DiscardMode::DiscardAll as i32,
        },
        NodeEnum::TruncateStmt(truncate) => {
            for table in truncate.relations.iter().filter_map(range_var) {
                facts.relation(table, true);
            }
            facts.change = Some(Change {
                targets: 0..facts.relations.len(),
                shows: false,
            });
            Kind::Write
        }
        NodeEnum::DoStmt(block) => {
            if block_writes(block) {
                facts.opaque("a DO block may write to any table");
            }
            Kind::Write
        }
        NodeEnum::CallStmt(call) => {
            if let Some(call) = &call.funccall {
                facts.call(call);
            }
            facts.opaque("a procedure may write to any table");
            Kind::Write
        }
        NodeEnum::CreateTableAsStmt(create) => create_as_kind(create, facts, extra),
        NodeEnum::CreateStmt(create) => created(create.relation.as_ref(), extra),
        NodeEnum::CreateSeqStmt(create) => created(create.sequence.as_ref(), extra),
        NodeEnum::ViewStmt(view) => created(view.view.as_ref(), extra),
        other => session_kind(other, facts, extra).unwrap_or_else(|| facts.definition(other)),
    }
}

/// Statements bound to one server connection.
fn session_kind(node: &NodeEnum, facts: &mut Facts, extra: &mut Extra) -> Option<Kind> {
    match node {
        NodeEnum::PrepareStmt(prepare) => {
            let query = prepare
                .query
                .as_ref()
                .and_then(|query| query.node.as_ref())?;
            extra.prepared = Some(Prepared::Prepare {
                name: prepare.name.clone(),
                statement: Box::new(statement(query)),
            });
        }
        NodeEnum::ExecuteStmt(execute) => {
            facts.expressions(&execute.params);
            facts.opaque("the prepared statement behind EXECUTE is not known here");
            extra.prepared = Some(executed(execute));
        }
        NodeEnum::DeallocateStmt(deallocate) => {
            let name = (!deallocate.isall).then(|| deallocate.name.clone());
            extra.prepared = Some(Prepared::Deallocate(name));
        }
        NodeEnum::DeclareCursorStmt(cursor) => {
            facts.subquery(cursor.query.as_deref());
        }
        NodeEnum::LockStmt(lock) => {
            for table in lock.relations.iter().filter_map(range_var) {
                facts.relation(table, true);
            }
        }
        NodeEnum::NotifyStmt(_) => facts.functions.shared = Some("NOTIFY".to_owned()),
        NodeEnum::ListenStmt(_) => facts.functions.shared = Some("LISTEN".to_owned()),
        NodeEnum::UnlistenStmt(_) => facts.functions.shared = Some("UNLISTEN".to_owned()),
        NodeEnum::FetchStmt(_)
        | NodeEnum::ClosePortalStmt(_)
        | NodeEnum::LoadStmt(_)
        | NodeEnum::ConstraintsSetStmt(_) => {}
        _ => return None,
    }
    Some(Kind::Session)
}

fn executed(execute: &ExecuteStmt) -> Prepared {
    Prepared::Execute {
        name: execute.name.clone(),
        arguments: execute.params.iter().map(value).collect(),
    }
}

fn select_kind(select: &SelectStmt, facts: &mut Facts, extra: &mut Extra) -> Kind {
    if let Some(kind) = set_config(select).or_else(|| current_setting(select)) {
        return kind;
    }
    facts.select(select);
    facts.functions.settings = set_configs(select);
    match leftmost_into(select) {
        None => Kind::Read,
        Some(table) => created(Some(table), extra),
    }
}

/// `SELECT ... INTO`, which a set operation keeps in its first arm.
fn leftmost_into(select: &SelectStmt) -> Option<&RangeVar> {
    match (&select.into_clause, &select.larg) {
        (Some(into), _) => into.rel.as_ref(),
        (None, Some(left)) => leftmost_into(left),
        (None, None) => None,
    }
}

fn created(table: Option<&RangeVar>, extra: &mut Extra) -> Kind {
    match table.filter(|table| is_temporary(table)) {
        Some(table) => {
            extra.temporary = Some(table.relname.clone());
            Kind::Session
        }
        None => Kind::Ddl {
            transactional: true,
        },
    }
}

fn create_as_kind(create: &CreateTableAsStmt, facts: &mut Facts, extra: &mut Extra) -> Kind {
    match create.query.as_ref().and_then(|query| query.node.as_ref()) {
        Some(NodeEnum::ExecuteStmt(execute)) => {
            facts.opaque("the prepared statement behind EXECUTE is not known here");
            extra.prepared = Some(executed(execute));
        }
        _ => {
            facts.subquery(create.query.as_deref());
        }
    }
    created(
        create.into.as_ref().and_then(|into| into.rel.as_ref()),
        extra,
    )
}

fn copy_kind(copy: &CopyStmt, facts: &mut Facts, extra: &mut Extra) -> Kind {
    if let Some(query) = &copy.query {
        facts.subquery(Some(query));
    }
    if let Some(table) = &copy.relation {
        let relation = facts.relation(table, copy.is_from);
        facts.relations[relation].insert_columns = copy
            .attlist
            .iter()
            .filter_map(string)
            .map(str::to_owned)
            .collect();
    }
    facts.optional(copy.where_clause.as_deref());
    if copy.is_from && has_option(&copy.options, "default") {
        // The option names a text that stands for the default of its column.
        facts.diverges("COPY with DEFAULT");
    }
    let on_server = copy.is_program || !copy.filename.is_empty();
    match (on_server, copy.is_from) {
        (true, _) => {
            facts.opaque("COPY with a file or program of the server");
            Kind::Write
        }
        (false, true) => {
            extra.copy_in = Some(Box::new(copy_in(copy)));
            Kind::CopyIn
        }
        (false, false) => Kind::CopyOut,
    }
}

fn explain_kind(explain: &ExplainStmt, facts: &mut Facts, extra: &mut Extra) -> Kind {
    let Some(query) = explain.query.as_ref().and_then(|query| query.node.as_ref()) else {
        return Kind::Read;
    };
    facts.functions.by_constants = true;
    if option(&explain.options, "pgdog") {
        extra.explained = Some(Box::new(statement(query)));
        return Kind::ExplainRoute;
    }
    let mut inner_extra = Extra::default();
    let inner = kind(query, facts, &mut inner_extra);
    extra.prepared = inner_extra.prepared;
    if let Some(change) = &mut facts.change {
        change.shows = true;
    }
    if option(&explain.options, "analyze") {
        return if inner == Kind::Read {
            Kind::Read
        } else {
            Kind::Write
        };
    }
    // Only planned: nothing is written, nothing is called.
    facts.writes = false;
    facts.placement = false;
    for relation in &mut facts.relations {
        relation.written = false;
    }
    Kind::Read
}

fn transaction_kind(stmt: &TransactionStmt) -> Kind {
    use TransactionStmtKind as Stmt;
    let name = || stmt.savepoint_name.clone();
    match Stmt::try_from(stmt.kind) {
        Ok(Stmt::TransStmtBegin | Stmt::TransStmtStart) => Kind::Begin {
            read_only: read_only(&stmt.options),
        },
        Ok(Stmt::TransStmtCommit) => Kind::Commit { chain: stmt.chain },
        Ok(Stmt::TransStmtRollback) => Kind::Rollback { chain: stmt.chain },
        Ok(Stmt::TransStmtSavepoint) => Kind::Savepoint(name()),
        Ok(Stmt::TransStmtRelease) => Kind::Release(name()),
        Ok(Stmt::TransStmtRollbackTo) => Kind::RollbackTo(name()),
        Ok(
            Stmt::TransStmtPrepare
            | Stmt::TransStmtCommitPrepared
            | Stmt::TransStmtRollbackPrepared
            | Stmt::Undefined,
        )
        | Err(_) => Kind::TwoPhase,
    }
}

/// Whether the text of a DO block has any word with which it could write.
fn block_writes(block: &DoStmt) -> bool {
    const WORDS: [&str; 17] = [
        "insert",
        "update",
        "delete",
        "merge",
        "truncate",
        "execute",
        "copy",
        "create",
        "alter",
        "drop",
        "call",
        "grant",
        "revoke",
        "into",
        "spi_exec_query",
        "plpy",
        "nextval",
    ];
    let texts = block.args.iter().filter_map(|arg| match &arg.node {
        Some(NodeEnum::DefElem(element)) => element.arg.as_deref().and_then(string),
        _ => None,
    });
    texts.into_iter().any(|text| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .any(|word| WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)))
    })
}

fn range_var(node: &Node) -> Option<&RangeVar> {
    match &node.node {
        Some(NodeEnum::RangeVar(table)) => Some(table),
        _ => None,
    }
}
