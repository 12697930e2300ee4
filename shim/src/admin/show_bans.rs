//! `SHOW BANS`: nodes that no read goes to.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output, place};
use crate::nodes::Role;

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "BANS"],
    usage: "SHOW BANS",
    run: |admin, args| Box::pin(run(admin, args)),
};

/// PgDog's columns. A ban is of a node, whoever uses it, and has no end of its own: it lasts until
/// an operator lifts it, or until the node has caught up.
const COLUMNS: &[&str] = &[
    "id",
    "database",
    "user",
    "addr",
    "port",
    "shard",
    "role",
    "ban_reason",
    "ban_time_left",
    "banned_ms",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let clusters = admin.host().clusters();
    let mut output = Output::table(COLUMNS);
    for (host, port, banned_ms) in admin.host().bans() {
        let (database, shard, role) = place(&clusters, &host, port);
        output.push(vec![
            cell(output.rows.len()),
            database,
            None,
            Some(host),
            cell(port),
            shard.and_then(cell),
            role.and_then(cell),
            Some("banned by an operator".to_owned()),
            None,
            cell(banned_ms),
        ]);
    }
    for cluster in &clusters {
        for shard in &cluster.topology().shards {
            let far = shard.replicas.iter();
            for replica in far.filter(|replica| cluster.lags(&shard.primary, replica)) {
                output.push(vec![
                    cell(output.rows.len()),
                    cell(cluster.name()),
                    None,
                    Some(replica.host.clone()),
                    cell(replica.port),
                    cell(shard.shard),
                    cell(Role::Replica),
                    Some("too far behind".to_owned()),
                    None,
                    None,
                ]);
            }
        }
    }
    Ok(output)
}
