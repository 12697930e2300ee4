//! Files as PgDog's users have them: every table and key that its documentation names.

use super::*;

/// What works here as it does there.
const USED: &str = r#"
[general]
host = "127.0.0.1"
port = 7000
workers = 3
default_pool_size = 12
min_pool_size = 2
pooler_mode = "session"
checkout_timeout = 2_500
connect_timeout = 1_500
idle_timeout = 45_000
server_lifetime = 3_600_000
query_timeout = 9223372036854775807
client_idle_timeout = 120_000
client_idle_in_transaction_timeout = 9223372036854775807
client_login_timeout = 20_000
shutdown_timeout = 30_000
shutdown_termination_timeout = 40_000
load_balancing_strategy = "least_active_connections"
read_write_strategy = "aggressive"
read_write_split = "exclude_primary"
ban_replica_lag = 9223372036854775807
ban_replica_lag_bytes = 25_000_000
auth_type = "scram"
passthrough_auth = "enabled_plain_allow_change"
tls_certificate = "server.pem"
tls_private_key = "server.key"
tls_client_required = true
tls_verify = "verify_full"
tls_server_ca_certificate = "ca.pem"
openmetrics_port = 9100
openmetrics_namespace = "shop_"
healthcheck_port = 9101
prepared_statements_limit = 200
two_phase_commit = true
lsn_check_interval = 2_000
cutover_timeout = 20_000
cutover_timeout_action = "abort"
cutover_save_config = false
log_level = "info"
log_format = "text"
[admin]
name = "console"
user = "boss"
password = "secret"
[tcp]
keepalive = true
time = 2_000
interval = 500
retries = 4
user_timeout = 3_000
congestion_control = "cubic"
[[databases]]
name = "shop"
host = "10.1.0.1"
port = 5433
database_name = "shop_0"
shard = 0
role = "primary"
pool_size = 8
min_pool_size = 1
pooler_mode = "transaction"
idle_timeout = 30_000
server_lifetime = 600_000
lb_weight = 255
[[databases]]
name = "shop"
host = "10.1.0.2"
database_name = "shop_0"
role = "replica"
read_only = true
[[databases]]
name = "shop"
host = "10.1.0.3"
database_name = "shop_1"
shard = 1
role = "auto"
[[sharded_tables]]
database = "shop"
name = "carts"
column = "owner"
data_type = "bigint"
hasher = "postgres"
[[sharded_tables]]
database = "shop"
name = "tickets"
column = "number"
data_type = "bigint"
[[sharded_mappings]]
database = "shop"
table = "tickets"
column = "number"
kind = "range"
end = 1000
shard = 0
[[sharded_mappings]]
database = "shop"
table = "tickets"
column = "number"
kind = "list"
values = [1000, 2000]
shard = 1
[[sharded_mappings]]
database = "shop"
table = "tickets"
column = "number"
kind = "default"
shard = 1
[[omnisharded_tables]]
database = "shop"
tables = ["countries"]
"#;

const USERS: &str = r#"
[[users]]
name = "web"
database = "shop"
password = "w"
pool_size = 6
min_pool_size = 1
pooler_mode = "transaction"
server_user = "web_on_server"
server_password = "s"
server_auth = "password"
idle_timeout = 10_000
server_lifetime = 60_000
statement_timeout = 5_000
lock_timeout = 1_000
read_only = false
[[users]]
name = "owner"
databases = ["shop"]
password = "o"
schema_admin = true
"#;

/// Tables and keys that have no use here, with values as they are usual there.
const IDLE: [(&str, &[&str]); 13] = [
    (
        "general",
        &[
            "healthcheck_interval = 1",
            "healthcheck_timeout = 1",
            "idle_healthcheck_interval = 1",
            "idle_healthcheck_delay = 1",
            "ban_timeout = 1",
            "connection_recovery = 'recover'",
            "client_connection_recovery = 'drop'",
            "connect_attempts = 1",
            "connect_attempt_delay = 0",
            "rollback_timeout = 1",
            "prepared_statements = 'extended'",
            "query_cache_limit = 1",
            "query_parser = 'auto'",
            "query_parser_enabled = true",
            "query_parser_engine = 'pg_query_raw'",
            "regex_parser_limit = 1",
            "query_log = 'x'",
            "expanded_explain = true",
            "dry_run = false",
            "cross_shard_disabled = false",
            "system_catalogs = 'omnisharded_sticky'",
            "omnisharded_sticky = true",
            "load_schema = 'auto'",
            "reload_schema_on_ddl = true",
            "two_phase_commit_auto = true",
            "unique_id_function = 'standard'",
            "unique_id_min = 0",
            "resharding_copy_format = 'binary'",
            "resharding_parallel_copies = 1",
            "resharding_copy_retry_max_attempts = 1",
            "resharding_copy_retry_min_delay = 1",
            "resharding_replication_retry_min_delay = 1",
            "rewrite_shard_key_updates = 'ignore'",
            "cutover_replication_lag_threshold = 0",
            "cutover_traffic_stop_threshold = 0",
            "cutover_last_transaction_delay = 0",
            "lsn_check_delay = 0",
            "lsn_check_timeout = 1",
            "mirror_queue = 1",
            "mirror_exposure = 1.0",
            "dns_ttl = 1",
            "pub_sub_channel_size = 1",
            "stats_period = 1",
            "log_connections = true",
            "log_disconnections = true",
            "log_dedup_window = 0",
            "log_dedup_threshold = 0",
            "broadcast_address = '224.0.0.1'",
            "broadcast_port = 6433",
            "server_lifetime_jitter = 1",
            "max_wildcard_pools = 1",
            "wildcard_pool_idle_timeout = 1",
        ],
    ),
    ("tcp", &["connect_retries = 3"]),
    ("memory", &["net_buffer = 1"]),
    ("rewrite", &["enabled = false"]),
    ("replica_lag", &["max_age = 1"]),
    ("replication", &["pg_dump_path = 'pg_dump'"]),
    ("otel", &["endpoint = 'x'"]),
    ("[plugins]", &["name = 'x'"]),
    ("[mirroring]", &["source_db = 'shop'"]),
    ("[manual_queries]", &["fingerprint = 'e78f'"]),
    ("[write_functions]", &["database = 'shop'"]),
    ("[query_parsers]", &["database = 'shop'"]),
    ("result_cache", &["enabled = false"]),
];

const IDLE_OF_USERS: [&str; 10] = [
    "replication_mode = false",
    "replication_sharding = 'shop'",
    "cross_shard_disabled = true",
    "two_phase_commit = true",
    "server_lifetime_jitter = 1",
    "idle_timeout_primary = 1",
    "min_pool_size_replica = 1",
    "pool_size_primary = 1",
    "server_iam_region = 'x'",
    "vault_refresh_percent = 80",
];

#[test]
fn what_is_used_here_is_read_without_a_word() {
    let config = Config::parse(USED, USERS).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!((config.general.port, config.general.workers), (7000, 3));
    assert_eq!(config.general.checkout_timeout, Ms(2_500));
    assert_eq!(config.databases.len(), 3);
    assert_eq!(config.databases[0].database_on_node(), "shop_0");
    assert_eq!(config.users.users[0].name_on_node(), "web_on_server");
}

#[test]
fn what_has_no_use_here_is_said_once_and_starts_nevertheless() {
    for (table, keys) in IDLE {
        let whole_table = USED.contains(&format!("\n[{table}]\n"));
        for key in keys {
            let text = match whole_table {
                true => USED.replacen(&format!("[{table}]\n"), &format!("[{table}]\n{key}\n"), 1),
                false => format!("{USED}\n[{table}]\n{key}\n"),
            };
            let config = Config::parse(&text, USERS);
            let config = config.unwrap_or_else(|error| panic!("{table} {key}: {error}"));
            let name = match whole_table {
                true => key.split(' ').next().unwrap(),
                false => table,
            };
            let said: Vec<_> = config
                .warnings
                .iter()
                .filter(|w| w.contains(name))
                .collect();
            assert_eq!((said.len(), config.warnings.len()), (1, 1), "{table} {key}");
        }
    }
    for key in IDLE_OF_USERS {
        let users = USERS.replacen("name = \"web\"\n", &format!("name = \"web\"\n{key}\n"), 1);
        let config = Config::parse(USED, &users).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(config.warnings.len(), 1, "{key}: {:?}", config.warnings);
    }
}

#[test]
fn what_would_change_what_is_served_is_refused_with_a_reason() {
    for more in [
        "[[sharded_schemas]]\ndatabase = 'shop'\nname = 'a'\nshard = 0",
        "[multi_tenant]\ncolumn = 'tenant'",
    ] {
        let error = Config::parse(&format!("{USED}\n{more}"), USERS).unwrap_err();
        assert!(error.problems.len() == 1, "{more}: {error}");
    }
    for key in [
        "passwords = ['a', 'b']",
        "auth_type = 'scram'",
        "vault_path = 'x'",
    ] {
        let users = USERS.replacen("name = \"web\"\n", &format!("name = \"web\"\n{key}\n"), 1);
        let error = Config::parse(USED, &users).unwrap_err();
        assert!(
            error.to_string().contains("is not accepted"),
            "{key}: {error}"
        );
    }
}
