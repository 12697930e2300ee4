//! What a client keeps on one server connection, and when it is gone.
//!
//! A statement that may leave something there pins the connection before it runs. Whether anything
//! is left, only the server knows: it is asked whenever something may have gone, or may not have
//! come about, and at the latest when a transaction ends in which it was touched.

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::Session;
use super::left::second_place;
use super::party::SESSION_MODE;
use super::settings::Keep;
use crate::server::{Lease, ServerError};

/// A pin that ends with the client: nobody can tell whether its reason is gone.
pub const LOAD: &str = "LOAD";
/// As [`LOAD`].
pub const CODE: &str = "settings made by code";
/// As [`LOAD`]: values that random() gives can be foretold.
pub const SEED: &str = "seed of random()";
/// Until the server has said whether anything is left.
pub const MAYBE: &str = "code that may keep state";

/// Asks a server for what it keeps for its client.
const KEPT: &str = "\
SELECT 'temporary table', relname FROM pg_catalog.pg_class \
 WHERE relnamespace = pg_catalog.pg_my_temp_schema() AND relkind NOT IN ('i', 'I', 't') \
UNION ALL SELECT 'temporary table', typname FROM pg_catalog.pg_type \
 WHERE typnamespace = pg_catalog.pg_my_temp_schema() AND typrelid = 0 AND typelem = 0 \
UNION ALL SELECT 'temporary table', '' FROM pg_catalog.pg_proc \
 WHERE pronamespace = pg_catalog.pg_my_temp_schema() \
UNION ALL SELECT 'advisory lock', '' FROM pg_catalog.pg_locks \
 WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid() \
UNION ALL SELECT 'cursor WITH HOLD', name FROM pg_catalog.pg_cursors WHERE is_holdable \
UNION ALL SELECT 'LISTEN', '' WHERE EXISTS (SELECT FROM pg_catalog.pg_listening_channels()) \
UNION ALL SELECT 'PREPARE', name FROM pg_catalog.pg_prepared_statements \
 WHERE from_sql AND name NOT LIKE '\\_\\_pgdog\\_%'";

/// Reasons that a server can tell of.
const REASONS: [&str; 5] = [
    "temporary table",
    "advisory lock",
    "cursor WITH HOLD",
    "LISTEN",
    "PREPARE",
];

/// Whether a reason stays as long as the client.
pub fn lasts(why: &str) -> bool {
    matches!(why, LOAD | CODE | SEED)
}

/// Whether a pin on this shard is for something that no reset takes away.
pub fn is_lasting((kept, why): (ShardNumber, &str), shard: ShardNumber) -> bool {
    kept == shard && matches!(why, LOAD | SEED)
}

/// What a server keeps for its client: kind and name of each.
pub async fn kept(lease: &mut Lease) -> Result<Vec<Vec<Option<String>>>, ServerError> {
    lease.simple(KEPT).await
}

impl Session<'_> {
    /// Keeps this shard's primary connection for as long as there is a reason.
    ///
    /// # Errors
    /// Another shard's is kept already.
    pub(super) fn pin(&mut self, shard: ShardNumber, why: &'static str) -> Result<(), Fault> {
        self.touched = true;
        match self.pin {
            None => self.set_pin(Some((shard, why))),
            Some((kept, SESSION_MODE)) if kept != shard => {
                // Nothing is kept there but habit.
                if let Some(mut pinned) = self.pinned.take() {
                    self.running.remove(&pinned.lease.cancel_token());
                    pinned.lease.mark_dirty();
                }
                self.set_pin(Some((shard, why)));
            }
            Some((kept, SESSION_MODE)) => self.set_pin(Some((kept, why))),
            Some((kept, first)) if kept == shard => {
                if first == MAYBE || (lasts(why) && !lasts(first)) {
                    self.set_pin(Some((kept, why)));
                }
            }
            Some((kept, first)) => return Err(second_place((why, shard), (first, kept))),
        }
        Ok(())
    }

    pub(super) fn set_pin(&mut self, pin: Option<(ShardNumber, &'static str)>) {
        self.pin = pin;
        self.seen.set_pinned(pin.map_or("", |(_, why)| why));
    }

    /// Looks whether the reason of the pin is still there, if that has become doubtful, and lets
    /// the connection go if it is not.
    pub(super) async fn look_at_pin(&mut self) {
        if !self.touched || self.tx.is_open() {
            return;
        }
        self.touched = false;
        let Some((shard, first)) = self.pin else {
            return;
        };
        let Some(pinned) = &mut self.pinned else {
            // It never ran, or the connection is lost and with it what was kept.
            if !lasts(first) {
                self.set_pin(None);
            }
            return;
        };
        let found = match kept(&mut pinned.lease).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::debug!(%error, "cannot see what is kept");
                return;
            }
        };
        self.temporary.clear();
        let mut reason = None;
        for row in found {
            let [Some(kind), Some(name)] = row.as_slice() else {
                continue;
            };
            reason = reason.or_else(|| REASONS.into_iter().find(|known| known == kind));
            if kind == REASONS[0] && !name.is_empty() {
                self.temporary.push(name.clone());
            }
        }
        let reason = match first {
            first if lasts(first) => Some(first),
            _ => reason,
        };
        let habit = (self.keep == Keep::Session).then_some(SESSION_MODE);
        match reason.or(habit) {
            Some(why) => self.set_pin(Some((shard, why))),
            None => self.unpin(),
        }
    }

    fn unpin(&mut self) {
        self.set_pin(None);
        if let Some(pinned) = self.pinned.take() {
            self.running.remove(&pinned.lease.cancel_token());
        }
    }
}
