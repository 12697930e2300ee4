//! `SHOW LOOKUPS`: caches of per-key lookups.

use pgdog_core::fault::Fault;
use pgdog_core::placement::Strategy;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "LOOKUPS"],
    usage: "SHOW LOOKUPS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "database",
    "rules",
    "generation",
    "entries",
    "bytes",
    "asked",
    "loads",
    "failures",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        let (topology, stats) = (cluster.topology(), cluster.lookup_stats());
        let by_query = |strategy: &Strategy| matches!(strategy, Strategy::LookupQuery { .. });
        let rules = topology
            .sharded
            .iter()
            .filter(|table| by_query(&table.rule.strategy))
            .count();
        output.push(vec![
            cell(cluster.name()),
            cell(rules),
            cell(topology.generation()),
            cell(stats.entries),
            cell(stats.bytes),
            cell(stats.asked),
            cell(stats.loads),
            cell(stats.failures),
        ]);
    }
    Ok(output)
}
