//! `SHOW VERSION`: the version of this shim.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "VERSION"],
    usage: "SHOW VERSION",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(_admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(&["version"]);
    output.push(vec![cell(concat!("pgdog ", env!("CARGO_PKG_VERSION")))]);
    Ok(output)
}
