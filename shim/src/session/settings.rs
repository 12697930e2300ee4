//! What sessions need to know of the configuration. Plain data, replaced as a whole at RELOAD.

use std::collections::HashMap;
use std::time::Duration;

use super::account::{Account, Auth};
use super::param_values::Values;
use crate::net::TcpSettings;

/// See the module.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Tells them from those before and after.
    pub number: u64,
    /// The admin database, if there is one.
    pub admin: Option<Account>,
    /// Name of the admin database.
    pub admin_database: String,
    /// Who may log in.
    pub accounts: Vec<Account>,
    /// How clients prove who they are.
    pub auth: Auth,
    /// Whether the nodes are asked about users of whom no password is known here.
    pub asks_nodes: bool,
    /// Whether clients without TLS are refused.
    pub tls_required: bool,
    /// From which the salts of users come that do not exist; None: one of the process.
    pub mock_secret: Option<[u8; 32]>,
    /// How long a client keeps its server connection, where nothing else is said.
    pub keep: Keep,
    /// The same for some databases.
    pub keep_of_database: HashMap<String, Keep>,
    /// Where plain reads go.
    pub reads: Reads,
    /// Whether the first statement of a transaction decides where it goes.
    pub first_decides: bool,
    /// How a node is chosen among those that may take a read.
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
    /// To the primary.
    Primary,
}

/// How a node is chosen among equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balancing {
    /// At random.
    Random,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest connections lent.
    LeastActive,
    /// One after the other, by their weights.
    Weighted,
}

impl Settings {
    /// How long a user keeps a server connection of a database.
    pub fn keep_for(&self, account: &Account, database: &str) -> Keep {
        let of_database = || self.keep_of_database.get(database).copied();
        account.keep.or_else(of_database).unwrap_or(self.keep)
    }

    /// The user of that name who may use that database.
    pub fn account(&self, name: &str, database: &str) -> Option<&Account> {
        self.accounts_of(name)
            .find(|account| account.may_use(database))
    }

    /// All entries of that name.
    pub fn accounts_of<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Account> {
        let accounts = self.accounts.iter();
        accounts.filter(move |account| account.name == name)
    }
}
