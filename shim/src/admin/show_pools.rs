//! `SHOW POOLS`: one row per user and node.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output, place};
use crate::nodes::Address;

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "POOLS"],
    usage: "SHOW POOLS",
    run: |admin, args| Box::pin(run(admin, args)),
};

/// PgDog's columns, then ours. What is not measured is NULL.
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
    "sv_idle_xact",
    "sv_total",
    "maxwait",
    "maxwait_us",
    "pool_mode",
    "paused",
    "banned",
    "healthy",
    "errors",
    "re_synced",
    "out_of_sync",
    "force_closed",
    "online",
    "schema_admin",
    "cancels_in_flight",
    "pool_size",
    "min_pool_size",
    "checkouts",
    "connects",
    "total_wait_us",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let clusters = admin.host().clusters();
    let bans = admin.host().bans();
    let mut output = Output::table(COLUMNS);
    for (id, pool) in admin.host().pools().into_iter().enumerate() {
        let (database, shard, role) = place(&clusters, &pool.host, pool.port);
        let cluster = clusters
            .iter()
            .find(|c| Some(c.name()) == database.as_deref());
        let address = Address {
            host: pool.host.clone(),
            port: pool.port,
            database: pool.database.clone(),
        };
        let error = cluster.and_then(|cluster| cluster.error_of(&address));
        let is_admin = cluster.is_some_and(|cluster| cluster.settings().user == pool.user);
        let is_banned = bans
            .iter()
            .any(|(host, port, _)| (host, *port) == (&pool.host, pool.port));
        output.push(vec![
            cell(id),
            Some(database.unwrap_or(pool.database)),
            Some(pool.user),
            Some(pool.host),
            cell(pool.port),
            shard.and_then(cell),
            role.and_then(cell),
            cell(pool.waiting),
            cell(pool.idle),
            cell(pool.active),
            cell(pool.idle_in_transaction),
            cell(pool.idle + pool.active),
            cell(pool.max_wait_us / 1_000_000),
            cell(pool.max_wait_us % 1_000_000),
            Some(pool.mode),
            flag(pool.paused),
            flag(is_banned),
            flag(error.is_none()),
            cell(pool.errors),
            None,
            None,
            None,
            flag(cluster.is_some()),
            flag(is_admin),
            None,
            cell(pool.size),
            cell(pool.min),
            cell(pool.checkouts),
            cell(pool.connects),
            cell(pool.waited_us),
        ]);
    }
    Ok(output)
}
