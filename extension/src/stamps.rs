//! `pgdog.lsn_for_timestamp`: the position that covers every commit with a stamp up to this.
//!
//! A background worker keeps a ring of samples in shared memory; who asks for a moment after the
//! latest one takes a sample himself. How a sample is taken, and why it proves something:
//!
//! 1. Read the clock: T.
//! 2. Wait 1 ms. A backend announces that it is about to commit, then reads the clock for the
//!    stamp; without a barrier between the two its announcement may still be on the way when T is
//!    read.
//! 3. Wait until everybody who announces a commit now has written its record: whoever has a stamp
//!    up to T is among them, or had written it before.
//! 4. Read the end of WAL: L. All commits stamped up to T end at or before L.
//!
//! Backends announce by `DELAY_CHKPT_START`; a COMMIT PREPARED reads the clock first, so it is
//! announced here, from before the command until its end. (A subscription with `two_phase` commits
//! without a command: not covered.)

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use pgdog_core::lsn::Lsn;
use pgdog_core::stamps::{Covered, Reading, Ring};
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, SignalWakeFlags,
};
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, PgLwLock, PgSharedMemoryInitialization as _};

use crate::backend::Own;

/// Pause of the worker between samples while WAL grows.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// And while it does not: the last sample stays true, and who needs a later one takes it.
const IDLE_PAUSE: Duration = Duration::from_millis(250);
/// Longest wait of who asks. After that he gets no answer, as for a moment in the future.
const PATIENCE: Duration = Duration::from_millis(200);
/// Longest wait of the worker for one sample.
const WORKER_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between looks at who is committing.
const NAP_US: i64 = 200;
/// COMMIT PREPAREDs that can be told apart; more than that at once put samples off.
const PLACES: usize = 128;

#[derive(Default)]
struct Shared(Ring<4096>);

// SAFETY: plain numbers, no pointers.
unsafe impl PGRXSharedMemory for Shared {}

/// COMMIT PREPAREDs under way: in each place the number of one, or 0.
struct Prepared {
    last: AtomicU64,
    places: [AtomicU64; PLACES],
    /// Those that found no place.
    others: AtomicU64,
}

impl Default for Prepared {
    fn default() -> Self {
        Self {
            last: AtomicU64::new(0),
            places: std::array::from_fn(|_| AtomicU64::new(0)),
            others: AtomicU64::new(0),
        }
    }
}

// SAFETY: atomics only.
unsafe impl PGRXSharedMemory for Prepared {}

// SAFETY: nobody else uses these names.
static RING: PgLwLock<Shared> = unsafe { PgLwLock::new(c"pgdog_stamps") };
// SAFETY: likewise.
static PREPARED: PgAtomic<Prepared> = unsafe { PgAtomic::new(c"pgdog_prepared") };

/// Where this backend's COMMIT PREPARED is noted.
#[derive(Clone, Copy)]
enum Noted {
    At(usize),
    AmongOthers,
}

static NOTED: Own<Cell<Option<Noted>>> = Own::new(Cell::new(None));

static NEXT_REQUEST: OnceLock<pg_sys::shmem_request_hook_type> = OnceLock::new();
static NEXT_STARTUP: OnceLock<pg_sys::shmem_startup_hook_type> = OnceLock::new();

/// Asks for shared memory and for the worker.
pub(crate) fn install() {
    // SAFETY: the postmaster runs _PG_init alone, before any other thread or process exists.
    unsafe {
        NEXT_REQUEST.get_or_init(|| pg_sys::shmem_request_hook);
        pg_sys::shmem_request_hook = Some(on_shmem_request);
        NEXT_STARTUP.get_or_init(|| pg_sys::shmem_startup_hook);
        pg_sys::shmem_startup_hook = Some(on_shmem_startup);
    }
    // A promoted standby gets one too. Nothing depends on it: without it, askers sample.
    BackgroundWorkerBuilder::new("pgdog commit stamps")
        .set_type("pgdog commit stamps")
        .set_library("pgdog")
        .set_function("pgdog_stamps_main")
        .enable_shmem_access(None)
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

#[pg_guard]
unsafe extern "C-unwind" fn on_shmem_request() {
    // SAFETY: the hook that was there before ours; then requests, which this hook is for.
    unsafe {
        if let Some(Some(next)) = NEXT_REQUEST.get() {
            next();
        }
        RING.on_shmem_request();
        PREPARED.on_shmem_request();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_shmem_startup() {
    // SAFETY: as above. A crash of a backend makes shared memory anew, and all of this with it.
    unsafe {
        if let Some(Some(next)) = NEXT_STARTUP.get() {
            next();
        }
        RING.on_shmem_startup(Shared::default());
        PREPARED.on_shmem_startup(Prepared::default());
    }
}

/// Announces a COMMIT PREPARED, before it reads the clock.
pub(crate) fn commit_prepared_begins() {
    if NOTED.get().is_some() {
        return;
    }
    let prepared = PREPARED.get();
    let number = prepared.last.fetch_add(1, Ordering::SeqCst) + 1;
    // Spread by number, so that the first look usually finds a free one.
    let first = usize::try_from(number % PLACES as u64).unwrap_or_default();
    for at in (first..PLACES).chain(0..first) {
        let place = &prepared.places[at];
        let taken = place.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed);
        if taken.is_ok() {
            NOTED.set(Some(Noted::At(at)));
            return;
        }
    }
    prepared.others.fetch_add(1, Ordering::SeqCst);
    NOTED.set(Some(Noted::AmongOthers));
}

/// Its transaction has ended, one way or the other.
pub(crate) fn transaction_ends() {
    match NOTED.take() {
        None => {}
        Some(Noted::At(at)) => PREPARED.get().places[at].store(0, Ordering::SeqCst),
        Some(Noted::AmongOthers) => {
            PREPARED.get().others.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The worker: a sample now and then until the server stops.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pgdog_stamps_main(_argument: pg_sys::Datum) {
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGTERM);
    let mut end = Lsn(0);
    let mut pause = BUSY_PAUSE;
    // Who asks whether SIGTERM has come takes it: nobody is told a second time.
    let stopped = Cell::new(false);
    let stop = || {
        stopped.set(stopped.get() || BackgroundWorker::sigterm_received());
        stopped.get()
    };
    while BackgroundWorker::wait_latch(Some(pause)) {
        let before = std::mem::replace(&mut end, insert_position());
        // What has not grown since the last sample is covered by it.
        let grown = end != before;
        pause = if grown { BUSY_PAUSE } else { IDLE_PAUSE };
        sample(WORKER_PATIENCE, stop);
        if stopped.get() {
            break;
        }
    }
}

/// Takes a sample into the ring; false if somebody is still committing when patience is over.
fn sample(patience: Duration, stop: impl Fn() -> bool) -> bool {
    let began = read_clocks();
    let deadline = Instant::now() + patience;
    nap(1_000);
    fence(Ordering::SeqCst);
    let goes_on = || Instant::now() < deadline && !stop();
    if !(wait_for_prepared(&goes_on) && wait_for_committing(&goes_on)) {
        return false;
    }
    let position = insert_position();
    let ended = read_clocks();
    RING.exclusive().0.note(began, ended, position);
    true
}

/// Waits for the COMMIT PREPAREDs that are under way now.
fn wait_for_prepared(goes_on: &impl Fn() -> bool) -> bool {
    let prepared = PREPARED.get();
    let now = prepared.places.iter();
    let now: Vec<u64> = now.map(|place| place.load(Ordering::SeqCst)).collect();
    let is_over = || {
        let mut places = now.iter().zip(&prepared.places);
        prepared.others.load(Ordering::SeqCst) == 0
            && places.all(|(then, place)| *then == 0 || place.load(Ordering::SeqCst) != *then)
    };
    loop {
        if is_over() {
            return true;
        }
        if !goes_on() {
            return false;
        }
        nap(NAP_US);
    }
}

/// Waits for the commits that are under way now.
fn wait_for_committing(goes_on: &impl Fn() -> bool) -> bool {
    let kind = pg_sys::DELAY_CHKPT_START as i32;
    let mut count = 0;
    // SAFETY: reads shared memory; the array is palloc'd and freed below.
    let committing = unsafe { pg_sys::GetVirtualXIDsDelayingChkpt(&raw mut count, kind) };
    let is_over = loop {
        // SAFETY: the array and its length, as they were returned.
        let any =
            count > 0 && unsafe { pg_sys::HaveVirtualXIDsDelayingChkpt(committing, count, kind) };
        if !any {
            break true;
        }
        if !goes_on() {
            break false;
        }
        nap(NAP_US);
    };
    // SAFETY: palloc'd above, not used any more.
    unsafe { pg_sys::pfree(committing.cast()) };
    is_over
}

/// What a replica must have replayed to have all that was inserted so far.
fn insert_position() -> Lsn {
    // SAFETY: reads shared memory; called outside recovery only.
    Lsn(unsafe { pg_sys::GetXLogInsertRecPtr() }).to_replay()
}

fn nap(microseconds: i64) {
    // SAFETY: sleeps.
    unsafe { pg_sys::pg_usleep(microseconds) };
}

/// Both clocks, as close together as can be had.
fn read_clocks() -> Reading {
    const CLOSE_US: i64 = 50;
    let mut best: Option<(i64, Reading)> = None;
    // An interruption in between would look as if the clock had been set.
    for _ in 0..5 {
        let before = monotonic_us();
        // SAFETY: reads the clock.
        let wall_us = unsafe { pg_sys::GetCurrentTimestamp() };
        let between = monotonic_us() - before;
        let reading = Reading {
            wall_us,
            monotonic_us: before + between / 2,
        };
        if best.is_none_or(|(least, _)| between < least) {
            best = Some((between, reading));
        }
        if between <= CLOSE_US {
            break;
        }
    }
    best.expect("read at least once").1
}

fn monotonic_us() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// The position that covers every commit stamped up to this moment (microseconds since 2000, as
/// Postgres keeps them); NULL in recovery, for a moment in the future, and when it can't be told.
#[pg_extern(sql = false)]
fn lsn_for_timestamp(stamp_us: i64) -> Option<i64> {
    // SAFETY: reads shared memory.
    if unsafe { pg_sys::RecoveryInProgress() } {
        return None;
    }
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let now = read_clocks();
        let covered = RING.share().0.covering(stamp_us, now);
        match covered {
            Covered::By(position) => return Some(position.0.cast_signed()),
            Covered::Never => return None,
            Covered::From { wall_us } if now.wall_us < wall_us => {
                // A moment after the clock: that moment has to pass first.
                nap((wall_us - now.wall_us).min(NAP_US * 10) + 1);
            }
            Covered::From { .. } => {
                sample(deadline.saturating_duration_since(Instant::now()), || false);
            }
        }
        pgrx::check_for_interrupts!();
    }
    None
}
