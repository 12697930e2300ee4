//! Where a statement goes, and why. Pure: plan + parameters + topology in, a route or a fault out.

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

/// Where one statement runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One shard that is fixed by the statement.
    Shard(ShardNumber),
    /// Any one shard (catalog, table-less and omnisharded reads): the client's home shard.
    Any,
    /// All shards, lowest first, two-phase.
    All(AllReason),
}

/// Why a statement runs everywhere; the executor enters the gate for omni writes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllReason {
    /// A write to an omnisharded table.
    OmniWrite,
    /// A definition.
    Ddl,
    /// A change of placement.
    Placement,
}

/// Whether a statement may run on a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Changes nothing: a replica may answer.
    Read,
    /// Must run on a primary.
    Write,
}

/// A route with the reason that `SHOW pgdog.last_route` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Where.
    pub target: Target,
    /// On which kind of node.
    pub access: Access,
    /// Short words for people: `key tenant_id=42`, `omnisharded read`, `hint` ...
    pub reason: String,
}

/// A key whose shard only the database knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LookupKey {
    /// Index of the rule in the topology's list of sharded tables.
    pub rule: usize,
    /// The key in canonical text form.
    pub key: String,
}

/// Outcome of routing.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Go.
    Ready(Route),
    /// Ask again with these keys resolved; none of them is in the lookups that were given.
    NeedLookup(Vec<LookupKey>),
    /// The rows of a multi-row INSERT belong to several shards, or a read spans shards, or the like.
    Refused(Fault),
}
