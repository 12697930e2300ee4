//! Files as PgDog's users have them start the shim, and what it can serve of them is served.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::{Client, Login, describe, sqlstate};
use pgdog_integration::fixture::direct;
use pgdog_integration::http::{free_port, get};
use pgdog_integration::{Cluster, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

const EXAMPLE: &str = include_str!("pgdog/example.toml");
const INTEGRATION: &str = include_str!("pgdog/integration.toml");
const REPLICAS: &str = include_str!("pgdog/replicas.toml");
const USERS: &str = include_str!("pgdog/users.toml");

/// A shim that is none of the cluster's.
struct Shim {
    process: Child,
    port: u16,
    health: u16,
    log: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Shim {
    /// Starts one with a file whose ports are those of the cluster, and waits for its listener.
    async fn start(cluster: &Cluster, file: &str) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let (port, health) = (free_port()?, free_port()?);
        let mut text = file.replace("{port}", &port.to_string());
        let node = cluster.shard(0)?.primary.port;
        text = text.replace("{node}", &node.to_string());
        text = text.replace("{health}", &health.to_string());
        for name in ["{metrics}", "{gone}", "{gone_too}"] {
            text = text.replace(name, &free_port()?.to_string());
        }
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("pgdog.toml"), text)?;
        std::fs::write(path("users.toml"), USERS)?;
        let log = path("log");
        let process = cluster.run_shim(&path("pgdog.toml"), &path("users.toml"), &log)?;
        let shim = Self {
            process,
            port,
            health,
            log,
            _dir: dir,
        };
        wait_until("the listener", LIMIT, || async {
            Ok(shim.log()?.contains("listening").then_some(()))
        })
        .await
        .with_context(|| shim.log().unwrap_or_default())?;
        Ok(shim)
    }

    fn log(&self) -> anyhow::Result<String> {
        read(&self.log)
    }

    async fn connect(&self, database: &str) -> anyhow::Result<Client> {
        Client::connect(&Login {
            port: self.port,
            user: "web".to_owned(),
            password: "web".to_owned(),
            database: database.to_owned(),
            options: String::new(),
        })
        .await
    }

    /// The code and the text with which a login is refused.
    async fn refusal(&self, database: &str) -> anyhow::Result<(String, String)> {
        let Err(error) = self.connect(database).await else {
            anyhow::bail!("{database} lets somebody in");
        };
        let error = error.downcast::<tokio_postgres::Error>()?;
        Ok((sqlstate(&error), describe(&error)))
    }

    /// How many lines of the log speak of something.
    fn told(&self, what: &str) -> anyhow::Result<usize> {
        let log = self.log()?;
        Ok(log.lines().filter(|line| line.contains(what)).count())
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The databases that those files name, on the first server of the cluster.
async fn prepare(cluster: &Cluster) -> anyhow::Result<Client> {
    let superuser = direct(cluster, 0)?;
    let node = Client::connect(&superuser).await?;
    for sql in [
        "CREATE ROLE web SUPERUSER LOGIN PASSWORD 'web'",
        "CREATE DATABASE pgdog",
        "CREATE DATABASE shard_0",
        "CREATE DATABASE shard_1",
    ] {
        node.batch_execute(sql).await.context(sql)?;
    }
    for database in ["shard_0", "shard_1"] {
        let login = Login {
            database: database.to_owned(),
            ..superuser.clone()
        };
        let node = Client::connect(&login).await?;
        node.batch_execute("CREATE EXTENSION pgdog").await?;
        let tables = "CREATE TABLE sharded (id bigint PRIMARY KEY, value text); \
                      CREATE TABLE orders (customer_id bigint, id bigint)";
        node.batch_execute(tables).await?;
    }
    Ok(node)
}

/// What is served of a file is served as it says.
pub async fn files_of_pgdog_start_the_shim(cluster: &Cluster) -> anyhow::Result<()> {
    let node = prepare(cluster).await?;
    example(cluster).await?;
    integration(cluster).await?;
    replicas(cluster, &node).await
}

async fn example(cluster: &Cluster) -> anyhow::Result<()> {
    let shim = Shim::start(cluster, EXAMPLE).await?;
    for key in ["rollback_timeout", "mirror_queue", "[manual_queries]"] {
        ensure!(shim.told(key)? == 1, "{key}: {}", shim.log()?);
    }
    ensure!(shim.told("without TLS")? == 1, "{}", shim.log()?);
    let health = get(shim.health, "/").await?;
    ensure!(health.starts_with("HTTP/1.1 503"), "{health}");
    ensure!(health.contains("without TLS"), "{health}");
    let plain = shim.connect("pgdog").await?;
    ensure!(plain.value("SELECT current_database()").await? == "pgdog");
    let sharded = shim.connect("pgdog_sharded").await?;
    // By the list: 3 on shard 0, 6 on shard 1.
    for (id, shard) in [(3, "shard_0"), (6, "shard_1")] {
        let insert = format!("INSERT INTO sharded VALUES ({id}, 'x')");
        sharded.batch_execute(&insert).await?;
        let select = format!("SELECT current_database() FROM sharded WHERE id = {id}");
        let found = sharded.value(&select).await?;
        ensure!(found == shard, "{id} is on {found}");
    }
    Ok(())
}

async fn integration(cluster: &Cluster) -> anyhow::Result<()> {
    let shim = Shim::start(cluster, INTEGRATION).await?;
    ensure!(shim.told("[memory]")? == 1, "{}", shim.log()?);
    ensure!(
        shim.told("database shard_0 is not in")? == 1,
        "{}",
        shim.log()?
    );
    let plain = shim.connect("pgdog").await?;
    ensure!(plain.value("SELECT 1").await? == "1");
    // Declared otherwise by the example before: the database keeps what it was told first.
    let (code, text) = shim.refusal("pgdog_sharded").await?;
    ensure!(code == "55000", "{code} {text}");
    let listed = shim.connect("single_sharded_list").await?;
    listed
        .batch_execute("INSERT INTO orders VALUES (1, 1)")
        .await?;
    let (code, text) = shim.refusal("failover").await?;
    ensure!(code == "55000", "{code} {text}");
    let (code, text) = shim.refusal("pgdog_schema").await?;
    ensure!(code == "0A000", "{code} {text}");
    ensure!(text.contains("placement by schema"), "{text}");
    let (code, text) = shim.refusal("nowhere").await?;
    ensure!(code == "3D000", "{code} {text}");
    let admin = Client::connect(&Login {
        port: shim.port,
        user: "admin".to_owned(),
        password: "pgdog".to_owned(),
        database: "admin".to_owned(),
        options: String::new(),
    })
    .await?;
    // Those that are served are reason enough to send clients here.
    let health = get(shim.health, "/").await?;
    ensure!(health.starts_with("HTTP/1.1 200"), "{health}");
    let databases = admin.named_rows("SHOW DATABASES").await?;
    for name in ["failover", "pgdog_schema", "pgdog_sharded"] {
        let row = databases.iter().find(|row| row["name"] == name);
        let row = row.with_context(|| format!("{name} is not shown"))?;
        ensure!(row["error"] != "NULL", "{row:?}");
    }
    // What is not served is no reason to refuse a change.
    admin.batch_execute("RELOAD").await?;
    ensure!(plain.value("SELECT 2").await? == "2");
    Ok(())
}

async fn replicas(cluster: &Cluster, node: &Client) -> anyhow::Result<()> {
    let shim = Shim::start(cluster, REPLICAS).await?;
    for database in ["pgdog", "pgdog_sharded"] {
        let client = shim.connect(database).await?;
        ensure!(client.value("SELECT current_database()").await? == "pgdog");
    }
    shim.refusal("later").await?;
    node.batch_execute("CREATE DATABASE later").await?;
    let client = wait_until("the database that came later", LIMIT, || async {
        Ok(shim.connect("later").await.ok())
    })
    .await?;
    ensure!(client.value("SELECT current_database()").await? == "later");
    Ok(())
}
