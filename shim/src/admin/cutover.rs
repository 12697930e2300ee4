//! `CUTOVER SHARD` and `CUTOVER`: asks a waiting task to flip.

use std::sync::Arc;

use pgdog_core::fault::Fault;
use pgdog_core::ids::{ShardNumber, TaskId};

use super::add_shard::COLUMNS;
use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::nodes::{Cluster, tasks};
use crate::workflow::{Site, blind_instances, differing_instances};

pub(super) const BY_SHARD: Command = Command {
    words: &["CUTOVER", "SHARD"],
    usage: "CUTOVER SHARD <database> <shard> [FORCE]",
    run: |admin, args| Box::pin(by_shard(admin, args)),
};

pub(super) const BY_TASK: Command = Command {
    words: &["CUTOVER"],
    usage: "CUTOVER <task> [FORCE]",
    run: |admin, args| Box::pin(by_task(admin, args)),
};

async fn by_shard(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    let cluster = admin.cluster(args.word(0)?)?;
    cut_over(&cluster, args.shard(1)?, forced(args, 2)?).await
}

async fn by_task(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    let id = args.number(0)?;
    let cluster = admin.cluster_of_task(id).await?;
    let task = tasks::get(&cluster, TaskId(id)).await?;
    let shard = task.and_then(|task| u16::try_from(task.number("shard")?).ok());
    let shard = shard.map(ShardNumber).ok_or_else(|| Fault::UnknownObject {
        kind: "task",
        name: id.to_string(),
    })?;
    cut_over(&cluster, shard, forced(args, 1)?).await
}

async fn cut_over(
    cluster: &Arc<Cluster>,
    shard: ShardNumber,
    forced: bool,
) -> Result<Output, Fault> {
    let refused = |why: String| Fault::WrongState {
        what: format!("cannot cut over shard {shard}"),
        why,
        hint: Some("Let them reach it, or say FORCE: they will be refused afterwards.".into()),
    };
    if !forced {
        let blind = blind_instances(&Site::of(cluster), shard).await;
        let blind = blind.map_err(|error| refused(error.to_string()))?;
        if !blind.is_empty() {
            return Err(refused(format!("not reached by {}", blind.join(", "))));
        }
        let differing = differing_instances(&Site::of(cluster)).await;
        let differing = differing.map_err(|error| refused(error.to_string()))?;
        if !differing.is_empty() {
            return Err(Fault::WrongState {
                what: format!("cannot cut over shard {shard}"),
                why: format!(
                    "the shims declare different things: {}",
                    differing.join(", ")
                ),
                hint: Some("Give all of them the same declarations, and RELOAD.".into()),
            });
        }
    }
    tasks::cutover_shard(cluster, shard).await?;
    let mut output = Output::table(COLUMNS);
    output.tag = "CUTOVER".into();
    let asked = |task: &tasks::Task| {
        task.number("shard") == Some(i64::from(shard.0)) && task.text("finished_at").is_none()
    };
    for task in tasks::list(cluster).await?.into_iter().filter(asked) {
        let status = cell(task.status());
        output.push(vec![
            cell(task.task_id),
            cell(cluster.name()),
            cell(shard),
            status,
        ]);
    }
    Ok(output)
}

fn forced(args: &Args, at: usize) -> Result<bool, Fault> {
    match args.words.get(at..).unwrap_or_default() {
        [] => Ok(false),
        [word] if word.eq_ignore_ascii_case("FORCE") => Ok(true),
        _ => Err(args.misused()),
    }
}
