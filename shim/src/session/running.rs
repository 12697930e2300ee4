//! What a client's statements run on or wait for, so that a cancel request finds it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use subtle::ConstantTimeEq as _;
use tokio::sync::Notify;

use crate::server::CancelToken;

/// How long a cancel request to a server may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// No message of the client is in work.
const IDLE: u8 = 0;
/// One is, from when it was read until its answer is complete.
const BUSY: u8 = 1;
/// One is, and it was cancelled before it ran on any server or waited for one.
const CANCELLED: u8 = 2;

/// What one client's statements run on at the moment.
#[derive(Debug)]
pub struct Running {
    pub(super) secret: Bytes,
    message: AtomicU8,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tokens: Vec<(ShardNumber, Arc<CancelToken>)>,
    /// Set while the client waits for a server connection.
    waiting: Option<Arc<Notify>>,
}

impl Running {
    /// Nothing runs yet; `secret` is what a cancel request must bring.
    pub fn new(secret: Bytes) -> Self {
        Self {
            secret,
            message: AtomicU8::new(IDLE),
            state: Mutex::default(),
        }
    }

    /// A message of the client is in work from now on.
    pub fn begin_message(&self) {
        self.message.store(BUSY, Ordering::Relaxed);
    }

    /// Its answer is complete: a cancel that comes now is too late.
    pub fn end_message(&self) {
        self.message.store(IDLE, Ordering::Relaxed);
    }

    /// Whether this is the secret of its client.
    pub fn is_secret(&self, secret: &[u8]) -> bool {
        self.secret[..].ct_eq(secret).into()
    }

    /// A server connection is the client's from now on.
    ///
    /// # Errors
    /// 57014 when the client has cancelled already.
    pub fn add(&self, shard: ShardNumber, token: Arc<CancelToken>) -> Result<(), Fault> {
        let mut state = self.lock();
        self.go_on()?;
        let mut known = state.tokens.iter();
        if !known.any(|(_, known)| Arc::ptr_eq(known, &token)) {
            state.tokens.push((shard, token));
        }
        Ok(())
    }

    /// Refuses what was cancelled before it began.
    fn go_on(&self) -> Result<(), Fault> {
        let cancelled =
            self.message
                .compare_exchange(CANCELLED, BUSY, Ordering::Relaxed, Ordering::Relaxed);
        match cancelled {
            Ok(_) => Err(cancelled_by_user()),
            Err(_) => Ok(()),
        }
    }

    /// Whether the client has a server connection.
    pub fn is_any(&self) -> bool {
        !self.lock().tokens.is_empty()
    }

    /// It is not any more. A cancel that begins later does not reach it.
    pub fn remove(&self, token: &Arc<CancelToken>) {
        self.lock()
            .tokens
            .retain(|(_, other)| !Arc::ptr_eq(other, token));
    }

    /// The client has none any more.
    pub fn clear(&self) {
        self.lock().tokens.clear();
    }

    /// Cancels: the wait if the client waits, else what it runs, on all servers at once.
    pub async fn cancel(&self) {
        // Begun under the lock: a connection that is given back meanwhile knows of it, and does not
        // go to anybody else before the request has ended.
        let cancels: Vec<_> = {
            let mut state = self.lock();
            if let Some(waiting) = state.waiting.take() {
                waiting.notify_one();
                return;
            }
            if state.tokens.is_empty() {
                // Read, and on its way to a server. Nothing to do when there is nothing in work.
                let (from, to) = (BUSY, CANCELLED);
                let _ =
                    self.message
                        .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
                return;
            }
            let tokens = state.tokens.iter();
            tokens
                .map(|(shard, token)| (*shard, token.begin()))
                .collect()
        };
        let sent = cancels.into_iter().map(|(shard, cancel)| async move {
            if let Err(fault) = cancel.send(CANCEL_LIMIT).await {
                tracing::warn!(%shard, %fault, "cancel request failed");
            }
        });
        futures_util::future::join_all(sent).await;
    }

    /// Waits for `what`, unless the client cancels meanwhile.
    ///
    /// # Errors
    /// 57014.
    pub async fn waiting<T>(&self, what: impl Future<Output = T>) -> Result<T, Fault> {
        let cancelled = Arc::new(Notify::new());
        {
            let mut state = self.lock();
            self.go_on()?;
            state.waiting = Some(cancelled.clone());
        }
        let _until_here = Waiting(self);
        tokio::select! {
            biased;
            done = what => Ok(done),
            () = cancelled.notified() => Err(cancelled_by_user()),
        }
    }

    /// None of the states behind this lock can be half changed.
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cancelled_by_user() -> Fault {
    Fault::Cancelled {
        by: "user request".to_owned(),
    }
}

/// The client waits for as long as this lives.
struct Waiting<'a>(&'a Running);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancel_ends_the_wait_and_nothing_that_comes_later() {
        let running = Running::new(Bytes::from_static(b"1234"));
        running.cancel().await;
        assert!(running.waiting(async { 1 }).await.is_ok());
        let wait = running.waiting(std::future::pending::<()>());
        let cancel = async {
            tokio::task::yield_now().await;
            running.cancel().await;
        };
        let (waited, ()) = tokio::join!(wait, cancel);
        assert_eq!(waited.unwrap_err().sqlstate(), "57014");
        running.cancel().await;
        assert!(running.waiting(async { 2 }).await.is_ok());
    }
    #[tokio::test]
    async fn a_cancel_that_comes_before_the_server_is_not_forgotten() {
        let running = Running::new(Bytes::from_static(b"1234"));
        running.begin_message();
        running.cancel().await;
        let waited = running.waiting(async { 1 }).await;
        assert_eq!(waited.unwrap_err().sqlstate(), "57014");
        assert!(running.waiting(async { 1 }).await.is_ok());
        running.cancel().await;
        running.end_message();
        running.begin_message();
        assert!(running.waiting(async { 2 }).await.is_ok());
    }
}
