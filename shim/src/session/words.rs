//! First words of statements whose effect stays on one server connection. Pure.

use super::pin::LOAD;

/// What a statement does with the state of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stateful {
    /// The connection must be kept, for this reason.
    Keep(&'static str),
    /// Opens a cursor; `hold`: it outlives the transaction.
    Declare {
        /// The cursor.
        name: String,
        /// WITH HOLD.
        hold: bool,
    },
    /// FETCH, MOVE or CLOSE of a cursor.
    Cursor(String),
    /// EXECUTE of a statement that SQL prepared.
    Execute,
    /// Nothing that lasts.
    Nothing,
}

/// Reads the text of a statement of kind `Session`.
pub fn stateful(sql: &str) -> Stateful {
    let text = without_comments(sql).trim_end_matches(';').trim_end();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let first = text.split(|c: char| !c.is_ascii_alphabetic()).next();
    let first = first.unwrap_or_default().to_ascii_lowercase();
    match first.as_str() {
        "listen" => Stateful::Keep("LISTEN"),
        "load" => Stateful::Keep(LOAD),
        "create" | "select" | "with" => Stateful::Keep("temporary table"),
        "execute" => Stateful::Execute,
        "declare" => {
            let lower = text.to_ascii_lowercase();
            let head = lower.split(" for ").next().unwrap_or_default();
            Stateful::Declare {
                name: words.get(1).map(|word| folded(word)).unwrap_or_default(),
                hold: head.contains("hold") && !head.contains("without"),
            }
        }
        "fetch" | "move" => {
            Stateful::Cursor(words.last().map(|word| folded(word)).unwrap_or_default())
        }
        "close" => Stateful::Cursor(words.get(1).map(|word| folded(word)).unwrap_or_default()),
        _ => Stateful::Nothing,
    }
}

/// A name as PostgreSQL folds it.
fn folded(word: &str) -> String {
    match word
        .strip_prefix('"')
        .and_then(|inner| inner.strip_suffix('"'))
    {
        Some(inner) => inner.replace("\"\"", "\""),
        None => word.to_ascii_lowercase(),
    }
}

/// The text from its first word on.
fn without_comments(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        let end = match (rest.strip_prefix("--"), rest.strip_prefix("/*")) {
            (Some(comment), _) => comment.find('\n').map(|end| &comment[end + 1..]),
            (_, Some(comment)) => comment.find("*/").map(|end| &comment[end + 2..]),
            (None, None) => return rest,
        };
        match end {
            Some(end) => rest = end.trim_start(),
            None => return rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_before_the_first_word_are_skipped() {
        assert_eq!(without_comments("  -- a\n/* b */ LISTEN x"), "LISTEN x");
        assert_eq!(without_comments("/* open"), "/* open");
        assert_eq!(stateful("/* x */ listen c"), Stateful::Keep("LISTEN"));
    }

    #[test]
    fn comments_do_not_hide_a_cursor_that_is_held() {
        let hidden = stateful("DECLARE/*a*/ c CURSOR WITH/**/HOLD FOR SELECT 1");
        assert!(matches!(hidden, Stateful::Declare { hold: true, .. }));
        let plain = stateful("declare c cursor without hold for select 1");
        assert!(matches!(plain, Stateful::Declare { hold: false, .. }));
    }

    #[test]
    fn cursors_are_known_by_their_folded_names() {
        let declare = |name: &str, hold| Stateful::Declare {
            name: name.to_owned(),
            hold,
        };
        assert_eq!(
            stateful("DECLARE \"Cc\" CURSOR FOR SELECT 1"),
            declare("Cc", false)
        );
        assert_eq!(
            stateful("declare C cursor with hold for select 1"),
            declare("c", true)
        );
        assert_eq!(
            stateful("FETCH FORWARD 3 FROM \"Cc\";"),
            Stateful::Cursor("Cc".into())
        );
        assert_eq!(stateful("close C"), Stateful::Cursor("c".into()));
        assert_eq!(stateful("UNLISTEN *"), Stateful::Nothing);
    }
}
