//! Where a row lives.

/// How a key of one table becomes a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRule;
