//! What is done once, before the listener opens: empty nodes are installed, missing declarations
//! are added, and every shard learns where the nodes are.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use tokio_postgres::Client;

use super::cluster::Cluster;
use super::coordinator::LOCK_KEY;
use super::declare::{self, Missing};
use super::manifest;
use super::observed::NodeState;
use super::position::Role;
use super::settings::DeclaredRole;
use super::topology::{Address, Topology, Unlisted};
use super::trouble;

/// One shim at a time prepares a database: an advisory lock on the first declared primary.
const PREPARE_LOCK: &str = "SET lock_timeout = '30s';
  SELECT pg_catalog.pg_advisory_lock(x'7067646f67736574'::bigint)";
/// How long standbys get to replay what was just installed.
const REPLAY_WAIT: Duration = Duration::from_secs(5);

/// Brings the database to where it can be served, and loads its topology.
pub(super) async fn prepare(cluster: &Cluster) -> Result<(), Fault> {
    let nodes: Vec<_> = cluster
        .settings()
        .nodes
        .iter()
        .map(|node| cluster.node(&node.address))
        .collect();
    cluster.poll(&nodes).await;
    let declared = &cluster.settings().nodes;
    for node in &nodes {
        if let Some(error) = node.view().error {
            tracing::warn!(database = cluster.name(), node = %node.address, error,
                "declared node does not answer");
        }
    }
    tell_other_roles(cluster);
    if manifest::without_extension(&cluster.seen(), declared)? {
        cluster.refresh().await?;
        return Ok(());
    }
    // The guard of the lock is the connection itself.
    let _guard = match first_primary(cluster) {
        Some(address) => Some(lock(cluster, &address).await?),
        None => None,
    };
    // Another shim may have installed them while we waited.
    cluster.poll(&nodes).await;
    install_empty(cluster).await?;
    let topology = cluster.refresh().await?;
    declare_missing(cluster, &topology).await?;
    cluster.refresh().await?;
    fill_shards(cluster).await?;
    if cluster.settings().two_phase_commit
        && topology.shards.len() > 1
        && let Some(fault) = cluster.against_two_phase()
    {
        tracing::warn!(database = cluster.name(), why = %fault,
            "writes to several shards are refused");
    }
    Ok(())
}

/// Roles are the nodes' own; a declared one that differs is worth a word.
fn tell_other_roles(cluster: &Cluster) {
    for node in &cluster.settings().nodes {
        let role = cluster.node(&node.address).view().role;
        let differs = matches!(
            (node.role, role),
            (DeclaredRole::Primary, Some(Role::Replica))
                | (DeclaredRole::Replica, Some(Role::Primary))
        );
        if differs {
            tracing::info!(database = cluster.name(), node = %node.address,
                "the node's role is not the declared one; the node is right");
        }
    }
}

fn first_primary(cluster: &Cluster) -> Option<Address> {
    let seen = cluster.seen();
    let settings = cluster.settings();
    let mut serving: Vec<_> = settings
        .nodes
        .iter()
        .filter(|node| !node.provisioning)
        .collect();
    serving.sort_by_key(|node| node.shard);
    serving
        .into_iter()
        .find(|node| {
            seen.iter()
                .any(|seen| seen.address == node.address && !seen.facts.in_recovery)
        })
        .map(|node| node.address.clone())
}

async fn lock(cluster: &Cluster, address: &Address) -> Result<Client, Fault> {
    let client = cluster.control(address).await?;
    run(&client, address, PREPARE_LOCK).await?;
    // What is declared in two phases must not look abandoned to the other shims. At a reload the
    // coordinator holds the lock already.
    let alive = format!("SELECT pg_catalog.pg_try_advisory_lock_shared({LOCK_KEY})");
    client
        .query(&alive, &[&cluster.instance_id()])
        .await
        .map_err(|error| trouble::from_node(address, &error))?;
    Ok(client)
}

async fn install_empty(cluster: &Cluster) -> Result<(), Fault> {
    let plan = manifest::to_install(&cluster.seen(), &cluster.settings().nodes)?;
    for (address, shard, shards) in &plan {
        let session = cluster.node(address).link.session().await?;
        let numbers = [i32::from(shard.0), i32::from(*shards)];
        session
            .query(
                "SELECT pgdog.install_node($1::int, $2::int)::text",
                &[&numbers[0], &numbers[1]],
            )
            .await?;
        tracing::info!(database = cluster.name(), node = %address, shard = %shard, shards,
            "node installed");
    }
    if plan.is_empty() {
        return Ok(());
    }
    let deadline = Instant::now() + REPLAY_WAIT;
    loop {
        cluster.poll(&cluster.all_nodes()).await;
        if !has_empty_standby(cluster) || Instant::now() > deadline {
            return Ok(());
        }
        // A standby does not tell when it has replayed the installation.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn has_empty_standby(cluster: &Cluster) -> bool {
    let settings = cluster.settings();
    let serving = |address: &Address| {
        let mut nodes = settings.nodes.iter();
        nodes.any(|node| node.address == *address && !node.provisioning)
    };
    cluster.seen().iter().any(|seen| {
        let state = seen.facts.extension.as_ref().map(|node| node.state);
        serving(&seen.address) && seen.facts.in_recovery && state == Some(NodeState::Empty)
    })
}

/// Adds what the shards lack, on all of them in one transaction.
async fn declare_missing(cluster: &Cluster, topology: &Topology) -> Result<(), Fault> {
    let mut lacking = Vec::new();
    for nodes in &topology.shards {
        let address = &nodes.primary;
        let missing = missing_on(cluster, address).await?;
        if !missing.is_empty() {
            lacking.push((nodes.shard, address.clone(), missing));
        }
    }
    let mut open = Vec::new();
    for (shard, address, missing) in &lacking {
        let client = cluster.control(address).await?;
        run(&client, address, "BEGIN").await?;
        for declaration in missing {
            declare_one(&client, address, declaration).await?;
        }
        tracing::info!(database = cluster.name(), shard = %shard, declarations = missing.len(),
            "declarations of the configuration added");
        open.push((*shard, address.clone(), client));
    }
    commit_everywhere(cluster, &open).await
}

async fn missing_on(cluster: &Cluster, address: &Address) -> Result<Vec<Missing>, Fault> {
    let settings = cluster.settings();
    let session = cluster.node(address).link.session().await?;
    let kept = super::observed::kept(&session, Unlisted::Refused).await?;
    let rows = session
        .query(
            "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relkind IN ('r', 'p')",
            &[],
        )
        .await?;
    let tables: HashSet<(String, String)> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    declare::missing(&settings.sharded, &settings.omnisharded, &kept, &tables)
}

async fn declare_one(client: &Client, address: &Address, missing: &Missing) -> Result<(), Fault> {
    let done = match missing {
        Missing::Omnisharded(schema, name) => {
            let name = qualified(schema, name);
            client
                .query("SELECT pgdog.omni_table($1::text)::text", &[&name])
                .await
        }
        Missing::Sharded(table) => {
            let name = qualified(&table.schema, &table.table);
            client
                .query(
                    "SELECT pgdog.shard_table($1::text, $2::text, $3::text, $4::text, $5::text,
                                              ($6::text)::jsonb)::text",
                    &[
                        &name,
                        &table.column,
                        &table.data_type,
                        &table.lookup_query,
                        &table.lookup_result,
                        &table.mapping,
                    ],
                )
                .await
        }
    };
    done.map(drop)
        .map_err(|error| trouble::from_node(address, &error))
}

/// `"schema"."table"` as `to_regclass` reads it; empty for every table.
fn qualified(schema: &str, table: &str) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    match table {
        "" => String::new(),
        table => format!("{}.{}", quoted(schema), quoted(table)),
    }
}

/// Commits the open transactions, by two-phase commit when there are several. The lowest shard
/// decides, as for a client's transaction; if we die here, recovery finishes it.
async fn commit_everywhere(
    cluster: &Cluster,
    open: &[(ShardNumber, Address, Client)],
) -> Result<(), Fault> {
    let Some((decider, first, client)) = open.first() else {
        return Ok(());
    };
    let two_phase = cluster.settings().two_phase_commit && cluster.against_two_phase().is_none();
    // Without it, what is left out is declared at the next start.
    if open.len() == 1 || !two_phase {
        for (_, address, client) in open {
            run(client, address, "COMMIT").await?;
        }
        return Ok(());
    }
    // Only the decider has a row of it.
    let gid = cluster
        .coordinator
        .name(cluster, (*decider, &[]), Default::default());
    run(
        client,
        first,
        &format!("SELECT pgdog.two_phase_record('{gid}')"),
    )
    .await?;
    for (_, address, client) in open {
        run(client, address, &format!("PREPARE TRANSACTION '{gid}'")).await?;
    }
    for (_, address, client) in open {
        run(client, address, &format!("COMMIT PREPARED '{gid}'")).await?;
    }
    Ok(())
}

async fn run(client: &Client, address: &Address, sql: &str) -> Result<(), Fault> {
    client
        .batch_execute(sql)
        .await
        .map_err(|error| trouble::from_node(address, &error))
}

const FILL: &str = "
INSERT INTO pgdog.shards AS known (shard, role, host, port, database_name)
SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::int[], $5::text[])
ON CONFLICT (host, port, database_name) DO UPDATE
   SET shard = excluded.shard, role = excluded.role
 WHERE (known.shard, known.role) IS DISTINCT FROM (excluded.shard, excluded.role)";

/// Writes where the nodes are to every serving shard that does not know it.
pub(super) async fn fill_shards(cluster: &Cluster) -> Result<(), Fault> {
    if cluster.is_plain() {
        return Ok(());
    }
    let topology = cluster.topology();
    let known: Vec<(&str, ShardNumber, &Address)> = topology
        .shards
        .iter()
        .flat_map(|shard| {
            let replicas = shard
                .replicas
                .iter()
                .map(|address| ("replica", shard.shard, address));
            std::iter::once(("primary", shard.shard, &shard.primary)).chain(replicas)
        })
        .collect();
    let numbers: Vec<i32> = known
        .iter()
        .map(|(_, shard, _)| i32::from(shard.0))
        .collect();
    let roles: Vec<&str> = known.iter().map(|(role, _, _)| *role).collect();
    let hosts: Vec<&str> = known
        .iter()
        .map(|(_, _, address)| address.host.as_str())
        .collect();
    let ports: Vec<i32> = known
        .iter()
        .map(|(_, _, address)| i32::from(address.port))
        .collect();
    let names: Vec<&str> = known
        .iter()
        .map(|(_, _, address)| address.database.as_str())
        .collect();
    for shard in &topology.shards {
        let session = cluster.node(&shard.primary).link.session().await?;
        session
            .query(FILL, &[&numbers, &roles, &hosts, &ports, &names])
            .await?;
    }
    Ok(())
}
