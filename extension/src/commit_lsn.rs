//! The token of a commit, pushed to the client with the commit: no round trip.
//!
//! The parameter is set at commit; Postgres reports changed parameters just before ReadyForQuery,
//! so the report never blocks or fails inside the commit itself.

use std::cell::Cell;
use std::ffi::CString;

use pgdog_core::lsn::Lsn;
use pgrx::prelude::*;

use crate::{gucs, transaction};

thread_local! {
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// Called when a transaction has committed. Nothing here may raise: that would be a PANIC.
pub(crate) fn on_commit() {
    // SAFETY: globals of this process, read by its only thread.
    let (end, backend) = unsafe { (pg_sys::XactLastCommitEnd, pg_sys::MyBackendType) };
    if backend != pg_sys::BackendType::B_BACKEND || end == 0 || end == LAST.get() {
        return;
    }
    LAST.set(end);
    if !gucs::REPORT_COMMIT_LSN.get() {
        return;
    }
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
