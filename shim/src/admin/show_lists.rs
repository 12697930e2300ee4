//! `SHOW LISTS`: how much of everything there is.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "LISTS"],
    usage: "SHOW LISTS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "databases",
    "users",
    "shards",
    "pools",
    "free_clients",
    "used_clients",
    "free_servers",
    "used_servers",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let host = admin.host();
    let (clusters, pools) = (host.clusters(), host.pools());
    let mut output = Output::table(COLUMNS);
    output.push(vec![
        cell(clusters.len()),
        cell(host.users()),
        cell(
            clusters
                .iter()
                .map(|cluster| cluster.topology().shards.len())
                .sum::<usize>(),
        ),
        cell(pools.len()),
        None,
        cell(host.clients().len()),
        cell(pools.iter().map(|pool| pool.idle).sum::<u64>()),
        cell(pools.iter().map(|pool| pool.active).sum::<u64>()),
    ]);
    Ok(output)
}
