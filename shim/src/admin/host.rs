//! What admin commands need from the running process; `app` implements it.

use std::sync::Arc;

use pgdog_core::fault::Fault;

use crate::nodes::Cluster;

/// The running process, seen by an operator.
pub trait Host: Send + Sync {
    /// Logical databases by name.
    fn clusters(&self) -> Vec<Arc<Cluster>>;
    /// Rows of `SHOW CLIENTS`.
    fn clients(&self) -> Vec<ClientRow>;
    /// Rows of `SHOW SERVERS`.
    fn servers(&self) -> Vec<ServerRow>;
    /// Rows of `SHOW POOLS`.
    fn pools(&self) -> Vec<PoolRow>;
    /// Rows of `SHOW STATS`: counters since the start, by database and user.
    fn stats(&self) -> Vec<StatsRow>;
    /// Rows of `SHOW CONFIG`: (name, value).
    fn config(&self) -> Vec<(String, String)>;
    /// Rows of `SHOW PREPARED`: (server-side name, text, uses).
    fn prepared(&self) -> Vec<(String, String, u64)>;
    /// Reads the configuration files again.
    fn reload(&self) -> Result<(), Fault>;
    /// Closes idle server connections; busy ones close when they come back.
    fn reconnect(&self);
    /// Starts a graceful stop.
    fn shutdown(&self);
}

/// One client.
#[derive(Debug, Clone, Default)]
pub struct ClientRow {
    /// Session number.
    pub id: u64,
    /// User.
    pub user: String,
    /// Database.
    pub database: String,
    /// `idle`, `active`, `waiting` or `idle in transaction`.
    pub state: String,
    /// Client's address.
    pub addr: String,
    /// Client's port.
    pub port: u16,
    /// Seconds since it connected.
    pub connected_s: u64,
    /// Its `application_name`.
    pub application_name: String,
    /// Statements run.
    pub queries: u64,
    /// Transactions finished.
    pub transactions: u64,
    /// Errors seen.
    pub errors: u64,
    /// Why it keeps its server connection, empty if it does not.
    pub pinned: String,
}

/// One server connection.
#[derive(Debug, Clone, Default)]
pub struct ServerRow {
    /// Database on the node.
    pub database: String,
    /// User.
    pub user: String,
    /// Host of the node.
    pub host: String,
    /// Port of the node.
    pub port: u16,
    /// `idle` or `active`.
    pub state: String,
    /// Backend's process id.
    pub backend_pid: i32,
    /// Seconds since it was opened.
    pub age_s: u64,
    /// Incarnation of the server, when it has the extension.
    pub incarnation: String,
}

/// One pool: a user at a node.
#[derive(Debug, Clone, Default)]
pub struct PoolRow {
    /// Database on the node.
    pub database: String,
    /// User.
    pub user: String,
    /// Host of the node.
    pub host: String,
    /// Port of the node.
    pub port: u16,
    /// Clients waiting for a connection.
    pub waiting: u64,
    /// Idle connections.
    pub idle: u64,
    /// Connections lent out.
    pub active: u64,
    /// Limit.
    pub size: u64,
    /// Checkouts since the start.
    pub checkouts: u64,
    /// Longest wait of those who wait now, in ms.
    pub max_wait_ms: u64,
    /// Errors while connecting.
    pub errors: u64,
}

/// Counters of one database and user.
#[derive(Debug, Clone, Default)]
pub struct StatsRow {
    /// Database.
    pub database: String,
    /// User.
    pub user: String,
    /// Transactions finished.
    pub transactions: u64,
    /// Statements run.
    pub queries: u64,
    /// Bytes from clients.
    pub received_bytes: u64,
    /// Bytes to clients.
    pub sent_bytes: u64,
    /// Errors sent.
    pub errors: u64,
    /// Statements by where they went: primaries.
    pub primary_queries: u64,
    /// Statements by where they went: replicas.
    pub replica_queries: u64,
}
