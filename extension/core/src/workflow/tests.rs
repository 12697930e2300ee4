//! The machine as a graph: what can be reached, and what can never be left or undone.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// State and switches; the switches as a tuple so that they have an order.
type Place = (State, (bool, bool, bool));

fn flags_of((_, (auto, stopping, cutover_requested)): Place) -> Flags {
    Flags {
        auto,
        stopping,
        cutover_requested,
    }
}

fn place(state: State, flags: Flags) -> Place {
    (state, (flags.auto, flags.stopping, flags.cutover_requested))
}

fn start(auto: bool) -> Place {
    place(
        State::Validating,
        Flags {
            auto,
            ..Flags::default()
        },
    )
}

/// Every place that can be reached from `from` by the events that `allowed` lets through.
fn reachable(from: Place, allowed: impl Fn(Place, Event) -> bool) -> BTreeSet<Place> {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(here) = open.pop() {
        for &event in Event::ALL.iter().filter(|&&event| allowed(here, event)) {
            if let Ok(step) = step(here.0, flags_of(here), event) {
                let next = place(step.to, step.flags);
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
    }
    seen
}

fn everywhere() -> BTreeSet<Place> {
    let mut all = reachable(start(false), |_, _| true);
    all.extend(reachable(start(true), |_, _| true));
    all
}

fn walk(auto: bool, events: &[Event]) -> Result<Place, Fault> {
    events.iter().try_fold(start(auto), |here, &event| {
        step(here.0, flags_of(here), event).map(|step| place(step.to, step.flags))
    })
}

const TO_REPLICATING: [Event; 4] = [
    Event::GuardsPassed,
    Event::SchemaSynced,
    Event::DataCopied,
    Event::Indexed,
];

#[test]
fn every_state_is_reachable_and_every_row_can_fire() {
    let states: BTreeSet<_> = everywhere().into_iter().map(|(state, _)| state).collect();
    assert_eq!(states, State::ALL.iter().copied().collect());
    let fired: BTreeSet<_> = everywhere()
        .into_iter()
        .flat_map(|here| Event::ALL.iter().map(move |&event| (here, event)))
        .filter_map(|(here, event)| step(here.0, flags_of(here), event).ok())
        .map(|step| step.row.position)
        .collect();
    let positions: BTreeSet<_> = rows().iter().map(|row| row.position).collect();
    assert_eq!(fired, positions);
}

#[test]
fn positions_count_from_one_and_at_most_one_row_fires() {
    for (nth, row) in rows().iter().enumerate() {
        assert_eq!(usize::from(row.position), nth + 1);
        assert!(!row.why.is_empty());
    }
    for here in everywhere() {
        for &event in Event::ALL {
            let fits = |row: &&Row| {
                row.from == here.0 && row.event == event && row.guard.holds(flags_of(here))
            };
            assert!(rows().iter().filter(fits).count() <= 1, "{here:?} {event}");
        }
    }
}

#[test]
fn nothing_leaves_a_terminal_state_and_every_other_place_can_end() {
    for here in everywhere() {
        let later = reachable(here, |_, _| true);
        if here.0.is_terminal() {
            assert_eq!(later.len(), 1, "{here:?}");
        } else {
            assert!(
                later.iter().any(|(state, _)| state.is_terminal()),
                "{here:?} is a dead end"
            );
        }
    }
}

#[test]
fn the_point_of_no_return_is_crossed_by_the_decision_alone_and_never_back() {
    for row in rows() {
        match (
            row.from.is_before_point_of_no_return(),
            row.to.is_before_point_of_no_return(),
        ) {
            (true, false) => assert_eq!((row.from, row.event), (State::Deciding, Event::Decided)),
            (false, true) => panic!("row {} goes back", row.position),
            (true, true) | (false, false) => {}
        }
    }
}

/// A stop is accepted in every state before the point of no return; from then on the task ends in
/// `aborted`, whatever happens, unless the new shard has already decided otherwise.
#[test]
fn a_stop_in_time_ends_in_aborted_and_a_late_one_is_refused() {
    for here in everywhere()
        .into_iter()
        .filter(|here| !here.0.is_terminal())
    {
        let stopped = step(here.0, flags_of(here), Event::StopRequested);
        if !here.0.is_before_point_of_no_return() {
            let fault = stopped.expect_err("too late");
            assert_eq!(fault.sqlstate(), "55000");
            assert!(
                fault
                    .detail()
                    .is_some_and(|why| why.contains("point of no return"))
            );
            continue;
        }
        let stopped = stopped.expect("in time");
        assert!(stopped.flags.stopping && stopped.to == here.0, "{here:?}");
        let later = reachable(place(stopped.to, stopped.flags), |place, event| {
            !(place.0 == State::Deciding && event == Event::Decided)
        });
        for one in &later {
            assert!(
                flags_of(*one).stopping && one.0.is_before_point_of_no_return(),
                "{one:?}"
            );
            let ends: BTreeSet<_> = reachable(*one, |place, event| {
                !(place.0 == State::Deciding && event == Event::Decided)
            });
            assert!(
                ends.iter().any(|(state, _)| *state == State::Aborted),
                "{one:?} is stuck"
            );
        }
        assert!(later.iter().all(|(state, _)| *state != State::Done));
    }
}

#[test]
fn a_task_that_is_stopping_does_not_go_on() {
    let stopping = Flags {
        stopping: true,
        auto: true,
        cutover_requested: true,
    };
    for (state, event) in [
        (State::Validating, Event::GuardsPassed),
        (State::SyncingSchema, Event::SchemaSynced),
        (State::SyncingData, Event::DataCopied),
        (State::Indexing, Event::Indexed),
        (State::Replicating, Event::CaughtUp),
        (State::AwaitingCutover, Event::CutoverRequested),
        (State::Fencing, Event::FenceHeld),
        (State::Broken, Event::DataCopied),
    ] {
        let fault = step(state, stopping, event).expect_err("stopping");
        assert!(
            fault
                .detail()
                .is_some_and(|why| why.contains("being stopped")),
            "{fault}"
        );
    }
}

#[test]
fn what_the_new_shard_decided_beats_a_wish_to_stop() {
    let late = Flags {
        stopping: true,
        ..Flags::default()
    };
    let decided = step(State::Deciding, late, Event::Decided).unwrap();
    assert_eq!(
        (decided.to, decided.flags.stopping),
        (State::Activating, false)
    );
    let back = step(State::Deciding, late, Event::RolledBack).unwrap();
    assert_eq!((back.to, back.flags.stopping), (State::Replicating, true));
    assert_eq!(
        step(back.to, back.flags, Event::Undone).unwrap().to,
        State::Aborted
    );
}

#[test]
fn auto_tries_the_fence_again_and_manual_parks() {
    for (auto, parked) in [(true, State::Fencing), (false, State::AwaitingCutover)] {
        let mut events = TO_REPLICATING.to_vec();
        events.push(Event::CaughtUp);
        if !auto {
            events.push(Event::CutoverRequested);
        }
        assert_eq!(walk(auto, &events).unwrap().0, State::Fencing);
        events.extend([Event::FenceFailed, Event::CaughtUp]);
        assert_eq!(walk(auto, &events).unwrap().0, parked);
    }
}

#[test]
fn a_cutover_asked_for_early_is_kept_until_the_lag_is_small() {
    let mut events = TO_REPLICATING.to_vec();
    events.extend([Event::CutoverRequested, Event::CaughtUp]);
    assert_eq!(walk(false, &events).unwrap().0, State::Fencing);
    let fault = walk(false, &[Event::CutoverRequested]).unwrap_err();
    assert_eq!(fault.sqlstate(), "55000");
    assert!(
        fault
            .hint()
            .is_some_and(|hint| hint.contains("awaiting cutover"))
    );
}

#[test]
fn a_lost_copy_starts_over() {
    let mut events = TO_REPLICATING.to_vec();
    events.extend([Event::SlotLost, Event::Undone]);
    assert_eq!(walk(true, &events).unwrap().0, State::Validating);
}

#[test]
fn names_are_read_back_and_are_the_published_ones() {
    for state in State::ALL {
        assert_eq!(state.name().parse(), Ok(*state));
    }
    for event in Event::ALL {
        assert_eq!(event.name().parse(), Ok(*event));
    }
    assert_eq!("nonsense".parse::<State>().unwrap_err().sqlstate(), "22023");
    let names: Vec<_> = State::ALL.iter().map(|state| state.name()).collect();
    assert_eq!(
        names.join(", "),
        "validating, syncing schema, syncing data, indexing, replicating, awaiting cutover, \
         fencing, deciding, activating, cleaning, done, broken, lost, aborted"
    );
}

#[test]
fn the_diagram_shows_every_state_and_every_change_of_state() {
    let diagram = mermaid();
    for row in rows().iter().filter(|row| row.from != row.to) {
        let (from, to) = (
            row.from.name().replace(' ', "_"),
            row.to.name().replace(' ', "_"),
        );
        let arrow = format!("    {from} --> {to} : ");
        let line = diagram
            .lines()
            .find(|line| line.starts_with(&arrow))
            .expect(&arrow);
        assert!(line.contains(row.event.name()), "{line}");
    }
    assert!(diagram.contains("done --> [*]") && diagram.contains("aborted --> [*]"));
    assert_eq!(text_table().lines().count(), rows().len());
}

proptest! {
    /// Any events in any order: a refused one changes nothing, and what is decided stays decided.
    #[test]
    fn no_schedule_of_events_undoes_a_decision(
        auto: bool,
        events in prop::collection::vec(prop::sample::select(Event::ALL), 0..200),
    ) {
        let mut here = start(auto);
        let mut decided = false;
        for event in events {
            match step(here.0, flags_of(here), event) {
                Ok(step) => {
                    decided |= event == Event::Decided;
                    here = place(step.to, step.flags);
                }
                Err(fault) => prop_assert_eq!(fault.sqlstate(), "55000"),
            }
            prop_assert_eq!(decided, !here.0.is_before_point_of_no_return());
            prop_assert!(!(decided && flags_of(here).stopping));
        }
    }
}
