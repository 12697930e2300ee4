//! Server connections on loan, and those that take part in a transaction.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::client::Client;
use super::forward;
use super::pin::MAYBE;
use super::running::Running;
use super::sequences::CLEAR;
use super::settings::Keep;
use super::tx::Block;
use super::{Session, faults, replay};
use crate::nodes::{Address, Topology};
use crate::observe::{ClientState, Counted};
use crate::proto::TxStatus;
use crate::server::{Ahead, Applied, Claim, Endpoint, Lease, Pool, ServerError};

/// Primary or replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It takes writes.
    Primary,
    /// It follows.
    Replica,
}

impl Place {
    /// As `SHOW pgdog.last_route` prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Place::Primary => "primary",
            Place::Replica => "replica",
        }
    }
}

/// A server connection that works for this client.
#[derive(Debug)]
pub struct Participant {
    /// The connection.
    pub lease: Lease,
    /// The shard it belongs to.
    pub shard: ShardNumber,
    /// The node it leads to.
    pub address: Arc<Address>,
    /// What that node is.
    pub place: Place,
    /// BEGIN was sent.
    pub begun: bool,
    /// It holds the gate of omni writes.
    pub entered: bool,
    /// It has written omnisharded tables.
    pub wrote_omni: bool,
    /// Something was, or may have been, written.
    pub wrote: bool,
}

/// Statement that fails whatever the state: it makes a transaction count as failed on a server
/// too, so that nothing of it can be committed there. Its text explains itself in the log.
const POISON: &str = "ROLLBACK TO SAVEPOINT \"transaction aborted by pgdog\"";

/// Why a connection is kept under `pooler_mode = "session"`.
pub const SESSION_MODE: &str = "session mode";

/// What cancels the statement of a client that is not there any more.
const LEFT: &str = "the end of the client's connection";

/// How long a rollback may take before the connection is given up.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(30);

impl Session<'_> {
    /// Borrows a connection to a node and brings it to this session's settings.
    pub(super) async fn lend(
        &mut self,
        shard: ShardNumber,
        address: &Address,
        place: Place,
    ) -> Result<Participant, Fault> {
        if !self.held_back.is_empty() {
            self.look_at_left().await;
        }
        if place == Place::Primary
            && let Some(mut pinned) = self.pinned.take_if(|pinned| pinned.shard == shard)
        {
            pinned.lease.forget_commit_lsn();
            self.client
                .know_server(pinned.lease.pid(), self.cancel_key.pid);
            let token = pinned.lease.cancel_token();
            let adapted = match self.running.add(shard, token) {
                Ok(()) => self.adapt_pinned(&mut pinned.lease).await,
                Err(cancelled) => Err(cancelled),
            };
            if let Err(fault) = adapted {
                self.give_back(pinned);
                return Err(fault);
            }
            return Ok(pinned);
        }
        let (address, pool) = self.pool_of(address);
        self.seen.set_state(ClientState::Waiting);
        let limit = self.settings.checkout_timeout;
        let several = self.may_need_more();
        let lent = loop {
            let claim = match several {
                true => Claim::Several {
                    holds: self.running.is_any(),
                    leader: &mut self.leader,
                },
                false => Claim::Alone,
            };
            let turn = pool.checkout_for(claim, limit);
            match unless_cancelled((&self.running, &*self.client), turn).await? {
                Ok(lease) if self.is_of_old_role(&lease) => lease.discard(),
                other => break other,
            }
        };
        self.seen.set_state(ClientState::Active);
        let mut lease = lent?;
        if !lease.waited().is_zero() {
            let waited_us = u64::try_from(lease.waited().as_micros()).unwrap_or(u64::MAX);
            self.seen.count(Counted::WaitTime, waited_us);
        }
        lease.forget_commit_lsn();
        self.client.know_server(lease.pid(), self.cancel_key.pid);
        self.adapt(&mut lease).await?;
        if place == Place::Primary {
            self.meet(shard, &address, &lease).await;
        }
        self.running.add(shard, lease.cancel_token())?;
        Ok(Participant {
            lease,
            shard,
            address,
            place,
            begun: false,
            entered: false,
            wrote_omni: false,
            wrote: false,
        })
    }

    /// The pool of connections to a node.
    pub(super) fn pool_of(&mut self, address: &Address) -> (Arc<Address>, Arc<Pool>) {
        let known = self.pools.iter().find(|(known, _)| **known == *address);
        if let Some(known) = known {
            return known.clone();
        }
        let endpoint = Endpoint {
            host: address.host.clone(),
            port: address.port,
            database: address.database.clone(),
        };
        let pool = self.services.pools.pool(&endpoint, &self.login);
        let made = (Arc::new(address.clone()), pool);
        self.pools.push(made.clone());
        made
    }

    /// Whether another connection may be wanted before the next one is given back.
    fn may_need_more(&self) -> bool {
        let several = self.cluster.topology().shards.len() > 1;
        let keeps = self.tx.is_open() || self.tx.gathers || self.keep == Keep::Session;
        self.running.is_any() || (several && keeps)
    }

    /// Whether a connection began with other settings of the role than this client, and earlier: a
    /// new one would begin with those of now.
    pub(super) fn is_of_old_role(&self, lease: &Lease) -> bool {
        self.role_settings.is_some_and(|(settings, since)| {
            since > lease.opened() && settings != lease.role_settings()
        })
    }

    /// Ends a loan. A pinned connection stays with the client.
    pub(super) fn give_back(&mut self, mut participant: Participant) {
        if participant.place == Place::Primary {
            self.tell_news(&mut participant.lease);
        }
        self.client.put_pushed(&participant.lease.take_pushed());
        let usable = !participant.lease.is_broken() && participant.lease.in_sync();
        if participant.lease.left().is_some() && usable {
            self.held_back.push(participant);
            return;
        }
        if self.keep == Keep::Session && self.pin.is_none() && participant.place == Place::Primary {
            self.set_pin(Some((participant.shard, SESSION_MODE)));
        }
        let pinned_here = self
            .pin
            .is_some_and(|(shard, _)| shard == participant.shard);
        if pinned_here && participant.place == Place::Primary && usable {
            self.values_are_mixed |= participant.begun && !participant.lease.sequences_are_own;
            participant.begun = false;
            participant.entered = false;
            participant.wrote_omni = false;
            participant.wrote = false;
            self.pinned = Some(participant);
            return;
        }
        if self.names.own {
            participant.lease.mark_dirty();
        }
        self.running.remove(&participant.lease.cancel_token());
    }

    /// Ends a loan by closing the connection.
    pub(super) fn throw_away(&mut self, participant: Participant) {
        if let Some((shard, why)) = self.pin
            && (shard, participant.place) == (participant.shard, Place::Primary)
        {
            match why {
                MAYBE => self.set_pin(None),
                _ => self.state_lost = Some(why),
            }
        }
        self.running.remove(&participant.lease.cancel_token());
        participant.lease.discard();
    }

    /// Ends a loan behind something that a server has refused before the client's own statement.
    pub(super) async fn refuse(&mut self, participant: Participant) {
        match self.pin {
            Some((shard, SESSION_MODE)) if shard == participant.shard => {
                self.dismiss(participant).await;
            }
            _ => self.throw_away(participant),
        }
    }

    /// As [`Session::throw_away`], of one that may have done something in the open transaction:
    /// no savepoint can bring that back.
    pub(super) fn lose(&mut self, participant: Participant) {
        self.tx.lose_part();
        self.throw_away(participant);
    }

    /// Brings a connection to the settings of this session, as they were before the transaction.
    ///
    /// # Errors
    /// A server refuses one of the settings.
    pub(super) async fn adapt(&mut self, lease: &mut Lease) -> Result<(), Fault> {
        let wanted = self.params.fingerprint();
        if lease.applied.fingerprint != wanted || lease.applied.unknown {
            let wanted = Applied {
                fingerprint: wanted,
                commands: self.params.wanted().clone(),
                unknown: false,
            };
            change_settings(lease, wanted).await?;
        }
        self.tell_news(lease);
        Ok(())
    }

    /// As [`Session::adapt`], of the connection that is kept for this client: nobody else has had
    /// it, and what code has set there is meant to stay.
    async fn adapt_pinned(&mut self, lease: &mut Lease) -> Result<(), Fault> {
        let unknown = std::mem::take(&mut lease.applied.unknown);
        let adapted = self.adapt(lease).await;
        lease.applied.unknown |= unknown;
        adapted
    }

    /// Tells the client of settings that have changed on a server, and that it does not know of.
    pub(super) fn tell_news(&mut self, lease: &mut Lease) {
        if lease.take_news() {
            for (name, value) in lease.parameters() {
                self.client.tell_setting(name, value);
            }
        }
    }

    /// As [`Session::tell_news`], of all servers of the transaction.
    pub(super) fn tell_all_news(&mut self) {
        let mut participants = std::mem::take(&mut self.participants);
        for participant in participants.values_mut() {
            self.tell_news(&mut participant.lease);
        }
        self.participants = participants;
    }

    /// What must run before the next statement on this connection, in the same write.
    ///
    /// # Errors
    /// A BEGIN that a server may refuse was refused, or the connection is lost.
    pub(super) async fn prepare_ahead(
        &mut self,
        participant: &mut Participant,
        topology: &Topology,
    ) -> Result<Ahead, Fault> {
        let mut ahead = Ahead::new();
        let epoch = topology
            .shards
            .get(usize::from(participant.shard.0))
            .map(|s| s.epoch);
        let fence = epoch.filter(|epoch| epoch.0 > 0).map(|epoch| {
            // Where there is one shard, a read without a key sees all rows: not any more once the
            // cluster has grown, although no key has moved.
            let whole = topology.shards.len() == 1;
            format!("SET pgdog.epoch = '{epoch}'; SET pgdog.fan_out = {whole}")
        });
        if let Some(fence) = &fence
            && !participant.begun
            && participant.lease.epoch != epoch
        {
            ahead.query(fence);
            participant.lease.epoch = epoch;
        }
        if !participant.begun && self.clears_sequences(&participant.lease) {
            ahead.query(CLEAR);
            participant.lease.sequences_are_own = true;
        }
        if self.tx.is_open() && !participant.begun {
            if begin_may_fail(self.tx.begin_text()) {
                // Behind a BEGIN that failed the statement would run by itself.
                if !ahead.is_empty() {
                    let sent = std::mem::take(&mut ahead);
                    participant.lease.send_ahead(&sent, &[]).await?;
                    participant.lease.settle_ahead(&sent).await?;
                }
                let begun = forward::command(&mut participant.lease, self.tx.begin_text()).await?;
                if let Some(fields) = begun.error {
                    return Err(faults::from_node(&participant.address.host, &fields));
                }
            } else {
                ahead.query(self.tx.begin_text());
            }
            for command in self.tx.prologue() {
                ahead.query(command);
            }
            participant.begun = true;
        }
        if let Some(fence) = fence.filter(|_| self.tx.has_reset_all() && !self.tx.is_failed()) {
            // An older extension has lost it to RESET ALL, or may again by ROLLBACK TO; what holds
            // after the transaction is not known.
            ahead.query(fence);
            participant.lease.epoch = None;
        }
        Ok(ahead)
    }

    /// Makes the transaction count as failed on every server that takes part.
    pub(super) async fn poison(&mut self) {
        let mut lost = Vec::new();
        for (shard, participant) in &mut self.participants {
            if participant.lease.tx_status() == TxStatus::InTransaction
                && forward::command(&mut participant.lease, POISON)
                    .await
                    .is_err()
            {
                lost.push(*shard);
            }
        }
        for shard in lost {
            if let Some(participant) = self.participants.remove(&shard) {
                self.lose(participant);
            }
        }
    }

    /// Rolls back on every server that takes part, and ends the loans.
    pub(super) async fn roll_back_all(&mut self) {
        let mut participants: Vec<_> = std::mem::take(&mut self.participants)
            .into_values()
            .collect();
        let rollbacks = participants.iter_mut().map(|participant| async {
            if participant.lease.tx_status() == TxStatus::Idle {
                return participant.lease.in_sync().then(BytesMut::new);
            }
            let rollback = forward::command(&mut participant.lease, "ROLLBACK");
            match tokio::time::timeout(ROLLBACK_LIMIT, rollback).await {
                Ok(Ok(done)) => Some(done.pushed),
                Ok(Err(_)) | Err(_) => None,
            }
        });
        let outcomes = futures_util::future::join_all(rollbacks).await;
        for (participant, rolled_back) in participants.into_iter().zip(outcomes) {
            match rolled_back {
                Some(pushed) => {
                    self.client.put_pushed(&pushed);
                    self.give_back(participant);
                }
                None => self.throw_away(participant),
            }
        }
    }

    /// Rolls back one participant that has done nothing yet.
    pub(super) async fn dismiss(&mut self, mut participant: Participant) {
        let open = participant.lease.tx_status() != TxStatus::Idle;
        if open
            && forward::command(&mut participant.lease, "ROLLBACK")
                .await
                .is_err()
        {
            return self.throw_away(participant);
        }
        self.give_back(participant);
    }

    /// Whether the open transaction has done nothing that the client or a server could know of.
    pub(super) fn may_start_over(&self) -> bool {
        self.tx.block() == Block::Idle || self.tx.is_untouched()
    }
}

async fn change_settings(lease: &mut Lease, wanted: Applied) -> Result<(), Fault> {
    let difference = match lease.applied.unknown {
        true => None,
        false => replay::difference(&lease.applied.commands, &wanted.commands),
    };
    let commands = difference.unwrap_or_else(|| {
        // RESET ALL takes it along; it is sent again with the next statement.
        lease.epoch = None;
        let reset = replay::RESET.into_iter().map(str::to_owned);
        reset.chain(replay::whole(&wanted.commands)).collect()
    });
    lease.applied.unknown = true;
    if !commands.is_empty() {
        match lease.simple(&commands.join("\n;\n")).await {
            Ok(_) => {}
            Err(ServerError::Fault(fault)) => return Err(fault),
            Err(ServerError::Sql(fields)) => {
                return Err(faults::from_node(&lease.endpoint().to_string(), &fields));
            }
        }
    }
    lease.applied = wanted;
    // What was set just now.
    lease.forget_left();
    Ok(())
}

/// Waits for a server connection, unless the client cancels or leaves meanwhile.
///
/// # Errors
/// 57014.
async fn unless_cancelled<T>(
    (running, client): (&Running, &Client),
    turn: impl Future<Output = T>,
) -> Result<T, Fault> {
    tokio::pin!(turn);
    // Mostly there is no wait.
    if let std::task::Poll::Ready(lent) = futures_util::poll!(turn.as_mut()) {
        return Ok(lent);
    }
    let turn = async {
        tokio::select! {
            biased;
            lent = turn => Ok(lent),
            () = client.vanished() => Err(Fault::Cancelled { by: LEFT.to_owned() }),
        }
    };
    running.waiting(turn).await?
}

/// Whether a server may refuse this BEGIN: a standby refuses some, and the grammar is not enough to
/// know.
fn begin_may_fail(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    ["SERIALIZABLE", "WRITE", "DEFERRABLE"]
        .iter()
        .any(|word| upper.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_begin_that_every_server_takes_travels_with_the_statement() {
        assert!(!begin_may_fail("BEGIN"));
        assert!(!begin_may_fail(
            "start transaction isolation level repeatable read, read only"
        ));
        assert!(begin_may_fail("begin isolation level serializable"));
        assert!(begin_may_fail("BEGIN READ WRITE"));
    }
}
