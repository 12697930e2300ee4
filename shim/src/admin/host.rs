//! What admin commands need from the running process; `app` implements it.

use std::pin::Pin;
use std::sync::Arc;

use pgdog_core::fault::Fault;

use crate::nodes::Cluster;

/// Something that takes a while.
pub type Later<'a> = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send + 'a>>;

/// The running process, seen by an operator.
pub trait Host: Send + Sync {
    /// Logical databases by name.
    fn clusters(&self) -> Vec<Arc<Cluster>>;
    /// Databases that are configured and not served, with the reasons.
    fn absent(&self) -> Vec<(String, String)>;
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
    /// How many users are listed.
    fn users(&self) -> usize;
    /// Rows of `SHOW PREPARED`: (server-side name, text, uses).
    fn prepared(&self) -> Vec<(String, String, u64)>;
    /// Nodes that no read goes to: host, port, and for how long, in ms.
    fn bans(&self) -> Vec<(String, u16, u64)>;
    /// No read goes to a node, or, with false, may go there again. False: nothing changed.
    fn ban(&self, host: &str, port: u16, banned: bool) -> bool;
    /// Lends no connections of a database, of all without a name; or does so again.
    fn pause(&self, database: Option<&str>, paused: bool) -> Result<(), Fault>;
    /// Reads the configuration files again.
    fn reload(&self) -> Later<'_>;
    /// Changes a setting of `[general]` until the files are read again.
    fn set<'a>(&'a self, name: &'a str, value: &'a str) -> Later<'a>;
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
    /// Bytes from it.
    pub received_bytes: u64,
    /// Bytes to it.
    pub sent_bytes: u64,
    /// Time that its messages took, in µs.
    pub query_us: u64,
    /// Time that its transactions took, in µs.
    pub transaction_us: u64,
    /// Time that it waited for server connections, in µs.
    pub wait_us: u64,
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
    /// `idle`, `active`, `idle in transaction` or `idle in transaction (aborted)`.
    pub state: String,
    /// Backend's process id.
    pub backend_pid: i32,
    /// Seconds since it was opened.
    pub age_s: u64,
    /// Seconds since it was lent or given back.
    pub rest_s: u64,
    /// Batches answered.
    pub queries: u64,
    /// Batches after which no transaction was open.
    pub transactions: u64,
    /// Statements prepared on it.
    pub prepared: u64,
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
    /// Those of them that nobody uses inside a transaction.
    pub idle_in_transaction: u64,
    /// Connections at most.
    pub size: u64,
    /// Connections that stay open.
    pub min: u64,
    /// How long a client keeps its connection.
    pub mode: String,
    /// Whether nobody gets a connection.
    pub paused: bool,
    /// Checkouts since the start.
    pub checkouts: u64,
    /// Longest wait of those who wait now, in µs.
    pub max_wait_us: u64,
    /// Time that clients waited since the start, in µs.
    pub waited_us: u64,
    /// Connections opened since the start.
    pub connects: u64,
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
    /// Time that messages took, in µs.
    pub query_us: u64,
    /// Time that transactions took, in µs.
    pub transaction_us: u64,
    /// Time that clients waited for server connections, in µs.
    pub wait_us: u64,
}
