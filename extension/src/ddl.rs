//! The freeze: while a task copies the schema to a new shard, nobody changes it here.
//!
//! DDL also takes the gate, as omni writes do, so that a flip waits for it and it for the flip.

use pgdog_core::fault::Fault;
use pgdog_core::ids::TaskId;
use pgrx::prelude::*;

use crate::lists::pointers;
use crate::registry::{Named, is_declared_by_name, text};
use crate::report::raise;
use crate::utility::named;
use crate::{fence, gucs, store, topology, transaction};

/// Checks a utility statement that is neither COPY nor TRUNCATE.
///
/// # Safety
/// `node` is a valid utility statement.
pub(crate) unsafe fn check(node: *mut pg_sys::Node) {
    // SAFETY: by the caller's promise, and globals of this process.
    unsafe {
        if pg_sys::GetCommandLogLevel(node) != pg_sys::LogStmtLevel::LOGSTMT_DDL
            || pg_sys::creating_extension
            || fence::is_exempt()
            || pg_sys::RecoveryInProgress()
            || is_outside_the_schema(node)
        {
            return;
        }
    }
    let Some(here) = topology::current() else {
        return;
    };
    // SAFETY: by the caller's promise.
    if unsafe { is_temporary(node) } {
        return;
    }
    fence::take_gate(&here);
    if let Some(task) = freezing_task()
        && gucs::session_task() != Some(task.to_string())
    {
        raise(&Fault::SchemaFrozen { task });
    }
    // SAFETY: by the caller's promise.
    if let Some(what) = unsafe { declaration_lost_by(node) } {
        raise(&Fault::Refused {
            what,
            why: "its declaration would no longer find it".into(),
            hint: Some("SELECT pgdog.unshard_table(…) first, and declare it again after.".into()),
        });
    }
}

/// Notes what may change columns or defaults of a table: all that is not known to leave them.
///
/// # Safety
/// `node` is a valid utility statement.
pub(crate) unsafe fn note_columns(node: *mut pg_sys::Node) {
    use pg_sys::NodeTag::{T_AlterObjectSchemaStmt, T_AlterTableStmt, T_RenameStmt};
    // SAFETY: the tag says of which type the node is; so do the members of the list.
    let may_change = unsafe {
        match (*node).type_ {
            T_RenameStmt | T_AlterObjectSchemaStmt => true,
            T_AlterTableStmt => {
                let alter = &*node.cast::<pg_sys::AlterTableStmt>();
                pointers(alter.cmds).any(|command| {
                    let command = &*command.cast::<pg_sys::AlterTableCmd>();
                    !leaves_columns(command.subtype)
                })
            }
            _ => false,
        }
    };
    if may_change {
        transaction::note_columns_changed();
    }
}

#[allow(non_upper_case_globals)] // PostgreSQL's names
fn leaves_columns(subtype: pg_sys::AlterTableType::Type) -> bool {
    use pg_sys::AlterTableType::*;
    matches!(
        subtype,
        AT_SetStatistics
            | AT_SetOptions
            | AT_ResetOptions
            | AT_SetStorage
            | AT_SetCompression
            | AT_SetNotNull
            | AT_DropNotNull
            | AT_AddConstraint
            | AT_AlterConstraint
            | AT_ValidateConstraint
            | AT_DropConstraint
            | AT_ChangeOwner
            | AT_ClusterOn
            | AT_DropCluster
            | AT_SetTableSpace
            | AT_SetRelOptions
            | AT_ResetRelOptions
            | AT_EnableTrig
            | AT_EnableAlwaysTrig
            | AT_EnableReplicaTrig
            | AT_DisableTrig
            | AT_EnableTrigAll
            | AT_DisableTrigAll
            | AT_EnableTrigUser
            | AT_DisableTrigUser
            | AT_ReplicaIdentity
            | AT_EnableRowSecurity
            | AT_DisableRowSecurity
            | AT_ForceRowSecurity
            | AT_NoForceRowSecurity
            | AT_AttachPartition
            | AT_DetachPartition
            | AT_DetachPartitionFinalize
    )
}

/// The renaming or moving that would silently undeclare a table.
///
/// # Safety
/// `node` is a valid utility statement.
unsafe fn declaration_lost_by(node: *mut pg_sys::Node) -> Option<String> {
    use pg_sys::NodeTag::{T_AlterObjectSchemaStmt, T_RenameStmt};
    use pg_sys::ObjectType::{OBJECT_COLUMN, OBJECT_SCHEMA, OBJECT_TABLE};
    // SAFETY: the tag says of which type the node is; names are C strings or NULL.
    unsafe {
        if (*node).type_ == T_AlterObjectSchemaStmt {
            let moved = &*node.cast::<pg_sys::AlterObjectSchemaStmt>();
            let is_table = moved.objectType == OBJECT_TABLE && !moved.relation.is_null();
            let what = Named::Table(is_table.then(|| named(moved.relation)).flatten()?);
            return is_declared_by_name(&what).then(|| "moving a declared table".into());
        }
        if (*node).type_ != T_RenameStmt {
            return None;
        }
        let renamed = &*node.cast::<pg_sys::RenameStmt>();
        let old_name = text(renamed.subname).unwrap_or_default();
        let relation = || {
            (!renamed.relation.is_null())
                .then(|| named(renamed.relation))
                .flatten()
        };
        let (what, is_declared) = match renamed.renameType {
            OBJECT_TABLE => ("renaming a declared table", Named::Table(relation()?)),
            OBJECT_COLUMN => (
                "renaming a sharding key",
                Named::Column(relation()?, &old_name),
            ),
            OBJECT_SCHEMA => (
                "renaming a schema of declared tables",
                Named::Schema(&old_name),
            ),
            _ => return None,
        };
        is_declared_by_name(&is_declared).then(|| what.into())
    }
}

fn freezing_task() -> Option<TaskId> {
    let mut frozen = None;
    store::scan(store::relation(c"task_intents")?, |row| {
        frozen = frozen.max(row.value(0).map(TaskId));
    });
    frozen
}

/// Roles, databases, tablespaces, replication, and what only rewrites data. Publications that are
/// there count as schema: a table that leaves one is copied no further, and nothing says so.
///
/// # Safety
/// `node` is a valid utility statement.
unsafe fn is_outside_the_schema(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    use pg_sys::ObjectType::{OBJECT_DATABASE, OBJECT_ROLE, OBJECT_SUBSCRIPTION};
    // SAFETY: the tag says of which type the node is.
    match unsafe { (*node).type_ } {
        T_CreatedbStmt
        | T_DropdbStmt
        | T_AlterDatabaseStmt
        | T_AlterDatabaseSetStmt
        | T_AlterDatabaseRefreshCollStmt
        | T_CreateTableSpaceStmt
        | T_DropTableSpaceStmt
        | T_AlterTableSpaceOptionsStmt
        | T_CreateRoleStmt
        | T_AlterRoleStmt
        | T_AlterRoleSetStmt
        | T_DropRoleStmt
        | T_GrantRoleStmt
        | T_AlterSystemStmt
        | T_CreatePublicationStmt
        | T_CreateSubscriptionStmt
        | T_AlterSubscriptionStmt
        | T_DropSubscriptionStmt
        | T_RefreshMatViewStmt
        | T_ClusterStmt => true,
        T_RenameStmt => {
            // SAFETY: see above.
            let kind = unsafe { (*node.cast::<pg_sys::RenameStmt>()).renameType };
            matches!(kind, OBJECT_DATABASE | OBJECT_ROLE | OBJECT_SUBSCRIPTION)
        }
        _ => false,
    }
}

/// True if the statement is about temporary relations only: those concern nobody else.
///
/// # Safety
/// `node` is a valid utility statement.
unsafe fn is_temporary(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: the tag says of which type the node is; names are resolved without locks.
    unsafe {
        match (*node).type_ {
            T_CreateStmt => creates_temporary((*node.cast::<pg_sys::CreateStmt>()).relation),
            T_CreateSeqStmt => creates_temporary((*node.cast::<pg_sys::CreateSeqStmt>()).sequence),
            T_ViewStmt => creates_temporary((*node.cast::<pg_sys::ViewStmt>()).view),
            T_CreateTableAsStmt => {
                let into = (*node.cast::<pg_sys::CreateTableAsStmt>()).into;
                !into.is_null() && creates_temporary((*into).rel)
            }
            T_AlterTableStmt => {
                is_temporary_name((*node.cast::<pg_sys::AlterTableStmt>()).relation)
            }
            T_IndexStmt => is_temporary_name((*node.cast::<pg_sys::IndexStmt>()).relation),
            T_RenameStmt => is_temporary_name((*node.cast::<pg_sys::RenameStmt>()).relation),
            T_CreateTrigStmt => {
                is_temporary_name((*node.cast::<pg_sys::CreateTrigStmt>()).relation)
            }
            T_RuleStmt => is_temporary_name((*node.cast::<pg_sys::RuleStmt>()).relation),
            T_AlterSeqStmt => is_temporary_name((*node.cast::<pg_sys::AlterSeqStmt>()).sequence),
            T_DropStmt => drops_temporary(&*node.cast()),
            _ => false,
        }
    }
}

/// # Safety
/// `variable` is NULL or a valid range variable.
unsafe fn creates_temporary(variable: *mut pg_sys::RangeVar) -> bool {
    // SAFETY: by the caller's promise.
    let Some(variable) = (unsafe { variable.as_ref() }) else {
        return false;
    };
    let named_so = !variable.schemaname.is_null()
        // SAFETY: a schema name is a C string.
        && unsafe { std::ffi::CStr::from_ptr(variable.schemaname) } == c"pg_temp";
    named_so || variable.relpersistence == pg_sys::RELPERSISTENCE_TEMP as i8
}

/// # Safety
/// `variable` is NULL or a valid range variable.
unsafe fn is_temporary_name(variable: *mut pg_sys::RangeVar) -> bool {
    // SAFETY: by the caller's promise.
    !variable.is_null() && unsafe { named(variable) }.is_some_and(is_temporary_relation)
}

fn is_temporary_relation(relation: pg_sys::Oid) -> bool {
    // SAFETY: a look-up in the system cache.
    unsafe { pg_sys::get_rel_persistence(relation) == pg_sys::RELPERSISTENCE_TEMP as i8 }
}

fn drops_temporary(drop: &pg_sys::DropStmt) -> bool {
    use pg_sys::ObjectType::{OBJECT_INDEX, OBJECT_SEQUENCE, OBJECT_TABLE, OBJECT_VIEW};
    if !matches!(
        drop.removeType,
        OBJECT_TABLE | OBJECT_INDEX | OBJECT_SEQUENCE | OBJECT_VIEW
    ) {
        return false;
    }
    // SAFETY: for these kinds of objects, every member is a list of names. What isn't there is
    // nobody's: DROP itself says so.
    unsafe {
        pointers(drop.objects).all(|names| {
            let variable = pg_sys::makeRangeVarFromNameList(names.cast());
            named(variable).is_none_or(is_temporary_relation)
        })
    }
}
