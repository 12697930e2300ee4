//! The README's picture of the state machine is the machine that runs.

use std::{env, fs};

use pgdog_core::workflow;

const BEGIN: &str = "<!-- fsm:begin -->\n";
const END: &str = "<!-- fsm:end -->";

/// `README_WRITE=1 cargo test -p pgdog-core --test readme` writes the diagram anew.
#[test]
fn readme_shows_the_machine_that_runs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(path).expect("the README is readable");
    let (before, rest) = readme
        .split_once(BEGIN)
        .expect("the README marks the diagram");
    let (shown, after) = rest
        .split_once(END)
        .expect("the README marks the diagram's end");
    let diagram = format!("```mermaid\n{}```\n", workflow::mermaid());
    if env::var_os("README_WRITE").is_some() {
        fs::write(path, format!("{before}{BEGIN}{diagram}{END}{after}")).expect("writable");
        return;
    }
    assert!(
        shown == diagram,
        "the README's diagram is old: README_WRITE=1 cargo test -p pgdog-core --test readme"
    );
}
