//! Who may answer a read that asks for a position: the floor.
//!
//! A position vouches only for the server incarnation that reported it. Within one incarnation
//! replay moves forward only, so an old sample of the same incarnation is merely conservative.
//! Everything else is unproved and is checked by the backend that runs the read: the guard.

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use crate::ids::{Incarnation, Timeline};
use crate::lsn::{Lsn, Position};

/// A replica that could run the read, in the caller's order of preference.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Candidate {
    /// Incarnation that the connection to be used was opened to; `None` if there is none yet.
    pub connected: Option<Incarnation>,
    /// The latest thing known about the server behind that address.
    pub sample: Option<Sample>,
}

/// What a server said about itself once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Which life of the server said it.
    pub incarnation: Incarnation,
    /// Timeline that it was replaying.
    pub timeline: Option<Timeline>,
    /// Replayed position; `None` never qualifies. A received position has no place here.
    pub replayed: Option<Lsn>,
    /// Replay rate in bytes per second, measured while the replica had something to replay.
    pub rate: Option<u64>,
    /// How far it was behind in time: a guess at the ETA when no rate is known.
    pub lag_ms: Option<u64>,
    /// How long ago it said so.
    pub age_ms: u64,
}

/// What the read asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The position, with the timeline that it lies on if the token said so.
    pub floor: Position,
    /// What is known of the shard's timelines.
    pub lineage: &'a Lineage,
    /// How much longer the read may wait.
    pub budget_ms: u64,
    /// What to do when no replica makes it.
    pub fallback: Fallback,
}

/// A shard's timelines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage {
    /// The timeline that the primary is on; `None` before the first sample of it.
    pub current: Option<Timeline>,
    /// Where the current history left each earlier timeline.
    pub forks: Vec<Fork>,
}

/// The end of one timeline in the history of the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// The timeline that was left.
    pub timeline: Timeline,
    /// The last position that both have in common.
    pub ended_at: Lsn,
}

/// What to do when no replica makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// Refuse.
    Refuse,
    /// Read from the primary.
    Primary,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// This candidate has proved it.
    Serve(usize),
    /// This candidate probably has it, or will: send the read behind a guard.
    Guard {
        /// Index of the candidate.
        candidate: usize,
        /// How long the guard may wait on the backend.
        budget_ms: u64,
    },
    /// Nobody to send it to yet: sample again, then ask again.
    Wait {
        /// Estimated time until that helps, at most the remaining budget.
        eta_ms: u64,
    },
    /// The primary, since that is allowed.
    Primary,
    /// Refuse: `Fault::NoReplicaCaughtUp`.
    NotCaughtUp {
        /// Estimated time until the best replica has it.
        eta_ms: Option<u64>,
        /// The furthest replayed position known.
        best: Option<Lsn>,
    },
    /// Refuse: `Fault::WriteLostInFailover`. Not even the primary has this position.
    Lost {
        /// The timeline that the shard is on now.
        timeline: Timeline,
        /// Where its history left the timeline of the floor.
        forked_at: Lsn,
    },
}

/// How a candidate stands to the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It has replayed the floor and can't lose that within its incarnation.
    Proved,
    /// It may have it, or get it: worth a guard, the best rank first.
    Likely(Rank),
    /// It has the wrong history or no position.
    Unfit,
}

/// Order among guard candidates: small is good. Guesses never beat measurements and are never a
/// reason to refuse: on an idle cluster the lag in time is hours while replay needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Measured(u64),
    Guessed(u64),
    Unknown,
}

/// Decides who answers a read under a floor.
#[must_use]
pub fn choose(candidates: &[Candidate], ask: &Ask<'_>) -> Decision {
    let history = match history(ask) {
        History::Lost {
            timeline,
            forked_at,
        } => {
            return Decision::Lost {
                timeline,
                forked_at,
            };
        }
        other => other,
    };
    let standings: Vec<_> = candidates
        .iter()
        .map(|one| standing(one, ask, &history))
        .collect();
    if let Some(proved) = standings.iter().position(|one| *one == Standing::Proved) {
        return Decision::Serve(proved);
    }
    let likely = standings
        .iter()
        .enumerate()
        .filter_map(|(at, standing)| match standing {
            Standing::Likely(rank) => Some((*rank, at)),
            Standing::Proved | Standing::Unfit => None,
        });
    match likely.min_by_key(|(rank, _)| in_time_first(*rank, ask.budget_ms)) {
        Some((Rank::Measured(eta), candidate))
            if eta > ask.budget_ms.saturating_mul(CERTAINTY)
                && has_been_late(&candidates[candidate], ask.budget_ms) => {}
        Some((_, candidate)) if ask.budget_ms > 0 => {
            return Decision::Guard {
                candidate,
                budget_ms: ask.budget_ms,
            };
        }
        None if ask.budget_ms > 0 => {
            return Decision::Wait {
                eta_ms: ask.budget_ms.min(RESAMPLE_MS),
            };
        }
        Some(_) | None => {}
    }
    match (ask.fallback, history) {
        // What can't be found in any history known here is not to be had from the primary either.
        (Fallback::Primary, History::Known { .. } | History::Irrelevant) => Decision::Primary,
        (Fallback::Refuse | Fallback::Primary, _) => Decision::NotCaughtUp {
            eta_ms: candidates
                .iter()
                .filter_map(|one| reported_eta(one, ask.floor.0))
                .min(),
            best: candidates.iter().filter_map(replayed).max(),
        },
    }
}

/// The one of several floors that decides: who satisfies it, satisfies all. `None` for none.
///
/// Positions of one history are compared as numbers. One that is not known to be part of it goes
/// before all others, so that [`choose`] tells what became of it.
pub fn strictest(
    floors: impl IntoIterator<Item = Position>,
    lineage: &Lineage,
) -> Option<Position> {
    let strange = |(lsn, timeline): Position| match (timeline, lineage.current) {
        (Some(timeline), Some(current)) if timeline != current => {
            lineage.fork(timeline).is_none_or(|fork| lsn > fork)
        }
        _ => false,
    };
    floors
        .into_iter()
        .max_by_key(|&(lsn, timeline)| (strange((lsn, timeline)), lsn, timeline))
}

/// A floor as a server is to check it. A bare position lies in the shard's history, as far as that
/// is known: a server that has come as far on another timeline does not have it.
#[must_use]
pub fn located((lsn, timeline): Position, lineage: &Lineage) -> Position {
    let earlier = lineage.forks.iter().filter(|fork| lsn <= fork.ended_at);
    let holder = earlier.map(|fork| fork.timeline).min();
    (lsn, timeline.or(holder).or(lineage.current))
}

/// What a server has shown to have replayed, by the check of one of its lives, as an addition to a
/// sample of that (life, timeline); `None` if it adds nothing.
///
/// Only what lies on the sample's own timeline counts: the server may be on a later one by now,
/// whose positions say nothing about this one.
#[must_use]
pub fn shown(
    (life, timeline): (&Incarnation, Option<Timeline>),
    by: &Incarnation,
    (lsn, of): Position,
) -> Option<Lsn> {
    (life == by && timeline.is_some() && timeline == of).then_some(lsn)
}

/// By how much an estimate must exceed what a read may wait, for the wait to be called in vain: the
/// rate of replay is measured over many small pieces of WAL, and one large piece goes much faster.
const CERTAINTY: u64 = 10;

/// How soon it is worth asking again when no candidate can even take a guard.
const RESAMPLE_MS: u64 = 10;

/// Where the floor lies among the shard's timelines.
enum History {
    /// No timeline is known to anybody: positions alone count.
    Irrelevant,
    /// The floor exists on this timeline, the shard's latest that is known.
    Known { current: Timeline },
    /// The floor lies on another timeline, and it is not known where that one forked off.
    Undecided,
    /// The floor lies behind the fork.
    Lost { timeline: Timeline, forked_at: Lsn },
}

fn history(ask: &Ask<'_>) -> History {
    let (floor, named) = ask.floor;
    // A token from a later timeline than we know of is news about a failover.
    let Some(current) = ask.lineage.current.max(named) else {
        return History::Irrelevant;
    };
    let own = named.unwrap_or(current);
    if own == current {
        return History::Known { current };
    }
    match ask.fork(own, current) {
        None => History::Undecided,
        Some(fork) if floor <= fork => History::Known { current },
        Some(forked_at) => History::Lost {
            timeline: current,
            forked_at,
        },
    }
}

impl Lineage {
    /// Where the current history left a timeline, if that is known.
    #[must_use]
    pub fn fork(&self, timeline: Timeline) -> Option<Lsn> {
        self.forks
            .iter()
            .find(|fork| fork.timeline == timeline)
            .map(|fork| fork.ended_at)
    }
}

impl Ask<'_> {
    /// Where `current`'s history left a timeline. Forks of an older history say nothing about it.
    fn fork(&self, timeline: Timeline, current: Timeline) -> Option<Lsn> {
        self.lineage
            .fork(timeline)
            .filter(|_| self.lineage.current == Some(current))
    }
}

fn standing(candidate: &Candidate, ask: &Ask<'_>, history: &History) -> Standing {
    let Some(sample) = &candidate.sample else {
        return match history {
            History::Known { .. } | History::Irrelevant => Standing::Likely(Rank::Unknown),
            History::Undecided | History::Lost { .. } => Standing::Unfit,
        };
    };
    let Some(replayed) = sample.replayed else {
        return Standing::Unfit;
    };
    let floor = ask.floor.0;
    let same_life = candidate.connected.as_ref() == Some(&sample.incarnation);
    match history {
        History::Undecided | History::Lost { .. } => Standing::Unfit,
        History::Known { current } => match shares_history(sample, replayed, ask, *current) {
            Some(true) if same_life && replayed >= floor => Standing::Proved,
            Some(true) => Standing::Likely(rank(sample, floor)),
            // Another life may follow another timeline: the guard finds out.
            None => Standing::Likely(Rank::Unknown),
            Some(false) if same_life || candidate.connected.is_none() => Standing::Unfit,
            Some(false) => Standing::Likely(Rank::Unknown),
        },
        History::Irrelevant if same_life && replayed >= floor => Standing::Proved,
        History::Irrelevant => Standing::Likely(rank(sample, floor)),
    }
}

/// Whether everything up to the floor is the same on the sample's timeline and on the current one;
/// `None` if the sample does not say which timeline it is on.
fn shares_history(
    sample: &Sample,
    replayed: Lsn,
    ask: &Ask<'_>,
    current: Timeline,
) -> Option<bool> {
    let timeline = sample.timeline?;
    if timeline == current {
        return Some(true);
    }
    // On a later timeline than the shard's: news that has to be heard from the primary first.
    // On an earlier one: good up to the fork, and only if it did not go beyond it by itself.
    let fork = ask.fork(timeline, current).filter(|_| timeline < current);
    Some(fork.is_some_and(|fork| ask.floor.0 <= fork && replayed <= fork))
}

fn rank(sample: &Sample, floor: Lsn) -> Rank {
    let behind = floor
        .0
        .saturating_sub(sample.replayed.unwrap_or_default().0);
    match (behind, sample.rate, sample.lag_ms) {
        (0, _, _) => Rank::Measured(0),
        (_, Some(rate), _) if rate > 0 => {
            let all_ms = (u128::from(behind) * 1000).div_ceil(u128::from(rate));
            let all_ms = u64::try_from(all_ms).unwrap_or(u64::MAX);
            Rank::Measured(all_ms.saturating_sub(sample.age_ms))
        }
        (_, _, Some(lag_ms)) => Rank::Guessed(lag_ms),
        (_, _, None) => Rank::Unknown,
    }
}

/// Whether a replica was not only behind a burst of writes when it was asked: one that keeps up, or
/// whose delay is set, is measured at the pace of the writers, which says nothing of its own.
fn has_been_late(candidate: &Candidate, budget_ms: u64) -> bool {
    let sample = candidate.sample.as_ref();
    let lag_ms = sample.and_then(|sample| sample.lag_ms);
    lag_ms.is_none_or(|lag_ms| lag_ms > budget_ms)
}

/// Candidates that are measured to be too slow come last: somebody unmeasured may do better.
fn in_time_first(rank: Rank, budget_ms: u64) -> (bool, Rank) {
    (matches!(rank, Rank::Measured(eta) if eta > budget_ms), rank)
}

fn replayed(candidate: &Candidate) -> Option<Lsn> {
    candidate.sample.as_ref().and_then(|sample| sample.replayed)
}

fn reported_eta(candidate: &Candidate, floor: Lsn) -> Option<u64> {
    let sample = candidate
        .sample
        .as_ref()
        .filter(|sample| sample.replayed.is_some())?;
    match rank(sample, floor) {
        Rank::Measured(eta) | Rank::Guessed(eta) => Some(eta),
        Rank::Unknown => None,
    }
}
