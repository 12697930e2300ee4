//! `SHOW INSTANCES`: the shims that registered on shard 0.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output};
use crate::nodes::instances;

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "INSTANCES"],
    usage: "SHOW INSTANCES",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "instance_id",
    "name",
    "addr",
    "version",
    "config",
    "topology_version",
    "started_at",
    "heartbeat_at",
    "heartbeat_age_ms",
    "databases",
    "reachable",
    "self",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin
        .host()
        .clusters()
        .into_iter()
        .filter(|cluster| !cluster.is_plain())
    {
        for instance in instances::list(&cluster).await? {
            let reachable: Vec<String> =
                instance.reachable.iter().map(ToString::to_string).collect();
            let is_self = instance.instance_id == cluster.instance_id();
            let (version, config) = match instance.version.split_once('+') {
                Some((version, config)) => (version.to_owned(), Some(config.to_owned())),
                None => (instance.version.clone(), None),
            };
            let row = vec![
                Some(instance.instance_id),
                Some(instance.name),
                Some(instance.addr),
                Some(version),
                config,
                cell(instance.topology_version),
                Some(instance.started_at),
                Some(instance.heartbeat_at),
                cell(instance.heartbeat_age_ms),
                cell(instance.databases.join(",")),
                cell(reachable.join(",")),
                flag(is_self),
            ];
            // Databases on the same servers share a registry.
            if output.rows.iter().all(|known| known[0] != row[0]) {
                output.push(row);
            }
        }
    }
    Ok(output)
}
