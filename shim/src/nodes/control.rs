//! Control connections: the shim's own, apart from those that are lent to clients.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::Duration;

use pgdog_core::fault::Fault;
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::topology::Address;
use super::trouble;
use crate::net::{Dialer, LoginError};

/// Limit for one statement of ours on a [`Session`]; a node that is slower counts as unreachable.
///
/// It has to outlast what a statement may wait for on a busy node: the row of a task, which the
/// shim that drives it holds for a step at a time.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// How control connections log in.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) connect_timeout: Duration,
    pub(super) dialer: Arc<Dialer>,
}

/// Opens a connection that ends when the client is dropped.
pub(super) async fn connect(address: &Address, login: &Login) -> Result<Client, Fault> {
    let (client, connection) = open(address, login).await?;
    // The connection task ends with the client; an error is seen by whoever uses the client next.
    tokio::spawn(connection);
    Ok(client)
}

/// As [`connect`], but the caller drives the connection: it ends when the server is lost.
pub(super) async fn open(
    address: &Address,
    login: &Login,
) -> Result<(Client, impl Future<Output = ()> + Send + 'static), Fault> {
    let mut config = tokio_postgres::Config::new();
    config
        .host(&address.host)
        .port(address.port)
        .dbname(&address.database)
        .user(&login.user)
        .application_name("pgdog");
    if let Some(password) = &login.password {
        config.password(password);
    }
    let opened = tokio::time::timeout(login.connect_timeout, login.dialer.log_in(&config)).await;
    let (client, connection) = match opened {
        Ok(Ok(pair)) => pair,
        Ok(Err(LoginError::Login(error))) => return Err(trouble::from_node(address, &error)),
        Ok(Err(LoginError::Dial(error))) => {
            return Err(trouble::unreachable(address, &error.to_string()));
        }
        Err(_) => {
            return Err(trouble::unreachable(
                address,
                "no answer to the login in time",
            ));
        }
    };
    let drive = async move {
        // How it ended is of no interest: the client's next call fails with the reason.
        let _ = connection.await;
    };
    Ok((client, drive))
}

/// A connection to one node that is opened when needed and opened again when lost.
pub(super) struct Link {
    address: Address,
    login: Arc<Login>,
    /// Runs first on each connection.
    setup: String,
    slot: Mutex<Option<Arc<Session>>>,
}

impl Link {
    pub(super) fn new(address: Address, login: Arc<Login>) -> Self {
        Self::with_setup(address, login, String::new())
    }

    pub(super) fn with_setup(address: Address, login: Arc<Login>, setup: String) -> Self {
        Self {
            address,
            login,
            setup,
            slot: Mutex::new(None),
        }
    }

    /// The open session, or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Fault> {
        let mut slot = self.slot.lock().await;
        if let Some(session) = &*slot
            && session.usable()
        {
            return Ok(session.clone());
        }
        *slot = None;
        let client = connect(&self.address, &self.login).await?;
        let session = Arc::new(Session::new(self.address.clone(), client));
        if !self.setup.is_empty() {
            session.batch(&self.setup).await?;
        }
        *slot = Some(session.clone());
        Ok(session)
    }
}

/// One open control connection; statements are prepared once and may be sent concurrently.
pub(super) struct Session {
    address: Address,
    client: Client,
    statements: SyncMutex<HashMap<String, Statement>>,
    hung: AtomicBool,
}

impl Session {
    fn new(address: Address, client: Client) -> Self {
        Self {
            address,
            client,
            statements: SyncMutex::default(),
            hung: AtomicBool::new(false),
        }
    }

    fn usable(&self) -> bool {
        !self.client.is_closed() && !self.hung.load(Ordering::Relaxed)
    }

    /// Runs one statement.
    pub(super) async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Fault> {
        self.query_within(STATEMENT_TIMEOUT, sql, params).await
    }

    /// As [`Session::query`] with a limit of its own. Running out of time gives the session up: its
    /// replies can no longer be told from a dead server's silence.
    pub(super) async fn query_within(
        &self,
        limit: Duration,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Fault> {
        match tokio::time::timeout(limit, self.run(sql, params)).await {
            Ok(result) => result.map_err(|error| trouble::from_node(&self.address, &error)),
            Err(_) => {
                self.hung.store(true, Ordering::Relaxed);
                Err(trouble::unreachable(
                    &self.address,
                    "no answer to a statement in time",
                ))
            }
        }
    }

    /// Runs a text without parameters that is not worth preparing (`COMMIT PREPARED` and the like
    /// name something else every time).
    pub(super) async fn batch(&self, sql: &str) -> Result<(), Fault> {
        match tokio::time::timeout(STATEMENT_TIMEOUT, self.client.batch_execute(sql)).await {
            Ok(result) => result.map_err(|error| trouble::from_node(&self.address, &error)),
            Err(_) => {
                self.hung.store(true, Ordering::Relaxed);
                Err(trouble::unreachable(
                    &self.address,
                    "no answer to a statement in time",
                ))
            }
        }
    }

    async fn run(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let known = self.statements().get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let statement = self.client.prepare(sql).await?;
                self.statements().insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let result = self.client.query(&statement, params).await;
        if result.is_err() {
            // A changed result type or a dropped table makes a prepared statement useless.
            self.statements().remove(sql);
        }
        result
    }

    fn statements(&self) -> std::sync::MutexGuard<'_, HashMap<String, Statement>> {
        self.statements
            .lock()
            .expect("no code that holds this lock can panic")
    }
}
