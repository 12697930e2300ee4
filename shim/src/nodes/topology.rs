//! An immutable picture of the cluster, as the nodes themselves tell it. Pure data.

use std::collections::{HashMap, HashSet};

use pgdog_core::ids::{Epoch, ShardNumber, TopologyVersion};
use pgdog_core::placement::TableRule;

/// One database's shards and placement, replaced as a whole when it changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Cluster-wide version; changed by flips only.
    pub version: TopologyVersion,
    /// The serving shards in order: index = shard number.
    pub shards: Vec<ShardNodes>,
    /// Sharded tables with their rule; `route::LookupKey::rule` indexes this.
    pub sharded: Vec<ShardedTable>,
    /// Omnisharded tables: the declared ones, and where unlisted tables count as omnisharded
    /// those that nobody declared.
    pub omnisharded: Vec<OmniTable>,
    /// The functions of users that may read or write any table, by name.
    pub functions: OpaqueFunctions,
    /// Names that functions of users share with PostgreSQL's own: a call may mean either.
    pub shadows: HashSet<String>,
    /// What to do with tables that are neither.
    pub unlisted: Unlisted,
}

impl Topology {
    /// One shard and no declared table: whatever a statement says, there is one place for it.
    pub fn is_undivided(&self) -> bool {
        self.shards.len() == 1 && self.sharded.is_empty() && self.omnisharded.is_empty()
    }
}

/// Addresses and fence counter of one shard.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardNodes {
    /// 0-based number.
    pub shard: ShardNumber,
    /// This shard's own epoch, to be carried by statements sent there.
    pub epoch: Epoch,
    /// Where writes go.
    pub primary: Address,
    /// Physical replicas.
    pub replicas: Vec<Address>,
}

/// Where a node listens and the name of the database there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Name of the database on that server.
    pub database: String,
}

/// A declared sharded table.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardedTable {
    /// Schema.
    pub schema: String,
    /// Table, or empty: every table with that column.
    pub table: String,
    /// Sharding key.
    pub column: String,
    /// 0-based position of the key among the table's live columns, for INSERT without a
    /// column list.
    pub position: Option<usize>,
    /// What COPY without a column list takes, if the key is part of it.
    pub copied: Option<Copied>,
    /// The key is an identity column: `OVERRIDING USER VALUE` replaces what is given for it.
    pub identity: bool,
    /// How many characters the key may have: what is longer is cut, or an error.
    pub max_length: Option<usize>,
    /// Why rows cannot be placed by this column after all (`is not of type bigint`).
    pub unfit: Option<String>,
    /// How a key becomes a shard.
    pub rule: TableRule,
}

/// The columns that COPY takes when it names none: generated ones are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// 0-based position of the key.
    pub key: usize,
    /// How many there are.
    pub columns: usize,
}

/// A table with the same rows on every shard.
///
/// What triggers and rules compute is not seen here: they must do the same on every shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OmniTable {
    /// Schema.
    pub schema: String,
    /// Table.
    pub table: String,
    /// False for a table that is omnisharded only because nobody declared it.
    pub declared: bool,
    /// Live columns in order.
    pub columns: Vec<String>,
    /// Those of them whose default every shard would compute for itself (`now()`, `random()`,
    /// sequences, identity): their values must be in the statement.
    pub computed: Vec<String>,
}

/// Functions of users that may read or write any table, by name.
pub type OpaqueFunctions = HashMap<String, Vec<OpaqueFunction>>;

/// A function of a user that may read or write any table, and which calls may mean it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpaqueFunction {
    /// Schema.
    pub schema: String,
    /// Arguments that every call gives.
    pub fewest: usize,
    /// Arguments that a call may give; none: any number.
    pub most: Option<usize>,
    /// `pg_catalog` has one of the same name and arguments, which is found first unless
    /// `search_path` itself says otherwise.
    pub hidden: bool,
}

/// Tables that nobody declared, on a database with more than one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlisted {
    /// Refused with a hint (the default).
    Refused,
    /// Treated as omnisharded.
    Omnisharded,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.port, self.database)
    }
}

impl Topology {
    /// The picture before the first load: nothing serves.
    pub fn empty(unlisted: Unlisted) -> Self {
        Self {
            version: TopologyVersion(0),
            shards: Vec::new(),
            sharded: Vec::new(),
            omnisharded: Vec::new(),
            functions: OpaqueFunctions::new(),
            shadows: HashSet::new(),
            unlisted,
        }
    }

    /// A number that rises with every change of placement or layout: an epoch only ever rises, so
    /// their sum does.
    pub fn generation(&self) -> u64 {
        self.shards
            .iter()
            .fold(self.version.0, |sum, shard| sum.wrapping_add(shard.epoch.0))
    }
}
