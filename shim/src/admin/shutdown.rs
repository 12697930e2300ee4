//! `SHUTDOWN`: starts a graceful stop.

use pgdog_core::fault::Fault;

use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHUTDOWN"],
    usage: "SHUTDOWN",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    admin.host().shutdown();
    Ok(Output::done("SHUTDOWN"))
}
