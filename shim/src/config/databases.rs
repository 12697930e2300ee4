//! `[[databases]]`: where the nodes are.

use serde::Deserialize;

/// One node of one logical database.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Database {
    /// Name of the logical database: what clients connect to.
    pub name: String,
    /// Host name or IP address of the node.
    pub host: String,
    /// TCP port of the node.
    #[serde(default = "postgres_port")]
    pub port: u16,
    /// Name of the database on the node; the logical name when absent.
    pub database_name: Option<String>,
    /// 0-based number of the shard that the node belongs to.
    #[serde(default)]
    pub shard: u16,
    /// What the node is to its shard.
    #[serde(default)]
    pub role: Role,
    /// Declared as the next shard, not serving. Harmless once the shard serves: the nodes know.
    #[serde(default)]
    pub provisioning: bool,
    /// Share of the reads among the replicas of the shard.
    #[serde(default = "full_weight")]
    pub lb_weight: u8,
}

impl Database {
    /// Name of the database on the node.
    pub fn database_on_node(&self) -> &str {
        self.database_name.as_deref().unwrap_or(&self.name)
    }
}

/// What a node is to its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It takes the writes.
    #[default]
    Primary,
    /// It follows the primary.
    Replica,
    /// The node itself tells.
    Auto,
}

fn postgres_port() -> u16 {
    5432
}

fn full_weight() -> u8 {
    255
}
