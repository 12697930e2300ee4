//! `SET pgdog.wait_lsn`: the read guard. It waits after SET has done its work, when the backend
//! holds no snapshot. (A function that waits holds one, and replay may wait for that in turn.)

use std::ffi::{CString, c_long};
use std::str::FromStr;
use std::time::{Duration, Instant};

use pgdog_core::fault::Fault;
use pgdog_core::ids::{ShardNumber, Timeline};
use pgdog_core::lsn::{Lsn, Position, Token};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::report::raise;
use crate::{gucs, node, topology};

/// Nothing in these servers wakes a waiter at replay, so it looks: often at first, when the wait
/// is probably short, then rarely, when there may be many waiters.
const BRISK: Duration = Duration::from_millis(50);
const BRISK_POLL_MS: c_long = 1;
const SLOW_POLL_MS: c_long = 5;

/// True for what the parameter takes: `X/Y` or `X/Y@TLI`.
pub(crate) fn is_position(text: &str) -> bool {
    position(text).is_some()
}

/// Waits until the position is replayed here (inserted, on a primary). With a timeline, this
/// server must also be on it, or on one that forked from it behind the position.
///
/// Raises 58000 with `eta_ms=N` in DETAIL when `pgdog.wait_lsn_timeout` is over; `eta_ms=unknown`
/// if nothing was replayed meanwhile. Raises 25001 where waiting cannot help any more, because the
/// transaction's snapshot is older than the wait.
pub(crate) fn until_replayed(value: Option<CString>) {
    let text = value.and_then(|value| value.into_string().ok());
    let Some((floor, timeline)) = text.as_deref().and_then(position) else {
        return; // empty: nothing to wait for
    };
    refuse_old_snapshot();
    let first = node::replayed();
    if is_reached(floor, timeline) {
        return;
    }
    let started = Instant::now();
    let timeout_ms = u64::try_from(gucs::WAIT_LSN_TIMEOUT.get()).unwrap_or(0);
    let timeout = Duration::from_millis(timeout_ms);
    loop {
        let elapsed = started.elapsed();
        if elapsed >= timeout {
            let now = node::replayed();
            raise(&Fault::NoReplicaCaughtUp {
                shard: shard(),
                floor,
                best: Some(now),
                eta_ms: eta_ms(floor, (first, now), elapsed),
            });
        }
        let left_ms = c_long::try_from((timeout - elapsed).as_millis()).unwrap_or(c_long::MAX);
        let poll_ms = if elapsed < BRISK {
            BRISK_POLL_MS
        } else {
            SLOW_POLL_MS
        };
        nap(poll_ms.min(left_ms.max(1)));
        if is_reached(floor, timeline) {
            return;
        }
    }
}

fn position(text: &str) -> Option<Position> {
    Token::from_str(text).ok()?.bare
}

/// True if everything up to the floor is here. Raises 58000 if it never will be.
fn is_reached(floor: Lsn, asked: Option<Timeline>) -> bool {
    if node::replayed() < floor {
        return false;
    }
    let (Some(asked), own) = (asked, Timeline(node::timeline())) else {
        return true;
    };
    if asked >= own {
        // A standby that is still on an older timeline has other bytes at this position.
        return asked == own;
    }
    let forked_at = node::left_timeline_at(asked, own);
    if forked_at < floor {
        raise(&Fault::WriteLostInFailover {
            shard: shard(),
            floor,
            timeline: own,
            forked_at,
        });
    }
    true
}

/// Sleeps, unless the latch is set; a cancel or a timeout of the statement raises.
fn nap(milliseconds: c_long) {
    let wake = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the latch of this process.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            wake as i32,
            milliseconds,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}

fn refuse_old_snapshot() {
    // SAFETY: snapshot state of this backend; the catalog snapshot, which replay would have to
    // wait for, is taken anew when needed.
    let (held, level) = unsafe {
        pg_sys::InvalidateCatalogSnapshot();
        (
            pg_sys::HaveRegisteredOrActiveSnapshot(),
            pg_sys::XactIsoLevel,
        )
    };
    // Under READ COMMITTED the next statement takes a new snapshot. One that is held meanwhile (an
    // open cursor, a function) may stop the replay of a VACUUM: then the wait ends in a refusal.
    if held && level >= pg_sys::XACT_REPEATABLE_READ as i32 {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
            "pgdog.wait_lsn must be set before any query of the transaction",
            "pgdog",
        )
        .set_detail("This transaction holds a snapshot that is older than the wait.")
        .set_hint("SET pgdog.wait_lsn first in a transaction, before any query.")
        .report(PgLogLevel::ERROR);
    }
}

/// Time left at the rate of replay seen during the wait.
fn eta_ms(floor: Lsn, (first, now): (Lsn, Lsn), elapsed: Duration) -> Option<u64> {
    let replayed = now.0.saturating_sub(first.0);
    if replayed == 0 {
        return None;
    }
    let left = u128::from(floor.0.saturating_sub(now.0));
    let eta = left * elapsed.as_millis().max(1) / u128::from(replayed);
    u64::try_from(eta).ok()
}

fn shard() -> ShardNumber {
    topology::current()
        .map(|here| here.shard)
        .unwrap_or_default()
}
