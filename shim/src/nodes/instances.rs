//! The registry of shims on shard 0. It is information: safety does not depend on it.

use std::time::Duration;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::cluster::Cluster;
use super::observed::shard_number;

/// Between two heartbeats. Information only: no safety rests on it.
const PERIOD: Duration = Duration::from_secs(5);

/// One row of `pgdog.instances`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRow {
    /// 16 hex digits.
    pub instance_id: String,
    /// Name.
    pub name: String,
    /// `host:port` for clients.
    pub addr: String,
    /// Version of the shim.
    pub version: String,
    /// The topology that it routes by.
    pub topology_version: i64,
    /// When it started, as PostgreSQL prints it.
    pub started_at: String,
    /// Its last sign of life.
    pub heartbeat_at: String,
    /// Age of that sign, in ms.
    pub heartbeat_age_ms: i64,
    /// Logical databases that it serves.
    pub databases: Vec<String>,
    /// Shards that it can log in to, provisioning ones included.
    pub reachable: Vec<ShardNumber>,
}

/// Beats every five seconds until the cluster stops.
pub(super) async fn run(cluster: &Cluster) {
    let mut silent = false;
    loop {
        match beat(cluster).await {
            Ok(()) => silent = false,
            Err(fault) => {
                if !silent {
                    tracing::warn!(database = cluster.name(), error = %fault.message(),
                        "heartbeat failed");
                }
                silent = true;
            }
        }
        tokio::select! {
            () = cluster.stopped() => return,
            // A heartbeat is a matter of time: the others take who is silent for dead.
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

pub(super) async fn beat(cluster: &Cluster) -> Result<(), Fault> {
    let us = &cluster.settings().instance;
    let version = i64::try_from(cluster.topology().version.0).unwrap_or(i64::MAX);
    let reachable: Vec<i32> = cluster
        .reachable()
        .iter()
        .map(|shard| i32::from(shard.0))
        .collect();
    cluster
        .shard_session(ShardNumber(0))
        .await?
        .query(
            "SELECT pgdog.heartbeat($1::text, $2::text, $3::text, $4::text, $5::bigint,
                                    $6::text[], $7::int[])",
            &[
                &us.instance_id,
                &us.name,
                &us.addr,
                &us.version,
                &version,
                &us.databases,
                &reachable,
            ],
        )
        .await?;
    Ok(())
}

pub(super) async fn deregister(cluster: &Cluster) -> Result<(), Fault> {
    let session = cluster.shard_session(ShardNumber(0)).await?;
    session
        .query(
            "SELECT pgdog.deregister($1::text)",
            &[&cluster.instance_id()],
        )
        .await?;
    Ok(())
}

/// All registered shims, the oldest first.
///
/// # Errors
/// Shard 0 cannot be asked.
pub async fn list(cluster: &Cluster) -> Result<Vec<InstanceRow>, Fault> {
    let rows = cluster
        .shard_session(ShardNumber(0))
        .await?
        .query(
            "SELECT instance_id::text, name::text, addr::text, version::text,
                    topology_version::bigint, started_at::text, heartbeat_at::text,
                    (extract(epoch FROM clock_timestamp() - heartbeat_at) * 1000)::bigint,
                    databases::text[], reachable::int[]
             FROM pgdog.instances ORDER BY pgdog.instances.started_at, 1",
            &[],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| InstanceRow {
            instance_id: row.get(0),
            name: row.get(1),
            addr: row.get(2),
            version: row.get(3),
            topology_version: row.get::<_, Option<i64>>(4).unwrap_or_default(),
            started_at: row.get(5),
            heartbeat_at: row.get(6),
            heartbeat_age_ms: row.get(7),
            databases: row.get::<_, Option<Vec<String>>>(8).unwrap_or_default(),
            reachable: row
                .get::<_, Option<Vec<i32>>>(9)
                .unwrap_or_default()
                .into_iter()
                .filter_map(shard_number)
                .collect(),
        })
        .collect())
}
