//! Names of states, events and guards: what is stored, shown and accepted.

use std::fmt;
use std::str::FromStr;

use super::{Event, Guard, State};
use crate::fault::Fault;

macro_rules! names {
    ($type:ident, $kind:literal, { $($variant:ident => $name:literal,)+ }) => {
        impl $type {
            /// Every value, in the order of the normal course.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The name that is stored and shown.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Fault;

            fn from_str(text: &str) -> Result<Self, Fault> {
                $type::ALL.iter().copied().find(|one| one.name() == text).ok_or_else(|| {
                    Fault::BadParameter {
                        name: $kind.into(),
                        value: text.into(),
                        why: concat!("there is no such ", $kind).into(),
                    }
                })
            }
        }
    };
}

names!(State, "status", {
    Validating => "validating",
    SyncingSchema => "syncing schema",
    SyncingData => "syncing data",
    Indexing => "indexing",
    Replicating => "replicating",
    AwaitingCutover => "awaiting cutover",
    Fencing => "fencing",
    Deciding => "deciding",
    Activating => "activating",
    Cleaning => "cleaning",
    Done => "done",
    Broken => "broken",
    Lost => "lost",
    Aborted => "aborted",
});

names!(Event, "event", {
    GuardsPassed => "guards_passed",
    GuardsFailed => "guards_failed",
    SchemaSynced => "schema_synced",
    DataCopied => "data_copied",
    Indexed => "indexed",
    CaughtUp => "caught_up",
    CutoverRequested => "cutover_requested",
    FenceHeld => "fence_held",
    FenceFailed => "fence_failed",
    Decided => "decided",
    RolledBack => "rolled_back",
    Activated => "activated",
    Cleaned => "cleaned",
    StopRequested => "stop_requested",
    Undone => "undone",
    ApplyBroken => "apply_broken",
    SlotLost => "slot_lost",
});

names!(Guard, "guard", {
    Always => "always",
    NotStopping => "not stopping",
    Stopping => "stopping",
    CutoverWanted => "cutover wanted",
    CutoverNotWanted => "cutover not wanted",
});
