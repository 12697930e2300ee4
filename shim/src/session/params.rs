//! A session's parameters with the meaning that PostgreSQL gives to its own: SET, SET LOCAL, RESET,
//! RESET ALL, and going back with the transaction or to a savepoint. Pure.
//!
//! Two kinds live here side by side: `pgdog.*`, which the shim interprets, and ordinary ones, of
//! which it remembers the command that set them, to be replayed on the server connection that
//! happens to be lent.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pgdog_core::fault::Fault;

use super::faults;
use super::param_values::{Class, Name, Rejected, Values, classify};
use super::replay::Commands;
use super::search_path::SearchPath;
use super::tx::identifier;

/// How long an assignment lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Past the end of the transaction, if that commits.
    Session,
    /// Until the end of the transaction.
    Local,
}

/// All parameters at one moment. Cloning is cheap: a copy is made on the first write only.
#[derive(Debug, Clone, PartialEq)]
struct Set {
    own: Arc<Values>,
    /// Ordinary parameters.
    ordinary: Arc<Commands>,
    path: Arc<SearchPath>,
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

/// A role that holds until the end of the open transaction only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRole {
    /// Makes it the session's role.
    pub take: String,
    /// Brings back the role that the session has after the transaction.
    pub give_back: String,
}

impl Scope {
    /// As in SET.
    pub fn word(self) -> &'static str {
        match self {
            Scope::Session => "",
            Scope::Local => "LOCAL ",
        }
    }
}

impl Params {
    /// A session's parameters at login, before start-up options.
    pub fn new(own: Values, login: &str) -> Self {
        let set = Set {
            own: Arc::new(own),
            ordinary: Arc::default(),
            path: Arc::new(SearchPath::of(login)),
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

    /// At login: a parameter has this value by itself, which may be where names are looked for.
    pub fn set_default_path(&mut self, name: &str, value: &str) {
        if !SearchPath::follows(name) {
            return;
        }
        let mut path = (*self.defaults.path).clone();
        path.assign(name, Some(value), &self.defaults.path);
        let path = Arc::new(path);
        for set in [
            &mut self.defaults,
            &mut self.effective,
            &mut self.after_commit,
        ] {
            set.path = path.clone();
        }
    }

    /// Remembers where names are looked for now that a server accepted a parameter; None: the
    /// default.
    pub fn note_path(&mut self, name: &str, value: Option<&str>, scope: Scope) {
        if !SearchPath::follows(name) {
            return;
        }
        let default = &self.defaults.path;
        if scope == Scope::Session {
            Arc::make_mut(&mut self.after_commit.path).assign(name, value, default);
        }
        if scope == Scope::Session || self.begin.is_some() {
            Arc::make_mut(&mut self.effective.path).assign(name, value, default);
        }
    }

    /// Schemas in which unqualified names are looked for.
    pub fn search_path(&self) -> &[String] {
        self.effective.path.schemas()
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

    /// Whether [`Params::set`] would take it.
    ///
    /// # Errors
    /// As [`Params::set`].
    pub fn check(&self, name: Name, value: Option<&str>) -> Result<(), Fault> {
        let mut probe = (*self.effective.own).clone();
        let assigned = probe.assign(name, value.unwrap_or_default());
        match value {
            Some(text) => assigned.map_err(|why| fault(name, text, why)),
            None => Ok(()),
        }
    }

    /// Remembers that a server accepted `command`, which sets an ordinary session parameter.
    pub fn note_set(&mut self, name: &str, command: &str) {
        for set in [&mut self.effective, &mut self.after_commit] {
            let ordinary = Arc::make_mut(&mut set.ordinary);
            if name == "session_authorization" {
                // It takes the role away.
                ordinary.remove("role");
            }
            ordinary.insert(name.to_owned(), command.to_owned());
        }
        self.note_change();
    }

    /// Remembers that a server reset an ordinary parameter.
    pub fn note_reset(&mut self, name: &str) {
        for set in [&mut self.effective, &mut self.after_commit] {
            let ordinary = Arc::make_mut(&mut set.ordinary);
            if name == "session_authorization" {
                ordinary.remove("role");
            }
            match self.defaults.ordinary.get(name) {
                Some(command) => ordinary.insert(name.to_owned(), command.clone()),
                None => ordinary.remove(name),
            };
        }
        self.note_change();
    }

    /// RESET ALL, which leaves the user as it is.
    pub fn reset_all(&mut self) {
        for set in [&mut self.effective, &mut self.after_commit] {
            let mut reset = self.defaults.clone();
            for name in ["role", "session_authorization"] {
                let ordinary = Arc::make_mut(&mut reset.ordinary);
                match set.ordinary.get(name) {
                    Some(command) => ordinary.insert(name.to_owned(), command.clone()),
                    None => ordinary.remove(name),
                };
            }
            let path = Arc::make_mut(&mut set.path);
            path.assign("search_path", None, &self.defaults.path);
            reset.path = set.path.clone();
            *set = reset;
        }
        self.note_change();
    }

    /// DISCARD ALL.
    pub fn discard_all(&mut self) {
        self.effective = self.defaults.clone();
        self.after_commit = self.defaults.clone();
        self.note_change();
    }

    /// Remembers that a server accepted `command`, which sets an ordinary parameter for the rest
    /// of the transaction.
    pub fn note_local(&mut self, name: &str, command: &str) {
        if self.begin.is_some() {
            let effective = Arc::make_mut(&mut self.effective.ordinary);
            effective.insert(name.to_owned(), command.to_owned());
        }
    }

    /// The settings that a server connection must have before the open transaction joins it, or
    /// outside of any, with the command that makes each.
    pub fn wanted(&self) -> &Arc<Commands> {
        let committed = self
            .begin
            .as_ref()
            .map_or(&self.after_commit, |mark| &mark.after_commit);
        &committed.ordinary
    }

    /// The command behind a default that the client brought; RESET on a server does not know it.
    pub fn default_of(&self, name: &str) -> Option<&str> {
        self.defaults.ordinary.get(name).map(String::as_str)
    }

    /// All commands behind defaults that the client brought.
    pub fn defaults(&self) -> &Arc<Commands> {
        &self.defaults.ordinary
    }

    /// Tells apart settings under which the same text may mean something else.
    pub fn hash_meaning(&self, hasher: &mut impl Hasher) {
        for name in ["search_path", "role", "session_authorization"] {
            self.effective.ordinary.get(name).hash(hasher);
        }
    }

    /// Equal for equal [`Params::wanted`]; 0 when nothing is wanted.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether the open transaction has set ordinary parameters beyond its end, should it commit.
    pub fn have_changed(&self) -> bool {
        let before = self.begin.as_ref().map(|mark| &mark.after_commit.ordinary);
        before.is_some_and(|before| *before != self.after_commit.ordinary)
    }

    /// The role that the end of the open transaction ends, if there is one.
    pub fn local_role(&self) -> Option<LocalRole> {
        let (now, then) = (self.effective.path.role(), self.after_commit.path.role());
        let back = self.after_commit.ordinary.get("role");
        (now != then).then(|| LocalRole {
            take: set_config("role", now.unwrap_or("none")),
            give_back: back.cloned().unwrap_or_else(|| "RESET ROLE".to_owned()),
        })
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
    set_config_in(name, value, Scope::Session)
}

/// As [`set_config`], for as long as is wanted.
pub fn set_config_in(name: &str, value: &str, scope: Scope) -> String {
    format!(
        "SELECT pg_catalog.set_config({}, {}, {})",
        literal(name),
        literal(value),
        scope == Scope::Local
    )
}

/// The name of a parameter in quotes.
pub fn quoted(name: &str) -> String {
    let parts: Vec<_> = name.split('.').map(identifier).collect();
    parts.join(".")
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
    }
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
