//! A session's parameters with the meaning that PostgreSQL gives to its own: SET, SET LOCAL, RESET,
//! RESET ALL, and going back with the transaction or to a savepoint. Pure.
//!
//! Two kinds live here side by side: `pgdog.*`, which the shim interprets, and ordinary ones, of
//! which it remembers the command that set them, to be replayed on the server connection that
//! happens to be lent.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pgdog_core::fault::Fault;

use super::faults;
use super::param_values::{Class, Name, Rejected, Values, classify};

/// How long an assignment lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Past the end of the transaction, if that commits.
    Session,
    /// Until the end of the transaction.
    Local,
}

/// All parameters at one moment. Cloning is cheap: a copy is made on the first write only.
#[derive(Debug, Clone, PartialEq, Default)]
struct Set {
    own: Arc<Values>,
    /// Name -> command that sets it, for ordinary parameters.
    ordinary: Arc<BTreeMap<String, String>>,
    /// Schemas in which unqualified names are looked for; empty: PostgreSQL's default.
    search_path: Arc<Vec<String>>,
}

/// What a rollback goes back to.
#[derive(Debug, Clone)]
struct Mark {
    effective: Set,
    after_commit: Set,
}

/// A session's parameters.
#[derive(Debug)]
pub struct Params {
    /// What RESET goes back to: configuration, ALTER ROLE/DATABASE, start-up packet.
    defaults: Set,
    /// What counts now.
    effective: Set,
    /// What will count once the open transaction commits: `effective` without SET LOCAL.
    after_commit: Set,
    /// At BEGIN; None outside a transaction.
    begin: Option<Mark>,
    /// Innermost last.
    savepoints: Vec<(String, Mark)>,
    /// Of `after_commit.ordinary`; 0 when it is empty.
    fingerprint: u64,
}

impl Params {
    /// A session's parameters at login, before start-up options.
    pub fn new(own: Values) -> Self {
        let set = Set {
            own: Arc::new(own),
            ordinary: Arc::default(),
            search_path: Arc::default(),
        };
        Self {
            defaults: set.clone(),
            effective: set.clone(),
            after_commit: set,
            begin: None,
            savepoints: Vec::new(),
            fingerprint: 0,
        }
    }

    /// An assignment at login: it becomes the default that RESET goes back to.
    ///
    /// # Errors
    /// As [`Params::set`].
    pub fn set_default(&mut self, name: &str, value: &str) -> Result<(), Fault> {
        match classify(name) {
            Class::Own(own) => Arc::make_mut(&mut self.defaults.own)
                .assign(own, value)
                .map_err(|why| fault(own, value, why))?,
            Class::Reserved => return Err(reserved(name)),
            Class::Forwarded => {
                let command = set_config(name, value);
                Arc::make_mut(&mut self.defaults.ordinary).insert(name.to_owned(), command);
            }
        }
        self.effective = self.defaults.clone();
        self.after_commit = self.defaults.clone();
        self.note_change();
        Ok(())
    }

    /// `search_path` at login.
    pub fn set_default_search_path(&mut self, schemas: Vec<String>) {
        let schemas = Arc::new(schemas);
        for set in [
            &mut self.defaults,
            &mut self.effective,
            &mut self.after_commit,
        ] {
            set.search_path = schemas.clone();
        }
    }

    /// Remembers the schemas of a `search_path` that a server accepted; None: the default.
    pub fn note_search_path(&mut self, schemas: Option<Vec<String>>, scope: Scope) {
        let schemas = match schemas {
            Some(schemas) => Arc::new(schemas),
            None => self.defaults.search_path.clone(),
        };
        if scope == Scope::Session {
            self.after_commit.search_path = schemas.clone();
        }
        if scope == Scope::Session || self.begin.is_some() {
            self.effective.search_path = schemas;
        }
    }

    /// Schemas in which unqualified names are looked for.
    pub fn search_path(&self) -> &[String] {
        &self.effective.search_path
    }

    /// The values of `pgdog.*` that count now.
    pub fn own(&self) -> &Values {
        &self.effective.own
    }

    /// SET of a parameter of the shim. `None` is DEFAULT. SET LOCAL outside a transaction does
    /// nothing, as in PostgreSQL.
    ///
    /// # Errors
    /// 22023 for a malformed value, 55P02 for a read-only parameter; the old value stays.
    pub fn set(&mut self, name: Name, value: Option<&str>, scope: Scope) -> Result<(), Fault> {
        let mut probe = (*self.effective.own).clone();
        match value {
            Some(text) => probe
                .assign(name, text)
                .map_err(|why| fault(name, text, why))?,
            None if matches!(name, Name::LastRoute | Name::CommitLsn) => {
                return Err(fault(name, "", Rejected::ReadOnly));
            }
            None => probe.copy_from(&self.defaults.own, name),
        }
        if scope == Scope::Local && self.begin.is_none() {
            return Ok(());
        }
        if scope == Scope::Session {
            Arc::make_mut(&mut self.after_commit.own).copy_from(&probe, name);
        }
        self.effective.own = Arc::new(probe);
        Ok(())
    }

    /// Remembers that a server accepted `command`, which sets an ordinary session parameter.
    pub fn note_set(&mut self, name: &str, command: &str) {
        for set in [&mut self.effective, &mut self.after_commit] {
            Arc::make_mut(&mut set.ordinary).insert(name.to_owned(), command.to_owned());
        }
        self.note_change();
    }

    /// Remembers that a server reset an ordinary parameter.
    pub fn note_reset(&mut self, name: &str) {
        for set in [&mut self.effective, &mut self.after_commit] {
            let ordinary = Arc::make_mut(&mut set.ordinary);
            match self.defaults.ordinary.get(name) {
                Some(command) => ordinary.insert(name.to_owned(), command.clone()),
                None => ordinary.remove(name),
            };
        }
        self.note_change();
    }

    /// RESET ALL and DISCARD ALL.
    pub fn reset_all(&mut self) {
        self.effective = self.defaults.clone();
        self.after_commit = self.defaults.clone();
        self.note_change();
    }

    /// Commands that bring a fresh server connection to this session's state outside a transaction.
    pub fn replay(&self) -> impl Iterator<Item = &str> {
        let committed = self
            .begin
            .as_ref()
            .map_or(&self.after_commit, |mark| &mark.after_commit);
        committed.ordinary.values().map(String::as_str)
    }

    /// Equal for equal [`Params::replay`]; 0 when there is nothing to replay.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// A transaction begins.
    pub fn begin(&mut self) {
        self.begin = Some(self.mark());
        self.savepoints.clear();
    }

    /// It committed.
    pub fn commit(&mut self) {
        if self.begin.take().is_some() {
            self.effective = self.after_commit.clone();
            self.savepoints.clear();
            self.note_change();
        }
    }

    /// It rolled back.
    pub fn rollback(&mut self) {
        if let Some(mark) = self.begin.take() {
            self.go_back(mark);
            self.savepoints.clear();
            self.note_change();
        }
    }

    /// SAVEPOINT.
    pub fn savepoint(&mut self, name: &str) {
        let mark = self.mark();
        self.savepoints.push((name.to_owned(), mark));
    }

    /// ROLLBACK TO: the savepoint itself stays.
    pub fn rollback_to(&mut self, name: &str) {
        if let Some(at) = self.savepoints.iter().rposition(|(n, _)| n == name) {
            self.savepoints.truncate(at + 1);
            let mark = self.savepoints[at].1.clone();
            self.go_back(mark);
        }
    }

    /// RELEASE: values stay, the savepoint goes.
    pub fn release(&mut self, name: &str) {
        if let Some(at) = self.savepoints.iter().rposition(|(n, _)| n == name) {
            self.savepoints.truncate(at);
        }
    }

    fn mark(&self) -> Mark {
        Mark {
            effective: self.effective.clone(),
            after_commit: self.after_commit.clone(),
        }
    }

    fn go_back(&mut self, mark: Mark) {
        self.effective = mark.effective;
        self.after_commit = mark.after_commit;
    }

    /// Inside a transaction the fingerprint stays that of the state before BEGIN: a connection that
    /// joins late is brought to that state first, then replays the transaction's own commands.
    fn note_change(&mut self) {
        if self.begin.is_some() {
            return;
        }
        let ordinary = &self.after_commit.ordinary;
        self.fingerprint = match ordinary.is_empty() {
            true => 0,
            false => {
                let mut hasher = DefaultHasher::new();
                ordinary.hash(&mut hasher);
                hasher.finish().max(1)
            }
        };
    }
}

/// A command that sets a parameter to a value in the form that SHOW prints.
pub fn set_config(name: &str, value: &str) -> String {
    format!(
        "SELECT pg_catalog.set_config({}, {}, false)",
        literal(name),
        literal(value)
    )
}

/// A string constant that reads the same whatever `standard_conforming_strings` is.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// Why a client may not set what the shim keeps on the server connections.
pub fn reserved(name: &str) -> Fault {
    Fault::Refused {
        what: format!("setting \"{name}\" through the shim"),
        why: "the shim sets it on every server connection".to_owned(),
        hint: Some("Use pgdog.min_lsn for a read floor.".to_owned()),
    }
}

fn fault(name: Name, value: &str, why: Rejected) -> Fault {
    match why {
        Rejected::Invalid(why) => Fault::BadParameter {
            name: name.as_str().to_owned(),
            value: value.to_owned(),
            why,
        },
        Rejected::ReadOnly => faults::read_only_parameter(name.as_str()),
        Rejected::NotYet => Fault::Refused {
            what: format!("parameter \"{}\"", name.as_str()),
            why: "floors by timestamp are not supported".to_owned(),
            hint: Some("Use pgdog.min_lsn with the token that a commit pushes.".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::param_values::RoleChoice;

    fn role(params: &Params) -> RoleChoice {
        params.own().role
    }

    fn set(params: &mut Params, value: &str, scope: Scope) {
        params.set(Name::Role, Some(value), scope).unwrap();
    }

    #[test]
    fn set_in_a_transaction_goes_back_with_it() {
        let mut p = Params::new(Values::default());
        p.begin();
        set(&mut p, "replica", Scope::Session);
        assert_eq!(role(&p), RoleChoice::Replica);
        p.rollback();
        assert_eq!(role(&p), RoleChoice::Auto);
        p.begin();
        set(&mut p, "replica", Scope::Session);
        p.commit();
        assert_eq!(role(&p), RoleChoice::Replica);
    }

    #[test]
    fn local_ends_with_the_transaction_and_uncovers_the_session_value() {
        let mut p = Params::new(Values::default());
        set(&mut p, "primary", Scope::Local);
        assert_eq!(role(&p), RoleChoice::Auto, "no transaction, no effect");
        p.begin();
        set(&mut p, "primary", Scope::Session);
        set(&mut p, "replica", Scope::Local);
        assert_eq!(role(&p), RoleChoice::Replica);
        p.commit();
        assert_eq!(role(&p), RoleChoice::Primary);
    }

    #[test]
    fn rollback_to_a_savepoint_restores_both_layers_and_keeps_it() {
        let mut p = Params::new(Values::default());
        p.begin();
        set(&mut p, "primary", Scope::Session);
        p.savepoint("a");
        set(&mut p, "replica", Scope::Session);
        p.savepoint("b");
        set(&mut p, "auto", Scope::Local);
        p.rollback_to("a");
        assert_eq!(role(&p), RoleChoice::Primary);
        set(&mut p, "replica", Scope::Local);
        p.rollback_to("a");
        assert_eq!(role(&p), RoleChoice::Primary);
        p.savepoint("c");
        set(&mut p, "replica", Scope::Session);
        p.release("c");
        p.commit();
        assert_eq!(role(&p), RoleChoice::Replica);
    }

    #[test]
    fn reset_goes_back_to_the_start_up_value() {
        let mut p = Params::new(Values::default());
        p.set_default("pgdog.role", "primary").unwrap();
        p.set_default("timezone", "UTC").unwrap();
        let at_login = p.fingerprint();
        set(&mut p, "replica", Scope::Session);
        p.note_set("timezone", "SET timezone = 'CET'");
        assert_ne!(p.fingerprint(), at_login);
        p.set(Name::Role, None, Scope::Session).unwrap();
        p.note_reset("timezone");
        assert_eq!(role(&p), RoleChoice::Primary);
        assert_eq!(p.fingerprint(), at_login);
        p.note_set("work_mem", "SET work_mem = '1GB'");
        p.reset_all();
        assert_eq!(p.fingerprint(), at_login);
        assert_eq!(p.replay().count(), 1);
    }

    #[test]
    fn late_connections_see_the_state_before_the_transaction() {
        let mut p = Params::new(Values::default());
        p.begin();
        p.note_set("timezone", "SET timezone = 'CET'");
        assert_eq!(p.replay().count(), 0);
        assert_eq!(p.fingerprint(), 0);
        p.commit();
        assert_eq!(p.replay().collect::<Vec<_>>(), ["SET timezone = 'CET'"]);
        assert_ne!(p.fingerprint(), 0);
    }

    #[test]
    fn the_search_path_goes_back_as_any_other_parameter() {
        let path = |p: &Params| p.search_path().join(",");
        let to = |name: &str| Some(vec![name.to_owned()]);
        let mut p = Params::new(Values::default());
        p.set_default_search_path(vec!["login".to_owned()]);
        p.begin();
        p.note_search_path(to("a"), Scope::Local);
        assert_eq!(path(&p), "a");
        p.commit();
        assert_eq!(path(&p), "login");
        p.begin();
        p.note_search_path(to("b"), Scope::Session);
        p.rollback();
        assert_eq!(path(&p), "login");
        p.note_search_path(to("c"), Scope::Session);
        assert_eq!(path(&p), "c");
        p.note_search_path(None, Scope::Session);
        assert_eq!(path(&p), "login");
        p.note_search_path(to("d"), Scope::Local);
        assert_eq!(path(&p), "login", "no transaction, no effect");
    }

    #[test]
    fn literals_survive_quotes_and_backslashes() {
        assert_eq!(literal("o'x"), "'o''x'");
        assert_eq!(literal(r"a\'b"), r"E'a\\''b'");
    }
}
