//! What an expression means, whatever the place where it stands in a text.

use std::fmt::{self, Write};

/// A tree without the places where it stood in a text: equal for equal meaning.
pub(super) fn shape(tree: &impl fmt::Debug) -> String {
    let mut writer = Writer {
        out: Collected(String::new()),
        state: State::default(),
    };
    // Writing to a text cannot fail.
    let _ = write!(writer, "{tree:?}");
    writer.out.0
}

/// Whether a tree has this shape. Of one that has not, only what is alike is looked at.
pub(super) fn is_shaped(tree: &impl fmt::Debug, shape: &str) -> bool {
    let mut writer = Writer {
        out: Compared(shape),
        state: State::default(),
    };
    write!(writer, "{tree:?}").is_ok() && writer.out.0.is_empty()
}

/// How fields are called that say where something stood.
const PLACES: [&str; 3] = ["location", "list_start", "list_end"];

/// Where the shape goes.
trait Sink {
    fn take(&mut self, c: char) -> fmt::Result;
}

struct Collected(String);

impl Sink for Collected {
    fn take(&mut self, c: char) -> fmt::Result {
        self.0.push(c);
        Ok(())
    }
}

/// What is still to come.
struct Compared<'s>(&'s str);

impl Sink for Compared<'_> {
    fn take(&mut self, c: char) -> fmt::Result {
        self.0 = self.0.strip_prefix(c).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// Passes on what is no place, looking at each character once.
struct Writer<S> {
    out: S,
    state: State,
}

/// Where it is in the text of a tree.
#[derive(Default)]
struct State {
    /// In a string, which is passed on as it is.
    quoted: bool,
    /// Behind a backslash in a string.
    escaped: bool,
    /// The word that was begun last, as far as it may be the name of a field.
    word: String,
    /// Behind the name of a place.
    place: bool,
}

impl<S: Sink> Writer<S> {
    fn character(&mut self, c: char) -> fmt::Result {
        #[cfg(test)]
        tests::note_visit();
        let state = &mut self.state;
        if state.quoted {
            state.quoted = c != '"' || state.escaped;
            state.escaped = c == '\\' && !state.escaped;
            return self.out.take(c);
        }
        if state.place && (c == '-' || c.is_ascii_digit()) {
            return Ok(());
        }
        match c {
            ':' => state.place = PLACES.iter().any(|place| state.word.ends_with(place)),
            ' ' => {}
            _ => state.place = false,
        }
        if c.is_ascii_alphanumeric() || c == '_' {
            state.word.push(c);
        } else {
            state.word.clear();
        }
        state.quoted = c == '"';
        self.out.take(c)
    }
}

impl<S: Sink> Write for Writer<S> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| self.character(c))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::super::rewrite::parse;
    use super::*;

    thread_local! {
        static VISITS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn note_visit() {
        VISITS.set(VISITS.get() + 1);
    }

    /// How many characters of shapes this thread has looked at.
    pub(in super::super) fn visits() -> usize {
        VISITS.get()
    }

    #[test]
    fn a_shape_has_no_places_and_keeps_texts_as_they_are() {
        let of = |sql: &str| shape(&parse(sql).expect(sql));
        assert_eq!(of("SELECT a  + 1"), of("SELECT  a +   1"));
        assert_eq!(of("SELECT a IN (1,2)"), of("SELECT a IN (1, 2)"));
        assert_ne!(of("SELECT a + 1"), of("SELECT a + 2"));
        for (one, other) in [
            ("location: 1", "location: 2"),
            ("list_start: 1", "list_start: 2"),
            ("\"location: 1", "\"location: 2"),
            ("\\\"location: 1", "\\\"location: 2"),
            ("\\", "\\\\"),
        ] {
            let (one, other) = (
                format!("SELECT a = '{one}'"),
                format!("SELECT a = '{other}'"),
            );
            assert_ne!(of(&one), of(&other), "{one}");
            let tree = parse(&one).expect("SQL");
            assert!(is_shaped(&tree, &of(&one)) && !is_shaped(&tree, &of(&other)));
        }
    }

    #[test]
    fn what_differs_early_is_told_apart_early() {
        let long = parse(&format!("SELECT a + 1{}", ", 1".repeat(300))).expect("SQL");
        let whole = shape(&long).len();
        let before = visits();
        assert!(!is_shaped(&long, "Select"));
        assert!(visits() - before < whole / 10);
    }
}
