//! `SHOW REPLICATION`: where every node stands, as the monitor saw it last.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output};
use crate::nodes::{Lag, Role};

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
    "too_far_behind",
    "replay_bytes_per_s",
    "timeline",
    "incarnation",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        for shard in &cluster.topology().shards {
            for position in &cluster.positions(shard.shard) {
                let sample = position.sample.as_ref();
                let replayed = sample.and_then(|sample| sample.replayed);
                let lag = match position.role {
                    Role::Primary => sample.map(|_| Lag::default()),
                    Role::Replica => cluster.lag(&shard.primary, &position.address),
                };
                let too_far = cluster.lags(&shard.primary, &position.address);
                output.push(vec![
                    cell(output.rows.len()),
                    cell(cluster.name()),
                    cell(&cluster.settings().user),
                    cell(&position.address.host),
                    cell(position.address.port),
                    cell(shard.shard),
                    cell(position.role),
                    lag.and_then(|lag| cell(lag.time.as_millis())),
                    replayed.and_then(cell),
                    sample.and_then(|sample| cell(sample.taken_at.elapsed().as_millis())),
                    sample.and_then(|_| flag(position.role == Role::Replica)),
                    sample.and_then(|sample| sample.received).and_then(cell),
                    lag.and_then(|lag| cell(lag.bytes)),
                    lag.and_then(|_| flag(position.role == Role::Replica && too_far)),
                    sample.map(|sample| format!("{:.0}", sample.replay_bytes_per_s)),
                    sample.and_then(|sample| cell(sample.timeline)),
                    sample.and_then(|sample| cell(&sample.incarnation)),
                ]);
            }
        }
    }
    Ok(output)
}
