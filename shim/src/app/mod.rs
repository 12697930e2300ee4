//! Start, run, reload and stop.

use crate::config::Config;

/// Serves clients until the process is asked to stop.
///
/// # Errors
/// When the configured nodes or the port cannot be used.
pub fn run(config: Config) -> anyhow::Result<()> {
    anyhow::bail!("port {} is not served by this build", config.general.port)
}
