//! The extension's SQL API, typed: topology, positions, instances, tasks.

pub mod topology;
