//! Names of metrics and spans; logging.
