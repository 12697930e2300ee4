//! RELOAD: all of a change or nothing, and nobody notices.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::{join_all, try_join};
use nix::sys::signal::Signal;
use pgdog_integration::client::{Client, Login, sqlstate};
use pgdog_integration::fixture::full_size;
use pgdog_integration::{Cluster, wait_until};

use super::{rewrite, with_general};

const LIMIT: Duration = Duration::from_secs(60);

/// 60 s at full size; CI has no more time than shows that reloads come and go.
fn duration() -> Duration {
    Duration::from_secs(if full_size() { 60 } else { 5 })
}

/// Server processes of the application, over all shards.
async fn backends(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let rows = cluster.admin(0).await?.named_rows("SHOW SERVERS").await?;
    let of_app = rows.iter().filter(|row| row["user"] == "app");
    Ok(of_app.map(|row| row["remote_pid"].clone()).collect())
}

/// RELOAD every 200 ms; clients reconnecting all the time, others with open transactions.
pub async fn r145_reloads_disturb_nobody(cluster: &Cluster) -> anyhow::Result<()> {
    // 50 and 20 clients at full size; the pool is large enough for all transactions and a login.
    let (reconnecting, open) = if full_size() { (50, 15) } else { (12, 6) };
    let mut held = Vec::new();
    for nth in 0..open {
        let client = cluster.connect().await?;
        client.batch_execute("BEGIN").await?;
        let sql = format!(
            "INSERT INTO orders VALUES (11, {}, 1, 'r145')",
            145_000 + nth
        );
        client.batch_execute(&sql).await?;
        held.push(client);
    }
    let before = backends(cluster).await?;
    let (stop, logins) = (AtomicBool::new(false), AtomicU64::new(0));
    let reconnect = async {
        let clients = (0..reconnecting).map(|_| async {
            while !stop.load(Ordering::SeqCst) {
                let client = cluster.connect().await?;
                client.value("SELECT 1").await?;
                logins.fetch_add(1, Ordering::SeqCst);
            }
            anyhow::Ok(())
        });
        join_all(clients)
            .await
            .into_iter()
            .collect::<anyhow::Result<()>>()
    };
    let reload = async {
        let admin = cluster.admin(0).await?;
        let deadline = Instant::now() + duration();
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        while Instant::now() < deadline {
            ticks.tick().await;
            admin.batch_execute("RELOAD").await?;
            cluster.signal_shim(0, Signal::SIGHUP)?;
            for client in &held {
                client
                    .value("SELECT count(*) FROM orders WHERE tenant_id = 11")
                    .await?;
            }
        }
        stop.store(true, Ordering::SeqCst);
        anyhow::Ok(())
    };
    // A failed login or a broken transaction ends both with its error.
    try_join(reconnect, reload).await?;
    ensure!(logins.load(Ordering::SeqCst) > 0, "nobody logged in");
    for client in &held {
        client.batch_execute("ROLLBACK").await?;
    }
    let after = backends(cluster).await?;
    ensure!(
        before.is_subset(&after),
        "replaced: {before:?}, then {after:?}"
    );
    Ok(())
}

/// One instance is given other declarations than the other.
pub async fn r146_different_declarations_are_shown_and_nothing_grows(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
        .await?;
    let declared = "\n[[omnisharded_tables]]\ndatabase = \"app\"\ntables = [\"notes\"]\n";
    let before = rewrite(cluster, 0, |text| format!("{text}{declared}"))?;
    let admin = cluster.admin(0).await?;
    admin.batch_execute("RELOAD").await?;
    let configs = || async {
        let rows = admin.named_rows("SHOW INSTANCES").await?;
        Ok::<_, anyhow::Error>(
            rows.iter()
                .map(|row| row["config"].clone())
                .collect::<BTreeSet<_>>(),
        )
    };
    wait_until("the difference in SHOW INSTANCES", LIMIT, || async {
        Ok((configs().await?.len() == 2).then_some(()))
    })
    .await?;
    // Placement has one truth, on the nodes: both instances write to all shards.
    for shim in 0..2_i32 {
        let writer = Client::connect(&cluster.login(shim as usize)).await?;
        let sql = format!("INSERT INTO notes VALUES ({shim}, 'from {shim}')");
        wait_until("the declaration at both instances", LIMIT, || async {
            Ok(writer.batch_execute(&sql).await.is_ok().then_some(()))
        })
        .await?;
    }
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        let rows = node.rows("SELECT id, text FROM notes ORDER BY id").await?;
        ensure!(
            rows == [["0", "from 0"], ["1", "from 1"]],
            "shard {shard}: {rows:?}"
        );
    }
    let plan = admin.named_rows("PLAN SHARD app 2").await?;
    let blocked = plan.iter().any(|row| {
        row.values().any(|v| v == "same configuration") && row.values().any(|v| v == "blocked")
    });
    ensure!(blocked, "growth is not refused: {plan:?}");
    rewrite(cluster, 0, |_| before)?;
    admin.batch_execute("RELOAD").await?;
    wait_until("the same configuration everywhere", LIMIT, || async {
        Ok((configs().await?.len() == 1).then_some(()))
    })
    .await
}

/// A file with several mistakes: each is told, none of it counts.
pub async fn a_bad_file_changes_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.admin(0).await?;
    let config = admin.rows("SHOW CONFIG").await?;
    let before = rewrite(cluster, 0, |text| {
        let text = with_general(text, "default_pool_size", "1");
        with_general(&text, "chekout_timeout", "1").replace("role = \"primary\"", "role = \"boss\"")
    })?;
    let Err(refused) = admin.batch_execute("RELOAD").await else {
        bail!("a bad file was taken");
    };
    let text = refused.as_db_error().context("an answer")?.to_string();
    for part in ["did you mean checkout_timeout?", "boss", "line 2"] {
        ensure!(text.contains(part), "{part} is not told: {text}");
    }
    // The signal has nobody to tell: the process goes on.
    cluster.signal_shim(0, Signal::SIGHUP)?;
    ensure!(admin.rows("SHOW CONFIG").await? == config);
    // A node that does not answer is found out before anything is shown.
    let nowhere = "\n[[databases]]\nname = \"gone\"\nhost = \"127.0.0.1\"\nport = 1\n";
    rewrite(cluster, 0, |_| {
        format!(
            "{}{nowhere}",
            with_general(&before, "default_pool_size", "1")
        )
    })?;
    ensure!(
        admin.batch_execute("RELOAD").await.is_err(),
        "nothing listens on port 1"
    );
    ensure!(admin.rows("SHOW CONFIG").await? == config);
    cluster.connect().await?.value("SELECT 1").await?;
    rewrite(cluster, 0, |_| before)?;
    Ok(())
}

/// A declaration with which a database could not be served any more is refused while it is; a key
/// without effect is told.
pub async fn a_database_in_service_is_not_set_aside(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.admin(0).await?;
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    let config = admin.rows("SHOW CONFIG").await?;
    // Without any database that can be served a file is refused for that.
    let aside = "\n[[databases]]\nname = \"second\"\nhost = \"127.0.0.1\"\n\
                 [[sharded_schemas]]\ndatabase = \"app\"\nname = \"s\"\nshard = 0\n";
    let before = rewrite(cluster, 0, |text| {
        format!("{}{aside}", with_general(text, "default_pool_size", "1"))
    })?;
    let Err(refused) = admin.batch_execute("RELOAD").await else {
        bail!("the database would be served no more");
    };
    let text = refused.as_db_error().context("an answer")?.to_string();
    for part in ["\"app\" is in service", "placement by schema"] {
        ensure!(text.contains(part), "{part} is not told: {text}");
    }
    let log = || std::fs::read_to_string(cluster.dir().join("shim-0.log"));
    let told = log()?.matches("is in service").count();
    cluster.signal_shim(0, Signal::SIGHUP)?;
    wait_until("the signal is refused too", LIMIT, || async {
        Ok((log()?.matches("is in service").count() > told).then_some(()))
    })
    .await?;
    ensure!(admin.rows("SHOW CONFIG").await? == config);
    client.batch_execute("SELECT 1; COMMIT").await?;
    cluster.connect().await?.value("SELECT 1").await?;
    rewrite(cluster, 0, |_| with_general(&before, "mirror_queue", "128"))?;
    admin.batch_execute("RELOAD").await?;
    client.value("SELECT 1").await?;
    let log = log()?;
    ensure!(log.contains("mirror_queue in [general]"), "{log}");
    rewrite(cluster, 0, |_| before)?;
    admin.batch_execute("RELOAD").await?;
    Ok(())
}

/// A new pool size, a new user and a new database count at once; a database that is gone drains.
pub async fn sizes_and_users_and_databases_change_at_reload(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let d = cluster.description();
    let admin = cluster.admin(0).await?;
    let node = cluster.primary(0).await?;
    let port = cluster.shard(0)?.primary.port;
    node.batch_execute("CREATE DATABASE second OWNER app")
        .await?;
    let more = format!("\n[[databases]]\nname = \"second\"\nhost = \"127.0.0.1\"\nport = {port}\n");
    let before = rewrite(cluster, 0, |text| {
        format!("{}{more}", with_general(text, "default_pool_size", "7"))
    })?;
    let users = std::fs::read_to_string(&d.users)?;
    let app = users.replace("database = \"app\"", "databases = [\"app\", \"second\"]");
    std::fs::write(&d.users, &app)?;
    admin.batch_execute("RELOAD").await?;
    for row in admin.named_rows("SHOW POOLS").await? {
        ensure!(row["pool_size"] == "7", "{row:?}");
    }
    let login = Login {
        database: "second".to_owned(),
        options: String::new(),
        ..cluster.login(0)
    };
    let (idle, busy) = (
        Client::connect(&login).await?,
        Client::connect(&login).await?,
    );
    ensure!(idle.value("SELECT current_database()").await? == "second");
    busy.batch_execute("BEGIN; CREATE TABLE kept (a int); INSERT INTO kept VALUES (1)")
        .await?;
    rewrite(cluster, 0, |_| before)?;
    std::fs::write(&d.users, &users)?;
    admin.batch_execute("RELOAD").await?;
    wait_until("the end of an idle client", LIMIT, || async {
        Ok(idle.is_closed().then_some(()))
    })
    .await?;
    let Err(gone) = Client::connect(&login).await else {
        bail!("the database is still served");
    };
    let gone = gone.downcast::<tokio_postgres::Error>()?;
    ensure!(
        ["3D000", "28P01"].contains(&sqlstate(&gone).as_str()),
        "{gone}"
    );
    busy.batch_execute("INSERT INTO kept VALUES (2); COMMIT")
        .await?;
    wait_until("the end of a client that was busy", LIMIT, || async {
        Ok(busy.is_closed().then_some(()))
    })
    .await?;
    let second = Client::connect(&Login {
        database: "second".to_owned(),
        ..pgdog_integration::fixture::direct(cluster, 0)?
    })
    .await?;
    ensure!(second.value("SELECT count(*) FROM kept").await? == "2");
    drop(second);
    wait_until("no server connection to the database", LIMIT, || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'second'";
        Ok((node.value(sql).await? == "0").then_some(()))
    })
    .await?;
    node.batch_execute("DROP DATABASE second").await?;
    cluster.connect().await?.value("SELECT 1").await?;
    Ok(())
}
