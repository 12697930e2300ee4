//! A command's text -> words. Pure.

use pgdog_core::fault::Fault;

/// One word; a quoted one keeps its case and is never a verb.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) quoted: bool,
}

impl Word {
    /// Whether it is this upper-case keyword.
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text.eq_ignore_ascii_case(keyword)
    }
}

/// Words between white space, up to the first `;`; `'...'` and `"..."` quote, doubled inside.
///
/// # Errors
/// 42601 for an unfinished quote and for text behind the `;`.
pub(super) fn words(text: &str) -> Result<Vec<Word>, Fault> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let after = match first {
            ';' => return ended(words, &rest[1..]),
            '\'' | '"' => {
                let (word, after) = quoted(first, &rest[1..])?;
                words.push(Word {
                    text: word,
                    quoted: true,
                });
                after
            }
            _ => {
                let end = rest
                    .find(|c: char| c.is_whitespace() || matches!(c, ';' | '\'' | '"'))
                    .unwrap_or(rest.len());
                words.push(Word {
                    text: rest[..end].to_owned(),
                    quoted: false,
                });
                &rest[end..]
            }
        };
        rest = after.trim_start();
    }
    Ok(words)
}

fn ended(words: Vec<Word>, rest: &str) -> Result<Vec<Word>, Fault> {
    match rest.trim_matches(|c: char| c.is_whitespace() || c == ';') {
        "" => Ok(words),
        more => Err(syntax(format!(
            "one command at a time: \"{more}\" is one too many"
        ))),
    }
}

fn quoted(quote: char, text: &str) -> Result<(String, &str), Fault> {
    let mut word = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            word.push(c);
        } else if chars.peek().is_some_and(|(_, next)| *next == quote) {
            word.push(quote);
            chars.next();
        } else {
            return Ok((word, &text[at + 1..]));
        }
    }
    Err(syntax(format!("unfinished quote: {quote}{text}")))
}

fn syntax(message: String) -> Fault {
    Fault::Syntax {
        message,
        position: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        words(text)
            .expect("readable")
            .into_iter()
            .map(|word| word.text)
            .collect()
    }

    #[test]
    fn words_quotes_and_the_end_are_read() {
        assert_eq!(
            texts("  ADD SHARD prod 2 ; "),
            ["ADD", "SHARD", "prod", "2"]
        );
        assert_eq!(
            texts("ADD SHARD \"My \"\"Db\" 'it''s'"),
            ["ADD", "SHARD", "My \"Db", "it's"]
        );
        assert_eq!(texts(" ;; "), Vec::<String>::new());
        assert_eq!(texts(""), Vec::<String>::new());
        assert_eq!(texts("a\n\tb"), ["a", "b"]);
    }

    #[test]
    fn halves_and_seconds_are_refused() {
        for text in ["ADD 'x", "\"", "RELOAD; SHUTDOWN"] {
            assert_eq!(words(text).expect_err(text).sqlstate(), "42601");
        }
    }
}
