//! Which relations a utility statement writes.

use pgrx::prelude::*;

use crate::lists::{oids, pointers};

unsafe extern "C-unwind" {
    /// Not bound by pgrx. Called inside `pg_guard_ffi_boundary` only.
    fn find_all_inheritors(
        parent: pg_sys::Oid,
        lock: pg_sys::LOCKMODE,
        parents: *mut *mut pg_sys::List,
    ) -> *mut pg_sys::List;
}

const NO_LOCK: pg_sys::LOCKMODE = pg_sys::NoLock as pg_sys::LOCKMODE;

/// The table that a COPY FROM fills, locked as COPY itself will lock it: who waits for that lock
/// must do so before the epoch is looked at.
pub(crate) fn copied_into(copy: &pg_sys::CopyStmt) -> Vec<pg_sys::Oid> {
    if !copy.is_from || copy.relation.is_null() {
        return Vec::new();
    }
    // SAFETY: the range variable belongs to the statement.
    let Some(table) = (unsafe { named(copy.relation) }) else {
        return Vec::new();
    };
    // SAFETY: a check of privileges and a lock, within a transaction. Who may not insert gets no
    // lock here, and his error from COPY.
    unsafe {
        let user = pg_sys::GetUserId();
        let insert = pg_sys::ACL_INSERT as pg_sys::AclMode;
        let any = pg_sys::AclMaskHow::ACLMASK_ANY;
        if pg_sys::pg_class_aclcheck(table, user, insert) == pg_sys::AclResult::ACLCHECK_OK
            || pg_sys::pg_attribute_aclcheck_all(table, user, insert, any)
                == pg_sys::AclResult::ACLCHECK_OK
        {
            pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
        }
    }
    vec![table]
}

/// Whether a command runs one statement of the client, and no code of users beside it.
///
/// # Safety
/// `node` is a valid utility statement.
pub(crate) unsafe fn wraps_a_statement(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: the node's tag says of which type it is.
    unsafe {
        match (*node).type_ {
            // Not FETCH: the cursor may be a function's, and that may write.
            T_ExecuteStmt | T_ExplainStmt | T_CreateTableAsStmt | T_DeclareCursorStmt
            | T_PrepareStmt => true,
            T_CopyStmt => !(*node.cast::<pg_sys::CopyStmt>()).query.is_null(),
            _ => false,
        }
    }
}

/// Every table that a TRUNCATE empties: those named, their children, and with CASCADE all that
/// refer to them.
pub(crate) fn truncated(truncate: &pg_sys::TruncateStmt) -> Vec<pg_sys::Oid> {
    let mut tables = Vec::new();
    // SAFETY: the list of range variables belongs to the statement; lists of OIDs are copied.
    unsafe {
        for variable in pointers(truncate.relations) {
            add_with_children(&mut tables, named(variable.cast()));
        }
        if truncate.behavior != pg_sys::DropBehavior::DROP_CASCADE {
            return tables;
        }
        loop {
            let mut list = std::ptr::null_mut();
            for table in &tables {
                list = pg_sys::lappend_oid(list, *table);
            }
            let known = tables.len();
            for referring in oids(pg_sys::heap_truncate_find_FKs(list)) {
                add_with_children(&mut tables, Some(referring));
            }
            if tables.len() == known {
                return tables;
            }
        }
    }
}

/// The relation that a range variable names, on the search path of now; `None` if there is none.
///
/// # Safety
/// `variable` is a valid range variable.
pub(crate) unsafe fn named(variable: *const pg_sys::RangeVar) -> Option<pg_sys::Oid> {
    // SAFETY: by the caller's promise.
    let found = unsafe {
        pg_sys::RangeVarGetRelidExtended(
            variable,
            NO_LOCK,
            pg_sys::RVROption::RVR_MISSING_OK,
            None,
            std::ptr::null_mut(),
        )
    };
    (found != pg_sys::InvalidOid).then_some(found)
}

fn add_with_children(tables: &mut Vec<pg_sys::Oid>, table: Option<pg_sys::Oid>) {
    let Some(table) = table.filter(|table| !tables.contains(table)) else {
        return;
    };
    // SAFETY: reads pg_inherits; the list is copied.
    let family = unsafe {
        oids(pg_sys::ffi::pg_guard_ffi_boundary(|| {
            find_all_inheritors(table, NO_LOCK, std::ptr::null_mut())
        }))
    };
    for member in family {
        if !tables.contains(&member) {
            tables.push(member);
        }
    }
}
