//! Who this server is and how far it has come.

use pgdog_core::lsn::Lsn;
use pgrx::prelude::*;

/// Last replayed position in recovery, else the insert position. Asked anew each time: a
/// promotion may come in between.
pub(crate) fn replayed() -> Lsn {
    // SAFETY: reads shared memory.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            Lsn(pg_sys::GetXLogReplayRecPtr(std::ptr::null_mut()))
        } else {
            Lsn(pg_sys::GetXLogInsertRecPtr())
        }
    }
}

/// Timeline of that position. (The one of pg_control lags behind a promotion.)
fn timeline() -> u32 {
    let mut timeline = 0;
    // SAFETY: reads shared memory; the pointer is valid for the call.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            pg_sys::GetXLogReplayRecPtr(&mut timeline);
            timeline
        } else {
            pg_sys::GetWALInsertionTimeLine()
        }
    }
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn node_facts() -> TableIterator<
    'static,
    (
        name!(system_identifier, String),
        name!(timeline, i32),
        name!(in_recovery, bool),
        name!(replay_lsn, String),
    ),
> {
    // SAFETY: reads shared memory.
    let (system, in_recovery) =
        unsafe { (pg_sys::GetSystemIdentifier(), pg_sys::RecoveryInProgress()) };
    let timeline = i32::try_from(timeline()).unwrap_or(i32::MAX);
    TableIterator::once((
        system.to_string(),
        timeline,
        in_recovery,
        replayed().to_string(),
    ))
}

#[pg_extern(sql = false)]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
