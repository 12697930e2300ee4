//! What the nodes said about themselves -> which shards serve, and where. Pure.
//!
//! The database is right and the configuration may be stale: the highest topology version that any
//! serving node knows wins, and each node is taken for the shard that it says it is.

use pgdog_core::fault::Fault;
use pgdog_core::ids::{ShardNumber, TopologyVersion};

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

/// A serving node with the extension.
#[derive(Clone, Copy)]
struct Member<'a> {
    address: &'a Address,
    standby: bool,
    facts: &'a NodeFacts,
}

/// Puts the picture together. `previous` stands in for a shard whose primary does not answer.
///
/// # Errors
/// No serving node; a shard without any known primary; two primaries for one shard.
pub fn converge(seen: &[Seen], previous: &[ShardNodes]) -> Result<Manifest, Fault> {
    let serving: Vec<Member<'_>> = seen.iter().filter_map(serving_member).collect();
    // A standby may lag behind its primary but never knows more, so standbys count too: the
    // version must not fall because a primary is away.
    let Some(newest) = serving
        .iter()
        .map(|node| node.facts)
        .max_by_key(|facts| facts.version)
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
    for shard in (0..newest.shards).map(ShardNumber) {
        let members: Vec<Member<'_>> = serving
            .iter()
            .copied()
            .filter(|node| node.facts.shard == Some(shard))
            .collect();
        let nodes = match current_primary(shard, &members)? {
            Some(primary) => {
                if primary.facts.version < newest.version {
                    manifest.behind.push(shard);
                }
                ShardNodes {
                    shard,
                    epoch: primary.facts.epoch,
                    primary: primary.address.clone(),
                    replicas: replicas(&members, Some(&primary.facts.system_identifier)),
                }
            }
            None => {
                let before = previous
                    .get(usize::from(shard.0))
                    .ok_or(trouble::no_primary(shard))?;
                ShardNodes {
                    replicas: replicas(&members, None),
                    ..before.clone()
                }
            }
        };
        manifest.shards.push(nodes);
    }
    Ok(manifest)
}

fn serving_member(seen: &Seen) -> Option<Member<'_>> {
    let facts = seen.facts.extension.as_ref()?;
    let serves = facts.state == NodeState::Serving;
    serves.then_some(Member {
        address: &seen.address,
        standby: seen.facts.in_recovery,
        facts,
    })
}

/// The standbys, of one cluster of PostgreSQL when that is known.
fn replicas(members: &[Member<'_>], system: Option<&str>) -> Vec<Address> {
    let mut replicas: Vec<Address> = members
        .iter()
        .filter(|node| {
            node.standby && system.is_none_or(|system| node.facts.system_identifier == system)
        })
        .map(|node| node.address.clone())
        .collect();
    replicas.sort();
    replicas
}

/// The primary with the highest timeline: an old primary that came back after a promotion is on a
/// lower one and gets nothing. Timelines of two clusters of PostgreSQL cannot be compared.
fn current_primary<'a>(
    shard: ShardNumber,
    members: &[Member<'a>],
) -> Result<Option<Member<'a>>, Fault> {
    let primaries = || members.iter().filter(|node| !node.standby);
    let Some(current) = primaries().max_by_key(|node| node.facts.timeline) else {
        return Ok(None);
    };
    let rival = primaries().find(|node| {
        let strange = node.facts.system_identifier != current.facts.system_identifier;
        // One server may be declared under two addresses.
        let other = node.facts.incarnation != current.facts.incarnation;
        strange || (other && node.facts.timeline == current.facts.timeline)
    });
    match rival {
        Some(rival) => Err(trouble::two_primaries(
            shard,
            current.address,
            rival.address,
        )),
        None => Ok(Some(*current)),
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

#[cfg(test)]
#[path = "manifest_tests.rs"]
pub(super) mod tests;
