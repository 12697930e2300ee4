//! `SHOW TRANSACTIONS`: two-phase transactions that are not finished, as the shards hold them now.

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "TRANSACTIONS"],
    usage: "SHOW TRANSACTIONS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "database",
    "gid",
    "state",
    "age_s",
    "decider",
    "prepared_on",
    "lost_on",
    "coordinator",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        for transaction in cluster.look_for_unfinished().await {
            output.push(vec![
                cell(cluster.name()),
                cell(&transaction.gid),
                cell(transaction.doubt.as_str()),
                cell(transaction.age_s),
                cell(transaction.decider),
                cell(listed(&transaction.prepared_on)),
                cell(listed(&transaction.lost_on)),
                cell(&transaction.coordinator),
            ]);
        }
    }
    Ok(output)
}

fn listed(shards: &[ShardNumber]) -> String {
    let shards: Vec<_> = shards.iter().map(ToString::to_string).collect();
    shards.join(",")
}
