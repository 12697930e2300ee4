//! A connection on loan.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::conn::Conn;
use super::pool::Pool;

/// A [`Conn`] that goes back to its pool when dropped, or is closed if it isn't at rest outside
/// a transaction.
///
/// Cancel safety: may be dropped at any moment, also inside `send` or `recv`.
#[derive(Debug)]
pub struct Lease {
    /// `None` only while being dropped.
    held: Option<(Box<Conn>, OwnedSemaphorePermit)>,
    generation: u64,
    pool: Arc<Pool>,
}

impl Lease {
    pub(super) fn new(
        conn: Box<Conn>,
        generation: u64,
        permit: OwnedSemaphorePermit,
        pool: Arc<Pool>,
    ) -> Self {
        Self {
            held: Some((conn, permit)),
            generation,
            pool,
        }
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
        if let Some((conn, permit)) = self.held.take() {
            self.pool.take_back(conn, self.generation, permit);
        }
    }
}
