//! `RECONNECT`: replaces the server connections.

use pgdog_core::fault::Fault;

use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["RECONNECT"],
    usage: "RECONNECT",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    admin.host().reconnect();
    Ok(Output::done("RECONNECT"))
}
