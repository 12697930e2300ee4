//! A connection that also keeps what the server pushes.

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::wait::wait_until;

/// Whom to connect as, and where.
#[derive(Debug, Clone)]
pub struct Login {
    /// TCP port on 127.0.0.1.
    pub port: u16,
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
    /// Database.
    pub database: String,
    /// Startup options, as `-c name=value`.
    pub options: String,
}

/// A connection; dereferences to tokio-postgres' client.
pub struct Client {
    inner: tokio_postgres::Client,
    token: Arc<Mutex<Option<String>>>,
}

impl Client {
    /// Logs in.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses the login.
    pub async fn connect(login: &Login) -> anyhow::Result<Self> {
        let mut config = tokio_postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(login.port)
            .user(&login.user)
            .password(&login.password)
            .dbname(&login.database)
            .connect_timeout(Duration::from_secs(30));
        if !login.options.is_empty() {
            config.options(&login.options);
        }
        let (inner, mut connection) = config
            .connect(NoTls)
            .await
            .with_context(|| format!("login of {} on port {}", login.user, login.port))?;
        let token = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&token);
        tokio::spawn(async move {
            poll_fn(|cx| {
                loop {
                    let polled = connection.poll_message(cx);
                    // ParameterStatus is taken by the connection itself, without a message.
                    if let Some(value) = connection.parameter("pgdog.commit_lsn") {
                        *seen.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(value.to_owned());
                    }
                    match polled {
                        Poll::Ready(Some(Ok(_))) => {}
                        Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                        Poll::Pending => return Poll::Pending,
                    }
                }
            })
            .await;
        });
        Ok(Self { inner, token })
    }

    /// The token that was pushed last.
    pub fn pushed_token(&self) -> Option<String> {
        self.token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .filter(|t| !t.is_empty())
    }

    /// Runs a write and returns the token that came with its commit.
    ///
    /// # Errors
    /// When the statement fails or no new token arrives.
    pub async fn write_for_token(&self, sql: &str) -> anyhow::Result<String> {
        let before = self.pushed_token();
        self.inner.batch_execute(sql).await?;
        wait_until(
            "a token pushed with the commit",
            Duration::from_secs(30),
            || async {
                Ok(self
                    .pushed_token()
                    .filter(|now| Some(now) != before.as_ref()))
            },
        )
        .await
    }

    /// Runs a write and makes its token the floor of what follows.
    ///
    /// # Errors
    /// As [`Self::write_for_token`].
    pub async fn write_then_floor(&self, sql: &str) -> anyhow::Result<String> {
        let token = self.write_for_token(sql).await?;
        let set = format!("SET pgdog.min_lsn = '{token}'");
        self.inner.batch_execute(&set).await?;
        Ok(token)
    }

    /// The error of a simple query that must be refused with this SQLSTATE.
    ///
    /// # Errors
    /// When it is not refused, or with another one.
    pub async fn refused(&self, sql: &str, code: &str) -> anyhow::Result<tokio_postgres::Error> {
        let Err(error) = self.inner.simple_query(sql).await else {
            bail!("not refused: {sql}");
        };
        ensure!(sqlstate(&error) == code, "{sql}: {}", describe(&error));
        Ok(error)
    }

    /// The rows of a simple query, as text.
    ///
    /// # Errors
    /// When the query fails.
    pub async fn rows(&self, sql: &str) -> Result<Vec<Vec<String>>, tokio_postgres::Error> {
        let mut rows = Vec::new();
        for message in self.inner.simple_query(sql).await? {
            if let SimpleQueryMessage::Row(row) = message {
                rows.push(
                    (0..row.len())
                        .map(|i| row.get(i).unwrap_or("NULL").to_owned())
                        .collect(),
                );
            }
        }
        Ok(rows)
    }

    /// The rows of a simple query by the names of their columns, NULL as `NULL`.
    ///
    /// # Errors
    /// When the query fails.
    pub async fn named_rows(
        &self,
        sql: &str,
    ) -> Result<Vec<HashMap<String, String>>, tokio_postgres::Error> {
        let mut rows = Vec::new();
        for message in self.inner.simple_query(sql).await? {
            if let SimpleQueryMessage::Row(row) = message {
                let columns = row.columns().iter().enumerate();
                let cells = columns.map(|(at, column)| {
                    let value = row.get(at).unwrap_or("NULL");
                    (column.name().to_owned(), value.to_owned())
                });
                rows.push(cells.collect());
            }
        }
        Ok(rows)
    }

    /// The first column of the only row of a simple query.
    ///
    /// # Errors
    /// When the query fails or has no row.
    pub async fn value(&self, sql: &str) -> anyhow::Result<String> {
        let rows = self.rows(sql).await.with_context(|| sql.to_owned())?;
        let row = rows
            .into_iter()
            .next()
            .with_context(|| format!("no row: {sql}"))?;
        row.into_iter()
            .next()
            .with_context(|| format!("no column: {sql}"))
    }
}

impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

/// SQLSTATE of a failure, or the failure itself when it is not from a server.
pub fn sqlstate(error: &tokio_postgres::Error) -> String {
    match error.code() {
        Some(code) => code.code().to_owned(),
        None => error.to_string(),
    }
}

/// Everything that a failure says, on one line.
pub fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => {
            let mut text = format!("{} {}", db.code().code(), db.message());
            if let Some(detail) = db.detail() {
                text.push_str(&format!(" | {detail}"));
            }
            if let Some(hint) = db.hint() {
                text.push_str(&format!(" | {hint}"));
            }
            text
        }
        None => error.to_string(),
    }
}
