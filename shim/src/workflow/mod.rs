//! Hands of the state machine that grows a cluster by one shard.
//!
//! The machine itself is `pgdog_core::workflow`, run by `pgdog.task_advance` under the lock of the
//! task's row on shard 0. Any shim may be the hands: it takes the advisory lock on the *new* shard,
//! reads the state, does that state's idempotent work and reports the event.
//!
//! | file | kind | what it does |
//! |---|---|---|
//! | `driver` | async | finds unfinished tasks, drives them by their state |
//! | `site` | pure | where the shards are and how to log in |
//! | `task` | async | the task's row: read, advance, report progress |
//! | `validate`, `facts`, `guards` | async, pure | *validating*: what is and what must be |
//! | `listing`, `schema` | pure, async | *syncing schema* and *indexing*: dump, split, restore |
//! | `data` | async | *syncing data*, *replicating*: publication, subscription, lag |
//! | `look`, `fence` | async | *fencing*: look first, take the gates, wait for the marker |
//! | `gid`, `flip` | pure, async | *deciding*: prepare everywhere, commit on the new shard |
//! | `recover` | both | who committed? for anyone, at any time |
//! | `cleanup` | async | *cleaning*, and undoing before the point of no return |
//! | `cut`, `compare` | async | one moment over all shards; what `VERIFY SHARD` compares |
//! | `plan` | async | the dry run: facts and guards, nothing written |
//! | `work` | | what a step works with and what it answers |
//! | `node`, `tools`, `error` | async | one session on a node; `pg_dump`; errors with their place |

mod cleanup;
mod compare;
mod cut;
mod data;
mod driver;
mod error;
mod facts;
mod facts_sql;
mod fence;
mod flip;
mod gid;
mod guards;
mod listing;
mod lock;
mod look;
mod node;
mod plan;
mod recover;
mod schema;
mod site;
mod task;
mod tools;
mod validate;
mod work;

pub use compare::{TableHash, Verified, compare, disagreeing, hashes};
pub use driver::{Driver, Outcome, drive};
pub use error::WorkflowError;
pub use facts::{blind_instances, differing_instances};
pub use guards::{Finding, Verdict};
pub use node::Node;
pub use plan::{Plan, plan};
pub use site::Site;
pub use task::{Task, unfinished};
