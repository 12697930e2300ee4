//! Three temporary servers: shards 0 and 1 of a small shop, and an empty one.

pub mod server;
pub mod shop;
pub mod writers;

use std::sync::Arc;
use std::time::Duration;

use pgdog_core::ids::{ShardNumber, TaskId};
use pgdog_shim::nodes::Address;
use pgdog_shim::workflow::{Outcome, Site, WorkflowError, drive};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use server::Server;

/// How long anything may take on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The cluster under test.
pub struct Shop {
    pub servers: Vec<Server>,
    pub site: Site,
}

impl Shop {
    /// Two shards and an empty server on this port and the two after it.
    pub async fn start(port: u16) -> Self {
        let mut servers = Vec::new();
        for port in port..port + 3 {
            servers.push(Server::start(port));
        }
        let address = |server: &Server| Address {
            host: "127.0.0.1".into(),
            port: server.port,
            database: "app".into(),
        };
        let site = Site {
            dialer: Arc::default(),
            database: "prod".into(),
            instance_id: "00000000000000aa".into(),
            user: "postgres".into(),
            password: None,
            connect_timeout: Duration::from_secs(5),
            cutover_timeout: Some(Duration::from_secs(30)),
            bindir: None,
            serving: servers[..2].iter().map(address).collect(),
            provisioning: vec![(ShardNumber(2), address(&servers[2]))],
        };
        let shop = Self { servers, site };
        shop::create(&shop).await;
        shop
    }

    /// A session in database `app`.
    pub async fn client(&self, shard: usize) -> Client {
        self.servers[shard].client("app").await
    }

    /// Asks shard 0 for shard 2.
    pub async fn add_shard(&self, auto: bool) -> TaskId {
        let row = self
            .client(0)
            .await
            .query_one("SELECT pgdog.add_shard(2, $1)", &[&auto])
            .await;
        TaskId(row.unwrap().get(0))
    }

    /// Drives the task in the background; aborting the handle is as good as killing the shim.
    pub fn drive(&self, task: TaskId) -> JoinHandle<Result<Outcome, WorkflowError>> {
        let site = self.site.clone();
        tokio::spawn(async move {
            let token = CancellationToken::new();
            drive(&site, task, &token, || {}).await
        })
    }

    /// One column of the task's row as text.
    pub async fn task(&self, task: TaskId, column: &str) -> Option<String> {
        let sql = format!("SELECT {column}::text FROM pgdog.tasks WHERE task_id = $1");
        self.client(0)
            .await
            .query_one(&sql, &[&task.0])
            .await
            .unwrap()
            .get(0)
    }

    /// Fails with the task's whole history unless it ended like this.
    pub async fn ended(&self, task: TaskId, status: &str) {
        let sql = "SELECT coalesce(string_agg(format('%s %s -> %s %s', from_status, event, \
             to_status, detail), E'\\n' ORDER BY event_id), '') FROM pgdog.task_events \
             WHERE task_id = $1";
        let events = self
            .client(0)
            .await
            .query_one(sql, &[&task.0])
            .await
            .unwrap();
        let (is, error) = (
            self.task(task, "status").await,
            self.task(task, "error").await,
        );
        let events: String = events.get(0);
        assert_eq!(is.as_deref(), Some(status), "{error:?}\n{events}");
    }

    /// Waits until the task has one of these states; which one.
    pub async fn reaches(&self, task: TaskId, states: &[&str]) -> String {
        let client = self.client(0).await;
        let deadline = Instant::now() + LIMIT;
        loop {
            let sql = "SELECT status, error FROM pgdog.tasks WHERE task_id = $1";
            let row = client.query_one(sql, &[&task.0]).await.unwrap();
            let (status, error): (String, Option<String>) = (row.get(0), row.get(1));
            if states.contains(&status.as_str()) {
                return status;
            }
            assert!(
                !matches!(status.as_str(), "aborted" | "done"),
                "task is {status} while {states:?} was expected: {error:?}"
            );
            assert!(
                Instant::now() < deadline,
                "task is still {status}: {error:?}"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The site with shard 2 serving.
    pub fn grown(&self) -> Site {
        let mut site = self.site.clone();
        site.serving.push(site.provisioning.remove(0).1);
        site
    }
}

/// One number from one query.
pub async fn number(client: &Client, sql: &str) -> i64 {
    client
        .query_one(sql, &[])
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}
