//! Replay positions: what the monitor last saw of every node.

use std::time::Instant;

use pgdog_core::ids::{Incarnation, Timeline};
use pgdog_core::lsn::Lsn;

use super::topology::Address;

/// A node of a shard with its last sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Position {
    /// Which node.
    pub address: Address,
    /// Primary or replica, as the node itself said last.
    pub role: Role,
    /// None: never sampled, or the last poll failed and revoked it.
    pub sample: Option<Sample>,
}

/// Primary or replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Not in recovery.
    Primary,
    /// In recovery.
    Replica,
}

/// What a node said about its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The server start that said it; the position vouches for this one only.
    pub incarnation: Incarnation,
    /// Its timeline.
    pub timeline: Timeline,
    /// `system_identifier` of the cluster.
    pub system_identifier: String,
    /// Replayed (primary: inserted) up to here; None never qualifies.
    pub replayed: Option<Lsn>,
    /// Received up to here; for people only.
    pub received: Option<Lsn>,
    /// Bytes replayed per second, measured over the last samples while it moved; 0: unknown.
    pub replay_bytes_per_s: f64,
    /// Age of the last replayed commit when sampled, in ms; None on a primary.
    pub lag_ms: Option<u64>,
    /// When it was taken.
    pub taken_at: Instant,
}
