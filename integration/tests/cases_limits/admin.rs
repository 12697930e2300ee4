//! The admin database, the metrics, and connections that are none of clients.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;
use pgdog_integration::client::{Client, Login, sqlstate};
use pgdog_integration::fixture::{configure, plain};
use pgdog_integration::http::{free_port, get, metric};
use pgdog_integration::wire::{Batch, Message, Wire};
use pgdog_integration::{Cluster, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Clients wait once, for 3 s; then nobody does. Seen in SHOW POOLS and in the metrics.
pub async fn r152_the_oldest_wait_is_the_present_one(cluster: &Cluster) -> anyhow::Result<()> {
    let (metrics, health) = (free_port()?, free_port()?);
    let lines = [
        "default_pool_size = 1".to_owned(),
        "checkout_timeout = 60000".to_owned(),
        format!("openmetrics_port = {metrics}"),
        format!("healthcheck_port = {health}"),
    ];
    configure(cluster, 1, &lines.each_ref().map(String::as_str)).await?;
    let admin = cluster.admin(1).await?;
    let pool = || async {
        let rows = admin.named_rows("SHOW POOLS").await?;
        let port = cluster.shard(0)?.primary.port.to_string();
        let found = rows
            .into_iter()
            .find(|row| row["user"] == "app" && row["port"] == port);
        found.context("no pool of the application")
    };
    let waiter = Client::connect(&cluster.login(1)).await?;
    let holder = Client::connect(&cluster.login(1)).await?;
    holder
        .batch_execute("BEGIN; SELECT count(*) FROM orders WHERE tenant_id = 11")
        .await?;
    let waiting = waiter.value("SELECT count(*) FROM orders WHERE tenant_id = 11");
    let conduct = async {
        wait_until("a wait of 3 s", LIMIT, || async {
            let row = pool().await?;
            ensure!(row["cl_waiting"] == "1" || row["maxwait"] == "0", "{row:?}");
            Ok((row["maxwait"].parse::<u64>()? >= 3).then_some(()))
        })
        .await?;
        holder.batch_execute("COMMIT").await?;
        anyhow::Ok(())
    };
    let (counted, conducted) = tokio::join!(waiting, conduct);
    conducted?;
    counted?;
    let row = pool().await?;
    let now = (
        row["cl_waiting"].as_str(),
        row["maxwait"].as_str(),
        row["maxwait_us"].as_str(),
    );
    ensure!(now == ("0", "0", "0"), "{row:?}");
    ensure!(row["total_wait_us"].parse::<u64>()? >= 3_000_000, "{row:?}");
    let text = get(metrics, "/metrics").await?;
    ensure!(text.ends_with("# EOF\n"), "{text}");
    let port = format!("port=\"{}\"", cluster.shard(0)?.primary.port);
    ensure!(metric(&text, "pgdog_pool_oldest_wait_seconds{user=\"app\"", &port)? == 0.0);
    ensure!(metric(&text, "pgdog_pool_wait_seconds_total{user=\"app\"", &port)? >= 3.0);
    ensure!(metric(&text, "pgdog_logins_total", "accepted")? >= 2.0);
    // Refused logins are counted too.
    let wrong = Login {
        password: "wrong".to_owned(),
        ..plain(cluster, 1)
    };
    ensure!(Client::connect(&wrong).await.is_err());
    let text = get(metrics, "/metrics").await?;
    ensure!(metric(&text, "pgdog_logins_total", "refused")? >= 1.0);
    ensure!(get(health, "/health").await?.starts_with("HTTP/1.1 200"));
    ensure!(get(metrics, "/nothing").await?.starts_with("HTTP/1.1 404"));
    configure(
        cluster,
        1,
        &["default_pool_size = 20", "checkout_timeout = 5000"],
    )
    .await
}

/// The messages' types.
fn tags(messages: &[Message]) -> String {
    messages.iter().map(|message| message.tag).collect()
}

/// Everything that SHOW knows.
const SHOWN: [&str; 17] = [
    "CLIENTS",
    "SERVERS",
    "POOLS",
    "STATS",
    "CONFIG",
    "LISTS",
    "PREPARED",
    "VERSION",
    "BANS",
    "DATABASES",
    "REPLICATION",
    "REPLICATION_SLOTS",
    "TASKS",
    "INSTANCES",
    "LOOKUPS",
    "TOPOLOGY",
    "FLOORS",
];

/// SHOW by every protocol, whatever the case and the semicolons.
pub async fn r153_the_admin_database_answers_every_form_of_a_command(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    configure(cluster, 0, &["cross_shard_disabled = true"]).await?;
    let d = cluster.description();
    let login = Login {
        port: d.port,
        user: d.admin.user.clone(),
        password: d.admin.password.clone(),
        database: d.admin.database.clone(),
        options: String::new(),
    };
    let mut wire = Wire::connect(&login).await?;
    for name in SHOWN {
        let lower = name.to_lowercase();
        for sql in [
            format!("SHOW {name}"),
            format!("show {lower};"),
            format!(" Show {name} ; "),
        ] {
            let answers = wire.query(&sql).await?;
            let shown = tags(&answers);
            ensure!(
                shown.starts_with('T') && shown.ends_with("CZ"),
                "{sql}: {shown}"
            );
            let answers = wire.ask(&Batch::new().run(&sql, &[]).sync()).await?;
            let shown = tags(&answers);
            ensure!(
                shown.starts_with("12") && shown.ends_with("CZ"),
                "{sql}: {shown}"
            );
        }
    }
    for empty in [";", "", " ; "] {
        let shown = tags(&wire.query(empty).await?);
        ensure!(shown == "IZ", "{empty:?}: {shown}");
        let shown = tags(&wire.ask(&Batch::new().run(empty, &[]).sync()).await?);
        ensure!(
            !shown.contains('E') && shown.ends_with('Z'),
            "{empty:?}: {shown}"
        );
    }
    for wrong in [
        "SHOW NOTHING",
        "SHOW POOLS now",
        "SELECT 1",
        "BAN 127.0.0.1 1",
        "SET port TO 1",
    ] {
        let shown = tags(&wire.query(wrong).await?);
        ensure!(shown == "EZ", "{wrong}: {shown}");
    }
    configure(cluster, 0, &["cross_shard_disabled = false"]).await
}

/// Some columns of a table; a setting until the next RELOAD.
pub async fn operators_choose_columns_and_set_settings(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.admin(0).await?;
    let columns = admin.named_rows("SHOW CLIENTS state").await?;
    ensure!(columns.iter().all(|row| row.len() == 5), "{columns:?}");
    admin.batch_execute("SET checkout_timeout TO 4321").await?;
    let value = || async {
        let rows = admin.rows("SHOW CONFIG").await?;
        let found = rows.into_iter().find(|row| row[0] == "checkout_timeout");
        Ok::<_, anyhow::Error>(found.context("no such setting")?[1].clone())
    };
    ensure!(value().await? == "4321");
    admin.batch_execute("RELOAD").await?;
    ensure!(value().await? != "4321", "the files count again");
    Ok(())
}

/// What copies a server's log or data is no client of a sharded database.
pub async fn r154_replication_connections_are_refused_with_a_text(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let d = cluster.description();
    let pg_config = std::env::var("PG_CONFIG").unwrap_or("/usr/bin/pg_config".to_owned());
    let bindir = Command::new(pg_config).arg("--bindir").output()?.stdout;
    let bindir = String::from_utf8(bindir)?.trim().to_owned();
    let dir = tempfile::tempdir()?;
    let to = dir.path().to_string_lossy().into_owned();
    let programs: [(&str, &[&str]); 2] = [
        ("pg_receivewal", &["--no-loop", "-D", &to]),
        ("pg_basebackup", &["-D", &to]),
    ];
    for (program, args) in programs {
        let output = Command::new(format!("{bindir}/{program}"))
            .args(args)
            .args(["-h", "127.0.0.1", "-p", &d.port.to_string(), "-U", &d.user])
            .env("PGPASSWORD", &d.password)
            .output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{program} got in");
        ensure!(
            told.contains("FATAL") && told.contains("replication"),
            "{program}: {told}"
        );
    }
    let node = cluster.primary(1).await?;
    let subscribe = format!(
        "CREATE SUBSCRIPTION through CONNECTION 'host=127.0.0.1 port={} user={} password={} \
         dbname={}' PUBLICATION p",
        d.port, d.user, d.password, d.database
    );
    let refused = node
        .batch_execute(&subscribe)
        .await
        .expect_err("it cannot get in");
    let told = refused
        .as_db_error()
        .context("an answer")?
        .message()
        .to_owned();
    ensure!(
        told.contains("FATAL") && told.contains("replication"),
        "{told}"
    );
    cluster.connect().await?.value("SELECT 1").await?;
    Ok(())
}

/// Whoever is inside a transaction goes on; who begins one waits.
pub async fn a_pause_holds_new_transactions_only(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.admin(0).await?;
    let (inside, outside) = (cluster.connect().await?, cluster.connect().await?);
    let on = |key: i64| format!("SELECT count(*) FROM orders WHERE tenant_id = {key}");
    inside.batch_execute("BEGIN").await?;
    inside.value(&on(11)).await?;
    admin.batch_execute("PAUSE app").await?;
    inside.value(&on(12)).await?;
    inside.batch_execute("COMMIT").await?;
    let waiting = outside.value("SELECT 1");
    tokio::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    ensure!(early.is_err(), "a paused database answered");
    let unknown = admin
        .batch_execute("PAUSE nothing")
        .await
        .expect_err("no such database");
    ensure!(sqlstate(&unknown) == "3D000", "{unknown}");
    admin.batch_execute("RESUME").await?;
    ensure!(waiting.await? == "1");
    Ok(())
}

/// SIGTERM: no new clients, idle ones leave, a transaction is brought to its end.
pub async fn a_stop_lets_transactions_end(cluster: &Cluster) -> anyhow::Result<()> {
    let (idle, busy) = (cluster.connect().await?, cluster.connect().await?);
    busy.batch_execute("BEGIN; INSERT INTO orders VALUES (11, 149, 1, 'stop')")
        .await?;
    cluster.signal_shim(0, Signal::SIGTERM)?;
    wait_until("the end of an idle client", LIMIT, || async {
        Ok(idle.is_closed().then_some(()))
    })
    .await?;
    wait_until("a closed door", LIMIT, || async {
        Ok(cluster.connect().await.is_err().then_some(()))
    })
    .await?;
    busy.batch_execute("COMMIT").await?;
    let node = cluster.primary(0).await?;
    ensure!(
        node.value("SELECT count(*) FROM orders WHERE id = 149")
            .await?
            == "1"
    );
    let pid = cluster.shim_pid(0).context("it ran")?;
    wait_until("the end of the process", LIMIT, || async {
        // Nobody waits for the process, so it may stay as a zombie.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        Ok(status
            .map_or(true, |text| text.contains("State:\tZ"))
            .then_some(()))
    })
    .await?;
    cluster.kill_shim(0).ok();
    cluster.restart_shim(0).await
}
