//! Postgres' lists, read.

use std::ffi::{c_int, c_void};

use pgrx::prelude::*;

/// The members of a list of OIDs, copied.
///
/// # Safety
/// `list` is NIL or a valid OID list.
pub(crate) unsafe fn oids(list: *mut pg_sys::List) -> Vec<pg_sys::Oid> {
    // SAFETY: by the caller's promise.
    unsafe { cells(list) }
        .map(|cell| unsafe { cell.oid_value })
        .collect()
}

/// The members of a list of integers.
///
/// # Safety
/// `list` is NIL or a valid integer list, and outlives the iterator.
pub(crate) unsafe fn integers(list: *mut pg_sys::List) -> impl Iterator<Item = c_int> {
    // SAFETY: by the caller's promise.
    unsafe { cells(list) }.map(|cell| unsafe { cell.int_value })
}

/// The members of a list of pointers.
///
/// # Safety
/// `list` is NIL or a valid list of pointers, and outlives the iterator.
pub(crate) unsafe fn pointers(list: *mut pg_sys::List) -> impl Iterator<Item = *mut c_void> {
    // SAFETY: by the caller's promise.
    unsafe { cells(list) }.map(|cell| unsafe { cell.ptr_value })
}

/// # Safety
/// `list` is NIL or a valid list that outlives the iterator.
unsafe fn cells(list: *mut pg_sys::List) -> impl Iterator<Item = pg_sys::ListCell> {
    // SAFETY: by the caller's promise.
    let length = if list.is_null() {
        0
    } else {
        unsafe { (*list).length }
    };
    // SAFETY: the index is not negative and below the length.
    (0..length as usize).map(move |nth| unsafe { *(*list).elements.add(nth) })
}
