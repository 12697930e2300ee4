//! `SHOW STATS`: counters since the start, by database and user.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "STATS"],
    usage: "SHOW STATS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "database",
    "user",
    "total_xact_count",
    "total_query_count",
    "total_received",
    "total_sent",
    "total_errors",
    "total_writes",
    "total_reads",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for stats in admin.host().stats() {
        output.push(vec![
            Some(stats.database),
            Some(stats.user),
            cell(stats.transactions),
            cell(stats.queries),
            cell(stats.received_bytes),
            cell(stats.sent_bytes),
            cell(stats.errors),
            cell(stats.primary_queries),
            cell(stats.replica_queries),
        ]);
    }
    Ok(output)
}
