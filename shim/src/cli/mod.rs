//! Verbs of the command line.
//!
//! | file | verbs |
//! |---|---|
//! | `check` | `check` |
//! | `dev/` | `dev`: local clusters for trying, testing and demonstrating |
//! | `tasks` | `add-shard`, `cutover`, `plan-shard`, `verify-shard` |
//! | | `tasks`, `stop-task`, `instances` |
//! | `tasks_link`, `tasks_progress` | the admin database as tables; a task as it goes |
//! | `route` | `route --sql` |

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::app;
use crate::config::Config;

mod check;
mod dev;
mod route;
mod tasks;
mod tasks_link;
mod tasks_progress;

/// Sharded PostgreSQL: a proxy that routes by replay position and placement.
#[derive(Debug, Parser)]
#[command(name = "pgdog", version, about)]
struct Cli {
    #[command(flatten)]
    files: Files,
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
struct Files {
    /// Configuration file.
    #[arg(
        long,
        global = true,
        env = "PGDOG_CONFIG",
        default_value = "pgdog.toml"
    )]
    config: PathBuf,
    /// Users file.
    #[arg(long, global = true, env = "PGDOG_USERS", default_value = "users.toml")]
    users: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve clients (what happens without a verb, too).
    Run,
    /// Check both configuration files and say what is wrong.
    Check,
    /// Start or stop a local cluster: shards, replicas, spare servers and shims.
    Dev(dev::Args),
    /// Say where a statement would go, without running it.
    Route(route::Args),
    #[command(flatten)]
    Tasks(tasks::Verb),
}

/// Runs the verb of this process's command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pgdog: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.verb {
        None | Some(Verb::Run) => app::run(cli.files.load()?),
        Some(Verb::Check) => check::run(&cli.files.load()?),
        Some(Verb::Dev(args)) => on_runtime(dev::run(args)),
        Some(Verb::Route(args)) => on_runtime(route::run(args, &cli.files.load()?)),
        Some(Verb::Tasks(verb)) => {
            let config = cli.files.load()?;
            on_runtime(async { tasks::run(verb, &config).await })
        }
    }
}

impl Files {
    fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(&self.config, &self.users)?)
    }
}

/// Runs a verb that talks to servers.
fn on_runtime<F: Future<Output = anyhow::Result<()>>>(verb: F) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(verb)
}
