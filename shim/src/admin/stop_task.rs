//! `STOP_TASK`: asks that a task be undone.

use pgdog_core::fault::Fault;
use pgdog_core::ids::TaskId;

use super::add_shard::COLUMNS;
use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::nodes::tasks;

pub(super) const COMMAND: Command = Command {
    words: &["STOP_TASK"],
    usage: "STOP_TASK <task>",
    run: |admin, args| Box::pin(run(admin, args)),
};

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    let id = args.number(0)?;
    if args.words.len() > 1 {
        return Err(args.misused());
    }
    let cluster = admin.cluster_of_task(id).await?;
    tasks::stop_task(&cluster, TaskId(id)).await?;
    let mut output = Output::table(COLUMNS);
    output.tag = "STOP_TASK".into();
    if let Some(task) = tasks::get(&cluster, TaskId(id)).await? {
        let status = cell(format!("{}, stopping", task.status()));
        output.push(vec![
            cell(id),
            cell(cluster.name()),
            task.text("shard"),
            status,
        ]);
    }
    Ok(output)
}
