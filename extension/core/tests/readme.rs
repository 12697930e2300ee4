//! What the documents say of the state machine is the machine that runs.
//!
//! `README_WRITE=1 cargo test -p pgdog-core --test readme` writes those parts anew.

use std::{env, fs};

use pgdog_core::workflow;

const BEGIN: &str = "<!-- fsm:begin -->\n";
const END: &str = "<!-- fsm:end -->";

#[test]
fn readme_draws_the_machine_that_runs() {
    compare(
        "README.md",
        &format!("```mermaid\n{}```\n", workflow::mermaid()),
    );
}

#[test]
fn docs_list_the_rules_that_run() {
    compare(
        "docs/workflow.md",
        &format!("```\n{}```\n", workflow::text_table()),
    );
}

fn compare(file: &str, expected: &str) {
    let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).expect("the document is readable");
    let (before, rest) = text
        .split_once(BEGIN)
        .expect("the document marks its generated part");
    let (shown, after) = rest
        .split_once(END)
        .expect("the document marks where that part ends");
    if env::var_os("README_WRITE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).expect("writable");
        return;
    }
    assert!(
        shown == expected,
        "{file} is old: README_WRITE=1 cargo test -p pgdog-core --test readme"
    );
}
