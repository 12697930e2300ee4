//! How a cluster grows by one shard: a state machine as one table of rows, and one `step`.
//!
//! `table::ROWS` is all there is to know about transitions; the driver is a `match` on the state
//! that does the state's work (which is idempotent) and then reports one event. Every transition
//! is stored with the position of the row that fired and with the row's reason.

mod names;
mod render;
mod table;

pub use render::{mermaid, text_table};

use crate::fault::Fault;

/// Where a task stands. The names are those of `SHOW TASKS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// True here: nothing has been changed anywhere but the task's own rows.
    Validating,
    /// True here: definitions are frozen; the new shard is empty or has the early schema.
    SyncingSchema,
    /// True here: publication, slot and subscription exist or are being made; tables are copied.
    SyncingData,
    /// True here: all tables are copied and followed; late schema is being made.
    Indexing,
    /// True here: the new shard has the whole schema and follows shard 0.
    Replicating,
    /// True here: as replicating, with a small lag; somebody has to ask for the cutover.
    AwaitingCutover,
    /// True here: gates are tried or held by open transactions; they open if the sessions die.
    Fencing,
    /// True here: flip transactions are being prepared; the new shard's commit decides.
    Deciding,
    /// True here: the new shard serves; some of the others may still have to commit the flip.
    Activating,
    /// True here: every shard has flipped; slot, subscription and intents are being removed.
    Cleaning,
    /// True here: nothing is left but the task's row.
    Done,
    /// True here: apply has stopped on an error; a person repairs the cause, or stops the task.
    Broken,
    /// True here: slot or one end's identity is gone; the copy is worthless and is thrown away.
    Lost,
    /// True here: everything that the task had made is gone again.
    Aborted,
}

/// What a driver or an operator reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Every guard is fulfilled and the intents are written.
    GuardsPassed,
    /// A guard stands against it; its reason is on the task.
    GuardsFailed,
    /// The early schema is committed on the new shard.
    SchemaSynced,
    /// Every table is copied and in step.
    DataCopied,
    /// The late schema is committed on the new shard.
    Indexed,
    /// The lag is small and not growing.
    CaughtUp,
    /// An operator asks for the cutover.
    CutoverRequested,
    /// All gates are held, the marker has arrived, fingerprints agree.
    FenceHeld,
    /// The gates could not be had; the holder's name is on the task.
    FenceFailed,
    /// The flip is committed on the new shard.
    Decided,
    /// The flip is rolled back on the new shard.
    RolledBack,
    /// The flip is committed on every shard.
    Activated,
    /// Nothing is left to remove.
    Cleaned,
    /// An operator stops the task.
    StopRequested,
    /// Everything that the task had made is removed.
    Undone,
    /// The subscription was disabled by an apply error.
    ApplyBroken,
    /// The slot is lost, or one end is not the server that it was.
    SlotLost,
}

/// The task's switches, stored beside its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags {
    /// Cut over as soon as possible, without being asked.
    pub auto: bool,
    /// Somebody has asked to stop: only undoing goes on.
    pub stopping: bool,
    /// Somebody has asked for the cutover.
    pub cutover_requested: bool,
}

/// When a row fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    /// Always: facts are facts.
    Always,
    /// Nobody has asked to stop.
    NotStopping,
    /// Somebody has asked to stop.
    Stopping,
    /// Not stopping, and the cutover is automatic or asked for.
    CutoverWanted,
    /// Not stopping, and nobody wants the cutover yet.
    CutoverNotWanted,
}

/// What a row does to the switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// Nothing.
    Keep,
    /// Remembers the wish to stop.
    Stopping,
    /// Forgets the wish to stop: it came too late.
    StopTooLate,
    /// Remembers the wish to cut over.
    CutoverRequested,
    /// Forgets the wish to cut over: it was tried.
    CutoverTried,
}

/// One transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// 1-based place in the table, as stored in `pgdog.task_events.rule_pos`.
    pub position: u16,
    /// State that it leaves.
    pub from: State,
    /// Event that fires it.
    pub event: Event,
    /// Condition on the switches.
    pub guard: Guard,
    /// State that it enters.
    pub to: State,
    /// What it does to the switches.
    pub mark: Mark,
    /// Why it is so.
    pub why: &'static str,
}

/// What an event led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The new state.
    pub to: State,
    /// The new switches.
    pub flags: Flags,
    /// The row that fired.
    pub row: &'static Row,
}

/// The whole machine, in the order of the operator's view.
#[must_use]
pub fn rows() -> &'static [Row] {
    table::ROWS
}

/// Applies one event.
///
/// # Errors
/// 55000 if no row fits: the event does not belong to the state, or the task is being stopped.
pub fn step(state: State, flags: Flags, event: Event) -> Result<Step, Fault> {
    let of_event = |row: &&Row| row.from == state && row.event == event;
    match rows()
        .iter()
        .filter(of_event)
        .find(|row| row.guard.holds(flags))
    {
        Some(row) => Ok(Step {
            to: row.to,
            flags: row.mark.apply(flags),
            row,
        }),
        None => Err(refusal(state, flags, event)),
    }
}

impl State {
    /// True as long as the task can be undone without a trace. In `deciding` the task may be
    /// beyond that already: only the new shard knows.
    #[must_use]
    pub fn is_before_point_of_no_return(self) -> bool {
        match self {
            State::Validating
            | State::SyncingSchema
            | State::SyncingData
            | State::Indexing
            | State::Replicating
            | State::AwaitingCutover
            | State::Fencing
            | State::Deciding
            | State::Broken
            | State::Lost
            | State::Aborted => true,
            State::Activating | State::Cleaning | State::Done => false,
        }
    }

    /// True if nothing ever happens any more.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, State::Done | State::Aborted)
    }
}

impl Guard {
    fn holds(self, flags: Flags) -> bool {
        let wanted = flags.auto || flags.cutover_requested;
        match self {
            Guard::Always => true,
            Guard::NotStopping => !flags.stopping,
            Guard::Stopping => flags.stopping,
            Guard::CutoverWanted => !flags.stopping && wanted,
            Guard::CutoverNotWanted => !flags.stopping && !wanted,
        }
    }
}

impl Mark {
    fn apply(self, flags: Flags) -> Flags {
        match self {
            Mark::Keep => flags,
            Mark::Stopping => Flags {
                stopping: true,
                ..flags
            },
            Mark::StopTooLate => Flags {
                stopping: false,
                ..flags
            },
            Mark::CutoverRequested => Flags {
                cutover_requested: true,
                ..flags
            },
            Mark::CutoverTried => Flags {
                cutover_requested: false,
                ..flags
            },
        }
    }
}

fn refusal(state: State, flags: Flags, event: Event) -> Fault {
    let why = if state.is_terminal() {
        format!("the task has ended: {state}")
    } else if !state.is_before_point_of_no_return() {
        format!("the task is {state}, past the point of no return")
    } else if flags.stopping {
        format!("the task is {state} and is being stopped")
    } else {
        format!("the task is {state}")
    };
    let hint = match event {
        Event::CutoverRequested if !state.is_terminal() => {
            Some("Wait until SHOW TASKS says awaiting cutover.".into())
        }
        Event::StopRequested if !state.is_before_point_of_no_return() => {
            Some("Let it finish; DROP SHARD flips back while no tenant lives there.".into())
        }
        _ => None,
    };
    Fault::WrongState {
        what: format!("event {event} is refused"),
        why,
        hint,
    }
}

#[cfg(test)]
mod tests;
