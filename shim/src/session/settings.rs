//! What sessions need to know of the configuration. Plain data, replaced as a whole at RELOAD.

use std::collections::HashMap;
use std::time::Duration;

use super::param_values::Values;
use crate::net::TcpSettings;

/// See the module.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The admin database, if there is one.
    pub admin: Option<Account>,
    /// Name of the admin database.
    pub admin_database: String,
    /// Who may log in.
    pub accounts: Vec<Account>,
    /// How clients prove who they are.
    pub auth: Auth,
    /// How long a client keeps its server connection, where nothing else is said.
    pub keep: Keep,
    /// The same for some databases.
    pub keep_of_database: HashMap<String, Keep>,
    /// Where plain reads go.
    pub reads: Reads,
    /// How a replica is chosen.
    pub balancing: Balancing,
    /// Whether writes to several shards are committed in two phases.
    pub two_phase: bool,
    /// What parameters a session starts with.
    pub values: Values,
    /// How long a client waits for a server connection.
    pub checkout_timeout: Duration,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// How many clients there may be.
    pub max_clients: usize,
    /// After how long a client that sends nothing is sent away.
    pub idle_timeout: Option<Duration>,
    /// The same inside a transaction.
    pub idle_in_transaction_timeout: Option<Duration>,
    /// Options of clients' sockets.
    pub tcp: TcpSettings,
    /// How long a statement may run.
    pub query_timeout: Option<Duration>,
}

/// A user.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// Name.
    pub name: String,
    /// Password; None lets nobody in but under trust.
    pub password: Option<String>,
    /// Databases that may be used; None is all.
    pub databases: Option<Vec<String>>,
    /// Name on the nodes.
    pub server_user: String,
    /// Password on the nodes.
    pub server_password: Option<String>,
    /// Startup parameters on the nodes, sorted.
    pub params: Vec<(String, String)>,
    /// As [`Settings::idle_timeout`], when not the same; zero is never.
    pub idle_timeout: Option<Duration>,
    /// How long this user keeps a server connection, when not as the database says.
    pub keep: Option<Keep>,
}

/// Passwords stay out of logs.
impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// SCRAM-SHA-256.
    Scram,
    /// MD5 challenge.
    Md5,
    /// Not at all.
    Trust,
}

/// How long a client keeps a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Until the end of the statement: there are no transactions of several.
    Statement,
    /// Until the end of the transaction.
    Transaction,
    /// Until it leaves.
    Session,
}

/// Where reads outside of transactions go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// To any node.
    AnyNode,
    /// To replicas as long as there is one.
    Replicas,
}

/// How a node is chosen among equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balancing {
    /// At random.
    Random,
    /// One after the other.
    RoundRobin,
}

impl Settings {
    /// How long a user keeps a server connection of a database.
    pub fn keep_for(&self, account: &Account, database: &str) -> Keep {
        let of_database = || self.keep_of_database.get(database).copied();
        account.keep.or_else(of_database).unwrap_or(self.keep)
    }

    /// The user of that name who may use that database.
    pub fn account(&self, name: &str, database: &str) -> Option<&Account> {
        let may_use = |account: &&Account| {
            let databases = account.databases.as_ref();
            databases.is_none_or(|list| list.iter().any(|d| d == database))
        };
        let named = self.accounts.iter().filter(|account| account.name == name);
        named.into_iter().find(may_use)
    }
}
