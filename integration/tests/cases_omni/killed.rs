//! A shim is killed (-9) while its transactions stand at every point of a two-phase commit: another
//! one brings all shards to the same end, and what was acknowledged is there.
//!
//! A deferred trigger waits for the advisory lock that has the number of the point, so a PREPARE
//! waits; a server process that is stopped (SIGSTOP) keeps a COMMIT PREPARED back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{count, plain};
use pgdog_integration::wire::{Batch, Wire};
use pgdog_integration::{Client, Cluster, wait_until};

use crate::doubt::{LIMIT, Stopped, in_background};
use crate::phases::none_prepared;
use crate::says;

/// How long it may take after the kill, with another shim there: part of what is promised.
const AGREED_AFTER: Duration = Duration::from_secs(15);

/// Where a transaction stands; its rows have this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// It has written on both shards.
    Written = 700,
    /// The deciding shard is preparing.
    PreparingDecider = 701,
    /// That one has prepared, the other is preparing.
    PreparingOther = 702,
    /// Both have prepared.
    Prepared = 703,
    /// The deciding shard has committed, the other has only prepared.
    Decided = 704,
    /// The client was told.
    Acknowledged = 705,
}

use Point::{Acknowledged, Decided, Prepared, PreparingDecider, PreparingOther, Written};

impl Point {
    const ALL: [Self; 6] = [
        Written,
        PreparingDecider,
        PreparingOther,
        Prepared,
        Decided,
        Acknowledged,
    ];

    fn begin(self) -> String {
        let id = self as u32;
        format!("BEGIN; INSERT INTO steps VALUES (11, {id}); INSERT INTO steps VALUES (12, {id})")
    }
}

pub async fn killed_at_every_point_of_a_commit_all_shards_agree(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    create(cluster).await?;
    let barriers = [cluster.primary(0).await?, cluster.primary(1).await?];
    close(&barriers[0], PreparingDecider).await?;
    for point in [PreparingOther, Prepared, Decided] {
        close(&barriers[1], point).await?;
    }

    let mut written = Wire::connect(&plain(cluster, 0)).await?;
    let mut acknowledged = Wire::connect(&plain(cluster, 0)).await?;
    let inserted = "C(BEGIN) C(INSERT 0 1) C(INSERT 0 1) Z(T)";
    says(&mut written, &Written.begin(), inserted).await?;
    says(&mut acknowledged, &Acknowledged.begin(), inserted).await?;
    says(&mut acknowledged, "COMMIT", "C(COMMIT) Z(I)").await?;
    let mut waiting = Vec::new();
    for point in [PreparingDecider, PreparingOther, Prepared, Decided] {
        let mut wire = Wire::connect(&plain(cluster, 0)).await?;
        says(&mut wire, &point.begin(), inserted).await?;
        waiting.push(in_background(wire, Batch::new().query("COMMIT")));
    }
    reached(&barriers[0], PreparingDecider).await?;
    let other = reached(&barriers[1], PreparingOther).await?;
    let gid = reached(&barriers[1], Prepared).await?;
    let undecided = Stopped::preparer(cluster, 0, &gid).await?;
    open(&barriers[1], Prepared).await?;
    prepared(&barriers[1], &gid).await?;
    let gid = reached(&barriers[1], Decided).await?;
    let decider = Stopped::preparer(cluster, 0, &gid).await?;
    open(&barriers[1], Decided).await?;
    prepared(&barriers[1], &gid).await?;
    let uncommitted = Stopped::preparer(cluster, 1, &gid).await?;
    drop(decider);
    wait_until("the decision", LIMIT, || async {
        let sql = format!("SELECT count(*) FROM pgdog.two_phase_commits WHERE gid = '{gid}'");
        Ok((barriers[0].value(&sql).await? == "1").then_some(()))
    })
    .await?;

    cluster.kill_shim(0)?;
    let killed = Instant::now();
    // What the servers were doing goes on without it: one part is prepared by a coordinator that
    // is gone, and one when its decider has been rolled back.
    open(&barriers[0], PreparingDecider).await?;
    wait_until("the end of an undecided transaction", LIMIT, || async {
        let sql = format!("SELECT count(*) FROM pg_prepared_xacts WHERE gid = '{other}'");
        Ok((barriers[0].value(&sql).await? == "0").then_some(()))
    })
    .await?;
    open(&barriers[1], PreparingOther).await?;
    none_prepared(cluster).await?;
    let settled = killed.elapsed();
    println!("    settled after {:.1} s", settled.as_secs_f64());
    ensure!(
        settled < AGREED_AFTER,
        "the shards agreed after {settled:?}"
    );
    // Its last words come too late.
    drop(undecided);
    drop(uncommitted);
    for answer in waiting {
        ensure!(answer.await?.is_err(), "somebody was answered");
    }
    agree(cluster).await?;
    cluster.restart_shim(0).await?;
    none_prepared(cluster).await?;
    agree(cluster).await
}

async fn create(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE steps (tenant_id bigint, id bigint, PRIMARY KEY (tenant_id, id))",
        "SELECT pgdog.shard_table('steps', 'tenant_id', lookup_query => \
         'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        node.batch_execute(
            "CREATE FUNCTION public.wait_at_point() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_advisory_xact_lock_shared(NEW.id); RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON steps DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION public.wait_at_point()",
        )
        .await?;
    }
    Ok(())
}

/// Who comes to this point on that shard waits there.
async fn close(node: &Client, point: Point) -> anyhow::Result<()> {
    let sql = format!("SELECT pg_advisory_lock({})", point as u32);
    Ok(node.batch_execute(&sql).await?)
}

async fn open(node: &Client, point: Point) -> anyhow::Result<()> {
    let sql = format!("SELECT pg_advisory_unlock({})", point as u32);
    Ok(node.batch_execute(&sql).await?)
}

/// Waits until a PREPARE waits there; the name of its transaction.
async fn reached(node: &Client, point: Point) -> anyhow::Result<String> {
    let sql = format!(
        "SELECT split_part(a.query, '''', 2) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
          WHERE l.locktype = 'advisory' AND l.objid = {} AND NOT l.granted",
        point as u32
    );
    wait_until(&format!("{point:?}"), LIMIT, || async {
        Ok(node.rows(&sql).await?.into_iter().flatten().next())
    })
    .await
}

async fn prepared(node: &Client, gid: &str) -> anyhow::Result<()> {
    let sql = format!("SELECT count(*) FROM pg_prepared_xacts WHERE gid = '{gid}'");
    wait_until("a prepared part", LIMIT, || async {
        Ok((node.value(&sql).await? == "1").then_some(()))
    })
    .await
}

/// What was decided is on both shards, and nothing else is on any.
async fn agree(cluster: &Cluster) -> anyhow::Result<()> {
    for point in Point::ALL {
        let expected = i64::from(matches!(point, Decided | Acknowledged));
        for shard in 0..2 {
            let rows = format!("steps WHERE id = {}", point as u32);
            let found = count(cluster, shard, &rows).await?;
            ensure!(found == expected, "{point:?}: {found} on shard {shard}");
        }
    }
    Ok(())
}
