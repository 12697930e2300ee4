//! `PAUSE`, `RESUME`: lends no server connections to clients that have none, until resumed.
//!
//! Transactions that have begun go on to their end; SHOW POOLS tells in `sv_active` how many.

use pgdog_core::fault::Fault;

use super::{Admin, Args, Command, Output};

pub(super) const PAUSE: Command = Command {
    words: &["PAUSE"],
    usage: "PAUSE [<database>]",
    run: |admin, args| Box::pin(async { run(admin, args, true) }),
};

pub(super) const RESUME: Command = Command {
    words: &["RESUME"],
    usage: "RESUME [<database>]",
    run: |admin, args| Box::pin(async { run(admin, args, false) }),
};

fn run(admin: &Admin, args: &Args, paused: bool) -> Result<Output, Fault> {
    let database = args.words.first().map(String::as_str);
    if args.words.len() > 1 {
        return Err(args.misused());
    }
    admin.host().pause(database, paused)?;
    Ok(Output::done(if paused { "PAUSE" } else { "RESUME" }))
}
