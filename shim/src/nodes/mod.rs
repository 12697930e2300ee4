//! The extension's SQL API, typed: topology, positions, lookups, instances, tasks.
//!
//! One [`Cluster`] stands for one logical database. It is started before the listener opens and
//! keeps, with few control connections of its own, what sessions need to know:
//!
//! | file | what it does |
//! |---|---|
//! | `settings` | what the configuration declares about the database |
//! | `topology` | the immutable picture that routing reads |
//! | `cluster` | start, topology watch, refresh |
//! | `manifest`, `declare` | pure: what the nodes said -> topology; declarations against the database |
//! | `observed` | what one node says about itself (`pgdog.node` and its tables) |
//! | `position` | replay positions and their monitor |
//! | `lookup` | placement by a query, cached |
//! | `coordinator` | names of two-phase transactions, the lock that shows that we live |
//! | `recovery` | finishing two-phase transactions of dead coordinators |
//! | `instances` | the registry on shard 0 |
//! | `tasks` | the task functions on shard 0 |
//! | `control` | control connections |

pub mod cluster;
pub mod position;
pub mod settings;
pub mod tasks;
pub mod topology;

pub use cluster::Cluster;
pub use position::{Position, Role, Sample};
pub use settings::{DeclaredNode, DeclaredRole, DeclaredTable, Instance, Settings};
pub use topology::{Address, ShardNodes, ShardedTable, Topology, Unlisted};

/// A key whose shard only the database knows. `rule` indexes [`Topology::sharded`] of the topology
/// that is passed along with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LookupKey {
    /// Index of the rule.
    pub rule: usize,
    /// The key in canonical text form.
    pub key: String,
}
