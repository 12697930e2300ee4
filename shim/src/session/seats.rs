//! Clients are let in up to a number.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pgdog_core::fault::Fault;

/// See the module.
#[derive(Debug, Default)]
pub struct Seats(Arc<AtomicUsize>);

/// One client's seat, free again when dropped.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl Seats {
    /// A seat, if fewer than `limit` are taken.
    ///
    /// # Errors
    /// 53300.
    pub fn take(&self, limit: usize) -> Result<Seat, Fault> {
        let one_more = |taken| (taken < limit).then_some(taken + 1);
        let taken = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        match taken {
            Ok(_) => Ok(Seat(self.0.clone())),
            Err(_) => Err(Fault::TooMany {
                what: "clients already".to_owned(),
                limit: u64::try_from(limit).unwrap_or(u64::MAX),
            }),
        }
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_that_is_given_up_is_taken_by_the_next_one() {
        let seats = Seats::default();
        let first = seats.take(1).expect("one is free");
        let fault = seats.take(1).expect_err("none is free");
        assert_eq!(fault.sqlstate(), "53300");
        drop(first);
        let _second = seats.take(1).expect("one is free again");
        assert_eq!(seats.taken(), 1);
    }
}
