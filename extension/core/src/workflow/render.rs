//! The machine as people read it.

use std::fmt::Write;

use super::{State, rows};

/// A Mermaid state diagram. Wishes that change no state are left out.
#[must_use]
pub fn mermaid() -> String {
    let mut out = String::from("stateDiagram-v2\n    [*] --> validating\n");
    for state in State::ALL.iter().filter(|state| state.name().contains(' ')) {
        let _ = writeln!(out, "    {} : {state}", alias(*state));
    }
    for (from, to, label) in arrows() {
        let _ = writeln!(out, "    {} --> {} : {label}", alias(from), alias(to));
    }
    for state in State::ALL.iter().filter(|state| state.is_terminal()) {
        let _ = writeln!(out, "    {} --> [*]", alias(*state));
    }
    out
}

/// The table in fixed columns: position, from, event, guard, to, why.
#[must_use]
pub fn text_table() -> String {
    let mut out = String::new();
    for row in rows() {
        let _ = writeln!(
            out,
            "{:>3}  {:<16}  {:<17}  {:<18}  {:<16}  {}",
            row.position,
            row.from.name(),
            row.event.name(),
            row.guard.name(),
            row.to.name(),
            row.why
        );
    }
    out
}

/// One arrow per pair of states, in the order of the table, with all its events.
fn arrows() -> Vec<(State, State, String)> {
    let mut arrows: Vec<(State, State, String)> = Vec::new();
    for row in rows().iter().filter(|row| row.from != row.to) {
        match arrows
            .iter_mut()
            .find(|(from, to, _)| (*from, *to) == (row.from, row.to))
        {
            Some((_, _, events)) => {
                events.push_str(", ");
                events.push_str(row.event.name());
            }
            None => arrows.push((row.from, row.to, row.event.name().to_owned())),
        }
    }
    arrows
}

fn alias(state: State) -> String {
    state.name().replace(' ', "_")
}
