//! Operator verbs on the admin database: one file per verb, each with one `COMMAND`.
//!
//! [`COMMANDS`] is the table of what exists. A command's `words` are matched from the start of the
//! text without regard to case, the longest match wins; what follows is given to `run` as
//! arguments. To add a verb: write its file, add one line to the table.

pub mod host;

mod command;

use std::sync::Arc;

use pgdog_core::fault::Fault;

pub use command::{Args, Command, Output};
pub use host::Host;

/// What exists.
const COMMANDS: &[&Command] = &[];

/// Runs operator commands.
pub struct Admin {
    host: Arc<dyn Host>,
}

impl Admin {
    /// `host` gives access to the running process.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { host }
    }

    /// The running process.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// Runs one command; an empty text gives an empty output.
    pub async fn run(&self, text: &str) -> Result<Output, Fault> {
        let _ = (text, COMMANDS);
        unimplemented!()
    }
}
