//! Rows that functions, triggers and views write belong to the shard that they are written on.
//!
//! The router sees the text of the client only. So a statement that it has not seen gets a check
//! of every row that it inserts, and of those whose key it changes, as a view with a CHECK OPTION
//! has: `pgdog.placed_here(table, key)`. What the client's own text says is not checked again.
//! When the check runs, a session that routes by no epoch (psql, replication) passes.

use std::ffi::CString;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgrx::prelude::*;

use crate::lists::pointers;
use crate::placement::shard_of;
use crate::registry::{Class, class_of, keyed};
use crate::report::raise;
use crate::{fence, gucs, nesting, topology};

/// Whether a statement that is to be planned was written by code: it stands in a function or
/// trigger, or names a view. May be called outside of a guard.
///
/// # Safety
/// `query` is a valid, rewritten query.
pub(crate) unsafe fn is_of_code(query: *const pg_sys::Query) -> bool {
    // SAFETY: by the caller's promise.
    nesting::is_nested() || unsafe { names_view(query) }
}

unsafe fn names_view(query: *const pg_sys::Query) -> bool {
    // SAFETY: by the caller's promise.
    unsafe {
        pointers((*query).rtable)
            .any(|entry| (*entry.cast::<pg_sys::RangeTblEntry>()).relkind == RELKIND_VIEW)
    }
}

const RELKIND_VIEW: std::ffi::c_char = pg_sys::RELKIND_VIEW as std::ffi::c_char;

/// Adds the checks to a query, and to those in its WITH.
///
/// # Safety
/// `query` is a valid, rewritten query of which nobody else has a copy.
#[pg_guard]
pub(crate) unsafe extern "C-unwind" fn check_rows(query: *mut pg_sys::Query) {
    // SAFETY: by the caller's promise.
    unsafe {
        if fence::is_exempt() || topology::current().is_none_or(|here| here.shards < 2) {
            return;
        }
        add_checks(query);
        for entry in pointers((*query).cteList) {
            let inner = (*entry.cast::<pg_sys::CommonTableExpr>()).ctequery;
            if (*inner).type_ == pg_sys::NodeTag::T_Query {
                add_checks(inner.cast());
            }
        }
    }
}

unsafe fn add_checks(query: *mut pg_sys::Query) {
    use pg_sys::CmdType::{CMD_INSERT, CMD_MERGE, CMD_UPDATE};
    // SAFETY: by the caller's promise; what is made lives as long as the query does, in the memory
    // context where it is planned.
    unsafe {
        let command = (*query).commandType;
        if ![CMD_INSERT, CMD_UPDATE, CMD_MERGE].contains(&command) {
            return;
        }
        let place = (*query).resultRelation;
        let Some(target) = pointers((*query).rtable).nth(place as usize - 1) else {
            return;
        };
        let relation = (*target.cast::<pg_sys::RangeTblEntry>()).relid;
        if !matches!(class_of(relation), Class::Sharded | Class::LookedUp) {
            return;
        }
        let Some(column) = keyed(relation).and_then(|found| CString::new(found.column).ok()) else {
            return;
        };
        let key = pg_sys::get_attnum(relation, column.as_ptr());
        let assigns = |entry: *mut std::ffi::c_void| {
            let entry = &*entry.cast::<pg_sys::TargetEntry>();
            !entry.resjunk && entry.resno == key
        };
        if key <= 0 || command == CMD_UPDATE && !pointers((*query).targetList).any(assigns) {
            return;
        }
        let Some(check) = check((place, relation), key) else {
            return;
        };
        (*query).withCheckOptions = pg_sys::lappend((*query).withCheckOptions, check.cast());
    }
}

/// `pgdog.placed_here(relation, key::text)` for each new row.
unsafe fn check(
    (place, relation): (std::ffi::c_int, pg_sys::Oid),
    key: pg_sys::AttrNumber,
) -> Option<*mut pg_sys::WithCheckOption> {
    // SAFETY: nodes made by Postgres' own functions, or zeroed and filled.
    unsafe {
        let mut name = std::ptr::null_mut();
        for part in [c"pgdog", c"placed_here"] {
            let part = pg_sys::makeString(pg_sys::pstrdup(part.as_ptr()));
            name = pg_sys::lappend(name, part.cast());
        }
        let types = [pg_sys::OIDOID, pg_sys::TEXTOID];
        let function = pg_sys::LookupFuncName(name, 2, types.as_ptr(), true);
        // An older version of the extension in this database.
        if function == pg_sys::InvalidOid {
            return None;
        }
        let (mut of, mut modifier, mut collation) = (pg_sys::InvalidOid, 0, pg_sys::InvalidOid);
        let found = (&raw mut of, &raw mut modifier, &raw mut collation);
        pg_sys::get_atttypetypmodcoll(relation, key, found.0, found.1, found.2);
        let column = pg_sys::makeVar(place, key, of, modifier, collation, 0);
        let text = node::<pg_sys::CoerceViaIO>(pg_sys::NodeTag::T_CoerceViaIO);
        (*text).arg = column.cast();
        (*text).resulttype = pg_sys::TEXTOID;
        (*text).resultcollid = pg_sys::DEFAULT_COLLATION_OID;
        (*text).coerceformat = pg_sys::CoercionForm::COERCE_IMPLICIT_CAST;
        (*text).location = -1;
        let value = pg_sys::Datum::from(relation);
        let table = pg_sys::makeConst(
            pg_sys::OIDOID,
            -1,
            pg_sys::InvalidOid,
            size_of::<pg_sys::Oid>() as std::ffi::c_int,
            value,
            false,
            true,
        );
        let arguments = pg_sys::lappend(std::ptr::null_mut(), table.cast());
        let call = pg_sys::makeFuncExpr(
            function,
            pg_sys::BOOLOID,
            pg_sys::lappend(arguments, text.cast()),
            pg_sys::InvalidOid,
            pg_sys::DEFAULT_COLLATION_OID,
            pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
        );
        let check = node::<pg_sys::WithCheckOption>(pg_sys::NodeTag::T_WithCheckOption);
        (*check).kind = pg_sys::WCOKind::WCO_VIEW_CHECK;
        (*check).relname = pg_sys::get_rel_name(relation);
        (*check).qual = call.cast();
        Some(check)
    }
}

unsafe fn node<T>(tag: pg_sys::NodeTag) -> *mut T {
    // SAFETY: every node begins with its tag.
    unsafe {
        let node = pg_sys::palloc0(size_of::<T>());
        *node.cast::<pg_sys::NodeTag>() = tag;
        node.cast()
    }
}

/// `pgdog.placed_here`: whether a row with this key belongs here; an error if it doesn't.
#[pg_extern(sql = false)]
fn placed_here(relation: pg_sys::Oid, key: Option<&str>) -> bool {
    if fence::is_exempt() || fence::effective_epoch().is_none() || gucs::session_task().is_some() {
        return true;
    }
    let Some(here) = topology::current().filter(|here| here.shards > 1) else {
        return true;
    };
    let Some(declared) = keyed(relation) else {
        return true;
    };
    let table = declared.table;
    let Some(key) = key else {
        raise(&Fault::NullKey {
            table,
            column: declared.column,
        });
    };
    match shard_of(&declared.schema, &table, key) {
        Err(fault) => raise(&fault),
        Ok(shard) if shard == i32::from(here.shard.0) => true,
        Ok(shard) => raise(&Fault::MisplacedRow {
            table,
            key: key.to_owned(),
            belongs: ShardNumber(u16::try_from(shard).unwrap_or(u16::MAX)),
            here: here.shard,
        }),
    }
}
