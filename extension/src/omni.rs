//! Entering the gate, and the trigger that tells every backend that its cache is old.

use pgdog_core::fault::Fault;
use pgdog_core::ids::Epoch;
use pgrx::prelude::*;

use crate::report::raise;
use crate::{fence, topology, transaction};

/// Takes the gate, then answers with the topology that holds as long as the gate is held.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn omni_enter()
-> TableIterator<'static, (name!(version, i64), name!(epoch, i64), name!(shards, i32))> {
    let Some(before) = topology::current() else {
        raise(&Fault::WrongState {
            what: "cannot enter the gate".into(),
            why: "this node was not declared as a shard yet".into(),
            hint: Some("SELECT pgdog.install_node(shard, shards).".into()),
        });
    };
    fence::take_gate(&before);
    // The wait may have been for a flip; the row is read with a fresh snapshot, not the query's.
    let now = topology::current().unwrap_or(before);
    transaction::note_entered(now.epoch);
    let epoch = i64::try_from(now.epoch.0).unwrap_or(i64::MAX);
    TableIterator::once((now.version, epoch, now.shards))
}

/// The transaction that raised the epoch goes on by it, if it was not stale before: its own
/// changes are no reason to refuse it.
#[pg_extern(sql = false)]
fn follow_epoch(raised: i64) {
    let raised = Epoch(raised.unsigned_abs());
    transaction::note_raised();
    if fence::effective_epoch().is_some_and(|epoch| epoch.0 + 1 >= raised.0) {
        transaction::note_entered(raised);
    }
}

/// `pg_finfo` of the trigger below.
#[unsafe(no_mangle)]
#[doc(hidden)]
pub extern "C-unwind" fn pg_finfo_pgdog_invalidate() -> &'static pg_sys::Pg_finfo_record {
    const RECORD: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &RECORD
}

/// Row trigger `pgdog.invalidate()`: sends a relation invalidation when the change commits.
///
/// # Safety
/// Called by Postgres' function manager.
#[unsafe(no_mangle)]
#[pg_guard]
pub unsafe extern "C-unwind" fn pgdog_invalidate(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the context says whether this is a trigger call; then it is TriggerData.
    unsafe {
        let context = (*call).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            error!("pgdog.invalidate() is a trigger function");
        }
        pg_sys::CacheInvalidateRelcache((*context.cast::<pg_sys::TriggerData>()).tg_relation);
    }
    // Trigger functions return a null pointer, not SQL NULL.
    pg_sys::Datum::null()
}
