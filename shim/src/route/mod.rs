//! Where a statement goes, and why. Pure: plan + parameters + topology in, a route or a fault out.

mod bind;
mod changed;
mod class;
mod copied;
mod decide;
mod defaults;
mod key;
mod named;
mod refuse;
pub mod rows;
mod scattered;
mod several;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use crate::plan::Value;

pub use class::is_opaque;
pub use copied::is_plain;
pub use decide::{SINGLE_SHARD, route};
pub use several::route_all;

/// Bind parameters of one execution.
pub trait Params {
    /// Parameter `$number`, 1-based; `None` when it was not given.
    fn param(&self, number: usize) -> Option<Bind<'_>>;
}

/// One bind parameter as it came over the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind<'a> {
    /// The bytes, `None` for NULL.
    pub value: Option<&'a [u8]>,
    /// True for the binary format.
    pub binary: bool,
    /// The type that the client (Parse) or the server (ParameterDescription) named, 0 if neither.
    pub type_oid: u32,
}

/// A statement without parameters.
#[derive(Debug, Clone, Copy)]
pub struct NoParams;

impl Params for NoParams {
    fn param(&self, _number: usize) -> Option<Bind<'_>> {
        None
    }
}

/// The arguments of SQL-level `EXECUTE` as parameters of the prepared statement.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a>(pub &'a [Value]);

impl Params for Arguments<'_> {
    fn param(&self, number: usize) -> Option<Bind<'_>> {
        let value = match self.0.get(number.checked_sub(1)?)? {
            Value::Text(text) => Some(text.as_bytes()),
            Value::Null => None,
            Value::Default
            | Value::Param(_)
            | Value::TypedParam(..)
            | Value::ArrayParam(_)
            | Value::Unknown => return None,
        };
        Some(Bind {
            value,
            binary: false,
            type_oid: 0,
        })
    }
}

/// What the client's session adds to a statement.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionView<'a> {
    /// Schemas of `search_path` in order, `"$user"` already replaced; empty means `public`.
    pub search_path: &'a [String],
    /// `pgdog.shard`.
    pub shard: Option<u16>,
    /// `pgdog.sharding_key`.
    pub sharding_key: Option<&'a str>,
    /// Keys resolved by the database so far.
    pub lookups: &'a [(LookupKey, ShardNumber)],
    /// Names of the temporary tables that this session made.
    pub temporary: &'a [String],
}

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
    /// A read whose answer is made of the answers of all shards.
    Read,
    /// Rows of sharded tables that are changed wherever they are.
    Change,
    /// Rows that are copied into a sharded table, each to its own shard.
    Rows(Rows),
}

/// Where the rows of a COPY belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Index of the table in the topology's list of sharded tables.
    pub table: usize,
    /// The key's 0-based place among the columns that are copied.
    pub place: usize,
    /// How many columns are copied.
    pub columns: usize,
    /// The only shard that may get rows, where the client has named one.
    pub only: Option<ShardNumber>,
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
    pub reason: Cow<'static, str>,
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
    /// The rows of a multi-row INSERT belong to several shards, or a read spans shards, or the
    /// like. Nothing may be sent.
    Refused(Fault),
}
