//! The tracing subscriber.

use tracing_subscriber::EnvFilter;

/// Writes events to stderr: as JSON when `PGDOG_LOG_FORMAT=json`, filtered by `RUST_LOG`
/// (`info` by default). Later calls do nothing.
pub fn start_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let json = std::env::var("PGDOG_LOG_FORMAT").is_ok_and(|format| format == "json");
    // A second subscriber is refused: the first one, of a test say, stays.
    let _ = match json {
        true => builder.json().try_init(),
        false => builder.with_ansi(false).try_init(),
    };
}
