//! Functions that PostgreSQL and common extensions bring, sorted by what they mean for a route.
//!
//! A function that is in no list counts as one that only reads.

/// What calling a function means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Traits {
    /// Fails on a standby, or changes something.
    pub(super) writes: bool,
    /// Its effect must be seen by every client, whatever shard its other statements go to.
    pub(super) shared: bool,
    /// Another server would answer differently.
    pub(super) divergent: bool,
    /// Changes which table lives where.
    pub(super) placement: bool,
}

/// Looks a function up by its schema, where the text names one, and name.
pub(super) fn traits(schema: Option<&str>, name: &str) -> Traits {
    if schema == Some("pgdog") {
        return own(name);
    }
    let sequence = matches!(name, "nextval" | "setval" | "currval" | "lastval");
    let advisory = name.starts_with("pg_advisory_") || name.starts_with("pg_try_advisory_");
    let large_object = name.starts_with("lo_") || matches!(name, "loread" | "lowrite");
    let shared = sequence || advisory || large_object || name == "pg_notify";
    Traits {
        writes: shared || writes(name),
        shared,
        divergent: sequence || divergent(name),
        placement: false,
    }
}

fn own(name: &str) -> Traits {
    let placement = matches!(
        name,
        "shard_table"
            | "omni_table"
            | "unshard_table"
            | "pause_lookup_writes"
            | "resume_lookup_writes"
    );
    let reads = matches!(
        name,
        "shard_for" | "lsn_for_timestamp" | "catalog_fingerprint" | "omni_hashes" | "version"
    );
    let on_every_node = matches!(name, "omni_enter" | "two_phase_record" | "install_node");
    Traits {
        writes: !reads,
        shared: !placement && !reads && !on_every_node,
        divergent: !reads,
        placement,
    }
}

fn writes(name: &str) -> bool {
    const PREFIXES: [&str; 7] = [
        "dblink",
        "pg_logical_",
        "pg_replication_",
        "pg_stat_reset",
        "pg_stat_statements_reset",
        "pg_wal_replay_",
        "pg_current_wal_",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "set_config"
                | "txid_current"
                | "pg_current_xact_id"
                | "pg_export_snapshot"
                | "pg_switch_wal"
                | "pg_walfile_name"
                | "pg_walfile_name_offset"
                | "pg_create_restore_point"
                | "pg_backup_start"
                | "pg_backup_stop"
                | "pg_create_physical_replication_slot"
                | "pg_create_logical_replication_slot"
                | "pg_copy_physical_replication_slot"
                | "pg_copy_logical_replication_slot"
                | "pg_drop_replication_slot"
                | "pg_sync_replication_slots"
                | "pg_import_system_collations"
                | "pg_extension_config_dump"
                | "pg_log_standby_snapshot"
                | "pg_nextoid"
                | "brin_summarize_new_values"
                | "brin_summarize_range"
                | "brin_desummarize_range"
                | "gin_clean_pending_list"
                | "pg_restore_relation_stats"
                | "pg_restore_attribute_stats"
                | "pg_clear_relation_stats"
                | "pg_clear_attribute_stats"
        )
}

fn divergent(name: &str) -> bool {
    const PREFIXES: [&str; 5] = [
        "uuid_generate_",
        "txid_",
        "inet_",
        "pg_current_wal_",
        "pg_last_",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "now"
                | "transaction_timestamp"
                | "statement_timestamp"
                | "clock_timestamp"
                | "timeofday"
                | "random"
                | "random_normal"
                | "setseed"
                | "array_sample"
                | "array_shuffle"
                | "gen_random_uuid"
                | "gen_random_bytes"
                | "gen_salt"
                | "uuidv4"
                | "uuidv7"
                | "ulid"
                | "gen_ulid"
                | "uuid_v7"
                | "pg_current_xact_id"
                | "pg_current_xact_id_if_assigned"
                | "pg_current_snapshot"
                | "pg_backend_pid"
                | "pg_my_temp_schema"
                | "pg_postmaster_start_time"
                | "pg_conf_load_time"
                | "pg_is_in_recovery"
                | "pg_export_snapshot"
                | "pg_relation_size"
                | "pg_total_relation_size"
                | "pg_database_size"
                | "pg_relation_filenode"
                | "current_database"
                | "version"
                | "age"
        )
}

/// System columns, which say where a row lies on one server.
pub(super) fn is_system_column(name: &str) -> bool {
    matches!(
        name,
        "ctid" | "xmin" | "xmax" | "cmin" | "cmax" | "tableoid"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_locks_and_notifications_are_shared_by_all_clients() {
        for name in [
            "nextval",
            "setval",
            "pg_advisory_lock",
            "pg_try_advisory_xact_lock",
        ] {
            let traits = traits(None, name);
            assert!(traits.writes && traits.shared, "{name}");
        }
        assert!(traits(None, "pg_notify").shared);
        assert!(traits(Some("pg_catalog"), "lo_create").shared);
        assert!(!traits(None, "txid_current").shared);
        assert!(traits(None, "txid_current").writes);
    }

    #[test]
    fn functions_of_the_extension_are_known_by_schema() {
        assert!(traits(Some("pgdog"), "shard_table").placement);
        assert!(!traits(Some("app"), "shard_table").placement);
        assert!(traits(Some("pgdog"), "add_shard").shared);
        assert_eq!(traits(Some("pgdog"), "shard_for"), Traits::default());
        assert_eq!(traits(None, "lower"), Traits::default());
    }
}
