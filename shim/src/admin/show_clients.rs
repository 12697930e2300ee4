//! `SHOW CLIENTS`: who is connected.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "CLIENTS"],
    usage: "SHOW CLIENTS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "id",
    "user",
    "database",
    "addr",
    "port",
    "state",
    "age",
    "queries",
    "transactions",
    "errors",
    "application_name",
    "locked",
    "pinned",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for client in admin.host().clients() {
        output.push(vec![
            cell(client.id),
            Some(client.user),
            Some(client.database),
            Some(client.addr),
            cell(client.port),
            Some(client.state),
            cell(client.connected_s),
            cell(client.queries),
            cell(client.transactions),
            cell(client.errors),
            Some(client.application_name),
            flag(!client.pinned.is_empty()),
            Some(client.pinned),
        ]);
    }
    Ok(output)
}
