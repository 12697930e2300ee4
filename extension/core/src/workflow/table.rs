//! The machine: one row per transition.

use super::Event::*;
use super::Guard::*;
use super::Mark::{CutoverRequested as AskCutover, CutoverTried, Keep, StopTooLate};
use super::State::*;
use super::{Mark, Row};

/// `(from, event, guard) -> (to, mark) "why"`; positions count from 1.
macro_rules! rows {
    ($($from:ident, $event:ident, $guard:ident => $to:ident, $mark:expr, $why:literal;)+) => {
        numbered([$(Row {
            position: 0,
            from: $from,
            event: $event,
            guard: $guard,
            to: $to,
            mark: $mark,
            why: $why,
        }),+])
    };
}

const fn numbered<const N: usize>(mut rows: [Row; N]) -> [Row; N] {
    let mut at = 0;
    while at < N {
        rows[at].position = at as u16 + 1;
        at += 1;
    }
    rows
}

const STOP: Mark = Mark::Stopping;

#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &rows! {
    // The normal course.
    Validating, GuardsPassed, NotStopping => SyncingSchema, Keep,
        "every guard is fulfilled; definitions are frozen from here on";
    Validating, GuardsFailed, Always => Aborted, Keep,
        "a guard stands against it; nothing was made that had to be undone";
    SyncingSchema, SchemaSynced, NotStopping => SyncingData, Keep,
        "the new shard has tables and keys, so rows can arrive";
    SyncingData, DataCopied, NotStopping => Indexing, Keep,
        "rows are there; secondary indexes are cheaper to build now";
    Indexing, Indexed, NotStopping => Replicating, Keep,
        "the schema is complete; only the stream is to catch up";
    Replicating, CaughtUp, CutoverWanted => Fencing, Keep,
        "the lag is small and the cutover is wanted";
    Replicating, CaughtUp, CutoverNotWanted => AwaitingCutover, Keep,
        "the lag is small; the operator says when";
    Replicating, CutoverRequested, NotStopping => Replicating, AskCutover,
        "the wish is kept until the lag is small";
    AwaitingCutover, CutoverRequested, NotStopping => Fencing, AskCutover,
        "the operator asks for it";
    Fencing, FenceHeld, NotStopping => Deciding, Keep,
        "no omni write is under way and the new shard has all of them";
    Deciding, Decided, Always => Activating, StopTooLate,
        "the new shard has committed the flip: the point of no return";
    Activating, Activated, Always => Cleaning, Keep,
        "every shard has committed the flip";
    Cleaning, Cleaned, Always => Done, Keep,
        "slot, subscription, publication and freeze are gone";

    // Try again.
    Fencing, FenceFailed, Always => Replicating, CutoverTried,
        "somebody holds a gate; writers must not wait for long";
    Deciding, RolledBack, Always => Replicating, CutoverTried,
        "the flip is rolled back everywhere; the stream went on";

    // Trouble with the stream.
    SyncingData, ApplyBroken, Always => Broken, Keep,
        "the subscription was disabled by an error during the copy";
    Indexing, ApplyBroken, Always => Broken, Keep,
        "the subscription was disabled by an error before the indexes were made";
    Replicating, ApplyBroken, Always => Broken, Keep,
        "the subscription was disabled by an error";
    AwaitingCutover, ApplyBroken, Always => Broken, Keep,
        "the subscription was disabled by an error while parked";
    Fencing, ApplyBroken, Always => Broken, Keep,
        "the subscription was disabled by an error under the fence, which is released";
    Broken, DataCopied, NotStopping => Indexing, Keep,
        "repaired and enabled again; the late schema is checked again";
    SyncingSchema, SlotLost, Always => Lost, Keep,
        "one end is not the server that it was";
    SyncingData, SlotLost, Always => Lost, Keep,
        "the slot or one end is gone, the copy has a hole";
    Indexing, SlotLost, Always => Lost, Keep,
        "the slot or one end is gone, the stream has a hole";
    Replicating, SlotLost, Always => Lost, Keep,
        "the slot or one end is gone, the stream has a hole";
    AwaitingCutover, SlotLost, Always => Lost, Keep,
        "the slot or one end is gone while parked";
    Fencing, SlotLost, Always => Lost, Keep,
        "the slot or one end is gone under the fence, which is released";
    Broken, SlotLost, Always => Lost, Keep,
        "the slot is gone too";
    Lost, Undone, NotStopping => Validating, CutoverTried,
        "the copy is thrown away; it starts over";

    // Stop: remembered first, so that whoever drives the task undoes it.
    Validating, StopRequested, Always => Validating, STOP,
        "nothing was made yet";
    SyncingSchema, StopRequested, Always => SyncingSchema, STOP,
        "the new shard's contents are to be dropped";
    SyncingData, StopRequested, Always => SyncingData, STOP,
        "slot, subscription and contents are to be dropped";
    Indexing, StopRequested, Always => Indexing, STOP,
        "slot, subscription and contents are to be dropped";
    Replicating, StopRequested, Always => Replicating, STOP,
        "slot, subscription and contents are to be dropped";
    AwaitingCutover, StopRequested, Always => AwaitingCutover, STOP,
        "slot, subscription and contents are to be dropped";
    Fencing, StopRequested, Always => Fencing, STOP,
        "the gates are to be released first";
    Deciding, StopRequested, Always => Deciding, STOP,
        "the new shard decides whether it comes in time";
    Broken, StopRequested, Always => Broken, STOP,
        "slot, subscription and contents are to be dropped";
    Lost, StopRequested, Always => Lost, STOP,
        "what is left is to be dropped";
    Validating, Undone, Stopping => Aborted, Keep,
        "stopped before anything was made";
    SyncingSchema, Undone, Stopping => Aborted, Keep,
        "the new shard is empty again";
    SyncingData, Undone, Stopping => Aborted, Keep,
        "the copy and the stream are gone";
    Indexing, Undone, Stopping => Aborted, Keep,
        "the copy and the stream are gone";
    Replicating, Undone, Stopping => Aborted, Keep,
        "the copy and the stream are gone";
    AwaitingCutover, Undone, Stopping => Aborted, Keep,
        "the copy and the stream are gone";
    Fencing, Undone, Stopping => Aborted, Keep,
        "the gates are open, the copy and the stream are gone";
    Broken, Undone, Stopping => Aborted, Keep,
        "the copy and the stream are gone";
    Lost, Undone, Stopping => Aborted, Keep,
        "what was left is gone";
};
