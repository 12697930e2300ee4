//! `SHOW SERVERS`: connections to nodes that clients are lent.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "SERVERS"],
    usage: "SHOW SERVERS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "database",
    "user",
    "state",
    "addr",
    "port",
    "remote_pid",
    "age",
    "incarnation",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for server in admin.host().servers() {
        output.push(vec![
            Some(server.database),
            Some(server.user),
            Some(server.state),
            Some(server.host),
            cell(server.port),
            cell(server.backend_pid),
            cell(server.age_s),
            Some(server.incarnation),
        ]);
    }
    Ok(output)
}
