//! Which keys the files may have.
//!
//! serde knows the fields of our own structs; they are read from it, not listed twice. What is
//! listed here is PgDog's: keys that are accepted without effect, and keys that are refused because
//! going on without them would change what is served.

use serde::Deserialize;
use serde::de::value::Error as FieldError;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use toml::{Table, Value};

use super::tables::{Mapping, SharedMapping};
use super::{Admin, Config, ConfigError, Database, General, OmnishardedTables, ShardedTable};
use super::{User, Users};

/// Problems found so far.
#[derive(Default)]
pub(super) struct Report {
    problems: Vec<String>,
}

impl Report {
    pub(super) fn into_result(self) -> Result<(), ConfigError> {
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(ConfigError {
                problems: self.problems,
            }),
        }
    }
}

/// One table of a file: what may stand in it.
struct Section {
    name: &'static str,
    fields: &'static [&'static str],
    /// PgDog's keys without effect here.
    idle: &'static [&'static str],
    /// PgDog's keys that cannot be ignored, with the reason.
    refused: &'static [(&'static str, &'static str)],
}

fn sections() -> [Section; 8] {
    [
        section::<General>("general", IDLE_GENERAL, REFUSED_GENERAL),
        section::<Admin>("admin", &[], &[]),
        section::<Database>("databases", IDLE_DATABASE, REFUSED_DATABASE),
        section::<ShardedTable>("sharded_tables", IDLE_SHARDED, REFUSED_SHARDED),
        section::<SharedMapping>("sharded_mappings", &[], &[]),
        section::<OmnishardedTables>("omnisharded_tables", &[], &[]),
        section::<Mapping>("sharded_tables.mapping", &[], &[]),
        section::<User>("users", IDLE_USER, REFUSED_USER),
    ]
}

fn section<T: for<'de> Deserialize<'de>>(
    name: &'static str,
    idle: &'static [&'static str],
    refused: &'static [(&'static str, &'static str)],
) -> Section {
    Section {
        name,
        fields: fields_of::<T>(),
        idle,
        refused,
    }
}

/// Top-level tables of PgDog's file without effect here.
const IDLE_TOP: &[&str] = &[
    "tcp",
    "memory",
    "plugins",
    "mirroring",
    "stats",
    "query_stats",
    "control",
    "replica_lag",
    "rewrite",
    "otel",
];

/// Top-level tables of PgDog's file that cannot be ignored.
const REFUSED_TOP: &[(&str, &str)] = &[
    ("sharded_schemas", "placement by schema does not exist here"),
    (
        "manual_queries",
        "placement by query fingerprint does not exist here; use a comment",
    ),
];

const IDLE_GENERAL: &[&str] = &[
    "healthcheck_interval",
    "idle_healthcheck_interval",
    "idle_healthcheck_delay",
    "healthcheck_timeout",
    "connection_recovery",
    "client_connection_recovery",
    "ban_timeout",
    "ban_replica_lag",
    "ban_replica_lag_bytes",
    "rollback_timeout",
    "tls_verify",
    "tls_server_ca_certificate",
    "shutdown_termination_timeout",
    "broadcast_address",
    "broadcast_port",
    "query_log",
    "openmetrics_namespace",
    "prepared_statements",
    "query_parser",
    "query_parser_enabled",
    "query_parser_engine",
    "prepared_statements_limit",
    "query_cache_limit",
    "connect_attempt_delay",
    "connect_attempts",
    "client_idle_timeout",
    "client_idle_in_transaction_timeout",
    "server_lifetime",
    "mirror_queue",
    "mirror_exposure",
    "dns_ttl",
    "pub_sub_channel_size",
    "log_connections",
    "log_disconnections",
    "log_format",
    "log_level",
    "two_phase_commit_auto",
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
    "reload_schema_on_ddl",
    "load_schema",
    "cutover_replication_lag_threshold",
    "cutover_traffic_stop_threshold",
    "cutover_last_transaction_delay",
    "cross_shard_disabled",
    "system_catalogs",
    "server_lifetime_jitter",
    "regex_parser_limit",
    "dry_run",
];

const NO_TLS: &str = "TLS is not served by this version, and a file that asks for it must not be \
                      answered in clear text";

const REFUSED_GENERAL: &[(&str, &str)] = &[
    ("tls_certificate", NO_TLS),
    ("tls_private_key", NO_TLS),
    ("tls_client_required", NO_TLS),
    (
        "passthrough_auth",
        "every user is listed in users.toml here",
    ),
];

const IDLE_DATABASE: &[&str] = &[
    "statement_timeout",
    "idle_timeout",
    "pool_size",
    "min_pool_size",
    "server_lifetime",
    "resharding_only",
];

const REFUSED_DATABASE: &[(&str, &str)] = &[
    (
        "user",
        "the shim logs in as its client; give server_user in users.toml",
    ),
    (
        "password",
        "the shim logs in as its client; give server_password in users.toml",
    ),
    ("pooler_mode", "there is one pooler_mode, in [general]"),
    (
        "read_only",
        "make the database read-only on the nodes instead",
    ),
];

const IDLE_SHARDED: &[&str] = &["primary"];

const REFUSED_SHARDED: &[(&str, &str)] = &[
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

const IDLE_USER: &[&str] = &[
    "statement_timeout",
    "replication_mode",
    "replication_sharding",
    "idle_timeout",
    "server_lifetime",
    "cross_shard_disabled",
    "two_phase_commit",
    "two_phase_commit_auto",
];

const REFUSED_USER: &[(&str, &str)] = &[
    (
        "read_only",
        "revoke the right to write on the nodes instead",
    ),
    ("pooler_mode", "there is one pooler_mode, in [general]"),
    ("passwords", "give one password"),
];

/// Parses a file; a syntax error goes to the report with its place.
pub(super) fn table(file: &str, text: &str, report: &mut Report) -> Option<Table> {
    text.parse::<Table>()
        .map_err(|e| {
            let line = e
                .span()
                .map_or(0, |span| text[..span.start].lines().count().max(1));
            report
                .problems
                .push(format!("{file}, line {line}: {}", super::one_line(&e)));
        })
        .ok()
}

/// Checks every key of `pgdog.toml`.
pub(super) fn check_config(table: &Table, report: &mut Report) {
    let sections = sections();
    let top = fields_of::<Config>();
    for (key, value) in table {
        if IDLE_TOP.contains(&key.as_str()) {
            continue;
        }
        if let Some((_, why)) = REFUSED_TOP.iter().find(|(name, _)| name == key) {
            report
                .problems
                .push(format!("pgdog.toml: [{key}] is not accepted: {why}"));
            continue;
        }
        let known = top.contains(&key.as_str());
        match sections.iter().find(|s| known && s.name == key) {
            Some(section) => {
                check_section("pgdog.toml", section, value, report);
                if key == "sharded_tables" {
                    check_mappings(&sections, value, report);
                }
            }
            None => report
                .problems
                .push(unknown("pgdog.toml", "table", key, top)),
        }
    }
}

/// Checks every key of `users.toml`.
pub(super) fn check_users(table: &Table, report: &mut Report) {
    let sections = sections();
    for (key, value) in table {
        match sections.iter().find(|s| s.name == "users" && s.name == key) {
            Some(section) => check_section("users.toml", section, value, report),
            None if key == "admin" => report
                .problems
                .push("users.toml: [admin] belongs into pgdog.toml; move it there".to_owned()),
            None => {
                report
                    .problems
                    .push(unknown("users.toml", "table", key, fields_of::<Users>()));
            }
        }
    }
}

/// One warning per key that has no effect.
pub(super) fn idle_keys(config: Option<&Table>, users: Option<&Table>) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |file: &str, place: &str| {
        let line = format!("{file}: {place} is accepted as PgDog's and has no effect");
        if !warnings.contains(&line) {
            warnings.push(line);
        }
    };
    for key in config.into_iter().flat_map(Table::keys) {
        if IDLE_TOP.contains(&key.as_str()) {
            warn("pgdog.toml", &format!("[{key}]"));
        }
    }
    for (file, table) in [("pgdog.toml", config), ("users.toml", users)] {
        for section in sections() {
            let Some(value) = table.and_then(|t| t.get(section.name)) else {
                continue;
            };
            for key in rows(value).into_iter().flat_map(Table::keys) {
                if section.idle.contains(&key.as_str()) {
                    warn(file, &format!("{key} in [{}]", section.name));
                }
            }
        }
    }
    warnings
}

fn check_mappings(sections: &[Section], tables: &Value, report: &mut Report) {
    let Some(section) = sections.iter().find(|s| s.name == "sharded_tables.mapping") else {
        return;
    };
    for mapping in rows(tables).into_iter().filter_map(|t| t.get("mapping")) {
        check_section("pgdog.toml", section, mapping, report);
    }
}

fn check_section(file: &str, section: &Section, value: &Value, report: &mut Report) {
    for key in rows(value).into_iter().flat_map(Table::keys) {
        let key = key.as_str();
        if section.fields.contains(&key) || section.idle.contains(&key) {
            continue;
        }
        let place = format!("[{}]", section.name);
        match section.refused.iter().find(|(name, _)| *name == key) {
            Some((_, why)) => report
                .problems
                .push(format!("{file}: {key} in {place} is not accepted: {why}")),
            None => {
                let problem = unknown(file, "key", key, section.fields);
                report.problems.push(format!("{problem} (in {place})"));
            }
        }
    }
}

/// The tables of a section, written once or as an array.
fn rows(value: &Value) -> Vec<&Table> {
    match value {
        Value::Table(table) => vec![table],
        Value::Array(rows) => rows.iter().filter_map(Value::as_table).collect(),
        Value::String(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_) => Vec::new(),
    }
}

fn unknown(file: &str, what: &str, key: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(key, name), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3);
    match nearest {
        Some((_, name)) => format!("{file}: unknown {what} {key}; did you mean {name}?"),
        None => format!("{file}: unknown {what} {key}"),
    }
}

/// The fields of a struct as serde knows them.
fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // The result is always the error of `FieldNames`: nothing is built, only the names are taken.
    let _ = T::deserialize(FieldNames(&mut fields));
    fields
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, FieldError> {
        Err(FieldError::custom(
            "only structs are asked for their fields",
        ))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, FieldError> {
        *self.0 = fields;
        Err(FieldError::custom("names taken"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
