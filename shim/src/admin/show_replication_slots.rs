//! `SHOW REPLICATION_SLOTS`: slots on the primaries of all shards.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::nodes::slots;

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "REPLICATION_SLOTS"],
    usage: "SHOW REPLICATION_SLOTS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "host",
    "port",
    "database_name",
    "name",
    "lsn",
    "lag",
    "lag_bytes",
    "active",
    "type",
    "wal_status",
    "retained_bytes",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin.host().clusters() {
        for slot in slots::list(&cluster).await? {
            output.push(vec![
                Some(slot.address.host),
                cell(slot.address.port),
                Some(slot.address.database),
                Some(slot.name),
                slot.lsn,
                slot.lag,
                slot.lag_bytes.and_then(cell),
                super::command::flag(slot.active),
                Some(slot.kind),
                slot.wal_status,
                slot.retained_bytes.and_then(cell),
            ]);
        }
    }
    Ok(output)
}
