//! What this transaction has done so far, forgotten at its end.

use std::cell::{Cell, RefCell};

use pgdog_core::fault::Fault;
use pgdog_core::ids::Epoch;
use pgrx::prelude::*;

use crate::backend::Own;
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
}

/// The lowest epoch of others at which this transaction wrote rows whose place is looked up.
static PLACED: Own<Cell<Option<Epoch>>> = Own::new(Cell::new(None));
static COMMITTED_PREPARED: Own<Cell<bool>> = Own::new(Cell::new(false));
static COLUMNS_CHANGED: Own<Cell<bool>> = Own::new(Cell::new(false));
/// Whether the transaction entered or raised anything, or had subtransactions: most did not, and
/// have nothing to forget.
static NOTED: Own<Cell<bool>> = Own::new(Cell::new(false));

/// The epoch that `pgdog.omni_enter()` answered in this transaction.
pub(crate) fn entered() -> Option<Epoch> {
    ENTERED.with_borrow(|all| all.iter().map(|entered| entered.epoch).max())
}

/// True if this transaction may have entered the gate. May be called outside of a guard.
pub(crate) fn has_entered() -> bool {
    NOTED.get()
}

/// Notes that the transaction holds the gate and knows the topology of `epoch`.
pub(crate) fn note_entered(epoch: Epoch) {
    NOTED.set(true);
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
    NOTED.set(true);
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

/// Without a guard: most transactions have nothing to look at, and nothing to forget.
unsafe extern "C-unwind" fn on_transaction(
    event: pg_sys::XactEvent::Type,
    _arg: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::{
        XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PRE_PREPARE,
        XACT_EVENT_PREPARE,
    };
    // SAFETY: each is called at its own point of the transaction's end.
    unsafe {
        match event {
            XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE
                if PLACED.get().is_some() || left::is_anything() =>
            {
                before_end();
            }
            XACT_EVENT_COMMIT if commit_lsn::is_due() => after_commit(),
            _ => {}
        }
    }
    if matches!(
        event,
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE
    ) {
        forget();
        if left::is_anything() {
            // SAFETY: as above.
            unsafe { tell_left(event != XACT_EVENT_ABORT) };
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn before_end() {
    refuse_moved();
    left::before_end();
}

#[pg_guard]
unsafe extern "C-unwind" fn after_commit() {
    commit_lsn::on_commit();
}

#[pg_guard]
unsafe extern "C-unwind" fn tell_left(committed: bool) {
    left::on_end(committed);
}

fn forget() {
    stamps::transaction_ends();
    let noted = NOTED.replace(false);
    if noted {
        ENTERED.with_borrow_mut(Vec::clear);
        RAISED.with_borrow_mut(Vec::clear);
    }
    PLACED.set(None);
    COMMITTED_PREPARED.set(false);
    COLUMNS_CHANGED.set(false);
    nesting::transaction_ends(noted);
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
        SUBXACT_EVENT_START_SUB => {
            NOTED.set(true);
            nesting::subtransaction_begins();
        }
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
