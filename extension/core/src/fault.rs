//! The errors of pgdog: SQLSTATE, message, DETAIL, HINT and whether a retry can help.

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {}
