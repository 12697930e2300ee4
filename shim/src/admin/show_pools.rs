//! `SHOW POOLS`: one row per user and node.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output, place};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "POOLS"],
    usage: "SHOW POOLS",
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
    "cl_waiting",
    "sv_idle",
    "sv_active",
    "sv_total",
    "maxwait",
    "maxwait_us",
    "pool_size",
    "checkouts",
    "errors",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let clusters = admin.host().clusters();
    let mut output = Output::table(COLUMNS);
    for (id, pool) in admin.host().pools().into_iter().enumerate() {
        let (shard, role) = place(&clusters, &pool.host, pool.port);
        output.push(vec![
            cell(id),
            Some(pool.database),
            Some(pool.user),
            Some(pool.host),
            cell(pool.port),
            shard.and_then(cell),
            role.and_then(cell),
            cell(pool.waiting),
            cell(pool.idle),
            cell(pool.active),
            cell(pool.idle + pool.active),
            cell(pool.max_wait_ms / 1000),
            cell(pool.max_wait_ms % 1000 * 1000),
            cell(pool.size),
            cell(pool.checkouts),
            cell(pool.errors),
        ]);
    }
    Ok(output)
}
