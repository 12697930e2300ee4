//! `[[databases]]`: where the nodes are.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Ms, PoolerMode};

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
    /// How long clients of this database keep their server connection; `[general]` when absent.
    pub pooler_mode: Option<PoolerMode>,
    /// Declared as the next shard, not serving. Harmless once the shard serves: the nodes know.
    #[serde(default)]
    pub provisioning: bool,
    /// Server connections of one user to this node at most, unless the user says otherwise.
    pub pool_size: Option<usize>,
    /// Server connections of one user to this node that stay open when idle.
    pub min_pool_size: Option<usize>,
    /// After how long an idle server connection to this node is closed.
    pub idle_timeout: Option<Ms>,
    /// After how long a server connection to this node is replaced.
    pub server_lifetime: Option<Ms>,
    /// Said of a replica, which is read-only by itself.
    pub read_only: Option<bool>,
    /// Share of the reads among the replicas of the shard.
    #[serde(default = "full_weight")]
    pub lb_weight: u8,
}

impl Database {
    /// Name of the database on the node.
    pub fn database_on_node(&self) -> &str {
        self.database_name.as_deref().unwrap_or(&self.name)
    }

    /// The host, the same for all names of this machine that need not be looked up.
    fn machine(&self) -> String {
        match self.host.as_str() {
            "localhost" | "127.0.0.1" | "::1" => "localhost".to_owned(),
            other => other.to_owned(),
        }
    }
}

/// An entry for all databases that no other entry names.
const ANY: &str = "*";

/// Notes the entries that stand for databases which nobody has named.
pub(super) fn set_aside_patterns(databases: &[Database], unserved: &mut BTreeMap<String, String>) {
    if databases.iter().any(|database| database.name == ANY) {
        unserved.insert(
            ANY.to_owned(),
            "[[databases]] name \"*\": databases are listed one by one here; give their names"
                .to_owned(),
        );
    }
}

/// PgDog's files list a server twice, as primary and as replica, to try things out: it is one
/// node. Takes the repetitions out, and tells of each.
pub(super) fn merge(databases: &mut Vec<Database>) -> Vec<String> {
    let mut kept: Vec<Database> = Vec::new();
    let mut warnings = Vec::new();
    for database in databases.drain(..) {
        let same = kept.iter_mut().find(|known| {
            let place = |d: &Database| (d.name.clone(), d.shard, d.machine(), d.port);
            place(known) == place(&database)
                && known.database_on_node() == database.database_on_node()
                && known.role != database.role
        });
        let Some(known) = same else {
            kept.push(database);
            continue;
        };
        warnings.push(format!(
            "pgdog.toml: [[databases]] {}:{}/{} is listed as primary and as replica; \
             it is one node",
            database.host,
            database.port,
            database.database_on_node()
        ));
        if database.role == Role::Primary {
            *known = database;
        }
    }
    *databases = kept;
    warnings
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
