//! What the nodes said about themselves -> which shards serve, and where. Pure.
//!
//! The database is right and the configuration may be stale: the highest topology version that any
//! serving node knows wins, and each node is taken for the shard that it says it is.

use pgdog_core::fault::Fault;
use pgdog_core::ids::{ShardNumber, Timeline, TopologyVersion};

use super::observed::{Facts, NodeFacts, NodeState};
use super::settings::DeclaredNode;
use super::topology::{Address, ShardNodes};
use super::trouble;

/// One node that answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Where.
    pub address: Address,
    /// What it said.
    pub facts: Facts,
}

/// The serving shards.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The highest version seen.
    pub version: TopologyVersion,
    /// Index = shard number.
    pub shards: Vec<ShardNodes>,
    /// Shards whose primary does not know that version yet: a flip is being finished there.
    pub behind: Vec<ShardNumber>,
}

/// Puts the picture together. `previous` stands in for a shard whose primary does not answer.
///
/// # Errors
/// No serving node; a shard without any known primary; two primaries for one shard.
pub fn converge(seen: &[Seen], previous: &[ShardNodes]) -> Result<Manifest, Fault> {
    let serving: Vec<(&Address, bool, &NodeFacts)> = seen
        .iter()
        .filter_map(|node| {
            let facts = node.facts.extension.as_ref()?;
            (facts.state == NodeState::Serving).then_some((
                &node.address,
                node.facts.in_recovery,
                facts,
            ))
        })
        .collect();
    // A standby may lag behind its primary but never knows more, so standbys count too: the
    // version must not fall because a primary is away.
    let Some(newest) = serving
        .iter()
        .map(|(_, _, facts)| *facts)
        .max_by_key(|f| f.version)
    else {
        return Err(trouble::wrong_state(
            "no node serves a shard",
            "Check that the nodes run and that CREATE EXTENSION pgdog was run on each.",
        ));
    };
    let mut manifest = Manifest {
        version: newest.version,
        shards: Vec::new(),
        behind: Vec::new(),
    };
    for number in 0..newest.shards {
        let shard = ShardNumber(number);
        let members: Vec<_> = serving
            .iter()
            .filter(|(_, _, facts)| facts.shard == Some(shard))
            .collect();
        let primaries: Vec<_> = members.iter().filter(|(_, standby, _)| !standby).collect();
        let before = previous.get(usize::from(number));
        let replicas_of = |system: Option<&str>| {
            let mut replicas: Vec<Address> = members
                .iter()
                .filter(|(_, standby, facts)| {
                    *standby && system.is_none_or(|system| facts.system_identifier == system)
                })
                .map(|(address, _, _)| (*address).clone())
                .collect();
            replicas.sort();
            replicas
        };
        let nodes = match current_primary(shard, &primaries)? {
            Some((address, facts)) => {
                if facts.version < newest.version {
                    manifest.behind.push(shard);
                }
                ShardNodes {
                    shard,
                    epoch: facts.epoch,
                    primary: address.clone(),
                    replicas: replicas_of(Some(&facts.system_identifier)),
                }
            }
            None => {
                let Some(before) = before else {
                    return Err(trouble::no_primary(shard));
                };
                let mut replicas = replicas_of(None);
                replicas.retain(|address| *address != before.primary);
                ShardNodes {
                    replicas,
                    ..before.clone()
                }
            }
        };
        manifest.shards.push(nodes);
    }
    Ok(manifest)
}

/// The primary with the highest timeline: an old primary that came back after a promotion is on a
/// lower one and gets nothing.
fn current_primary<'a>(
    shard: ShardNumber,
    primaries: &[&&(&'a Address, bool, &'a NodeFacts)],
) -> Result<Option<(&'a Address, &'a NodeFacts)>, Fault> {
    let Some(highest) = primaries.iter().map(|(_, _, facts)| facts.timeline).max() else {
        return Ok(None);
    };
    let mut current = primaries
        .iter()
        .filter(|(_, _, facts)| facts.timeline == highest);
    let Some((address, _, facts)) = current.next() else {
        return Ok(None);
    };
    match current.next() {
        None => one_history(shard, primaries, address, facts),
        // One server may be declared under two addresses.
        Some((_, _, other)) if other.incarnation == facts.incarnation => Ok(Some((address, facts))),
        Some((other, _, _)) => Err(trouble::two_primaries(shard, address, other)),
    }
}

fn one_history<'a>(
    shard: ShardNumber,
    primaries: &[&&(&'a Address, bool, &'a NodeFacts)],
    address: &'a Address,
    facts: &'a NodeFacts,
) -> Result<Option<(&'a Address, &'a NodeFacts)>, Fault> {
    // Timelines of two different clusters of PostgreSQL cannot be compared.
    let stranger = primaries
        .iter()
        .find(|(_, _, other)| other.system_identifier != facts.system_identifier);
    match stranger {
        Some((other, _, _)) => Err(trouble::two_primaries(shard, address, other)),
        None => Ok(Some((address, facts))),
    }
}

/// The picture of a database of one shard whose nodes lack the extension: roles only.
///
/// # Errors
/// More than one shard is declared, or no primary answers.
pub fn plain(seen: &[Seen], declared: &[DeclaredNode]) -> Result<Manifest, Fault> {
    if let Some(node) = declared.iter().find(|node| node.shard != ShardNumber(0)) {
        return Err(trouble::needs_extension(&node.address));
    }
    let shard = ShardNumber(0);
    let mut primaries = seen.iter().filter(|node| !node.facts.in_recovery);
    let Some(primary) = primaries.next() else {
        return Err(trouble::no_primary(shard));
    };
    if let Some(other) = primaries.next() {
        return Err(trouble::two_primaries(
            shard,
            &primary.address,
            &other.address,
        ));
    }
    let mut replicas: Vec<Address> = seen
        .iter()
        .filter(|node| node.facts.in_recovery)
        .map(|node| node.address.clone())
        .collect();
    replicas.sort();
    let nodes = ShardNodes {
        shard,
        epoch: Default::default(),
        primary: primary.address.clone(),
        replicas,
    };
    Ok(Manifest {
        version: TopologyVersion(0),
        shards: vec![nodes],
        behind: Vec::new(),
    })
}

/// Which empty primaries are to be installed as which shard, out of how many.
///
/// # Errors
/// A node says something else than the configuration declares, or only some of several shards are
/// empty although the others were installed for another number of shards.
pub fn to_install(
    seen: &[Seen],
    declared: &[DeclaredNode],
) -> Result<Vec<(Address, ShardNumber, u16)>, Fault> {
    let serving: Vec<&DeclaredNode> = declared.iter().filter(|node| !node.provisioning).collect();
    let shards = serving
        .iter()
        .map(|node| node.shard.0 + 1)
        .max()
        .unwrap_or(0);
    let mut empty = Vec::new();
    let mut installed: Option<(&Address, u16)> = None;
    for node in &serving {
        let Some(seen) = seen.iter().find(|seen| seen.address == node.address) else {
            continue;
        };
        let Some(facts) = &seen.facts.extension else {
            return Err(trouble::needs_extension(&node.address));
        };
        if facts.state == NodeState::Empty {
            if !seen.facts.in_recovery {
                empty.push((node.address.clone(), node.shard, shards));
            }
        } else if facts.shard != Some(node.shard) {
            return Err(trouble::other_shard(&node.address, node.shard, facts.shard));
        } else {
            installed = Some((&node.address, facts.shards));
        }
    }
    match (installed, empty.first()) {
        (Some((address, theirs)), Some((hollow, _, _))) if theirs != shards => {
            Err(trouble::half_installed(hollow, shards, address, theirs))
        }
        _ => Ok(empty),
    }
}

/// True when no serving node has the extension. Errors name one that lacks it while others have it.
///
/// # Errors
/// Some nodes have it and others don't.
pub fn without_extension(seen: &[Seen], declared: &[DeclaredNode]) -> Result<bool, Fault> {
    let serving = |address: &Address| {
        declared
            .iter()
            .any(|node| node.address == *address && !node.provisioning)
    };
    let mut lacking = seen
        .iter()
        .filter(|node| serving(&node.address) && node.facts.extension.is_none());
    let Some(first) = lacking.next() else {
        return Ok(false);
    };
    if seen.iter().any(|node| node.facts.extension.is_some()) {
        return Err(trouble::needs_extension(&first.address));
    }
    Ok(true)
}

/// Timeline of the newest history of a shard, for those who compare tokens.
pub fn timeline_of(seen: &[Seen], shard: ShardNumber) -> Option<Timeline> {
    seen.iter()
        .filter(|node| !node.facts.in_recovery)
        .filter_map(|node| node.facts.extension.as_ref())
        .filter(|facts| facts.shard == Some(shard) && facts.state == NodeState::Serving)
        .map(|facts| facts.timeline)
        .max()
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
