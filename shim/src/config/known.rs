//! PgDog's keys that have no use here, and those that cannot be ignored.
//!
//! A key stands here only while nothing reads it: a field of `General` and its like wins.

/// Keys that are refused, each with the reason.
pub(super) type Refused = &'static [(&'static str, &'static str)];

/// Top-level tables without effect here.
pub(super) const IDLE_TOP: &[&str] = &[
    "memory",
    "plugins",
    "mirroring",
    "stats",
    "query_stats",
    "control",
    "replica_lag",
    "replication",
    "rewrite",
    "otel",
    "manual_queries",
    "result_cache",
    "cache",
    "vault",
    "fdw",
    "write_functions",
    "query_parsers",
];

/// Top-level tables that cannot be ignored.
pub(super) const REFUSED_TOP: Refused = &[(
    "multi_tenant",
    "statements without the tenant's column would be served; use row-level security",
)];

/// Top-level tables that cannot be ignored in the databases that they name.
pub(super) const ASIDE_TOP: Refused =
    &[("sharded_schemas", "placement by schema does not exist here")];

/// Keys of `[general]` without effect here.
pub(super) const IDLE_GENERAL: &[&str] = &[
    "healthcheck_interval",
    "idle_healthcheck_interval",
    "idle_healthcheck_delay",
    "healthcheck_timeout",
    "connection_recovery",
    "client_connection_recovery",
    "ban_timeout",
    "rollback_timeout",
    "broadcast_address",
    "broadcast_port",
    "query_log",
    "prepared_statements",
    "query_parser",
    "query_parser_enabled",
    "query_parser_engine",
    "query_cache_limit",
    "connect_attempt_delay",
    "connect_attempts",
    "mirror_queue",
    "mirror_exposure",
    "dns_ttl",
    "pub_sub_channel_size",
    "log_connections",
    "log_disconnections",
    "log_dedup_window",
    "log_dedup_threshold",
    "two_phase_commit_auto",
    "two_phase_commit_wal_dir",
    "two_phase_commit_wal_segment_size",
    "two_phase_commit_wal_fsync_interval",
    "two_phase_commit_wal_checkpoint_interval",
    "expanded_explain",
    "stats_period",
    "lsn_check_timeout",
    "lsn_check_delay",
    "unique_id_min",
    "unique_id_function",
    "omnisharded_sticky",
    "resharding_copy_format",
    "resharding_parallel_copies",
    "resharding_copy_retry_max_attempts",
    "resharding_copy_retry_min_delay",
    "resharding_replication_retry_max_attempts",
    "resharding_replication_retry_min_delay",
    "rewrite_shard_key_updates",
    "rewrite_split_inserts",
    "reload_schema_on_ddl",
    "load_schema",
    "cutover_replication_lag_threshold",
    "cutover_traffic_stop_threshold",
    "cutover_last_transaction_delay",
    "cross_shard_backend",
    "cross_shard_disabled",
    "system_catalogs",
    "server_lifetime_jitter",
    "regex_parser_limit",
    "dry_run",
    "max_wildcard_pools",
    "wildcard_pool_idle_timeout",
];

/// Keys of `[general]` that cannot be ignored.
pub(super) const REFUSED_GENERAL: Refused = &[];

/// Keys of `[tcp]` without effect here.
pub(super) const IDLE_TCP: &[&str] = &["connect_retries"];

/// Keys of `[[databases]]` without effect here.
pub(super) const IDLE_DATABASE: &[&str] = &[
    "resharding_only",
    "mirror_of",
    "statement_timeout",
    "server_lifetime_jitter",
];

/// Keys of `[[databases]]` that cannot be ignored: the database is not served.
pub(super) const REFUSED_DATABASE: Refused = &[
    (
        "user",
        "the shim logs in as its client; give server_user in users.toml",
    ),
    (
        "password",
        "the shim logs in as its client; give server_password in users.toml",
    ),
    (
        "tls_server_certificate",
        "there is one certificate for all nodes, in [general]",
    ),
    (
        "tls_server_private_key",
        "there is one certificate for all nodes, in [general]",
    ),
];

/// Keys of `[[sharded_tables]]` without effect here.
pub(super) const IDLE_SHARDED: &[&str] = &["primary"];

/// Keys of `[[sharded_tables]]` that cannot be ignored: the database is not served.
pub(super) const REFUSED_SHARDED: Refused = &[
    ("centroids", "placement of vectors does not exist here"),
    ("centroids_path", "placement of vectors does not exist here"),
    (
        "centroid_probes",
        "placement of vectors does not exist here",
    ),
    (
        "hasher",
        "keys are hashed as PostgreSQL's hash partitions are",
    ),
];

/// Keys of `[[omnisharded_tables]]` without effect here.
pub(super) const IDLE_OMNISHARDED: &[&str] = &["sticky_routing"];

/// Keys of `[[users]]` without effect here.
pub(super) const IDLE_USER: &[&str] = &[
    "replication_mode",
    "replication_sharding",
    "server_lifetime_jitter",
    "cross_shard_disabled",
    "two_phase_commit",
    "two_phase_commit_auto",
    "idle_timeout_primary",
    "idle_timeout_replica",
    "min_pool_size_primary",
    "min_pool_size_replica",
    "pool_size_primary",
    "pool_size_replica",
    "server_iam_region",
    "server_iam_assume_role",
    "server_vault_path",
    "vault_refresh_percent",
];

/// Keys of `[[users]]` that cannot be ignored.
pub(super) const REFUSED_USER: Refused = &[
    ("passwords", "give one password"),
    (
        "auth_type",
        "all users prove themselves in the same way; give it in [general]",
    ),
    ("vault_path", "passwords are not asked for elsewhere"),
];

/// Keys of the tables above that say nothing when they have this value.
pub(super) const HARMLESS: &[(&str, &str)] = &[("hasher", "postgres"), ("server_auth", "password")];
