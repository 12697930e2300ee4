//! The hooks, chained in front of whatever was there.
//!
//! Neither hook function carries `#[pg_guard]`: an error of the statement itself that passed a
//! guard would lose its SQLSTATE (if pgrx doesn't know it) and its CONTEXT. Our own checks run in
//! guarded functions before, or after, and these frames own nothing that needs dropping.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use pgrx::prelude::*;

use crate::backend::Own;
use crate::lists::{integers, pointers};
use crate::{ddl, fence, glance, guard, gucs, left, nesting, transaction, utility, wait};

static NEXT_PLANNER: Own<Cell<pg_sys::planner_hook_type>> = Own::new(Cell::new(None));
static NEXT_EXECUTOR: Own<Cell<pg_sys::ExecutorStart_hook_type>> = Own::new(Cell::new(None));
static NEXT_RUN: Own<Cell<pg_sys::ExecutorRun_hook_type>> = Own::new(Cell::new(None));
static NEXT_FINISH: Own<Cell<pg_sys::ExecutorFinish_hook_type>> = Own::new(Cell::new(None));
static NEXT_UTILITY: Own<Cell<pg_sys::ProcessUtility_hook_type>> = Own::new(Cell::new(None));

/// The statement that was begun last, if it passed at a glance: it writes no omnisharded table.
static PASSED: Own<Cell<*mut pg_sys::PlannedStmt>> = Own::new(Cell::new(null_mut()));

/// Postgres' own functions, declared here because pgrx's bindings are guarded, see above.
mod standard {
    use std::ffi::{c_char, c_int};

    use pgrx::pg_sys;

    unsafe extern "C-unwind" {
        #[link_name = "standard_planner"]
        pub(super) fn planner(
            query: *mut pg_sys::Query,
            text: *const c_char,
            options: c_int,
            parameters: pg_sys::ParamListInfo,
        ) -> *mut pg_sys::PlannedStmt;

        #[link_name = "standard_ExecutorStart"]
        pub(super) fn executor_start(query: *mut pg_sys::QueryDesc, flags: c_int);

        #[cfg(not(feature = "pg18"))]
        #[link_name = "standard_ExecutorRun"]
        pub(super) fn executor_run(
            query: *mut pg_sys::QueryDesc,
            direction: pg_sys::ScanDirection::Type,
            count: u64,
            execute_once: bool,
        );

        #[cfg(feature = "pg18")]
        #[link_name = "standard_ExecutorRun"]
        pub(super) fn executor_run(
            query: *mut pg_sys::QueryDesc,
            direction: pg_sys::ScanDirection::Type,
            count: u64,
        );

        #[link_name = "standard_ExecutorFinish"]
        pub(super) fn executor_finish(query: *mut pg_sys::QueryDesc);

        #[link_name = "standard_ProcessUtility"]
        pub(super) fn process_utility(
            statement: *mut pg_sys::PlannedStmt,
            text: *const c_char,
            read_only: bool,
            context: pg_sys::ProcessUtilityContext::Type,
            parameters: pg_sys::ParamListInfo,
            environment: *mut pg_sys::QueryEnvironment,
            receiver: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );
    }
}

/// Puts the hooks in front of those that are there.
pub(crate) fn install() {
    // SAFETY: the postmaster runs _PG_init alone, before any other thread or process exists.
    unsafe {
        NEXT_PLANNER.set(pg_sys::planner_hook);
        pg_sys::planner_hook = Some(planner);
        NEXT_EXECUTOR.set(pg_sys::ExecutorStart_hook);
        pg_sys::ExecutorStart_hook = Some(executor_start);
        NEXT_RUN.set(pg_sys::ExecutorRun_hook);
        pg_sys::ExecutorRun_hook = Some(executor_run);
        NEXT_FINISH.set(pg_sys::ExecutorFinish_hook);
        pg_sys::ExecutorFinish_hook = Some(executor_finish);
        NEXT_UTILITY.set(pg_sys::ProcessUtility_hook);
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

unsafe extern "C-unwind" fn planner(
    query: *mut pg_sys::Query,
    text: *const c_char,
    options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: Postgres passes a valid query, which it does not use again, and takes a planned one.
    unsafe {
        let writes = (*query).commandType != pg_sys::CmdType::CMD_SELECT;
        if (writes || (*query).hasModifyingCTE) && guard::is_of_code(query) {
            guard::check_rows(query);
        }
        match NEXT_PLANNER.get() {
            Some(next) => next(query, text, options, parameters),
            None => standard::planner(query, text, options, parameters),
        }
    }
}

unsafe extern "C-unwind" fn executor_start(query: *mut pg_sys::QueryDesc, flags: c_int) {
    // SAFETY: Postgres passes a valid query; the next hook and the standard function take the
    // same arguments.
    unsafe {
        let statement = (*query).plannedstmt;
        let runs = flags & pg_sys::EXEC_FLAG_EXPLAIN_ONLY as c_int == 0;
        let passes = runs && glance::passes(statement);
        PASSED.set(if passes { statement } else { null_mut() });
        if runs && !passes {
            before_executor(query);
        }
        match NEXT_EXECUTOR.get() {
            Some(next) => next(query, flags),
            None => standard::executor_start(query, flags),
        }
    }
}

#[cfg(not(feature = "pg18"))]
unsafe extern "C-unwind" fn executor_run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    execute_once: bool,
) {
    // SAFETY: as above.
    unsafe {
        let depth = enter_executor(query);
        match NEXT_RUN.get() {
            Some(next) => next(query, direction, count, execute_once),
            None => standard::executor_run(query, direction, count, execute_once),
        }
        nesting::leave(depth);
    }
}

#[cfg(feature = "pg18")]
unsafe extern "C-unwind" fn executor_run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
) {
    // SAFETY: as above.
    unsafe {
        let depth = enter_executor(query);
        match NEXT_RUN.get() {
            Some(next) => next(query, direction, count),
            None => standard::executor_run(query, direction, count),
        }
        nesting::leave(depth);
    }
}

/// Triggers after a statement run here.
unsafe extern "C-unwind" fn executor_finish(query: *mut pg_sys::QueryDesc) {
    // SAFETY: as above.
    unsafe {
        let depth = enter_executor(query);
        match NEXT_FINISH.get() {
            Some(next) => next(query),
            None => standard::executor_finish(query),
        }
        nesting::leave(depth);
    }
}

#[allow(clippy::too_many_arguments)] // Postgres' signature
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    text: *const c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    receiver: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: as above.
    unsafe {
        let is_plain = is_plain(statement);
        if !is_plain {
            before_utility(statement, context);
        }
        let depth = match is_plain {
            true => Some(nesting::enter(|| false)),
            false => enter_utility(statement),
        };
        let chained = match NEXT_UTILITY.get() {
            Some(next) => next,
            None => standard::process_utility,
        };
        chained(
            statement,
            text,
            read_only,
            context,
            parameters,
            environment,
            receiver,
            completion,
        );
        if let Some(depth) = depth {
            nesting::leave(depth);
        }
        if (*(*statement).utilityStmt).type_ == pg_sys::NodeTag::T_VariableSetStmt {
            after_set(statement);
        }
    }
}

/// BEGIN, COMMIT and the like, which come with every transaction and concern nobody here.
unsafe fn is_plain(statement: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: the node's tag says of which type it is.
    unsafe {
        let node = (*statement).utilityStmt;
        (*node).type_ == pg_sys::NodeTag::T_TransactionStmt
            && (*node.cast::<pg_sys::TransactionStmt>()).kind
                != pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED
    }
}

unsafe fn enter_executor(query: *mut pg_sys::QueryDesc) -> u32 {
    // SAFETY: the planned statement outlives the call.
    nesting::enter(|| unsafe {
        let statement = (*query).plannedstmt;
        if PASSED.get() == statement {
            return false;
        }
        glance::writes_omni(statement).unwrap_or_else(|| executor_runs_everywhere(statement))
    })
}

#[pg_guard]
unsafe extern "C-unwind" fn executor_runs_everywhere(statement: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: the planned statement is valid.
    fence::is_omni(&unsafe { written_by(statement) })
}

/// None for what only wraps a statement of the client.
unsafe fn enter_utility(statement: *mut pg_sys::PlannedStmt) -> Option<u32> {
    // SAFETY: the node's tag says of which type it is.
    unsafe {
        let node = (*statement).utilityStmt;
        (!utility::wraps_a_statement(node))
            .then(|| nesting::enter(|| utility_runs_everywhere(node)))
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn utility_runs_everywhere(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::{T_ConstraintsSetStmt, T_CopyStmt, T_TruncateStmt};
    // SAFETY: as above.
    unsafe {
        match (*node).type_ {
            T_CopyStmt => fence::is_omni(&utility::copied_into(&*node.cast())),
            T_TruncateStmt => fence::is_omni(&utility::truncated(&*node.cast())),
            // Deferred triggers run now.
            T_ConstraintsSetStmt => nesting::only_wrote_everywhere(),
            _ => false,
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn before_executor(query: *mut pg_sys::QueryDesc) {
    // SAFETY: the planned statement and its range table outlive the call.
    unsafe {
        let statement = (*query).plannedstmt;
        let written = written_by(statement);
        fence::check_writes(&written, nesting::is_inner());
        fence::check_rewritten(statement, &written);
        // Also of a statement that writes: what it reads may be all that was placed.
        if fence::effective_epoch().is_some() {
            let entries = pointers((*statement).rtable);
            fence::check_reads(entries.filter_map(|entry| relation_of(entry.cast())));
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn before_utility(
    statement: *mut pg_sys::PlannedStmt,
    context: pg_sys::ProcessUtilityContext::Type,
) {
    use pg_sys::NodeTag::{T_CopyStmt, T_TransactionStmt, T_TruncateStmt};
    // SAFETY: the node's tag says of which type it is.
    unsafe {
        left::note_utility(statement);
        let node = (*statement).utilityStmt;
        let inner = nesting::is_inner()
            || context != pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL;
        ddl::note_columns(node);
        match (*node).type_ {
            T_TransactionStmt => {
                let kind = (*node.cast::<pg_sys::TransactionStmt>()).kind;
                if kind == pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED {
                    transaction::note_commit_prepared();
                }
            }
            T_CopyStmt => fence::check_writes(&utility::copied_into(&*node.cast()), inner),
            T_TruncateStmt => fence::check_writes(&utility::truncated(&*node.cast()), inner),
            _ if context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_SUBCOMMAND => {}
            _ => ddl::check(node),
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn after_set(statement: *mut pg_sys::PlannedStmt) {
    // SAFETY: as above; a SET leaves its own statement alone.
    unsafe {
        let node = (*statement).utilityStmt;
        let set = &*node.cast::<pg_sys::VariableSetStmt>();
        let value_given = set.kind == pg_sys::VariableSetKind::VAR_SET_VALUE;
        if value_given && std::ffi::CStr::from_ptr(set.name) == c"pgdog.wait_lsn" {
            wait::until_replayed(gucs::WAIT_LSN.get());
        }
    }
}

/// The relations that a statement writes.
///
/// # Safety
/// `statement` is a valid planned statement.
unsafe fn written_by(statement: *mut pg_sys::PlannedStmt) -> Vec<pg_sys::Oid> {
    // SAFETY: by the caller's promise, its lists are valid too.
    unsafe {
        let writes = (*statement).resultRelations;
        if writes.is_null() {
            return Vec::new();
        }
        let entries: Vec<_> = pointers((*statement).rtable).collect();
        integers(writes)
            .filter_map(|nth| relation_of(entries[nth as usize - 1].cast()))
            .collect()
    }
}

/// # Safety
/// `entry` is a valid range table entry.
unsafe fn relation_of(entry: *mut pg_sys::RangeTblEntry) -> Option<pg_sys::Oid> {
    // SAFETY: by the caller's promise.
    let entry = unsafe { &*entry };
    (entry.rtekind == pg_sys::RTEKind::RTE_RELATION).then_some(entry.relid)
}
