//! What of the COPY data goes to which server: all of it, or the rows that belong there.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::{BufMut as _, BytesMut};
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::placement::{Key, Placed, place_key};

use crate::nodes::{Cluster, LookupKey, Topology};
use crate::proto::{frame, frontend};
use crate::route::Rows;
use crate::route::rows::{Row, Splitter};

/// Keys that are looked up in one batch at most.
const BATCH: usize = 256;
/// Keys whose shards are kept beside the cache that all clients share.
const KNOWN: usize = 10_000;

/// What goes where.
pub(super) enum Spread {
    /// All of it to every server.
    Everywhere(BytesMut),
    /// Each row to its shard.
    Rows(Box<Placing>),
}

/// Finds the shards of rows.
pub(super) struct Placing {
    splitter: Splitter,
    rows: Rows,
    cluster: Arc<Cluster>,
    topology: Arc<Topology>,
    known: HashMap<Key, ShardNumber>,
}

impl Spread {
    pub(super) fn is_everywhere(&self) -> bool {
        matches!(self, Spread::Everywhere(_))
    }

    /// Adds data.
    pub(super) fn push(&mut self, data: &[u8]) {
        match self {
            Spread::Everywhere(pending) => pending.extend_from_slice(data),
            Spread::Rows(placing) => placing.splitter.push(data),
        }
    }

    /// Writes messages for each server with what can be sent now; `last`: no more data will come.
    ///
    /// # Errors
    /// A row has no place.
    pub(super) async fn put(&mut self, last: bool, outs: &mut [BytesMut]) -> Result<(), Fault> {
        match self {
            Spread::Everywhere(pending) if pending.is_empty() => Ok(()),
            Spread::Everywhere(pending) => {
                outs.iter_mut()
                    .for_each(|out| frontend::copy_data(pending, out));
                pending.clear();
                Ok(())
            }
            Spread::Rows(placing) => placing.put(last, outs).await,
        }
    }
}

impl Placing {
    pub(super) fn new(
        splitter: Splitter,
        rows: Rows,
        cluster: Arc<Cluster>,
        topology: Arc<Topology>,
    ) -> Self {
        Self {
            splitter,
            rows,
            cluster,
            topology,
            known: HashMap::new(),
        }
    }

    async fn put(&mut self, last: bool, outs: &mut [BytesMut]) -> Result<(), Fault> {
        let chunk = self.splitter.take(last)?;
        self.look_up(&chunk.rows).await?;
        let starts: Vec<usize> = outs.iter_mut().map(begin).collect();
        for row in &chunk.rows {
            let bytes = &chunk.bytes[row.span.clone()];
            let Some(key) = &row.key else {
                outs.iter_mut().for_each(|out| out.extend_from_slice(bytes));
                continue;
            };
            let shard = self.place(key);
            let shard = shard.map_err(|fault| self.splitter.in_line(fault, row.line))?;
            let out = outs.get_mut(usize::from(shard.0));
            let out = out.ok_or_else(|| Fault::Internal {
                why: format!("no COPY on shard {shard}"),
            })?;
            out.extend_from_slice(bytes);
        }
        for (out, start) in outs.iter_mut().zip(starts) {
            end(out, start);
        }
        Ok(())
    }

    fn count(&self) -> u16 {
        u16::try_from(self.topology.shards.len()).unwrap_or(u16::MAX)
    }

    fn place(&self, key: &Key) -> Result<ShardNumber, Fault> {
        let shard = match self.known.get(key) {
            Some(shard) => *shard,
            None => match place_key(&self.table()?.rule, key, self.count())? {
                Placed::Shard(shard) => shard,
                Placed::Lookup(key) => {
                    return Err(Fault::Internal {
                        why: format!("key {key} was not looked up"),
                    });
                }
            },
        };
        match self.rows.only {
            Some(here) if here != shard => Err(Fault::MisplacedRow {
                table: self.table()?.table.clone(),
                key: key.to_string(),
                belongs: shard,
                here,
            }),
            Some(_) | None => Ok(shard),
        }
    }

    fn table(&self) -> Result<&crate::nodes::ShardedTable, Fault> {
        let table = self.topology.sharded.get(self.rows.table);
        table.ok_or_else(|| Fault::Internal {
            why: "a rule that is not there".to_owned(),
        })
    }

    /// Makes the shards of these rows known, as far as only the database knows them.
    async fn look_up(&mut self, rows: &[Row]) -> Result<(), Fault> {
        if !self.is_looked_up()? {
            return Ok(());
        }
        if self.known.len() > KNOWN {
            self.known.clear();
        }
        let mut wanted: HashMap<&Key, u64> = HashMap::new();
        for row in rows {
            if let Some(key) = row.key.as_ref().filter(|key| !self.known.contains_key(key))
                && let Entry::Vacant(free) = wanted.entry(key)
            {
                free.insert(row.line);
            }
        }
        let mut wanted: Vec<_> = wanted.into_iter().collect();
        wanted.sort_by_key(|(_, line)| *line);
        for batch in wanted.chunks(BATCH) {
            let keys: Vec<_> = batch
                .iter()
                .map(|(key, _)| LookupKey {
                    rule: self.rows.table,
                    key: key.to_string(),
                })
                .collect();
            match self.cluster.lookup_many(&self.topology, &keys).await {
                Ok(shards) => {
                    let keys = batch.iter().map(|(key, _)| (*key).clone());
                    self.known.extend(keys.zip(shards));
                }
                Err(fault) => {
                    let at = keys.iter().position(|key| is_about(&fault, &key.key));
                    return Err(match at {
                        Some(at) => self.splitter.in_line(fault, batch[at].1),
                        None => fault,
                    });
                }
            }
        }
        Ok(())
    }

    fn is_looked_up(&self) -> Result<bool, Fault> {
        use pgdog_core::placement::Strategy;
        Ok(match self.table()?.rule.strategy {
            Strategy::LookupQuery { .. } | Strategy::WholeMap { .. } => true,
            Strategy::Hash | Strategy::Mapping(_) => false,
        })
    }
}

/// Whether a lookup failed because of this key.
fn is_about(fault: &Fault, wanted: &str) -> bool {
    match fault {
        Fault::LookupMissing { key, .. }
        | Fault::LookupNull { key, .. }
        | Fault::LookupAmbiguous { key, .. }
        | Fault::LookupWrongType { key, .. }
        | Fault::LookupOutOfRange { key, .. } => key == wanted,
        _ => false,
    }
}

/// Begins a CopyData message whose length is not known yet; tells where.
fn begin(out: &mut BytesMut) -> usize {
    let start = out.len();
    out.put_u8(b'd');
    out.put_u32(0);
    start
}

/// Puts the length in, or takes the message back if there is nothing in it.
fn end(out: &mut BytesMut, start: usize) {
    if out.len() == start + frame::HEADER {
        return out.truncate(start);
    }
    let length = u32::try_from(out.len() - start - 1).expect("rows are far shorter than 1 GB");
    out[start + 1..start + frame::HEADER].copy_from_slice(&length.to_be_bytes());
}
