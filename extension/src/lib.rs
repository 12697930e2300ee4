//! The Postgres extension of pgdog: a node's truth about the cluster, and its checks.
//!
//! ```text
//! hooks        the two chained hooks; nothing but the order of things
//!  ├ glance    the first look at a statement, which almost every one passes
//!  ├ fence     may this statement write (read) these tables now?
//!  │  ├ topology   the node's row, cached by the backend until it changes
//!  │  ├ registry   which tables are sharded or omnisharded, cached likewise
//!  │  └ transaction  the epoch at which this transaction entered the gate
//!  ├ guard     rows that functions and triggers write are of this shard
//!  ├ utility   which tables a utility statement writes
//!  ├ ddl       the freeze of the schema while a task copies it
//!  ├ left      what code leaves on its connection
//!  └ wait      SET pgdog.wait_lsn: the read guard
//! stamps       commit stamps and positions in WAL, sampled by a background worker
//! gucs         every parameter; commit_lsn, incarnation and left fill three of them
//! node, placement, pinned, workflow, omni, login   functions that SQL calls
//! backend         variables of a backend
//! lists, report   Postgres' lists, core's faults as Postgres errors
//! store        scans and SPI: the only place that reads tables
//! ```
//! The SQL of the extension is in `sql/`; its C functions are named there by hand.

mod backend;
mod commit_lsn;
mod ddl;
mod fence;
mod glance;
mod guard;
mod gucs;
mod hooks;
mod incarnation;
mod left;
mod lists;
mod login;
mod nesting;
mod node;
mod omni;
mod pinned;
mod placement;
mod registry;
mod report;
mod stamps;
mod store;
mod topology;
mod transaction;
mod utility;
mod wait;
mod workflow;

use pgrx::prelude::*;

use crate::report::raise;

pgrx::pg_module_magic!();

/// Called by Postgres when the library is loaded: parameters, callbacks, hooks.
#[allow(non_snake_case)]
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a plain bool of the backend's globals; this is the only thread.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        raise(&pgdog_core::fault::Fault::WrongState {
            what: "pgdog must be loaded at server start".into(),
            why: "its fence has to see every session".into(),
            hint: Some("Add pgdog to shared_preload_libraries and restart the server.".into()),
        });
    }
    gucs::define();
    incarnation::install();
    left::install();
    stamps::install();
    transaction::install();
    topology::install();
    hooks::install();
}
