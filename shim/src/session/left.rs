//! What code has left on a server connection, of which the server told with the end of a
//! transaction.
//!
//! Parameters travel: they become the client's own, as if it had set them itself. Anything else
//! keeps the connection for the client, or is refused where that cannot be.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pgdog_core::fault::Fault;

use super::keep::Setting;
use super::param_values::{Class, classify};
use super::params::{Scope, literal};
use super::party::{Participant, Place};
use super::pin::{CODE, LOAD, MAYBE, SEED, kept};
use super::{Session, faults};
use crate::plan::Statement;
use crate::proto::ErrorFields;

/// Prefix of the parameters of the extension and of the shim.
const OWN: &str = "pgdog.";

impl Session<'_> {
    /// Sees to what code has left on connections whose loans have ended, and ends the loans.
    pub(super) async fn look_at_left(&mut self) {
        for mut participant in std::mem::take(&mut self.held_back) {
            if self.look_at(&mut participant).await {
                participant.lease.forget_left();
                self.give_back(participant);
            } else {
                self.throw_away(participant);
            }
        }
    }

    /// False: the connection must not be used again.
    async fn look_at(&mut self, participant: &mut Participant) -> bool {
        let Some(left) = participant.lease.left().cloned() else {
            return true;
        };
        let mut reason = match (left.loaded, left.seed) {
            (true, _) => Some(LOAD),
            (false, true) => Some(SEED),
            (false, false) => left.objects.then_some(MAYBE),
        };
        if !left.names.is_empty() && !self.note_values(participant, &left.names).await {
            reason = Some(reason.filter(|why| *why != MAYBE).unwrap_or(CODE));
        }
        let Some(why) = reason else {
            return true;
        };
        let refused = match participant.place {
            Place::Primary => match self.pin(participant.shard, why) {
                Ok(()) => {
                    if left.lasts() {
                        participant.lease.mark_lasting();
                    }
                    return true;
                }
                Err(fault) => ErrorFields {
                    hint: Some("The statement itself went through.".to_owned()),
                    ..ErrorFields::from(&fault)
                },
            },
            Place::Replica => of_a_replica(why),
        };
        if why == MAYBE {
            match kept(&mut participant.lease).await {
                Ok(rows) if rows.is_empty() => return true,
                Ok(_) | Err(_) => {}
            }
        }
        participant.lease.mark_dirty();
        self.report(&refused);
        !left.lasts()
    }

    /// Takes over the values that code has given to parameters; false if only the connection can
    /// keep one of them.
    async fn note_values(
        &mut self,
        participant: &mut Participant,
        names: &BTreeSet<String>,
    ) -> bool {
        let lease = &mut participant.lease;
        if names.iter().any(|name| name.starts_with(OWN)) {
            // What the extension goes by is set again before the next statement.
            lease.epoch = None;
            lease.applied.unknown = true;
        }
        if self.client.foreign_encoding().is_some() {
            // Values in it are nothing that could be brought elsewhere.
            return false;
        }
        let rows = match lease.simple(&values_of(names)).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::debug!(%error, "cannot see what code has set");
                return false;
            }
        };
        let mut travels = true;
        for row in rows {
            let [Some(name), value, privileged] = row.as_slice() else {
                continue;
            };
            match classify(name) {
                Class::Reserved => {}
                Class::Own(_) | Class::Forwarded if privileged.as_deref() == Some("t") => {
                    travels = false;
                }
                Class::Own(_) | Class::Forwarded => {
                    let setting = Setting {
                        name: name.clone(),
                        value: value.clone(),
                        scope: Scope::Session,
                    };
                    self.note_setting(&setting, lease);
                }
            }
        }
        travels
    }
}

/// Asks for the values of parameters, and whether it takes a superuser to set them.
fn values_of(names: &BTreeSet<String>) -> String {
    let names = names.iter().filter(|name| *name != "seed");
    let names: Vec<_> = names.map(|name| literal(name)).collect();
    format!(
        "SELECT n, pg_catalog.current_setting(n, true), EXISTS (\
         SELECT FROM pg_catalog.pg_settings s WHERE pg_catalog.lower(s.name) = n \
         AND s.context <> 'user' AND NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r \
         WHERE r.rolname = pg_catalog.current_setting('session_authorization'))) \
         FROM pg_catalog.unnest(ARRAY[{}]::pg_catalog.text[]) n",
        names.join(", ")
    )
}

fn of_a_replica(why: &str) -> ErrorFields {
    let mut fields = faults::plain(
        "40001",
        format!("{why} was left on a replica, where it cannot be kept"),
    );
    fields.detail = Some("It has been released again.".to_owned());
    fields.hint = Some("Run the statement again: it goes to the primary now.".to_owned());
    fields
}

/// Functions and relations whose code was seen to leave something on a replica: what calls or
/// reads them goes to primaries.
#[derive(Debug, Default)]
pub struct Keepers {
    any: AtomicBool,
    names: Mutex<HashSet<String>>,
}

impl Keepers {
    /// Whether a statement may run code that leaves something.
    pub fn runs_some(&self, statement: &Statement) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names_in(statement).any(|name| names.contains(name))
    }

    /// Remembers whatever the statement may have run.
    pub fn note(&self, statement: &Statement) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.extend(names_in(statement).map(str::to_owned));
        self.any.store(true, Ordering::Relaxed);
    }
}

/// A view runs functions that the text does not name.
fn names_in(statement: &Statement) -> impl Iterator<Item = &str> {
    let called = statement.functions.called.iter();
    let called = called.map(|called| called.name.as_str());
    let read = statement.relations.iter().map(|table| table.name.as_str());
    let some_called = !statement.functions.called.is_empty();
    called.chain(read.filter(move |_| !some_called))
}

/// What a client is told that keeps something on another server already.
pub(super) fn second_place(
    (why, shard): (&str, impl std::fmt::Display),
    (first, kept): (&str, impl std::fmt::Display),
) -> Fault {
    Fault::Refused {
        what: format!("{why} on shard {shard} together with {first} on shard {kept}"),
        why: "a client keeps state on one server only".to_owned(),
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::parse;

    #[test]
    fn statements_are_known_by_what_they_call_or_read() {
        let statement = |sql: &str| parse(sql).unwrap().statements.remove(0);
        let keepers = Keepers::default();
        assert!(!keepers.runs_some(&statement("SELECT f()")));
        keepers.note(&statement("SELECT f() FROM t"));
        keepers.note(&statement("SELECT * FROM v"));
        assert!(keepers.runs_some(&statement("SELECT 1 + f()")));
        assert!(keepers.runs_some(&statement("SELECT a FROM v")));
        assert!(!keepers.runs_some(&statement("SELECT * FROM t")));
    }

    #[test]
    fn the_question_for_values_quotes_names() {
        let names = BTreeSet::from(["a.b".to_owned(), "o'x".to_owned(), "seed".to_owned()]);
        let question = values_of(&names);
        assert!(question.contains("ARRAY['a.b', 'o''x']"), "{question}");
    }
}
