//! `users.toml`.

use std::fmt;

use serde::Deserialize;

use super::{Admin, Ms, PoolerMode};

/// The file as a whole.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Users {
    /// `[[users]]`.
    pub users: Vec<User>,
    /// `[admin]`, which may also stand here and then counts.
    pub admin: Option<Admin>,
}

/// Someone who may log in.
#[derive(Clone, PartialEq, Deserialize)]
pub struct User {
    /// Name, for the shim and on the nodes.
    pub name: String,
    /// The database the user may use.
    pub database: Option<String>,
    /// More databases the user may use.
    #[serde(default)]
    pub databases: Vec<String>,
    /// The user may use every database.
    #[serde(default)]
    pub all_databases: bool,
    /// Password, also used towards the nodes; or a hash of it in the form in which PostgreSQL
    /// keeps it. When absent, the nodes are asked for what they keep.
    pub password: Option<String>,
    /// Name on the nodes when it is another one.
    pub server_user: Option<String>,
    /// Password on the nodes when it is another one.
    pub server_password: Option<String>,
    /// Server connections per node at most; `default_pool_size` when absent.
    pub pool_size: Option<usize>,
    /// Server connections per node that stay open; `min_pool_size` when absent.
    pub min_pool_size: Option<usize>,
    /// After how long an idle server connection is closed; `idle_timeout` when absent.
    pub idle_timeout: Option<Ms>,
    /// After how long a server connection is replaced; `server_lifetime` when absent.
    pub server_lifetime: Option<Ms>,
    /// After how long a client of this name that sends nothing is sent away; 0 is never.
    pub client_idle_timeout: Option<Ms>,
    /// `statement_timeout` of the server connections, in ms.
    pub statement_timeout: Option<u64>,
    /// `lock_timeout` of the server connections, in ms.
    pub lock_timeout: Option<u64>,
    /// Transactions are read-only unless they say otherwise.
    pub read_only: Option<bool>,
    /// How long this user keeps a server connection; that of the database when absent.
    pub pooler_mode: Option<PoolerMode>,
    /// Common name in the certificate that the user logs in with; the user's name when absent.
    pub identity: Option<String>,
    /// Whether the user needs a certificate where clients are asked for them.
    #[serde(default = "yes")]
    pub tls_client_certificate_required: bool,
    /// The shim watches the nodes and does topology tasks as this user.
    #[serde(default)]
    pub schema_admin: bool,
}

impl User {
    /// Whether the user may log in to that database.
    pub fn may_use(&self, database: &str) -> bool {
        self.all_databases
            || self.database.as_deref() == Some(database)
            || self.databases.iter().any(|d| d == database)
    }

    /// Name to log in to a node with.
    pub fn name_on_node(&self) -> &str {
        self.server_user.as_deref().unwrap_or(&self.name)
    }

    /// Password to log in to a node with.
    pub fn password_on_node(&self) -> Option<&str> {
        self.server_password.as_deref().or(self.password.as_deref())
    }
}

fn yes() -> bool {
    true
}

/// Passwords stay out of logs and panics.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("database", &self.database)
            .field("databases", &self.databases)
            .field("all_databases", &self.all_databases)
            .field("server_user", &self.server_user)
            .field("pool_size", &self.pool_size)
            .field("schema_admin", &self.schema_admin)
            .finish_non_exhaustive()
    }
}
