//! Real clusters for tests and demonstrations.
//!
//! | module | what |
//! |---|---|
//! | `cluster` | a `pgdog dev` cluster: started, connected to, damaged, stopped |
//! | `client` | a connection that also keeps what the server pushes |
//! | `wait` | conditions with a deadline |
//! | `wire` | a client that speaks the protocol message by message |
//! | `counter` | a relay that notes what a server is asked |
//! | `http` | the pages that a shim serves |
//! | `fixture` | the tables of the required cases, shims configured for them |
//! | `pgbench` | pgbench as a client |
//! | `suite` | several claims checked on one cluster |
//! | `shop` | the multi-tenant data set |
//! | `load` | writers and readers that keep account of what was acknowledged |
//! | `tasks` | changes of topology followed and verified |

pub mod client;
pub mod cluster;
pub mod counter;
pub mod faults;
pub mod fixture;
pub mod http;
pub mod load;
pub mod pgbench;
pub mod shop;
pub mod suite;
pub mod tasks;
pub mod wait;
pub mod wire;

pub use client::Client;
pub use cluster::{Cluster, Shape};
pub use wait::wait_until;
