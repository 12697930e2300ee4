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
use super::doubt::{self, Doubt, Unfinished};
use super::gid::GidName;
use super::recovery::{Look, Verdict, verdict};
use super::trouble;

/// How often every shim looks.
const PERIOD: Duration = Duration::from_secs(10);
/// There is no such prepared transaction any more, or somebody is ending it right now.
const GONE: [&str; 2] = ["42704", "55000"];

const ROWS: &str = "SELECT gid,
       extract(epoch FROM pg_catalog.clock_timestamp() - created_at)::bigint
  FROM pgdog.two_phase_commits";
const PREPARED: &str = "SELECT gid,
       extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::bigint
  FROM pg_catalog.pg_prepared_xacts
  WHERE database = pg_catalog.current_database() AND gid LIKE 'pgdog\\_%'";
/// What a coordinator has left undecided for so long is taken from it, alive or not: it may be
/// frozen or cut off while its lock lives on, and meanwhile its rows and the gate are locked.
const OVERDUE: &str = "SELECT gid FROM pg_catalog.pg_prepared_xacts
  WHERE database = pg_catalog.current_database() AND gid LIKE 'pgdog\\_%'
    AND pg_catalog.clock_timestamp() - prepared > interval '10 s'";
const HAS_ROW: &str = "SELECT FROM pgdog.two_phase_commits WHERE gid = $1";
/// Who waits for a prepared transaction (0 among those that block) would wait for as long as it is
/// in doubt, and not be told why.
const UNBLOCK: &str = "SELECT pg_catalog.pg_cancel_backend(a.pid)
  FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = pg_catalog.current_database() AND a.wait_event_type = 'Lock'
   AND a.state = 'active' AND pg_catalog.clock_timestamp() - a.query_start > interval '10 s'
   AND 0 = ANY (pg_catalog.pg_blocking_pids(a.pid))";
/// How long a commit that is decided waits for a part whose connection was lost.
const PART_LIMIT: Duration = Duration::from_secs(5);
const PART_PAUSE: Duration = Duration::from_millis(50);
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
    report(cluster, &look).await;
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
        Verdict::CommitRest => {
            let holds = |names: &BTreeSet<GidName>| names.contains(name);
            let decider = look.prepared.get(&name.decider).is_some_and(holds);
            let all = others
                .iter()
                .copied()
                .chain(decider.then_some(name.decider));
            finish_all(cluster, "COMMIT", name, &all.collect()).await
        }
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
        if let Ok(names) = aged_names(cluster, *shard, ROWS, &mut look).await {
            look.early.insert(*shard, names);
        }
    }
    for shard in shards.iter().rev() {
        if let Ok(names) = aged_names(cluster, *shard, PREPARED, &mut look).await {
            look.prepared.insert(*shard, names);
        }
    }
    let recorded = look.early.values().any(|names| !names.is_empty());
    let late = if recorded || !look.unfinished().is_empty() {
        &shards[..]
    } else {
        &[]
    };
    for shard in late.iter().rev() {
        if let Ok(names) = names(cluster, *shard, ROWS).await {
            look.late.insert(*shard, names);
        }
    }
    look
}

async fn aged_names(
    cluster: &Cluster,
    shard: ShardNumber,
    sql: &str,
    look: &mut Look,
) -> Result<BTreeSet<GidName>, Fault> {
    let rows = session(cluster, shard).await?.query(sql, &[]).await?;
    let mut names = BTreeSet::new();
    for row in &rows {
        let Some(name) = GidName::parse(row.get::<_, &str>(0)) else {
            continue;
        };
        let age_s = u64::try_from(row.get::<_, i64>(1)).unwrap_or_default();
        let eldest = look.ages_s.entry(name.clone()).or_default();
        *eldest = age_s.max(*eldest);
        names.insert(name);
    }
    Ok(names)
}

/// Shows what is found, and ends the wait of those whom nobody else would tell.
async fn report(cluster: &Cluster, look: &Look) {
    let found = doubt::unfinished(look);
    let before = cluster.unfinished.load_full();
    for broken in found.iter().filter(|one| one.doubt == Doubt::Broken) {
        let known = |one: &Unfinished| one.doubt == Doubt::Broken && one.gid == broken.gid;
        if !before.iter().any(known) {
            tracing::error!(database = cluster.name(), gid = broken.gid, lost_on = ?broken.lost_on,
                "two-phase transaction is committed on some shards only");
        }
    }
    let in_doubt = found.iter().filter(|one| one.doubt == Doubt::InDoubt);
    let shards: BTreeSet<_> = in_doubt.flat_map(|one| one.prepared_on.clone()).collect();
    cluster.unfinished.store(Arc::new(found));
    for shard in shards {
        if let Err(fault) = unblock(cluster, shard).await {
            tracing::warn!(database = cluster.name(), %shard, error = %fault.message(),
                "statements that wait for a transaction in doubt were not cancelled");
        }
    }
}

async fn unblock(cluster: &Cluster, shard: ShardNumber) -> Result<(), Fault> {
    let rows = session(cluster, shard).await?.query(UNBLOCK, &[]).await?;
    if !rows.is_empty() {
        tracing::warn!(database = cluster.name(), %shard, statements = rows.len(),
            "cancelled what waited for a transaction in doubt");
    }
    Ok(())
}

/// What became of one part of a decided transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It is committed.
    Committed,
    /// It was rolled back, or lost by a failover.
    Lost,
    /// Nobody answers: recovery will see.
    Unknown,
}

impl Cluster {
    /// Commits a part of a decided transaction whose own connection could not, or tells what became
    /// of it.
    pub async fn finish_part(&self, gid: &str, shard: ShardNumber, decider: ShardNumber) -> Part {
        let finishing = async {
            loop {
                match finish_part(self, gid, shard, decider).await {
                    Ok(part) => return part,
                    Err(fault) => tracing::debug!(%shard, gid, error = %fault.message(),
                        "a decided part is not committed yet"),
                }
                tokio::time::sleep(PART_PAUSE).await;
            }
        };
        let finished = tokio::time::timeout(PART_LIMIT, finishing).await;
        finished.unwrap_or(Part::Unknown)
    }

    /// Two-phase transactions that were not finished when recovery looked last.
    pub fn unfinished(&self) -> Arc<Vec<Unfinished>> {
        self.unfinished.load_full()
    }

    /// As [`Cluster::unfinished`], as of now.
    pub async fn look_for_unfinished(&self) -> Vec<Unfinished> {
        doubt::unfinished(&look(self).await)
    }
}

async fn finish_part(
    cluster: &Cluster,
    gid: &str,
    shard: ShardNumber,
    decider: ShardNumber,
) -> Result<Part, Fault> {
    let part = session(cluster, shard).await?;
    match part.batch(&format!("COMMIT PREPARED '{gid}'")).await {
        Ok(()) => return Ok(Part::Committed),
        Err(fault) if fault.sqlstate() == "42704" => {}
        Err(fault) => return Err(fault),
    }
    if !part.query(HAS_ROW, &[&gid]).await?.is_empty() {
        return Ok(Part::Committed);
    }
    // Recovery purges the decider's row first, and only when all is done.
    let decided = session(cluster, decider)
        .await?
        .query(HAS_ROW, &[&gid])
        .await?;
    Ok(match decided.is_empty() {
        true => Part::Committed,
        false => Part::Lost,
    })
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
