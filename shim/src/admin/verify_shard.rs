//! `VERIFY SHARD`: counts and hashes of every omni table on every serving shard, of one moment.

use pgdog_core::fault::Fault;

use super::command::{cell, flag};
use super::{Admin, Args, Command, Output};
use crate::workflow::{Site, compare, hashes};

pub(super) const COMMAND: Command = Command {
    words: &["VERIFY", "SHARD"],
    usage: "VERIFY SHARD <database> <shard>",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &["table", "shard", "rows", "hash", "agrees"];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    let cluster = admin.cluster(args.word(0)?)?;
    let shard = args.shard(1)?;
    if args.words.len() > 2 {
        return Err(args.misused());
    }
    let refused = |why: String| Fault::WrongState {
        what: format!("cannot verify shard {shard}"),
        why,
        hint: None,
    };
    let site = Site::of(&cluster);
    if usize::from(shard.0) >= site.serving.len() {
        return Err(refused(format!("{} shards serve", site.serving.len())));
    }
    let shards = hashes(&site)
        .await
        .map_err(|error| refused(error.to_string()))?;
    let mut output = Output::table(COLUMNS);
    for row in compare(&shards) {
        output.push(vec![
            cell(row.table),
            cell(row.shard),
            row.rows.and_then(cell),
            row.hash,
            flag(row.agrees),
        ]);
    }
    Ok(output)
}
