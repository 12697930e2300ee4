//! One shard's part of a read: what was sent there, and what comes of it.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use pgdog_core::fault::Fault;
use pgdog_core::ids::Epoch;
use pgdog_core::lsn;

use super::super::client::{Client, Gone};
use super::super::faults;
use super::super::forward;
use super::super::party::Participant;
use super::rows::{Described, described};
use crate::nodes::Outcome;
use crate::proto::backend::tag;
use crate::proto::{ErrorFields, Frame, answer, frontend};
use crate::server::{Ahead, Guard, Guarded, ServerError};

/// Reads of several shards are held back by what a shard that is let in later would miss.
const FAN_OUT: &str = "SET pgdog.fan_out = on";
const FAN_IN: &str = "SET pgdog.fan_out = off";

/// How long a cancel request to a server may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// How long a cancelled statement may take to end.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// Why a part cannot go on.
#[derive(Debug)]
pub enum End {
    /// The client is not there any more.
    Gone(Gone),
    /// The server says no.
    Sql(Box<ErrorFields>),
    /// Nothing can be said to this server any more.
    Lost(Fault),
    /// The server has not replayed what the read must see.
    Unproved(Box<ErrorFields>),
    /// The shim says no.
    Own(Fault),
}

/// See the module.
#[derive(Debug)]
pub struct Part {
    /// The connection.
    pub participant: Participant,
    /// What the server must have replayed, checked by itself before it runs anything.
    pub guard: Option<(lsn::Position, u64)>,
    /// How the floor is kept, if there is one.
    pub kept: Option<Outcome>,
    /// What goes ahead of the first statement.
    pub ahead: Ahead,
    /// The description of the rows, once it has come.
    pub told: Option<Bytes>,
    /// The types of the parameters, once they have come.
    pub types: Option<Bytes>,
    /// Whether it has begun a transaction, the epoch and whose values of sequences there are on the
    /// connection, before anything was sent.
    before: (bool, Option<Epoch>, bool),
    /// ReadyForQuery messages that are due.
    due: usize,
    /// The first error.
    error: Option<ErrorFields>,
    /// Milliseconds that the server has waited for the floor.
    waited_ms: u64,
}

impl Part {
    /// Nothing was sent yet.
    pub fn new(participant: Participant, guard: Option<(lsn::Position, u64)>) -> Self {
        Self {
            participant,
            guard,
            kept: None,
            ahead: Ahead::new(),
            told: None,
            types: None,
            before: (false, None, true),
            due: 0,
            error: None,
            waited_ms: 0,
        }
    }

    /// Remembers what is taken for done once it is put ahead of a statement.
    pub fn note_state(&mut self) {
        let lease = &self.participant.lease;
        self.before = (self.participant.begun, lease.epoch, lease.sequences_are_own);
    }

    /// Forgets what was to go ahead of a statement that was never sent. Tells whether there was
    /// anything, which means that the connection did not take part before.
    pub fn take_back_ahead(&mut self) -> bool {
        let unsent = !std::mem::take(&mut self.ahead).is_empty();
        if unsent {
            let lease = &mut self.participant.lease;
            (self.participant.begun, lease.epoch, lease.sequences_are_own) = self.before;
        }
        unsent && !self.participant.begun
    }

    /// Whether backslashes in plain strings are escapes on this connection.
    pub fn escapes(&self) -> bool {
        let settings = self.participant.lease.parameters();
        settings
            .get("standard_conforming_strings")
            .is_some_and(|value| value == "off")
    }

    /// Milliseconds that the server itself has waited for the floor.
    pub fn waited_ms(&self) -> u64 {
        self.waited_ms
    }

    /// Sends a batch that ends with a Sync, behind what must go ahead of it.
    ///
    /// # Errors
    /// The connection is lost, the guard does not hold, or what goes ahead was refused.
    pub async fn send(&mut self, batch: &[u8]) -> Result<(), End> {
        (self.told, self.types, self.error) = (None, None, None);
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.query(FAN_OUT);
        let guard = self.guard.take();
        if let Some((floor, budget_ms)) = guard {
            ahead.guard(Guard::wait_position(floor, budget_ms));
        }
        let sent = Instant::now();
        let conn = &mut *self.participant.lease;
        conn.send_ahead(&ahead, batch).await.map_err(End::Lost)?;
        let settled = forward::settle(conn, &ahead).await.map_err(End::Lost)?;
        if let Guarded::Failed(fields) = settled.guard {
            match conn.simple(FAN_IN).await {
                // In a transaction, which has failed now, the setting goes with it.
                Ok(_) | Err(ServerError::Sql(_)) => {}
                Err(ServerError::Fault(fault)) => return Err(End::Lost(fault)),
            }
            return Err(End::Unproved(Box::new(fields)));
        }
        if let Some(fields) = settled.error() {
            return Err(End::Sql(Box::new(fields.clone())));
        }
        if guard.is_some() {
            self.waited_ms = u64::try_from(sent.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        let mut reset = BytesMut::new();
        frontend::query(FAN_IN, &mut reset);
        conn.send(&reset).await.map_err(End::Lost)?;
        self.due = 2;
        Ok(())
    }

    /// Whether all answers have come.
    pub fn is_done(&self) -> bool {
        self.due == 0
    }

    /// The next row that is there already. None when there is none: [`Part::wait`] for more, unless
    /// the part is done.
    ///
    /// # Errors
    /// The server's, or that the connection is lost.
    pub fn row(&mut self, client: &mut Client) -> Result<Option<Frame>, End> {
        while self.due > 0 {
            let conn = &mut self.participant.lease;
            let Some(frame) = conn.buffered().map_err(End::Lost)? else {
                return Ok(None);
            };
            match frame.tag() {
                tag::DATA_ROW => return Ok(Some(frame)),
                _ => self.note(&frame, client)?,
            }
        }
        Ok(None)
    }

    /// Waits until the server has described the rows.
    ///
    /// # Errors
    /// As [`Part::row`].
    pub async fn described(&mut self, client: &mut Client) -> Result<Vec<Described>, End> {
        loop {
            if let Some(body) = &self.told {
                return described(body).map_err(End::Lost);
            }
            let conn = &mut self.participant.lease;
            match conn.buffered().map_err(End::Lost)? {
                Some(frame) => self.note(&frame, client)?,
                None => self.wait(client).await?,
            }
            if self.is_done() {
                return Err(lost_sight());
            }
        }
    }

    /// Takes note of a message that is no row.
    fn note(&mut self, frame: &Frame, client: &mut Client) -> Result<(), End> {
        match frame.tag() {
            tag::ROW_DESCRIPTION => self.told = Some(frame.body_bytes()),
            tag::PARAMETER_DESCRIPTION => self.types = Some(frame.body_bytes()),
            tag::READY => {
                self.due -= 1;
                // Only then is the connection at rest.
                if self.due == 0
                    && let Some(fields) = self.error.take()
                {
                    return Err(End::Sql(Box::new(fields)));
                }
            }
            tag::ERROR => {
                let fields = ErrorFields::parse(frame.body()).map_err(|_| lost_sight())?;
                if fields.ends_connection() {
                    return Err(End::Lost(faults::from_node("", &fields)));
                }
                // What resets the connection fails as well in a transaction that has failed.
                self.error.get_or_insert(fields);
            }
            tag::NOTICE | tag::NOTIFICATION => client.put_pushed(frame.raw()),
            tag::PARAMETER_STATUS => {
                let (name, value) =
                    answer::parameter_status(frame.body()).map_err(|_| lost_sight())?;
                client.tell_setting(name, &value);
            }
            tag::PARSE_COMPLETE | tag::BIND_COMPLETE | tag::NO_DATA | tag::COMMAND_COMPLETE => {}
            _ => return Err(lost_sight()),
        }
        Ok(())
    }

    /// Waits until more has come, unless the client leaves.
    ///
    /// # Errors
    /// Either end is lost.
    pub async fn wait(&mut self, client: &Client) -> Result<(), End> {
        tokio::select! {
            biased;
            more = self.participant.lease.more() => more.map_err(End::Lost),
            () = client.vanished() => Err(End::Gone(Gone::Left)),
        }
    }

    /// Reads to the end of what was sent, of which no row is expected.
    ///
    /// # Errors
    /// As [`Part::row`].
    pub async fn finish(&mut self, client: &mut Client) -> Result<(), End> {
        loop {
            match self.row(client)? {
                Some(_) => {}
                None if self.is_done() => return Ok(()),
                None => self.wait(client).await?,
            }
        }
    }

    /// Ends what is still running and throws its answers away. Tells whether the connection is at
    /// rest then.
    pub async fn stop(&mut self) -> bool {
        let conn = &mut self.participant.lease;
        if conn.is_broken() {
            return false;
        }
        if conn.in_sync() {
            return true;
        }
        let token = conn.cancel_token();
        let cancelled = token.cancel(CANCEL_LIMIT).await;
        cancelled.is_ok() && conn.drain(DRAIN_LIMIT).await.is_ok() && conn.in_sync()
    }
}

fn lost_sight() -> End {
    End::Lost(Fault::ProtocolViolation {
        why: "a server's answer does not fit a read".to_owned(),
    })
}

impl From<Gone> for End {
    fn from(gone: Gone) -> Self {
        End::Gone(gone)
    }
}

impl End {
    /// Without the place of an error in a text that the client has not sent.
    pub fn unplaced(self) -> Self {
        match self {
            End::Sql(mut fields) => {
                fields.more.retain(|(code, _)| *code != b'P');
                End::Sql(fields)
            }
            other => other,
        }
    }
}
