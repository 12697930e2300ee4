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
    /// Bytes replayed per second, measured over the last samples while it moved; 0: unknown.
    pub replay_bytes_per_s: f64,
    /// Age of the last replayed commit when sampled, in ms; None on a primary.
    pub lag_ms: Option<u64>,
    /// When it was taken.
    pub taken_at: Instant,
}

/// Measures how fast a node replays, from the samples in which its position moved.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    last: Option<(Incarnation, Lsn, Instant)>,
    bytes_per_s: f64,
}

impl RateMeter {
    /// Weight of the newest measurement.
    const NEWEST: f64 = 0.3;

    /// Takes one sample; the rate after it, 0 while unknown.
    pub(super) fn note(
        &mut self,
        incarnation: &Incarnation,
        replayed: Option<Lsn>,
        now: Instant,
    ) -> f64 {
        let Some(lsn) = replayed else {
            return self.bytes_per_s;
        };
        match &self.last {
            Some((known, before, at)) if known == incarnation => {
                let bytes = lsn.0.saturating_sub(before.0);
                let seconds = now.saturating_duration_since(*at).as_secs_f64();
                if bytes == 0 || seconds <= 0.0 {
                    // It idles or is paused: that says nothing about how fast it replays.
                    if bytes == 0 {
                        self.last = Some((incarnation.clone(), lsn, now));
                    }
                    return self.bytes_per_s;
                }
                let measured = bytes as f64 / seconds;
                self.bytes_per_s = if self.bytes_per_s > 0.0 {
                    self.bytes_per_s * (1.0 - Self::NEWEST) + measured * Self::NEWEST
                } else {
                    measured
                };
            }
            _ => self.bytes_per_s = 0.0,
        }
        self.last = Some((incarnation.clone(), lsn, now));
        self.bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn rate_is_measured_while_replay_moves_and_kept_while_it_idles() {
        let (server, start) = (Incarnation("a".into()), Instant::now());
        let mut meter = RateMeter::default();
        assert_eq!(meter.note(&server, Some(Lsn(1000)), start), 0.0);
        assert_eq!(
            meter.note(&server, Some(Lsn(2000)), at(start, 1000)),
            1000.0
        );
        assert_eq!(
            meter.note(&server, Some(Lsn(2000)), at(start, 9000)),
            1000.0
        );
        // The idle stretch does not count as slow replay.
        assert_eq!(
            meter.note(&server, Some(Lsn(3000)), at(start, 10_000)),
            1000.0
        );
    }

    #[test]
    fn a_new_server_start_begins_a_new_measurement() {
        let start = Instant::now();
        let mut meter = RateMeter::default();
        meter.note(&Incarnation("a".into()), Some(Lsn(0)), start);
        meter.note(&Incarnation("a".into()), Some(Lsn(500)), at(start, 100));
        assert_eq!(
            meter.note(&Incarnation("b".into()), Some(Lsn(9)), at(start, 200)),
            0.0
        );
    }

    #[test]
    fn an_unknown_position_keeps_the_rate() {
        let (server, start) = (Incarnation("a".into()), Instant::now());
        let mut meter = RateMeter::default();
        meter.note(&server, Some(Lsn(0)), start);
        meter.note(&server, Some(Lsn(100)), at(start, 1000));
        assert_eq!(meter.note(&server, None, at(start, 2000)), 100.0);
    }
}
