//! What became of connections that wanted to log in.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a login ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginEnd {
    /// The client is in.
    Accepted,
    /// It is not who it says, or there is no such database.
    Refused,
    /// It took too long.
    TimedOut,
    /// There are as many clients as are allowed.
    TooMany,
    /// The client left, or broke the protocol.
    Abandoned,
}

impl LoginEnd {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Accepted,
        Self::Refused,
        Self::TimedOut,
        Self::TooMany,
        Self::Abandoned,
    ];

    /// As metrics show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::TooMany => "too_many",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Logins([AtomicU64; 5]);

impl Logins {
    /// One more.
    pub fn note(&self, end: LoginEnd) {
        self.0[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many ended so.
    pub fn of(&self, end: LoginEnd) -> u64 {
        self.0[end as usize].load(Ordering::Relaxed)
    }
}
