//! What people and machines see of the running shim: logging and counters.
//!
//! | file | what |
//! |---|---|
//! | `clients` | every connected client with its counters, and totals by database and user |
//! | `logging` | the tracing subscriber |
//! | `logins` | what became of those who wanted to log in |
//! | `metrics` | OpenMetrics text |

mod clients;
mod logging;
mod logins;
pub mod metrics;

pub use clients::{Client, ClientState, Clients, Counted, Totals};
pub use logging::start_logging;
pub use logins::{LoginEnd, Logins};
