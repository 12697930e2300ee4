//! The errors of this module, in core's words.

use std::fmt;
use std::time::Duration;

use pgdog_core::fault::{Fault, NodeError};

use super::Endpoint;
use crate::proto::ErrorFields;

/// A connection that was in use is gone.
pub(super) fn lost(endpoint: &Endpoint, why: impl fmt::Display) -> Fault {
    Fault::ServerLost {
        node: endpoint.to_string(),
        why: why.to_string(),
    }
}

/// There is no connection, and nothing was sent that could have had an effect.
pub(super) fn cannot_connect(endpoint: &Endpoint, why: impl fmt::Display) -> Fault {
    Fault::CannotConnect {
        node: endpoint.to_string(),
        why: why.to_string(),
    }
}

/// What was meant as a connection's loss, during the login.
pub(super) fn during_login(fault: Fault) -> Fault {
    match fault {
        Fault::ServerLost { node, why } => Fault::CannotConnect { node, why },
        other => other,
    }
}

pub(super) fn took_too_long(what: &str, limit: Duration) -> String {
    format!("{what} took longer than {} ms", limit.as_millis())
}

pub(super) fn pool_timeout(endpoint: &Endpoint, user: &str, waited: Duration) -> Fault {
    Fault::PoolTimeout {
        pool: format!("{user} at {endpoint}"),
        waited_ms: waited.as_millis() as u64,
    }
}

pub(super) fn internal(why: &str) -> Fault {
    Fault::Internal {
        why: why.to_owned(),
    }
}

/// The server's own error, passed on as it came.
pub(super) fn from_node(endpoint: &Endpoint, error: &ErrorFields) -> Fault {
    Fault::Node(Box::new(NodeError {
        node: endpoint.to_string(),
        code: error.code.clone(),
        message: error.message.clone(),
        detail: error.detail.clone(),
        hint: error.hint.clone(),
        more: error.more.clone(),
    }))
}

impl From<&Fault> for ErrorFields {
    fn from(fault: &Fault) -> Self {
        Self {
            severity: String::new(),
            code: fault.sqlstate().to_owned(),
            message: fault.message(),
            detail: fault.detail(),
            hint: fault.hint(),
            more: match fault {
                Fault::Node(error) => error.more.clone(),
                _ => Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::proto::{backend, frame};

    #[test]
    fn a_fault_becomes_an_error_response_with_all_its_fields() {
        let fault = lost(
            &Endpoint {
                host: "h".into(),
                port: 1,
                database: "d".into(),
            },
            "gone",
        );
        let mut out = BytesMut::new();
        backend::error_response(&fault, &mut out);
        let frame = frame::take(&mut out).expect("well formed").expect("whole");
        let fields = ErrorFields::parse(frame.body()).expect("well formed");
        let severity = "ERROR".to_owned();
        assert_eq!(
            fields,
            ErrorFields {
                severity,
                ..ErrorFields::from(&fault)
            }
        );
        assert_eq!(fields.code, "08006");
    }
}
