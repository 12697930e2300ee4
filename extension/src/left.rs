//! What code leaves on its connection beyond its transaction, told to the client at its end.
//!
//! A pool lends a connection to one client after the other. What a client's statements leave there
//! by themselves, their texts show; what functions, triggers and DO blocks leave, only the server
//! sees. `pgdog.session_state` names it as `N WORD ...`. N rises with every report, a word is
//!
//! ```text
//! objects   temporary relations, advisory locks, cursors, LISTEN or PREPARE may have come or gone
//! library   a library was loaded or a link opened: it stays as long as the backend
//! seed      random() can be foretold
//! set=a.b,c parameters that have another value for the rest of the session
//! ```
//!
//! Nothing is left out; what the client knows already, or is gone again, may be among it. A
//! transaction in which no such code ran pays for one look at a byte.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_int, c_void};

use pgrx::prelude::*;

use crate::backend::Own;
use crate::lists::pointers;

/// What may be left, one bit each.
type Marks = u8;

const OBJECTS: Marks = 1;
const LIBRARY: Marks = 2;
const SEED: Marks = 4;
/// Something was set: which parameters, their stacks tell.
const SETS: Marks = 8;
/// A definition was made or dropped: counts if the transaction touched the temporary schema.
const DEFINES: Marks = 16;

const WORDS: [(Marks, &str); 3] = [(OBJECTS, "objects"), (LIBRARY, "library"), (SEED, "seed")];

static NEXT_ACCESS: Own<Cell<pg_sys::object_access_hook_type>> = Own::new(Cell::new(None));

static MARKS: Own<Cell<Marks>> = Own::new(Cell::new(0));

thread_local! {
    /// Parameters set by the transaction that is about to commit.
    static NAMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    /// What was told last, and perhaps not sent yet.
    static TOLD: RefCell<(u64, Marks, BTreeSet<String>)> =
        const { RefCell::new((0, 0, BTreeSet::new())) };
    /// What functions that are not PostgreSQL's own leave.
    static JUDGED: RefCell<HashMap<pg_sys::Oid, Marks>> = RefCell::new(HashMap::new());
    /// The record of `pgdog.session_state`.
    static RECORD: Cell<*mut pg_sys::config_generic> = const { Cell::new(std::ptr::null_mut()) };
}

/// Puts the hook in front of the one that is there.
pub(crate) fn install() {
    // SAFETY: the postmaster runs _PG_init alone, before any other thread or process exists.
    unsafe {
        NEXT_ACCESS.set(pg_sys::object_access_hook);
        pg_sys::object_access_hook = Some(on_access);
    }
}

unsafe extern "C-unwind" fn on_access(
    access: pg_sys::ObjectAccessType::Type,
    class: pg_sys::Oid,
    object: pg_sys::Oid,
    part: c_int,
    argument: *mut c_void,
) {
    if access == pg_sys::ObjectAccessType::OAT_FUNCTION_EXECUTE {
        let marks = match object.to_u32() {
            own if own < pg_sys::FirstNormalObjectId => of_builtin(own),
            _ => of_function(object),
        };
        if marks != 0 {
            mark(marks);
        }
    }
    if let Some(next) = NEXT_ACCESS.get() {
        // SAFETY: the arguments are those that Postgres gave.
        unsafe { next(access, class, object, part, argument) };
    }
}

fn mark(marks: Marks) {
    MARKS.set(MARKS.get() | marks);
}

fn of_builtin(function: u32) -> Marks {
    match function {
        // pg_advisory_lock ... pg_advisory_unlock_all: those of sessions stand together.
        pg_sys::F_PG_ADVISORY_LOCK_INT8..=pg_sys::F_PG_ADVISORY_UNLOCK_ALL => OBJECTS,
        pg_sys::F_SET_CONFIG => SETS,
        pg_sys::F_SETSEED => SEED,
        _ => 0,
    }
}

/// Only functions in C can leave what no statement of theirs shows.
fn of_function(function: pg_sys::Oid) -> Marks {
    let known = JUDGED.with_borrow(|judged| judged.get(&function).copied());
    known.unwrap_or_else(|| {
        // SAFETY: a look-up in the catalog within a transaction, guarded.
        let marks = unsafe { judge(function) };
        JUDGED.with_borrow_mut(|judged| judged.insert(function, marks));
        marks
    })
}

#[pg_guard]
unsafe extern "C-unwind" fn judge(function: pg_sys::Oid) -> Marks {
    // SAFETY: the name is a copy in the current memory context.
    let name = unsafe {
        let name = pg_sys::get_func_name(function);
        if name.is_null() {
            return 0;
        }
        CStr::from_ptr(name)
    };
    match name.to_bytes() {
        name if name.starts_with(b"dblink_connect") => LIBRARY,
        // Of pg_trgm: it sets a parameter.
        b"set_limit" => SETS,
        _ => 0,
    }
}

/// Notes what a utility statement may leave. What the client itself sent is known to it, but for
/// what makes random() foretellable or happens in the temporary schema.
///
/// # Safety
/// `statement` is a valid utility statement.
pub(crate) unsafe fn note_utility(statement: *mut pg_sys::PlannedStmt) {
    use pg_sys::NodeTag::*;
    // SAFETY: the node's tag says of which type it is.
    unsafe {
        let node = (*statement).utilityStmt;
        match (*node).type_ {
            T_TransactionStmt | T_VariableShowStmt | T_CopyStmt | T_ExplainStmt | T_FetchStmt
            | T_ExecuteStmt | T_LockStmt | T_DoStmt | T_CallStmt | T_NotifyStmt
            | T_TruncateStmt | T_VacuumStmt | T_ConstraintsSetStmt | T_CheckPointStmt => {}
            T_VariableSetStmt => {
                let set = &*node.cast::<pg_sys::VariableSetStmt>();
                if !set.name.is_null() && CStr::from_ptr(set.name) == c"seed" {
                    mark(SEED);
                } else if !set.is_local && is_of_code(statement) {
                    mark(SETS);
                }
            }
            T_DeclareCursorStmt => {
                let options = (*node.cast::<pg_sys::DeclareCursorStmt>()).options;
                if options & pg_sys::CURSOR_OPT_HOLD as c_int != 0 && is_of_code(statement) {
                    mark(OBJECTS);
                }
            }
            T_ListenStmt | T_UnlistenStmt | T_PrepareStmt | T_DeallocateStmt
            | T_ClosePortalStmt => {
                if is_of_code(statement) {
                    mark(OBJECTS);
                }
            }
            T_LoadStmt => mark(LIBRARY),
            _ => mark(DEFINES),
        }
    }
}

/// Whether a statement comes from code: the portal that runs is not made of it.
///
/// # Safety
/// `statement` is a valid statement.
unsafe fn is_of_code(statement: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: the portal that runs, and its list of statements.
    unsafe {
        let portal = pg_sys::ActivePortal;
        portal.is_null()
            || pointers((*portal).stmts)
                .all(|one| !std::ptr::eq(one.cast_const(), statement.cast()))
    }
}

/// Whether anything may be left. May be called outside of a guard.
pub(crate) fn is_anything() -> bool {
    MARKS.get() != 0
}

/// Called before a transaction commits or is prepared: looks at what it has set.
pub(crate) fn before_end() {
    let marks = MARKS.get();
    if marks != 0 && RECORD.get().is_null() {
        find_record();
    }
    if marks & SETS != 0 {
        NAMES.with_borrow_mut(|names| names.extend(set_for_the_session()));
    }
}

/// Called when a transaction has ended. Nothing here may raise: that would be a PANIC.
pub(crate) fn on_end(committed: bool) {
    let marks = MARKS.replace(0);
    if marks == 0 {
        return;
    }
    let names = NAMES.take();
    // SAFETY: globals of this process, read by its only thread.
    let (backend, temporary) = unsafe {
        let flag = pg_sys::XACT_FLAGS_ACCESSEDTEMPNAMESPACE as c_int;
        (pg_sys::MyBackendType, pg_sys::MyXactFlags & flag != 0)
    };
    if backend != pg_sys::BackendType::B_BACKEND {
        return;
    }
    let mut left = marks & (OBJECTS | LIBRARY | SEED);
    if marks & DEFINES != 0 && temporary && committed {
        left |= OBJECTS;
    }
    let names = if committed { names } else { BTreeSet::new() };
    if left != 0 || !names.is_empty() {
        tell(left, names);
    }
}

fn tell(left: Marks, names: BTreeSet<String>) {
    let text = TOLD.with_borrow_mut(|(count, told, told_names)| {
        if !is_unsent() {
            (*told, *told_names) = (0, BTreeSet::new());
        }
        *count += 1;
        *told |= left;
        told_names.extend(names);
        report(*count, *told, told_names)
    });
    let Ok(text) = CString::new(text) else {
        return;
    };
    // SAFETY: both strings outlive the call. PGC_S_OVERRIDE stays off the stack of transactional
    // settings, so the value survives whatever comes.
    unsafe {
        pg_sys::SetConfigOption(
            c"pgdog.session_state".as_ptr(),
            text.as_ptr(),
            pg_sys::GucContext::PGC_INTERNAL,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

fn report(count: u64, left: Marks, names: &BTreeSet<String>) -> String {
    let mut text = count.to_string();
    for (_, word) in WORDS.iter().filter(|(mark, _)| left & mark != 0) {
        text.push(' ');
        text.push_str(word);
    }
    if !names.is_empty() {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        text.push_str(" set=");
        text.push_str(&names.join(","));
    }
    text
}

/// Whether the last report is still to be sent: code may commit several times in one statement.
fn is_unsent() -> bool {
    let record = RECORD.get();
    // SAFETY: records of defined parameters are never freed.
    record.is_null() || unsafe { (*record).status } & pg_sys::GUC_NEEDS_REPORT as c_int != 0
}

fn find_record() {
    // SAFETY: names of records are valid strings.
    let mut own = records()
        .filter(|record| unsafe { CStr::from_ptr((**record).name) == c"pgdog.session_state" });
    RECORD.set(own.next().unwrap_or(std::ptr::null_mut()));
}

/// Names of the parameters to which the open transaction has given another value for the rest of
/// the session.
fn set_for_the_session() -> Vec<String> {
    use pg_sys::GucStackState::{GUC_SET, GUC_SET_LOCAL};
    let mut names = Vec::new();
    for record in records() {
        // SAFETY: records, their names and their stacks live as long as the transaction.
        unsafe {
            let name = CStr::from_ptr((*record).name).to_string_lossy();
            let stack = (*record).stack;
            let set = !stack.is_null() && matches!((*stack).state, GUC_SET | GUC_SET_LOCAL);
            // Those end with the transaction in any case.
            if set && !name.starts_with("transaction_") {
                names.push(name.to_ascii_lowercase());
            }
        }
    }
    names
}

/// All parameters.
fn records() -> impl Iterator<Item = *mut pg_sys::config_generic> {
    // SAFETY: the array holds as many pointers as Postgres says, and is read before anything else
    // can define a parameter.
    unsafe {
        #[cfg(feature = "pg15")]
        let (records, count) = (pg_sys::get_guc_variables(), pg_sys::GetNumConfigOptions());
        #[cfg(feature = "pg18")]
        let (records, count) = {
            let mut count = 0;
            (pg_sys::get_guc_variables(&mut count), count)
        };
        (0..count as usize).map(move |nth| *records.add(nth))
    }
}
