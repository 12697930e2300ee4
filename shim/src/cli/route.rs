//! `pgdog route --sql`: where a statement would go, as the running shim answers it.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::json;
use tokio_postgres::SimpleQueryMessage;

use super::tasks_link;
use crate::config::Config;
use crate::plan;

/// Arguments of `pgdog route`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The statement, or several; they are planned and routed, not run.
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
    let mut routes: Vec<Vec<String>> = Vec::new();
    for sql in statements(&args.sql) {
        routes.push(explain(&client, sql).await?);
    }
    match args.json {
        true => match routes.as_slice() {
            [route] => println!("{}", json!({ "database": database, "route": route })),
            routes => println!("{}", json!({ "database": database, "routes": routes })),
        },
        false => {
            let texts: Vec<String> = routes.iter().map(|lines| lines.join("\n")).collect();
            println!("{}", texts.join("\n\n"));
        }
    }
    Ok(())
}

/// The statements of a text, each with the comments in front of it. Sent in one message, those
/// behind the first would run. What cannot be read here is left to the server, which refuses it.
fn statements(sql: &str) -> Vec<&str> {
    let Ok(plan) = plan::parse(sql) else {
        return vec![sql];
    };
    let last = plan.statements.len().saturating_sub(1);
    let mut start = 0;
    let ends = plan.statements.iter().enumerate();
    let texts: Vec<_> = ends
        .filter_map(|(at, statement)| {
            let end = if at == last {
                sql.len()
            } else {
                statement.span.end
            };
            let text = sql.get(start..end);
            start = end;
            // What is left of the one before.
            text.map(|text| text.trim_start_matches(|c: char| c == ';' || c.is_whitespace()))
        })
        .collect();
    match texts.is_empty() {
        true => vec![sql],
        false => texts,
    }
}

/// The lines that the shim answers with.
async fn explain(client: &tokio_postgres::Client, sql: &str) -> anyhow::Result<Vec<String>> {
    let answer = client.simple_query(&format!("EXPLAIN (PGDOG) {sql}")).await;
    let answer = answer.map_err(|error| match error.as_db_error() {
        Some(db) => {
            let more = [db.detail(), db.hint()].into_iter().flatten();
            let all: Vec<_> = std::iter::once(db.message()).chain(more).collect();
            anyhow!("{}", all.join("; "))
        }
        None => anyhow!(error),
    })?;
    let lines = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use super::statements;

    #[test]
    fn statements_are_explained_one_by_one() {
        let sql = "SELECT 1; /* pgdog_shard: 1 */ DELETE FROM t ; -- end";
        let expected = ["SELECT 1", "/* pgdog_shard: 1 */ DELETE FROM t ; -- end"];
        assert_eq!(statements(sql), expected);
        for whole in ["VACUUM t;", "SELEC 1; SELECT 2", "", "-- nothing"] {
            assert_eq!(statements(whole), [whole]);
        }
    }
}
