//! The running shim's admin database, and its tables as text or JSON.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::config::Config;
use crate::net::{Dialer, LoginError, Mode, Outbound};

/// How the shim is connected to: below TLS when it serves that. Its files are read by this very
/// process too, so that nothing is won by checking the certificate.
pub(super) fn dialer() -> anyhow::Result<Arc<Dialer>> {
    Ok(Dialer::new(Outbound::load(Mode::Prefer, None, None)?))
}

/// A connection to the admin database.
pub(super) struct Link {
    client: Client,
}

impl Link {
    /// Connects with `[admin]` of the configuration.
    pub(super) async fn open(config: &Config) -> anyhow::Result<Self> {
        let (general, admin) = (&config.general, &config.admin);
        // A shim that listens on every address is reached on the local one.
        let host = match general.host.as_str() {
            "0.0.0.0" | "*" | "" => "127.0.0.1",
            "::" => "::1",
            host => host,
        };
        let mut login = tokio_postgres::Config::new();
        login
            .host(host)
            .port(general.port)
            .user(&admin.user)
            .dbname(&admin.name)
            .application_name("pgdog cli")
            .connect_timeout(Duration::from_secs(5));
        if let Some(password) = &admin.password {
            login.password(password);
        }
        let (client, connection) = dialer()?.log_in(&login).await.map_err(|error| {
            anyhow!(
                "no pgdog answers on {host}:{}: {}",
                general.port,
                match error {
                    LoginError::Dial(error) => error.to_string(),
                    LoginError::Login(error) => text_of(&error),
                }
            )
        })?;
        tokio::spawn(connection);
        Ok(Self { client })
    }

    /// Sends one command.
    pub(super) async fn ask(&self, command: &str) -> anyhow::Result<Table> {
        let answer = self.client.simple_query(command).await;
        let messages = answer.map_err(|error| anyhow!("{}", text_of(&error)))?;
        let mut table = Table::default();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    table.columns = columns.iter().map(|c| c.name().to_owned()).collect();
                }
                SimpleQueryMessage::Row(row) => {
                    let cells = (0..row.len()).map(|at| row.get(at).map(str::to_owned));
                    table.rows.push(cells.collect());
                }
                _ => {}
            }
        }
        Ok(table)
    }
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// Names.
    pub(super) columns: Vec<String>,
    /// Cells; none is NULL.
    pub(super) rows: Vec<Vec<Option<String>>>,
}

impl Table {
    /// One column's cells from the first row on; empty when there is no such column.
    pub(super) fn values<'a>(&'a self, column: &str) -> impl Iterator<Item = Option<&'a str>> {
        let at = self.columns.iter().position(|name| name == column);
        let rows = at.map(|at| self.rows.iter().map(move |row| row[at].as_deref()));
        rows.into_iter().flatten()
    }

    /// The first row's cell, if it is there and not NULL.
    pub(super) fn first(&self, column: &str) -> Option<&str> {
        self.values(column).next().flatten()
    }

    /// Only the rows in which a column has this value.
    pub(super) fn only(&self, column: &str, value: &str) -> Self {
        let at = self.columns.iter().position(|name| name == column);
        let keep =
            |row: &&Vec<Option<String>>| at.is_some_and(|at| row[at].as_deref() == Some(value));
        let rows = self.rows.iter().filter(keep).cloned().collect();
        Self {
            columns: self.columns.clone(),
            rows,
        }
    }

    /// To standard output.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = match json {
            true => serde_json::to_string_pretty(&self.json())?,
            false => self.text(),
        };
        writeln!(io::stdout(), "{text}").context("cannot write to standard output")
    }

    fn json(&self) -> serde_json::Value {
        let object = |row: &Vec<Option<String>>| {
            let pairs = self.columns.iter().zip(row).map(|(column, cell)| {
                (
                    column.clone(),
                    cell.as_deref().map_or(serde_json::Value::Null, typed),
                )
            });
            serde_json::Value::Object(pairs.collect())
        };
        self.rows.iter().map(object).collect()
    }

    fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::ASCII_FULL_CONDENSED);
        table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
        table.set_header(&self.columns);
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| cell.as_deref().unwrap_or("")));
        }
        table.to_string()
    }
}

/// Numbers become numbers in JSON where nothing is lost by it; everything else stays text.
fn typed(cell: &str) -> serde_json::Value {
    match (cell.parse::<i64>(), cell.parse::<f64>()) {
        (Ok(number), _) if number.to_string() == cell => number.into(),
        (_, Ok(number)) if number.is_finite() && number.to_string() == cell => number.into(),
        _ => cell.into(),
    }
}

/// What the server said, with detail and hint.
fn text_of(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else {
        return error.to_string();
    };
    let mut text = db.message().to_owned();
    if let Some(detail) = db.detail() {
        text.push_str(&format!("\ndetail: {detail}"));
    }
    if let Some(hint) = db.hint() {
        text.push_str(&format!("\nhint: {hint}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |cells: [Option<&str>; 2]| cells.map(|cell| cell.map(str::to_owned)).to_vec();
        Table {
            columns: vec!["id".into(), "error".into()],
            rows: vec![
                row([Some("7"), None]),
                row([Some("8"), Some("007")]),
                row([Some("9.5"), Some("1e400")]),
            ],
        }
    }

    #[test]
    fn cells_are_found_by_name() {
        assert_eq!(table().first("id"), Some("7"));
        assert_eq!(table().first("error"), None);
        assert_eq!(table().values("no such column").count(), 0);
        assert_eq!(table().only("id", "8").first("error"), Some("007"));
    }

    #[test]
    fn json_has_numbers_nulls_and_keeps_leading_zeros() {
        let json = serde_json::json!([
            {"id": 7, "error": null},
            {"id": 8, "error": "007"},
            {"id": 9.5, "error": "1e400"}
        ]);
        assert_eq!(table().json(), json);
    }
}
