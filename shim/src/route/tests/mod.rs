//! Routes of statements over the tables of a small shop: `orders` and `lines` are sharded by
//! `tenant_id`, `rates`, `tenants` and `stamps` are omnisharded, `notes` is undeclared.

mod changed;
mod changes;
mod defaults;
mod model;
mod reads;
mod scattered;

use pgdog_core::ids::{Epoch, ShardNumber, TopologyVersion};
use pgdog_core::placement::{
    DataType, Key, LookupResult, Mapping, MappingRule, Match, Strategy as Placement, TableRule,
};

use super::*;
use crate::nodes::topology::{
    Address, Copied, OmniTable, OpaqueFunction, OpaqueFunctions, ShardNodes, ShardedTable,
    Topology, Unlisted,
};
use crate::plan::{Statement, parse};

/// Keys of shard 0, 1 and 2.
const PLACES: [&[i64]; 3] = [&[11, 13, 0, i64::MIN, i64::MAX], &[12, 14, -5], &[21, 22]];

fn mapping() -> TableRule {
    let rules = PLACES.iter().zip(0u16..).map(|(keys, shard)| MappingRule {
        keys: Match::List(keys.iter().map(|key| Key::Bigint(*key)).collect()),
        shard: ShardNumber(shard),
    });
    let strategy = Placement::Mapping(Mapping::new(rules.collect()).unwrap());
    TableRule {
        data_type: DataType::Bigint,
        strategy,
    }
}

fn lookup() -> TableRule {
    let query = "SELECT shard_id FROM tenants WHERE id = $1".to_owned();
    let strategy = Placement::LookupQuery {
        query,
        result: LookupResult::Shard,
    };
    TableRule {
        data_type: DataType::Bigint,
        strategy,
    }
}

fn sharded(schema: &str, table: &str, rule: TableRule) -> ShardedTable {
    let (column, position) = ("tenant_id".to_owned(), Some(0));
    ShardedTable {
        schema: schema.into(),
        table: table.into(),
        column,
        position,
        copied: Some(Copied { key: 0, columns: 4 }),
        identity: false,
        max_length: None,
        unfit: None,
        rule,
    }
}

fn topology(shards: u16) -> Topology {
    let node = |shard| ShardNodes {
        shard: ShardNumber(shard),
        epoch: Epoch(1),
        primary: Address {
            host: "h".into(),
            port: 1,
            database: "d".into(),
        },
        replicas: Vec::new(),
    };
    let mut quoted = sharded("public", "Order Lines", mapping());
    quoted.column = "TenantId".to_owned();
    let mut named = sharded(
        "public",
        "people",
        TableRule {
            data_type: DataType::Varchar,
            ..mapping()
        },
    );
    named.column = "name".to_owned();
    named.rule.strategy = Placement::Hash;
    let mut numbered = sharded("public", "numbered", mapping());
    numbered.identity = true;
    let mut computed = sharded("public", "computed", mapping());
    computed.copied = None;
    let mut short = named.clone();
    (short.table, short.max_length) = ("short".to_owned(), Some(5));
    let mut unfit = sharded("public", "unfit", mapping());
    unfit.unfit = Some("is not of type bigint".to_owned());
    let omni = |schema: &str, table: &str, columns: &[&str], computed: &[&str]| OmniTable {
        schema: schema.to_owned(),
        table: table.to_owned(),
        declared: true,
        columns: columns.iter().map(ToString::to_string).collect(),
        computed: computed.iter().map(ToString::to_string).collect(),
    };
    Topology {
        version: TopologyVersion(1),
        shards: (0..shards).map(node).collect(),
        sharded: vec![
            sharded("public", "orders", mapping()),
            sharded("public", "lines", mapping()),
            sharded("public", "visits", lookup()),
            quoted,
            named,
            numbered,
            computed,
            short,
            unfit,
        ],
        omnisharded: vec![
            omni("public", "rates", &["code", "pct", "at"], &[]),
            omni("public", "tenants", &["id", "shard_id"], &[]),
            omni("arch", "orders", &["id"], &[]),
            omni("public", "stamps", &["id", "note", "at"], &["id", "at"]),
        ],
        functions: functions(),
        shadows: ["concat".to_owned(), "bit_xor".to_owned()].into(),
        unlisted: Unlisted::Refused,
    }
}

/// Two that may touch tables, one that nobody finds, one that adds a shape to a system function,
/// and one that somebody has put among those.
fn functions() -> OpaqueFunctions {
    let one = |schema: &str, name: &str, arguments: usize, hidden: bool| {
        let function = OpaqueFunction {
            schema: schema.to_owned(),
            fewest: arguments,
            most: Some(arguments),
            hidden,
        };
        (name.to_owned(), vec![function])
    };
    [
        one("public", "new_order", 1, false),
        one("public", "orders_of", 1, false),
        one("mine", "now", 0, true),
        one("public", "round", 2, false),
        one("public", "lower", 1, true),
        one("pg_catalog", "of_operators", 1, false),
    ]
    .into()
}

fn statement(sql: &str) -> Statement {
    let mut plan = parse(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(plan.statements.len(), 1, "{sql}");
    plan.statements.remove(0)
}

fn outcome(sql: &str) -> Outcome {
    route(
        &statement(sql),
        &NoParams,
        &topology(3),
        &SessionView::default(),
    )
}

fn go(sql: &str) -> Route {
    match outcome(sql) {
        Outcome::Ready(route) => route,
        other => panic!("{sql}: {other:?}"),
    }
}

#[track_caller]
fn to_shard(sql: &str, shard: u16) {
    assert_eq!(go(sql).target, Target::Shard(ShardNumber(shard)), "{sql}");
}

#[track_caller]
fn to_all(sql: &str, reason: AllReason) {
    assert_eq!(go(sql).target, Target::All(reason), "{sql}");
}

#[track_caller]
fn refused(sql: &str) -> Fault {
    match outcome(sql) {
        Outcome::Refused(fault) => fault,
        other => panic!("{sql}: {other:?}"),
    }
}

/// Refused as a feature, with a reason.
#[track_caller]
fn unsupported(sql: &str) {
    assert_eq!(refused(sql).sqlstate(), "0A000", "{sql}");
}

/// Parameters as (bytes, binary, oid).
struct Given(Vec<(Option<Vec<u8>>, bool, u32)>);

impl Params for Given {
    fn param(&self, number: usize) -> Option<Bind<'_>> {
        let (value, binary, type_oid) = self.0.get(number - 1)?;
        Some(Bind {
            value: value.as_deref(),
            binary: *binary,
            type_oid: *type_oid,
        })
    }
}

fn with_params(sql: &str, params: Given) -> Outcome {
    route(
        &statement(sql),
        &params,
        &topology(3),
        &SessionView::default(),
    )
}
