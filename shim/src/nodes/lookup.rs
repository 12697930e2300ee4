//! Placement by a query, cached per key.
//!
//! The cache's key carries the topology's generation, so an entry is found only under the very
//! placement that it was loaded for: what a load that straddled a change has put in is never read.
//! Errors are not cached. All keys that miss travel in one batch, each key in one flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::try_join_all;
use moka::future::Cache;
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::lookup::{Asked, interpret};
use pgdog_core::placement::Strategy;
use tokio_postgres::types::{Format, IsNull, ToSql, Type};

use super::LookupKey;
use super::control::{Link, Login};
use super::topology::{Address, ShardedTable, Topology};
use super::trouble;

/// Connections to shard 0 for lookups; each takes many at once.
const LINKS: usize = 2;
/// What an entry costs beside its text, roughly.
const ENTRY_BYTES: usize = 96;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CacheKey {
    generation: u64,
    rule: usize,
    key: String,
}

/// Counters for `SHOW LOOKUPS`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookupStats {
    /// Cached keys.
    pub entries: u64,
    /// What they weigh.
    pub bytes: u64,
    /// Keys asked for.
    pub asked: u64,
    /// Keys for which the database was asked.
    pub loads: u64,
    /// Loads that failed.
    pub failures: u64,
}

pub(super) struct Lookups {
    cache: Cache<CacheKey, ShardNumber>,
    generation: AtomicU64,
    links: ArcSwapOption<Links>,
    login: Arc<Login>,
    limit: Duration,
    asked: AtomicU64,
    loads: AtomicU64,
    failures: AtomicU64,
}

struct Links {
    address: Address,
    links: [Link; LINKS],
    next: AtomicUsize,
}

impl Lookups {
    pub(super) fn new(login: Arc<Login>, limit: Duration, cache_bytes: u64) -> Self {
        let cache = Cache::builder()
            .weigher(|key: &CacheKey, _: &ShardNumber| {
                u32::try_from(key.key.len() + ENTRY_BYTES).unwrap_or(u32::MAX)
            })
            .max_capacity(cache_bytes)
            .build();
        Self {
            cache,
            generation: AtomicU64::new(0),
            links: ArcSwapOption::empty(),
            login,
            limit,
            asked: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Frees what can no longer be found.
    pub(super) fn follow(&self, topology: &Topology) {
        let generation = topology.generation();
        if self.generation.swap(generation, Ordering::Relaxed) != generation {
            self.cache.invalidate_all();
        }
    }

    pub(super) async fn find(
        &self,
        topology: &Topology,
        keys: &[LookupKey],
    ) -> Result<Vec<ShardNumber>, Fault> {
        // The futures are polled together, so their statements go out as one batch.
        try_join_all(keys.iter().map(|key| self.one(topology, key))).await
    }

    async fn one(&self, topology: &Topology, key: &LookupKey) -> Result<ShardNumber, Fault> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let cached = CacheKey {
            generation: topology.generation(),
            rule: key.rule,
            key: key.key.clone(),
        };
        self.cache
            .try_get_with(cached, self.load(topology, key))
            .await
            .map_err(|fault| (*fault).clone())
    }

    async fn load(&self, topology: &Topology, key: &LookupKey) -> Result<ShardNumber, Fault> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let loaded = self.ask(topology, key).await;
        if loaded.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        loaded
    }

    async fn ask(&self, topology: &Topology, key: &LookupKey) -> Result<ShardNumber, Fault> {
        let (Some(table), Some(shard)) = (topology.sharded.get(key.rule), topology.shards.first())
        else {
            return Err(Fault::Internal {
                why: format!(
                    "lookup by rule {} of a topology that has no such rule",
                    key.rule
                ),
            });
        };
        let Strategy::LookupQuery { query, .. } = &table.rule.strategy else {
            return Err(Fault::Internal {
                why: format!(
                    "lookup for {}.{}, which has no query",
                    table.schema, table.table
                ),
            });
        };
        let answers = self.rows(&shard.primary, table, query, &key.key).await?;
        let rows: Vec<Option<&str>> = answers.iter().map(Option::as_deref).collect();
        let shards = u16::try_from(topology.shards.len()).unwrap_or(u16::MAX);
        interpret(
            &table.rule,
            Asked {
                table: name(table),
                key: &key.key,
            },
            &rows,
            shards,
        )
    }

    async fn rows(
        &self,
        primary: &Address,
        table: &ShardedTable,
        query: &str,
        key: &str,
    ) -> Result<Vec<Option<String>>, Fault> {
        let failed = |why: String| Fault::LookupFailed {
            table: name(table).to_owned(),
            why,
        };
        let links = self.links_to(primary);
        let turn = links.next.fetch_add(1, Ordering::Relaxed) % LINKS;
        let sql = as_text(query);
        let work = async {
            let session = links.links[turn].session().await?;
            session
                .query_within(self.limit, &sql, &[&TextParameter(key)])
                .await
        };
        let rows = match tokio::time::timeout(self.limit, work).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(fault)) => return Err(failed(fault.message())),
            Err(_) => {
                let fault = trouble::unreachable(primary, "no answer to a lookup in time");
                return Err(failed(fault.message()));
            }
        };
        rows.iter()
            .map(|row| row.try_get(0).map_err(|error| failed(error.to_string())))
            .collect()
    }

    /// The connections to this primary; those to an earlier one are dropped.
    fn links_to(&self, primary: &Address) -> Arc<Links> {
        if let Some(links) = self.links.load_full()
            && links.address == *primary
        {
            return links;
        }
        let links = Arc::new(Links {
            address: primary.clone(),
            links: std::array::from_fn(|_| Link::new(primary.clone(), self.login.clone())),
            next: AtomicUsize::new(0),
        });
        self.links.store(Some(links.clone()));
        links
    }

    pub(super) fn stats(&self) -> LookupStats {
        LookupStats {
            entries: self.cache.entry_count(),
            bytes: self.cache.weighted_size(),
            asked: self.asked.load(Ordering::Relaxed),
            loads: self.loads.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

/// What a message calls the table: a rule for every table has only its column's name.
fn name(table: &ShardedTable) -> &str {
    if table.table.is_empty() {
        &table.column
    } else {
        &table.table
    }
}

/// The query with its one column as text, whatever its type. Two rows are enough to refuse.
fn as_text(query: &str) -> String {
    let query = query.trim().trim_end_matches(';');
    // The line break ends a comment at the end of the query.
    format!("SELECT answer.value::pg_catalog.text FROM (\n{query}\n) AS answer(value) LIMIT 2")
}

/// A key in text form for a parameter of any type: the server reads it as it reads a literal.
#[derive(Debug)]
struct TextParameter<'a>(&'a str);

impl ToSql for TextParameter<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    tokio_postgres::types::to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_wrapped_whatever_it_ends_with() {
        for query in [
            "SELECT s FROM m WHERE k = $1;",
            "SELECT s FROM m WHERE k = $1 -- why",
        ] {
            let wrapped = as_text(query);
            assert!(
                wrapped.contains("\n) AS answer(value) LIMIT 2"),
                "{wrapped}"
            );
            assert!(!wrapped.contains(';'), "{wrapped}");
        }
    }
}
