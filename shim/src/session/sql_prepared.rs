//! PREPARE, EXECUTE, DEALLOCATE and DISCARD of SQL: the same names as those of the protocol.
//!
//! A statement that SQL prepares has a name on the servers as any other one, and is prepared by SQL
//! on whatever connection is to run it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use pgdog_core::fault::Fault;

use super::Session;
use super::batch::Message;
use super::client::Gone;
use super::dispatch::Flow;
use super::faults;
use super::forward::{self, Progress, Sink, Trouble};
use super::local::Local;
use super::party::{Participant, Place};
use super::prepared::Held;
use super::script::{Item, Script};
use super::steps::{Asked, Input};
use super::words::{Stateful, stateful};
use crate::plan::{self, Statement, behind_prepared_name, rename_prepared};
use crate::proto::frontend::{self, Subject};
use crate::proto::{ErrorFields, TxStatus};
use crate::server::Lease;

impl Session<'_> {
    /// Names what the meaning of a text hangs on at the moment.
    pub(super) fn meaning(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.cluster.name(), &self.login.user).hash(&mut hasher);
        self.params.hash_meaning(&mut hasher);
        self.client.foreign_encoding().hash(&mut hasher);
        hasher.finish()
    }

    /// Does what a PREPARE or an EXECUTE of SQL asks for; None if it is neither.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn prepared_by_sql(
        &mut self,
        input: &Input<'_>,
        at: usize,
    ) -> Result<Option<Flow>, Gone> {
        let asked = input.at(at);
        let minded = !self.names.own && asked.executes();
        let Some(statement) = asked.statement().filter(|_| minded) else {
            return Ok(None);
        };
        match &statement.prepared {
            Some(plan::Prepared::Prepare { name, statement }) => {
                let whole = match input {
                    Input::Simple { sql, .. } => sql,
                    Input::Extended { .. } => asked.sql(),
                };
                Ok(Some(
                    self.prepare((&asked, whole), at, (name, statement)).await,
                ))
            }
            Some(plan::Prepared::Execute { name, .. }) => match self.executed(&asked) {
                None => {
                    let unknown = faults::unknown_statement(name);
                    self.fail_with(&unknown).await;
                    Ok(Some(Flow::Failed { parsed: 0 }))
                }
                Some(held) => self.execute(input, at, &held).await,
            },
            Some(plan::Prepared::Deallocate(_)) | None => Ok(None),
        }
    }

    async fn prepare(
        &mut self,
        (asked, whole): (&Asked<'_>, &str),
        at: usize,
        (name, statement): (&str, &Statement),
    ) -> Flow {
        Local::default().write_head(asked, &mut self.client.out);
        if self.names.statements.contains_key(name) {
            let duplicate = faults::duplicate_statement(name);
            self.fail_with(&duplicate).await;
            return Flow::Failed { parsed: usize::MAX };
        }
        let tail = behind_prepared_name(asked.sql()).unwrap_or_default();
        let registry = &self.services.prepared;
        let prepared = registry.prepare_by_sql(tail, statement, self.meaning());
        let held = Held::now(prepared);
        if let Err(fault) = self.prepare_somewhere(&held).await {
            let mut fields = ErrorFields::from(&fault);
            let sent = length(&prepare_text(&held.server_name, ""));
            fields.move_position(place_in(whole, tail) - sent);
            self.fail_with(&fields).await;
            return Flow::Failed { parsed: usize::MAX };
        }
        self.names.statements.insert(name.to_owned(), held);
        Local::tag("PREPARE").write_tail(asked, &mut self.client.out);
        Flow::Next(at + 1)
    }

    /// On a server of the transaction, which alone sees what that has made; else on the home shard.
    async fn prepare_somewhere(&mut self, held: &Held) -> Result<(), Fault> {
        let keeper = self.keeper()?;
        let first = self.participants.keys().next().copied();
        let joined = match self.participants.contains_key(&keeper) {
            true => Some(keeper),
            false => first,
        };
        if let Some(participant) = joined.and_then(|shard| self.participants.get_mut(&shard)) {
            return ensure(&mut participant.lease, held).await;
        }
        let topology = self.cluster.topology();
        let nodes = topology.shards.get(usize::from(keeper.0));
        let nodes = nodes.ok_or(Fault::NoNode {
            shard: keeper,
            role: "primary",
        })?;
        let address = nodes.primary.clone();
        let mut lent = self.lend(keeper, &address, Place::Primary).await?;
        let ensured = ensure(&mut lent.lease, held).await;
        match lent.lease.is_broken() || lent.lease.tx_status() != TxStatus::Idle {
            true => self.throw_away(lent),
            false => self.give_back(lent),
        }
        ensured
    }

    /// In a simple query the text names the statement; in a batch it was put right already.
    async fn execute(
        &mut self,
        input: &Input<'_>,
        at: usize,
        held: &Held,
    ) -> Result<Option<Flow>, Gone> {
        let Asked::Simple { sql, statement } = input.at(at) else {
            return Ok(None);
        };
        let (Some(text), Some(statement)) = (rename_prepared(sql, &held.server_name), statement)
        else {
            return Ok(None);
        };
        if input.len() > 1 {
            self.begin_implicit();
        }
        let further = match input {
            Input::Simple { sql: whole, .. } if stateful(sql) == Stateful::Execute => {
                place_in(whole, sql) + length(sql) - length(&text)
            }
            Input::Simple { .. } | Input::Extended { .. } => 0,
        };
        let renamed = [Statement {
            span: 0..text.len(),
            ..statement.clone()
        }];
        let input = Input::Simple {
            sql: &text,
            statements: &renamed,
            further,
        };
        let flow = self.routed(&input, 0).await?;
        Ok(Some(match flow {
            Flow::Next(_) => Flow::Next(at + 1),
            other @ (Flow::Again(_) | Flow::Failed { .. }) => other,
        }))
    }

    /// The statement that an EXECUTE runs.
    pub(super) fn executed(&self, asked: &Asked<'_>) -> Option<Held> {
        if let Asked::Extended(step) = asked {
            return step.subject.as_ref()?.executes.clone();
        }
        self.names.executed_by(asked.statement()?).cloned()
    }

    /// Statements that must be on a connection before these steps are sent to it.
    pub(super) fn needed_by_all(&self, input: &Input<'_>, range: Range<usize>) -> Vec<Held> {
        range
            .flat_map(|index| self.needed_by(&input.at(index)))
            .collect()
    }

    fn needed_by(&self, asked: &Asked<'_>) -> Vec<Held> {
        let mut needed: Vec<_> = self.executed(asked).into_iter().collect();
        if let Asked::Extended(step) = asked {
            let used = step.messages.iter().filter_map(|message| match message {
                Message::Bind { prepared, .. } | Message::DescribeStatement { prepared, .. } => {
                    Some(prepared)
                }
                Message::Parse { .. }
                | Message::DescribePortal { .. }
                | Message::Execute { .. }
                | Message::CloseStatement
                | Message::CloseOwn { .. }
                | Message::ClosePortal { .. } => None,
            });
            needed.extend(used.filter(|held| held.by_sql.is_some()).cloned());
        }
        needed
    }

    /// Makes sure that a connection has what the next steps need.
    ///
    /// # Errors
    /// The server does not take one of the statements, or is lost.
    pub(super) async fn ensure_needed(
        &mut self,
        participant: &mut Participant,
    ) -> Result<(), Fault> {
        for held in &self.needed {
            ensure(&mut participant.lease, held).await?;
        }
        Ok(())
    }

    /// Forgets names of statements; the servers keep theirs for others.
    ///
    /// # Errors
    /// There is no statement of that name.
    pub(super) fn deallocate(&mut self, name: Option<&str>) -> Result<Local, Fault> {
        let Some(name) = name else {
            self.names.deallocate_all();
            return Ok(Local::tag("DEALLOCATE ALL"));
        };
        match self.names.statements.remove(name) {
            Some(_) => Ok(Local::tag("DEALLOCATE")),
            None => Err(faults::fault(
                "26000",
                format!("prepared statement \"{name}\" does not exist"),
            )),
        }
    }

    /// DISCARD ALL of a client that keeps nothing on a server.
    ///
    /// # Errors
    /// No server can be had that tells of the settings.
    pub(super) async fn discard_all(&mut self) -> Result<Local, Fault> {
        if self.tx.is_open() {
            return Err(faults::fault(
                "25001",
                "DISCARD ALL cannot run inside a transaction block",
            ));
        }
        let before = self.params.fingerprint();
        self.forget_everything();
        if self.params.fingerprint() != before {
            // Some server knows what the settings are now, and the client must hear of them.
            let topology = self.cluster.topology();
            let home = self.home(&topology)?;
            let address = topology.shards[usize::from(home.0)].primary.clone();
            let lent = self.lend(home, &address, Place::Primary).await?;
            self.give_back(lent);
        }
        Ok(Local::tag("DISCARD ALL"))
    }

    /// What DISCARD ALL does to names and settings.
    pub(super) fn forget_everything(&mut self) {
        self.params.discard_all();
        self.names.deallocate_all();
        self.names.portals.clear();
        self.temporary.clear();
    }
}

/// Prepares a statement on a connection that lacks it, or has it from before its client did.
async fn ensure(lease: &mut Lease, held: &Held) -> Result<(), Fault> {
    let name = held.server_name.as_str();
    let known = lease.prepared_at(name);
    if known.is_some_and(|known| known > held.since) || name.is_empty() {
        return Ok(());
    }
    match &held.by_sql {
        Some(tail) => ensure_by_sql(lease, name, tail).await,
        None => ensure_by_protocol(lease, held).await,
    }
}

async fn ensure_by_sql(lease: &mut Lease, name: &str, tail: &Arc<str>) -> Result<(), Fault> {
    if lease.prepared_at(name).is_some() {
        let done = forward::command(lease, &format!("DEALLOCATE {name}")).await?;
        lease.forget_one_prepared(name);
        refused(lease, done.error)?;
    }
    let done = forward::command(lease, &prepare_text(name, tail)).await?;
    refused(lease, done.error)?;
    lease.note_prepared(name, tail.len());
    Ok(())
}

fn prepare_text(name: &str, tail: &str) -> String {
    format!("PREPARE {name} {tail}")
}

/// How many characters stand before a part of a text.
fn place_in(whole: &str, part: &str) -> isize {
    let at = part.as_ptr().addr().checked_sub(whole.as_ptr().addr());
    at.and_then(|at| whole.get(..at)).map_or(0, length)
}

fn length(text: &str) -> isize {
    text.chars().count().cast_signed()
}

async fn ensure_by_protocol(lease: &mut Lease, held: &Held) -> Result<(), Fault> {
    let mut out = bytes::BytesMut::new();
    let mut script = Script::default();
    if lease.prepared_at(&held.server_name).is_some() {
        frontend::close(Subject::Statement(&held.server_name), &mut out);
        script.push(Item::Close { shown: false });
    }
    frontend::parse(&held.server_name, &held.sql, &held.types, &mut out);
    script.push(Item::Parse { shown: false });
    frontend::sync(&mut out);
    script.push(Item::Sync);
    lease.send(&out).await?;
    match forward::drive(lease, &mut script, &mut Sink::Nowhere).await {
        Ok(Progress::Done | Progress::CopyIn) => refused(lease, script.error),
        Err(Trouble::Lost(fault)) => Err(fault),
        Err(Trouble::Gone(_)) => unreachable!("no client is part of this"),
    }
}

fn refused(lease: &Lease, error: Option<ErrorFields>) -> Result<(), Fault> {
    match error {
        None => Ok(()),
        Some(fields) => Err(faults::from_node(&lease.endpoint().to_string(), &fields)),
    }
}
