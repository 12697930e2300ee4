//! Finishing two-phase transactions whose coordinator is gone: the looks and the commands. What
//! they mean is in `recovery`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::cluster::Cluster;
use super::control::Session;
use super::coordinator::LOCK_KEY;
use super::doubt::{self, Doubt, Unfinished};
use super::gid::{GidName, SETTLED, database_part};
use super::pace::Pace;
use super::recovery::{Decider, Look, Upkeep, Verdict, verdict};
use super::trouble;

/// There is no such prepared transaction any more, or somebody is ending it right now.
const GONE: [&str; 2] = ["42704", "55000"];

const ROWS: &str = "SELECT gid,
       extract(epoch FROM pg_catalog.clock_timestamp() - created_at)::bigint
  FROM pgdog.two_phase_commits";
const PREPARED: &str = "SELECT gid,
       extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::bigint
  FROM pg_catalog.pg_prepared_xacts
  WHERE database = pg_catalog.current_database() AND gid LIKE 'pgdog\\_%'";
const IS_STANDBY: &str = "SELECT pg_catalog.pg_is_in_recovery()";
/// What a coordinator has left undecided for so long is taken from it, alive or not: it may be
/// frozen or cut off while its lock lives on, and meanwhile its rows and the gate are locked.
const OVERDUE: &str = "SELECT gid FROM pg_catalog.pg_prepared_xacts
  WHERE database = pg_catalog.current_database() AND gid LIKE 'pgdog\\_%'
    AND pg_catalog.clock_timestamp() - prepared > interval '10 s'";
/// Who waits for one of these would wait for as long as it is in doubt, and not be told why: those
/// that wait for a lock which it holds, and for nobody else (0 among those that block stands for
/// prepared transactions).
const UNBLOCK: &str = "SELECT pg_catalog.pg_cancel_backend(w.pid)
  FROM pg_catalog.pg_prepared_xacts p
  JOIN pg_catalog.pg_locks x ON x.pid IS NULL AND x.transactionid = p.transaction
  JOIN pg_catalog.pg_locks h ON h.pid IS NULL AND h.virtualtransaction = x.virtualtransaction
  JOIN pg_catalog.pg_locks w
    ON NOT w.granted
   AND (w.locktype, w.database, w.relation, w.page, w.tuple, w.transactionid, w.classid, w.objid,
        w.objsubid) IS NOT DISTINCT FROM
       (h.locktype, h.database, h.relation, h.page, h.tuple, h.transactionid, h.classid, h.objid,
        h.objsubid)
  JOIN pg_catalog.pg_stat_activity a ON a.pid = w.pid
 WHERE p.gid = ANY ($1::text[]) AND p.database = pg_catalog.current_database()
   AND a.backend_type = 'client backend' AND a.state = 'active'
   AND pg_catalog.clock_timestamp() - w.waitstart > interval '10 s'
   AND 0 = ANY (pg_catalog.pg_blocking_pids(w.pid))";
/// Only by a node that knows no more shards than those that were listed: a later one may still hold
/// the transaction.
const PURGE: &str = "DELETE FROM pgdog.two_phase_commits
  WHERE gid = ANY($1::text[]) AND (SELECT t.shards FROM pgdog.topology t) = $2";
/// As well; another shim may have done it before.
const MARK: &str = "SELECT pgdog.two_phase_record(g.gid) FROM unnest($1::text[]) g (gid)
  WHERE (SELECT t.shards FROM pgdog.topology t) = $2
    AND NOT EXISTS (SELECT FROM pgdog.two_phase_commits c WHERE c.gid = g.gid)";

/// Looks now and then until the cluster stops.
pub(super) async fn run(cluster: &Cluster) {
    let mut pace = Pace::default();
    loop {
        let finished_some = match once(cluster).await {
            Ok(finished) => finished > 0,
            Err(fault) => {
                tracing::warn!(database = cluster.name(), error = %fault.message(),
                    "two-phase recovery did not finish");
                false
            }
        };
        tokio::select! {
            () = cluster.stopped() => return,
            () = tokio::time::sleep(pace.after(finished_some)) => {}
        }
    }
}

/// One round; how many transactions it went about to finish. What fails for one of them does not
/// keep the others waiting.
async fn once(cluster: &Cluster) -> Result<usize, Fault> {
    let shards = cluster.topology().shards.len();
    if shards < 2 {
        return Ok(0);
    }
    let look = look(cluster).await;
    report(cluster, &look).await;
    let mut finished = 0;
    for (name, others) in look.unfinished() {
        match settle(cluster, &look, &name, &others).await {
            Ok(went_about) => finished += usize::from(went_about),
            Err(fault) => {
                tracing::warn!(database = cluster.name(), gid = %name, error = %fault.message(),
                    "abandoned two-phase transaction not finished");
            }
        }
    }
    tidy(cluster, &look, u16::try_from(shards).unwrap_or(u16::MAX)).await?;
    Ok(finished)
}

/// Whether there was something to do about it.
async fn settle(
    cluster: &Cluster,
    look: &Look,
    name: &GidName,
    others: &BTreeSet<ShardNumber>,
) -> Result<bool, Fault> {
    let mut decider = look.decider(name, true);
    if matches!(decider, Decider::Prepared { .. }) {
        decider = look.decider(name, coordinator_lives(cluster, name).await?);
    }
    match verdict(decider) {
        Verdict::Leave => return Ok(false),
        Verdict::CommitRest => {
            let holds = |names: &BTreeSet<GidName>| names.contains(name);
            let decider = look.prepared.get(&name.decider).is_some_and(holds);
            let all = others
                .iter()
                .copied()
                .chain(decider.then_some(name.decider));
            finish_all(cluster, "COMMIT", name, &all.collect()).await?;
        }
        Verdict::RollbackRest => finish_all(cluster, "ROLLBACK", name, others).await?,
        Verdict::RollbackDeciderFirst => {
            match finish(cluster, "ROLLBACK", name, name.decider).await? {
                Finished::ByUs => finish_all(cluster, "ROLLBACK", name, others).await?,
                // Somebody else decided: the next round sees what.
                Finished::ByAnother => {}
            }
        }
    }
    Ok(true)
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
        let Ok(rows) = gids(cluster, *shard, ROWS).await else {
            continue;
        };
        let names = rows
            .iter()
            .filter_map(|(gid, age_s)| match gid.strip_suffix(SETTLED) {
                None => Some((GidName::parse(gid)?, *age_s)),
                Some(gid) => {
                    look.settled_s.insert(GidName::parse(gid)?, *age_s);
                    None
                }
            });
        let names: BTreeMap<GidName, u64> = names.collect();
        look.early.insert(*shard, names.keys().cloned().collect());
        keep_eldest(&mut look.recorded_s, names);
    }
    for shard in shards.iter().rev() {
        let Ok(rows) = gids(cluster, *shard, PREPARED).await else {
            continue;
        };
        let names = rows
            .iter()
            .filter_map(|(gid, age_s)| Some((GidName::parse(gid)?, *age_s)));
        let names: BTreeMap<GidName, u64> = names.collect();
        look.prepared
            .insert(*shard, names.keys().cloned().collect());
        keep_eldest(&mut look.prepared_s, names);
    }
    let recorded = !look.settled_s.is_empty() || look.early.values().any(|names| !names.is_empty());
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

/// Names as they stand there, and their ages in seconds.
async fn gids(
    cluster: &Cluster,
    shard: ShardNumber,
    sql: &str,
) -> Result<Vec<(String, u64)>, Fault> {
    let rows = session(cluster, shard).await?.query(sql, &[]).await?;
    let gids = rows.iter().map(|row| {
        let age_s = u64::try_from(row.get::<_, i64>(1)).unwrap_or_default();
        (row.get(0), age_s)
    });
    Ok(gids.collect())
}

fn keep_eldest(ages_s: &mut BTreeMap<GidName, u64>, found: BTreeMap<GidName, u64>) {
    for (name, age_s) in found {
        let eldest = ages_s.entry(name).or_default();
        *eldest = age_s.max(*eldest);
    }
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
    let mut held: BTreeMap<ShardNumber, Vec<String>> = BTreeMap::new();
    for one in found.iter().filter(|one| one.doubt == Doubt::InDoubt) {
        for shard in &one.prepared_on {
            held.entry(*shard).or_default().push(one.gid.clone());
        }
    }
    cluster.unfinished.store(Arc::new(found));
    for (shard, gids) in held {
        if let Err(fault) = unblock(cluster, shard, &gids).await {
            tracing::warn!(database = cluster.name(), %shard, error = %fault.message(),
                "statements that wait for a transaction in doubt were not cancelled");
        }
    }
}

async fn unblock(cluster: &Cluster, shard: ShardNumber, gids: &[String]) -> Result<(), Fault> {
    let session = session(cluster, shard).await?;
    let rows = session.query(UNBLOCK, &[&gids]).await?;
    if !rows.is_empty() {
        tracing::warn!(database = cluster.name(), %shard, statements = rows.len(),
            "cancelled what waited for a transaction in doubt");
    }
    Ok(())
}

impl Cluster {
    /// Two-phase transactions that were not finished when recovery looked last.
    pub fn unfinished(&self) -> Arc<Vec<Unfinished>> {
        self.unfinished.load_full()
    }

    /// As [`Cluster::unfinished`], as of now.
    pub async fn look_for_unfinished(&self) -> Vec<Unfinished> {
        doubt::unfinished(&look(self).await)
    }
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
    // One process may know the same nodes by several names.
    if name.instance == cluster.instance_id() && name.database == database_part(cluster.name()) {
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

async fn tidy(cluster: &Cluster, look: &Look, shards: u16) -> Result<(), Fault> {
    for (shard, Upkeep { mark, delete }) in look.upkeep(shards) {
        let session = session(cluster, shard).await?;
        let marks: Vec<String> = mark.iter().map(GidName::settled).collect();
        if !marks.is_empty() {
            match session.query(MARK, &[&marks, &i32::from(shards)]).await {
                Ok(_) => {}
                // Another shim was at it.
                Err(fault) if fault.sqlstate() == "23505" => {}
                Err(fault) => return Err(fault),
            }
        }
        let rows = delete
            .iter()
            .flat_map(|name| [name.to_string(), name.settled()]);
        let rows: Vec<String> = rows.collect();
        if !rows.is_empty() {
            session.query(PURGE, &[&rows, &i32::from(shards)]).await?;
        }
    }
    Ok(())
}

/// The primary of a shard. A standby that is still, or again, taken for one knows of no prepared
/// transactions, and of rows only what it has replayed: nothing must be concluded from that.
pub(super) async fn session(cluster: &Cluster, shard: ShardNumber) -> Result<Arc<Session>, Fault> {
    let topology = cluster.topology();
    let nodes = topology
        .shards
        .get(usize::from(shard.0))
        .ok_or(trouble::no_primary(shard))?;
    let session = cluster.node(&nodes.primary).link.session().await?;
    let rows = session.query(IS_STANDBY, &[]).await?;
    match rows.first().is_none_or(|row| row.get(0)) {
        true => Err(trouble::no_primary(shard)),
        false => Ok(session),
    }
}
