//! `SHOW PREPARED`: server-side statements that clients share.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "PREPARED"],
    usage: "SHOW PREPARED",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(&["name", "statement", "rewrite", "used_by", "memory_used"]);
    for (name, statement, uses) in admin.host().prepared() {
        let bytes = name.len() + statement.len();
        output.push(vec![
            Some(name),
            Some(statement),
            None,
            cell(uses),
            cell(bytes),
        ]);
    }
    Ok(output)
}
