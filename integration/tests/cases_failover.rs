//! Roles and failover, case by case (R086 to R088).
//!
//! One shard with two replicas; all roles are left to the nodes (`role = "auto"`). The claim that
//! moves the primary comes last.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::{join, try_join_all};
use pgdog_integration::client::{Client, describe, sqlstate};
use pgdog_integration::faults::{self, Killed};
use pgdog_integration::wait::pause;
use pgdog_integration::{Cluster, Shape, claims, fixture, suite, wait_until};

/// For what happens within moments.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let shape = Shape::shards(1).replicas(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r087_reload_under_load_moves_no_write_and_stops_nobody,
            r088_reads_survive_the_loss_of_all_replicas,
            r086_a_promotion_is_followed_and_the_old_primary_returns_as_a_replica,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let config = &cluster.description().shims[0].config;
    let text = std::fs::read_to_string(config)?;
    let text = text.replace("role = \"primary\"", "role = \"auto\"");
    std::fs::write(
        config,
        text.replace("role = \"replica\"", "role = \"auto\""),
    )?;
    cluster.kill_shim(0)?;
    cluster.restart_shim(0).await?;
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE notes (id bigint PRIMARY KEY, body text)")
        .await?;
    Ok(())
}

/// What the clients of a claim have seen.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    next: AtomicI64,
    /// Microseconds.
    longest: AtomicI64,
}

impl Seen {
    fn ran(&self, began: Instant) {
        let us = i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.longest.fetch_max(us, Ordering::Relaxed);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Writes and reads until it is stopped; every error ends it.
async fn write_and_read(cluster: &Cluster, seen: &Seen) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    while seen.goes_on() {
        let id = seen.next.fetch_add(1, Ordering::Relaxed);
        for sql in [
            format!("INSERT INTO notes VALUES ({id}, 'reload')"),
            format!("SELECT body FROM notes WHERE id = {id}"),
        ] {
            let began = Instant::now();
            if let Err(error) = client.rows(&sql).await {
                bail!("{sql}: {}", describe(&error));
            }
            seen.ran(began);
        }
    }
    Ok(())
}

async fn r087_reload_under_load_moves_no_write_and_stops_nobody(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (length, longest_pause) = match fixture::full_size() {
        true => (Duration::from_secs(60), Duration::from_secs(1)),
        // On a machine that does other things meanwhile a pause says little.
        false => (Duration::from_secs(5), LIMIT),
    };
    let seen = Seen::default();
    let clients = try_join_all((0..50).map(|_| write_and_read(cluster, &seen)));
    let reloads = async {
        let (one, other) = (cluster.admin(0).await?, cluster.admin(0).await?);
        let began = Instant::now();
        while began.elapsed() < length {
            // Two at once, too.
            let (first, second) = join(one.rows("RELOAD"), other.rows("RELOAD")).await;
            for done in [first, second] {
                if let Err(error) = done {
                    bail!("RELOAD: {}", describe(&error));
                }
            }
            pause(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    let reloads = async {
        let done = reloads.await;
        seen.stop.store(true, Ordering::Relaxed);
        done
    };
    let (clients, reloads) = join(clients, reloads).await;
    reloads?;
    clients?;
    let longest = Duration::from_micros(seen.longest.load(Ordering::Relaxed).unsigned_abs());
    println!("    longest statement {longest:?}");
    ensure!(longest < longest_pause, "somebody waited {longest:?}");
    Ok(())
}

async fn port_of(client: &Client, sql: &str) -> anyhow::Result<Option<String>> {
    match client.rows(sql).await {
        Ok(rows) => Ok(rows.into_iter().flatten().next()),
        Err(error) => bail!("{sql}: {}", describe(&error)),
    }
}

async fn r088_reads_survive_the_loss_of_all_replicas(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let shard = cluster.shard(0)?;
    let primary = shard.primary.port.to_string();
    let sql = "SELECT current_setting('port')";
    let mut stopped: Vec<Killed> = Vec::new();
    for replica in &shard.replicas {
        stopped.push(faults::stop_server(replica).await?);
    }
    for _ in 0..100 {
        // Wherever it was sent first: the client is answered, and by the one that is left.
        ensure!(port_of(&client, sql).await?.as_ref() == Some(&primary));
    }
    // Who insists on a replica is told, in time.
    client.batch_execute("SET pgdog.role = 'replica'").await?;
    let began = Instant::now();
    let Err(error) = client.rows(sql).await else {
        bail!("a replica answered that does not run");
    };
    let class = sqlstate(&error);
    ensure!(
        ["08", "57", "58"].contains(&class.get(..2).unwrap_or_default()),
        "{}",
        describe(&error)
    );
    ensure!(began.elapsed() < LIMIT, "told after {:?}", began.elapsed());
    client.batch_execute("RESET pgdog.role").await?;
    for (stopped, replica) in stopped.iter().zip(&shard.replicas) {
        stopped.restart(cluster, replica).await?;
        let port = replica.port.to_string();
        wait_until("reads from the returned replica", LIMIT, || async {
            Ok((port_of(&client, sql).await? == Some(port.clone())).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Errors that a client may see while there is no primary.
fn is_of_an_outage(code: &str) -> bool {
    ["08", "57", "58", "53", "XX"].contains(&code.get(..2).unwrap_or_default())
}

/// Inserts rows until it is stopped, and returns those that were acknowledged.
async fn write_through(
    cluster: &Cluster,
    seen: &Seen,
    moved: &AtomicBool,
) -> anyhow::Result<Vec<i64>> {
    let mut client = cluster.connect().await?;
    let mut acknowledged = Vec::new();
    while seen.goes_on() {
        let id = 1_000_000 + seen.next.fetch_add(1, Ordering::Relaxed);
        let was_moved = moved.load(Ordering::Relaxed);
        let sql = format!("INSERT INTO notes VALUES ({id}, 'kept')");
        match client.rows(&sql).await {
            Ok(_) => acknowledged.push(id),
            Err(error) if client.is_closed() => {
                println!("    connection lost: {}", describe(&error));
                client = connect_again(cluster).await?;
            }
            Err(error) => {
                let code = sqlstate(&error);
                let allowed = is_of_an_outage(&code) || (code == "25006" && !was_moved);
                ensure!(allowed, "{}", describe(&error));
            }
        }
    }
    Ok(acknowledged)
}

async fn r086_a_promotion_is_followed_and_the_old_primary_returns_as_a_replica(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (seen, moved) = (Seen::default(), AtomicBool::new(false));
    let writers = try_join_all((0..20).map(|_| write_through(cluster, &seen, &moved)));
    let scene = async {
        let done = fail_over(cluster, &moved).await;
        seen.stop.store(true, Ordering::Relaxed);
        done
    };
    let (acknowledged, done) = join(writers, scene).await;
    done?;
    let acknowledged: Vec<i64> = acknowledged?.concat();
    ensure!(!acknowledged.is_empty(), "nothing was written");
    let promoted = cluster.replica(0, 0).await?;
    let list = format!("{acknowledged:?}").replace(['[', ']'], "");
    let missing = promoted
        .value(&format!(
            "SELECT count(*) FROM unnest('{{{list}}}'::bigint[]) id
              WHERE NOT EXISTS (SELECT FROM notes WHERE notes.id = id.id)"
        ))
        .await?;
    ensure!(missing == "0", "{missing} of {} lost", acknowledged.len());
    // Reads from the returned server are as good as others.
    let client = cluster.connect().await?;
    let port = cluster.shard(0)?.primary.port.to_string();
    wait_until("a read from the returned server", LIMIT, || async {
        let sql = "SELECT current_setting('port')";
        Ok((port_of(&client, sql).await? == Some(port.clone())).then_some(()))
    })
    .await
}

/// Nobody can log in as long as there is no primary.
async fn connect_again(cluster: &Cluster) -> anyhow::Result<Client> {
    wait_until("a new connection", LIMIT, || async {
        Ok(cluster.connect().await.ok())
    })
    .await
}

/// Stops the primary in an orderly way, so that its standbys have everything; promotes the first
/// one; brings the old one back behind its address as a standby.
async fn fail_over(cluster: &Cluster, moved: &AtomicBool) -> anyhow::Result<()> {
    let shard = cluster.shard(0)?;
    let admin = cluster.connect().await?;
    wait_until("some writes", LIMIT, || async {
        let written = "SELECT count(*) > 100 FROM notes WHERE id > 1000000";
        let role = "/* pgdog_role: primary */";
        Ok((admin.value(&format!("{role} {written}")).await? == "t").then_some(()))
    })
    .await?;
    let conninfo = cluster
        .replica(0, 0)
        .await?
        .value("SHOW primary_conninfo")
        .await?;
    let stopped = faults::stop_server(&shard.primary).await?;
    let promoted = cluster.replica(0, 0).await?;
    let began = Instant::now();
    promoted.batch_execute("SELECT pg_promote()").await?;
    let new = shard.replicas[0].port;
    let conninfo = conninfo.replace(
        &format!("port={}", shard.primary.port),
        &format!("port={new}"),
    );
    // The other one follows; and so does the old one when it comes back.
    let follower = cluster.replica(0, 1).await?;
    let follow = [
        format!(
            "ALTER SYSTEM SET primary_conninfo = '{}'",
            conninfo.replace('\'', "''")
        ),
        "ALTER SYSTEM SET primary_slot_name = ''".to_owned(),
        "SELECT pg_reload_conf()".to_owned(),
    ];
    for sql in &follow {
        follower.batch_execute(sql).await.context(sql.clone())?;
    }
    let writer = connect_again(cluster).await?;
    wait_until("writes on the promoted server", LIMIT, || async {
        let sql = "/* pgdog_role: primary */ SELECT current_setting('port')";
        let port = writer.rows(sql).await.unwrap_or_default().concat();
        Ok((port == [new.to_string()]).then_some(()))
    })
    .await?;
    println!("    followed after {:?}", began.elapsed());
    moved.store(true, Ordering::Relaxed);
    let data = &shard.primary.data;
    std::fs::write(data.join("standby.signal"), "")?;
    let conf = data.join("postgresql.auto.conf");
    let mut text = std::fs::read_to_string(&conf)?;
    text.push_str(&format!(
        "primary_conninfo = '{}'\n",
        conninfo.replace('\'', "''")
    ));
    std::fs::write(&conf, text)?;
    stopped.restart(cluster, &shard.primary).await?;
    let returned = cluster.primary(0).await?;
    ensure!(
        returned.value("SELECT pg_is_in_recovery()").await? == "t",
        "the old primary returned as a primary"
    );
    let reached = promoted.value("SELECT pg_current_wal_insert_lsn()").await?;
    returned
        .batch_execute("SET pgdog.wait_lsn_timeout = '60s'")
        .await?;
    returned
        .batch_execute(&format!("SET pgdog.wait_lsn = '{reached}'"))
        .await?;
    Ok(())
}
