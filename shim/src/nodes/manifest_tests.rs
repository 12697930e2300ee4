//! Claims about `manifest`: a picture is put together from what nodes said, never from hope.

use pgdog_core::ids::{Epoch, Incarnation, Timeline};

use super::*;
use crate::nodes::settings::DeclaredRole;

fn address(port: u16) -> Address {
    Address {
        host: "h".into(),
        port,
        database: "app".into(),
    }
}

/// A serving node: port, shard, shards, version.
pub(in crate::nodes) fn node(port: u16, shard: u16, shards: u16, version: u64) -> Seen {
    Seen {
        address: address(port),
        facts: Facts {
            in_recovery: false,
            extension: Some(NodeFacts {
                system_identifier: format!("s{shard}"),
                timeline: Timeline(1),
                incarnation: Incarnation(format!("i{port}")),
                replayed: None,
                received: None,
                lag_ms: None,
                shard: Some(ShardNumber(shard)),
                shards,
                epoch: Epoch(version),
                version: TopologyVersion(version),
                state: NodeState::Serving,
                max_prepared: 10,
            }),
        },
    }
}

fn changed(mut seen: Seen, change: impl FnOnce(&mut Facts, &mut NodeFacts)) -> Seen {
    let mut node = seen
        .facts
        .extension
        .take()
        .expect("test nodes have the extension");
    change(&mut seen.facts, &mut node);
    seen.facts.extension = Some(node);
    seen
}

fn replica(port: u16, shard: u16, shards: u16, version: u64) -> Seen {
    changed(node(port, shard, shards, version), |facts, _| {
        facts.in_recovery = true
    })
}

fn empty(port: u16) -> Seen {
    changed(node(port, 0, 0, 0), |_, node| {
        node.state = NodeState::Empty;
        node.shard = None;
    })
}

fn declared(port: u16, shard: u16, provisioning: bool) -> DeclaredNode {
    DeclaredNode {
        shard: ShardNumber(shard),
        address: address(port),
        role: DeclaredRole::Auto,
        provisioning,
        weight: u8::MAX,
    }
}

#[test]
fn roles_come_from_the_nodes() {
    let seen = [
        replica(11, 0, 2, 1),
        node(10, 0, 2, 1),
        node(20, 1, 2, 1),
        replica(21, 1, 2, 1),
    ];
    let manifest = converge(&seen, &[]).expect("complete");
    assert_eq!(manifest.version, TopologyVersion(1));
    assert_eq!(manifest.shards[0].primary, address(10));
    assert_eq!(manifest.shards[0].replicas, [address(11)]);
    assert_eq!(manifest.shards[1].primary, address(20));
    assert_eq!(manifest.behind, []);
}

#[test]
fn highest_version_wins_and_names_the_shards_behind() {
    // The flip was decided on the new shard and on shard 1, shard 0 is still to be told.
    let seen = [node(10, 0, 2, 1), node(20, 1, 3, 2), node(30, 2, 3, 2)];
    let manifest = converge(&seen, &[]).expect("complete");
    assert_eq!(
        (manifest.version, manifest.shards.len()),
        (TopologyVersion(2), 3)
    );
    assert_eq!(manifest.behind, [ShardNumber(0)]);
    assert_eq!(
        manifest.shards[0].epoch,
        Epoch(1),
        "each shard is compared with its own epoch"
    );
}

#[test]
fn a_provisioning_or_empty_node_serves_nothing() {
    let fresh = changed(node(30, 2, 3, 2), |_, node| {
        node.state = NodeState::Provisioning
    });
    let manifest = converge(
        &[node(10, 0, 2, 1), node(20, 1, 2, 1), fresh, empty(40)],
        &[],
    )
    .expect("two");
    assert_eq!(manifest.shards.len(), 2);
}

#[test]
fn a_promoted_replica_beats_the_old_primary_that_came_back() {
    let promoted = changed(node(11, 0, 1, 1), |_, node| node.timeline = Timeline(2));
    let manifest = converge(&[node(10, 0, 1, 1), promoted], &[]).expect("one");
    assert_eq!(manifest.shards[0].primary, address(11));
    assert_eq!(
        manifest.shards[0].replicas,
        [],
        "the old primary serves nothing at all"
    );
}

#[test]
fn two_primaries_on_one_timeline_are_refused() {
    assert!(converge(&[node(10, 0, 1, 1), node(11, 0, 1, 1)], &[]).is_err());
}

#[test]
fn a_higher_timeline_of_a_strange_cluster_is_refused() {
    let stranger = changed(node(11, 0, 1, 1), |_, node| {
        node.timeline = Timeline(9);
        node.system_identifier = "other".into();
    });
    assert!(converge(&[node(10, 0, 1, 1), stranger], &[]).is_err());
}

#[test]
fn one_server_under_two_addresses_is_one_primary() {
    let twin = changed(node(11, 0, 1, 1), |_, node| {
        node.incarnation = Incarnation("i10".into());
    });
    assert!(converge(&[node(10, 0, 1, 1), twin], &[]).is_ok());
}

#[test]
fn a_replica_of_another_cluster_is_not_taken() {
    let stranger = changed(replica(11, 0, 1, 1), |_, node| {
        node.system_identifier = "other".into()
    });
    let manifest = converge(&[node(10, 0, 1, 1), stranger], &[]).expect("one");
    assert_eq!(manifest.shards[0].replicas, []);
}

#[test]
fn a_lost_primary_keeps_its_place_only_if_it_was_known() {
    let seen = [node(10, 0, 2, 1), replica(21, 1, 2, 1)];
    assert!(converge(&seen, &[]).is_err());
    let before = converge(&[node(10, 0, 2, 1), node(20, 1, 2, 1)], &[])
        .expect("complete")
        .shards;
    let manifest = converge(&seen, &before).expect("known");
    assert_eq!(manifest.shards[1].primary, address(20));
    assert_eq!(manifest.shards[1].replicas, [address(21)]);
}

#[test]
fn version_does_not_fall_while_a_primary_is_away() {
    let before = [node(10, 0, 2, 2), node(20, 1, 2, 2)];
    let before = converge(&before, &[]).expect("complete").shards;
    let manifest = converge(&[replica(11, 0, 2, 2), node(20, 1, 2, 1)], &before).expect("known");
    assert_eq!(manifest.version, TopologyVersion(2));
}

#[test]
fn empty_nodes_are_installed_as_declared_and_spares_are_not() {
    let seen = [empty(10), empty(20), empty(30)];
    let config = [
        declared(10, 0, false),
        declared(20, 1, false),
        declared(30, 2, true),
    ];
    let plan = to_install(&seen, &config).expect("all agree");
    let zero = (address(10), ShardNumber(0), 2);
    assert_eq!(plan, [zero, (address(20), ShardNumber(1), 2)]);
}

#[test]
fn an_interrupted_installation_goes_on() {
    let config = [declared(10, 0, false), declared(20, 1, false)];
    let plan = to_install(&[node(10, 0, 2, 1), empty(20)], &config).expect("consistent");
    assert_eq!(plan, [(address(20), ShardNumber(1), 2)]);
}

#[test]
fn nothing_is_installed_beside_nodes_of_another_layout() {
    let config = [declared(10, 0, false), declared(20, 1, false)];
    assert!(to_install(&[node(10, 0, 3, 2), empty(20)], &config).is_err());
    assert!(to_install(&[node(10, 1, 2, 1), empty(20)], &config).is_err());
}

#[test]
fn a_stale_manifest_with_fewer_shards_is_no_contradiction() {
    let config = [declared(10, 0, false), declared(20, 1, false)];
    assert_eq!(
        to_install(&[node(10, 0, 3, 2), node(20, 1, 3, 2)], &config),
        Ok(vec![])
    );
}

#[test]
fn plain_servers_may_be_one_shard_only() {
    let bare = |port: u16, in_recovery: bool| Seen {
        address: address(port),
        facts: Facts {
            in_recovery,
            extension: None,
        },
    };
    let seen = [bare(10, false), bare(11, true)];
    let one = [declared(10, 0, false), declared(11, 0, false)];
    assert_eq!(without_extension(&seen, &one), Ok(true));
    assert_eq!(
        plain(&seen, &one).expect("one shard").shards[0].replicas,
        [address(11)]
    );
    let two = [declared(10, 0, false), declared(11, 1, false)];
    assert!(plain(&seen, &two).is_err());
    assert!(without_extension(&[bare(10, false), node(20, 1, 2, 1)], &two).is_err());
}
