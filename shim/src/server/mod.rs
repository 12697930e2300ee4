//! Connections to PostgreSQL and their pools.
//!
//! ```text
//!   Pools ── one Pool per (endpoint, user, startup parameters)
//!              │ checkout: a turn (fair queue), then an idle Conn or a new one
//!              ▼
//!            Lease ── derefs to Conn ── send / recv / settle_ahead / simple
//!              │ dropped
//!              ▼
//!   in sync, no transaction → back to the pool (after DISCARD ALL if it was marked dirty)
//!   whole messages only      → cancelled, rolled back, DISCARD ALL, back to the pool
//!   anything else           → closed
//! ```
//!
//! [`Conn`] follows the conversation as it passes: what the server still owes, the transaction's
//! state, COPY, settings, and which statements are prepared. Callers only move bytes.

use std::fmt;

use pgdog_core::fault::Fault;

use crate::proto::ErrorFields;

mod ahead;
mod answer;
mod applied;
mod cancel;
mod conn;
mod faults;
mod lease;
mod ledger;
mod left;
mod login;
mod long;
mod plain;
mod pool;
mod pools;
mod prepared;
mod restore;
mod secret;
mod settings;
mod stats;
mod turns;
mod write;

pub use ahead::{Ahead, Guard, Guarded, Settled};
pub use answer::Answer;
pub use applied::Applied;
pub use cancel::{Cancel, CancelToken};
pub use conn::{Conn, Head};
pub use lease::Lease;
pub use ledger::Copying;
pub use left::Left;
pub use login::{ROLE_SETTINGS, role_settings};
pub use plain::Due;
pub use pool::Pool;
pub use pools::Pools;
pub use prepared::Moment;
pub use secret::{Password, Secret};
pub use settings::{PoolLimits, PoolSettings};
pub use stats::{PoolStats, ServerState, ServerStats};
pub use turns::{Claim, Leader};

/// Where a server listens and the name of the database there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Host name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Name of the database on that server.
    pub database: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.port, self.database)
    }
}

/// Who logs in, and with which startup parameters.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Login {
    /// Role name.
    pub user: String,
    /// What it proves itself with.
    pub secret: Secret,
    /// Startup parameters that make a connection what it is (`options`, `client_encoding`, …),
    /// sorted by the caller. `pgdog.report_commit_lsn = on` is added by the connection itself.
    pub params: Vec<(String, String)>,
    /// Later logins have a higher number: what an old one proved itself with may not hold any more.
    pub number: u64,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("params", &self.params)
            .finish()
    }
}

/// Why a statement on a server failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerError {
    /// The server answered with an error; the connection lives unless it says otherwise.
    Sql(ErrorFields),
    /// The connection is gone or was refused.
    Fault(Fault),
}

impl ServerError {
    /// The SQLSTATE.
    pub fn sqlstate(&self) -> &str {
        match self {
            Self::Sql(fields) => &fields.code,
            Self::Fault(fault) => fault.sqlstate(),
        }
    }

    /// As fields of an ErrorResponse.
    pub fn fields(&self) -> ErrorFields {
        match self {
            Self::Sql(fields) => fields.clone(),
            Self::Fault(fault) => ErrorFields::from(fault),
        }
    }
}

impl ServerError {
    /// As a fault, naming the node that said it.
    pub fn into_fault(self, endpoint: &Endpoint) -> Fault {
        match self {
            Self::Sql(fields) => faults::from_node(endpoint, &fields),
            Self::Fault(fault) => fault,
        }
    }
}

impl From<Fault> for ServerError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields();
        write!(f, "{}: {}", fields.code, fields.message)?;
        fields
            .detail
            .iter()
            .try_for_each(|detail| write!(f, " ({detail})"))
    }
}

impl std::error::Error for ServerError {}
