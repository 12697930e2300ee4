//! `pgdog route --sql`: where a statement would go, as the running shim answers it.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::json;
use tokio_postgres::SimpleQueryMessage;

use super::tasks_link;
use crate::config::Config;

/// Arguments of `pgdog route`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The statement; it is planned and routed, not run.
    #[arg(long)]
    sql: String,
    /// Logical database; the first one of the configuration without it.
    #[arg(long)]
    database: Option<String>,
    /// User to ask as; the first one of the database without it.
    #[arg(long)]
    user: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks the shim and prints its answer.
pub(super) async fn run(args: Args, config: &Config) -> anyhow::Result<()> {
    let names = config.database_names();
    let database = match &args.database {
        Some(name) => name.as_str(),
        None => names.first().copied().context("there are no databases")?,
    };
    let user = match &args.user {
        Some(name) => config.user(name, database),
        None => config
            .users
            .users
            .iter()
            .find(|user| user.may_use(database)),
    };
    let user = user.with_context(|| format!("no such user of database {database}"))?;
    let host = match config.general.host.as_str() {
        "0.0.0.0" => "127.0.0.1",
        host => host,
    };
    let mut login = tokio_postgres::Config::new();
    login
        .host(host)
        .port(config.general.port)
        .user(&user.name)
        .dbname(database)
        .connect_timeout(Duration::from_secs(5));
    if let Some(password) = &user.password {
        login.password(password);
    }
    let (client, connection) = tasks_link::dialer()?
        .log_in(&login)
        .await
        .with_context(|| format!("no shim serves {host}:{}", config.general.port))?;
    tokio::spawn(connection);
    let answer = client
        .simple_query(&format!("EXPLAIN (PGDOG) {}", args.sql))
        .await;
    let answer = answer.map_err(|error| match error.as_db_error() {
        Some(db) => {
            let more = [db.detail(), db.hint()].into_iter().flatten();
            anyhow!(
                "{}",
                std::iter::once(db.message())
                    .chain(more)
                    .collect::<Vec<_>>()
                    .join("; ")
            )
        }
        None => anyhow!(error),
    })?;
    let lines: Vec<&str> = answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    match args.json {
        true => println!("{}", json!({ "database": database, "route": lines })),
        false => println!("{}", lines.join("\n")),
    }
    Ok(())
}
