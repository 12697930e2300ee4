//! What one node says about itself: the view `pgdog.node`, and the tables that say where rows live.

use std::collections::HashSet;

use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, Incarnation, ShardNumber, Timeline, TopologyVersion};
use pgdog_core::lsn::Lsn;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::control::Session;
use super::topology::{Address, Copied, OmniTable, OpaqueFunction, OpaqueFunctions, Unlisted};

/// One look at a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// A standby.
    pub in_recovery: bool,
    /// None: a plain PostgreSQL without the extension.
    pub extension: Option<NodeFacts>,
}

/// What only a node with the extension can say.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// Which cluster of PostgreSQL.
    pub system_identifier: String,
    /// Its timeline.
    pub timeline: Timeline,
    /// This start of this server.
    pub incarnation: Incarnation,
    /// Replayed up to here; on a primary the insert position.
    pub replayed: Option<Lsn>,
    /// Received up to here.
    pub received: Option<Lsn>,
    /// Age of the last replayed commit in ms; 0 when everything received was replayed.
    pub lag_ms: Option<u64>,
    /// The shard that it is part of; None while empty.
    pub shard: Option<ShardNumber>,
    /// Number of shards, as this node knows it.
    pub shards: u16,
    /// Its fence counter.
    pub epoch: Epoch,
    /// Its topology version.
    pub version: TopologyVersion,
    /// How far its installation is.
    pub state: NodeState,
    /// `max_prepared_transactions`; 0: no two-phase commit here.
    pub max_prepared: i32,
}

/// `pgdog.topology.state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// The extension was created, nothing else.
    Empty,
    /// Being filled by `ADD SHARD`.
    Provisioning,
    /// Part of the cluster.
    Serving,
}

impl Facts {
    /// What the topology depends on, without the positions that change all the time.
    pub fn identity(&self) -> impl PartialEq + Send + use<> {
        let node = self.extension.as_ref().map(|node| {
            (
                node.system_identifier.clone(),
                (node.timeline, node.incarnation.clone()),
                (
                    node.shard,
                    node.shards,
                    node.epoch,
                    node.version,
                    node.state,
                ),
            )
        });
        (self.in_recovery, node)
    }
}

const PROBE: &str =
    "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.to_regclass('pgdog.node') IS NOT NULL";

const NODE: &str = "
SELECT in_recovery, system_identifier::text, timeline::int4, incarnation::text,
       replay_lsn::text, receive_lsn::text,
       CASE WHEN NOT in_recovery THEN NULL
            WHEN replay_lsn >= receive_lsn THEN 0
            ELSE (extract(epoch FROM clock - last_replay_at) * 1000)::int8 END AS lag_ms,
       shard::int4, shards::int4, epoch::int8, topology_version::int8, state::text,
       pg_catalog.current_setting('max_prepared_transactions')::int4 AS max_prepared
FROM pgdog.node";

/// Whether the node has the extension, and whether it is a standby.
pub(super) async fn probe(session: &Session) -> Result<(bool, bool), Fault> {
    let rows = session.query(PROBE, &[]).await?;
    let row = rows.first().expect("a SELECT without FROM has one row");
    Ok((row.get(0), row.get(1)))
}

/// Reads `pgdog.node`.
pub(super) async fn node(session: &Session, address: &Address) -> Result<Facts, Fault> {
    let rows = session
        .query_within(super::node::POLL_TIMEOUT, NODE, &[])
        .await?;
    match rows.first() {
        Some(row) => Ok(facts(row)),
        None => Err(super::trouble::wrong_state(
            &format!("pgdog.node of {address} is empty"),
            "Create the extension anew: DROP EXTENSION pgdog; CREATE EXTENSION pgdog.",
        )),
    }
}

fn facts(row: &Row) -> Facts {
    let lsn = |column: &str| {
        row.get::<_, Option<String>>(column)
            .and_then(|text| text.parse::<Lsn>().ok())
    };
    let state = match row.get::<_, &str>("state") {
        "serving" => NodeState::Serving,
        "provisioning" => NodeState::Provisioning,
        _ => NodeState::Empty,
    };
    Facts {
        in_recovery: row.get("in_recovery"),
        extension: Some(NodeFacts {
            system_identifier: row.get("system_identifier"),
            timeline: Timeline(unsigned(row.get::<_, i32>("timeline"))),
            incarnation: Incarnation(row.get("incarnation")),
            replayed: lsn("replay_lsn"),
            received: lsn("receive_lsn"),
            lag_ms: row
                .get::<_, Option<i64>>("lag_ms")
                .map(|ms| ms.max(0).unsigned_abs()),
            shard: row.get::<_, Option<i32>>("shard").and_then(shard_number),
            shards: u16::try_from(row.get::<_, i32>("shards")).unwrap_or(0),
            epoch: Epoch(row.get::<_, i64>("epoch").max(0).unsigned_abs()),
            version: TopologyVersion(row.get::<_, i64>("topology_version").max(0).unsigned_abs()),
            state,
            max_prepared: row.get("max_prepared"),
        }),
    }
}

fn unsigned(number: i32) -> u32 {
    number.max(0).unsigned_abs()
}

/// A shard number from a column.
pub(super) fn shard_number(number: i32) -> Option<ShardNumber> {
    u16::try_from(number).ok().map(ShardNumber)
}

/// One row of `pgdog.sharded_tables` and one table that it is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardedRow {
    /// Schema; empty with an empty table.
    pub schema: String,
    /// Table; empty: every table with the column.
    pub table: String,
    /// Key column.
    pub column: String,
    /// `bigint`, `varchar`, `uuid`.
    pub data_type: String,
    /// `hash`, `lookup_query`, `lookup`, `mapping`.
    pub strategy: String,
    /// Per-key lookup.
    pub lookup_query: Option<String>,
    /// The same with its meaning pinned: this is what is run.
    pub pinned_query: Option<String>,
    /// `value` or `shard`.
    pub lookup_result: String,
    /// Explicit mapping as JSON text.
    pub mapping: Option<String>,
    /// The table that it is about, if there is one.
    pub found: Option<FoundTable>,
}

/// A table that a declaration is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    /// Schema.
    pub schema: String,
    /// Name.
    pub table: String,
    /// 0-based place of the key among the live columns.
    pub position: usize,
    /// What COPY takes; none if the key is generated.
    pub copied: Option<Copied>,
    /// The key is an identity column.
    pub identity: bool,
    /// Of a `varchar(n)`.
    pub max_length: Option<usize>,
    /// Why rows cannot be placed by the key.
    pub unfit: Option<String>,
}

/// One row of `pgdog.shards`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownNode {
    /// Shard.
    pub shard: ShardNumber,
    /// Where.
    pub address: Address,
    /// `primary` or `replica` when it was written.
    pub role: String,
}

/// The declarations and addresses that one node keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// `pgdog.sharded_tables`, in a fixed order.
    pub sharded: Vec<ShardedRow>,
    /// `pgdog.omni_columns`, in a fixed order.
    pub omnisharded: Vec<OmniTable>,
    /// `pgdog.shards`.
    pub nodes: Vec<KnownNode>,
    /// Functions that may read or write any table.
    pub functions: OpaqueFunctions,
    /// Names that functions of users share with PostgreSQL's own.
    pub shadows: HashSet<String>,
}

impl Kept {
    /// Whether this table is declared omnisharded.
    pub(super) fn is_omnisharded(&self, (schema, name): &(String, String)) -> bool {
        self.omnisharded
            .iter()
            .any(|omni| omni.declared && omni.schema == *schema && omni.table == *name)
    }
}

/// The catalogs are read as they are, whatever version of the extension a node has.
///
/// Every declaration with the tables that it is about: the one that it names, or for a rule without
/// a name every table with its column that nothing else is said about.
const SHARDED: &str = "
SELECT s.schema_name::text, s.table_name::text, s.column_name::text, s.data_type::text,
       s.strategy::text, s.lookup_query::text, s.lookup_result::text, s.mapping::text,
       a.nspname::text AS found_schema, a.relname::text AS found_table,
       a.position, a.copied_at, a.copied_columns, a.identity,
       a.max_length, a.unfit,
       pg_catalog.to_jsonb(s) OPERATOR(pg_catalog.->>) 'pinned_query' AS pinned_query
FROM pgdog.sharded_tables s
LEFT JOIN LATERAL (
    SELECT n.nspname, c.relname, b.position, b.copied_columns, k.attidentity <> '' AS identity,
           CASE WHEN k.attgenerated = '' THEN b.copied_at END AS copied_at,
           CASE WHEN d.type = 'pg_catalog.varchar'::pg_catalog.regtype AND d.typmod > 4
                THEN d.typmod - 4 END AS max_length,
           CASE WHEN pg_catalog.format_type(d.type, NULL) <> ALL (
                     CASE s.data_type WHEN 'bigint' THEN '{smallint,integer,bigint}'::text[]
                                      WHEN 'varchar' THEN '{text,character varying}'
                                      ELSE ARRAY[s.data_type::text] END)
                THEN 'is not of type ' || s.data_type
                WHEN k.attgenerated <> '' THEN 'is generated: statements do not give it'
                WHEN EXISTS (SELECT FROM pg_catalog.pg_collation o
                              WHERE o.oid = k.attcollation AND NOT o.collisdeterministic)
                THEN 'has a collation that is not deterministic' END AS unfit
    FROM pg_catalog.pg_attribute k
    JOIN pg_catalog.pg_class c ON c.oid = k.attrelid AND c.relkind IN ('r', 'p', 'v', 'f')
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE b.attnum < k.attnum) AS position,
               count(*) FILTER (WHERE b.attnum < k.attnum AND b.attgenerated = '') AS copied_at,
               count(*) FILTER (WHERE b.attgenerated = '') AS copied_columns
        FROM pg_catalog.pg_attribute b
        WHERE b.attrelid = c.oid AND b.attnum > 0 AND NOT b.attisdropped) b
    CROSS JOIN LATERAL (
        -- Of a domain, what it is made of.
        WITH RECURSIVE made(type, typmod, depth) AS (
            SELECT k.atttypid, k.atttypmod, 0
            UNION ALL
            SELECT t.typbasetype, t.typtypmod, made.depth + 1
            FROM made JOIN pg_catalog.pg_type t ON t.oid = made.type AND t.typtype = 'd')
        SELECT made.type, made.typmod FROM made ORDER BY made.depth DESC LIMIT 1) d
    WHERE k.attname = s.column_name AND k.attnum > 0 AND NOT k.attisdropped
      AND CASE WHEN s.table_name <> ''
               THEN n.nspname = s.schema_name AND c.relname = s.table_name
               ELSE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
                AND n.nspname <> ALL ('{pg_catalog,information_schema,pgdog,pg_toast}'::name[])
                AND NOT EXISTS (SELECT FROM pgdog.sharded_tables x
                                 WHERE x.schema_name = n.nspname AND x.table_name = c.relname)
                AND NOT EXISTS (SELECT FROM pgdog.omnisharded_tables x
                                 WHERE x.schema_name = n.nspname AND x.table_name = c.relname)
          END) a ON true
ORDER BY 1, 2, 3, 9, 10";

/// Tables that nobody declared are read only where they count as omnisharded: there may be many.
const OMNISHARDED: &str = "
SELECT schema_name::text, table_name::text, declared, columns::text[], computed::text[]
FROM pgdog.omni_columns WHERE declared OR $1 ORDER BY 1, 2";

const SHARDS: &str = "
SELECT shard::int4, role::text, host::text, port::int4, database_name::text
FROM pgdog.shards ORDER BY 1, 3, 4, 5";

/// Functions that may read or write any table. What an extension brings knows nothing of the tables
/// of users, what is immutable reads none; procedures and triggers are not called by a SELECT.
/// Temporary ones are their session's own.
const FUNCTIONS: &str = "
SELECT p.proname::text, n.nspname::text, (p.pronargs - p.pronargdefaults)::int4 AS fewest,
       CASE WHEN p.provariadic = 0 THEN p.pronargs::int4 END AS most,
       EXISTS (SELECT FROM pg_catalog.pg_proc c
               WHERE c.proname = p.proname AND c.proargtypes = p.proargtypes
                 AND c.pronamespace = 'pg_catalog'::pg_catalog.regnamespace) AS hidden
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE p.oid >= 16384 AND n.nspname !~ '^pg_temp_' AND p.prokind = 'f' AND p.provolatile <> 'i'
  AND l.lanname NOT IN ('internal', 'c')
  AND p.prorettype NOT IN ('trigger'::pg_catalog.regtype, 'event_trigger'::pg_catalog.regtype)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                  WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
                    AND d.objid = p.oid AND d.deptype = 'e')
ORDER BY 1, 2, 3, 4";

/// Functions and aggregates that a call by a name of PostgreSQL's own may mean. What an extension
/// brings for its types goes by the meaning of that name.
const SHADOWS: &str = "
SELECT DISTINCT p.proname::text
FROM pg_catalog.pg_proc p
WHERE p.oid >= 16384 AND p.prokind <> 'p'
  AND EXISTS (SELECT FROM pg_catalog.pg_proc o
              WHERE o.proname = p.proname
                AND o.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND o.oid < 16384)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                  WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
                    AND d.objid = p.oid AND d.deptype = 'e')";

/// Reads what a node keeps; the statements share one round trip.
pub(super) async fn kept(session: &Session, unlisted: Unlisted) -> Result<Kept, Fault> {
    let undeclared = unlisted == Unlisted::Omnisharded;
    let parameters: [&(dyn ToSql + Sync); 1] = [&undeclared];
    let (sharded, omnisharded, nodes, functions, shadows) = tokio::try_join!(
        session.query(SHARDED, &[]),
        session.query(OMNISHARDED, &parameters),
        session.query(SHARDS, &[]),
        session.query(FUNCTIONS, &[]),
        session.query(SHADOWS, &[]),
    )?;
    Ok(Kept {
        functions: opaque_functions(&functions),
        sharded: sharded.iter().map(sharded_row).collect(),
        omnisharded: omnisharded.iter().map(omni_table).collect(),
        nodes: nodes.iter().filter_map(known_node).collect(),
        shadows: shadows.iter().map(|row| row.get(0)).collect(),
    })
}

fn opaque_functions(rows: &[Row]) -> OpaqueFunctions {
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    let mut functions = OpaqueFunctions::new();
    for row in rows {
        let of_name = functions.entry(row.get(0)).or_default();
        of_name.push(OpaqueFunction {
            schema: row.get(1),
            fewest: count(row.get("fewest")),
            most: row.get::<_, Option<i32>>("most").map(count),
            hidden: row.get("hidden"),
        });
    }
    functions
}

fn sharded_row(row: &Row) -> ShardedRow {
    let count = |column: &str| usize::try_from(row.get::<_, Option<i64>>(column)?).ok();
    let found = || {
        Some(FoundTable {
            schema: row.get::<_, Option<String>>("found_schema")?,
            table: row.get("found_table"),
            position: count("position")?,
            copied: count("copied_at")
                .zip(count("copied_columns"))
                .map(|(key, columns)| Copied { key, columns }),
            identity: row.get("identity"),
            max_length: row
                .get::<_, Option<i32>>("max_length")
                .and_then(|length| usize::try_from(length).ok()),
            unfit: row.get("unfit"),
        })
    };
    ShardedRow {
        schema: row.get("schema_name"),
        table: row.get("table_name"),
        column: row.get("column_name"),
        data_type: row.get("data_type"),
        strategy: row.get("strategy"),
        lookup_query: row.get("lookup_query"),
        pinned_query: row.get("pinned_query"),
        lookup_result: row
            .get::<_, Option<String>>("lookup_result")
            .unwrap_or_else(|| "value".to_owned()),
        mapping: row.get("mapping"),
        found: found(),
    }
}

fn omni_table(row: &Row) -> OmniTable {
    OmniTable {
        schema: row.get(0),
        table: row.get(1),
        declared: row.get(2),
        columns: row.get(3),
        computed: row.get(4),
    }
}

fn known_node(row: &Row) -> Option<KnownNode> {
    Some(KnownNode {
        shard: shard_number(row.get(0))?,
        role: row.get(1),
        address: Address {
            host: row.get(2),
            port: u16::try_from(row.get::<_, i32>(3)).ok()?,
            database: row.get(4),
        },
    })
}
