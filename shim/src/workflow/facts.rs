//! What is: everything that the guards judge, gathered without writing anything.

use std::collections::{BTreeMap, BTreeSet};

use pgdog_core::ids::ShardNumber;
use tokio_postgres::Row;

use super::compare::{self, TableHash};
use super::error::WorkflowError;
use super::node::Node;
use super::site::Site;

/// All facts about one planned growth.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The number asked for.
    pub shard: u16,
    /// How many shards serve.
    pub serving: usize,
    /// Shard 0.
    pub source: NodeFacts,
    /// The new shard.
    pub target: NodeFacts,
    /// `max_prepared_transactions` of each serving shard.
    pub prepared_limits: Vec<i32>,
    /// What the target's database already holds, a few names.
    pub target_contents: Vec<String>,
    /// Leaves of the omni tables on shard 0.
    pub tables: Vec<TableFacts>,
    /// Declared omni tables that do not exist.
    pub missing_tables: Vec<String>,
    /// Sharded tables whose placement would change with the number of shards.
    pub hash_routed: Vec<String>,
    /// Omni tables with a foreign key into a table that is not omni: `a.x -> b`.
    pub foreign_keys_out: Vec<String>,
    /// Triggers on omni tables that fire for replicated rows.
    pub always_triggers: Vec<String>,
    /// Prepared transactions on shard 0's server: name, database, age in seconds.
    pub prepared: Vec<(String, String, f64)>,
    /// Oldest running transaction with an xid on shard 0's server: who, age in seconds.
    pub oldest_transaction: Option<(String, f64)>,
    /// Tables of the operator's publication, when one was named; `None` inside: no such publication.
    pub publication: Option<(String, Option<BTreeSet<String>>)>,
    /// Omni tables that differ between serving shards, or why that could not be found out.
    pub drift: Result<Vec<String>, String>,
    /// Their hashes on shard 0.
    pub hashes: Vec<TableHash>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            shard: 0,
            serving: 0,
            source: NodeFacts::default(),
            target: NodeFacts::default(),
            prepared_limits: Vec::new(),
            target_contents: Vec::new(),
            tables: Vec::new(),
            missing_tables: Vec::new(),
            hash_routed: Vec::new(),
            foreign_keys_out: Vec::new(),
            always_triggers: Vec::new(),
            prepared: Vec::new(),
            oldest_transaction: None,
            publication: None,
            drift: Err("not asked yet".into()),
            hashes: Vec::new(),
        }
    }
}

/// Facts about one server and database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// `server_version_num`.
    pub version: i32,
    /// Encoding, collate, ctype and the collation's version.
    pub locale: (String, String, String, String),
    /// `wal_level`.
    pub wal_level: String,
    /// Replication slots: limit, used.
    pub slots: (i32, i32),
    /// WAL senders: limit, used.
    pub senders: (i32, i32),
    /// `max_prepared_transactions`.
    pub prepared_limit: i32,
    /// `max_sync_workers_per_subscription`.
    pub sync_workers: i32,
    /// `max_logical_replication_workers`.
    pub replication_workers: i32,
    /// Whether our login is a superuser.
    pub superuser: bool,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// Whether the library is preloaded.
    pub preloaded: bool,
    /// System identifier.
    pub system_identifier: String,
    /// Timeline; 0 on a standby.
    pub timeline: i32,
    /// `pgdog.topology.state`; none without the extension.
    pub state: Option<String>,
    /// Installed extensions: name to version.
    pub extensions: BTreeMap<String, String>,
    /// Versions that could be installed: `name version`.
    pub available: BTreeSet<String>,
    /// Roles that are not built in.
    pub roles: BTreeSet<String>,
    /// `ALTER DATABASE … SET` and `ALTER ROLE … IN DATABASE … SET`.
    pub settings: BTreeSet<String>,
}

/// One leaf of an omni table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Whether it is unlogged or temporary.
    pub unlogged: bool,
    /// Whether UPDATE and DELETE can be replicated.
    pub has_identity: bool,
    /// Estimated rows.
    pub rows: i64,
    /// Size of the heap with TOAST.
    pub bytes: i64,
}

/// Open sessions that the facts are asked from.
pub struct Witnesses<'a> {
    /// The serving shards in order; never empty.
    pub serving: &'a [Node],
    /// The new shard.
    pub target: &'a Node,
    /// The operator's publication.
    pub publication: Option<&'a str>,
}

/// Asks everything.
///
/// # Errors
/// When a node does not answer.
pub async fn gather(
    site: &Site,
    shard: ShardNumber,
    ask: &Witnesses<'_>,
) -> Result<Facts, WorkflowError> {
    let Some(lead) = ask.serving.first() else {
        return Err(WorkflowError::Wrong("no shard serves".into()));
    };
    let mut facts = Facts {
        shard: shard.0,
        serving: ask.serving.len(),
        source: node(lead).await?,
        target: node(ask.target).await?,
        target_contents: contents(ask.target).await?,
        hash_routed: names(lead, "listing sharded tables", HASH_ROUTED).await?,
        foreign_keys_out: names(lead, "listing foreign keys", FOREIGN_KEYS_OUT).await?,
        always_triggers: names(lead, "listing triggers", ALWAYS_TRIGGERS).await?,
        missing_tables: names(lead, "listing omni tables", MISSING_TABLES).await?,
        tables: tables(lead).await?,
        ..Facts::default()
    };
    for node in ask.serving {
        const SQL: &str = "SELECT current_setting('max_prepared_transactions')::int";
        facts
            .prepared_limits
            .push(node.one("reading settings", SQL, &[]).await?.get(0));
    }
    let prepared = lead
        .rows("listing prepared transactions", PREPARED, &[])
        .await?;
    facts.prepared = prepared
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    let oldest = lead
        .rows("looking at transactions", OLDEST_TRANSACTION, &[])
        .await?;
    facts.oldest_transaction = oldest.first().map(|row| (row.get(0), row.get(1)));
    if let Some(name) = ask.publication {
        facts.publication = Some((name.to_owned(), publication(lead, name).await?));
    }
    match compare::hashes(site).await {
        Ok(shards) => {
            facts.drift = Ok(compare::disagreeing(&shards));
            facts.hashes = shards.into_iter().next().unwrap_or_default();
        }
        Err(error) => facts.drift = Err(error.to_string()),
    }
    Ok(facts)
}

/// Facts about one node.
///
/// # Errors
/// When it does not answer.
pub async fn node(node: &Node) -> Result<NodeFacts, WorkflowError> {
    let row = node.one("reading settings", NODE, &[]).await?;
    let mut facts = node_of(&row);
    let has = "SELECT to_regclass('pgdog.topology') IS NOT NULL";
    if node
        .one("looking for the extension", has, &[])
        .await?
        .get(0)
    {
        let sql = "SELECT state FROM pgdog.topology";
        facts.state = Some(node.one("reading the topology", sql, &[]).await?.get(0));
    }
    let sql = "SELECT extname::text, extversion FROM pg_extension";
    let rows = node.rows("listing extensions", sql, &[]).await?;
    facts.extensions = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let sql = "SELECT name || ' ' || version FROM pg_available_extension_versions";
    facts.available = names(node, "listing extensions", sql)
        .await?
        .into_iter()
        .collect();
    let sql = "SELECT rolname::text FROM pg_roles WHERE rolname !~ '^pg_'";
    facts.roles = names(node, "listing roles", sql)
        .await?
        .into_iter()
        .collect();
    facts.settings = names(node, "listing settings", SETTINGS)
        .await?
        .into_iter()
        .collect();
    Ok(facts)
}

/// System identifier and timeline.
///
/// # Errors
/// When the node does not answer.
pub async fn identity(node: &Node) -> Result<(String, i32), WorkflowError> {
    let row = node
        .one("reading the system identifier", IDENTITY, &[])
        .await?;
    Ok((row.get(0), row.get(1)))
}

/// What the database holds beside extensions: at most ten names.
///
/// # Errors
/// When the node does not answer.
pub async fn contents(node: &Node) -> Result<Vec<String>, WorkflowError> {
    names(node, "looking whether the database is empty", CONTENTS).await
}

/// Leaves of the omni tables.
///
/// # Errors
/// When the node does not answer.
pub async fn tables(lead: &Node) -> Result<Vec<TableFacts>, WorkflowError> {
    let rows = lead.rows("listing omni tables", TABLES, &[]).await?;
    let tables = rows.iter().map(|row| TableFacts {
        schema: row.get(0),
        name: row.get(1),
        unlogged: row.get(2),
        has_identity: row.get(3),
        rows: row.get(4),
        bytes: row.get(5),
    });
    Ok(tables.collect())
}

async fn publication(lead: &Node, name: &str) -> Result<Option<BTreeSet<String>>, WorkflowError> {
    const EXISTS: &str = "SELECT 1 FROM pg_publication WHERE pubname = $1";
    if lead
        .rows("looking for the publication", EXISTS, &[&name])
        .await?
        .is_empty()
    {
        return Ok(None);
    }
    const SQL: &str = "SELECT schemaname || '.' || tablename FROM pg_publication_tables \
         WHERE pubname = $1";
    let rows = lead.rows("reading the publication", SQL, &[&name]).await?;
    Ok(Some(rows.iter().map(|row| row.get(0)).collect()))
}

async fn names(node: &Node, doing: &'static str, sql: &str) -> Result<Vec<String>, WorkflowError> {
    Ok(node
        .rows(doing, sql, &[])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect())
}

fn node_of(row: &Row) -> NodeFacts {
    NodeFacts {
        version: row.get("version"),
        locale: (
            row.get("encoding"),
            row.get("collate"),
            row.get("ctype"),
            row.get("colver"),
        ),
        wal_level: row.get("wal_level"),
        slots: (row.get("slots"), row.get("slots_used")),
        senders: (row.get("senders"), row.get("senders_used")),
        prepared_limit: row.get("prepared"),
        sync_workers: row.get("sync_workers"),
        replication_workers: row.get("replication_workers"),
        superuser: row.get("superuser"),
        in_recovery: row.get("in_recovery"),
        preloaded: row.get("preloaded"),
        system_identifier: row.get("system_identifier"),
        timeline: row.get("timeline"),
        ..NodeFacts::default()
    }
}

// The timeline is taken from the name of the current WAL file: pg_control_checkpoint() still shows
// the old one for a while after a promotion.
const IDENTITY: &str = "
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
       END";

const NODE: &str = "
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

const SETTINGS: &str = "
SELECT CASE s.setrole WHEN 0 THEN '' ELSE s.setrole::regrole || ': ' END || c
FROM pg_db_role_setting s
JOIN pg_database d ON d.oid = s.setdatabase AND d.datname = current_database()
CROSS JOIN LATERAL unnest(s.setconfig) c";

const CONTENTS: &str = "
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

const TABLES: &str = "
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

const MISSING_TABLES: &str = "
SELECT format('%I.%I', schema_name, table_name) FROM pgdog.omnisharded_tables
WHERE to_regclass(format('%I.%I', schema_name, table_name)) IS NULL";

// What is neither an explicit mapping nor a lookup that yields the shard itself is hashed in the end.
const HASH_ROUTED: &str = "
SELECT format('%I.%I', schema_name,
              CASE table_name WHEN '' THEN '* (' || column_name || ')' ELSE table_name END)
FROM pgdog.sharded_tables
WHERE NOT (strategy = 'mapping' OR mapping IS NOT NULL
           OR (strategy LIKE 'lookup%' AND lookup_result = 'shard'))
ORDER BY 1";

const FOREIGN_KEYS_OUT: &str = "
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
const ALWAYS_TRIGGERS: &str = "
SELECT t.tgname || ' on ' || t.tgrelid::regclass FROM pg_trigger t
JOIN pgdog.omnisharded_tables o
  ON t.tgrelid = to_regclass(format('%I.%I', o.schema_name, o.table_name))
WHERE NOT t.tgisinternal AND t.tgenabled IN ('A', 'R') AND t.tgname !~ '^pgdog_'
ORDER BY 1";

// Age by the server's clock; a slot is created only once every one of them is gone.
const PREPARED: &str = "
SELECT gid::text, database::text,
       extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts ORDER BY prepared";

const OLDEST_TRANSACTION: &str = "
SELECT format('pid %s of %s in %s', pid, usename, datname),
       extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start LIMIT 1";
