//! A connection that comes back in the middle of something is brought to rest: clients that vanish
//! cost their servers no new connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ServerError;
use super::conn::Conn;
use super::left::Left;
use crate::proto::TxStatus;

/// How long it may take before the connection is closed instead.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a cancelled statement may take to end before it is cancelled again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a cancel request to the server may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

impl Conn {
    /// Whether the server may still be at work for a client that left.
    pub(super) fn may_be_running(&self) -> bool {
        self.broken.is_none() && (self.writing || self.message_left > 0 || !self.in_sync())
    }

    /// Whether it can be brought to rest: only whole messages were sent, no cancel is on its way.
    pub(super) fn is_restorable(&self) -> bool {
        let lasting = self.lasting || self.left().is_some_and(Left::lasts);
        !self.is_broken() && !lasting && self.cancels_underway.load(Ordering::SeqCst) == 0
    }
}

/// Ends whatever runs, rolls back and clears the session. Gives the connection back as an error
/// when that cannot be done in time.
pub(super) async fn restore(mut conn: Box<Conn>) -> Result<Box<Conn>, Box<Conn>> {
    let done = tokio::time::timeout(LIMIT, bring_to_rest(&mut conn)).await;
    match done {
        Ok(Ok(())) if conn.is_reusable() => {
            conn.note_reset();
            Ok(conn)
        }
        Ok(_) | Err(_) => Err(conn),
    }
}

async fn bring_to_rest(conn: &mut Conn) -> Result<(), ServerError> {
    if !conn.in_sync() {
        conn.cancel_token().cancel(CANCEL_LIMIT).await?;
        // A request that came before its statement had begun is without effect: again.
        while conn.drain(AGAIN).await.is_err() && !conn.is_broken() {
            conn.cancel_token().cancel(CANCEL_LIMIT).await?;
        }
        // Once a request has been taken, nothing that is sent later can be hit by it.
    }
    if conn.tx_status() != TxStatus::Idle {
        conn.simple("ROLLBACK").await?;
    }
    conn.simple("DISCARD ALL").await.map(|_| ())
}
