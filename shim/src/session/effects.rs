//! What a statement that ran changes about the session, its connection and what is shown of it.

use std::ops::Range;

use pgdog_core::ids::ShardNumber;
use pgdog_core::lsn::{Lsn, Token};

use super::batch::Portal;
use super::client::Gone;
use super::dispatch::Flow;
use super::keep::{Setting, settings};
use super::last_route::LastRoute;
use super::param_values::{Class, classify};
use super::params::{Scope, quoted, set_config_in};
use super::party::{Participant, Place};
use super::pin::{CODE, MAYBE};
use super::script::Script;
use super::steps::{Asked, Input};
use super::words::{Stateful, stateful};
use super::{Session, replay};
use crate::observe::Counted;
use crate::plan::{Kind, Statement};
use crate::proto::{ErrorFields, backend};
use crate::route::Route;
use crate::server::{Applied, Lease};

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
            let reports = self.params.own().report_commit_lsn;
            self.note_commits(&[(participant.shard, lsn)], reports);
        }
    }

    /// What is committed must be seen by this session, also where the client is told of an error.
    pub(super) fn raise_own_floor(&mut self, commits: &[(ShardNumber, Lsn)]) {
        for (shard, lsn) in commits {
            let position = self.commit_position(*shard, *lsn);
            self.own_floor.raise(*shard, position);
        }
    }

    /// Notes positions of commits, raises the own floor and pushes the token if that is wanted.
    pub(super) fn note_commits(&mut self, commits: &[(ShardNumber, Lsn)], reports: bool) {
        if commits.is_empty() {
            return;
        }
        let mut token = Token::default();
        for (shard, lsn) in commits {
            token
                .parts
                .insert(*shard, self.commit_position(*shard, *lsn));
        }
        self.raise_own_floor(commits);
        if let ([(shard, lsn)], 1) = (commits, self.cluster.topology().shards.len()) {
            token = Token {
                bare: Some(self.commit_position(*shard, *lsn)),
                ..Token::default()
            };
        }
        if reports {
            self.client.put_before_completion(|out| {
                backend::parameter_status("pgdog.commit_lsn", &token.to_string(), out);
            });
        }
        self.commit_token = token;
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
            if is_stale_plan(fields) {
                self.spoil(asked, &mut participant.lease);
            }
            return;
        }
        let Some(statement) = asked.statement().filter(|_| asked.executes()) else {
            return;
        };
        let lease = &mut participant.lease;
        match &statement.kind {
            Kind::Set { local, .. } => {
                let scope = if *local { Scope::Local } else { Scope::Session };
                self.note_set(&statement.kind, asked.sql(), scope, lease);
                self.tx.note_command(asked.sql());
            }
            Kind::Reset(Some(name)) => {
                self.params.note_reset(name);
                self.params.note_path(name, None, Scope::Session);
                self.tx.note_command(asked.sql());
                self.note_applied(lease, Some(name));
            }
            Kind::Reset(None) => {
                self.params.reset_all();
                self.tx.note_command(asked.sql());
                // The others are told, too.
                self.tx.note_reset_all();
                for Participant { lease, .. } in self.participants.values_mut() {
                    lease.epoch = None;
                }
                lease.epoch = None;
                self.note_applied(lease, None);
            }
            Kind::Discard { all: true } => {
                self.forget_everything();
                lease.forget_prepared();
                if self.names.own {
                    lease.keep_all_prepared();
                }
                lease.epoch = None;
                lease.applied = Applied::default();
                if let Some((shard, CODE)) = self.pin {
                    self.set_pin(Some((shard, MAYBE)));
                }
                self.touched = true;
            }
            Kind::Discard { all: false } => self.touched = true,
            Kind::Session => {
                self.touched |= self.pin.is_some();
                self.note_state(statement, asked.sql(), participant.shard);
            }
            Kind::Ddl { .. } | Kind::Placement => {
                self.touched |= !self.temporary.is_empty();
                self.reshaped = true;
            }
            _ => {}
        }
        let place = participant.place;
        self.note_code(asked, statement, (place, &mut participant.lease));
        if self.reshaped && !self.tx.is_open() {
            self.reshaped = false;
        }
    }

    /// A SET that went through.
    fn note_set(&mut self, kind: &Kind, sql: &str, scope: Scope, lease: &mut Lease) {
        let Kind::Set {
            name,
            value,
            as_select,
            ..
        } = kind
        else {
            return;
        };
        if name == "seed" {
            // Its connection is kept; anywhere else it would begin anew.
            return;
        }
        if *as_select && !self.tx.is_open() {
            // Known from the text.
            lease.forget_left();
        }
        let to_default = value.is_none() && !as_select;
        match scope {
            Scope::Local => self.params.note_local(name, sql),
            Scope::Session if to_default => self.params.note_reset(name),
            Scope::Session => self.params.note_set(name, sql),
        }
        self.params.note_path(name, value.as_deref(), scope);
        if scope == Scope::Session {
            self.note_applied(lease, to_default.then_some(name.as_str()));
        }
    }

    /// Outside of a transaction: the connection has the session's settings now, but for defaults
    /// that the client brought and a RESET on the server does not know.
    fn note_applied(&self, lease: &mut Lease, reset: Option<&str>) {
        if self.tx.is_open() {
            return;
        }
        let unknown = lease.applied.unknown;
        lease.applied = Applied {
            fingerprint: self.params.fingerprint(),
            commands: self.params.wanted().clone(),
            unknown,
        };
        let brought = match reset {
            Some(name) => self.params.default_of(name).is_some(),
            None => false,
        };
        if brought {
            // Something else than what is wanted, so that it is brought back.
            let commands = std::sync::Arc::make_mut(&mut lease.applied.commands);
            commands.remove(reset.unwrap_or_default());
            lease.applied.fingerprint = u64::MAX;
        }
    }

    /// What functions may have left.
    fn note_code(
        &mut self,
        asked: &Asked<'_>,
        statement: &Statement,
        (place, lease): (Place, &mut Lease),
    ) {
        let executed = self.executed(asked);
        let inner = executed.as_deref().and_then(|held| held.plan());
        let runs = inner
            .and_then(|plan| plan.statements.first())
            .unwrap_or(statement);
        for setting in settings(runs, asked.params()) {
            self.note_setting(&setting, lease);
        }
        self.touched |= runs.functions.advisory.is_some() && self.pin.is_some();
        let objects = lease
            .left()
            .is_some_and(|left| left.objects || left.lasts());
        if objects && place == Place::Replica {
            self.services.keepers.note(runs);
        }
    }

    /// What statements have set on one server of the transaction holds for all: those that join
    /// later get it with their BEGIN, those that are there get it now.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn spread_settings(
        &mut self,
        input: &Input<'_>,
        range: Range<usize>,
        ran_on: ShardNumber,
    ) -> Result<Flow, Gone> {
        let others = self.participants.keys().filter(|shard| **shard != ran_on);
        let others: Vec<_> = others.copied().collect();
        let next = Flow::Next(range.end);
        if others.is_empty() {
            return Ok(next);
        }
        let commands: Vec<_> = range.flat_map(|at| self.sets(&input.at(at))).collect();
        if commands.is_empty() {
            return Ok(next);
        }
        for (_, told) in self.tell(&others, &commands.join("\n;\n")).await {
            if let Err(fields) = told {
                self.fail_with(&fields).await;
                return Ok(Flow::Failed { parsed: usize::MAX });
            }
        }
        Ok(next)
    }

    /// The commands that set what a statement has set on the server that ran it.
    fn sets(&self, asked: &Asked<'_>) -> Vec<String> {
        let Some(statement) = asked.statement().filter(|_| asked.executes()) else {
            return Vec::new();
        };
        if matches!(statement.kind, Kind::Set { .. } | Kind::Reset(_)) {
            return vec![asked.sql().to_owned()];
        }
        let executed = self.executed(asked);
        let inner = executed.as_deref().and_then(|held| held.plan());
        let runs = inner
            .and_then(|plan| plan.statements.first())
            .unwrap_or(statement);
        let settings = settings(runs, asked.params()).into_iter();
        let forwarded = settings.filter(|set| !matches!(classify(&set.name), Class::Own(_)));
        forwarded.map(|set| command_of(&set)).collect()
    }

    /// A `set_config` that went through.
    pub(super) fn note_setting(&mut self, setting: &Setting, lease: &mut Lease) {
        let Setting { name, value, scope } = setting;
        if let Class::Own(own) = classify(name) {
            // The server has its own parameter of that name, which means nothing.
            lease.applied.unknown = true;
            if let Err(fault) = self.params.set(own, value.as_deref(), *scope) {
                tracing::debug!(%fault, "a parameter that was checked before is not taken");
            }
            return;
        }
        let command = command_of(setting);
        match (scope, value) {
            (Scope::Local, _) => self.params.note_local(name, &command),
            (Scope::Session, Some(_)) => self.params.note_set(name, &command),
            (Scope::Session, None) => self.params.note_reset(name),
        }
        self.params.note_path(name, value.as_deref(), *scope);
        self.tx.note_command(&command);
        if *scope == Scope::Session {
            self.note_applied(lease, value.is_none().then_some(name.as_str()));
        }
    }

    /// A statement on this connection does not fit its tables any more: whoever uses it next
    /// prepares it anew.
    fn spoil(&self, asked: &Asked<'_>, lease: &mut Lease) {
        let executed = self.executed(asked);
        let subject = match asked {
            Asked::Simple { .. } => None,
            Asked::Extended(step) => step.subject.as_deref(),
        };
        for prepared in subject.into_iter().chain(executed.as_deref()) {
            lease.spoil_prepared(&prepared.server_name);
        }
    }

    /// After a RESET inside a transaction: a server goes back to its own default, the client is to
    /// have the one that it brought. Outside of one, the next loan sees to that.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn bring_defaults_back(
        &mut self,
        asked: &Asked<'_>,
        flow: Flow,
    ) -> Result<Flow, Gone> {
        let kind = asked.statement().map(|statement| &statement.kind);
        let commands: Vec<String> = match kind {
            Some(
                Kind::Reset(Some(name))
                | Kind::Set {
                    name, value: None, ..
                },
            ) => self
                .params
                .default_of(name)
                .map(str::to_owned)
                .into_iter()
                .collect(),
            Some(Kind::Reset(None)) => replay::whole(self.params.defaults()),
            _ => return Ok(flow),
        };
        if commands.is_empty() || !self.tx.is_open() || !asked.executes() {
            return Ok(flow);
        }
        for command in &commands {
            self.tx.note_command(command);
        }
        match self.tell_all(&commands.join("\n;\n")).await {
            Ok(()) => {
                self.tell_all_news();
                Ok(flow)
            }
            Err(fields) => {
                self.fail_with(&fields).await;
                Ok(Flow::Failed { parsed: usize::MAX })
            }
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
}

/// Does the same as a `set_config`.
fn command_of(setting: &Setting) -> String {
    let Setting { name, value, scope } = setting;
    match value {
        Some(value) => set_config_in(name, value, *scope),
        None => format!("SET {}{} TO DEFAULT", scope.word(), quoted(name)),
    }
}

/// The server found that a prepared statement has other columns than before.
pub(super) fn is_stale_plan(fields: &ErrorFields) -> bool {
    fields.code == "0A000" && fields.message.contains("cached plan")
}
