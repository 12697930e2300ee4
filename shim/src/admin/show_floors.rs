//! `SHOW FLOORS`: the highest floor that each replica is known to satisfy.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::nodes::Role;

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "FLOORS"],
    usage: "SHOW FLOORS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "database",
    "shard",
    "primary_lsn",
    "replica",
    "replayed_lsn",
    "bytes_behind",
    "age_ms",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        for shard in &cluster.topology().shards {
            let positions = cluster.positions(shard.shard);
            let written = positions
                .iter()
                .find(|position| position.role == Role::Primary)
                .and_then(|position| position.sample.as_ref()?.replayed);
            for position in positions
                .iter()
                .filter(|position| position.role == Role::Replica)
            {
                let sample = position.sample.as_ref();
                let replayed = sample.and_then(|sample| sample.replayed);
                let behind = written.zip(replayed).map(|(a, b)| a.0.saturating_sub(b.0));
                output.push(vec![
                    cell(cluster.name()),
                    cell(shard.shard),
                    written.and_then(cell),
                    cell(&position.address),
                    replayed.and_then(cell),
                    behind.and_then(cell),
                    sample.and_then(|sample| cell(sample.taken_at.elapsed().as_millis())),
                ]);
            }
        }
    }
    Ok(output)
}
