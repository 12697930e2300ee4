//! Two-phase commits that somebody or something disturbs between the phases.
//!
//! A deferred trigger on shard 1 waits for an advisory lock, so its PREPARE waits until a test lets
//! it go on; a stopped backend of shard 0 keeps the decision back.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pgdog_integration::faults::{kill_server, stop_server};
use pgdog_integration::fixture::{configure, count, plain};
use pgdog_integration::http::{free_port, get, metric};
use pgdog_integration::wire::{Batch, Wire, shape};
use pgdog_integration::{Client, Cluster, wait_until};
use tokio::task::JoinHandle;

use crate::equal;
use crate::phases::none_prepared;

pub const LIMIT: Duration = Duration::from_secs(60);

/// The lock that a PREPARE on shard 1 waits for; it is free again when this is dropped.
struct Barrier(Client);

impl Barrier {
    async fn set(cluster: &Cluster, table: &str) -> anyhow::Result<Self> {
        let node = cluster.primary(1).await?;
        for sql in [
            "CREATE OR REPLACE FUNCTION public.wait_at_barrier() RETURNS trigger LANGUAGE plpgsql \
             AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(114); RETURN NULL; END'",
            &format!(
                "CREATE CONSTRAINT TRIGGER barrier AFTER INSERT OR UPDATE ON {table} \
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW \
                 EXECUTE FUNCTION public.wait_at_barrier()"
            ),
            "SELECT pg_advisory_lock(114)",
        ] {
            node.batch_execute(sql).await.context(sql.to_owned())?;
        }
        Ok(Self(node))
    }

    /// Waits until something waits here, and until shard 0 has prepared its part: returns the gid.
    async fn reached(&self, cluster: &Cluster) -> anyhow::Result<String> {
        wait_until("a PREPARE that waits", LIMIT, || async {
            let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            Ok((self.0.value(sql).await? == "1").then_some(()))
        })
        .await?;
        prepared_on(cluster, 0).await
    }

    async fn open(&self) -> anyhow::Result<()> {
        self.0
            .batch_execute("SELECT pg_advisory_unlock(114)")
            .await?;
        Ok(())
    }

    async fn remove(cluster: &Cluster, table: &str) -> anyhow::Result<()> {
        let node = cluster.primary(1).await?;
        let sql = format!("DROP TRIGGER barrier ON {table}; DROP FUNCTION public.wait_at_barrier");
        node.batch_execute(&sql).await.context(sql)
    }
}

async fn prepared_on(cluster: &Cluster, shard: u16) -> anyhow::Result<String> {
    let node = cluster.primary(shard).await?;
    wait_until("a prepared transaction", LIMIT, || async {
        let rows = node.rows("SELECT gid FROM pg_prepared_xacts").await?;
        Ok(rows.into_iter().flatten().next())
    })
    .await
}

/// A backend that has prepared this; it runs again when this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    pub async fn preparer(cluster: &Cluster, shard: u16, gid: &str) -> anyhow::Result<Self> {
        let node = cluster.primary(shard).await?;
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE state = 'idle' \
             AND query = 'PREPARE TRANSACTION ''{gid}'''"
        );
        let pid = wait_until("a server process that has prepared", LIMIT, || async {
            Ok(node.rows(&sql).await?.into_iter().flatten().next())
        });
        let pid = Pid::from_raw(pid.await?.parse()?);
        kill(pid, Signal::SIGSTOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Its server may have been stopped meanwhile.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

pub fn in_background(mut wire: Wire, batch: Batch) -> JoinHandle<anyhow::Result<String>> {
    tokio::spawn(async move { Ok(shape(&wire.ask(&batch).await?)) })
}

/// What an operator is shown of a transaction by a shim: state, and where it is lost.
async fn shown(
    cluster: &Cluster,
    shim: usize,
    gid: &str,
) -> anyhow::Result<Option<(String, String)>> {
    let admin = cluster.admin(shim).await?;
    let rows = admin.named_rows("SHOW TRANSACTIONS").await?;
    let row = rows.into_iter().find(|row| row["gid"] == gid);
    Ok(row.map(|row| (row["state"].clone(), row["lost_on"].clone())))
}

pub async fn r114_a_part_that_was_rolled_back_by_hand_is_told_and_listed(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let barrier = Barrier::set(cluster, "rates").await?;
    let wire = Wire::connect(&plain(cluster, 0)).await?;
    let update = Batch::new().query("UPDATE rates SET pct = 114 WHERE code = 'a'");
    let answer = in_background(wire, update);
    let gid = barrier.reached(cluster).await?;
    let stopped = Stopped::preparer(cluster, 0, &gid).await?;
    barrier.open().await?;
    ensure!(prepared_on(cluster, 1).await? == gid);
    let other = cluster.primary(1).await?;
    other
        .batch_execute(&format!("ROLLBACK PREPARED '{gid}'"))
        .await?;
    drop(stopped);
    let answer = answer.await??;
    ensure!(answer == "E(XX000) Z(I)", "{answer}");
    let pct = "SELECT pct FROM rates WHERE code = 'a'";
    ensure!(cluster.primary(0).await?.value(pct).await? == "114");
    ensure!(other.value(pct).await? != "114");
    for shim in 0..2 {
        let found = shown(cluster, shim, &gid).await?;
        ensure!(
            found == Some(("broken".to_owned(), "1".to_owned())),
            "shim {shim}: {found:?}"
        );
    }
    // The operator repairs it, and says so.
    other
        .batch_execute("UPDATE rates SET pct = 114 WHERE code = 'a'")
        .await?;
    let row = format!("DELETE FROM pgdog.two_phase_commits WHERE gid = '{gid}'");
    cluster.primary(0).await?.batch_execute(&row).await?;
    ensure!(shown(cluster, 1, &gid).await?.is_none());
    Barrier::remove(cluster, "rates").await?;
    equal(cluster).await?;
    none_prepared(cluster).await
}

/// What has been decided is carried out, whoever has decided it.
pub async fn r114_a_decision_by_hand_is_carried_out(cluster: &Cluster) -> anyhow::Result<()> {
    let barrier = Barrier::set(cluster, "rates").await?;
    let wire = Wire::connect(&plain(cluster, 0)).await?;
    let update = Batch::new().query("UPDATE rates SET pct = 1141 WHERE code = 'a'");
    let answer = in_background(wire, update);
    let gid = barrier.reached(cluster).await?;
    let stopped = Stopped::preparer(cluster, 0, &gid).await?;
    barrier.open().await?;
    ensure!(prepared_on(cluster, 1).await? == gid);
    let decider = cluster.primary(0).await?;
    decider
        .batch_execute(&format!("COMMIT PREPARED '{gid}'"))
        .await?;
    drop(stopped);
    let answer = answer.await??;
    ensure!(answer == "C(UPDATE 1) Z(I)", "{answer}");
    none_prepared(cluster).await?;
    Barrier::remove(cluster, "rates").await?;
    let rows = equal(cluster).await?;
    ensure!(rows[0][1] == "1141", "{rows:?}");
    Ok(())
}

/// The copy of an added shard is in `growth_faults`.
pub async fn r115_a_copy_that_loses_a_shard_at_its_end_is_whole_or_not_at_all(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let server = &cluster.shard(1)?.primary;
    let copy = |first: u32| {
        let rows = format!("11\t{first}\t1\tcopied\n12\t{first}\t1\tcopied\n");
        Batch::new()
            .query("COPY orders FROM STDIN")
            .copy_data(rows.as_bytes())
            .copy_done()
    };
    let copied = |id: u32| format!("orders WHERE id = {id}");

    // Killed while it prepares.
    let barrier = Barrier::set(cluster, "orders").await?;
    let wire = Wire::connect(&plain(cluster, 0)).await?;
    let answer = in_background(wire, copy(11_501));
    barrier.reached(cluster).await?;
    let killed = kill_server(server)?;
    let answer = answer.await??;
    killed.restart(cluster, server).await?;
    ensure!(
        answer.contains("E(08") || answer.contains("E(57P"),
        "{answer}"
    );
    none_prepared(cluster).await?;
    for shard in 0..2 {
        ensure!(count(cluster, shard, &copied(11_501)).await? == 0);
    }
    Barrier::remove(cluster, "orders").await?;
    let retried = in_background(Wire::connect(&plain(cluster, 0)).await?, copy(11_501)).await??;
    ensure!(retried.contains("C(COPY 2) Z(I)"), "{retried}");

    // Killed once it has prepared, before the decision: what is decided is carried out.
    let barrier = Barrier::set(cluster, "orders").await?;
    let wire = Wire::connect(&plain(cluster, 0)).await?;
    let answer = in_background(wire, copy(11_502));
    let gid = barrier.reached(cluster).await?;
    let stopped = Stopped::preparer(cluster, 0, &gid).await?;
    barrier.open().await?;
    ensure!(prepared_on(cluster, 1).await? == gid);
    let killed = kill_server(server)?;
    drop(stopped);
    killed.restart(cluster, server).await?;
    let answer = answer.await??;
    ensure!(answer.contains("C(COPY 2) Z(I)"), "{answer}");
    none_prepared(cluster).await?;
    for shard in 0..2 {
        ensure!(count(cluster, shard, &copied(11_501)).await? == 1);
        ensure!(count(cluster, shard, &copied(11_502)).await? == 1);
    }
    Barrier::remove(cluster, "orders").await
}

/// The deciding shard is cut off, so nobody can finish what the other one holds.
pub async fn r116_what_is_in_doubt_is_shown_and_silences_nobody(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let port = free_port()?;
    configure(cluster, 0, &[&format!("openmetrics_port = {port}")]).await?;
    let gid = "pgdog_app_00ff00ff00ff00ff_0.1_1_116";
    let update = "UPDATE orders SET qty = 116 WHERE tenant_id = 12 AND id = 11601";
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    let insert = "INSERT INTO orders VALUES (12, 11601, 1, 'x')";
    ensure!(shape(&wire.query(insert).await?) == "C(INSERT 0 1) Z(I)");
    // Both shims know the key: nobody can look it up without shard 0.
    let mut other = Wire::connect(&plain(cluster, 1)).await?;
    let read = "SELECT qty FROM orders WHERE tenant_id = 12 AND id = 11601";
    ensure!(shape(&other.query(read).await?) == "T D C(SELECT 1) Z(I)");
    ensure!(shape(&wire.query("SET lock_timeout = 300").await?) == "C(SET) Z(I)");
    let server = &cluster.shard(0)?.primary;
    let stopped = stop_server(server).await?;
    let seen = in_doubt(cluster, [wire, other], (gid, update), port).await;
    stopped.restart(cluster, server).await?;
    seen?;
    // It was never prepared on the decider, so it is taken back.
    none_prepared(cluster).await?;
    ensure!(count(cluster, 1, "orders WHERE qty = 116").await? == 0);
    wait_until("an empty list", LIMIT, || async {
        Ok(shown(cluster, 0, gid).await?.is_none().then_some(()))
    })
    .await
}

async fn in_doubt(
    cluster: &Cluster,
    [mut wire, waiting]: [Wire; 2],
    (gid, update): (&str, &str),
    port: u16,
) -> anyhow::Result<()> {
    let node = cluster.primary(1).await?;
    let prepare = format!("BEGIN; {update}; PREPARE TRANSACTION '{gid}'");
    node.batch_execute(&prepare).await?;
    let waiting = in_background(waiting, Batch::new().query(update));
    // Who has a limit gets it from the server.
    let limited = shape(&wire.query(update).await?);
    ensure!(limited == "E(55P03) Z(I)", "with a limit: {limited}");
    for shim in 0..2 {
        wait_until("the admin view", LIMIT, || async {
            let found = shown(cluster, shim, gid).await?;
            Ok(found.filter(|(state, _)| state == "in doubt"))
        })
        .await?;
    }
    wait_until("count and age", LIMIT, || async {
        let page = get(port, "/metrics").await?;
        let state = "state=\"in doubt\"";
        let count = metric(&page, "pgdog_two_phase_transactions", state)?;
        let age_s = metric(&page, "pgdog_two_phase_oldest_seconds", state)?;
        Ok((count == 1.0 && age_s >= 1.0).then_some(()))
    })
    .await?;
    // Nobody else waits for ever.
    let answer = tokio::time::timeout(LIMIT, waiting).await;
    let answer = answer.context("a writer waits and waits")???;
    ensure!(answer == "E(57014) Z(I)", "without a limit: {answer}");
    Ok(())
}
