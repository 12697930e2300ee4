//! What is left of a text without its constants. Pure.
//!
//! Applications that write values into their texts never send the same one twice. Texts of one
//! shape differ in nothing but the digits of numbers and the inside of quotes, so what does not
//! depend on values is the same for all of them.

use super::{Kind, Plan};

/// A shape.
#[derive(Debug, Default)]
pub struct Shape {
    text: String,
    /// How much of it is before the first constant.
    head: usize,
}

impl Shape {
    /// Becomes the shape of `sql`, in the room that the one before has taken. False when it cannot
    /// be told by a look at the characters: comments (which may hold hints), dollar quotes,
    /// backslashes and prefixes of constants.
    pub fn become_of(&mut self, sql: &str) -> bool {
        self.text.clear();
        let mut head = None;
        let told = cut(sql, |piece| {
            self.text.push_str(piece);
            head.get_or_insert(piece.strip_suffix('\'').unwrap_or(piece).len());
            true
        });
        self.head = head.unwrap_or(0);
        told
    }

    /// Whether the shape of `sql` is this one.
    pub fn is_of(&self, sql: &str) -> bool {
        // Where the first constant begins, nothing before it is open: a text that begins alike is
        // cut alike so far.
        let (head, mut rest) = self.text.split_at(self.head);
        let Some(sql) = sql.strip_prefix(head) else {
            return false;
        };
        let fits = cut(sql, |piece| match rest.strip_prefix(piece) {
            Some(behind) => {
                rest = behind;
                true
            }
            None => false,
        });
        fits && rest.is_empty()
    }

    /// What is left of the text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
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
        let mut out = Shape::default();
        out.become_of(sql).then_some(out.text)
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
        // Whatever can stand beside whatever, in front of a constant and behind one.
        let mut texts = vec![String::new()];
        for length in 0..4 {
            let longer = texts.iter().filter(|text| text.len() == length);
            let longer = longer
                .flat_map(|text| ["a", "1", "'", "\"", "-", "$", " "].map(|c| text.to_owned() + c));
            texts.extend(longer.collect::<Vec<_>>());
        }
        let shapes: Vec<_> = texts.iter().map(|text| shape(text)).collect();
        let mut wanted = Shape::default();
        for (number, text) in texts.iter().enumerate().filter(|(_, text)| text.len() < 4) {
            if !wanted.become_of(text) {
                continue;
            }
            for (other, its) in texts.iter().zip(&shapes) {
                let same = *its == shapes[number];
                assert_eq!(wanted.is_of(other), same, "{other}, {text}");
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
