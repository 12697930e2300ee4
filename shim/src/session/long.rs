//! Messages too long to be held: a Bind with a huge value, a query of many megabytes. They pass
//! through to the server as they come.
//!
//! That is possible where there is one shard: nothing in them is needed to find their place.

use std::time::Instant;

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::Session;
use super::client::{Client, Gone};
use super::dispatch::Flow;
use super::faults;
use super::forward::Trouble;
use super::semicolons::{Semicolons, first_word};
use super::work::Work;
use crate::observe::ClientState;
use crate::proto::{ErrorFields, Frame, frontend};
use crate::server::Conn;

/// Statements that are passed on unread.
const WRITES: [&str; 4] = ["insert", "update", "delete", "merge"];

impl Session<'_> {
    /// Whether a long message of the client may pass through unread.
    pub(super) fn may_stream(&self) -> bool {
        self.cluster.topology().shards.len() == 1
    }

    /// Runs a long query that may pass through. Returns every other message, whole; a long Bind is
    /// left to its batch.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn streamed(
        &mut self,
        first: Frame,
        begun: Instant,
    ) -> Result<Option<Frame>, Gone> {
        if !self.client.is_long() || first.tag() == b'B' {
            return Ok(Some(first));
        }
        let word = first_word(first.body());
        let is_write = WRITES
            .iter()
            .any(|write| word.eq_ignore_ascii_case(write.as_bytes()));
        if first.tag() != b'Q' || !is_write || self.skipping || !self.may_stream() {
            return self.client.complete(first).await.map(Some);
        }
        self.message_mark = self.client.mark();
        self.simple_message = true;
        self.call_with(&Work::Streamed(&first), None).await?;
        self.finish_message(true).await?;
        self.end_message(begun).await?;
        Ok(None)
    }

    /// Tells the client that a server connection is lost. With what was kept there its own ends,
    /// in the way in which the server's did.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn report_loss(&mut self, fault: &Fault) -> Result<Flow, Gone> {
        match self.state_lost.is_some() && !self.client.is_torn() {
            true => Err(self.client.dismiss(&ErrorFields::from(fault)).await),
            false => Ok(self.fault(fault).await),
        }
    }

    /// What follows every message: the answers go out.
    pub(super) async fn end_message(&mut self, begun: Instant) -> Result<(), Gone> {
        self.running.end_message();
        if self.client.is_torn() {
            return Err(Gone::Broken(std::io::Error::other("a row was cut off")));
        }
        if let Some(why) = self.state_lost {
            // Going on would pretend that it is still there.
            return Err(self.client.dismiss(&faults::state_lost(why)).await);
        }
        self.client.flush().await?;
        self.note_traffic();
        self.note_times(begun);
        self.seen.set_state(match self.tx.is_open() {
            true => ClientState::IdleInTransaction,
            false => ClientState::Idle,
        });
        Ok(())
    }
}

/// Moves the rest of a message whose beginning was sent.
///
/// # Errors
/// Either end is lost; or the message is a query of several statements, which is told before the
/// server has all of it, so that nothing was run.
pub(super) async fn pour(
    client: &mut Client,
    conn: &mut Conn,
    work: &Work<'_>,
) -> Result<(), Trouble> {
    let mut semicolons = match work {
        Work::Streamed(beginning) => Some(Semicolons::of(beginning.body())),
        Work::Query(_) | Work::Part(..) | Work::Steps(_) | Work::Call(_) => None,
    };
    while let Some(piece) = client.read_rest().await? {
        if let Some(semicolons) = &mut semicolons {
            semicolons.read(&piece);
            if semicolons.is_several() {
                let message = "a query this long must be a single statement";
                return Err(Trouble::Lost(faults::fault("54000", message)));
            }
        }
        conn.send_rest(&piece).await?;
    }
    if work.is_extended() {
        let mut out = BytesMut::new();
        frontend::sync(&mut out);
        conn.send(&out).await?;
    }
    Ok(())
}
