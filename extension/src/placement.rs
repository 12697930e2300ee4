//! Where a row lives, as a shim would route it.

use pgdog_core::fault::Fault;
use pgdog_core::lookup::{self, Asked};
use pgdog_core::placement::{Placed, place};
use pgrx::prelude::*;

use crate::registry::{Class, class_of};
use crate::report::raise;
use crate::{store, topology};

/// `pgdog.shard_for`: the shard of a key of a table.
#[pg_extern(sql = false)]
fn shard_for(schema: &str, table: &str, key: &str) -> i32 {
    shard_of(schema, table, key).unwrap_or_else(|fault| raise(&fault))
}

/// `pgdog.table_class`: what the fence takes a table for.
#[pg_extern(sql = false)]
fn table_class(relation: pg_sys::Oid) -> &'static str {
    match class_of(relation) {
        Class::Unlisted => "unlisted",
        Class::Sharded | Class::LookedUp => "sharded",
        Class::Omni => "omnisharded",
    }
}

/// `pgdog.placement_epoch`: of now, whatever snapshot the transaction has.
#[pg_extern(sql = false)]
fn placement_epoch() -> i64 {
    let epoch = topology::current().map_or(0, |here| here.placement_epoch.0);
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

/// `pgdog.hash_shard`: the shard of a key by PostgreSQL's hash partitioning alone.
#[pg_extern(sql = false)]
fn hash_shard(data_type: &str, key: &str, shards: i32) -> i32 {
    let rule = store::hash_rule(data_type);
    let placed = rule.and_then(|rule| place(&rule, key, within(shards)?));
    match placed {
        Ok(Placed::Shard(shard)) => i32::from(shard.0),
        Ok(Placed::Lookup(_)) => unreachable!("a hash rule needs no look-up"),
        Err(fault) => raise(&fault),
    }
}

pub(crate) fn shard_of(schema: &str, table: &str, key: &str) -> Result<i32, Fault> {
    let Some(here) = topology::current() else {
        return Err(Fault::WrongState {
            what: format!("cannot place a key of {table}"),
            why: "this node was not declared as a shard yet".into(),
            hint: Some("SELECT pgdog.install_node(shard, shards).".into()),
        });
    };
    let shards = within(here.shards)?;
    let rule = store::rule_of(schema, table)?;
    let shard = match place(&rule, key, shards)? {
        Placed::Shard(shard) => shard,
        Placed::Lookup(key) => {
            let rows = store::lookup(&rule, &key)?;
            let rows: Vec<Option<&str>> = rows.iter().map(Option::as_deref).collect();
            let asked = Asked {
                table,
                key: &key.to_string(),
            };
            lookup::interpret(&rule, asked, &rows, shards)?
        }
    };
    Ok(i32::from(shard.0))
}

fn within(shards: i32) -> Result<u16, Fault> {
    u16::try_from(shards)
        .ok()
        .filter(|shards| *shards > 0)
        .ok_or_else(|| Fault::BadParameter {
            name: "shards".into(),
            value: shards.to_string(),
            why: "expected 1 to 65535".into(),
        })
}
