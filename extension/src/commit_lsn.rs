//! The token of a commit, pushed to the client with the commit: no round trip.
//!
//! The parameter is set at commit; Postgres reports changed parameters just before ReadyForQuery,
//! so the report never blocks or fails inside the commit itself.

use std::cell::Cell;
use std::ffi::CString;

use pgdog_core::lsn::Lsn;
use pgrx::prelude::*;

use crate::backend::Own;
use crate::{gucs, transaction};

static LAST: Own<Cell<u64>> = Own::new(Cell::new(0));

/// Whether the commit that has just been made is to be told. May be called outside of a guard.
pub(crate) fn is_due() -> bool {
    // SAFETY: globals of this process, read by its only thread.
    let (end, backend) = unsafe { (pg_sys::XactLastCommitEnd, pg_sys::MyBackendType) };
    if backend != pg_sys::BackendType::B_BACKEND || end == 0 || end == LAST.get() {
        return false;
    }
    LAST.set(end);
    gucs::REPORT_COMMIT_LSN.get()
}

/// Called when a transaction has committed and [`is_due`]. Nothing here may raise: that would be a
/// PANIC.
pub(crate) fn on_commit() {
    let end = LAST.get();
    // A reader may move the end of WAL too, by pruning; only a commit of somebody's work counts.
    // SAFETY: reads the transaction state of this backend.
    let wrote = unsafe { pg_sys::GetTopTransactionIdIfAny() } != pg_sys::InvalidTransactionId;
    if !wrote && !transaction::committed_prepared() {
        return;
    }
    let Ok(text) = CString::new(Lsn(end).to_string()) else {
        return;
    };
    // SAFETY: both strings outlive the call. PGC_S_OVERRIDE stays off the stack of transactional
    // settings, so the value survives whatever comes.
    unsafe {
        pg_sys::SetConfigOption(
            c"pgdog.commit_lsn".as_ptr(),
            text.as_ptr(),
            pg_sys::GucContext::PGC_INTERNAL,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}
