//! The tracing subscriber.

use tracing_subscriber::EnvFilter;

/// Writes events to stderr: as JSON when that is asked for or `PGDOG_LOG_FORMAT=json`, filtered by
/// `RUST_LOG`, else by `level`. Later calls do nothing.
pub fn start_logging(level: &str, json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let json = json || std::env::var("PGDOG_LOG_FORMAT").is_ok_and(|format| format == "json");
    // A second subscriber is refused: the first one, of a test say, stays.
    let _ = match json {
        true => builder.json().try_init(),
        false => builder.with_ansi(false).try_init(),
    };
}
