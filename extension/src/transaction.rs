//! What this transaction has done so far, forgotten at its end.

use std::cell::Cell;

use pgdog_core::ids::Epoch;
use pgrx::prelude::*;

use crate::{commit_lsn, left, nesting, stamps};

/// An entry through the gate. The subtransaction counts: if it is rolled back, so is the lock.
#[derive(Clone, Copy)]
struct Entered {
    epoch: Epoch,
    subtransaction: pg_sys::SubTransactionId,
}

thread_local! {
    static ENTERED: Cell<Option<Entered>> = const { Cell::new(None) };
    static COMMITTED_PREPARED: Cell<bool> = const { Cell::new(false) };
    static COLUMNS_CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// The epoch that `pgdog.omni_enter()` answered in this transaction.
pub(crate) fn entered() -> Option<Epoch> {
    ENTERED.get().map(|entered| entered.epoch)
}

/// Notes that the transaction holds the gate and knows the topology of `epoch`.
pub(crate) fn note_entered(epoch: Epoch) {
    // SAFETY: reads the transaction state of this backend.
    let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
    // An earlier entry is the one that lasts longer; it only learns of the newer epoch.
    let subtransaction = ENTERED
        .get()
        .map_or(subtransaction, |entered| entered.subtransaction);
    ENTERED.set(Some(Entered {
        epoch,
        subtransaction,
    }));
}

/// Notes a COMMIT PREPARED that is about to begin: it runs without a transaction id of its own.
pub(crate) fn note_commit_prepared() {
    stamps::commit_prepared_begins();
    COMMITTED_PREPARED.set(true);
}

/// True if this transaction is a COMMIT PREPARED.
pub(crate) fn committed_prepared() -> bool {
    COMMITTED_PREPARED.get()
}

/// Notes an ALTER TABLE that may change columns or their defaults.
pub(crate) fn note_columns_changed() {
    COLUMNS_CHANGED.set(true);
}

/// `pgdog.columns_changed`: whether this transaction may have changed columns of a table.
#[pg_extern(sql = false)]
fn columns_changed() -> bool {
    COLUMNS_CHANGED.get()
}

/// Registers the callbacks; every backend inherits them by fork.
pub(crate) fn install() {
    // SAFETY: the callbacks are of the right types and live as long as the library.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut());
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_transaction(
    event: pg_sys::XactEvent::Type,
    _arg: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::{
        XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PRE_PREPARE,
        XACT_EVENT_PREPARE,
    };
    if matches!(event, XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE) {
        left::before_end();
    }
    if event == XACT_EVENT_COMMIT {
        commit_lsn::on_commit();
    }
    if matches!(
        event,
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE
    ) {
        stamps::transaction_ends();
        ENTERED.set(None);
        COMMITTED_PREPARED.set(false);
        COLUMNS_CHANGED.set(false);
        nesting::transaction_ends();
        left::on_end(event != XACT_EVENT_ABORT);
    }
}

unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    use pg_sys::SubXactEvent::{
        SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB, SUBXACT_EVENT_START_SUB,
    };
    match event {
        SUBXACT_EVENT_START_SUB => nesting::subtransaction_begins(),
        SUBXACT_EVENT_COMMIT_SUB => nesting::subtransaction_ends(false),
        SUBXACT_EVENT_ABORT_SUB => nesting::subtransaction_ends(true),
        _ => {}
    }
    let Some(entered) = ENTERED
        .get()
        .filter(|entered| entered.subtransaction == own)
    else {
        return;
    };
    if event == SUBXACT_EVENT_COMMIT_SUB {
        ENTERED.set(Some(Entered {
            subtransaction: parent,
            ..entered
        }));
    } else if event == SUBXACT_EVENT_ABORT_SUB {
        ENTERED.set(None);
    }
}
