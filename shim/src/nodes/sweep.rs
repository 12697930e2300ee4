//! Finishing two-phase transactions whose coordinator is gone: the looks and the commands. What
//! they mean is in `recovery`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::cluster::Cluster;
use super::control::Session;
use super::coordinator::LOCK_KEY;
use super::gid::GidName;
use super::recovery::{Look, Verdict, verdict};
use super::trouble;

/// How often every shim looks.
const PERIOD: Duration = Duration::from_secs(10);
/// There is no such prepared transaction any more, or somebody is ending it right now.
const GONE: [&str; 2] = ["42704", "55000"];

const ROWS: &str = "SELECT gid FROM pgdog.two_phase_commits";
const PREPARED: &str = "SELECT gid FROM pg_catalog.pg_prepared_xacts
  WHERE database = pg_catalog.current_database() AND gid LIKE 'pgdog\\_%'";
/// What a coordinator has left undecided for so long is taken from it, alive or not: it may be
/// frozen or cut off while its lock lives on, and meanwhile its rows and the gate are locked.
const OVERDUE: &str = "SELECT gid FROM pg_catalog.pg_prepared_xacts
  WHERE database = pg_catalog.current_database() AND gid LIKE 'pgdog\\_%'
    AND pg_catalog.clock_timestamp() - prepared > interval '10 s'";
/// Only by a node that knows no more shards than those that were listed: a later one may still hold
/// the transaction.
const PURGE: &str = "DELETE FROM pgdog.two_phase_commits
  WHERE gid = ANY($1::text[]) AND (SELECT t.shards FROM pgdog.topology t) = $2";

/// Looks now and then every ten seconds until the cluster stops.
pub(super) async fn run(cluster: &Cluster) {
    loop {
        if let Err(fault) = once(cluster).await {
            tracing::warn!(database = cluster.name(), error = %fault.message(),
                "two-phase recovery did not finish");
        }
        tokio::select! {
            () = cluster.stopped() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// One round. What fails for one transaction does not keep the others waiting.
pub(super) async fn once(cluster: &Cluster) -> Result<(), Fault> {
    let shards = cluster.topology().shards.len();
    if shards < 2 {
        return Ok(());
    }
    let look = look(cluster).await;
    for (name, others) in look.unfinished() {
        match settle(cluster, &look, &name, &others).await {
            Ok(()) => {}
            Err(fault) => {
                tracing::warn!(database = cluster.name(), gid = %name, error = %fault.message(),
                    "abandoned two-phase transaction not finished");
            }
        }
    }
    purge(cluster, &look, u16::try_from(shards).unwrap_or(u16::MAX)).await
}

async fn settle(
    cluster: &Cluster,
    look: &Look,
    name: &GidName,
    others: &BTreeSet<ShardNumber>,
) -> Result<(), Fault> {
    let lives = coordinator_lives(cluster, name).await?;
    match verdict(look.decider(name, lives)) {
        Verdict::Leave => Ok(()),
        Verdict::CommitRest => finish_all(cluster, "COMMIT", name, others).await,
        Verdict::RollbackRest => finish_all(cluster, "ROLLBACK", name, others).await,
        Verdict::RollbackDeciderFirst => {
            match finish(cluster, "ROLLBACK", name, name.decider).await? {
                Finished::ByUs => finish_all(cluster, "ROLLBACK", name, others).await,
                // Somebody else decided: the next round sees what.
                Finished::ByAnother => Ok(()),
            }
        }
    }
}

/// The order of the statements is what makes the verdicts safe: see `recovery`.
async fn look(cluster: &Cluster) -> Look {
    let mut look = Look::default();
    let shards: Vec<ShardNumber> = cluster
        .topology()
        .shards
        .iter()
        .map(|shard| shard.shard)
        .collect();
    for shard in &shards {
        if let Ok(names) = names(cluster, *shard, ROWS).await {
            look.early.insert(*shard, names);
        }
    }
    for shard in shards.iter().rev() {
        if let Ok(names) = names(cluster, *shard, PREPARED).await {
            look.prepared.insert(*shard, names);
        }
    }
    let deciders: BTreeSet<ShardNumber> =
        look.unfinished().keys().map(|name| name.decider).collect();
    for shard in deciders {
        if let Ok(names) = names(cluster, shard, ROWS).await {
            look.late.insert(shard, names);
        }
    }
    look
}

async fn names(
    cluster: &Cluster,
    shard: ShardNumber,
    sql: &str,
) -> Result<BTreeSet<GidName>, Fault> {
    let rows = session(cluster, shard).await?.query(sql, &[]).await?;
    Ok(rows
        .iter()
        .filter_map(|row| GidName::parse(row.get::<_, &str>(0)))
        .collect())
}

/// For a name of our own: whether it is in use. For another's: whether its lock is held and it is
/// not overdue.
async fn coordinator_lives(cluster: &Cluster, name: &GidName) -> Result<bool, Fault> {
    if name.instance == cluster.instance_id() {
        return Ok(cluster.uses_gid(&name.to_string()));
    }
    if names(cluster, name.decider, OVERDUE).await?.contains(name) {
        return Ok(false);
    }
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l
           JOIN pg_catalog.pg_database d ON d.oid = l.database
          WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND d.datname = pg_catalog.current_database()
            AND (l.classid::bigint << 32) | l.objid::bigint = {LOCK_KEY})"
    );
    let rows = session(cluster, ShardNumber(0))
        .await?
        .query(&sql, &[&name.instance])
        .await?;
    Ok(rows.first().is_none_or(|row| row.get(0)))
}

/// Who ended a prepared transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finished {
    /// We did.
    ByUs,
    /// It was gone: its coordinator or another shim was quicker.
    ByAnother,
}

/// The verdict is known, so it does not matter who carries it out.
async fn finish_all(
    cluster: &Cluster,
    how: &str,
    name: &GidName,
    shards: &BTreeSet<ShardNumber>,
) -> Result<(), Fault> {
    for shard in shards {
        finish(cluster, how, name, *shard).await?;
    }
    Ok(())
}

async fn finish(
    cluster: &Cluster,
    how: &str,
    name: &GidName,
    shard: ShardNumber,
) -> Result<Finished, Fault> {
    let session = session(cluster, shard).await?;
    match session.batch(&format!("{how} PREPARED '{name}'")).await {
        Ok(()) => {
            tracing::info!(database = cluster.name(), shard = %shard, gid = %name, how,
                "finished an abandoned two-phase transaction");
            Ok(Finished::ByUs)
        }
        Err(fault) if GONE.contains(&fault.sqlstate()) => Ok(Finished::ByAnother),
        Err(fault) => Err(fault),
    }
}

async fn purge(cluster: &Cluster, look: &Look, shards: u16) -> Result<(), Fault> {
    for (shard, names) in look.purgeable(shards) {
        let gids: Vec<String> = names.iter().map(GidName::to_string).collect();
        session(cluster, shard)
            .await?
            .query(PURGE, &[&gids, &i32::from(shards)])
            .await?;
    }
    Ok(())
}

async fn session(cluster: &Cluster, shard: ShardNumber) -> Result<Arc<Session>, Fault> {
    let topology = cluster.topology();
    let nodes = topology
        .shards
        .get(usize::from(shard.0))
        .ok_or(trouble::no_primary(shard))?;
    cluster.node(&nodes.primary).link.session().await
}
