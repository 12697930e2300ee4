//! Which tables are sharded or omnisharded, by OID, cached by each backend.
//!
//! Names are resolved one relation at a time, when a statement first touches it. Any relation's
//! change (a rename, a partition attached, a column added) empties the resolved ones; the
//! declarations themselves are read again only when their own tables change.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};

use pgrx::prelude::*;

use crate::backend::Own;
use crate::lists::oids;
use crate::store;

/// What a relation is to pgdog. Ordered: a statement is as strict as its strictest relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Not declared.
    Unlisted,
    /// Rows live on one shard each.
    Sharded,
    /// The same, and a lookup says where: rows of a key may move.
    LookedUp,
    /// The same rows on every shard.
    Omni,
}

/// What is known of a relation, or of several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) class: Class,
    /// One of ours: what is written there sets off nothing of a user.
    pub(crate) is_own: bool,
    /// Writes of it that become others, by rules or because it is a view: the privileges that they
    /// need.
    pub(crate) rewritten: u8,
}

impl Known {
    /// Of both: the strictest class; ours if both are.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            class: self.class.max(other.class),
            is_own: self.is_own && other.is_own,
            rewritten: self.rewritten | other.rewritten,
        }
    }
}

/// PostgreSQL's own relations.
const BUILTIN: Known = Known {
    class: Class::Unlisted,
    is_own: false,
    rewritten: 0,
};

/// What may be rewritten, as privileges.
const WRITES: u32 = pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE;

/// Relations by the low bits of their OIDs: a table without a search. Two that share a place push
/// each other out, which costs time only.
const PLACES: usize = 512;

/// The declarations.
#[derive(Default)]
struct Declared {
    /// Column by schema and table, and whether a lookup places its keys.
    sharded: HashMap<(String, String), (String, bool)>,
    omni: HashSet<(String, String)>,
    /// Columns that make any table sharded.
    columns: Vec<(CString, bool)>,
}

thread_local! {
    /// As of how many changes of the declarations, and what they were then.
    static DECLARED: RefCell<Option<(u64, Declared)>> = const { RefCell::new(None) };
}

/// What is known: as of how many changes of anything, and of which relation.
static KNOWN: Own<[Cell<(u64, pg_sys::Oid, Known)>; PLACES]> =
    Own::new([const { Cell::new((0, pg_sys::InvalidOid, BUILTIN)) }; PLACES]);
/// `sharded_tables` and `omnisharded_tables`; InvalidOid while they aren't known.
static RELATIONS: Own<Cell<[pg_sys::Oid; 2]>> = Own::new(Cell::new([pg_sys::InvalidOid; 2]));
static DECLARATIONS_CHANGED: Own<Cell<u64>> = Own::new(Cell::new(0));
static ANYTHING_CHANGED: Own<Cell<u64>> = Own::new(Cell::new(0));

unsafe extern "C-unwind" {
    /// Not bound by pgrx. Called inside `pg_guard_ffi_boundary` only.
    fn get_partition_ancestors(relation: pg_sys::Oid) -> *mut pg_sys::List;
}

/// Called from invalidation callbacks, at any time: only counts.
pub(crate) fn note_relation_changed(relation: pg_sys::Oid) {
    ANYTHING_CHANGED.set(ANYTHING_CHANGED.get() + 1);
    let own = RELATIONS.get();
    if relation == pg_sys::InvalidOid
        || own.contains(&relation)
        || own.contains(&pg_sys::InvalidOid)
    {
        DECLARATIONS_CHANGED.set(DECLARATIONS_CHANGED.get() + 1);
    }
}

fn place(relation: pg_sys::Oid) -> &'static Cell<(u64, pg_sys::Oid, Known)> {
    &KNOWN[relation.to_u32() as usize % PLACES]
}

/// What is known of a relation without a look in the catalogs; None: nothing. May be called
/// outside of a guard.
pub(crate) fn glance(relation: pg_sys::Oid) -> Option<Known> {
    if relation.to_u32() < pg_sys::FirstNormalObjectId {
        return Some(BUILTIN);
    }
    let (of, whose, known) = place(relation).get();
    (whose == relation && of == ANYTHING_CHANGED.get()).then_some(known)
}

/// The class of a relation. A partition is what its topmost declared ancestor is.
pub(crate) fn class_of(relation: pg_sys::Oid) -> Class {
    look(relation).class
}

/// What a relation is, from the catalogs if need be.
pub(crate) fn look(relation: pg_sys::Oid) -> Known {
    loop {
        if let Some(known) = glance(relation) {
            return known;
        }
        let seen = (DECLARATIONS_CHANGED.get(), ANYTHING_CHANGED.get());
        // Taken out while it is used: an invalidation or an error in the middle finds none, never
        // a borrowed one.
        let declared = match DECLARED.take() {
            Some((of, declared)) if of == seen.0 => declared,
            _ => read(),
        };
        let known = Known {
            class: resolve(&declared, relation),
            is_own: is_own(relation),
            rewritten: rewritten(relation),
        };
        DECLARED.set(Some((seen.0, declared)));
        if (DECLARATIONS_CHANGED.get(), ANYTHING_CHANGED.get()) == seen {
            place(relation).set((seen.1, relation, known));
        }
    }
}

fn is_own(relation: pg_sys::Oid) -> bool {
    // SAFETY: looks in the catalogs, inside of a transaction.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"pgdog".as_ptr(), true);
        schema != pg_sys::InvalidOid && pg_sys::get_rel_namespace(relation) == schema
    }
}

/// Which writes of a relation are rewritten: those of a view always are, if they aren't refused.
fn rewritten(relation: pg_sys::Oid) -> u8 {
    let mut found = 0;
    // SAFETY: within a transaction; what is opened is closed, or an error leaves it to the
    // resource owner; the array of rules is as long as it says.
    unsafe {
        let open = pg_sys::RelationIdGetRelation(relation);
        if open.is_null() {
            return 0;
        }
        if (*(*open).rd_rel).relkind == pg_sys::RELKIND_VIEW as std::ffi::c_char {
            found = WRITES;
        }
        if let Some(rules) = (*open).rd_rules.as_ref() {
            for nth in 0..rules.numLocks as usize {
                let rule = &**rules.rules.add(nth);
                if rule.enabled != b'D' as std::ffi::c_char {
                    found |= match rule.event {
                        pg_sys::CmdType::CMD_INSERT => pg_sys::ACL_INSERT,
                        pg_sys::CmdType::CMD_UPDATE => pg_sys::ACL_UPDATE,
                        pg_sys::CmdType::CMD_DELETE => pg_sys::ACL_DELETE,
                        _ => 0,
                    };
                }
            }
        }
        pg_sys::RelationClose(open);
    }
    found as u8
}

/// The declaration of a sharded table, or of the one that it is a partition of.
#[derive(Debug, Clone)]
pub(crate) struct Keyed {
    pub(crate) schema: String,
    pub(crate) table: String,
    /// The sharding key.
    pub(crate) column: String,
}

/// What places the rows of a relation, if keys do.
pub(crate) fn keyed(relation: pg_sys::Oid) -> Option<Keyed> {
    let seen = DECLARATIONS_CHANGED.get();
    // Taken out as in `look`.
    let declared = match DECLARED.take() {
        Some((of, declared)) if of == seen => declared,
        _ => read(),
    };
    let found = line_of(relation)
        .into_iter()
        .find_map(|member| keyed_alone(&declared, member));
    DECLARED.set(Some((seen, declared)));
    found
}

fn keyed_alone(declared: &Declared, relation: pg_sys::Oid) -> Option<Keyed> {
    let name = name_of(relation)?;
    let column = match declared.sharded.get(&name) {
        Some((column, _)) => column.clone(),
        None => {
            let has_column = |(column, _): &&(CString, bool)| {
                // SAFETY: look-up in the system cache by a C string that outlives it.
                unsafe { pg_sys::get_attnum(relation, column.as_ptr()) > 0 }
            };
            let (column, _) = declared.columns.iter().find(has_column)?;
            column.to_str().ok()?.to_owned()
        }
    };
    let (schema, table) = name;
    Some(Keyed {
        schema,
        table,
        column,
    })
}

/// A relation, and what it is a partition of, the topmost first.
fn line_of(relation: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    let mut line = vec![relation];
    // SAFETY: look-ups in the system caches; the list is read before anything can free it.
    unsafe {
        if pg_sys::get_rel_relispartition(relation) {
            let ancestors =
                pg_sys::ffi::pg_guard_ffi_boundary(|| get_partition_ancestors(relation));
            line.extend(oids(ancestors).into_iter().rev());
        }
    }
    line
}

/// What a declaration says about something that is to be renamed or moved.
pub(crate) enum Named<'a> {
    /// The relation itself.
    Table(pg_sys::Oid),
    /// A column of it.
    Column(pg_sys::Oid, &'a str),
    /// A schema with everything in it.
    Schema(&'a str),
}

/// True if a declaration finds its table by this name. Read anew: it is asked rarely.
pub(crate) fn is_declared_by_name(what: &Named<'_>) -> bool {
    let declared = read();
    match what {
        Named::Table(relation) => name_of(*relation).is_some_and(|name| {
            declared.omni.contains(&name) || declared.sharded.contains_key(&name)
        }),
        Named::Column(relation, column) => name_of(*relation).is_some_and(|name| {
            declared
                .sharded
                .get(&name)
                .is_some_and(|(key, _)| key == column)
        }),
        Named::Schema(schema) => {
            let mut schemas = declared.omni.iter().chain(declared.sharded.keys());
            schemas.any(|(of, _)| of == schema)
        }
    }
}

fn read() -> Declared {
    let mut declared = Declared::default();
    let (Some(sharded), Some(omni)) = (
        store::relation(c"sharded_tables"),
        store::relation(c"omnisharded_tables"),
    ) else {
        RELATIONS.set([pg_sys::InvalidOid; 2]);
        return declared;
    };
    RELATIONS.set([sharded, omni]);
    store::scan(sharded, |row| {
        let (schema, table, column) = (
            row.value::<String>(0),
            row.value::<String>(1),
            row.value::<String>(2),
        );
        let is_looked_up = row.value::<&str>(5).is_some();
        match (schema, table, column) {
            (Some(schema), Some(table), Some(column)) if !table.is_empty() => {
                declared
                    .sharded
                    .insert((schema, table), (column, is_looked_up));
            }
            (_, _, Some(column)) => {
                let column = CString::new(column).ok();
                declared
                    .columns
                    .extend(column.map(|name| (name, is_looked_up)));
            }
            _ => {}
        }
    });
    store::scan(omni, |row| {
        if let (Some(schema), Some(table)) = (row.value(0), row.value(1)) {
            declared.omni.insert((schema, table));
        }
    });
    declared
}

fn resolve(declared: &Declared, relation: pg_sys::Oid) -> Class {
    line_of(relation)
        .into_iter()
        .find_map(|member| resolve_alone(declared, member))
        .unwrap_or(Class::Unlisted)
}

/// The class by the relation's own name: a declaration by name goes before one by column.
fn resolve_alone(declared: &Declared, relation: pg_sys::Oid) -> Option<Class> {
    let name = name_of(relation)?;
    let own = name.0 == "pgdog" || name.0 == "information_schema";
    if declared.omni.contains(&name) {
        return Some(Class::Omni);
    }
    let sharded = |is_looked_up: bool| match is_looked_up {
        true => Class::LookedUp,
        false => Class::Sharded,
    };
    if let Some((_, is_looked_up)) = declared.sharded.get(&name) {
        return Some(sharded(*is_looked_up));
    }
    let has_column = |(column, _): &&(CString, bool)| {
        // SAFETY: look-up in the system cache by a C string that outlives it.
        unsafe { pg_sys::get_attnum(relation, column.as_ptr()) > 0 }
    };
    let mut found = declared.columns.iter().filter(has_column).filter(|_| !own);
    let first = found.next()?;
    Some(sharded(
        first.1 || found.any(|(_, is_looked_up)| *is_looked_up),
    ))
}

/// Schema and name; `None` for temporary relations and those that are gone.
fn name_of(relation: pg_sys::Oid) -> Option<(String, String)> {
    // SAFETY: look-ups in the system caches; the names are copied at once.
    unsafe {
        if pg_sys::get_rel_persistence(relation) == pg_sys::RELPERSISTENCE_TEMP as i8 {
            return None;
        }
        let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(relation));
        Some((text(schema)?, text(pg_sys::get_rel_name(relation))?))
    }
}

/// # Safety
/// `name` is NULL or a NUL-terminated string.
pub(crate) unsafe fn text(name: *mut std::ffi::c_char) -> Option<String> {
    // SAFETY: by the caller's promise.
    let name = unsafe { name.as_ref().map(|first| CStr::from_ptr(first)) };
    name.and_then(|name| name.to_str().ok()).map(str::to_owned)
}
