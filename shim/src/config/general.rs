//! `[general]` and `[admin]`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AuthType, Passthrough, TlsVerify};

/// A duration as the files write it: whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Ms(pub u64);

/// The longest duration that means anything: PgDog's files write "never" as a huge number.
const LONGEST_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

impl From<Ms> for Duration {
    fn from(ms: Ms) -> Self {
        Duration::from_millis(ms.0.min(LONGEST_MS))
    }
}

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// `[general]`: settings of the shim as a whole.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct General {
    /// Address to listen on.
    pub host: String,
    /// TCP port to listen on.
    pub port: u16,
    /// Threads of the runtime; 0 is as good as 1.
    pub workers: usize,
    /// Clients that may be connected at the same time, operators aside; no limit when absent but
    /// the one of the process's file descriptors.
    pub max_client_conn: Option<usize>,
    /// Server connections per node and user, at most.
    #[serde(alias = "max_pool_size")]
    pub default_pool_size: usize,
    /// Server connections per node and user that are kept open when idle.
    pub min_pool_size: usize,
    /// How long a client keeps its server connection, where database and user do not say.
    pub pooler_mode: PoolerMode,
    /// How long a client waits for a server connection.
    pub checkout_timeout: Ms,
    /// How long a lookup of a key's shard may take.
    pub sharding_lookup_timeout: Ms,
    /// Bytes of answers to lookups that are kept for each database.
    pub sharding_lookup_cache_size: u64,
    /// After how long an idle server connection is closed.
    pub idle_timeout: Ms,
    /// After how long a server connection is replaced, once its client gives it back.
    pub server_lifetime: Ms,
    /// Named statements that one server connection keeps prepared.
    pub prepared_statements_limit: usize,
    /// How long a connection attempt to a node may take.
    pub connect_timeout: Ms,
    /// How long a query may run; no limit when absent.
    pub query_timeout: Option<Ms>,
    /// How long a client may take to log in.
    pub client_login_timeout: Ms,
    /// After how long a client that sends nothing is sent away; never when absent.
    pub client_idle_timeout: Option<Ms>,
    /// After how long a client that sends nothing inside a transaction is sent away; never when
    /// absent.
    pub client_idle_in_transaction_timeout: Option<Ms>,
    /// How long a stop waits for open transactions.
    pub shutdown_timeout: Ms,
    /// How long a stop then waits for the statements that it cancels.
    pub shutdown_termination_timeout: Option<Ms>,
    /// How clients prove who they are.
    pub auth_type: AuthType,
    /// Whether users who are not in `users.toml` may log in.
    pub passthrough_auth: Passthrough,
    /// PEM file with the certificate that clients see, and its chain; no TLS when absent.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with its key.
    pub tls_private_key: Option<PathBuf>,
    /// Whether clients without TLS are refused.
    pub tls_client_required: bool,
    /// PEM file with who signs clients' certificates: clients then log in by these.
    pub tls_client_ca_certificate: Option<PathBuf>,
    /// When connections to nodes are encrypted, and what is checked.
    pub tls_verify: TlsVerify,
    /// PEM file with who signs the nodes' certificates; the system's roots when absent.
    pub tls_server_ca_certificate: Option<PathBuf>,
    /// PEM file with the certificate that is shown to nodes that ask for one.
    pub tls_server_certificate: Option<PathBuf>,
    /// PEM file with its key.
    pub tls_server_private_key: Option<PathBuf>,
    /// Where OpenMetrics are served; off when absent.
    pub openmetrics_port: Option<u16>,
    /// Put before the name of every metric.
    pub openmetrics_namespace: String,
    /// Where `/health` answers; off when absent.
    pub healthcheck_port: Option<u16>,
    /// Whether plain reads may go to a primary that has replicas.
    pub read_write_split: ReadWriteSplit,
    /// What in a transaction decides that it goes to the primary.
    pub read_write_strategy: ReadWriteStrategy,
    /// How a replica is chosen among those that qualify.
    pub load_balancing_strategy: BalancingStrategy,
    /// For how long a replica may have been behind and take reads; no limit when absent.
    pub ban_replica_lag: Option<Ms>,
    /// How many bytes a replica may be behind and take reads; no limit when absent.
    pub ban_replica_lag_bytes: Option<u64>,
    /// Whether writes to several shards are committed in two phases.
    pub two_phase_commit: bool,
    /// How a log line looks.
    pub log_format: LogFormat,
    /// Which events are logged, in the syntax of `RUST_LOG`, which counts first.
    pub log_level: String,
    /// How long a read waits for a replica to reach its floor.
    pub min_lsn_wait: Ms,
    /// Whether a read whose floor no replica reaches in time goes to the primary.
    pub min_lsn_primary_fallback: bool,
    /// What happens with tables that nobody declared, on more than one shard.
    pub unlisted_tables: UnlistedTables,
    /// How long a cutover may try before `cutover_timeout_action`.
    pub cutover_timeout: Ms,
    /// What happens when a cutover takes too long.
    pub cutover_timeout_action: CutoverAction,
    /// Whether the flag `provisioning` is taken out of the file after the activation.
    pub cutover_save_config: bool,
    /// Bytes of WAL that a waiting task may retain before it is stopped; no limit when absent.
    pub max_parked_wal: Option<u64>,
    /// How often the replay positions of the nodes are sampled while nobody waits.
    pub lsn_check_interval: Ms,
}

impl Default for General {
    fn default() -> Self {
        Self {
            host: "0.0.0.0".to_owned(),
            port: 6432,
            workers: 2,
            max_client_conn: None,
            default_pool_size: 10,
            min_pool_size: 1,
            pooler_mode: PoolerMode::Transaction,
            checkout_timeout: Ms(5_000),
            sharding_lookup_timeout: Ms(5_000),
            sharding_lookup_cache_size: 16 << 20,
            idle_timeout: Ms(60_000),
            server_lifetime: Ms(24 * 3600 * 1000),
            prepared_statements_limit: 500,
            connect_timeout: Ms(5_000),
            query_timeout: None,
            client_login_timeout: Ms(60_000),
            client_idle_timeout: None,
            client_idle_in_transaction_timeout: None,
            shutdown_timeout: Ms(60_000),
            shutdown_termination_timeout: None,
            auth_type: AuthType::Scram,
            passthrough_auth: Passthrough::Enabled,
            tls_certificate: None,
            tls_private_key: None,
            tls_client_required: false,
            tls_client_ca_certificate: None,
            tls_verify: TlsVerify::Prefer,
            tls_server_ca_certificate: None,
            tls_server_certificate: None,
            tls_server_private_key: None,
            openmetrics_port: None,
            openmetrics_namespace: String::new(),
            healthcheck_port: None,
            read_write_split: ReadWriteSplit::IncludePrimary,
            read_write_strategy: ReadWriteStrategy::Conservative,
            load_balancing_strategy: BalancingStrategy::Random,
            ban_replica_lag: None,
            ban_replica_lag_bytes: None,
            two_phase_commit: true,
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            min_lsn_wait: Ms(100),
            min_lsn_primary_fallback: false,
            unlisted_tables: UnlistedTables::Refuse,
            cutover_timeout: Ms(30_000),
            cutover_timeout_action: CutoverAction::Abort,
            cutover_save_config: false,
            max_parked_wal: None,
            lsn_check_interval: Ms(1_000),
        }
    }
}

/// How long a client keeps its server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolerMode {
    /// Until the end of the transaction.
    #[default]
    Transaction,
    /// Until the client leaves.
    Session,
    /// Until the end of the statement.
    Statement,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Whether plain reads may go to a primary that has replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadWriteSplit {
    /// Reads go to any node of the shard.
    #[default]
    IncludePrimary,
    /// Reads go to replicas as long as there is one that serves.
    #[serde(alias = "include_primary_if_replica_banned")]
    ExcludePrimary,
    /// Reads go to the primary unless their session or a comment asks for a replica.
    PreferPrimary,
}

/// What in a transaction decides that it goes to the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadWriteStrategy {
    /// Every transaction block goes to the primary unless it is declared `READ ONLY`.
    #[default]
    Conservative,
    /// A transaction block goes to a replica if its first statement only reads; a write in it is an
    /// error then.
    Aggressive,
}

/// How a replica is chosen among those that qualify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancingStrategy {
    /// At random.
    #[default]
    Random,
    /// One after the other.
    RoundRobin,
    /// The one that fewest connections of the user's are lent to.
    LeastActiveConnections,
    /// One after the other, by `lb_weight` of `[[databases]]`.
    WeightedRoundRobin,
}

/// What happens with tables that nobody declared, on more than one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnlistedTables {
    /// Their statements are refused with a hint how to declare them.
    #[default]
    Refuse,
    /// They count as omnisharded.
    Omnisharded,
}

/// What happens when a cutover takes too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CutoverAction {
    /// The task goes back to waiting for a cutover.
    #[default]
    Abort,
    /// The cutover is tried again without end.
    Cutover,
}

/// `[admin]`: the database that operators talk to.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Admin {
    /// Name of the admin database.
    pub name: String,
    /// The only user who may log in to it.
    pub user: String,
    /// Password of that user; without one the admin database does not exist.
    #[serde(skip_serializing)]
    pub password: Option<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            name: "admin".to_owned(),
            user: "admin".to_owned(),
            password: None,
        }
    }
}
