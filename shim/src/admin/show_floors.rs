//! `SHOW FLOORS`: the highest floor that each node is known to satisfy, and what became of the
//! reads that asked for one. Refusals are counted at the primary.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::nodes::{Outcome, Role};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "FLOORS"],
    usage: "SHOW FLOORS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "database",
    "shard",
    "primary_lsn",
    "node",
    "role",
    "replayed_lsn",
    "bytes_behind",
    "age_ms",
    "proved",
    "guarded",
    "waited",
    "fell_back",
    "refused",
    "lost",
    "waited_ms",
    "wait_1ms",
    "wait_2ms",
    "wait_5ms",
    "wait_10ms",
    "wait_20ms",
    "wait_50ms",
    "wait_100ms",
    "wait_more",
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
            for position in &positions {
                let sample = position.sample.as_ref();
                let replayed = sample.and_then(|sample| sample.replayed);
                let behind = written.zip(replayed).map(|(a, b)| a.0.saturating_sub(b.0));
                let tallied = cluster.tallied(&position.address);
                let mut row = vec![
                    cell(cluster.name()),
                    cell(shard.shard),
                    written.and_then(cell),
                    cell(&position.address),
                    cell(position.role),
                    replayed.and_then(cell),
                    behind.and_then(cell),
                    sample.and_then(|sample| cell(sample.taken_at.elapsed().as_millis())),
                    cell(tallied.of(Outcome::Proved)),
                    cell(tallied.of(Outcome::Guarded)),
                    cell(tallied.waited()),
                    cell(tallied.of(Outcome::FellBack)),
                    cell(tallied.of(Outcome::Refused)),
                    cell(tallied.of(Outcome::Lost)),
                    cell(tallied.waited_ms),
                ];
                row.extend(tallied.waits.iter().map(cell));
                output.push(row);
            }
        }
    }
    Ok(output)
}
