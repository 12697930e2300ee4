//! Whose turn it is to hold one of a pool's connections.
//!
//! A pool of N has N - 1 common places and a last one. Who needs nothing else while he holds a
//! connection may take any of them. Who may need connections of other pools as well could wait for
//! somebody who waits for him; so of all those, one at a time is the *leader*, and only the leader
//! may take a last place. Whatever the leader wants is held by nobody who waits: he gets it, ends,
//! and the next one leads. No pool ever has more than N connections.
//!
//! Every queue is first come, first served.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::stats::lock;

/// Leadership, for as long as a turn that was taken with it lasts.
type Lead = OwnedSemaphorePermit;

/// Whether somebody leads. Kept by who takes turns, from one to the next.
#[derive(Debug, Default)]
pub struct Leader(Weak<Lead>);

/// What somebody holds, or may want to hold, besides a connection.
#[derive(Debug)]
pub enum Claim<'a> {
    /// Nothing.
    Alone,
    /// Connections of other pools.
    Several {
        /// Whether he leads.
        leader: &'a mut Leader,
        /// Whether he has one already.
        holds: bool,
    },
}

/// The places of a pool.
#[derive(Debug)]
pub(super) struct Turns {
    common: Semaphore,
    last: Semaphore,
    /// One for all pools whose connections are wanted together.
    lead: Arc<Semaphore>,
    size: Mutex<Size>,
    /// Some place that is given back goes another way than it came, see [`Size`]. Whoever gives one
    /// back just when this becomes so may miss it: then it is up to the next one.
    is_unsettled: AtomicBool,
    taken: AtomicUsize,
}

#[derive(Debug)]
struct Size {
    size: usize,
    /// Places that are taken and will not come back.
    surplus: usize,
    /// The last place was one of those: the next common place takes its part.
    no_last: bool,
}

/// A place, for as long as it is kept.
#[derive(Debug)]
pub(super) struct Turn {
    is_common: bool,
    turns: Arc<Turns>,
    _lead: Option<Arc<Lead>>,
}

const OPEN: &str = "the semaphore is never closed";

impl Turns {
    pub(super) fn new(size: usize, lead: Arc<Semaphore>) -> Arc<Self> {
        Arc::new(Self {
            common: Semaphore::new(size - 1),
            last: Semaphore::new(1),
            lead,
            size: Mutex::new(Size {
                size,
                surplus: 0,
                no_last: false,
            }),
            is_unsettled: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
        })
    }

    /// The number of places.
    pub(super) fn size(&self) -> usize {
        lock(&self.size).size
    }

    /// Places that are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    /// Whether more are taken than there are, as the pool was made smaller.
    pub(super) fn is_shrinking(&self) -> bool {
        self.is_unsettled.load(Ordering::SeqCst) && lock(&self.size).surplus > 0
    }

    /// Another number of places, at least one. What is taken stays so until it is given back.
    pub(super) fn resize(&self, size: usize) {
        let mut now = lock(&self.size);
        if size >= now.size {
            let more = size - now.size;
            let kept = more.min(now.surplus);
            now.surplus -= kept;
            self.common.add_permits(more - kept);
        } else {
            let less = now.size - size;
            self.is_unsettled.store(true, Ordering::SeqCst);
            now.surplus += less - self.common.forget_permits(less);
        }
        now.size = size;
        self.is_unsettled
            .store(now.is_unsettled(), Ordering::SeqCst);
    }

    /// A place, if nobody waits and one is free.
    pub(super) fn try_take(self: &Arc<Self>, claim: &Claim<'_>) -> Option<Turn> {
        if let Ok(place) = self.common.try_acquire() {
            return Some(self.turn(place, true, None));
        }
        let lead = match claim {
            Claim::Alone => None,
            Claim::Several { leader, .. } => Some(leader.0.upgrade()?),
        };
        let place = self.last.try_acquire().ok()?;
        Some(self.turn(place, false, lead))
    }

    /// A place, when it is the caller's turn.
    ///
    /// Cancel safety: dropping the future leaves the queue.
    pub(super) async fn take(self: &Arc<Self>, claim: Claim<'_>) -> Turn {
        let (common, last) = (self.common.acquire(), self.last.acquire());
        match claim {
            Claim::Alone => tokio::select! {
                biased;
                place = common => self.turn(place.expect(OPEN), true, None),
                place = last => self.turn(place.expect(OPEN), false, None),
            },
            Claim::Several { leader, .. } => {
                let known = leader.0.upgrade();
                let leading = async {
                    let lead = match known {
                        Some(lead) => lead,
                        None => Arc::new(self.lead.clone().acquire_owned().await.expect(OPEN)),
                    };
                    (last.await.expect(OPEN), lead)
                };
                tokio::select! {
                    biased;
                    place = common => self.turn(place.expect(OPEN), true, None),
                    (place, lead) = leading => {
                        leader.0 = Arc::downgrade(&lead);
                        self.turn(place, false, Some(lead))
                    }
                }
            }
        }
    }

    fn place(&self, is_common: bool) -> &Semaphore {
        match is_common {
            true => &self.common,
            false => &self.last,
        }
    }

    fn turn(
        self: &Arc<Self>,
        place: SemaphorePermit<'_>,
        is_common: bool,
        lead: Option<Arc<Lead>>,
    ) -> Turn {
        // The turn has it, and gives it back.
        place.forget();
        self.taken.fetch_add(1, Ordering::SeqCst);
        Turn {
            is_common,
            turns: self.clone(),
            _lead: lead,
        }
    }
}

impl Size {
    fn is_unsettled(&self) -> bool {
        self.surplus > 0 || self.no_last
    }

    /// Where a place goes that is given back.
    fn place_for<'a>(&mut self, turns: &'a Turns, is_common: bool) -> Option<&'a Semaphore> {
        if is_common && self.no_last {
            self.no_last = false;
            Some(&turns.last)
        } else if self.surplus > 0 {
            self.surplus -= 1;
            self.no_last |= !is_common;
            None
        } else {
            Some(turns.place(is_common))
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = &*self.turns;
        turns.taken.fetch_sub(1, Ordering::SeqCst);
        if !turns.is_unsettled.load(Ordering::SeqCst) {
            return turns.place(self.is_common).add_permits(1);
        }
        let mut size = lock(&turns.size);
        if let Some(place) = size.place_for(turns, self.is_common) {
            place.add_permits(1);
        }
        let is_unsettled = size.is_unsettled();
        turns.is_unsettled.store(is_unsettled, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// For what must not happen.
    const SHORT: Duration = Duration::from_millis(50);

    fn pools<const N: usize>(size: usize) -> [Arc<Turns>; N] {
        let lead = Arc::new(Semaphore::new(1));
        std::array::from_fn(|_| Turns::new(size, lead.clone()))
    }

    async fn several(turns: &Arc<Turns>, leader: &mut Leader) -> Turn {
        let holds = false;
        turns.take(Claim::Several { leader, holds }).await
    }

    #[tokio::test]
    async fn who_needs_one_connection_only_may_take_every_place() {
        let [turns] = pools(3);
        let all: Vec<_> = (0..3)
            .filter_map(|_| turns.try_take(&Claim::Alone))
            .collect();
        assert_eq!((all.len(), turns.taken()), (3, 3));
        assert!(turns.try_take(&Claim::Alone).is_none());
        drop(all);
        assert_eq!(turns.taken(), 0);
    }

    #[tokio::test]
    async fn transactions_over_all_pools_end_whatever_the_order() {
        for size in 1..4 {
            let pools: [Arc<Turns>; 3] = pools(size);
            let mut tasks = Vec::new();
            for number in 0..40_usize {
                let mut order: Vec<_> = pools.to_vec();
                order.rotate_left(number % 3);
                tasks.push(tokio::spawn(async move {
                    let mut leader = Leader::default();
                    let mut held = Vec::new();
                    for turns in order {
                        held.push(several(&turns, &mut leader).await);
                        assert!(turns.taken() <= size);
                        tokio::task::yield_now().await;
                    }
                }));
            }
            let all = futures_util::future::join_all(tasks);
            let done = tokio::time::timeout(Duration::from_secs(60), all).await;
            assert!(
                done.expect("no deadlock").iter().all(Result::is_ok),
                "{size}"
            );
            assert!(pools.iter().all(|turns| turns.taken() == 0));
        }
    }

    #[tokio::test]
    async fn a_leader_stays_one_while_he_holds_what_he_got_as_such() {
        let [one, two] = pools(1);
        let mut leader = Leader::default();
        let first = several(&one, &mut leader).await;
        let mut other = Leader::default();
        let waits = tokio::time::timeout(SHORT, several(&two, &mut other)).await;
        assert!(waits.is_err(), "somebody leads");
        let second = several(&two, &mut leader).await;
        drop((first, second));
        several(&two, &mut other).await;
    }

    #[tokio::test]
    async fn a_smaller_pool_shrinks_as_places_come_back() {
        let [turns] = pools(4);
        let mut held: Vec<_> = (0..4)
            .filter_map(|_| turns.try_take(&Claim::Alone))
            .collect();
        turns.resize(2);
        assert!(turns.is_shrinking());
        held.truncate(2); // the last place is among those that are given back
        assert!(turns.try_take(&Claim::Alone).is_none() && !turns.is_shrinking());
        turns.resize(3);
        held.extend(turns.try_take(&Claim::Alone));
        assert_eq!((held.len(), turns.taken(), turns.size()), (3, 3, 3));
        held.clear();
        let all: Vec<_> = (0..9)
            .filter_map(|_| turns.try_take(&Claim::Alone))
            .collect();
        assert_eq!(all.len(), 3);
    }
}
