//! Every parameter of the prefix `pgdog`. The shim answers some of them itself; a session on the
//! node accepts all, with the same check of the value.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::str::FromStr;

use pgdog_core::ids::Epoch;
use pgdog_core::lsn::Token;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::prelude::*;

use crate::backend::Own;

type Text = GucSetting<Option<CString>>;

pub(crate) static INCARNATION: Text = Text::new(Some(c""));
pub(crate) static COMMIT_LSN: Text = Text::new(Some(c""));
static SESSION_STATE: Text = Text::new(Some(c""));
pub(crate) static REPORT_COMMIT_LSN: GucSetting<bool> = GucSetting::<bool>::new(false);
pub(crate) static WAIT_LSN: Text = Text::new(Some(c""));
pub(crate) static WAIT_LSN_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(100);
pub(crate) static ALLOW_DIRECT_WRITES: GucSetting<bool> = GucSetting::<bool>::new(false);
pub(crate) static FAN_OUT: GucSetting<bool> = GucSetting::<bool>::new(false);
pub(crate) static TASK_ID: Text = Text::new(Some(c""));

static EPOCH: Text = Text::new(Some(c""));
static MIN_LSN: Text = Text::new(Some(c""));
static MIN_COMMIT_TIMESTAMP: Text = Text::new(Some(c""));
static READ_YOUR_WRITES: Text = Text::new(Some(c"off"));
static MIN_LSN_WAIT: GucSetting<i32> = GucSetting::<i32>::new(100);
static MIN_LSN_PRIMARY_FALLBACK: GucSetting<bool> = GucSetting::<bool>::new(false);
static ROLE: Text = Text::new(Some(c"auto"));
static LAST_ROUTE: Text = Text::new(Some(c""));
static SHARD: Text = Text::new(Some(c""));
static SHARDING_KEY: Text = Text::new(Some(c""));

/// `pgdog.epoch`, parsed once, when it is set.
static SESSION_EPOCH: Own<Cell<Option<Epoch>>> = Own::new(Cell::new(None));

/// The epoch that this session routes by, if it has said one.
pub(crate) fn session_epoch() -> Option<Epoch> {
    SESSION_EPOCH.get()
}

/// The task that this session works for. Only superusers can set it.
pub(crate) fn session_task() -> Option<String> {
    let text = TASK_ID.get()?.into_string().ok()?;
    (!text.is_empty()).then_some(text)
}

/// Defines all parameters and reserves the prefix.
pub(crate) fn define() {
    define_of_node();
    define_of_shim();
    // SAFETY: a constant C string.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"pgdog".as_ptr()) };
}

fn define_of_node() {
    let reported = GucFlags::REPORT | GucFlags::DISALLOW_IN_FILE | GucFlags::NO_RESET_ALL;
    GucRegistry::define_string_guc(
        c"pgdog.incarnation",
        c"Identifies one start of this server.",
        c"Made anew whenever shared memory is; reported to the client at login.",
        &INCARNATION,
        GucContext::Internal,
        reported,
    );
    GucRegistry::define_string_guc(
        c"pgdog.commit_lsn",
        c"End of this session's last commit record.",
        c"Reported with every commit that wrote WAL, if pgdog.report_commit_lsn is on.",
        &COMMIT_LSN,
        GucContext::Internal,
        reported,
    );
    GucRegistry::define_string_guc(
        c"pgdog.session_state",
        c"What code last left on this connection.",
        c"Reported with the end of every transaction that left something.",
        &SESSION_STATE,
        GucContext::Internal,
        reported,
    );
    GucRegistry::define_bool_guc(
        c"pgdog.report_commit_lsn",
        c"Reports pgdog.commit_lsn with every commit that wrote WAL.",
        c"",
        &REPORT_COMMIT_LSN,
        GucContext::Userset,
        GucFlags::default(),
    );
    define_fence();
    define_wait();
}

fn define_fence() {
    // What a client resets is its own; these are the shim's, also on servers that it has told long
    // before.
    let of_shim = GucFlags::NO_RESET_ALL;
    text_flagged(
        (
            c"pgdog.epoch",
            c"Epoch of this node that the session routes by.",
        ),
        (&EPOCH, GucContext::Userset, of_shim),
        (Some(check_epoch), Some(assign_epoch)),
    );
    GucRegistry::define_bool_guc(
        c"pgdog.allow_direct_writes",
        c"Allows writes to sharded and omnisharded tables past the shim.",
        c"Superusers may always.",
        &ALLOW_DIRECT_WRITES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"pgdog.fan_out",
        c"Says that the session's reads go to several shards.",
        c"They are then compared with the node's epoch, not only with its placement epoch.",
        &FAN_OUT,
        GucContext::Userset,
        of_shim,
    );
    text_with(
        (
            c"pgdog.task_id",
            c"Topology task that the session works for.",
        ),
        (&TASK_ID, GucContext::Suset),
        (Some(check_number), None),
    );
}

fn define_wait() {
    text_with(
        (
            c"pgdog.wait_lsn",
            c"SET waits until this position is replayed here, without a snapshot.",
        ),
        (&WAIT_LSN, GucContext::Userset),
        (Some(check_position), None),
    );
    GucRegistry::define_int_guc(
        c"pgdog.wait_lsn_timeout",
        c"Longest wait of SET pgdog.wait_lsn.",
        c"0 looks once and does not wait.",
        &WAIT_LSN_TIMEOUT,
        0,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
}

fn define_of_shim() {
    let user = GucContext::Userset;
    text_with(
        (
            c"pgdog.min_lsn",
            c"Reads go only to a replica that has replayed this.",
        ),
        (&MIN_LSN, user),
        (Some(check_token), None),
    );
    let user = GucContext::Userset;
    text_with(
        (
            c"pgdog.min_commit_timestamp",
            c"As pgdog.min_lsn, for all commits stamped up to this.",
        ),
        (&MIN_COMMIT_TIMESTAMP, user),
        (None, None),
    );
    text_with(
        (
            c"pgdog.read_your_writes",
            c"off, or session: the floor follows the session's commits.",
        ),
        (&READ_YOUR_WRITES, GucContext::Userset),
        (Some(check_read_your_writes), None),
    );
    GucRegistry::define_int_guc(
        c"pgdog.min_lsn_wait",
        c"Longest wait of a read for a replica.",
        c"",
        &MIN_LSN_WAIT,
        0,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_bool_guc(
        c"pgdog.min_lsn_primary_fallback",
        c"Reads that no replica can serve in time go to the primary.",
        c"",
        &MIN_LSN_PRIMARY_FALLBACK,
        GucContext::Userset,
        GucFlags::default(),
    );
    text_with(
        (c"pgdog.role", c"primary, replica or auto."),
        (&ROLE, GucContext::Userset),
        (Some(check_role), None),
    );
    text_with(
        (
            c"pgdog.last_route",
            c"Where the shim sent the last statement.",
        ),
        (&LAST_ROUTE, GucContext::Userset),
        (None, None),
    );
    text_with(
        (c"pgdog.shard", c"Shard of the next statements."),
        (&SHARD, GucContext::Userset),
        (Some(check_number), None),
    );
    text_with(
        (
            c"pgdog.sharding_key",
            c"Sharding key of the next statements.",
        ),
        (&SHARDING_KEY, GucContext::Userset),
        (None, None),
    );
}

fn text_with(
    names: (&'static CStr, &'static CStr),
    (setting, context): (&'static Text, GucContext),
    hooks: (pg_sys::GucStringCheckHook, pg_sys::GucStringAssignHook),
) {
    text_flagged(names, (setting, context, GucFlags::default()), hooks);
}

fn text_flagged(
    (name, about): (&'static CStr, &'static CStr),
    (setting, context, flags): (&'static Text, GucContext, GucFlags),
    (check, assign): (pg_sys::GucStringCheckHook, pg_sys::GucStringAssignHook),
) {
    // SAFETY: the hooks are of the types that Postgres expects and neither raise nor keep pointers.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            name, about, c"", setting, context, flags, check, assign, None,
        );
    }
}

/// The value that a check hook is asked about; `None` stands for NULL.
///
/// # Safety
/// `value` points to a NUL-terminated string or to NULL.
unsafe fn asked<'a>(value: *mut *mut std::ffi::c_char) -> Option<&'a CStr> {
    // SAFETY: by the contract of check hooks, see above.
    unsafe { (*value).as_ref().map(|first| CStr::from_ptr(first)) }
}

/// A check hook that takes an empty value, and others that `$fits` takes.
macro_rules! check_hook {
    ($name:ident, $fits:expr) => {
        unsafe extern "C-unwind" fn $name(
            value: *mut *mut std::ffi::c_char,
            _extra: *mut *mut std::ffi::c_void,
            _source: pg_sys::GucSource::Type,
        ) -> bool {
            // SAFETY: Postgres passes the address of its own copy of the new value.
            let Some(text) = (unsafe { asked(value) }) else {
                return true;
            };
            let fits: fn(&str) -> bool = $fits;
            text.to_str()
                .is_ok_and(|text| text.is_empty() || fits(text))
        }
    };
}

check_hook!(check_epoch, |text| Epoch::from_str(text).is_ok());
check_hook!(check_position, crate::wait::is_position);
check_hook!(check_token, |text| Token::from_str(text).is_ok());
check_hook!(check_number, |text| i64::from_str(text)
    .is_ok_and(|number| number >= 0));
check_hook!(check_read_your_writes, |text| matches!(
    text,
    "off" | "session"
));
check_hook!(check_role, |text| matches!(
    text,
    "primary" | "replica" | "auto"
));

unsafe extern "C-unwind" fn assign_epoch(
    value: *const std::ffi::c_char,
    _extra: *mut std::ffi::c_void,
) {
    // SAFETY: the checked value, or NULL.
    let text = unsafe { value.as_ref().map(|first| CStr::from_ptr(first)) };
    let epoch = text
        .and_then(|text| text.to_str().ok())
        .and_then(|text| text.parse().ok());
    SESSION_EPOCH.set(epoch);
}
