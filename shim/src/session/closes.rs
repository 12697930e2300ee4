//! Messages that only close statements and portals.
//!
//! They cannot fail: PostgreSQL takes a Close of what does not exist, and also in a failed
//! transaction, so drivers send it and do not look at the answer. A server that is found lost here
//! stays part of the transaction: the next statement, or COMMIT, fails there and is looked at.

use bytes::BytesMut;

use super::Session;
use super::batch::{Message, Step};
use super::client::Gone;
use super::dispatch::Flow;
use super::forward::{self, Sink, Trouble};
use super::steps::Input;
use super::work::Work;
use crate::proto::{ErrorFields, backend};
use crate::server::{Ahead, Conn};

impl Session<'_> {
    /// Closes what a step names, on the servers that may have it.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn close(
        &mut self,
        input: &Input<'_>,
        at: usize,
        step: &Step<'_>,
    ) -> Result<Flow, Gone> {
        let work = &input.work(at, at + 1);
        let shared = |message: &Message<'_>| matches!(message, Message::CloseStatement);
        if !step.messages.iter().all(shared) {
            let lent = self.participants.values_mut();
            let closes = lent
                .chain(self.pinned.as_mut())
                .map(|one| close_on(&mut one.lease, work));
            let closes = futures_util::future::join_all(closes);
            let closed = Sink::Client(&mut *self.client).watching(closes).await?;
            for (pushed, error) in closed {
                self.client.put_pushed(&pushed);
                if let Some(fields) = error {
                    self.fail_with(&fields).await;
                    return Ok(Flow::Failed { parsed: 0 });
                }
            }
        }
        for _ in &step.messages {
            backend::close_complete(&mut self.client.out);
        }
        Ok(Flow::Next(at + 1))
    }
}

/// Returns what the server said by itself, and its error: a Close can be cancelled.
async fn close_on(conn: &mut Conn, work: &Work<'_>) -> (BytesMut, Option<ErrorFields>) {
    let mut pushed = BytesMut::new();
    let mut sink = Sink::Pushed(&mut pushed);
    let closed = async {
        let mut script = forward::send(conn, &Ahead::new(), work).await?;
        forward::drive(conn, &mut script, &mut sink).await?;
        Ok::<_, Trouble>(script.error)
    };
    let error = closed.await.unwrap_or_else(|_| {
        conn.give_up("lost at a Close");
        None
    });
    (pushed, error)
}
