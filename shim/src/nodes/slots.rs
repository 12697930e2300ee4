//! Replication slots on the primaries.

use pgdog_core::fault::Fault;

use super::cluster::Cluster;
use super::topology::Address;

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The primary that it is on.
    pub address: Address,
    /// Its name.
    pub name: String,
    /// Confirmed by the subscriber, or what a physical slot keeps from.
    pub lsn: Option<String>,
    /// How far that is behind, for people.
    pub lag: Option<String>,
    /// The same in bytes.
    pub lag_bytes: Option<i64>,
    /// Somebody is connected to it.
    pub active: bool,
    /// `logical` or `physical`.
    pub kind: String,
    /// `reserved`, `extended`, `unreserved`, `lost`.
    pub wal_status: Option<String>,
    /// WAL kept for it, in bytes.
    pub retained_bytes: Option<i64>,
}

const SLOTS: &str = "
SELECT slot_name::text, coalesce(confirmed_flush_lsn, restart_lsn)::text, active, slot_type::text,
       wal_status::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), coalesce(confirmed_flush_lsn, restart_lsn))::bigint,
       pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(),
                      coalesce(confirmed_flush_lsn, restart_lsn)))::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
FROM pg_catalog.pg_replication_slots ORDER BY 1";

/// The slots of all shards, in the shards' order.
///
/// # Errors
/// A primary cannot be asked.
pub async fn list(cluster: &Cluster) -> Result<Vec<Slot>, Fault> {
    let mut slots = Vec::new();
    for shard in &cluster.topology().shards {
        let rows = cluster
            .shard_session(shard.shard)
            .await?
            .query(SLOTS, &[])
            .await?;
        slots.extend(rows.iter().map(|row| Slot {
            address: shard.primary.clone(),
            name: row.get(0),
            lsn: row.get(1),
            active: row.get(2),
            kind: row.get(3),
            wal_status: row.get(4),
            lag_bytes: row.get(5),
            lag: row.get(6),
            retained_bytes: row.get(7),
        }));
    }
    Ok(slots)
}
