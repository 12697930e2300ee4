//! The node's row of `pgdog.topology`, cached by each backend.
//!
//! The cache is dropped by relation invalidation, which Postgres delivers before the changing
//! transaction's locks are released, also through COMMIT PREPARED and on standbys. So a statement
//! that waited for a lock of a flip sees the new row as soon as it has the lock.

use std::cell::Cell;

use pgdog_core::ids::{Epoch, ShardNumber};
use pgrx::prelude::*;

use crate::backend::Own;
use crate::{registry, store};

/// What the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Being filled; clients don't write here yet.
    Provisioning,
    /// A member of the cluster.
    Serving,
}

/// The row, with the lock tag that goes with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Topology {
    pub(crate) state: State,
    pub(crate) version: i64,
    pub(crate) shards: i32,
    pub(crate) epoch: Epoch,
    pub(crate) placement_epoch: Epoch,
    pub(crate) shard: ShardNumber,
    /// `pgdog.gate`.
    pub(crate) gate: pg_sys::Oid,
}

impl Topology {
    /// Whether clients write here.
    pub(crate) fn is_serving(&self) -> bool {
        self.state == State::Serving
    }
}

/// What is known without a look at the table.
#[derive(Clone, Copy)]
pub(crate) enum Seen {
    /// It must be read.
    Unknown,
    /// No extension here, or a node that was not declared yet: nothing is checked.
    Absent,
    Here(Topology),
}

static CACHED: Own<Cell<Seen>> = Own::new(Cell::new(Seen::Unknown));
/// `pgdog.topology`; InvalidOid while it isn't known: then every invalidation counts.
static RELATION: Own<Cell<pg_sys::Oid>> = Own::new(Cell::new(pg_sys::InvalidOid));
/// How often the cache was dropped: tells a reader that its answer may be old already.
static DROPS: Own<Cell<u64>> = Own::new(Cell::new(0));

mod unguarded {
    unsafe extern "C-unwind" {
        /// Postgres' own: pgrx's binding of it is guarded.
        #[link_name = "AcceptInvalidationMessages"]
        pub(super) fn accept_invalidation_messages();
    }
}

/// What is known as of now. May be called outside of a guard.
///
/// # Safety
/// Within a transaction; outside of a guard, errors of Postgres leave by a long jump.
pub(crate) unsafe fn glance() -> &'static Seen {
    // SAFETY: by the caller's promise; delivers what other backends have sent. Nobody keeps the
    // reference until more is delivered.
    unsafe {
        unguarded::accept_invalidation_messages();
        &*CACHED.as_ptr()
    }
}

/// The topology as of now; `None` if nothing is to be checked in this database.
pub(crate) fn current() -> Option<Topology> {
    // SAFETY: within a transaction; delivers what other backends have sent.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    loop {
        match CACHED.get() {
            Seen::Absent => return None,
            Seen::Here(topology) => return Some(topology),
            Seen::Unknown => {
                let drops = DROPS.get();
                let read = read();
                if DROPS.get() == drops {
                    CACHED.set(read);
                }
            }
        }
    }
}

/// Registers the invalidation callbacks; every backend inherits them by fork.
pub(crate) fn install() {
    // SAFETY: callbacks of the right types that live as long as the library.
    unsafe {
        let nothing = pg_sys::Datum::null();
        pg_sys::CacheRegisterRelcacheCallback(Some(on_relation_changed), nothing);
        pg_sys::CacheRegisterSyscacheCallback(
            pg_sys::SysCacheIdentifier::NAMESPACEOID as i32,
            Some(on_namespace_changed),
            nothing,
        );
    }
}

fn read() -> Seen {
    let (Some(relation), Some(gate)) = (store::relation(c"topology"), store::relation(c"gate"))
    else {
        RELATION.set(pg_sys::InvalidOid);
        return Seen::Absent;
    };
    RELATION.set(relation);
    let mut found = Seen::Absent;
    store::scan(relation, |row| {
        let epoch = |column| Epoch(row.value::<i64>(column).unwrap_or(0).unsigned_abs());
        let state = match row.value::<&str>(2) {
            Some("provisioning") => State::Provisioning,
            Some("serving") => State::Serving,
            _ => return,
        };
        found = Seen::Here(Topology {
            state,
            version: row.value(0).unwrap_or(0),
            shards: row.value(1).unwrap_or(0),
            epoch: epoch(3),
            placement_epoch: epoch(4),
            shard: ShardNumber(
                row.value::<i32>(5)
                    .and_then(|n| n.try_into().ok())
                    .unwrap_or(0),
            ),
            gate,
        });
    });
    found
}

/// May come in the middle of anything: only sets cells.
unsafe extern "C-unwind" fn on_relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    let own = RELATION.get();
    if relation == own || relation == pg_sys::InvalidOid || own == pg_sys::InvalidOid {
        CACHED.set(Seen::Unknown);
        DROPS.set(DROPS.get() + 1);
    }
    registry::note_relation_changed(relation);
}

unsafe extern "C-unwind" fn on_namespace_changed(_arg: pg_sys::Datum, _cache: i32, _hash: u32) {
    registry::note_relation_changed(pg_sys::InvalidOid);
}
