//! `SHOW CONFIG`: the settings in force.

use pgdog_core::fault::Fault;

use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "CONFIG"],
    usage: "SHOW CONFIG",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(&["name", "value"]);
    for (name, value) in admin.host().config() {
        output.push(vec![Some(name), Some(value)]);
    }
    Ok(output)
}
