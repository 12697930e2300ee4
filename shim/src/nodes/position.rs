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

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Replica => "replica",
        })
    }
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
    /// Bytes replayed per second, measured while it had something to replay; 0: unknown.
    pub replay_bytes_per_s: f64,
    /// Age of the last replayed commit when sampled, in ms; 0 when all that was received was
    /// replayed, None on a primary.
    pub lag_ms: Option<u64>,
    /// When it was taken.
    pub taken_at: Instant,
}

/// Measures how fast a node replays while it has something to replay.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    last: Option<Reading>,
    bytes_per_s: f64,
}

/// One reading of a node's positions.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) incarnation: Incarnation,
    pub(super) replayed: Option<Lsn>,
    pub(super) received: Option<Lsn>,
    pub(super) taken_at: Instant,
}

impl Reading {
    /// WAL was there that was not replayed: how fast it goes on is the server's doing. Without, it
    /// would be the writers'.
    fn had_work(&self) -> bool {
        self.received > self.replayed
    }
}

impl RateMeter {
    /// Weight of the newest measurement.
    const NEWEST: f64 = 0.3;

    /// Takes a reading; the rate after it, 0 while unknown.
    pub(super) fn note(&mut self, reading: Reading) -> f64 {
        match &self.last {
            Some(last) if last.incarnation == reading.incarnation => {
                if let (Some(before), Some(after)) = (last.replayed, reading.replayed)
                    && last.had_work()
                    && after > before
                {
                    let bytes = after.0 - before.0;
                    let elapsed = reading.taken_at.saturating_duration_since(last.taken_at);
                    self.measured(bytes as f64 / elapsed.as_secs_f64().max(0.000_1));
                }
            }
            _ => self.bytes_per_s = 0.0,
        }
        self.last = Some(reading);
        self.bytes_per_s
    }

    fn measured(&mut self, bytes_per_s: f64) {
        self.bytes_per_s = if self.bytes_per_s > 0.0 {
            self.bytes_per_s * (1.0 - Self::NEWEST) + bytes_per_s * Self::NEWEST
        } else {
            bytes_per_s
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reading(start: Instant, ms: u64, replayed: u64, received: u64) -> Reading {
        Reading {
            incarnation: Incarnation("a".into()),
            replayed: Some(Lsn(replayed)),
            received: Some(Lsn(received)),
            taken_at: start + Duration::from_millis(ms),
        }
    }

    #[test]
    fn rate_is_measured_while_there_is_work_only() {
        let (start, mut meter) = (Instant::now(), RateMeter::default());
        assert_eq!(meter.note(reading(start, 0, 1000, 9000)), 0.0);
        assert_eq!(meter.note(reading(start, 1000, 2000, 2000)), 1000.0);
        // It had caught up: a slow writer does not make a slow replica.
        assert_eq!(meter.note(reading(start, 9000, 2001, 2001)), 1000.0);
    }

    #[test]
    fn a_pause_is_not_slowness() {
        let (start, mut meter) = (Instant::now(), RateMeter::default());
        meter.note(reading(start, 0, 1000, 9000));
        assert_eq!(meter.note(reading(start, 8000, 1000, 9000)), 0.0);
        assert_eq!(meter.note(reading(start, 9000, 2000, 9000)), 1000.0);
    }

    #[test]
    fn a_new_server_start_begins_a_new_measurement() {
        let (start, mut meter) = (Instant::now(), RateMeter::default());
        meter.note(reading(start, 0, 0, 9000));
        assert!(meter.note(reading(start, 100, 500, 9000)) > 0.0);
        let other = Reading {
            incarnation: Incarnation("b".into()),
            ..reading(start, 200, 9, 9)
        };
        assert_eq!(meter.note(other), 0.0);
    }

    #[test]
    fn an_unknown_position_keeps_the_rate() {
        let (start, mut meter) = (Instant::now(), RateMeter::default());
        meter.note(reading(start, 0, 0, 9000));
        meter.note(reading(start, 1000, 100, 9000));
        let unknown = Reading {
            replayed: None,
            ..reading(start, 2000, 0, 0)
        };
        assert_eq!(meter.note(unknown), 100.0);
    }
}
