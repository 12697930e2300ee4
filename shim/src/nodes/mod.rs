//! The extension's SQL API, typed: topology, positions, lookups, instances, tasks.
//!
//! One [`Cluster`] stands for one logical database. It is started before the listener opens and
//! keeps, with few control connections of its own, what sessions need to know:
//!
//! | file | what it does |
//! |---|---|
//! | `settings` | what the configuration declares about the database |
//! | `topology` | the immutable picture that routing reads |
//! | `cluster` | what sessions ask; background work |
//! | `install` | once, before the listener opens: install, declare |
//! | `declare` | pure: declarations of the configuration against the database |
//! | `refresh` | loading the topology, one flight for all |
//! | `manifest`, `rules` | pure: what the nodes said -> topology |
//! | `monitor`, `node`, `observed`, `position` | nodes under watch, what they say, where they are |
//! | `reign` | what is remembered of a primary: its timeline, and where earlier ones ended |
//! | `lag` | how far replicas are behind |
//! | `tally` | what became of the reads under a floor |
//! | `lookup` | placement by a query, cached |
//! | `verifiers` | stored passwords of roles, for a second |
//! | `gid`, `coordinator` | names of two-phase transactions, the lock that shows that we live |
//! | `recovery`, `pace`, `sweep` | finishing abandoned two-phase commits: rule, rhythm, hands |
//! | `parts` | one part of a two-phase transaction of our own |
//! | `doubt` | two-phase transactions that are not finished, for operators |
//! | `retire` | the end of a database: its clients leave first |
//! | `instances`, `tasks`, `slots` | registry, task functions, replication slots |
//! | `control`, `trouble` | control connections, and their errors |

mod control;
mod coordinator;
mod declare;
mod install;
mod lag;
mod lookup;
mod monitor;
mod node;
mod pace;
mod parts;
mod refresh;
mod reign;
mod retire;
mod rules;
mod sweep;
mod tally;
mod trouble;
mod verifiers;

pub mod cluster;
pub mod doubt;
pub mod gid;
pub mod instances;
pub mod manifest;
pub mod observed;
pub mod position;
pub mod recovery;
pub mod settings;
pub mod slots;
pub mod tasks;
pub mod topology;

pub use cluster::Cluster;
pub use doubt::{Doubt, Unfinished};
pub use gid::Gid;
pub use lag::{Lag, LagLimits};
pub use lookup::LookupStats;
pub use parts::Part;
pub use position::{Position, Role, Sample};
pub use retire::Guest;
pub use settings::{DeclaredNode, DeclaredRole, DeclaredTable, Instance, Settings, one_of_the_map};
pub use tally::{Outcome, Tallied, WAIT_BOUNDS_MS};
pub use topology::{Address, OmniTable, ShardNodes, ShardedTable, Topology, Unlisted};

/// A key whose shard only the database knows. `rule` indexes [`Topology::sharded`] of the topology
/// that is passed along with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LookupKey {
    /// Index of the rule.
    pub rule: usize,
    /// The key in canonical text form.
    pub key: String,
}
