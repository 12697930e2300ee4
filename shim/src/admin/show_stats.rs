//! `SHOW STATS`: counters since the start, by database and user.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "STATS"],
    usage: "SHOW STATS",
    run: |admin, args| Box::pin(run(admin, args)),
};

/// PgDog's names for what is counted by database and user; times are in ms.
const COLUMNS: &[&str] = &[
    "database",
    "user",
    "total_xact_count",
    "total_query_count",
    "total_received",
    "total_sent",
    "total_xact_time",
    "total_query_time",
    "total_wait_time",
    "total_errors",
    "total_writes",
    "total_reads",
    "avg_xact_time",
    "avg_query_time",
    "avg_wait_time",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for stats in admin.host().stats() {
        let ms = |us: u64| cell(format!("{:.3}", us as f64 / 1000.0));
        let average = |us: u64, count: u64| ms(us / count.max(1));
        output.push(vec![
            Some(stats.database),
            Some(stats.user),
            cell(stats.transactions),
            cell(stats.queries),
            cell(stats.received_bytes),
            cell(stats.sent_bytes),
            ms(stats.transaction_us),
            ms(stats.query_us),
            ms(stats.wait_us),
            cell(stats.errors),
            cell(stats.primary_queries),
            cell(stats.replica_queries),
            average(stats.transaction_us, stats.transactions),
            average(stats.query_us, stats.queries),
            average(stats.wait_us, stats.transactions),
        ]);
    }
    Ok(output)
}
