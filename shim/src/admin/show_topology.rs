//! `SHOW TOPOLOGY`: the picture that statements are routed by.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "TOPOLOGY"],
    usage: "SHOW TOPOLOGY",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "database",
    "version",
    "shards",
    "shard",
    "epoch",
    "primary",
    "replicas",
    "behind",
    "sharded_tables",
    "omnisharded_tables",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        let (topology, behind) = (cluster.topology(), cluster.behind());
        for shard in &topology.shards {
            let replicas: Vec<String> = shard.replicas.iter().map(ToString::to_string).collect();
            output.push(vec![
                cell(cluster.name()),
                cell(topology.version),
                cell(topology.shards.len()),
                cell(shard.shard),
                cell(shard.epoch),
                cell(&shard.primary),
                cell(replicas.join(",")),
                flag(behind.contains(&shard.shard)),
                cell(topology.sharded.len()),
                cell(
                    topology
                        .omnisharded
                        .iter()
                        .filter(|table| table.declared)
                        .count(),
                ),
            ]);
        }
    }
    Ok(output)
}
