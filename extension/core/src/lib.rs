//! Pure rules of pgdog: what shim and extension must agree on. No I/O, no clock.
//!
//! `ids` and `lsn` are the words, `fault` the errors, `floor` decides who may answer a read,
//! `moment` and `stamps` which position covers the commits up to a point in time,
//! `hash`, `placement` and `lookup` decide where a row lives, `workflow` how a cluster grows.

pub mod fault;
pub mod floor;
pub mod hash;
pub mod ids;
pub mod lookup;
pub mod lsn;
pub mod moment;
pub mod placement;
pub mod stamps;
pub mod workflow;
