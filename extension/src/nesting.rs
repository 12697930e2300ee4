//! Which statement is the client's own, and which ones functions and triggers run within it.
//!
//! A depth is counted over everything that runs code of users: the executor, and utility commands
//! but those that only wrap a statement of the client (EXECUTE, EXPLAIN, cursors, COPY of a query).
//! An error leaves by a long jump: what it skips is made good at the end of the (sub)transaction,
//! for nothing catches an error without one.

use std::cell::{Cell, RefCell};

use pgrx::prelude::*;

use crate::backend::Own;

unsafe extern "C-unwind" {
    /// Behind the SQL function of this name.
    fn pg_trigger_depth(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
}

static DEPTH: Own<Cell<u32>> = Own::new(Cell::new(0));
static EVERYWHERE: Own<Cell<bool>> = Own::new(Cell::new(false));
static WROTE_HERE: Own<Cell<bool>> = Own::new(Cell::new(false));

thread_local! {
    /// The depth at which each open subtransaction began.
    static SAVEPOINTS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Goes one level down; the result is for `leave`. `everywhere`: the statement writes an
/// omnisharded table, so that it runs on every shard; asked only of a statement of the client.
pub(crate) fn enter(everywhere: impl FnOnce() -> bool) -> u32 {
    let depth = DEPTH.get();
    if depth == 0 {
        EVERYWHERE.set(if is_deferred() {
            only_wrote_everywhere()
        } else {
            !is_idle() && everywhere()
        });
    }
    DEPTH.set(depth + 1);
    depth
}

/// Goes back up.
pub(crate) fn leave(depth: u32) {
    DEPTH.set(depth);
}

/// Whether a statement that begins now is not one that the client sent.
pub(crate) fn is_inner() -> bool {
    DEPTH.get() > 0 || is_deferred() || is_idle()
}

/// Whether a statement that is planned now is one of a function or trigger. Those of a client are
/// planned while nothing is under way.
pub(crate) fn is_nested() -> bool {
    DEPTH.get() > 0 || is_deferred()
}

/// Whether what runs the inner statement that begins now runs on every shard.
pub(crate) fn runs_everywhere() -> bool {
    if DEPTH.get() == 0 {
        is_deferred() && only_wrote_everywhere()
    } else {
        EVERYWHERE.get()
    }
}

/// Whether all that this transaction has written so far was written on every shard: then so is
/// what its deferred triggers write.
pub(crate) fn only_wrote_everywhere() -> bool {
    !WROTE_HERE.get()
}

/// Notes a write that other shards know nothing of.
pub(crate) fn note_write_here() {
    WROTE_HERE.set(true);
}

/// In a trigger, though nothing of the client is under way: at the commit.
fn is_deferred() -> bool {
    // SAFETY: the function looks at no argument, only at a variable of this process.
    unsafe { pg_trigger_depth(std::ptr::null_mut()) }.value() != 0
}

/// No statement of a client is under way, but maybe a function that a message of its own calls.
fn is_idle() -> bool {
    // SAFETY: reads a global of this process.
    unsafe { pg_sys::ActivePortal.is_null() }
}

/// The transaction ended. Those that a procedure ends leave it running. `had_savepoints`: it had
/// subtransactions.
pub(crate) fn transaction_ends(had_savepoints: bool) {
    WROTE_HERE.set(false);
    if had_savepoints {
        SAVEPOINTS.with_borrow_mut(Vec::clear);
    }
    if is_idle() {
        DEPTH.set(0);
    }
}

/// A subtransaction began.
pub(crate) fn subtransaction_begins() {
    SAVEPOINTS.with_borrow_mut(|open| open.push(DEPTH.get()));
}

/// A subtransaction ended.
pub(crate) fn subtransaction_ends(aborted: bool) {
    let began = SAVEPOINTS.with_borrow_mut(Vec::pop);
    if let Some(depth) = began.filter(|_| aborted) {
        DEPTH.set(depth);
    }
}
