//! Hints in comments: `pgdog_shard: 1`, `pgdog_sharding_key: 42`, `pgdog_role: primary`.
//!
//! Only comments count, so a scanner steps over strings, quoted names and dollar quotes. It runs
//! only on texts that contain `pgdog_` at all.

use std::ops::Range;

use super::{Hint, RoleHint};

/// What the comments of one statement ask for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Hints {
    pub(super) place: Option<Hint>,
    pub(super) role: Option<RoleHint>,
}

/// The hints in `sql[span]`.
pub(super) fn hints(sql: &str, span: Range<usize>) -> Hints {
    let mut hints = Hints::default();
    let text = &sql[span];
    if memchr::memmem::find(text.as_bytes(), b"pgdog_").is_none() {
        return hints;
    }
    for comment in comments(text) {
        for (name, value) in directives(comment) {
            apply(&mut hints, name, value);
        }
    }
    hints
}

fn apply(hints: &mut Hints, name: &str, value: &str) {
    let place = match name {
        "pgdog_shard" => match value.parse() {
            Ok(shard) => Hint::Shard(shard),
            Err(_) => Hint::Invalid(format!("{name}: {value}")),
        },
        "pgdog_sharding_key" if super::is_unread(value) => {
            Hint::Invalid(format!("{name}: {value}"))
        }
        "pgdog_sharding_key" => Hint::Key(value.to_owned()),
        "pgdog_role" => {
            match value {
                "primary" => hints.role = Some(RoleHint::Primary),
                // A primary asked for anywhere wins: it is never wrong.
                "replica" => hints.role = hints.role.or(Some(RoleHint::Replica)),
                _ => hints.place = Some(Hint::Invalid(format!("{name}: {value}"))),
            }
            return;
        }
        _ => return,
    };
    hints.place = Some(match hints.place.take() {
        None => place,
        Some(before) if before == place => before,
        Some(before) => Hint::Invalid(format!("{} and {}", describe(&before), describe(&place))),
    });
}

fn describe(hint: &Hint) -> String {
    match hint {
        Hint::Shard(shard) => format!("pgdog_shard: {shard}"),
        Hint::Key(key) => format!("pgdog_sharding_key: {key}"),
        Hint::Invalid(text) => text.clone(),
    }
}

/// `name: value` pairs of a comment; a value ends at white space, or is in quotes.
fn directives(comment: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = comment;
    while let Some(at) = rest.find("pgdog_") {
        rest = &rest[at..];
        let name_end = rest
            .find(|c: char| !(c.is_ascii_lowercase() || c == '_'))
            .unwrap_or(rest.len());
        let (name, after) = rest.split_at(name_end);
        rest = after;
        let Some(value) = after.trim_start().strip_prefix(':') else {
            continue;
        };
        let value = value.trim_start();
        let (value, after) = match value.strip_prefix(['"', '\'']) {
            Some(quoted) => {
                let quote = &value[..1];
                quoted.split_once(quote).unwrap_or((quoted, ""))
            }
            None => {
                let end = value.find(|c: char| c.is_whitespace() || c == ',' || c == ';');
                value.split_at(end.unwrap_or(value.len()))
            }
        };
        found.push((name, value));
        rest = after;
    }
    found
}

/// The comments of an SQL text, without their marks.
fn comments(sql: &str) -> Vec<&str> {
    let bytes = sql.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at = match bytes[at] {
            b'-' if bytes[at..].starts_with(b"--") => {
                let end = sql[at..]
                    .find(['\n', '\r'])
                    .map_or(sql.len(), |len| at + len);
                found.push(&sql[start + 2..end]);
                end
            }
            b'/' if bytes[at..].starts_with(b"/*") => {
                let end = block_end(bytes, at);
                let inner = sql[start + 2..end].strip_suffix("*/");
                found.push(inner.unwrap_or(&sql[start + 2..end]));
                end
            }
            b'\'' => {
                let escapes = at > 0 && matches!(bytes[at - 1], b'e' | b'E');
                quoted_end(bytes, at, escapes)
            }
            b'"' => quoted_end(bytes, at, false),
            b'$' => dollar_end(sql, at),
            _ => at + 1,
        };
    }
    found
}

/// The end of a block comment, which may hold others.
fn block_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn quoted_end(bytes: &[u8], start: usize, escapes: bool) -> usize {
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        if escapes && bytes[at] == b'\\' {
            at += 2;
        } else if bytes[at] == quote {
            return at + 1;
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn dollar_end(sql: &str, start: usize) -> usize {
    let bytes = sql.as_bytes();
    let inside_name = start > 0
        && (bytes[start - 1].is_ascii_alphanumeric()
            || matches!(bytes[start - 1], b'_' | b'$' | 0x80..));
    if inside_name {
        return start + 1;
    }
    let tag_len = bytes[start + 1..]
        .iter()
        .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | 0x80..))
        .count();
    let tag_end = start + 1 + tag_len;
    let starts_with_digit = bytes.get(start + 1).is_some_and(u8::is_ascii_digit);
    if starts_with_digit || bytes.get(tag_end) != Some(&b'$') {
        return start + 1;
    }
    let tag = &sql[start..=tag_end];
    sql[tag_end + 1..]
        .find(tag)
        .map_or(sql.len(), |at| tag_end + 1 + at + tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(sql: &str) -> Option<Hint> {
        hints(sql, 0..sql.len()).place
    }

    #[test]
    fn hints_are_read_from_comments_of_both_kinds() {
        assert_eq!(place("/* pgdog_shard: 1 */ SELECT 1"), Some(Hint::Shard(1)));
        assert_eq!(place("SELECT 1 -- pgdog_shard: 2"), Some(Hint::Shard(2)));
        assert_eq!(
            place("SELECT 1 /* a /* b */ pgdog_shard:3*/"),
            Some(Hint::Shard(3))
        );
        assert_eq!(
            place("/* pgdog_sharding_key: 'a b' */ SELECT 1"),
            Some(Hint::Key("a b".to_owned()))
        );
        let sql = "/* pgdog_role: primary */ SELECT 1";
        assert_eq!(hints(sql, 0..sql.len()).role, Some(RoleHint::Primary));
    }

    #[test]
    fn hints_inside_literals_have_no_effect() {
        for sql in [
            "SELECT '/* pgdog_shard: 1 */'",
            "SELECT 'it''s /* pgdog_shard: 1 */'",
            "SELECT E'\\'/* pgdog_shard: 1 */'",
            "SELECT $$/* pgdog_shard: 1 */$$",
            "SELECT $tag$ $$ /* pgdog_shard: 1 */$tag$",
            "SELECT 1 AS \"/* pgdog_shard: 1 */\"",
        ] {
            assert_eq!(place(sql), None, "{sql}");
        }
        let after = "SELECT '\\' /* pgdog_shard: 1 */";
        assert_eq!(
            place(after),
            Some(Hint::Shard(1)),
            "a plain string knows no backslash"
        );
    }

    #[test]
    fn contradictions_are_kept_for_the_error() {
        let twice = "/* pgdog_shard: 1 */ SELECT 1 /* pgdog_shard: 1 */";
        assert_eq!(place(twice), Some(Hint::Shard(1)));
        let sql = "/* pgdog_shard: 1 */ SELECT 1 /* pgdog_shard: 0 */";
        assert_eq!(
            place(sql),
            Some(Hint::Invalid(
                "pgdog_shard: 1 and pgdog_shard: 0".to_owned()
            ))
        );
        assert!(matches!(
            place("/* pgdog_shard: x */ SELECT 1"),
            Some(Hint::Invalid(_))
        ));
    }
}
