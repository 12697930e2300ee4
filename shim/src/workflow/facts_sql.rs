//! The questions of `facts`.

// The timeline is taken from the name of the current WAL file: pg_control_checkpoint() still shows
// the old one for a while after a promotion.
/// System identifier and timeline.
pub const IDENTITY: &str = "
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
       END";

/// One row with a server's settings.
pub const NODE: &str = "
SELECT current_setting('server_version_num')::int AS version,
       pg_encoding_to_char(d.encoding)::text AS encoding,
       d.datcollate::text AS collate, d.datctype::text AS ctype,
       coalesce(d.datcollversion, '')::text AS colver,
       current_setting('wal_level') AS wal_level,
       current_setting('max_replication_slots')::int AS slots,
       (SELECT count(*)::int FROM pg_replication_slots) AS slots_used,
       current_setting('max_wal_senders')::int AS senders,
       (SELECT count(*)::int FROM pg_stat_replication) AS senders_used,
       current_setting('max_prepared_transactions')::int AS prepared,
       current_setting('max_sync_workers_per_subscription')::int AS sync_workers,
       current_setting('max_logical_replication_workers')::int AS replication_workers,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
       pg_is_in_recovery() AS in_recovery,
       current_setting('shared_preload_libraries') ~ '\\mpgdog\\M' AS preloaded,
       (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier,
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
       END AS timeline
FROM pg_database d WHERE d.datname = current_database()";

/// Settings of the database and of roles in it.
pub const SETTINGS: &str = "
SELECT CASE s.setrole WHEN 0 THEN '' ELSE s.setrole::regrole || ': ' END || c
FROM pg_db_role_setting s
JOIN pg_database d ON d.oid = s.setdatabase AND d.datname = current_database()
CROSS JOIN LATERAL unnest(s.setconfig) c";

/// What is in a database beside extensions.
pub const CONTENTS: &str = "
WITH user_schema AS (
  SELECT n.oid, n.nspname FROM pg_namespace n
  WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgdog')
    AND n.nspname !~ '^pg_(toast|temp)'
), of_extension AS (
  SELECT classid, objid FROM pg_depend WHERE deptype = 'e'
), found AS (
  SELECT 'schema ' || s.nspname AS name FROM user_schema s
  WHERE s.nspname <> 'public'
    AND (('pg_namespace'::regclass, s.oid)) NOT IN (SELECT classid, objid FROM of_extension)
  UNION ALL
  SELECT 'relation ' || c.oid::regclass FROM pg_class c JOIN user_schema s ON s.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    AND (('pg_class'::regclass, c.oid)) NOT IN (SELECT classid, objid FROM of_extension)
  UNION ALL
  SELECT 'type ' || t.oid::regtype FROM pg_type t JOIN user_schema s ON s.oid = t.typnamespace
  WHERE t.typtype IN ('e', 'd', 'r')
    AND (('pg_type'::regclass, t.oid)) NOT IN (SELECT classid, objid FROM of_extension)
  UNION ALL
  SELECT 'function ' || p.oid::regprocedure FROM pg_proc p
  JOIN user_schema s ON s.oid = p.pronamespace
  WHERE (('pg_proc'::regclass, p.oid)) NOT IN (SELECT classid, objid FROM of_extension)
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass
                    AND d.objid = p.oid AND d.deptype = 'i')
  UNION ALL
  SELECT 'event trigger ' || e.evtname FROM pg_event_trigger e
  WHERE (('pg_event_trigger'::regclass, e.oid)) NOT IN (SELECT classid, objid FROM of_extension)
  UNION ALL
  SELECT 'subscription ' || b.subname FROM pg_subscription b
  WHERE b.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  UNION ALL
  SELECT 'replication slot ' || r.slot_name FROM pg_replication_slots r
  WHERE r.database = current_database()
  UNION ALL
  SELECT 'prepared transaction ' || x.gid FROM pg_prepared_xacts x
  WHERE x.database = current_database()
)
SELECT name::text FROM found ORDER BY 1 LIMIT 10";

/// Leaves of the omni tables.
pub const TABLES: &str = "
SELECT n.nspname::text, c.relname::text, c.relpersistence <> 'p',
       CASE c.relreplident
         WHEN 'f' THEN true
         WHEN 'n' THEN false
         WHEN 'i' THEN EXISTS (SELECT FROM pg_index i
                               WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid)
         ELSE EXISTS (SELECT FROM pg_index i
                      WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid)
       END,
       greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0),
       pg_table_size(c.oid)
FROM pgdog.omnisharded_tables o
CROSS JOIN LATERAL (SELECT to_regclass(format('%I.%I', o.schema_name, o.table_name)) AS root) r
LEFT JOIN LATERAL pg_partition_tree(r.root) p ON p.isleaf
JOIN pg_class c ON c.oid = coalesce(p.relid, r.root)
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r'
ORDER BY 1, 2";

/// Declared omni tables that are not there.
pub const MISSING_TABLES: &str = "
SELECT format('%I.%I', schema_name, table_name) FROM pgdog.omnisharded_tables
WHERE to_regclass(format('%I.%I', schema_name, table_name)) IS NULL";

// What is neither an explicit mapping nor a lookup that yields the shard is hashed in the end.
/// Sharded tables whose rows would move.
pub const HASH_ROUTED: &str = "
SELECT format('%I.%I', schema_name,
              CASE table_name WHEN '' THEN '* (' || column_name || ')' ELSE table_name END)
FROM pgdog.sharded_tables
WHERE NOT (strategy = 'mapping' OR mapping IS NOT NULL
           OR (strategy LIKE 'lookup%' AND lookup_result = 'shard'))
ORDER BY 1";

/// Foreign keys out of the omni tables.
pub const FOREIGN_KEYS_OUT: &str = "
WITH omni AS (
  SELECT to_regclass(format('%I.%I', schema_name, table_name)) AS root FROM pgdog.omnisharded_tables
), member AS (
  SELECT coalesce(p.relid, o.root) AS relid
  FROM omni o LEFT JOIN LATERAL pg_partition_tree(o.root) p ON true
)
SELECT k.conrelid::regclass || ' -> ' || k.confrelid::regclass FROM pg_constraint k
WHERE k.contype = 'f' AND k.conrelid IN (SELECT relid FROM member)
  AND k.confrelid NOT IN (SELECT relid FROM member WHERE relid IS NOT NULL)
ORDER BY 1";

// Our own triggers on lookup tables are meant to fire for replicated rows.
/// Triggers that fire for replicated rows.
pub const ALWAYS_TRIGGERS: &str = "
SELECT t.tgname || ' on ' || t.tgrelid::regclass FROM pg_trigger t
JOIN pgdog.omnisharded_tables o
  ON t.tgrelid = to_regclass(format('%I.%I', o.schema_name, o.table_name))
WHERE NOT t.tgisinternal AND t.tgenabled IN ('A', 'R') AND t.tgname !~ '^pgdog_'
ORDER BY 1";

/// Maps that `pgdog.pause_lookup_writes()` holds still.
pub const PAUSED_MAPS: &str = "
SELECT DISTINCT coalesce(pg_partition_root(t.tgrelid), t.tgrelid)::regclass::text
FROM pg_trigger t WHERE t.tgname = 'pgdog_lookup_paused'
ORDER BY 1";

// Age by the server's clock; a slot is created only once every one of them is gone.
/// Prepared transactions of the server.
pub const PREPARED: &str = "
SELECT gid::text, database::text,
       extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts ORDER BY prepared";

/// The oldest transaction with an xid.
pub const OLDEST_TRANSACTION: &str = "
SELECT format('pid %s of %s in %s', pid, usename, datname),
       extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start LIMIT 1";

// The filter of a partitioned table counts for its leaves.
/// Tables of a publication, and whether all of each is published.
pub const PUBLISHED: &str = "
SELECT p.schemaname || '.' || p.tablename,
       NOT EXISTS (
           SELECT FROM pg_publication_rel r JOIN pg_publication b ON b.oid = r.prpubid
           WHERE b.pubname = p.pubname AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)
             AND (r.prrelid = c.oid
                  OR r.prrelid IN (SELECT * FROM pg_partition_ancestors(c.oid))))
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = $1";
