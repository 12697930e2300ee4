//! Who this server is and how far it has come.

use pgdog_core::ids::Timeline;
use pgdog_core::lsn::Lsn;
use pgrx::prelude::*;

use crate::lists::pointers;

// Not bound by pgrx. Called inside `pg_guard_ffi_boundary` only.
unsafe extern "C-unwind" {
    fn readTimeLineHistory(timeline: pg_sys::TimeLineID) -> *mut pg_sys::List;
    fn tliInHistory(timeline: pg_sys::TimeLineID, history: *mut pg_sys::List) -> bool;
    fn tliSwitchPoint(
        timeline: pg_sys::TimeLineID,
        history: *mut pg_sys::List,
        next: *mut pg_sys::TimeLineID,
    ) -> pg_sys::XLogRecPtr;
}

/// Last replayed position in recovery, else the insert position, and its timeline. (The one of
/// pg_control lags behind a promotion.) Asked anew each time: a promotion may come in between.
///
/// Both are of one moment: the position of a later timeline must not be taken for one of this.
fn place() -> (Lsn, u32) {
    let mut timeline = 0;
    // SAFETY: reads shared memory; the pointer is valid for the call.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            (Lsn(pg_sys::GetXLogReplayRecPtr(&mut timeline)), timeline)
        } else {
            // It stays on this timeline for as long as it runs.
            (
                Lsn(pg_sys::GetXLogInsertRecPtr()),
                pg_sys::GetWALInsertionTimeLine(),
            )
        }
    }
}

/// The position of [`place`].
pub(crate) fn replayed() -> Lsn {
    place().0
}

/// The timeline of [`place`].
pub(crate) fn timeline() -> u32 {
    place().1
}

/// Where this server's history left an older timeline; 0 if it never was on it, or the history
/// file isn't here: then nothing of that timeline is vouched for.
pub(crate) fn left_timeline_at(left: Timeline, own: Timeline) -> Lsn {
    // SAFETY: reads a small file into a list of this memory context; errors pass the boundary.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let history = readTimeLineHistory(own.0);
            if !tliInHistory(left.0, history) {
                return Lsn(0);
            }
            Lsn(tliSwitchPoint(left.0, history, std::ptr::null_mut()))
        })
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
    let (replayed, timeline) = place();
    let timeline = i32::try_from(timeline).unwrap_or(i32::MAX);
    TableIterator::once((
        system.to_string(),
        timeline,
        in_recovery,
        replayed.to_string(),
    ))
}

/// The timelines that this server's own one comes from, and where each was left.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn timeline_history() -> TableIterator<'static, (name!(timeline, i32), name!(ended_at, String))> {
    // SAFETY: reads a small file into a list of this memory context; errors pass the boundary.
    let history = unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| readTimeLineHistory(timeline())) };
    // The newest comes first: this server's own, which has no end yet.
    // SAFETY: the list's cells point to entries that live as long as the memory context.
    let entries = unsafe { pointers(history) }.skip(1).map(|entry| {
        let entry = unsafe { &*entry.cast::<HistoryEntry>() };
        let number = i32::try_from(entry.timeline).unwrap_or(i32::MAX);
        (number, Lsn(entry.end).to_string())
    });
    TableIterator::new(entries.collect::<Vec<_>>())
}

/// `TimeLineHistoryEntry`, which pgrx does not bind.
#[repr(C)]
struct HistoryEntry {
    timeline: pg_sys::TimeLineID,
    begin: pg_sys::XLogRecPtr,
    end: pg_sys::XLogRecPtr,
}

#[pg_extern(sql = false)]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
