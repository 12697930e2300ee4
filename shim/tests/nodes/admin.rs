//! Operator verbs against real servers: what `SHOW` tells is what the nodes say.

use std::sync::Arc;

use crate::support::{Server, eventually, start};
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_shim::admin::host::{ClientRow, Later, PoolRow, ServerRow, StatsRow};
use pgdog_shim::admin::{Admin, Host, Output};
use pgdog_shim::nodes::tasks::{self, AddShard};
use pgdog_shim::nodes::{Cluster, DeclaredNode};

/// A process with one database and one pool.
struct OneDatabase(Arc<Cluster>, PoolRow);

impl Host for OneDatabase {
    fn clusters(&self) -> Vec<Arc<Cluster>> {
        vec![self.0.clone()]
    }

    fn absent(&self) -> Vec<(String, String)> {
        vec![("away".into(), "no answer".into())]
    }

    fn clients(&self) -> Vec<ClientRow> {
        vec![ClientRow {
            user: "O'Hara".into(),
            ..ClientRow::default()
        }]
    }

    fn servers(&self) -> Vec<ServerRow> {
        Vec::new()
    }

    fn pools(&self) -> Vec<PoolRow> {
        vec![self.1.clone()]
    }

    fn stats(&self) -> Vec<StatsRow> {
        Vec::new()
    }

    fn config(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn prepared(&self) -> Vec<(String, String, u64)> {
        Vec::new()
    }

    fn users(&self) -> usize {
        1
    }

    fn bans(&self) -> Vec<(String, u16, u64)> {
        vec![("127.0.0.1".to_owned(), self.1.port, 7)]
    }

    fn ban(&self, _: &str, _: u16, _: bool) -> bool {
        true
    }

    fn pause(&self, _: Option<&str>, _: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn reload(&self) -> Later<'_> {
        Box::pin(async { Ok(()) })
    }

    fn set<'a>(&'a self, _: &'a str, _: &'a str) -> Later<'a> {
        Box::pin(async { Ok(()) })
    }

    fn reconnect(&self) {}

    fn shutdown(&self) {}
}

/// The values of one column.
fn column(output: &Output, name: &str) -> Vec<String> {
    let at = output
        .columns
        .iter()
        .position(|column| *column == name)
        .expect(name);
    output
        .rows
        .iter()
        .map(|row| row[at].clone().unwrap_or_default())
        .collect()
}

/// Every `SHOW` works on a cluster with a replica and a spare, and tells its positions, pools,
/// instances and tasks.
#[tokio::test(flavor = "multi_thread")]
async fn what_operators_see_is_what_the_nodes_say() {
    let (primary, spare) = tokio::join!(Server::with_extension(), Server::with_extension());
    let replica = Server::replica_of(&primary).await;
    let future = DeclaredNode {
        provisioning: true,
        weight: u8::MAX,
        ..spare.declared(1)
    };
    let cluster = start(vec![primary.declared(0), replica.declared(0), future]).await;
    let pool = PoolRow {
        host: "127.0.0.1".into(),
        port: replica.port,
        idle: 2,
        active: 1,
        max_wait_us: 1_500_000,
        ..PoolRow::default()
    };
    let admin = Admin::new(Arc::new(OneDatabase(cluster.clone(), pool)));
    every_verb_answers(&admin).await;
    pools_and_positions(&admin, &replica).await;
    instances_and_tasks(&admin, &cluster).await;
    cluster.stop().await;
}

async fn show(admin: &Admin, text: &str) -> Output {
    admin.run(text).await.expect(text)
}

async fn every_verb_answers(admin: &Admin) {
    for text in [
        "SHOW CLIENTS",
        "SHOW SERVERS",
        "SHOW STATS",
        "SHOW DATABASES",
        "SHOW FLOORS",
        "SHOW LOOKUPS",
        "SHOW PREPARED",
        "SHOW LISTS",
        "SHOW CONFIG",
        "SHOW VERSION",
        "show replication_slots;",
    ] {
        assert_eq!(show(admin, text).await.tag, "SHOW", "{text}");
    }
    assert_eq!(show(admin, " ; ").await, Output::default());
    assert_eq!(
        admin
            .run("SHOW NOTHING")
            .await
            .expect_err("unknown")
            .sqlstate(),
        "42601"
    );
    assert_eq!(
        admin
            .run("SHOW POOLS all")
            .await
            .expect_err("usage")
            .sqlstate(),
        "42601"
    );
}

async fn pools_and_positions(admin: &Admin, replica: &Server) {
    let pools = show(admin, "SHOW POOLS").await;
    assert_eq!(column(&pools, "role"), ["replica"]);
    assert_eq!(column(&pools, "sv_total"), ["3"]);
    let waits = (column(&pools, "maxwait"), column(&pools, "maxwait_us"));
    assert_eq!(waits, (vec!["1".into()], vec!["500000".into()]));

    let nodes = show(admin, "SHOW REPLICATION").await;
    assert_eq!(column(&nodes, "role"), ["primary", "replica"]);
    assert!(
        column(&nodes, "pg_lsn").iter().all(|lsn| lsn.contains('/')),
        "{nodes:?}"
    );
    assert_eq!(column(&nodes, "pg_is_in_recovery"), ["f", "t"]);
    assert_eq!(
        column(&show(admin, "SHOW TOPOLOGY").await, "replicas"),
        [replica.address().to_string()]
    );
    let databases = show(admin, "SHOW DATABASES").await;
    assert_eq!(column(&databases, "provisioning")[..3], ["f", "f", "t"]);
    assert_eq!(column(&databases, "name")[3], "away");
    assert_eq!(column(&databases, "error")[3], "no answer");
}

async fn instances_and_tasks(admin: &Admin, cluster: &Cluster) {
    eventually("the instance and what it reaches are shown", async || {
        let instances = show(admin, "SHOW INSTANCES").await;
        column(&instances, "reachable") == ["0,1"] && column(&instances, "self") == ["t"]
    })
    .await;

    assert_eq!(show(admin, "SHOW TASKS").await.rows.len(), 0);
    let request = AddShard {
        shard: ShardNumber(1),
        auto: false,
        publication: None,
    };
    let task = tasks::add_shard(cluster, &request)
        .await
        .expect("nothing is in the way");
    let fault = tasks::add_shard(cluster, &request)
        .await
        .expect_err("one at a time");
    assert_eq!(fault.sqlstate(), "55000");
    let rows = show(admin, "SHOW TASKS").await;
    assert_eq!(column(&rows, "id"), [task.to_string()]);
    assert_eq!(column(&rows, "scope"), ["app shard 1"]);
    assert_eq!(column(&rows, "status"), ["validating"]);
    let progress = serde_json::json!({ "rows_done": 7, "rows_total": 9 });
    tasks::task_progress(cluster, task, &progress)
        .await
        .expect("an active task");
    assert_eq!(column(&show(admin, "SHOW TASKS").await, "rows_done"), ["7"]);
    let aborted = tasks::task_advance(cluster, task, "guards_failed", None).await;
    assert_eq!(aborted, Ok("aborted".into()));
    let found = tasks::get(cluster, task)
        .await
        .expect("shard 0 answers")
        .expect("kept");
    assert_eq!(
        (found.status().as_str(), found.number("shard")),
        ("aborted", Some(1))
    );
}
