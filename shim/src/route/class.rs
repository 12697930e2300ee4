//! What kind of table each relation of a statement is.

use std::borrow::Cow;

use crate::nodes::topology::{OpaqueFunction, Topology, Unlisted};
use crate::plan::{Called, Relation};

use super::SessionView;

/// How the rows of a relation are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// By key; index into `Topology::sharded`.
    Sharded(usize),
    /// The same rows on every shard; index into `Topology::omnisharded`. `None`: a table that the
    /// topology does not know (yet), where unlisted tables count as omnisharded.
    Omni(Option<usize>),
    /// PostgreSQL's catalogs and views, and the extension's tables: each node has its own.
    Catalog,
    /// The extension's tables that only shard 0 fills.
    Central,
    /// A temporary table of this session.
    Temporary,
    /// Nobody declared it.
    Unlisted,
}

/// Classifies a relation by its name and the session's search path.
pub(super) fn class(relation: &Relation, topology: &Topology, session: &SessionView<'_>) -> Class {
    let name = relation.name.as_str();
    let Some(schema) = relation.schema.as_deref() else {
        return unqualified(name, topology, session);
    };
    match schema {
        "pgdog" => own(name),
        "pg_catalog" | "information_schema" | "pg_toast" => Class::Catalog,
        _ if schema.starts_with("pg_temp") => Class::Temporary,
        _ => declared(schema, name, topology).unwrap_or_else(|| unlisted(topology)),
    }
}

/// Whether a call may be one of a function of a user that may read or write any table.
///
/// Only what its schemas hold counts, as in PostgreSQL: nobody can make the calls of others mean
/// something else than before from where those do not look.
pub fn is_opaque(called: &Called, topology: &Topology, search_path: &[String]) -> bool {
    let takes = |function: &&OpaqueFunction| {
        function.fewest <= called.arguments
            && function.most.is_none_or(|most| called.arguments <= most)
    };
    let named_so = topology.functions.get(&called.name).into_iter().flatten();
    let mut candidates = named_so.filter(takes);
    match &called.schema {
        Some(schema) if schema.starts_with("pg_temp") => true,
        Some(schema) => candidates.any(|function| function.schema == *schema),
        None => {
            let path = path(search_path);
            let system = path.iter().position(|schema| schema == "pg_catalog");
            candidates.any(|function| {
                let place = path.iter().position(|schema| *schema == function.schema);
                // Looked at whatever the path says.
                if function.schema == "pg_catalog" {
                    return true;
                }
                let hidden = function.hidden && system.is_none_or(|system| place > Some(system));
                place.is_some() && !hidden
            })
        }
    }
}

fn path(search_path: &[String]) -> Cow<'_, [String]> {
    if search_path.is_empty() {
        Cow::Owned(vec!["public".to_owned()])
    } else {
        Cow::Borrowed(search_path)
    }
}

fn unqualified(name: &str, topology: &Topology, session: &SessionView<'_>) -> Class {
    if session.temporary.iter().any(|temporary| temporary == name) {
        return Class::Temporary;
    }
    for schema in path(session.search_path).iter() {
        match schema.as_str() {
            "pgdog" => return own(name),
            "information_schema" => return Class::Catalog,
            schema => {
                if let Some(class) = declared(schema, name, topology) {
                    return class;
                }
            }
        }
    }
    // The system catalogs are searched before the path, whatever it says.
    if name.starts_with("pg_") {
        Class::Catalog
    } else {
        unlisted(topology)
    }
}

fn declared(schema: &str, name: &str, topology: &Topology) -> Option<Class> {
    // An entry without a table stands for tables that only the database can list.
    let sharded = topology
        .sharded
        .iter()
        .position(|table| table.table == name && table.schema == schema && !name.is_empty());
    if let Some(index) = sharded {
        return Some(Class::Sharded(index));
    }
    let omni = topology
        .omnisharded
        .iter()
        .position(|omni| omni.table == name && omni.schema == schema);
    omni.map(|index| Class::Omni(Some(index)))
}

fn own(name: &str) -> Class {
    match name {
        "tasks" | "task_events" | "instances" => Class::Central,
        _ => Class::Catalog,
    }
}

fn unlisted(topology: &Topology) -> Class {
    match topology.unlisted {
        Unlisted::Refused => Class::Unlisted,
        Unlisted::Omnisharded => Class::Omni(None),
    }
}
