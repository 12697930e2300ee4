//! `[[sharded_tables]]`, `[[sharded_mappings]]` and `[[omnisharded_tables]]`: declarations of
//! placement. The nodes keep the truth; what is missing there is added at start-up.

use serde::{Deserialize, Serialize};

/// A sharded table, or every table that has the column.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ShardedTable {
    /// The logical database.
    pub database: String,
    /// Schema of the table; `public` when absent.
    pub schema: Option<String>,
    /// Name of the table; every table with the column when absent.
    pub name: Option<String>,
    /// The sharding key.
    pub column: String,
    /// Type of the sharding key.
    #[serde(default)]
    pub data_type: DataType,
    /// Explicit placement: the first rule that fits decides.
    #[serde(default)]
    pub mapping: Vec<Mapping>,
    /// Table of the whole-map translation; goes together with `query`.
    pub lookup: Option<String>,
    /// Query of the whole-map translation: (key, translated key) rows.
    pub query: Option<String>,
    /// Query that finds one key (`$1`).
    pub lookup_query: Option<String>,
    /// What `lookup_query` answers with.
    pub lookup_result: Option<LookupResult>,
}

impl ShardedTable {
    /// How messages name it: `orders.tenant_id`, or `*.tenant_id` for every table.
    pub fn label(&self) -> String {
        format!("{}.{}", self.name.as_deref().unwrap_or("*"), self.column)
    }
}

/// Type of a sharding key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataType {
    /// smallint, integer and bigint.
    #[default]
    Bigint,
    /// varchar and text.
    Varchar,
    /// uuid.
    Uuid,
}

impl DataType {
    /// The name in the files and in `pgdog.sharded_tables`.
    pub fn name(self) -> &'static str {
        match self {
            DataType::Bigint => "bigint",
            DataType::Varchar => "varchar",
            DataType::Uuid => "uuid",
        }
    }
}

/// What a `lookup_query` answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupResult {
    /// A value that is hashed in place of the key.
    #[default]
    Value,
    /// The 0-based number of the shard.
    Shard,
}

impl LookupResult {
    /// The name in the files and in `pgdog.sharded_tables`.
    pub fn name(self) -> &'static str {
        match self {
            LookupResult::Value => "value",
            LookupResult::Shard => "shard",
        }
    }
}

/// One rule of an explicit placement.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(from = "WrittenMapping")]
pub struct Mapping {
    /// Which keys it is about.
    pub kind: MappingKind,
    /// The keys of a list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Key>,
    /// First key of a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Key>,
    /// First key behind a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Key>,
    /// Where these keys live.
    pub shard: u16,
}

/// A rule as the file has it: what is given tells its kind.
#[derive(Deserialize)]
struct WrittenMapping {
    kind: Option<MappingKind>,
    #[serde(default)]
    values: Vec<Key>,
    start: Option<Key>,
    end: Option<Key>,
    shard: u16,
}

impl From<WrittenMapping> for Mapping {
    fn from(written: WrittenMapping) -> Self {
        let ranged = written.start.is_some() || written.end.is_some();
        let implied = match (written.values.is_empty(), ranged) {
            (false, _) => MappingKind::List,
            (true, true) => MappingKind::Range,
            (true, false) => MappingKind::Default,
        };
        Self {
            kind: written.kind.unwrap_or(implied),
            values: written.values,
            start: written.start,
            end: written.end,
            shard: written.shard,
        }
    }
}

/// Which keys a rule of an explicit placement is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MappingKind {
    /// Those in `values`.
    List,
    /// From `start` to before `end`.
    Range,
    /// All others.
    Default,
}

/// A key as the file writes it: a number or a string. On the nodes it is always a string.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged, into = "String")]
pub enum Key {
    /// A number.
    Number(i64),
    /// A string.
    Text(String),
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        match key {
            Key::Number(number) => number.to_string(),
            Key::Text(text) => text,
        }
    }
}

/// `[[omnisharded_tables]]`: tables with the same rows on every shard.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OmnishardedTables {
    /// The logical database.
    pub database: String,
    /// Names of the tables, with a schema where it is not `public`.
    pub tables: Vec<String>,
    /// Accepted as PgDog has it: whether a client's reads stay on one shard. They do here.
    #[serde(default)]
    pub sticky: bool,
}

/// PgDog's way to write a mapping: apart from the table, joined by database, table and column.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct SharedMapping {
    database: String,
    table: Option<String>,
    schema: Option<String>,
    column: String,
    kind: Option<MappingKind>,
    #[serde(default)]
    values: Vec<Key>,
    start: Option<Key>,
    end: Option<Key>,
    shard: u16,
}

/// Gives each shared mapping to the tables it belongs to; says which belong to none.
pub(super) fn distribute(tables: &mut [ShardedTable], shared: Vec<SharedMapping>) -> Vec<String> {
    let mut problems = Vec::new();
    for mapping in shared {
        let mut found = false;
        for table in tables.iter_mut().filter(|t| mapping.fits(t)) {
            table.mapping.push(mapping.rule());
            found = true;
        }
        if !found {
            problems.push(format!(
                "[[sharded_mappings]] for column {} of database {}: no [[sharded_tables]] entry \
                 has that column; add one or remove the mapping",
                mapping.column, mapping.database
            ));
        }
    }
    problems
}

impl SharedMapping {
    fn fits(&self, table: &ShardedTable) -> bool {
        self.database == table.database
            && self.column == table.column
            && (self.table.is_none() || self.table == table.name)
            && (self.schema.is_none() || self.schema == table.schema)
    }

    fn rule(&self) -> Mapping {
        Mapping::from(WrittenMapping {
            kind: self.kind,
            values: self.values.clone(),
            start: self.start.clone(),
            end: self.end.clone(),
            shard: self.shard,
        })
    }
}
