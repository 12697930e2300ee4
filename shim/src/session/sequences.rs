//! `currval` and `lastval` answer from what one server connection remembers. Other clients' values
//! must not be among it, and a client's own are there as long as it keeps the connection: in a
//! transaction, or while it is pinned.
//!
//! Connections are cleared before they are pinned, and before a transaction uses them in databases
//! in which somebody has asked: all others pay nothing.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pgdog_core::fault::Fault;

use super::steps::Asked;
use super::{Session, faults};
use crate::plan::Statement;
use crate::server::Lease;

/// What clears a connection.
pub(super) const CLEAR: &str = "DISCARD SEQUENCES";

/// Databases in which sessions ask for their values of sequences.
#[derive(Debug, Default)]
pub struct Followed {
    any: AtomicBool,
    databases: Mutex<HashSet<String>>,
}

impl Followed {
    fn follow(&self, database: &str) {
        let mut databases = self
            .databases
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !databases.contains(database) {
            databases.insert(database.to_owned());
            self.any.store(true, Ordering::Relaxed);
        }
    }

    fn follows(&self, database: &str) -> bool {
        self.any.load(Ordering::Relaxed)
            && self
                .databases
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(database)
    }
}

impl Session<'_> {
    /// Refuses a question for values that are not there, or are mixed with those of others.
    ///
    /// # Errors
    /// 0A000 outside of the transaction that took the value, 40001 when the transaction began
    /// before anybody had asked.
    pub(super) fn check_sequences(
        &mut self,
        asked: &Asked<'_>,
        statement: &Statement,
    ) -> Result<(), Fault> {
        let asks = asked.executes() && statement.functions.remembers;
        self.asks_for_values |= asks;
        if !asks {
            return Ok(());
        }
        self.services.sequences.follow(self.cluster.name());
        if !self.tx.is_open() && self.pin.is_none() && !may_take_values(statement) {
            return Err(Fault::Refused {
                what: "currval() or lastval() outside of the transaction that took the value"
                    .to_owned(),
                why: "the connection that knows it may serve other clients by now".to_owned(),
                hint: Some(
                    "Use INSERT ... RETURNING, one transaction, or pooler_mode = \"session\"."
                        .to_owned(),
                ),
            });
        }
        let mut taking_part = self.participants.values();
        let others = taking_part.any(|part| part.begun && !part.lease.sequences_are_own);
        // Told once; what comes next clears the connection first.
        let mixed = !self.tx.is_open() && std::mem::take(&mut self.values_are_mixed);
        match others || mixed {
            true => Err(faults::fault(
                "40001",
                "values of sequences are followed from the next transaction on",
            )),
            false => Ok(()),
        }
    }

    /// Whether a connection must forget what others took from sequences before it is used.
    pub(super) fn clears_sequences(&self, lease: &Lease) -> bool {
        let followed = || self.services.sequences.follows(self.cluster.name());
        !lease.sequences_are_own
            && (self.asks_for_values || self.pin.is_some() || (self.tx.is_open() && followed()))
    }
}

/// Whether it may itself take the value that it asks for.
fn may_take_values(statement: &Statement) -> bool {
    let mut called = statement.functions.called.iter();
    called.any(|called| called.name == "nextval" || called.name == "setval")
        || statement.relations.iter().any(|table| table.written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::parse;

    #[test]
    fn only_databases_that_were_asked_about_are_followed() {
        let followed = Followed::default();
        assert!(!followed.follows("a"));
        followed.follow("a");
        assert!(followed.follows("a") && !followed.follows("b"));
    }

    #[test]
    fn statements_that_take_a_value_may_ask_for_it() {
        let statement = |sql: &str| parse(sql).unwrap().statements.remove(0);
        for sql in [
            "SELECT nextval('s'), currval('s')",
            "INSERT INTO t DEFAULT VALUES RETURNING lastval()",
        ] {
            let statement = statement(sql);
            assert!(
                statement.functions.remembers && may_take_values(&statement),
                "{sql}"
            );
        }
        let bare = statement("SELECT pg_catalog.lastval()");
        assert!(bare.functions.remembers && !may_take_values(&bare));
        assert!(!statement("SELECT nextval('s')").functions.remembers);
    }
}
