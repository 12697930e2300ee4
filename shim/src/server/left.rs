//! What a server tells of itself between answers: its parameters, and what code has left.
//!
//! Functions, triggers and DO blocks may leave something on the connection that runs them, which no
//! text shows. The server names it in `pgdog.session_state`, before the ReadyForQuery of the
//! transaction: `N WORD ...`, see the extension.

use std::collections::BTreeSet;

use bytes::BytesMut;
use pgdog_core::ids::Incarnation;

use super::conn::Conn;

/// What code may have left since somebody last looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// Temporary relations, locks, cursors and the like have come or gone.
    pub objects: bool,
    /// A library or a link, which stays as long as the connection.
    pub loaded: bool,
    /// random() can be foretold.
    pub seed: bool,
    /// Parameters that have other values, in lower case.
    pub names: BTreeSet<String>,
}

impl Left {
    /// Whether no reset takes it away.
    pub fn lasts(&self) -> bool {
        self.loaded || self.seed
    }

    fn note(&mut self, report: &str) {
        // The number in front only makes reports differ.
        for word in report.split(' ').skip(1) {
            match (word, word.strip_prefix("set=")) {
                ("objects", _) => self.objects = true,
                ("seed", _) => self.seed = true,
                (_, Some(names)) => {
                    for name in names.split(',') {
                        self.seed |= name == "seed";
                        self.names.insert(name.to_owned());
                    }
                }
                // A word of a newer extension counts as what is kept longest.
                (_, None) => self.loaded = true,
            }
        }
    }
}

impl Conn {
    /// What code has left here, if nobody has looked yet.
    pub fn left(&self) -> Option<&Left> {
        self.left.as_deref()
    }

    /// Somebody has seen to what was left.
    pub fn forget_left(&mut self) {
        self.left = None;
    }

    /// What stays as long as the connection was left here, by a client who has it.
    pub fn mark_lasting(&mut self) {
        self.lasting = true;
    }

    /// Whether [`Conn::take_pushed`] has any.
    pub fn has_pushed(&self) -> bool {
        !self.pushed.is_empty()
    }

    /// Takes the notifications that came between answers to the shim's own statements.
    pub fn take_pushed(&mut self) -> BytesMut {
        std::mem::take(&mut self.pushed)
    }

    pub(super) fn note_parameter(&mut self, name: &str, value: &str) {
        match name {
            "pgdog.incarnation" => {
                self.incarnation = (!value.is_empty()).then(|| Incarnation(value.to_owned()));
            }
            "pgdog.commit_lsn" => self.commit_lsn = value.parse().ok(),
            // At login it is empty.
            "pgdog.session_state" if value.is_empty() => {}
            "pgdog.session_state" => self.left.get_or_insert_default().note(value),
            _ => self.news = true,
        }
        self.parameters.insert(name.to_owned(), value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(reports: &[&str]) -> Left {
        let mut left = Left::default();
        reports.iter().for_each(|report| left.note(report));
        left
    }

    #[test]
    fn reports_are_read_and_add_up() {
        let both = left(&["1 objects", "2 set=app.a,work_mem"]);
        assert!(both.objects && !both.lasts());
        assert_eq!(Vec::from_iter(&both.names), ["app.a", "work_mem"]);
        assert_eq!(left(&["3"]), Left::default());
    }

    #[test]
    fn what_no_reset_takes_away_lasts() {
        assert!(left(&["1 seed"]).lasts());
        assert!(left(&["1 library"]).lasts());
        assert!(left(&["1 set=seed"]).lasts());
        assert!(left(&["1 unheard_of"]).lasts(), "to be on the safe side");
    }
}
