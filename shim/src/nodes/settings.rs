//! What the configuration declares about one logical database. Plain data.

use std::sync::Arc;
use std::time::Duration;

use pgdog_core::ids::ShardNumber;

use super::lag::LagLimits;
use super::topology::{Address, Unlisted};
use crate::config::{self, Config, CutoverAction, General, UnlistedTables};
use crate::net::Dialer;

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
    /// How nodes are connected to.
    pub dialer: Arc<Dialer>,
    /// Whether multi-shard writes are two-phase.
    pub two_phase_commit: bool,
    /// How far replicas may be behind and take reads.
    pub lag_limits: LagLimits,
    /// How often positions are sampled while nobody waits.
    pub lsn_check_interval: Duration,
    /// Limit for a control connection to be made.
    pub connect_timeout: Duration,
    /// How long a cutover waits for the gates before it parks again; none: without end.
    pub cutover_timeout: Option<Duration>,
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
    /// Its share of the reads, among those of its shard.
    pub weight: u8,
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

impl Settings {
    /// What the files say about one logical database. `None` without a user to log in with.
    pub fn from_config(
        config: &Config,
        database: &str,
        instance: Instance,
        dialer: Arc<Dialer>,
    ) -> Option<Self> {
        let user = config.control_user(database)?;
        let mut settings = Self {
            database: database.to_owned(),
            nodes: config.nodes(database).map(declared_node).collect(),
            sharded: config
                .sharded_tables
                .iter()
                .filter(|table| table.database == database)
                .map(declared_table)
                .collect(),
            omnisharded: config
                .omnisharded_tables
                .iter()
                .filter(|entry| entry.database == database)
                .flat_map(|entry| entry.tables.iter().map(|name| schema_and_name(name)))
                .collect(),
            unlisted: match config.general.unlisted_tables {
                UnlistedTables::Refuse => Unlisted::Refused,
                UnlistedTables::Omnisharded => Unlisted::Omnisharded,
            },
            user: user.name_on_node().to_owned(),
            password: user.password_on_node().map(str::to_owned),
            dialer,
            two_phase_commit: config.general.two_phase_commit,
            lag_limits: LagLimits {
                bytes: config.general.ban_replica_lag_bytes,
                time: config.general.ban_replica_lag.map(Into::into),
            },
            lsn_check_interval: config.general.lsn_check_interval.into(),
            connect_timeout: config.general.connect_timeout.into(),
            cutover_timeout: cutover_timeout(&config.general),
            lookup_timeout: config.general.sharding_lookup_timeout.into(),
            lookup_cache_bytes: config.general.sharding_lookup_cache_size,
            instance,
        };
        let version = &settings.instance.version;
        settings.instance.version = format!("{version}+{:08x}", settings.fingerprint());
        Some(settings)
    }

    /// The share of the reads that a node has; the full one if nobody declared it.
    pub fn weight_of(&self, address: &Address) -> u8 {
        let declared = self.nodes.iter().find(|node| node.address == *address);
        declared.map_or(u8::MAX, |node| node.weight)
    }

    /// What is declared about placement, as a number: shims of a fleet whose numbers differ would
    /// declare different things. It stands behind the `+` of the version in `pgdog.instances`.
    fn fingerprint(&self) -> u32 {
        let declared = format!(
            "{:?} {:?} {:?} {}",
            self.sharded, self.omnisharded, self.unlisted, self.two_phase_commit
        );
        // FNV-1a.
        declared.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    }
}

fn cutover_timeout(general: &General) -> Option<Duration> {
    match general.cutover_timeout_action {
        CutoverAction::Abort => Some(general.cutover_timeout.into()),
        CutoverAction::Cutover => None,
    }
}

fn declared_node(node: &config::Database) -> DeclaredNode {
    DeclaredNode {
        shard: ShardNumber(node.shard),
        address: Address {
            host: node.host.clone(),
            port: node.port,
            database: node.database_on_node().to_owned(),
        },
        role: match node.role {
            config::Role::Primary => DeclaredRole::Primary,
            config::Role::Replica => DeclaredRole::Replica,
            config::Role::Auto => DeclaredRole::Auto,
        },
        provisioning: node.provisioning,
        weight: node.lb_weight,
    }
}

fn declared_table(table: &config::ShardedTable) -> DeclaredTable {
    // A mapping of keys and strings always makes JSON.
    let mapping = serde_json::to_string(&table.mapping).ok();
    DeclaredTable {
        schema: table.schema.clone().unwrap_or_else(|| "public".to_owned()),
        table: table.name.clone().unwrap_or_default(),
        column: table.column.clone(),
        data_type: table.data_type.name().to_owned(),
        lookup_query: table
            .lookup_query
            .clone()
            .or_else(|| table.query.as_deref().map(one_of_the_map)),
        lookup_result: table.lookup_result.unwrap_or_default().name().to_owned(),
        mapping: mapping.filter(|_| !table.mapping.is_empty()),
    }
}

/// A whole map is asked for the one key that is wanted: it is never out of date, and no answer is
/// kept longer than that of any other lookup.
pub fn one_of_the_map(query: &str) -> String {
    let query = query.trim().trim_end_matches(';');
    // The line break ends a comment at the end of the query.
    format!("SELECT map.value FROM (\n{query}\n) AS map(key, value) WHERE map.key = $1")
}

fn schema_and_name(name: &str) -> (String, String) {
    let (schema, table) = name.split_once('.').unwrap_or(("public", name));
    (schema.to_owned(), table.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
[[databases]]
name = "prod"
host = "10.0.0.1"
role = "auto"

[[databases]]
name = "prod"
host = "10.0.0.2"
port = 6000
database_name = "app"
shard = 1
provisioning = true

[[databases]]
name = "other"
host = "10.0.0.3"

[[sharded_tables]]
database = "prod"
name = "orders"
column = "tenant_id"
data_type = "bigint"
lookup_query = "SELECT shard_id FROM tenants WHERE id = $1"
lookup_result = "shard"

[[omnisharded_tables]]
database = "prod"
tables = ["tenants", "crm.accounts"]
"#;
    const USERS: &str = r#"
[[users]]
name = "app"
database = "prod"
password = "x"

[[users]]
name = "boss"
database = "prod"
password = "y"
schema_admin = true
"#;

    fn settings(database: &str) -> Option<Settings> {
        let config = Config::parse(CONFIG, USERS).expect("a valid configuration");
        let instance = Instance {
            instance_id: Instance::new_id(),
            name: "a".into(),
            addr: "a:1".into(),
            version: "0".into(),
            databases: vec!["prod".into()],
        };
        Settings::from_config(&config, database, instance, Arc::default())
    }

    #[test]
    fn one_database_takes_its_own_entries_and_the_schema_admin() {
        let prod = settings("prod").expect("has users");
        assert_eq!(
            (prod.user.as_str(), prod.password.as_deref()),
            ("boss", Some("y"))
        );
        assert_eq!(prod.nodes.len(), 2);
        assert_eq!(prod.nodes[1].address.to_string(), "10.0.0.2:6000/app");
        assert!(prod.nodes[1].provisioning);
        let pair = |schema: &str, name: &str| (schema.to_owned(), name.to_owned());
        assert_eq!(
            prod.omnisharded,
            [pair("public", "tenants"), pair("crm", "accounts")]
        );
        assert_eq!(prod.sharded[0].lookup_result, "shard");
        assert_eq!(prod.sharded[0].mapping, None);
    }

    #[test]
    fn the_version_tells_whether_declarations_are_the_same() {
        let version = |settings: &Settings| settings.instance.version.clone();
        let one = settings("prod").expect("has users");
        let mut other = settings("prod").expect("has users");
        assert_eq!(version(&one), version(&other));
        other.omnisharded.pop();
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert!(version(&one).starts_with("0+"));
    }

    #[test]
    fn a_database_without_users_cannot_be_looked_after() {
        assert!(settings("other").is_none());
    }

    #[test]
    fn ids_of_instances_are_16_hex_digits_and_differ() {
        let (one, two) = (Instance::new_id(), Instance::new_id());
        assert_eq!(one.len(), 16);
        assert_ne!(one, two);
    }
}
