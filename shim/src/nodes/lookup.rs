//! Placement by a query, cached per key.
//!
//! The cache's key carries the topology's generation, so an entry is found only under the very
//! placement that it was loaded for: what a load that straddled a change has put in is never read.
//! Errors are not cached. All keys that miss travel in one batch, each key in one flight.
//!
//! Shard 0 is asked first. The shard that it names must say the same: its own epoch is what refuses
//! the statement once its own copy of the lookup table has changed, and while a change is being
//! committed on one shard after the other, an answer of shard 0 alone would be kept by the epoch of
//! a shard that had changed before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::try_join_all;
use moka::future::Cache;
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::lookup::{Asked, interpret};
use pgdog_core::placement::Strategy;
use tokio::time::Instant;
use tokio_postgres::types::{Format, IsNull, ToSql, Type};

use super::LookupKey;
use super::control::{Link, Login};
use super::topology::{Address, ShardedTable, Topology};
use super::trouble;

/// Connections to a shard for one map; each takes many at once. Who waits for a map that somebody
/// has locked holds up nobody who asks another one.
const LINKS: usize = 2;
/// Between two looks at shards that do not agree: a change is being committed.
const PAUSE: Duration = Duration::from_millis(10);
/// They may also be a shard that is down.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
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
    links: Mutex<HashMap<(Address, String), Arc<Links>>>,
    login: Arc<Login>,
    asked: AtomicU64,
    loads: AtomicU64,
    failures: AtomicU64,
}

struct Links {
    /// The servers' own limit on these connections.
    limit: Duration,
    links: [Link; LINKS],
    next: AtomicUsize,
}

impl Lookups {
    pub(super) fn new(login: Arc<Login>, cache_bytes: u64) -> Self {
        let cache = Cache::builder()
            .weigher(|key: &CacheKey, _: &ShardNumber| {
                u32::try_from(key.key.len() + ENTRY_BYTES).unwrap_or(u32::MAX)
            })
            .max_capacity(cache_bytes)
            .build();
        Self {
            cache,
            generation: AtomicU64::new(0),
            links: Mutex::default(),
            login,
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
        let serves = |address: &Address| topology.shards.iter().any(|s| s.primary == *address);
        let is_asked = |text: &str| {
            let mut rules = topology.sharded.iter().map(|table| &table.rule.strategy);
            rules.any(|s| matches!(s, Strategy::LookupQuery { query, .. } if query == text))
        };
        self.links()
            .retain(|(address, query), _| serves(address) && is_asked(query));
    }

    pub(super) async fn find(
        &self,
        topology: &Topology,
        keys: &[LookupKey],
        limit: Duration,
    ) -> Result<Vec<ShardNumber>, Fault> {
        // The futures are polled together, so their statements go out as one batch.
        try_join_all(keys.iter().map(|key| self.one(topology, key, limit))).await
    }

    async fn one(
        &self,
        topology: &Topology,
        key: &LookupKey,
        limit: Duration,
    ) -> Result<ShardNumber, Fault> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let cached = CacheKey {
            generation: topology.generation(),
            rule: key.rule,
            key: key.key.clone(),
        };
        self.cache
            .try_get_with(cached, self.load(topology, key, limit))
            .await
            .map_err(|fault| (*fault).clone())
    }

    async fn load(
        &self,
        topology: &Topology,
        key: &LookupKey,
        limit: Duration,
    ) -> Result<ShardNumber, Fault> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let loaded = self.agreed(topology, key, limit).await;
        if loaded.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        loaded
    }

    /// What shard 0 and the shard that it names say alike.
    async fn agreed(
        &self,
        topology: &Topology,
        key: &LookupKey,
        limit: Duration,
    ) -> Result<ShardNumber, Fault> {
        let until = Instant::now() + limit;
        let mut pause = PAUSE;
        let mut differing = None;
        // Time may be up while the last question is on its way: what was wrong is known by then.
        let late = |differing: Option<ShardNumber>, fault: Fault| match differing {
            Some(named) if Instant::now() >= until => disagree(topology, key, named),
            _ => fault,
        };
        loop {
            let named = self
                .ask(topology, key, (ShardNumber(0), until), limit)
                .await
                .map_err(|fault| late(differing, fault))?;
            if named == ShardNumber(0) {
                return Ok(named);
            }
            let there = self.ask(topology, key, (named, until), limit).await;
            if there.is_ok() {
                differing = Some(named);
            }
            match there {
                Ok(there) if there == named => return Ok(named),
                Ok(_) | Err(_) if Instant::now() + pause < until => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Ok(_) => return Err(disagree(topology, key, named)),
                Err(fault) => return Err(late(differing, fault)),
            }
        }
    }

    async fn ask(
        &self,
        topology: &Topology,
        key: &LookupKey,
        (asked, until): (ShardNumber, Instant),
        limit: Duration,
    ) -> Result<ShardNumber, Fault> {
        let nodes = topology.shards.get(usize::from(asked.0));
        let (Some(table), Some(shard)) = (topology.sharded.get(key.rule), nodes) else {
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
        let answers = self
            .rows((&shard.primary, table), query, &key.key, (until, limit))
            .await?;
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
        (primary, table): (&Address, &ShardedTable),
        query: &str,
        key: &str,
        (until, limit): (Instant, Duration),
    ) -> Result<Vec<Option<String>>, Fault> {
        let failed = |why: String| Fault::LookupFailed {
            table: name(table).to_owned(),
            why,
        };
        let links = self.links_to(primary, query, limit);
        let turn = links.next.fetch_add(1, Ordering::Relaxed) % LINKS;
        let sql = as_text(query);
        let work = async {
            let session = links.links[turn].session().await?;
            session
                .query_within(limit, &sql, &[&TextParameter(key)])
                .await
        };
        let rows = match tokio::time::timeout_at(until, work).await {
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

    /// The connections to this primary. The server gives up when the client does: those who lock
    /// a lookup table shall find no crowd behind them.
    fn links_to(&self, primary: &Address, query: &str, limit: Duration) -> Arc<Links> {
        let setup = format!("SET statement_timeout = {}", limit.as_millis().max(1));
        let open = || Link::with_setup(primary.clone(), self.login.clone(), setup.clone());
        let opened = || {
            Arc::new(Links {
                limit,
                links: std::array::from_fn(|_| open()),
                next: AtomicUsize::new(0),
            })
        };
        let mut links = self.links();
        let links = links
            .entry((primary.clone(), query.to_owned()))
            .or_insert_with(opened);
        if links.limit != limit {
            *links = opened();
        }
        links.clone()
    }

    fn links(&self) -> MutexGuard<'_, HashMap<(Address, String), Arc<Links>>> {
        self.links
            .lock()
            .expect("no code that holds this lock can panic")
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

fn disagree(topology: &Topology, key: &LookupKey, named: ShardNumber) -> Fault {
    let table = topology.sharded.get(key.rule).map(name);
    Fault::LookupFailed {
        table: table.unwrap_or_default().to_owned(),
        why: format!(
            "shard 0 says that key {} is on shard {named}, and that one does not",
            key.key
        ),
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
