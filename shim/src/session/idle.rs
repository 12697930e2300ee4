//! Between two messages: waiting for the client, and for what ends the wait.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pgdog_core::fault::Fault;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::Session;
use super::client::Gone;
use super::services::Services;
use crate::nodes::Cluster;
use crate::observe::Counted;
use crate::proto::backend::tag;
use crate::proto::{ErrorFields, Frame};

/// What may end a session from outside.
pub struct Signals {
    shutdown: Signal,
    retired: Signal,
}

impl Signals {
    /// The end of the process and of the database.
    pub fn of(services: &Services, cluster: &Cluster) -> Self {
        Self {
            shutdown: Signal::of(services.shutdown.clone()),
            retired: Signal::of(cluster.retired()),
        }
    }
}

/// Something that happens once. Made once for each session, which waits for it again and again:
/// every new wait, and every look at one, takes locks that all sessions share.
struct Signal {
    wait: Pin<Box<WaitForCancellationFutureOwned>>,
    /// What the wait rings, whatever the session's task waits for then.
    bell: Option<Arc<Bell>>,
}

/// Wakes a task, and remembers that it did.
struct Bell {
    has_rung: AtomicBool,
    task: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl Signal {
    fn of(token: CancellationToken) -> Self {
        Self {
            wait: Box::pin(token.cancelled_owned()),
            bell: None,
        }
    }

    /// Whether it may have happened.
    fn has_rung(&self) -> bool {
        let bell = self.bell.as_ref();
        bell.is_none_or(|bell| bell.has_rung.load(Ordering::Acquire))
    }
}

impl Future for Signal {
    type Output = ();

    /// Always polled by the same task.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.has_rung() {
            return Poll::Pending;
        }
        let bell = Arc::new(Bell {
            has_rung: AtomicBool::new(false),
            task: context.waker().clone(),
        });
        let waker = Waker::from(bell.clone());
        let polled = self.wait.as_mut().poll(&mut Context::from_waker(&waker));
        // What has happened is told to everybody who asks.
        self.bell = polled.is_pending().then_some(bell);
        polled
    }
}

impl Session<'_> {
    /// Waits for a message of the client, and meanwhile for the end of the process or of the
    /// database, for notifications, and for the limit of idleness.
    pub(super) async fn wait_for_client(&mut self, signals: &mut Signals) -> Result<(), Gone> {
        let idle = self.idle_limit();
        if idle.is_none() && self.pinned.is_none() && self.arrives(signals).await? {
            return Ok(());
        }
        let waiting = async {
            match idle {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(waiting);
        loop {
            let may_end = !self.tx.is_open();
            let may_move = may_end && self.pinned.is_none();
            let notified = async {
                match &mut self.pinned {
                    Some(pinned) => pinned.lease.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                arrived = self.client.arrived() => {
                    arrived?;
                    if may_move && self.cluster.is_retired() {
                        self.move_on(signals).await?;
                    }
                    return Ok(());
                }
                () = &mut signals.shutdown, if may_end => {
                    let fault = Fault::ShuttingDown { who: "the proxy".to_owned() };
                    return Err(self.client.dismiss(&ErrorFields::from(&fault)).await);
                }
                () = &mut signals.retired, if may_move => self.move_on(signals).await?,
                () = &mut waiting => {
                    let fault = Fault::IdleTimeout {
                        in_transaction: self.tx.is_open(),
                        limit_ms: idle.map_or(0, |limit| limit.as_millis() as u64),
                    };
                    return Err(self.client.dismiss(&ErrorFields::from(&fault)).await);
                }
                frame = notified => match frame {
                    Ok(frame) => self.pushed(&frame).await?,
                    Err(fault) => {
                        // What was pinned (LISTEN, temporary tables) is lost: going on would
                        // pretend that it is still there.
                        return Err(self.client.dismiss(&ErrorFields::from(&fault)).await);
                    }
                },
            }
        }
    }

    /// As above, for a client that nothing but a signal can come to first. Tells whether none did,
    /// which is then to be seen to.
    async fn arrives(&mut self, signals: &mut Signals) -> Result<bool, Gone> {
        let may_end = !self.tx.is_open();
        let client = &mut *self.client;
        let arrived = poll_fn(|context| {
            if let Poll::Ready(arrived) = client.poll_arrived(context) {
                return Poll::Ready(arrived.map(|()| true));
            }
            let mut rings = |signal: &mut Signal| Pin::new(signal).poll(context).is_ready();
            match may_end && (rings(&mut signals.shutdown) || rings(&mut signals.retired)) {
                true => Poll::Ready(Ok(false)),
                false => Poll::Pending,
            }
        });
        let has_arrived = arrived.await?;
        Ok(has_arrived && !(may_end && signals.retired.has_rung() && self.cluster.is_retired()))
    }

    /// What the kept server says by itself.
    async fn pushed(&mut self, frame: &Frame) -> Result<(), Gone> {
        match frame.tag() {
            tag::NOTIFICATION | tag::NOTICE => {
                self.client.put_pushed(frame.raw());
                self.client.flush().await
            }
            tag::ERROR => match ErrorFields::parse(frame.body()) {
                Ok(fields) if fields.ends_connection() => Err(self.client.dismiss(&fields).await),
                Ok(_) | Err(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// After how long without a message the client is sent away.
    fn idle_limit(&self) -> Option<Duration> {
        let limit = match self.tx.is_open() {
            true => self.settings.idle_in_transaction_timeout,
            false => self.account.idle_timeout.or(self.settings.idle_timeout),
        };
        limit.filter(|limit| !limit.is_zero())
    }

    /// The database is served in another way from now on, or not at all.
    async fn move_on(&mut self, signals: &mut Signals) -> Result<(), Gone> {
        let name = self.cluster.name().to_owned();
        let clusters = self.services.clusters.load_full();
        match clusters.get(&name).filter(|cluster| !cluster.is_retired()) {
            Some(cluster) => {
                self.guest = cluster.guest();
                self.cluster = cluster.clone();
                self.pools.clear();
                self.near = None;
                *signals = Signals::of(&self.services, cluster);
                Ok(())
            }
            None => {
                let who = format!("database \"{name}\"");
                let fault = Fault::ShuttingDown { who };
                Err(self.client.dismiss(&ErrorFields::from(&fault)).await)
            }
        }
    }

    /// Counts what was read and written.
    pub(super) fn note_traffic(&mut self) {
        let (received, sent) = self.client.take_traffic();
        self.seen.count(Counted::Received, received);
        self.seen.count(Counted::Sent, sent);
    }

    /// Counts the time that a message and, if it ended one, its transaction took.
    pub(super) fn note_times(&mut self, begun: Instant) {
        let ended = Instant::now();
        let us = |since| {
            let took: Duration = ended.saturating_duration_since(since);
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
        };
        let took_us = us(begun);
        self.seen.count(Counted::QueryTime, took_us);
        match (self.tx.is_open(), self.tx_since) {
            (true, since) => self.tx_since = Some(since.unwrap_or(begun)),
            (false, None) => self.seen.count(Counted::TransactionTime, took_us),
            (false, Some(since)) => {
                self.seen.count(Counted::TransactionTime, us(since));
                self.tx_since = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_wakes_its_task_and_is_told_as_often_as_asked() {
        let token = CancellationToken::new();
        let mut signal = Signal::of(token.clone());
        let not_yet = poll_fn(|context| Poll::Ready(Pin::new(&mut signal).poll(context)));
        assert!(not_yet.await.is_pending() && !signal.has_rung());
        let cancel = async {
            tokio::task::yield_now().await;
            token.cancel();
        };
        tokio::join!(&mut signal, cancel);
        for _ in 0..2 {
            assert!(signal.has_rung());
            (&mut signal).await;
        }
    }
}
