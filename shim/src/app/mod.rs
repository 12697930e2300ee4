//! Start, run, reload and stop.
