//! Loading the topology: the nodes' own words, put together by `manifest`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgdog_core::fault::Fault;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;

use super::cluster::Cluster;
use super::manifest::{self, Manifest, Seen};
use super::observed::{self, Kept, NodeState};
use super::rules;
use super::topology::{Address, Topology};
use super::trouble;

/// How often the nodes are asked without a reason.
const PERIOD: Duration = Duration::from_secs(1);

/// Callers of a refresh share flights: one that is under way when a caller comes may have asked
/// before the change that the caller has heard of, so he takes the next one, with all others.
#[derive(Default)]
pub(super) struct Flight {
    started: AtomicU64,
    landed: Mutex<(u64, Option<Fault>)>,
}

impl Flight {
    pub(super) async fn join(&self, cluster: &Cluster) -> Result<Arc<Topology>, Fault> {
        let wanted = self.started.load(Ordering::SeqCst) + 1;
        // Cancel safety: a caller that goes away in the middle of its flight leaves `landed` as it
        // was, and the next in the queue flies itself.
        let mut landed = self.landed.lock().await;
        if landed.0 < wanted {
            let number = self.started.fetch_add(1, Ordering::SeqCst) + 1;
            let fault = load(cluster).await.err();
            *landed = (number, fault);
        }
        match &landed.1 {
            None => Ok(cluster.topology()),
            Some(fault) => Err(fault.clone()),
        }
    }
}

/// Refreshes whenever a node says something new, and every second for what changes silently (a
/// dropped column moves the place of a key), until the cluster stops.
pub(super) async fn follow(cluster: &Arc<Cluster>) {
    let mut every = tokio::time::interval(PERIOD);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = cluster.changes();
    let mut failing = false;
    loop {
        watch_new(cluster);
        tokio::select! {
            () = cluster.stopped() => return,
            () = cluster.news().notified() => {}
            _ = every.tick() => {}
        }
        match cluster.refresh().await {
            Ok(_) => failing = false,
            Err(fault) => {
                if !failing {
                    tracing::warn!(database = cluster.name(), error = %fault.message(),
                        "topology not refreshed");
                }
                failing = true;
            }
        }
        if changes.has_changed().unwrap_or(false) {
            changes.mark_unchanged();
            if let Err(fault) = super::install::fill_shards(cluster).await {
                // Tried again at the next change.
                tracing::debug!(database = cluster.name(), error = %fault.message(),
                    "pgdog.shards not brought up to date");
            }
        }
    }
}

fn watch_new(cluster: &Arc<Cluster>) {
    for node in cluster.all_nodes() {
        if node.claim_watch() {
            cluster.watch(node);
        }
    }
}

/// One flight. The nodes are polled *before* the rules are read: rules that are newer than the
/// epochs only cost a refusal, older ones would be wrong.
async fn load(cluster: &Cluster) -> Result<Arc<Topology>, Fault> {
    let answering: Vec<_> = cluster
        .all_nodes()
        .into_iter()
        // Lost nodes are looked after by their own watch; they must not hold up the others.
        .filter(|node| node.view().error.is_none())
        .collect();
    cluster.poll(&answering).await;
    let seen = cluster.seen();
    if manifest::without_extension(&seen, &cluster.settings().nodes)? {
        let manifest = manifest::plain(&seen, &cluster.settings().nodes)?;
        return Ok(store(cluster, manifest, &Kept::default(), Vec::new()));
    }
    let kept = kept(cluster, &seen).await?;
    let unknown: Vec<_> = kept
        .nodes
        .iter()
        .filter(|known| !cluster.knows(&known.address))
        .map(|known| cluster.node(&known.address))
        .collect();
    cluster.poll(&unknown).await;
    let manifest = manifest::converge(&cluster.seen(), &cluster.topology().shards)?;
    let sharded = kept
        .sharded
        .iter()
        .map(rules::sharded_table)
        .collect::<Result<_, _>>()?;
    Ok(store(cluster, manifest, &kept, sharded))
}

fn store(
    cluster: &Cluster,
    manifest: Manifest,
    kept: &Kept,
    sharded: Vec<super::topology::ShardedTable>,
) -> Arc<Topology> {
    let topology = Topology {
        version: manifest.version,
        shards: manifest.shards,
        sharded,
        omnisharded: kept.omnisharded.clone(),
        functions: kept.functions.clone(),
        shadows: kept.shadows.clone(),
        unlisted: cluster.settings().unlisted,
    };
    cluster.store(topology, manifest.behind)
}

/// The rules from the lowest serving primary that answers: a change of placement is committed on
/// the lowest shard first.
async fn kept(cluster: &Cluster, seen: &[Seen]) -> Result<Kept, Fault> {
    let mut failure = trouble::wrong_state(
        "no primary of a serving shard answers",
        "Check that the nodes run and that CREATE EXTENSION pgdog was run on each.",
    );
    for address in serving_primaries(seen) {
        let node = cluster.node(&address);
        let unlisted = cluster.settings().unlisted;
        let read = async { observed::kept(&*node.link.session().await?, unlisted).await };
        match read.await {
            Ok(kept) => return Ok(kept),
            Err(fault) => failure = fault,
        }
    }
    Err(failure)
}

fn serving_primaries(seen: &[Seen]) -> Vec<Address> {
    let mut primaries: Vec<_> = seen
        .iter()
        .filter(|node| !node.facts.in_recovery)
        .filter_map(|node| {
            let facts = node.facts.extension.as_ref()?;
            let serving = facts.state == NodeState::Serving;
            // An old primary that came back is on a lower timeline: it comes last.
            serving.then_some((
                (facts.shard, std::cmp::Reverse(facts.timeline)),
                &node.address,
            ))
        })
        .collect();
    primaries.sort();
    primaries
        .into_iter()
        .map(|(_, address)| address.clone())
        .collect()
}
