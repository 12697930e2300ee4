//! `EXPLAIN (PGDOG)` in front of a statement, which may be one that PostgreSQL does not explain.

/// What stands behind `EXPLAIN (PGDOG)`; the whole text if it does not begin so.
pub fn explained_text(sql: &str) -> &str {
    inner(sql).unwrap_or(sql)
}

fn inner(sql: &str) -> Option<&str> {
    let rest = word(skip_space(sql), "explain")?;
    let rest = skip_space(rest).strip_prefix('(')?;
    let rest = word(skip_space(rest), "pgdog")?;
    skip_space(rest).strip_prefix(')')
}

/// What follows a word.
fn word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let found = text.get(..word.len())?;
    let rest = &text[word.len()..];
    let ends = !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
    (found.eq_ignore_ascii_case(word) && ends).then_some(rest)
}

/// Without the white space and comments that it begins with.
fn skip_space(text: &str) -> &str {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
        let after = match rest.as_bytes() {
            [b'-', b'-', ..] => rest.find(['\n', '\r']).map(|end| &rest[end..]),
            [b'/', b'*', ..] => comment_end(rest).map(|end| &rest[end..]),
            _ => None,
        };
        match after {
            Some(after) => rest = after,
            None => return rest,
        }
    }
}

/// Where a comment ends that may have others within.
fn comment_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::explained_text;

    #[test]
    fn what_is_explained_stands_behind_the_words() {
        for (sql, inner) in [
            ("EXPLAIN (PGDOG) VACUUM t", " VACUUM t"),
            (
                " explain/* a /* b */ */( -- c\n pgdog )LISTEN x",
                "LISTEN x",
            ),
            ("EXPLAIN(PGDOG)SELECT 1; SELECT 2", "SELECT 1; SELECT 2"),
        ] {
            assert_eq!(explained_text(sql), inner);
        }
        for other in [
            "EXPLAIN SELECT 1",
            "EXPLAIN (PGDOG, VERBOSE) SELECT 1",
            "EXPLAIN (PGDOGS) SELECT 1",
            "EXPLAINS (PGDOG) SELECT 1",
            "/* EXPLAIN (PGDOG) SELECT 1",
            "/*/ EXPLAIN (PGDOG) SELECT 1",
            "",
            "expl\u{e4}in (pgdog) x",
        ] {
            assert_eq!(explained_text(other), other);
        }
    }
}
