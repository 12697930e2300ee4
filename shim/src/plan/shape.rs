//! What is left of a text without its constants. Pure.
//!
//! Applications that write values into their texts never send the same one twice. Texts of one
//! shape differ in nothing but the digits of numbers and the inside of quotes, so what does not
//! depend on values is the same for all of them.

use super::{Kind, Plan};

/// Appends the shape of `sql`. False when it cannot be told by a look at the characters: comments
/// (which may hold hints), dollar quotes, backslashes and prefixes of constants.
pub(super) fn write_shape(sql: &str, out: &mut String) -> bool {
    cut(sql, |piece| {
        out.push_str(piece);
        true
    })
}

/// Whether the shape of `sql` is this one.
pub fn is_of_shape(sql: &str, shape: &str) -> bool {
    let mut rest = shape;
    let fits = cut(sql, |piece| match rest.strip_prefix(piece) {
        Some(behind) => {
            rest = behind;
            true
        }
        None => false,
    });
    fits && rest.is_empty()
}

/// Shows the shape of `sql` piece by piece, as long as `see` wants more. True when it saw all.
fn cut(sql: &str, mut see: impl FnMut(&str) -> bool) -> bool {
    let bytes = sql.as_bytes();
    // Everything up to `at` is read; what follows `shown` was not seen yet.
    let (mut at, mut shown) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        match byte {
            b'0'..=b'9' => {
                if !see(&sql[shown..at]) || !see("0") {
                    return false;
                }
                at = skip(bytes, at, DIGIT);
                shown = at;
            }
            b'\'' => {
                let close = closing_quote(bytes, at + 1);
                let Some(close) = close.filter(|_| see(&sql[shown..=at])) else {
                    return false;
                };
                shown = close;
                at = close + 1;
            }
            b'"' => match memchr::memchr(b'"', &bytes[at + 1..]) {
                Some(length) => at += length + 2,
                None => return false,
            },
            b'-' if next == Some(&b'-') => return false,
            b'/' if next == Some(&b'*') => return false,
            b'$' => {
                let end = skip(bytes, at + 1, DIGIT);
                if end == at + 1 {
                    return false;
                }
                at = end;
            }
            _ if is(*byte, NAME) => {
                at = skip(bytes, at, NAME | DIGIT | DOLLAR);
                // E'...' and the like have rules of their own.
                if bytes.get(at) == Some(&b'\'') {
                    return false;
                }
            }
            _ => at = skip(bytes, at + 1, PLAIN),
        }
    }
    see(&sql[shown..])
}

/// Kinds of bytes, to be combined.
const DIGIT: u8 = 1;
const DOLLAR: u8 = 2;
/// What a name begins with.
const NAME: u8 = 4;
/// Spaces and operators, without those that may begin something.
const PLAIN: u8 = 8;

/// The kind of each byte.
const KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'0'..=b'9' => DIGIT,
            b'$' => DOLLAR,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 128.. => NAME,
            b'\'' | b'"' | b'-' | b'/' => 0,
            _ => PLAIN,
        };
        byte += 1;
    }
    kinds
};

fn is(byte: u8, kinds: u8) -> bool {
    KINDS[usize::from(byte)] & kinds != 0
}

/// Where the run of such bytes that begins at `from` ends.
fn skip(bytes: &[u8], from: usize, kinds: u8) -> usize {
    let mut at = from;
    while bytes.get(at).is_some_and(|byte| is(*byte, kinds)) {
        at += 1;
    }
    at
}

/// Where a constant that begins at `from` ends: a doubled quote is part of it. None when it does
/// not end, or has a backslash, whose meaning is a setting of the server.
fn closing_quote(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += memchr::memchr2(b'\'', b'\\', bytes.get(at..)?)?;
        match (bytes[at], bytes.get(at + 1)) {
            (b'\\', _) => return None,
            (_, Some(b'\'')) => at += 2,
            (_, _) => return Some(at),
        }
    }
}

/// The plan for all texts of its text's shape, if it says nothing that depends on constants but
/// the values of keys.
pub(super) fn of_all_alike(plan: &Plan) -> Option<Plan> {
    let [statement] = plan.statements.as_slice() else {
        return None;
    };
    let plain = matches!(statement.kind, Kind::Read | Kind::Write)
        && statement.opaque.is_none()
        && statement.functions.shared.is_none()
        && statement.functions.settings.is_empty()
        && !statement.functions.by_constants
        && statement.prepared.is_none()
        && !statement.functions.sets;
    plain.then(|| {
        let mut statement = statement.clone();
        statement.alike = true;
        // Another text has another length.
        statement.span = 0..usize::MAX;
        Plan {
            statements: vec![statement],
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sql: &str) -> Option<String> {
        let mut out = String::new();
        write_shape(sql, &mut out).then_some(out)
    }

    #[test]
    fn numbers_and_quoted_constants_are_left_out() {
        let one = shape("SELECT a1 FROM t WHERE b = 17 AND c='it''s' AND d > -1.5;").unwrap();
        assert_eq!(one, "SELECT a1 FROM t WHERE b = 0 AND c='' AND d > -0.0;");
        assert_eq!(shape("SELECT 'ä', \"Ä1\", $12, x2y").unwrap(), {
            "SELECT '', \"Ä1\", $12, x2y"
        });
        assert_eq!(shape("").unwrap(), "");
        assert_eq!(shape("1").unwrap(), "0");
    }

    #[test]
    fn a_text_is_of_the_shape_that_it_would_get() {
        let texts = [
            "SELECT a1 FROM t WHERE b = 17",
            "SELECT a1 FROM t WHERE b = 0",
            "SELECT a1 FROM t WHERE b = 0;",
            "SELECT a1 FROM t WHERE b = '1'",
            "SELECT a1 FROM t WHERE b = ''",
            "SELECT a1 FROM t WHERE b = 1 -- x",
            "SELECT a1 FROM t",
            "",
        ];
        for (one, other) in texts
            .iter()
            .flat_map(|one| texts.map(|other| (*one, other)))
        {
            if let Some(wanted) = shape(other) {
                let same = shape(one).as_ref() == Some(&wanted);
                assert_eq!(is_of_shape(one, &wanted), same, "{one}, {other}");
            }
        }
    }

    #[test]
    fn what_is_no_constant_stays() {
        for sql in [
            "SELECT \"a'1\" FROM \"t\"\"2\"",
            "INSERT INTO t1 VALUES ($1, $2)",
            "SELECT t1.c2, f3(x) FROM é4",
        ] {
            assert_eq!(shape(sql).unwrap(), sql);
        }
    }

    #[test]
    fn what_needs_more_than_a_look_has_no_shape() {
        for sql in [
            "SELECT 1 -- x",
            "SELECT /* pgdog_shard: 1 */ 1",
            "SELECT $$1$$",
            "SELECT $a$1$a$",
            "SELECT E'\\''",
            "SELECT 'a\\'",
            "SELECT b'01'",
            "SELECT 'open",
            "SELECT 'open''",
            "SELECT \"open",
        ] {
            assert_eq!(shape(sql), None, "{sql}");
        }
    }

    #[test]
    fn a_plan_is_for_all_alike_only_when_no_constant_decides() {
        let alike = |sql: &str| of_all_alike(&crate::plan::parse(sql).unwrap()).is_some();
        assert!(alike("SELECT * FROM t WHERE a = 1"));
        assert!(alike("UPDATE t SET a = 1 WHERE b = 'x'"));
        for sql in [
            "SET work_mem = 1",
            "SELECT set_config('a.b', '1', false)",
            "SELECT 1, set_config('a.b', '1', false)",
            "SELECT nextval('s')",
            "SELECT 1; SELECT 2",
            "BEGIN",
            "PREPARE s AS SELECT 1",
            "SELECT current_setting('work_mem')",
            "SELECT a, pg_catalog.current_setting('work_mem') FROM t",
            "EXPLAIN (ANALYZE 0) DELETE FROM t",
            "",
        ] {
            assert!(!alike(sql), "{sql}");
        }
    }
}
