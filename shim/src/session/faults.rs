//! Errors that PostgreSQL itself would report, in its words. Pure.

use pgdog_core::fault::{Fault, NodeError};

use crate::proto::ErrorFields;

/// An error with a code and a message.
pub fn plain(code: &str, message: impl Into<String>) -> ErrorFields {
    ErrorFields::new(code, message)
}

/// The same as a [`Fault`].
pub fn fault(code: &str, message: impl Into<String>) -> Fault {
    Fault::Node(Box::new(NodeError {
        code: code.to_owned(),
        message: message.into(),
        ..NodeError::default()
    }))
}

/// 26000.
pub fn unknown_statement(name: &str) -> ErrorFields {
    match name {
        "" => plain("26000", "unnamed prepared statement does not exist"),
        name => plain(
            "26000",
            format!("prepared statement \"{name}\" does not exist"),
        ),
    }
}

/// 42P05.
pub fn duplicate_statement(name: &str) -> ErrorFields {
    plain(
        "42P05",
        format!("prepared statement \"{name}\" already exists"),
    )
}

/// 0A000, on the admin database.
pub fn function_call() -> ErrorFields {
    let mut fields = plain("0A000", "the function call message is not supported");
    fields.hint = Some("Send a command as a query.".to_owned());
    fields
}

/// 57P01: what the client kept on a connection went with it.
pub fn state_lost(why: &str) -> ErrorFields {
    plain(
        "57P01",
        format!("terminating connection: the server connection that kept its {why} was lost"),
    )
}

/// A transaction that is rolled back as a whole: the client may simply try it again.
pub fn rolled_back(why: &str) -> ErrorFields {
    plain(
        "40001",
        format!("the transaction was rolled back because {why}"),
    )
}

/// 3B001.
pub fn unknown_savepoint(name: &str) -> Fault {
    fault("3B001", format!("savepoint \"{name}\" does not exist"))
}

/// 25P01.
pub fn outside_transaction(command: &str) -> Fault {
    fault(
        "25P01",
        format!("{command} can only be used in transaction blocks"),
    )
}

/// 55P02.
pub fn read_only_parameter(name: &str) -> Fault {
    fault("55P02", format!("parameter \"{name}\" cannot be changed"))
}

/// Whether a server refused a statement because it was routed by an older topology.
pub fn is_stale_topology(fields: &ErrorFields) -> bool {
    fields.code == "40001" && fields.message == "stale topology"
}

/// The same error as a [`Fault`], for a node's answer to a statement of the shim.
pub fn from_node(node: &str, fields: &ErrorFields) -> Fault {
    Fault::Node(Box::new(NodeError {
        node: node.to_owned(),
        code: fields.code.clone(),
        message: fields.message.clone(),
        detail: fields.detail.clone(),
        hint: fields.hint.clone(),
        more: fields.more.clone(),
    }))
}
