//! The first look at a statement: almost every one passes here, for a few dozen instructions.
//!
//! Called outside of a guard, so nothing here allocates, panics, or holds what needs dropping, and
//! Postgres is asked by its own functions, not by pgrx's guarded ones. What a glance leaves open
//! (a cache that is not filled, the gate, any refusal) is left to the fence, which begins anew.

use pgrx::prelude::*;

use crate::registry::{Class, Known};
use crate::topology::Seen;
use crate::{gucs, nesting, registry, topology, transaction};

/// Whether a statement may begin: the fence would find nothing to refuse and nothing to lock.
///
/// # Safety
/// `statement` is a valid planned statement, within a transaction.
pub(crate) unsafe fn passes(statement: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: by the caller's promise; an error finds nothing to clean up.
    let here = match unsafe { topology::glance() } {
        Seen::Unknown => return false,
        Seen::Absent => return true,
        Seen::Here(here) => here,
    };
    let session = gucs::session_epoch();
    // SAFETY: by the caller's promise.
    let Some(written) = (unsafe { written_by(statement) }) else {
        return false;
    };
    if let Some(written) = written {
        let may = match written.class {
            Class::Unlisted => true,
            // Within a write that runs on every shard, the fence asks what is written here.
            Class::Sharded => {
                here.is_serving()
                    && session >= Some(here.placement_epoch)
                    && !(nesting::is_inner() && nesting::runs_everywhere())
            }
            // They leave more than a glance in the transaction.
            Class::LookedUp | Class::Omni => false,
        };
        if !may {
            return false;
        }
        let along = nesting::is_inner() && nesting::runs_everywhere();
        if !along && !written.is_own {
            nesting::note_write_here();
        }
    }
    // SAFETY: by the caller's promise.
    if here.shards > 1 && !unsafe { as_it_is(statement) } {
        return false;
    }
    match session {
        // What the transaction has entered speaks for it, too.
        None => !transaction::has_entered(),
        Some(session) if gucs::FAN_OUT.get() => session >= here.epoch,
        Some(session) => session >= here.placement_epoch,
    }
}

/// Whether a statement writes what its text says: nothing that it names is rewritten into writes of
/// something else. False also if that is not known yet.
///
/// # Safety
/// As [`passes`].
unsafe fn as_it_is(statement: *mut pg_sys::PlannedStmt) -> bool {
    let is_fine = |relation, needed| {
        registry::glance(relation)
            .is_some_and(|known| needed & pg_sys::AclMode::from(known.rewritten) == 0)
    };
    // SAFETY: by the caller's promise.
    unsafe { all_named(statement, is_fine) }
}

/// Privileges that a statement needs for what it writes.
const WRITES: pg_sys::AclMode =
    (pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE) as pg_sys::AclMode;

/// Whether this holds for all relations that the statement's text writes, whatever rules have made
/// of it, with the privileges that it needs for each. May be called outside of a guard.
///
/// # Safety
/// `statement` is a valid planned statement.
pub(crate) unsafe fn all_named(
    statement: *mut pg_sys::PlannedStmt,
    mut holds: impl FnMut(pg_sys::Oid, pg_sys::AclMode) -> bool,
) -> bool {
    // SAFETY: by the caller's promise its lists are valid.
    unsafe {
        #[cfg(feature = "pg15")]
        let list = (*statement).rtable;
        #[cfg(feature = "pg18")]
        let list = (*statement).permInfos;
        let Some(list) = list.as_ref() else {
            return true;
        };
        for nth in 0..list.length as usize {
            let entry = (*list.elements.add(nth)).ptr_value;
            #[cfg(feature = "pg15")]
            let entry = &*entry.cast::<pg_sys::RangeTblEntry>();
            #[cfg(feature = "pg18")]
            let entry = &*entry.cast::<pg_sys::RTEPermissionInfo>();
            let needed = entry.requiredPerms & WRITES;
            if needed != 0 && !holds(entry.relid, needed) {
                return false;
            }
        }
    }
    true
}

/// Whether a statement writes an omnisharded table; None: not known yet.
///
/// # Safety
/// `statement` is a valid planned statement.
pub(crate) unsafe fn writes_omni(statement: *mut pg_sys::PlannedStmt) -> Option<bool> {
    // SAFETY: by the caller's promise.
    let written = unsafe { written_by(statement) }?;
    Some(written.is_some_and(|written| written.class == Class::Omni))
}

/// The strictest of what a statement writes, all of it pgdog's own or not, or nothing. The outer
/// None: not known yet.
///
/// # Safety
/// `statement` is a valid planned statement.
unsafe fn written_by(statement: *mut pg_sys::PlannedStmt) -> Option<Option<Known>> {
    // SAFETY: by the caller's promise its lists are valid, and so are the positions in the first.
    unsafe {
        let targets = (*statement).resultRelations;
        if targets.is_null() {
            return Some(None);
        }
        let mut all: Option<Known> = None;
        for nth in 0..(*targets).length as usize {
            let at = (*(*targets).elements.add(nth)).int_value as usize - 1;
            let entry = (*(*(*statement).rtable).elements.add(at)).ptr_value;
            let entry = &*entry.cast::<pg_sys::RangeTblEntry>();
            if entry.rtekind != pg_sys::RTEKind::RTE_RELATION {
                continue;
            }
            let known = registry::glance(entry.relid)?;
            all = Some(all.map_or(known, |all| all.and(known)));
        }
        Some(all)
    }
}
