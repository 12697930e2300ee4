//! `SHOW SERVERS`: connections to nodes that clients are lent.

use pgdog_core::fault::Fault;

use super::command::{cell, time_before};
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "SERVERS"],
    usage: "SHOW SERVERS",
    run: |admin, args| Box::pin(run(admin, args)),
};

/// PgDog's columns, then ours. What is not measured is NULL.
const COLUMNS: &[&str] = &[
    "database",
    "user",
    "state",
    "addr",
    "port",
    "connect_time",
    "request_time",
    "remote_pid",
    "transactions",
    "queries",
    "rollbacks",
    "prepared_statements",
    "healthchecks",
    "errors",
    "bytes_received",
    "bytes_sent",
    "age",
    "application_name",
    "memory_used",
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
            cell(time_before(server.age_s)),
            cell(time_before(server.rest_s)),
            cell(server.backend_pid),
            cell(server.transactions),
            cell(server.queries),
            None,
            cell(server.prepared),
            None,
            None,
            None,
            None,
            cell(server.age_s),
            None,
            None,
            Some(server.incarnation),
        ]);
    }
    Ok(output)
}
