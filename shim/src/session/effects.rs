//! What a statement that ran changes about the session, its connection and what is shown of it.

use pgdog_core::ids::ShardNumber;

use super::Session;
use super::batch::Portal;
use super::last_route::LastRoute;
use super::params::Scope;
use super::party::{Participant, Place};
use super::script::Script;
use super::steps::Asked;
use super::words::{Stateful, runs_code, stateful};
use crate::observe::Counted;
use crate::plan::{Kind, Statement};
use crate::route::Route;
use crate::server::Lease;

impl Session<'_> {
    /// Remembers for `SHOW pgdog.last_route`.
    pub(super) fn note_route(&mut self, participant: &Participant, route: &Route, waited_ms: u64) {
        self.last_route = LastRoute::Node {
            address: participant.address.clone(),
            place: participant.place,
            shard: participant.shard,
            reason: route.reason.clone(),
            waited_ms,
        };
        self.seen.count(
            match participant.place {
                Place::Primary => Counted::Primary,
                Place::Replica => Counted::Replica,
            },
            1,
        );
    }

    /// Notes the commit of a statement that was a transaction by itself.
    pub(super) fn note_commit_of(&mut self, participant: &Participant) {
        if let Some(lsn) = participant.lease.commit_lsn() {
            self.note_commits(&[(participant.shard, lsn)]);
        }
    }

    /// Remembers where a portal was opened.
    pub(super) fn note_portal(&mut self, asked: Asked<'_>, shard: ShardNumber) {
        if let Asked::Extended(step) = asked
            && let Some(bind) = step.bind
            && let Some(portal) = self.names.portals.get_mut(bind.portal)
        {
            portal.shard = Some(shard);
        }
    }

    /// What a statement that went through changes about session and connection.
    pub(super) fn note_effects(
        &mut self,
        asked: &Asked<'_>,
        participant: &mut Participant,
        script: &Script,
    ) {
        if let Some(fields) = &script.error {
            if fields.code == "0A000" && fields.message.contains("cached plan") {
                // The shared statement is of an older shape of the table: prepare it anew.
                participant.lease.mark_dirty();
            }
            return;
        }
        let Some(statement) = asked.statement().filter(|_| asked.executes()) else {
            return;
        };
        let lease = &mut participant.lease;
        match &statement.kind {
            Kind::Set {
                name,
                local: false,
                value,
                as_select,
            } => {
                match (value, as_select) {
                    (None, false) => self.params.note_reset(name),
                    (Some(_), _) | (None, true) => self.params.note_set(name, asked.sql()),
                }
                self.tx.note_command(asked.sql());
                self.note_search_path(name, value.as_deref(), Scope::Session);
                if !self.tx.is_open() {
                    lease.settings = self.params.fingerprint();
                }
            }
            Kind::Set {
                name,
                local: true,
                value,
                ..
            } => {
                self.tx.note_command(asked.sql());
                self.note_search_path(name, value.as_deref(), Scope::Local);
            }
            Kind::Reset(Some(name)) => {
                self.params.note_reset(name);
                self.note_search_path(name, None, Scope::Session);
                self.tx.note_command(asked.sql());
                lease.settings = match self.tx.is_open() {
                    true => lease.settings,
                    false => u64::MAX,
                };
            }
            Kind::Reset(None) | Kind::Discard { all: true } => {
                self.params.reset_all();
                self.tx.note_command(asked.sql());
                lease.epoch = None;
                lease.settings = u64::MAX;
                if matches!(statement.kind, Kind::Discard { .. }) {
                    lease.forget_prepared();
                    self.names.statements.clear();
                    self.temporary.clear();
                    self.pin = None;
                    self.seen.set_pinned("");
                }
            }
            Kind::Session => self.note_state(statement, asked.sql(), participant.shard),
            Kind::Ddl { .. } | Kind::Placement => self.reshaped = true,
            _ => note_code(statement, asked.sql(), lease),
        }
        if self.reshaped && !self.tx.is_open() {
            self.reshaped = false;
        }
    }

    fn note_state(&mut self, statement: &Statement, sql: &str, shard: ShardNumber) {
        match stateful(sql) {
            Stateful::Keep("temporary table") => {
                self.temporary.extend(statement.temporary.clone());
            }
            Stateful::Declare { name, .. } => {
                let cursor = Portal {
                    prepared: None,
                    shard: Some(shard),
                };
                self.names.portals.insert(name, cursor);
            }
            Stateful::Keep(_) | Stateful::Cursor(_) | Stateful::Execute | Stateful::Nothing => {}
        }
    }

    /// Remembers the schemas of `search_path`, if it is that.
    fn note_search_path(&mut self, name: &str, value: Option<&str>, scope: Scope) {
        if name == "search_path" {
            let schemas = value.map(|value| schemas(value, &self.login.user));
            self.params.note_search_path(schemas, scope);
        }
    }

    /// Remembers the `search_path` that a session begins with.
    pub(super) fn default_search_path(&mut self, value: &str) {
        let schemas = schemas(value, &self.login.user);
        self.params.set_default_search_path(schemas);
    }
}

/// Marks a connection on which code ran that may have set or left anything.
fn note_code(statement: &Statement, sql: &str, lease: &mut Lease) {
    if sets_unknown(statement) {
        lease.settings = u64::MAX;
    }
    if runs_code(sql) {
        lease.mark_dirty();
    }
}

/// Whether it sets parameters of which only the server knows.
fn sets_unknown(statement: &Statement) -> bool {
    let mut relations = statement.relations.iter();
    statement.functions.sets || relations.any(|r| r.written && r.name == "pg_settings")
}

/// Schemas in a `search_path` value.
fn schemas(value: &str, user: &str) -> Vec<String> {
    let parts = value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            match part
                .strip_prefix('"')
                .and_then(|inner| inner.strip_suffix('"'))
            {
                Some("$user") => user.to_owned(),
                Some(quoted) => quoted.replace("\"\"", "\""),
                None if part == "$user" => user.to_owned(),
                None => part.to_ascii_lowercase(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_path_is_read_with_its_quotes() {
        let read = schemas("\"$user\", Public,\"My Schema\"", "anna");
        assert_eq!(read, ["anna", "public", "My Schema"]);
        assert!(schemas("", "anna").is_empty());
    }
}
