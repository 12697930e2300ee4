//! The text of a lookup with its meaning pinned: whoever runs it later, on whatever search path,
//! reads the tables, functions and operators that it meant where it was declared.
//!
//! The text is somebody's, the privileges may be another's. So it is parsed and analysed, which
//! runs nothing of it, and what is handed on is what PostgreSQL has understood, written anew.

use std::ffi::{CStr, CString};

use pgdog_core::fault::Fault;
use pgrx::prelude::*;

use crate::lists::pointers;
use crate::report::raise;

/// `pgdog.pin_lookup`: the query with all names qualified and `$1` as of the type that PostgreSQL
/// has inferred, and the same with NULL in the place of the key.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn pin_lookup(
    query: &str,
    path: &str,
) -> TableIterator<'static, (name!(pinned, String), name!(probe, String))> {
    let (text, key_type) = understood(query, path);
    let in_place = |key: &str| with_key(&text, &format!("({key})::{key_type}"));
    TableIterator::once((in_place("$1"), in_place("NULL")))
}

/// The query as PostgreSQL writes it where only `pg_catalog` is on the path, and the key's type.
fn understood(query: &str, path: &str) -> (String, String) {
    let refuse = |why: &str| -> ! {
        raise(&Fault::BadParameter {
            name: "lookup_query".into(),
            value: query.into(),
            why: why.into(),
        })
    };
    let (Ok(source), Ok(path)) = (CString::new(query), CString::new(path)) else {
        refuse("it contains a NUL");
    };
    // SAFETY: all strings outlive the calls; the trees live in this memory context; an error
    // unwinds, and the end of the (sub)transaction undoes the settings.
    unsafe {
        let raw = pg_sys::raw_parser(source.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        let mut statements = pointers(raw);
        let (Some(statement), None) = (statements.next(), statements.next()) else {
            refuse("it must be one SELECT");
        };
        let statement = statement.cast::<pg_sys::RawStmt>();
        if (*(*statement).stmt).type_ != pg_sys::NodeTag::T_SelectStmt {
            refuse("it must be one SELECT");
        }
        let level = pg_sys::NewGUCNestLevel();
        set_path(&path);
        let (mut types, mut parameters) = (std::ptr::null_mut(), 0);
        let analysed = pg_sys::parse_analyze_varparams(
            statement,
            source.as_ptr(),
            &raw mut types,
            &raw mut parameters,
            std::ptr::null_mut(),
        );
        // A SELECT INTO is no SELECT any more.
        if (*analysed).commandType != pg_sys::CmdType::CMD_SELECT
            || (*analysed).hasModifyingCTE
            || !(*analysed).rowMarks.is_null()
        {
            refuse("it must be one SELECT that only reads");
        }
        let columns = pointers((*analysed).targetList)
            .filter(|entry| !(*entry.cast::<pg_sys::TargetEntry>()).resjunk);
        if columns.count() != 1 || parameters != 1 {
            refuse("it must answer one column and have $1 as its only parameter");
        }
        set_path(c"pg_catalog");
        let text = copied(pg_sys::pg_get_querydef(analysed, false));
        let key_type = copied(pg_sys::format_type_be_qualified(*types));
        pg_sys::AtEOXact_GUC(true, level);
        (text, key_type)
    }
}

/// # Safety
/// Within a nest level of settings.
unsafe fn set_path(path: &CStr) {
    // SAFETY: C strings that outlive the call, by which the value is copied.
    unsafe {
        pg_sys::set_config_option(
            c"search_path".as_ptr(),
            path.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
    }
}

/// # Safety
/// `text` is a C string.
unsafe fn copied(text: *const std::ffi::c_char) -> String {
    // SAFETY: by the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// A text that PostgreSQL wrote, with something else for `$1`. There, a quote within quotes is
/// always doubled, and nothing else hides a `$`.
fn with_key(text: &str, key: &str) -> String {
    let mut out = String::with_capacity(text.len() + key.len());
    let mut quote = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, '$') if letters.next_if_eq(&'1').is_some() => {
                out.push_str(key);
                continue;
            }
            _ => {}
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::with_key;

    #[test]
    fn only_a_parameter_is_one() {
        let text = r#"SELECT m."$1" FROM "a""$1".m WHERE m.k = $1 AND m.n <> E'it''s \\ $1'"#;
        assert_eq!(
            with_key(text, "KEY"),
            r#"SELECT m."$1" FROM "a""$1".m WHERE m.k = KEY AND m.n <> E'it''s \\ $1'"#
        );
    }
}
