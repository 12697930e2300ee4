//! `SET`: changes a setting of `[general]` until the files are read again.

use pgdog_core::fault::Fault;

use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SET"],
    usage: "SET <setting> TO <value>",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    // `a = b`, `a=b` and `a TO b` are the same.
    let words: Vec<&str> = args
        .words
        .iter()
        .flat_map(|word| word.split('='))
        .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("to"))
        .collect();
    let [name, value] = words[..] else {
        return Err(args.misused());
    };
    let name = name.to_ascii_lowercase();
    if is_of_drivers(&name) {
        return Ok(Output::done("SET"));
    }
    admin.host().set(&name, value).await?;
    Ok(Output::done("SET"))
}

/// What drivers set by themselves at the beginning; nothing depends on it here.
fn is_of_drivers(name: &str) -> bool {
    matches!(
        name,
        "application_name"
            | "client_encoding"
            | "client_min_messages"
            | "datestyle"
            | "extra_float_digits"
            | "standard_conforming_strings"
            | "statement_timeout"
            | "timezone"
    )
}
