//! `SHOW REPLICATION`: where every node stands, as the monitor saw it last.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output};
use crate::nodes::Role;

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "REPLICATION"],
    usage: "SHOW REPLICATION",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "id",
    "database",
    "user",
    "addr",
    "port",
    "shard",
    "role",
    "replica_lag",
    "pg_lsn",
    "lsn_age",
    "pg_is_in_recovery",
    "received_lsn",
    "bytes_behind",
    "replay_bytes_per_s",
    "timeline",
    "incarnation",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        for shard in &cluster.topology().shards {
            let positions = cluster.positions(shard.shard);
            let primary = positions
                .iter()
                .find(|position| position.role == Role::Primary)
                .and_then(|position| position.sample.as_ref()?.replayed);
            for position in &positions {
                let sample = position.sample.as_ref();
                let replayed = sample.and_then(|sample| sample.replayed);
                let behind = primary
                    .zip(replayed)
                    .map(|(written, replayed)| written.0.saturating_sub(replayed.0));
                output.push(vec![
                    cell(output.rows.len()),
                    cell(cluster.name()),
                    cell(&cluster.settings().user),
                    cell(&position.address.host),
                    cell(position.address.port),
                    cell(shard.shard),
                    cell(position.role),
                    sample.map(|sample| sample.lag_ms.unwrap_or(0).to_string()),
                    replayed.and_then(cell),
                    sample.and_then(|sample| cell(sample.taken_at.elapsed().as_millis())),
                    sample.and_then(|_| flag(position.role == Role::Replica)),
                    sample.and_then(|sample| sample.received).and_then(cell),
                    behind.and_then(cell),
                    sample.map(|sample| format!("{:.0}", sample.replay_bytes_per_s)),
                    sample.and_then(|sample| cell(sample.timeline)),
                    sample.and_then(|sample| cell(&sample.incarnation)),
                ]);
            }
        }
    }
    Ok(output)
}
