//! Verbs that grow a cluster: `add-shard`, `cutover`, `plan-shard`, `verify-shard`, `tasks`,
//! `stop-task`, `instances`. They speak to the running shim's admin database.

use anyhow::{Context as _, bail};
use clap::Subcommand;

use super::tasks_link::{Link, Table};
use super::tasks_progress::{self, Until};
use crate::config::Config;

/// Verbs that grow a cluster.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Copy everything that every shard has to a declared new shard, and cut over to it.
    AddShard {
        /// Logical database.
        database: String,
        /// Number of the new shard.
        shard: u16,
        /// Cut over as soon as the new shard has caught up.
        #[arg(long)]
        auto: bool,
        /// Use this publication of yours instead of making one.
        #[arg(long)]
        publication: Option<String>,
        /// Do not wait; the task goes on in the background.
        #[arg(long)]
        detach: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Let a new shard that has caught up serve.
    Cutover {
        /// Logical database.
        database: String,
        /// Number of the new shard.
        shard: u16,
        /// Also when a shim that is alive cannot reach the new shard.
        #[arg(long)]
        force: bool,
        /// Do not wait.
        #[arg(long)]
        detach: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say what add-shard would do and what stands against it; changes nothing.
    PlanShard {
        /// Logical database.
        database: String,
        /// Number of the new shard.
        shard: u16,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Compare counts and hashes of every omnisharded table on every shard.
    VerifyShard {
        /// Logical database.
        database: String,
        /// Number of a shard.
        shard: u16,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List topology tasks, the newest first.
    Tasks {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Undo a task, any time before the new shard serves.
    StopTask {
        /// Number of the task.
        task: i64,
        /// Do not wait.
        #[arg(long)]
        detach: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the shims that report to shard 0.
    Instances {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Runs one of them.
pub(super) async fn run(verb: Verb, config: &Config) -> anyhow::Result<()> {
    let link = Link::open(config).await?;
    match verb {
        Verb::AddShard {
            database,
            shard,
            auto,
            publication,
            detach,
            json,
        } => {
            let mut command = format!("ADD SHARD {} {shard}", quoted(&database));
            if auto {
                command.push_str(" AUTO");
            }
            if let Some(name) = publication {
                command.push_str(&format!(" PUBLICATION {}", quoted(&name)));
            }
            let until = if auto { Until::Done } else { Until::Parked };
            start(&link, &command, (!detach).then_some(until), json).await
        }
        Verb::Cutover {
            database,
            shard,
            force,
            detach,
            json,
        } => {
            let force = if force { " FORCE" } else { "" };
            let command = format!("CUTOVER SHARD {} {shard}{force}", quoted(&database));
            start(&link, &command, (!detach).then_some(Until::Done), json).await
        }
        Verb::StopTask { task, detach, json } => {
            let until = (!detach).then_some(Until::Stopped);
            start(&link, &format!("STOP_TASK {task}"), until, json).await
        }
        Verb::PlanShard {
            database,
            shard,
            json,
        } => {
            let command = format!("PLAN SHARD {} {shard}", quoted(&database));
            let blocked = |verdict: Option<&str>| verdict == Some("blocked");
            judged(&link, &command, json, ("verdict", blocked)).await
        }
        Verb::VerifyShard {
            database,
            shard,
            json,
        } => {
            let command = format!("VERIFY SHARD {} {shard}", quoted(&database));
            let differs = |agrees: Option<&str>| agrees != Some("t");
            judged(&link, &command, json, ("agrees", differs)).await
        }
        Verb::Tasks { json } => link.ask("SHOW TASKS").await?.print(json),
        Verb::Instances { json } => link.ask("SHOW INSTANCES").await?.print(json),
    }
}

/// Prints a table of judgements; an error if one of them is bad.
async fn judged(
    link: &Link,
    command: &str,
    json: bool,
    (column, is_bad): (&str, impl Fn(Option<&str>) -> bool),
) -> anyhow::Result<()> {
    let table = link.ask(command).await?;
    table.print(json)?;
    match table.values(column).filter(|cell| is_bad(*cell)).count() {
        0 => Ok(()),
        bad => bail!("{bad} of {} rows are not as they must be", table.rows.len()),
    }
}

/// Sends a command that answers with a task, then follows the task if asked to.
async fn start(link: &Link, command: &str, until: Option<Until>, json: bool) -> anyhow::Result<()> {
    let answer = link.ask(command).await?;
    let Some(until) = until else {
        return answer.print(json);
    };
    let task = answer.values("task_id").next().flatten();
    let task = task
        .with_context(|| format!("{command}: no task in the answer"))?
        .to_owned();
    let end: Table = tasks_progress::follow(link, &task, until).await?;
    end.print(json)?;
    tasks_progress::verdict(&end, until)
}

/// A word for the admin database that keeps its case.
fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('"', "\"\""))
}
