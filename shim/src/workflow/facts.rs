//! What is: everything that the guards judge, gathered without writing anything.

use std::collections::{BTreeMap, BTreeSet};

use pgdog_core::ids::ShardNumber;
use tokio_postgres::Row;

use super::compare::{self, TableHash};
use super::error::WorkflowError;
use super::facts_sql::{
    ALWAYS_TRIGGERS, CONTENTS, FOREIGN_KEYS_OUT, HASH_ROUTED, IDENTITY, MISSING_TABLES, NODE,
    OLDEST_TRANSACTION, PAUSED_MAPS, PREPARED, PUBLISHED, SETTINGS, TABLES,
};
use super::node::Node;
use super::site::Site;

/// Transactions younger than this are in flight: they end by themselves.
const SLOT_PATIENCE_S: f64 = 10.0;

/// What an operator's publication sends, as `schema.table`.
#[derive(Debug, Clone)]
pub struct Published {
    /// Tables of which it sends every row and column.
    pub whole: BTreeSet<String>,
    /// Tables that have a row filter or a list of columns.
    pub in_part: BTreeSet<String>,
    /// It sends inserts, updates, deletes and truncates.
    pub every_change: bool,
}

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
    /// Maps whose writes are paused.
    pub paused_maps: Vec<String>,
    /// Prepared transactions on shard 0's server: name, database, age in seconds.
    pub prepared: Vec<(String, String, f64)>,
    /// Oldest running transaction with an xid on shard 0's server: who, age in seconds.
    pub oldest_transaction: Option<(String, f64)>,
    /// The operator's publication, when one is named; `None` inside: no such publication.
    pub publication: Option<(String, Option<Published>)>,
    /// Shims that are alive and do not reach the new shard.
    pub blind_instances: Vec<String>,
    /// Live shims, when their configurations declare different things.
    pub differing_instances: Vec<String>,
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
            paused_maps: Vec::new(),
            prepared: Vec::new(),
            oldest_transaction: None,
            publication: None,
            blind_instances: Vec::new(),
            differing_instances: Vec::new(),
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
        paused_maps: names(lead, "listing paused maps", PAUSED_MAPS).await?,
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
    facts.blind_instances = blind(lead, shard).await?;
    facts.differing_instances = differing(lead).await?;
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
    // The role pgdog comes with the extension.
    let sql = "SELECT rolname::text FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> 'pgdog'";
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

/// Shims that reported to shard 0 lately and do not reach this shard. Information, not safety: such
/// a shim is refused by the nodes after the flip.
///
/// # Errors
/// When shard 0 does not answer.
pub async fn blind_instances(
    site: &Site,
    shard: ShardNumber,
) -> Result<Vec<String>, WorkflowError> {
    let lead = Node::connect(site, site.first()?, None).await?;
    blind(&lead, shard).await
}

/// As [`blind_instances`], asked on a session on shard 0.
///
/// # Errors
/// When it does not answer.
pub async fn blind(lead: &Node, shard: ShardNumber) -> Result<Vec<String>, WorkflowError> {
    const SQL: &str = "SELECT name || ' (' || addr || ')' FROM pgdog.instances \
         WHERE heartbeat_at > now() - interval '15 s' AND NOT $1 = ANY (reachable) ORDER BY 1";
    let rows = lead
        .rows("reading instances", SQL, &[&i32::from(shard.0)])
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Shims that reported to shard 0 lately, when their configurations declare different things about
/// placement: whoever reads one of the files would be misled about what grows.
///
/// # Errors
/// When shard 0 does not answer.
pub async fn differing_instances(site: &Site) -> Result<Vec<String>, WorkflowError> {
    differing(&Node::connect(site, site.first()?, None).await?).await
}

/// As [`differing_instances`], asked on a session on shard 0.
///
/// # Errors
/// When it does not answer.
pub async fn differing(lead: &Node) -> Result<Vec<String>, WorkflowError> {
    const SQL: &str = "WITH live AS (SELECT * FROM pgdog.instances \
             WHERE heartbeat_at > now() - interval '15 s') \
         SELECT name || ' (' || addr || ', ' || version || ')' FROM live \
         WHERE (SELECT count(DISTINCT pg_catalog.split_part(version, '+', 2)) FROM live) > 1 \
         ORDER BY 1";
    let rows = lead.rows("comparing instances", SQL, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Who keeps a slot on shard 0 from being made, in words; none when nobody has for long.
///
/// # Errors
/// When shard 0 does not answer.
pub async fn slot_blockers(lead: &Node) -> Result<Option<String>, WorkflowError> {
    let doing = "looking at transactions";
    let prepared = lead.rows(doing, PREPARED, &[]).await?;
    let prepared = prepared.iter().map(|row| {
        let (gid, database): (&str, &str) = (row.get(0), row.get(1));
        let what = format!("prepared transaction {gid} in {database}");
        (what, row.get::<_, f64>(2))
    });
    let oldest = lead.rows(doing, OLDEST_TRANSACTION, &[]).await?;
    let oldest = oldest
        .iter()
        .map(|row| (row.get::<_, String>(0), row.get::<_, f64>(1)));
    let blockers: Vec<String> = prepared
        .chain(oldest)
        .filter(|(_, age_s)| *age_s > SLOT_PATIENCE_S)
        .map(|(who, age_s)| format!("{who} for {age_s:.0} s"))
        .collect();
    Ok((!blockers.is_empty()).then(|| format!("the copy waits for {}", blockers.join(", "))))
}

async fn publication(lead: &Node, name: &str) -> Result<Option<Published>, WorkflowError> {
    const EXISTS: &str = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate \
         FROM pg_publication WHERE pubname = $1";
    let doing = "looking for the publication";
    let rows = lead.rows(doing, EXISTS, &[&name]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let every_change = row.get(0);
    let rows = lead
        .rows("reading the publication", PUBLISHED, &[&name])
        .await?;
    let named = |whole: bool| {
        let rows = rows
            .iter()
            .filter(move |row| row.get::<_, bool>(1) == whole);
        rows.map(|row| row.get(0)).collect()
    };
    Ok(Some(Published {
        whole: named(true),
        in_part: named(false),
        every_change,
    }))
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
