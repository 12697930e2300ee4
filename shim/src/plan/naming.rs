//! The name in PREPARE, EXECUTE and DEALLOCATE, found and replaced in the text.

use pg_query::protobuf::{ScanToken, Token};

/// The text with another name behind its PREPARE, EXECUTE or DEALLOCATE.
pub fn rename_prepared(sql: &str, name: &str) -> Option<String> {
    let place = place(sql)?;
    Some(format!(
        "{}{name}{}",
        sql.get(..place.start)?,
        sql.get(place.end..)?
    ))
}

/// What follows the name in `PREPARE name (types) AS statement`.
pub fn behind_prepared_name(sql: &str) -> Option<&str> {
    let tail = sql.get(place(sql)?.end..)?;
    Some(tail.trim_end().trim_end_matches(';').trim_end())
}

fn place(sql: &str) -> Option<std::ops::Range<usize>> {
    let tokens = pg_query::scan(sql).ok()?.tokens;
    let is = |token: &ScanToken, kind: Token| token.token == kind as i32;
    let mut words = tokens
        .iter()
        .filter(|token| !is(token, Token::SqlComment) && !is(token, Token::CComment));
    let verb = words.find(|token| {
        let kinds = [Token::Prepare, Token::Execute, Token::Deallocate];
        kinds.into_iter().any(|kind| is(token, kind))
    })?;
    let mut name = words.next()?;
    if is(verb, Token::Deallocate) && is(name, Token::Prepare) {
        name = words.next().unwrap_or(name);
    }
    Some(usize::try_from(name.start).ok()?..usize::try_from(name.end).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_found_behind_comments_and_in_quotes() {
        for (sql, expected) in [
            ("EXECUTE q1(4)", "EXECUTE x(4)"),
            (
                "/* execute a */ execute \"Q 1\" ( 'execute b' )",
                "/* execute a */ execute x ( 'execute b' )",
            ),
            (
                "EXPLAIN (ANALYZE) EXECUTE/**/q",
                "EXPLAIN (ANALYZE) EXECUTE/**/x",
            ),
            (
                "CREATE TABLE t AS EXECUTE q(1)",
                "CREATE TABLE t AS EXECUTE x(1)",
            ),
            (
                "PREPARE q (int) AS SELECT $1",
                "PREPARE x (int) AS SELECT $1",
            ),
            ("DEALLOCATE PREPARE q", "DEALLOCATE PREPARE x"),
        ] {
            assert_eq!(
                rename_prepared(sql, "x").as_deref(),
                Some(expected),
                "{sql}"
            );
        }
        assert_eq!(rename_prepared("SELECT 1", "x"), None);
    }

    #[test]
    fn what_is_prepared_stands_behind_the_name() {
        let tail = behind_prepared_name("PREPARE \"a b\"(int) AS SELECT $1 ; ");
        assert_eq!(tail, Some("(int) AS SELECT $1"));
    }
}
