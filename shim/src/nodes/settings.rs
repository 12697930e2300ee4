//! What the configuration declares about one logical database. Plain data.

use std::time::Duration;

use pgdog_core::ids::ShardNumber;

use super::topology::{Address, Unlisted};

/// Everything a [`super::Cluster`] is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the logical database, as clients know it.
    pub database: String,
    /// Declared nodes.
    pub nodes: Vec<DeclaredNode>,
    /// Declared sharded tables.
    pub sharded: Vec<DeclaredTable>,
    /// Declared omnisharded tables as (schema, name).
    pub omnisharded: Vec<(String, String)>,
    /// What to do with undeclared tables.
    pub unlisted: Unlisted,
    /// User of the control connections (`schema_admin`).
    pub user: String,
    /// Its password, none under trust.
    pub password: Option<String>,
    /// Whether multi-shard writes are two-phase.
    pub two_phase_commit: bool,
    /// How often positions are sampled while nobody waits.
    pub lsn_check_interval: Duration,
    /// Limit for a control connection to be made.
    pub connect_timeout: Duration,
    /// Limit for one batch of lookups.
    pub lookup_timeout: Duration,
    /// Bound of the lookup cache.
    pub lookup_cache_bytes: u64,
    /// Who we are in `pgdog.instances`.
    pub instance: Instance,
}

/// This shim, as the registry on shard 0 shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// 16 hex digits, random at every start.
    pub instance_id: String,
    /// Host name or a configured name.
    pub name: String,
    /// Where clients connect, `host:port`.
    pub addr: String,
    /// Version of the shim.
    pub version: String,
    /// Logical databases served.
    pub databases: Vec<String>,
}

/// One `[[databases]]` entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredNode {
    /// Shard it belongs to.
    pub shard: ShardNumber,
    /// Where it is.
    pub address: Address,
    /// Declared role.
    pub role: DeclaredRole,
    /// Declared as a future shard.
    pub provisioning: bool,
}

/// The `role` key of an entry. Roles are always read from the nodes; a declared one is a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaredRole {
    /// `primary`
    Primary,
    /// `replica`
    Replica,
    /// `auto`
    Auto,
}

/// One `[[sharded_tables]]` entry, in the form in which `pgdog.sharded_tables` keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredTable {
    /// Schema, `public` by default.
    pub schema: String,
    /// Table; empty: every table with the column.
    pub table: String,
    /// Key column.
    pub column: String,
    /// `bigint`, `varchar` or `uuid`.
    pub data_type: String,
    /// Query of a per-key lookup.
    pub lookup_query: Option<String>,
    /// `value` or `shard`.
    pub lookup_result: String,
    /// Explicit mapping as JSON text.
    pub mapping: Option<String>,
}

impl Instance {
    /// A new random identity.
    pub fn new_id() -> String {
        format!("{:016x}", rand::random::<u64>())
    }
}
