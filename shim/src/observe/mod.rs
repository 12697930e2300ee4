//! What people and machines see of the running shim: logging and counters.
//!
//! | file | what |
//! |---|---|
//! | `clients` | every connected client with its counters, and totals by database and user |
//! | `logging` | the tracing subscriber |

mod clients;
mod logging;

pub use clients::{Client, ClientState, Clients, Counted, Totals};
pub use logging::start_logging;
