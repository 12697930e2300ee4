//! What this transaction has done so far, forgotten at its end.

use std::cell::{Cell, RefCell};

use pgdog_core::fault::Fault;
use pgdog_core::ids::Epoch;
use pgrx::prelude::*;

use crate::report::raise;
use crate::{commit_lsn, left, nesting, stamps, topology};

/// An entry through the gate, or an epoch raised by this transaction itself.
#[derive(Clone, Copy)]
struct Entered {
    epoch: Epoch,
    /// If this is rolled back, so is the lock, and so is the epoch that it raised.
    subtransaction: pg_sys::SubTransactionId,
}

thread_local! {
    /// The last of each subtransaction that is still open, innermost last.
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
    /// The subtransactions that raised the epoch, as often as they did.
    static RAISED: RefCell<Vec<pg_sys::SubTransactionId>> = const { RefCell::new(Vec::new()) };
    /// The lowest epoch of others at which this transaction wrote rows whose place is looked up.
    static PLACED: Cell<Option<Epoch>> = const { Cell::new(None) };
    static COMMITTED_PREPARED: Cell<bool> = const { Cell::new(false) };
    static COLUMNS_CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// The epoch that `pgdog.omni_enter()` answered in this transaction.
pub(crate) fn entered() -> Option<Epoch> {
    ENTERED.with_borrow(|all| all.iter().map(|entered| entered.epoch).max())
}

/// Notes that the transaction holds the gate and knows the topology of `epoch`.
pub(crate) fn note_entered(epoch: Epoch) {
    let subtransaction = current_subtransaction();
    ENTERED.with_borrow_mut(|all| match all.last_mut() {
        Some(last) if last.subtransaction == subtransaction => last.epoch = epoch,
        _ => all.push(Entered {
            epoch,
            subtransaction,
        }),
    });
}

/// Notes that the transaction has raised the epoch of this node by one.
pub(crate) fn note_raised() {
    let subtransaction = current_subtransaction();
    RAISED.with_borrow_mut(|all| all.push(subtransaction));
}

fn raised() -> u64 {
    RAISED.with_borrow(Vec::len) as u64
}

/// `pgdog.has_raised`: whether this transaction has raised the epoch already: nobody has seen it.
#[pg_extern(sql = false)]
fn has_raised() -> bool {
    raised() > 0
}

fn current_subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads the transaction state of this backend.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Notes a write of rows whose place is looked up, while the node is at this placement epoch.
pub(crate) fn note_placed(node: Epoch) {
    let of_others = Epoch(node.0.saturating_sub(raised()));
    let lowest = PLACED.get().map_or(of_others, |known| known.min(of_others));
    PLACED.set(Some(lowest));
}

/// Rows that others have moved meanwhile would be where nobody looks for them. A statement by
/// itself is not told: it began before the change was committed, and is over at once.
fn refuse_moved() {
    // SAFETY: reads the transaction state of this backend.
    if !unsafe { pg_sys::IsTransactionBlock() } {
        return;
    }
    let (Some(session), Some(here)) =
        (PLACED.get(), PLACED.get().and_then(|_| topology::current()))
    else {
        return;
    };
    let node = Epoch(here.placement_epoch.0.saturating_sub(raised()));
    if node > session {
        raise(&Fault::StaleTopology { session, node });
    }
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
        refuse_moved();
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
        ENTERED.with_borrow_mut(Vec::clear);
        RAISED.with_borrow_mut(Vec::clear);
        PLACED.set(None);
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
    match event {
        SUBXACT_EVENT_COMMIT_SUB => {
            RAISED.with_borrow_mut(|all| {
                let of_own = all.iter_mut().filter(|raised| **raised == own);
                of_own.for_each(|raised| *raised = parent);
            });
            ENTERED.with_borrow_mut(|all| hand_up(all, own, parent));
        }
        SUBXACT_EVENT_ABORT_SUB => {
            RAISED.with_borrow_mut(|all| all.retain(|raised| *raised != own));
            ENTERED.with_borrow_mut(|all| all.retain(|entered| entered.subtransaction != own));
        }
        _ => {}
    }
}

/// What a subtransaction has entered is its parent's from now on.
fn hand_up(
    all: &mut Vec<Entered>,
    own: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
) {
    let Some(last) = all.pop_if(|last| last.subtransaction == own) else {
        return;
    };
    match all.last_mut() {
        Some(outer) if outer.subtransaction == parent => outer.epoch = last.epoch,
        _ => all.push(Entered {
            subtransaction: parent,
            ..last
        }),
    }
}
