//! Variables of a backend, without what a thread-local costs at each look.

use std::ops::Deref;

/// A variable that each process has for itself: the hooks read several for every statement.
pub(crate) struct Own<T>(T);

// SAFETY: a server process has one thread, and its children get copies.
unsafe impl<T> Sync for Own<T> {}

impl<T> Own<T> {
    /// With this value from the start of the postmaster.
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
