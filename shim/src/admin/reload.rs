//! `RELOAD`: reads the configuration files again.

use pgdog_core::fault::Fault;

use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["RELOAD"],
    usage: "RELOAD",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    admin.host().reload().await?;
    Ok(Output::done("RELOAD"))
}
