//! `SHOW DATABASES`: the nodes of every logical database.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output};
use crate::nodes::Role;

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "DATABASES"],
    usage: "SHOW DATABASES",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "name",
    "host",
    "port",
    "database",
    "shard",
    "role",
    "provisioning",
    "error",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        let mut nodes = Vec::new();
        for shard in &cluster.topology().shards {
            for position in cluster.positions(shard.shard) {
                nodes.push((shard.shard, position.address, position.role, false));
            }
        }
        for (shard, address) in cluster.provisioning() {
            nodes.push((shard, address, Role::Primary, true));
        }
        for (shard, address, role, provisioning) in nodes {
            let error = cluster.error_of(&address);
            output.push(vec![
                cell(cluster.name()),
                Some(address.host),
                cell(address.port),
                Some(address.database),
                cell(shard),
                cell(role),
                flag(provisioning),
                error,
            ]);
        }
    }
    for (name, why) in admin.host().absent() {
        let mut row = vec![None; COLUMNS.len()];
        row[0] = Some(name);
        row[COLUMNS.len() - 1] = Some(why);
        output.push(row);
    }
    Ok(output)
}
