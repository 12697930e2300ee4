//! Faults of core as Postgres errors.

use pgdog_core::fault::Fault;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// Raises the fault as an ERROR. Only below a `#[pg_guard]`: it unwinds.
pub(crate) fn raise(fault: &Fault) -> ! {
    report(fault).report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}

/// The fault with its SQLSTATE, DETAIL and HINT.
pub(crate) fn report(fault: &Fault) -> ErrorReport {
    let code = PgSqlErrorCode::from(encoded(fault.sqlstate()));
    let mut report = ErrorReport::new(code, fault.message(), "pgdog");
    if let Some(detail) = fault.detail() {
        report = report.set_detail(detail);
    }
    if let Some(hint) = fault.hint() {
        report = report.set_hint(hint);
    }
    report
}

/// `MAKE_SQLSTATE` of elog.h: six bits a character, the first one lowest.
fn encoded(sqlstate: &str) -> i32 {
    sqlstate
        .bytes()
        .enumerate()
        .map(|(nth, byte)| i32::from(byte.wrapping_sub(b'0') & 0x3F) << (6 * nth))
        .sum()
}
