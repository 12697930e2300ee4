//! One session on one node: every statement's error names the node and what was being done.

use std::time::Duration;

use pgdog_core::ids::TaskId;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, SimpleQueryMessage};

use crate::net::LoginError;
use crate::nodes::Address;

use super::error::WorkflowError;
use super::site::Site;

/// Parameters of a statement.
pub type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A session that works for a task. Closed when dropped.
pub struct Node {
    client: Client,
    name: String,
}

impl Node {
    /// Logs in. With a task, the session passes the DDL freeze of that task.
    ///
    /// # Errors
    /// When the node cannot be reached or refuses the login.
    pub async fn connect(
        site: &Site,
        address: &Address,
        task: Option<TaskId>,
    ) -> Result<Self, WorkflowError> {
        let name = format!("{}:{}/{}", address.host, address.port, address.database);
        let mut config = tokio_postgres::Config::new();
        config
            .host(&address.host)
            .port(address.port)
            .dbname(&address.database)
            .user(&site.user)
            .application_name("pgdog workflow")
            .connect_timeout(site.connect_timeout)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(30));
        if let Some(password) = &site.password {
            config.password(password);
        }
        // Time limits that a role or database may carry are meant for applications.
        let mut options = "-c statement_timeout=0 -c lock_timeout=0".to_owned();
        if let Some(task) = task {
            options.push_str(&format!(" -c pgdog.task_id={task}"));
        }
        config.options(options);
        let limit = site.connect_timeout * 2;
        match tokio::time::timeout(limit, site.dialer.log_in(&config)).await {
            Err(_) => Err(WorkflowError::Silent {
                node: name,
                limit_ms: limit.as_millis(),
            }),
            Ok(Err(LoginError::Login(source))) => {
                Err(WorkflowError::Unreachable { node: name, source })
            }
            Ok(Err(LoginError::Dial(source))) => {
                Err(WorkflowError::NotReached { node: name, source })
            }
            Ok(Ok((client, connection))) => {
                // Ends by itself when the client is dropped or the server closes; whoever uses
                // the client sees the error there.
                tokio::spawn(connection);
                Ok(Self { client, name })
            }
        }
    }

    /// `host:port/database`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the session is gone.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Rows of one statement.
    ///
    /// # Errors
    /// The server's, with place and purpose.
    pub async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, WorkflowError> {
        self.client
            .query(sql, params)
            .await
            .map_err(|source| self.error(doing, source))
    }

    /// Exactly one row.
    ///
    /// # Errors
    /// The server's, or that there is not exactly one.
    pub async fn one(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Row, WorkflowError> {
        self.client
            .query_one(sql, params)
            .await
            .map_err(|source| self.error(doing, source))
    }

    /// One statement for its effect; how many rows it touched.
    ///
    /// # Errors
    /// The server's, with place and purpose.
    pub async fn execute(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<u64, WorkflowError> {
        self.client
            .execute(sql, params)
            .await
            .map_err(|source| self.error(doing, source))
    }

    /// Several statements in one message, without parameters.
    ///
    /// # Errors
    /// The first that the server reports.
    pub async fn batch(&self, doing: &'static str, sql: &str) -> Result<(), WorkflowError> {
        self.client
            .batch_execute(sql)
            .await
            .map_err(|source| self.error(doing, source))
    }

    /// As [`Node::batch`], and how many rows each statement touched or returned.
    ///
    /// # Errors
    /// The first that the server reports.
    pub async fn counted(&self, doing: &'static str, sql: &str) -> Result<Vec<u64>, WorkflowError> {
        let answer = self.client.simple_query(sql).await;
        let messages = answer.map_err(|source| self.error(doing, source))?;
        let counts = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::CommandComplete(count) => Some(*count),
            _ => None,
        });
        Ok(counts.collect())
    }

    fn error(&self, doing: &'static str, source: tokio_postgres::Error) -> WorkflowError {
        WorkflowError::Sql {
            node: self.name.clone(),
            doing,
            source,
        }
    }
}

/// An identifier, quoted.
pub fn ident(name: &str) -> String {
    postgres_protocol::escape::escape_identifier(name)
}

/// A string constant, quoted.
pub fn literal(value: &str) -> String {
    postgres_protocol::escape::escape_literal(value)
}

/// A libpq connection string with each value quoted.
pub fn conninfo(pairs: &[(&str, &str)]) -> String {
    let quoted = pairs.iter().map(|(key, value)| {
        let value = value.replace('\\', "\\\\").replace('\'', "\\'");
        format!("{key}='{value}'")
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_survives_quotes_and_backslashes() {
        let text = conninfo(&[("host", "127.0.0.1"), ("password", r"a'b\c d")]);
        assert_eq!(text, r"host='127.0.0.1' password='a\'b\\c d'");
    }
}
