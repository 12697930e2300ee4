//! `nodes` against real servers: what a shim finds, installs, follows and finishes.

use std::time::{Duration, Instant};

use crate::support::{Server, eventually, settings, start};
use pgdog_core::ids::{Epoch, ShardNumber, TopologyVersion};
use pgdog_shim::nodes::{
    Cluster, DeclaredNode, DeclaredTable, Instance, LookupKey, Role, instances,
};

pub const ZERO: ShardNumber = ShardNumber(0);
pub const ONE: ShardNumber = ShardNumber(1);

const TABLES: &str = "
    CREATE TABLE tenants (id bigint PRIMARY KEY, shard_id int);
    CREATE TABLE orders (id bigint, note text, tenant_id bigint);";

pub async fn two_shards() -> (Server, Server) {
    let (zero, one) = tokio::join!(Server::with_extension(), Server::with_extension());
    zero.sql("app", TABLES).await;
    one.sql("app", TABLES).await;
    (zero, one)
}

fn orders() -> DeclaredTable {
    DeclaredTable {
        schema: "public".into(),
        table: "orders".into(),
        column: "tenant_id".into(),
        data_type: "bigint".into(),
        lookup_query: Some("SELECT shard_id FROM tenants WHERE id = $1".into()),
        lookup_result: "shard".into(),
        mapping: None,
    }
}

fn omni_names(topology: &pgdog_shim::nodes::Topology) -> Vec<(String, String)> {
    let tables = topology.omnisharded.iter();
    tables
        .map(|omni| (omni.schema.clone(), omni.table.clone()))
        .collect()
}

fn omni(name: &str) -> (String, String) {
    ("public".into(), name.into())
}

pub async fn declared(zero: &Server, one: &Server) -> std::sync::Arc<Cluster> {
    let mut wanted = settings(vec![zero.declared(0), one.declared(1)]);
    wanted.sharded = vec![orders()];
    wanted.omnisharded = vec![omni("tenants"), omni("not_there_yet")];
    Cluster::start(wanted)
        .await
        .expect("the cluster can be served")
}

/// Empty nodes become shards, declarations reach all of them, and a second shim with a poorer
/// configuration finds the same database.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_installs_declares_and_converges() {
    let (zero, one) = two_shards().await;
    let cluster = declared(&zero, &one).await;
    let topology = cluster.topology();
    assert_eq!(topology.version, TopologyVersion(1));
    assert_eq!(topology.shards.len(), 2);
    assert_eq!(topology.shards[1].primary, one.address());
    assert_eq!(omni_names(&topology), [omni("tenants")]);
    assert_eq!(topology.sharded[0].position, Some(2));
    for (server, shard) in [(&zero, "0"), (&one, "1")] {
        let sql = "SELECT concat_ws(' ', shard, shards, state) FROM pgdog.topology";
        assert_eq!(server.value(sql).await, format!("{shard} 2 serving"));
        let sql = "SELECT string_agg(shard || role, ' ' ORDER BY shard) FROM pgdog.shards";
        assert_eq!(server.value(sql).await, "0primary 1primary");
        let sql = "SELECT count(*)::text FROM pgdog.sharded_tables";
        assert_eq!(server.value(sql).await, "1");
        let sql = "SELECT count(*)::text FROM pg_prepared_xacts";
        assert_eq!(server.value(sql).await, "0");
    }

    // A stale manifest that knows shard 0 only: the database tells the rest.
    let poorer = start(vec![zero.declared(0)]).await;
    assert_eq!(poorer.topology().shards, topology.shards);
    assert_eq!(poorer.topology().sharded, topology.sharded);

    // A contradiction is told with both sides, and changes nothing.
    let mut other = settings(vec![zero.declared(0), one.declared(1)]);
    other.omnisharded = vec![omni("orders")];
    let fault = Cluster::start(other)
        .await
        .err()
        .expect("orders is sharded");
    assert_eq!(fault.sqlstate(), "55000");
    let said = format!(
        "{} {:?} {:?}",
        fault.message(),
        fault.detail(),
        fault.hint()
    );
    assert!(
        said.contains("omnisharded") && said.contains("tenant_id bigint"),
        "{said}"
    );

    // So is a node that is declared as another shard.
    let swapped = Cluster::start(settings(vec![zero.declared(1), one.declared(0)])).await;
    assert_eq!(swapped.err().expect("swapped").sqlstate(), "55000");

    eventually("the instance is registered", async || {
        let rows = instances::list(&cluster).await.expect("shard 0 answers");
        rows.iter()
            .any(|row| row.instance_id == cluster.instance_id() && row.reachable.len() == 2)
    })
    .await;
    cluster.stop().await;
    let rows = instances::list(&poorer).await.expect("shard 0 answers");
    assert!(
        rows.iter()
            .all(|row| row.instance_id != cluster.instance_id())
    );
    poorer.stop().await;
}

/// Keys are asked once; what is missing is asked again; a change of placement forgets all.
#[tokio::test(flavor = "multi_thread")]
async fn lookups_are_cached_until_the_placement_changes() {
    let (zero, one) = two_shards().await;
    let cluster = declared(&zero, &one).await;
    let key = |key: &str| LookupKey {
        rule: 0,
        key: key.into(),
    };
    let topology = cluster.topology();
    let tenants = "INSERT INTO tenants VALUES (1, 1), (2, 0), (3, NULL), (4, 9)";
    for server in [&zero, &one] {
        server.sql("app", tenants).await;
    }

    let keys = [key("1"), key("2"), key("1")];
    assert_eq!(
        cluster.lookup_many(&topology, &keys).await,
        Ok(vec![ONE, ZERO, ONE])
    );
    assert_eq!(cluster.lookup_stats().loads, 2, "one flight per key");
    for (wrong, retryable) in [("5", true), ("3", true), ("4", false)] {
        let fault = cluster
            .lookup(&topology, &key(wrong))
            .await
            .expect_err(wrong);
        assert_eq!(
            (fault.sqlstate(), fault.retryable()),
            ("58000", retryable),
            "{wrong}"
        );
    }
    zero.sql("app", "INSERT INTO tenants VALUES (5, 1)").await;
    let loads = cluster.lookup_stats().loads;
    let late = async {
        // It is committed on one shard after the other, and somebody asks in between.
        eventually("shard 0 is asked", async || {
            cluster.lookup_stats().loads > loads
        })
        .await;
        one.sql("app", "INSERT INTO tenants VALUES (5, 1)").await;
    };
    let five = key("5");
    let (found, ()) = tokio::join!(cluster.lookup(&topology, &five), late);
    assert_eq!(found, Ok(ONE), "an error is not cached");

    zero.sql("app", "UPDATE tenants SET shard_id = 0 WHERE id = 1")
        .await;
    for server in [&zero, &one] {
        server
            .sql("app", "CREATE TABLE plans (id int PRIMARY KEY)")
            .await;
        server.sql("app", "SELECT pgdog.omni_table('plans')").await;
    }
    let epoch = Epoch(topology.shards[0].epoch.0 + 1);
    let fresh = cluster
        .refresh_epoch(ZERO, epoch)
        .await
        .expect("shard 0 answers");
    assert!(fresh.generation() > topology.generation());
    assert_eq!(cluster.lookup(&fresh, &key("1")).await, Ok(ZERO));

    // What changes without an epoch is noticed too: the place of a key.
    zero.sql("app", "ALTER TABLE orders DROP COLUMN note").await;
    eventually("the key has moved", async || {
        cluster.topology().sharded[0].position == Some(1)
    })
    .await;
    cluster.stop().await;
}

/// A rule for every table with a column finds them, also those that come later; a new declaration
/// arrives by a reload.
#[tokio::test(flavor = "multi_thread")]
async fn rules_without_a_name_find_their_tables() {
    let zero = Server::with_extension().await;
    zero.sql("app", TABLES).await;
    let mut wanted = settings(vec![zero.declared(0)]);
    wanted.sharded = vec![DeclaredTable {
        table: String::new(),
        lookup_query: None,
        lookup_result: "value".into(),
        ..orders()
    }];
    let cluster = Cluster::start(wanted.clone()).await.expect("one shard");
    let names = || {
        let topology = cluster.topology();
        topology
            .sharded
            .iter()
            .map(|table| table.table.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(), ["orders"]);
    zero.sql("app", "CREATE TABLE calls (tenant_id int, at timestamptz)")
        .await;
    eventually("the new table is found", async || {
        names() == ["calls", "orders"]
    })
    .await;

    wanted.omnisharded = vec![omni("tenants")];
    cluster.reload(wanted).await.expect("no contradiction");
    assert_eq!(omni_names(&cluster.topology()), [omni("tenants")]);
    cluster.stop().await;
}

/// A replica's samples follow its replay, are taken quickly while somebody waits, and its promotion
/// is followed within a second or so.
#[tokio::test(flavor = "multi_thread")]
async fn positions_follow_replay_and_roles_follow_promotion() {
    let primary = Server::with_extension().await;
    let replica = Server::replica_of(&primary).await;
    let cluster = start(vec![primary.declared(0), replica.declared(0)]).await;
    assert_eq!(cluster.topology().shards[0].replicas, [replica.address()]);
    let replayed = || {
        let positions = cluster.positions(ZERO);
        let node = positions
            .iter()
            .find(|position| position.role == Role::Replica);
        node.and_then(|position| position.sample.clone())
            .and_then(|sample| sample.replayed)
    };

    primary
        .sql(
            "app",
            "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n",
        )
        .await;
    let lsn = primary
        .value("SELECT pg_current_wal_insert_lsn()::text")
        .await;
    let lsn: pgdog_core::lsn::Lsn = lsn.parse().expect("a position");
    eventually("the replica's sample reaches the commit", async || {
        cluster.wait_for_sample(ZERO).await;
        replayed().is_some_and(|replayed| replayed >= lsn)
    })
    .await;

    let begin = Instant::now();
    for _ in 0..20 {
        cluster.wait_for_sample(ZERO).await;
    }
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "20 samples took {:?}",
        begin.elapsed()
    );

    primary.kill();
    eventually("the lost primary's sample is revoked", async || {
        let positions = cluster.positions(ZERO);
        positions
            .iter()
            .any(|p| p.address == primary.address() && p.sample.is_none())
    })
    .await;
    replica.promote();
    eventually("the promoted replica is the primary", async || {
        cluster.topology().shards[0].primary == replica.address()
    })
    .await;
    assert_eq!(cluster.topology().shards[0].replicas, []);

    // The old primary comes back, and gets nothing.
    primary.start();
    eventually("the old primary answers", async || {
        cluster.error_of(&primary.address()).is_none()
    })
    .await;
    let topology = cluster.refresh().await.expect("both answer");
    assert_eq!(topology.shards[0].primary, replica.address());
    assert_eq!(topology.shards[0].replicas, []);
    let nodes: Vec<_> = cluster
        .positions(ZERO)
        .into_iter()
        .map(|node| node.address)
        .collect();
    assert_eq!(nodes, [replica.address()]);
    cluster.stop().await;
}

/// Transactions left behind by dead coordinators are finished the way their decider says; those of
/// living ones are left alone.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_two_phase_transactions_are_finished() {
    let (zero, one) = two_shards().await;
    let first = declared(&zero, &one).await;
    first.stop().await;
    let dead = Instance::new_id();
    let living = Instance::new_id();
    let gid = |instance: &str, n: u32| format!("pgdog_app_{instance}_0_1_{n}");
    let holder = zero.client("app").await;
    let lock = format!("SELECT pg_advisory_lock(('x{living}')::bit(64)::bigint)");
    holder.batch_execute(&lock).await.expect("free");

    // 1: decided but not told to shard 1. 2: prepared everywhere, undecided. 3: prepared on shard
    // 1, gone from shard 0. 4: as 2, but its coordinator lives.
    for (n, instance) in [(1, &dead), (2, &dead), (4, &living)] {
        prepare(&zero, &gid(instance, n), n, true).await;
        prepare(&one, &gid(instance, n), n, false).await;
    }
    prepare(&one, &gid(&dead, 3), 3, false).await;
    zero.sql("app", &format!("COMMIT PREPARED '{}'", gid(&dead, 1)))
        .await;

    let cluster = start(vec![zero.declared(0), one.declared(1)]).await;
    eventually(
        "only the living coordinator's transaction is left",
        async || {
            let sql = "SELECT coalesce(string_agg(gid, ' '), '') FROM pg_prepared_xacts";
            let left = [zero.value(sql).await, one.value(sql).await];
            left == [gid(&living, 4), gid(&living, 4)]
        },
    )
    .await;
    let ids = "SELECT coalesce(string_agg(id::text, ' '), '') FROM tenants";
    assert_eq!([zero.value(ids).await, one.value(ids).await], ["1", "1"]);

    // It is frozen, so its lock is held for ever: what it left undecided is taken back all the
    // same. Decision rows are purged after a while.
    let mark = format!("gid = '{}:settled'", gid(&dead, 1));
    eventually("the decision is known to be carried out", async || {
        let sql = format!("SELECT count(*)::text FROM pgdog.two_phase_commits WHERE {mark}");
        zero.value(&sql).await == "1"
    })
    .await;
    let age = "UPDATE pgdog.two_phase_commits SET created_at = created_at - interval '1 min'";
    zero.sql("app", age).await;
    eventually("nothing is left", async || {
        let sql = "SELECT (SELECT count(*) FROM pg_prepared_xacts)
                       + (SELECT count(*) FROM pgdog.two_phase_commits)";
        let sql = format!("SELECT ({sql})::text");
        zero.value(&sql).await == "0" && one.value(&sql).await == "0"
    })
    .await;
    drop(holder);
    cluster.stop().await;
}

pub async fn prepare(server: &Server, gid: &str, id: u32, decides: bool) {
    let record = if decides {
        format!("SELECT pgdog.two_phase_record('{gid}');")
    } else {
        "".into()
    };
    let insert = format!("INSERT INTO tenants VALUES ({id}, 0);");
    let sql = format!("BEGIN; {insert} {record} PREPARE TRANSACTION '{gid}'");
    server.sql("app", &sql).await;
}

/// A gid is named after its decider, is in use while it is held, and waits for the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_shows_that_it_lives() {
    let (zero, one) = two_shards().await;
    let cluster = declared(&zero, &one).await;
    let gid = cluster
        .new_gid((ONE, &[]), Epoch(3))
        .await
        .expect("the lock is free");
    assert!(
        gid.starts_with(&format!("pgdog_app_{}_1_3_", cluster.instance_id())),
        "{gid}"
    );
    let locks = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND granted";
    assert_eq!(zero.value(locks).await, "1");

    let kill = "SELECT count(pg_terminate_backend(pid))::text FROM pg_locks
                 WHERE locktype = 'advisory'";
    assert_eq!(zero.value(kill).await, "1");
    eventually("the lock is taken again", async || {
        zero.value(locks).await == "1"
    })
    .await;
    cluster
        .new_gid((ZERO, &[ONE]), Epoch(3))
        .await
        .expect("the lock is held again");
    cluster.stop().await;
    eventually("a stopped coordinator holds nothing", async || {
        zero.value(locks).await == "0"
    })
    .await;
}

/// Without the extension one shard is served, with roles; two are refused with the remedy.
#[tokio::test(flavor = "multi_thread")]
async fn plain_servers_are_one_shard_at_most() {
    let (zero, one) = tokio::join!(Server::primary(), Server::primary());
    let cluster = start(vec![zero.declared(0)]).await;
    assert!(cluster.is_plain());
    assert_eq!(cluster.topology().shards[0].primary, zero.address());
    assert_eq!(
        cluster.positions(ZERO)[0].sample,
        None,
        "nothing vouches for a position"
    );
    cluster.stop().await;

    let two: Vec<DeclaredNode> = vec![zero.declared(0), one.declared(1)];
    let fault = Cluster::start(settings(two))
        .await
        .err()
        .expect("two shards need it");
    assert!(
        fault
            .hint()
            .is_some_and(|hint| hint.contains("CREATE EXTENSION pgdog"))
    );
}
