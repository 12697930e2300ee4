//! One node under watch: its control connection, what it said last, and the loop that asks it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pgdog_core::fault::Fault;
use pgdog_core::floor;
use pgdog_core::ids::{Incarnation, ShardNumber};
use pgdog_core::lsn::{self, Lsn};
use tokio::sync::{Mutex, Notify, watch};
use tokio_util::sync::CancellationToken;

use super::control::{Link, Login, Session};
use super::lag::Past;
use super::observed::{self, Facts};
use super::position::{RateMeter, Reading, Role, Sample};
use super::reign::Reign;
use super::tally::Tally;
use super::topology::Address;

/// A poll that takes longer counts as failed.
pub(super) const POLL_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between polls while somebody waits for a position.
const URGENT_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause between attempts to reach a lost node.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// What a node said last.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// None: not reached, or the last poll failed.
    pub(super) facts: Option<Facts>,
    /// None likewise, and for a node without the extension.
    pub(super) sample: Option<Sample>,
    /// The shard that it last belonged to, kept while it is lost.
    pub(super) shard: Option<ShardNumber>,
    /// Role, kept while it is lost.
    pub(super) role: Option<Role>,
    /// Why the last poll failed.
    pub(super) error: Option<String>,
    /// As a primary, if it ever was one; kept while it is lost.
    pub(super) reign: Option<Arc<Reign>>,
}

/// One node.
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) link: Link,
    /// For questions that may take a while: no poll must wait for their answers.
    pub(super) slow: Link,
    pub(super) tally: Tally,
    view: watch::Sender<View>,
    /// How far it had come as a primary.
    past: std::sync::Mutex<Past>,
    poller: Mutex<Poller>,
    watched: AtomicBool,
    urgent: AtomicUsize,
    wake: Notify,
}

#[derive(Default)]
struct Poller {
    has_extension: bool,
    rate: RateMeter,
    reign: Option<Arc<Reign>>,
}

impl Node {
    pub(super) fn new(address: Address, login: Arc<Login>) -> Self {
        Self {
            link: Link::new(address.clone(), login.clone()),
            slow: Link::new(address.clone(), login),
            address,
            tally: Tally::default(),
            view: watch::Sender::new(View::default()),
            past: std::sync::Mutex::default(),
            poller: Mutex::default(),
            watched: AtomicBool::new(false),
            urgent: AtomicUsize::new(0),
            wake: Notify::new(),
        }
    }

    /// What it said last.
    pub(super) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// Tells of every poll from now on.
    pub(super) fn subscribe(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// As a primary, if it ever was one.
    pub(super) fn reign(&self) -> Option<Arc<Reign>> {
        self.view.borrow().reign.clone()
    }

    /// Asks now. True when what the topology depends on has changed.
    pub(super) async fn poll(&self) -> bool {
        self.poll_unless(|| false).await
    }

    /// As [`Node::poll`], unless the poll of somebody else has brought about `known` meanwhile.
    pub(super) async fn poll_unless(&self, known: impl Fn() -> bool) -> bool {
        let mut poller = self.poller.lock().await;
        if known() {
            return false;
        }
        let asked_at = Instant::now();
        let answer = self.ask(&mut poller).await;
        let mut changed = false;
        self.view.send_modify(|view| {
            let before = view.facts.as_ref().map(Facts::identity);
            match answer {
                Ok(facts) => {
                    accept(view, facts, asked_at, &mut poller.rate);
                    view.reign = poller.reign.clone();
                    self.remember(view);
                }
                Err(fault) => {
                    // A server that does not answer may be gone or another one: nothing that it
                    // said before counts any more.
                    view.facts = None;
                    view.sample = None;
                    view.error = Some(fault.message());
                }
            }
            changed = before != view.facts.as_ref().map(Facts::identity);
        });
        changed
    }

    fn remember(&self, view: &View) {
        if let (Some(Role::Primary), Some(sample)) = (view.role, &view.sample)
            && let Some(written) = sample.replayed
        {
            let life = (&sample.incarnation, sample.timeline);
            self.past().note(life, sample.taken_at, written);
        }
    }

    /// How far it had come as a primary.
    pub(super) fn past(&self) -> std::sync::MutexGuard<'_, Past> {
        self.past
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What it had replayed when it was asked last, and when that was.
    pub(super) fn replayed(&self) -> Option<(Lsn, Instant)> {
        let view = self.view.borrow();
        let sample = view.sample.as_ref()?;
        Some((sample.replayed?, sample.taken_at))
    }

    /// Whether it did not answer when it was asked last.
    pub(super) fn is_silent(&self) -> bool {
        self.view.borrow().facts.is_none()
    }

    async fn ask(&self, poller: &mut Poller) -> Result<Facts, Fault> {
        let session = self.link.session().await?;
        if !poller.has_extension {
            let (in_recovery, has_extension) = observed::probe(&session).await?;
            if !has_extension {
                return Ok(Facts {
                    in_recovery,
                    extension: None,
                });
            }
        }
        let facts = self.facts(&session, poller).await;
        // After a failure it is asked again what it is: it may have been replaced.
        poller.has_extension = facts.is_ok();
        facts
    }

    async fn facts(&self, session: &Session, poller: &mut Poller) -> Result<Facts, Fault> {
        let facts = observed::node(session, &self.address).await?;
        poller.reign = Reign::of(session, &facts, poller.reign.take()).await?;
        Ok(facts)
    }

    /// Polls until cancelled; every change is told through `changed`.
    pub(super) async fn watch(&self, idle: Duration, changed: &Notify, stop: &CancellationToken) {
        let mut backoff = Duration::from_millis(50);
        loop {
            if self.poll().await {
                changed.notify_one();
            }
            let lost = self.view.borrow().facts.is_none();
            let pause = if lost {
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
                backoff
            } else {
                backoff = Duration::from_millis(50);
                if self.urgent.load(Ordering::Relaxed) > 0 {
                    URGENT_PAUSE
                } else {
                    idle
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified(), if !lost => {}
            }
        }
    }

    /// True for the one who is to run [`Node::watch`].
    pub(super) fn claim_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::Relaxed)
    }

    /// While the guard lives this node is polled quickly.
    pub(super) fn hurry(self: &Arc<Self>) -> Hurry {
        if self.urgent.fetch_add(1, Ordering::Relaxed) == 0 {
            self.wake.notify_one();
        }
        Hurry(self.clone())
    }

    /// A guard passed on this server: its sample may be raised without asking.
    pub(super) fn note_proof(&self, incarnation: &Incarnation, proved: lsn::Position) {
        self.view.send_if_modified(|view| {
            if let Some(sample) = &mut view.sample {
                let life = (&sample.incarnation, Some(sample.timeline));
                let shown = floor::shown(life, incarnation, proved);
                sample.replayed = sample.replayed.max(shown);
            }
            // Nobody waits for this: those who wait want a fresh answer of the node.
            false
        });
    }
}

fn accept(view: &mut View, facts: Facts, asked_at: Instant, rate: &mut RateMeter) {
    // What a primary has written must have been there by then, and what a replica has not replayed
    // must have been missing: an answer may be read late.
    let taken_at = if facts.in_recovery {
        asked_at
    } else {
        Instant::now()
    };
    view.role = Some(if facts.in_recovery {
        Role::Replica
    } else {
        Role::Primary
    });
    view.error = None;
    view.sample = facts.extension.as_ref().map(|node| Sample {
        incarnation: node.incarnation.clone(),
        timeline: node.timeline,
        system_identifier: node.system_identifier.clone(),
        replayed: node.replayed,
        received: node.received,
        replay_bytes_per_s: rate.note(Reading {
            incarnation: node.incarnation.clone(),
            replayed: node.replayed,
            received: node.received,
            taken_at,
        }),
        lag_ms: node.lag_ms,
        taken_at,
    });
    if let Some(node) = &facts.extension {
        view.shard = node.shard;
    }
    view.facts = Some(facts);
}

/// Somebody waits for a position of this node.
pub(super) struct Hurry(Arc<Node>);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.urgent.fetch_sub(1, Ordering::Relaxed);
    }
}
