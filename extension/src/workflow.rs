//! Core's state machine for SQL: one step, and the whole table. Row locks, events and
//! notifications are in `sql/050_tasks.sql`.

use std::str::FromStr;

use pgdog_core::fault::Fault;
use pgdog_core::workflow::{self, Event, Flags, State};
use pgrx::prelude::*;

use crate::report::raise;

/// One step of one task. Raises 55000 for an event that does not fit, 22023 for unknown names.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn workflow_step(
    status: &str,
    event: &str,
    auto: bool,
    stopping: bool,
    cutover_requested: bool,
) -> TableIterator<
    'static,
    (
        name!(to_status, &'static str),
        name!(stopping, bool),
        name!(cutover_requested, bool),
        name!(rule_pos, i32),
        name!(why, &'static str),
        name!(ended, bool),
    ),
> {
    let state: State = named("status", status);
    let event: Event = named("event", event);
    let flags = Flags {
        auto,
        stopping,
        cutover_requested,
    };
    let step = workflow::step(state, flags, event).unwrap_or_else(|fault| raise(&fault));
    TableIterator::once((
        step.to.name(),
        step.flags.stopping,
        step.flags.cutover_requested,
        i32::from(step.row.position),
        step.row.why,
        step.to.is_terminal(),
    ))
}

/// The machine, row by row.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn workflow_rows() -> TableIterator<
    'static,
    (
        name!(position, i32),
        name!(from_status, &'static str),
        name!(event, &'static str),
        name!(condition, &'static str),
        name!(to_status, &'static str),
        name!(why, &'static str),
    ),
> {
    TableIterator::new(workflow::rows().iter().map(|row| {
        (
            i32::from(row.position),
            row.from.name(),
            row.event.name(),
            row.guard.name(),
            row.to.name(),
            row.why,
        )
    }))
}

fn named<T: FromStr>(what: &str, name: &str) -> T {
    name.parse().unwrap_or_else(|_| {
        raise(&Fault::BadParameter {
            name: what.into(),
            value: name.into(),
            why: "see the view pgdog.fsm".into(),
        })
    })
}
