//! Errors of the work, with the node and the step where they happened.

use pgdog_core::fault::Fault;
use thiserror::Error;
use tokio_postgres::error::SqlState;

/// Why a step could not be done.
#[derive(Debug, Error)]
pub enum WorkflowError {
    /// A node does not answer.
    #[error("cannot connect to {node}: {}", describe(source))]
    Unreachable {
        /// Which one.
        node: String,
        /// What the driver says.
        source: tokio_postgres::Error,
    },
    /// There is no connection to a node, or none of the kind that is wanted.
    #[error("cannot connect to {node}: {source}")]
    NotReached {
        /// Which one.
        node: String,
        /// Why.
        source: std::io::Error,
    },
    /// A connection took longer than its limit.
    #[error("cannot connect to {node}: no answer within {limit_ms} ms")]
    Silent {
        /// Which node.
        node: String,
        /// The limit.
        limit_ms: u128,
    },
    /// A node is connected, yet does not answer; it may be frozen.
    #[error("{doing}: no answer within {limit_ms} ms")]
    NoAnswer {
        /// What was being done.
        doing: &'static str,
        /// The limit.
        limit_ms: u128,
    },
    /// A statement failed.
    #[error("{doing} on {node}: {}", describe(source))]
    Sql {
        /// Where.
        node: String,
        /// What was being done, as a participle: `creating the publication`.
        doing: &'static str,
        /// What the server or the driver says.
        source: tokio_postgres::Error,
    },
    /// A program failed or is missing.
    #[error("{tool}: {output}")]
    Tool {
        /// Its name.
        tool: &'static str,
        /// What it wrote to standard error.
        output: String,
    },
    /// The world is not as this step needs it.
    #[error("{0}")]
    Wrong(String),
    /// An error of the cluster's own calls.
    #[error("{}", .0.message())]
    Fault(#[from] Fault),
}

impl WorkflowError {
    /// SQLSTATE, when a server answered.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Unreachable { source, .. } | Self::Sql { source, .. } => source.code(),
            Self::NotReached { .. }
            | Self::Silent { .. }
            | Self::NoAnswer { .. }
            | Self::Tool { .. }
            | Self::Wrong(_)
            | Self::Fault(_) => None,
        }
    }

    /// Whether a server or a tool *answered* with an error: trying again will meet it again.
    /// A lost or refused connection is no answer.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Sql { source, .. } => match source.code() {
                Some(code) => !ends_session(code),
                None => false,
            },
            Self::Tool { .. } | Self::Wrong(_) => true,
            Self::Unreachable { .. }
            | Self::NotReached { .. }
            | Self::Silent { .. }
            | Self::NoAnswer { .. }
            | Self::Fault(_) => false,
        }
    }

    /// A lock was not to be had in time, or a deadlock was broken.
    pub fn is_lock_conflict(&self) -> bool {
        matches!(
            self.sqlstate(),
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED)
        )
    }

    /// The named thing does not exist, for example a prepared transaction that somebody finished.
    pub fn is_missing(&self) -> bool {
        self.sqlstate() == Some(&SqlState::UNDEFINED_OBJECT)
    }
}

/// Class 08 and 57P: the session is gone, not the statement wrong.
fn ends_session(code: &SqlState) -> bool {
    code.code().starts_with("08") || code.code().starts_with("57P")
}

/// Message, detail and hint of a server's error; the driver's own text otherwise.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else {
        return error.to_string();
    };
    let mut text = db.message().to_owned();
    for more in [db.detail(), db.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}
