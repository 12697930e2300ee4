//! A connection on loan.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::conn::Conn;
use super::pool::Pool;
use super::turns::Turn;

/// A [`Conn`] that goes back to its pool when dropped, or is closed if it isn't at rest outside
/// a transaction.
///
/// Cancel safety: may be dropped at any moment, also inside `send` or `recv`.
#[derive(Debug)]
pub struct Lease {
    /// `None` only while being dropped.
    held: Option<(Box<Conn>, Turn)>,
    generation: u64,
    pool: Arc<Pool>,
    waited: Duration,
}

impl Lease {
    pub(super) fn new(conn: Box<Conn>, generation: u64, turn: Turn, pool: Arc<Pool>) -> Self {
        Self {
            held: Some((conn, turn)),
            generation,
            pool,
            waited: Duration::ZERO,
        }
    }

    pub(super) fn after(mut self, waited: Duration) -> Self {
        self.waited = waited;
        self
    }

    /// How long it took until there was a turn.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Closes the connection instead of giving it back.
    pub fn discard(mut self) {
        self.desynchronized("discarded");
    }

    /// The pool it came from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

const HELD: &str = "a lease holds its connection until it is dropped";

impl Deref for Lease {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        &self.held.as_ref().expect(HELD).0
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.held.as_mut().expect(HELD).0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((conn, turn)) = self.held.take() {
            self.pool.take_back(conn, self.generation, turn);
        }
    }
}
