//! The faults of this module, worded in one place.

use pgdog_core::fault::{Fault, NodeError};
use pgdog_core::ids::ShardNumber;

use super::topology::Address;

/// An error of `tokio_postgres`: what the node said is passed on field by field.
pub(super) fn from_node(address: &Address, error: &tokio_postgres::Error) -> Fault {
    if let Some(said) = error.as_db_error() {
        return Fault::Node(Box::new(NodeError {
            node: address.to_string(),
            code: said.code().code().to_owned(),
            message: said.message().to_owned(),
            detail: said.detail().map(str::to_owned),
            hint: said.hint().map(str::to_owned),
            more: Vec::new(),
        }));
    }
    unreachable(address, &chain(error))
}

/// The error with its causes: `tokio_postgres` keeps the interesting part in the source.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

pub(super) fn unreachable(address: &Address, why: &str) -> Fault {
    Fault::CannotConnect {
        node: address.to_string(),
        why: why.to_owned(),
    }
}

pub(super) fn wrong_state(why: &str, hint: &str) -> Fault {
    Fault::WrongState {
        what: "cannot serve this database".into(),
        why: why.into(),
        hint: Some(hint.into()),
    }
}

pub(super) fn no_primary(shard: ShardNumber) -> Fault {
    Fault::NoNode {
        shard,
        role: "primary",
    }
}

pub(super) fn two_primaries(shard: ShardNumber, one: &Address, other: &Address) -> Fault {
    wrong_state(
        &format!("{one} and {other} both claim to be the primary of shard {shard}"),
        "Stop the wrong one, or take it out of the configuration.",
    )
}

pub(super) fn needs_extension(address: &Address) -> Fault {
    wrong_state(
        &format!("{address} lacks the extension, which more than one shard needs"),
        &format!(
            "Run CREATE EXTENSION pgdog in database \"{}\" there.",
            address.database
        ),
    )
}

pub(super) fn other_shard(
    address: &Address,
    declared: ShardNumber,
    theirs: Option<ShardNumber>,
) -> Fault {
    let theirs = theirs.map_or_else(|| "no shard".to_owned(), |shard| format!("shard {shard}"));
    wrong_state(
        &format!("{address} is declared as shard {declared} but says that it is {theirs}"),
        "Correct the entry in [[databases]]: the node is right.",
    )
}

pub(super) fn half_installed(hollow: &Address, ours: u16, address: &Address, theirs: u16) -> Fault {
    wrong_state(
        &format!(
            "{hollow} is empty and the configuration declares {ours} shards, but {address} was \
             installed for {theirs}"
        ),
        "Declare the shards as the nodes know them; a further shard is declared with \
         provisioning = true and added by ADD SHARD.",
    )
}

pub(super) fn contradiction(table: &str, ours: &str, theirs: &str) -> Fault {
    Fault::WrongState {
        what: format!("cannot declare {table}"),
        why: format!("the configuration says {ours}, the database says {theirs}"),
        hint: Some(
            "Correct the configuration, or change the database with pgdog.unshard_table and \
             pgdog.shard_table."
                .into(),
        ),
    }
}

pub(super) fn one_server(one: &Address, other: &Address) -> Fault {
    Fault::WrongState {
        what: "cannot write to several shards".into(),
        why: format!("{one} and {other} are databases of one server"),
        hint: Some("Give each shard a server, or set two_phase_commit = false.".into()),
    }
}

pub(super) fn no_two_phase(address: &Address) -> Fault {
    Fault::WrongState {
        what: "cannot write to several shards".into(),
        why: format!("max_prepared_transactions is 0 on {address}"),
        hint: Some(
            "Set max_prepared_transactions to at least the number of connections and restart the \
             node, or set two_phase_commit = false."
                .into(),
        ),
    }
}
