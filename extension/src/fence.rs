//! The fence: a statement that was routed by an older topology is refused before it does anything.
//!
//! ```text
//!                    session epoch                 compared with
//! omni write         gate first, then compared     epoch
//! omni write inside  the same; refused unless what runs it is an omni write (on every shard)
//! sharded write      compared                      placement_epoch
//! looked up write    again at the end of a block   placement_epoch
//! sharded read       compared, if one is set       placement_epoch (epoch if pgdog.fan_out)
//! no epoch at all    reads free; writes refused unless allowed; superusers may
//! ```
//! With several shards, a write that rules make into others is refused, and so are sharded rows
//! that the triggers of an omni write add: each shard would add them.
//! Lock order: the gate before everything that the statement itself locks later. It is kept to
//! the end of the transaction, through PREPARE and through a crash.

use std::ffi::CStr;

use pgdog_core::fault::Fault;
use pgdog_core::ids::Epoch;
use pgrx::prelude::*;

use crate::registry::{Class, class_of, look};
use crate::report::raise;
use crate::topology::{State, Topology};
use crate::{glance, gucs, nesting, topology, transaction};

/// True where no check applies, whatever the statement: workers of a parallel query (their leader
/// was checked), logical replication, recovery (no writes), an upgrade of the server.
pub(crate) fn is_exempt() -> bool {
    // SAFETY: globals and functions that read the state of this process.
    unsafe {
        pg_sys::ParallelWorkerNumber >= 0
            || pg_sys::IsBinaryUpgrade
            || pg_sys::am_walsender
            || pg_sys::IsLogicalWorker()
    }
}

/// The epoch that speaks for this statement: the session's, or the one that it entered by.
pub(crate) fn effective_epoch() -> Option<Epoch> {
    gucs::session_epoch().max(transaction::entered())
}

/// Checks a statement that writes these relations; takes the gate if one is omnisharded. `inner`:
/// it stands in a function or trigger, so that no router has seen it.
pub(crate) fn check_writes(targets: &[pg_sys::Oid], inner: bool) {
    // SAFETY: reads the state of this server.
    if targets.is_empty() || is_exempt() || unsafe { pg_sys::RecoveryInProgress() } {
        return;
    }
    let Some(mut here) = topology::current() else {
        return;
    };
    let class = strictest(targets);
    let along = inner && nesting::runs_everywhere();
    if class != Class::Omni && !along && !targets.iter().all(|table| look(*table).is_own) {
        nesting::note_write_here();
    }
    if class == Class::Unlisted {
        return;
    }
    refuse_unless_serving(&here, targets);
    if class == Class::Omni {
        take_gate(&here);
        // The wait may have been for a change of the world. The class stays as the statement was
        // routed by it: a table that is omnisharded no more is a reason to refuse.
        let Some(now) = topology::current() else {
            return;
        };
        here = now;
        refuse_unless_serving(&here, targets);
    }
    let Some(session) = effective_epoch() else {
        if !may_write_directly() {
            raise(&Fault::DirectWrite {
                table: name_of(first_declared(targets)),
            });
        }
        return;
    };
    match class {
        Class::Unlisted => {}
        Class::Sharded => compare(session, here.placement_epoch),
        Class::LookedUp => {
            compare(session, here.placement_epoch);
            transaction::note_placed(here.placement_epoch);
        }
        Class::Omni => {
            compare(session, here.epoch);
            // A statement that runs on every shard has entered the gate on each before. Not
            // every other statement of such a transaction runs on every shard.
            let along = along && transaction::entered().is_some();
            if inner && here.shards > 1 && !along {
                refuse_alone(targets);
            }
        }
    }
}

/// Whether one of these relations is omnisharded.
pub(crate) fn is_omni(targets: &[pg_sys::Oid]) -> bool {
    strictest(targets) == Class::Omni
}

/// Checks that a statement writes what a router has seen in its text. Where there is one shard, it
/// does not matter what else is written.
///
/// # Safety
/// `statement` is a valid planned statement, within a transaction.
pub(crate) unsafe fn check_rewritten(statement: *mut pg_sys::PlannedStmt, written: &[pg_sys::Oid]) {
    if effective_epoch().is_none() || is_exempt() {
        return;
    }
    if topology::current().is_none_or(|here| here.shards == 1) {
        return;
    }
    let mut named = Vec::new();
    // SAFETY: by the caller's promise.
    unsafe {
        let reads = (*statement).commandType == pg_sys::CmdType::CMD_SELECT;
        // Rows that are only locked need the privilege to update them.
        if reads && !(*statement).rowMarks.is_null() {
            return;
        }
        glance::all_named(statement, |relation, needed| {
            named.push((relation, needed));
            true
        });
    }
    let insert = pg_sys::ACL_INSERT as pg_sys::AclMode;
    let inserts = |table: &pg_sys::Oid| {
        let mut named = named.iter();
        named.any(|(relation, needed)| relation == table && needed & insert != 0)
            && matches!(look(*table).class, Class::Sharded | Class::LookedUp)
    };
    if nesting::is_inner() && nesting::runs_everywhere() && written.iter().any(inserts) {
        refuse_everywhere(written);
    }
    for (relation, needed) in &named {
        let known = look(*relation);
        if needed & pg_sys::AclMode::from(known.rewritten) == 0 {
            continue;
        }
        // What is written on every shard may be written through a view.
        let alone = is_omni(written) && transaction::entered().is_none();
        if known.class != Class::Unlisted || alone {
            raise(&Fault::Refused {
                what: format!(
                    "a write to \"{}\" through a rule or view",
                    name_of(*relation)
                ),
                why: "no router has seen what becomes of it".into(),
                hint: Some("Write the tables themselves, each with a statement of its own.".into()),
            });
        }
    }
}

fn refuse_everywhere(targets: &[pg_sys::Oid]) -> ! {
    raise(&Fault::Refused {
        what: format!(
            "adding rows of sharded table \"{}\" on every shard",
            name_of(first_declared(targets))
        ),
        why: "a function or trigger adds them in a write to an omnisharded table, which runs on \
              every shard"
            .into(),
        hint: Some("Add the rows with a statement of their own.".into()),
    })
}

fn refuse_alone(targets: &[pg_sys::Oid]) -> ! {
    raise(&Fault::Refused {
        what: format!(
            "a write to omnisharded table \"{}\" on one shard only",
            name_of(first_declared(targets))
        ),
        why: "a function or trigger writes it, of which no other shard knows".into(),
        hint: Some("Write the table with a statement of its own.".into()),
    })
}

/// Checks a statement that only reads these relations. Without an epoch, reads are free.
pub(crate) fn check_reads(targets: impl Iterator<Item = pg_sys::Oid>) {
    let Some(session) = effective_epoch() else {
        return;
    };
    if is_exempt() {
        return;
    }
    let Some(here) = topology::current() else {
        return;
    };
    let node = if gucs::FAN_OUT.get() {
        here.epoch
    } else {
        here.placement_epoch
    };
    if session >= node {
        return;
    }
    for target in targets {
        if matches!(class_of(target), Class::Sharded | Class::LookedUp) {
            compare(session, node);
        }
    }
}

/// Takes the gate for this transaction; waits for a flip that is in progress.
///
/// Taken for every statement, not once per transaction: a second time costs a look-up in the
/// backend's own lock table, and a rolled back savepoint may have let go of the first one.
pub(crate) fn take_gate(here: &Topology) {
    // SAFETY: within a transaction; an error (cancel, lock_timeout, deadlock) unwinds.
    unsafe {
        pg_sys::LockRelationOid(here.gate, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
    }
}

fn strictest(targets: &[pg_sys::Oid]) -> Class {
    targets
        .iter()
        .map(|target| class_of(*target))
        .max()
        .unwrap_or(Class::Unlisted)
}

fn first_declared(targets: &[pg_sys::Oid]) -> pg_sys::Oid {
    let declared = targets
        .iter()
        .find(|target| class_of(**target) != Class::Unlisted);
    declared.copied().unwrap_or(pg_sys::InvalidOid)
}

fn compare(session: Epoch, node: Epoch) {
    if session < node {
        raise(&Fault::StaleTopology { session, node });
    }
}

fn refuse_unless_serving(here: &Topology, targets: &[pg_sys::Oid]) {
    match here.state {
        State::Serving => {}
        State::Provisioning if gucs::session_task().is_some() => {}
        State::Provisioning => raise(&Fault::WrongState {
            what: format!(
                "table {} cannot be written yet",
                name_of(first_declared(targets))
            ),
            why: "this node is being filled and does not serve".into(),
            hint: Some("Write through pgdog, or wait until the shard serves.".into()),
        }),
    }
}

fn may_write_directly() -> bool {
    // SAFETY: reads the role of this session.
    gucs::ALLOW_DIRECT_WRITES.get() || unsafe { pg_sys::superuser() }
}

fn name_of(relation: pg_sys::Oid) -> String {
    // SAFETY: a look-up in the system cache; the name is copied at once.
    unsafe {
        let name = pg_sys::get_rel_name(relation);
        if name.is_null() {
            return relation.to_u32().to_string();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}
