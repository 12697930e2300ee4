//! Scans with a fresh catalog snapshot: what is committed now, whatever snapshot the transaction
//! has. Without the executor, so that hooks can use them, and without permission checks.

use std::ffi::CStr;

use pgrx::prelude::*;

/// One row, while it is visited.
pub(crate) struct Row<'a> {
    values: &'a [pg_sys::Datum],
    nulls: &'a [bool],
}

impl Row<'_> {
    /// Column by position, from 0; `None` for NULL and for a column that isn't there.
    pub(crate) fn value<T: FromDatum>(&self, column: usize) -> Option<T> {
        let (value, null) = (self.values.get(column)?, self.nulls.get(column)?);
        // SAFETY: the caller names the column's type; the tuple is pinned by the scan.
        unsafe { T::from_datum(*value, *null) }
    }
}

/// A relation of schema `pgdog` in this database, if the extension is here.
pub(crate) fn relation(name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: look-ups in the system caches with constant names.
    unsafe {
        let namespace = pg_sys::get_namespace_oid(c"pgdog".as_ptr(), true);
        if namespace == pg_sys::InvalidOid
            || pg_sys::get_extension_oid(c"pgdog".as_ptr(), true) == pg_sys::InvalidOid
        {
            return None;
        }
        let relation = pg_sys::get_relname_relid(name.as_ptr(), namespace);
        (relation != pg_sys::InvalidOid).then_some(relation)
    }
}

/// Visits every row that is committed now, or was written earlier by this transaction.
pub(crate) fn scan(relation: pg_sys::Oid, mut visit: impl FnMut(&Row<'_>)) {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: the relation is open and locked for the whole scan, each tuple is used only before
    // the next is fetched, and the arrays are as long as the row. An error unwinds through the
    // vectors and leaves the rest to the resource owner.
    unsafe {
        let rel = pg_sys::table_open(relation, lock);
        let description = (*rel).rd_att;
        let columns = (*description).natts as usize;
        let mut values = vec![pg_sys::Datum::null(); columns];
        let mut nulls = vec![true; columns];
        let scan = pg_sys::systable_beginscan(
            rel,
            pg_sys::InvalidOid,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            pg_sys::heap_deform_tuple(tuple, description, values.as_mut_ptr(), nulls.as_mut_ptr());
            visit(&Row {
                values: &values,
                nulls: &nulls,
            });
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(rel, lock);
    }
}
