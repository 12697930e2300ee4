//! Which node of a shard runs a statement: the primary, or a replica that has replayed enough.

use std::time::{Duration, Instant};

use pgdog_core::fault::Fault;
use pgdog_core::floor::{self, Ask, Candidate, Decision, Fallback};
use pgdog_core::ids::ShardNumber;
use pgdog_core::lsn;

use super::Session;
use super::floors::Wanted;
use super::param_values::RoleChoice;
use super::party::{Participant, Place, SESSION_MODE};
use super::settings::{Keep, Reads};
use crate::nodes::{Address, Outcome, Position, Role, ShardNodes, Topology};
use crate::plan::{RoleHint, Statement};
use crate::route::{Access, Route, is_opaque};

/// A node that was chosen, with a connection to it.
#[derive(Debug)]
pub struct Picked {
    /// The connection.
    pub participant: Participant,
    /// What the server must have replayed, to be checked by itself, and how long it may wait.
    pub guard: Option<(lsn::Position, u64)>,
    /// How the floor is kept, if there is one.
    pub kept: Option<Outcome>,
}

impl Picked {
    /// Without a floor.
    pub fn freely(participant: Participant) -> Self {
        Self {
            participant,
            guard: None,
            kept: None,
        }
    }
}

/// One search for a node, with what went wrong so far.
#[derive(Debug)]
pub struct Search {
    /// The shard.
    pub shard: ShardNumber,
    /// Nodes that failed.
    pub tried: Vec<Address>,
    /// When it began: waiting counts from here.
    pub started: Instant,
}

impl Search {
    /// A new one.
    pub fn new(shard: ShardNumber) -> Self {
        Self {
            shard,
            tried: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Milliseconds since it began.
    pub fn waited_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Session<'_> {
    /// Whether a statement goes to a replica if there is one.
    pub(super) fn wants_replica(&self, statement: Option<&Statement>, route: &Route) -> bool {
        if route.access == Access::Write {
            return false;
        }
        match self.params.own().role {
            RoleChoice::Primary => false,
            RoleChoice::Replica => true,
            RoleChoice::Auto if self.settings.reads == Reads::Primary => false,
            RoleChoice::Auto if !self.tx.is_open() => true,
            RoleChoice::Auto => {
                self.tx.may_be_on_standby()
                    && (self.tx.is_read_only() || self.first_decides(statement))
            }
        }
    }

    /// Whether the statement at hand decides that its transaction goes to a replica: it reads, and
    /// runs nothing that might write.
    fn first_decides(&self, statement: Option<&Statement>) -> bool {
        let decides = self.settings.first_decides
            && self.tx.is_explicit()
            && self.tx.is_untouched()
            && self.participants.is_empty();
        let (topology, path) = (self.cluster.topology(), self.params.search_path());
        let mut called = statement.into_iter().flat_map(|s| &s.functions.called);
        decides && !called.any(|called| is_opaque(called, &topology, path))
    }

    /// As [`Session::wants_replica`], with a comment in the statement counting first.
    pub(super) fn wants_replica_for(&self, statement: Option<&Statement>, route: &Route) -> bool {
        match statement.and_then(|statement| statement.role) {
            Some(RoleHint::Primary) => false,
            Some(RoleHint::Replica) => route.access == Access::Read,
            None => self.wants_replica(statement, route),
        }
    }

    /// A connection to the shard's primary.
    ///
    /// # Errors
    /// It cannot be had.
    pub(super) async fn pick_primary(
        &mut self,
        shard: ShardNumber,
        topology: &Topology,
    ) -> Result<Picked, Fault> {
        let address = &nodes_of(topology, shard)?.primary;
        let participant = self.lend(shard, address, Place::Primary).await?;
        Ok(Picked::freely(participant))
    }

    /// A connection to a replica that has replayed the floor or will soon, else to the primary
    /// where that is allowed.
    ///
    /// # Errors
    /// 58000 when no replica makes it; or none can be reached.
    pub(super) async fn pick_replica(
        &mut self,
        search: &mut Search,
        wanted: Wanted,
        topology: &Topology,
    ) -> Result<Picked, Fault> {
        let shard = search.shard;
        let nodes = nodes_of(topology, shard)?;
        // Who keeps a connection expects to find there what he left, but may insist on a replica.
        let pinned_here = self.pin.is_some_and(|(pinned, why)| {
            pinned == shard && (why != SESSION_MODE || !self.insists_on_replica())
        }) || (self.keep == Keep::Session && !self.insists_on_replica());
        if pinned_here || (nodes.replicas.is_empty() && !self.insists_on_replica()) {
            return self.pick_primary_for(search, wanted, topology).await;
        }
        match wanted {
            Wanted::Anything => self.pick_any(search, nodes).await,
            Wanted::Floor { position, fallback } => {
                self.pick_under(search, nodes, (position, fallback)).await
            }
            Wanted::Primary => self.pick_primary_for(search, wanted, topology).await,
        }
    }

    fn insists_on_replica(&self) -> bool {
        self.params.own().role == RoleChoice::Replica
    }

    /// Without a floor every replica is as good as the other.
    async fn pick_any(&mut self, search: &mut Search, nodes: &ShardNodes) -> Result<Picked, Fault> {
        let mut candidates: Vec<(&Address, Place)> = nodes
            .replicas
            .iter()
            .filter(|replica| self.takes_reads(nodes, replica))
            .map(|replica| (replica, Place::Replica))
            .collect();
        let any_node = self.settings.reads == Reads::AnyNode
            && self.params.own().role == RoleChoice::Auto
            && !self.tx.is_open();
        if any_node && !self.services.bans.is_banned(&nodes.primary) {
            candidates.push((&nodes.primary, Place::Primary));
        }
        candidates.retain(|(address, _)| !search.tried.contains(address));
        let candidates = self.in_order(candidates, |candidate| candidate.0);
        self.charge((candidates.iter().map(|candidate| candidate.0), 0));
        let mut last = None;
        for (address, place) in candidates {
            match self.lend(search.shard, address, place).await {
                Ok(participant) => {
                    return Ok(Picked::freely(participant));
                }
                Err(fault) if ends_search(&fault) => return Err(fault),
                Err(fault) => {
                    tracing::debug!(node = %address.host, port = address.port, %fault,
                        "replica not usable");
                    search.tried.push(address.clone());
                    last = Some(fault);
                }
            }
        }
        match self.insists_on_replica() && !self.params.own().primary_fallback {
            true => Err(last.unwrap_or(Fault::NoNode {
                shard: search.shard,
                role: "replica",
            })),
            false => {
                let participant = self
                    .lend(search.shard, &nodes.primary, Place::Primary)
                    .await?;
                Ok(Picked::freely(participant))
            }
        }
    }

    /// Whether reads go to a replica: it answers, is not banned and not too far behind.
    fn takes_reads(&self, nodes: &ShardNodes, replica: &Address) -> bool {
        !self.services.bans.is_banned(replica)
            && !self.cluster.is_silent(replica)
            && !self.cluster.lags(&nodes.primary, replica)
    }

    /// Under a floor: proved, likely behind a guard, or wait; then the primary or an error.
    async fn pick_under(
        &mut self,
        search: &mut Search,
        nodes: &ShardNodes,
        (floor, fallback): (lsn::Position, Fallback),
    ) -> Result<Picked, Fault> {
        // Connections that were made on the way, so that their incarnation is known.
        let mut made: Vec<Participant> = Vec::new();
        let picked = loop {
            let positions = self.replicas_of(search, nodes);
            let candidates = positions.iter().map(|seen| candidate_by(seen, &made));
            let candidates: Vec<_> = candidates.collect();
            let (index, guard) = match self.choose(&candidates, search, (floor, fallback)) {
                Decision::Serve(index) => (index, None),
                Decision::Guard {
                    candidate,
                    budget_ms,
                } => (candidate, Some(budget_ms)),
                Decision::Wait { eta_ms } => {
                    if let Err(fault) = self.wait(search.shard, eta_ms).await {
                        break Err(fault);
                    }
                    continue;
                }
                Decision::Primary => {
                    let kept = Some(Outcome::FellBack);
                    let picked = self.primary_under(nodes, floor).await;
                    break picked.map(|picked| Picked { kept, ..picked });
                }
                Decision::NotCaughtUp { eta_ms, best } => {
                    let (shard, floor) = (search.shard, floor.0);
                    let eta_ms = no_sooner_than(search.waited_ms(), eta_ms);
                    break Err(Fault::NoReplicaCaughtUp {
                        shard,
                        floor,
                        best,
                        eta_ms,
                    });
                }
                Decision::Lost {
                    timeline,
                    forked_at,
                } => {
                    let (shard, floor) = (search.shard, floor.0);
                    break Err(Fault::WriteLostInFailover {
                        shard,
                        floor,
                        timeline,
                        forked_at,
                    });
                }
            };
            let address = &positions[index].address;
            self.charge(heard_of(&positions, index));
            match self.connect(search, address, &mut made).await {
                Ok(Some(participant)) if serves(&participant, &candidates[index], guard) => {
                    let located = floor::located(floor, &self.cluster.lineage(search.shard));
                    let guard = guard.map(|budget_ms| (located, budget_ms));
                    break Ok(Picked {
                        participant,
                        kept: Some(how(guard)),
                        guard,
                    });
                }
                // Another life than the sample's: choose again, knowing that.
                Ok(Some(participant)) => made.push(participant),
                Ok(None) => search.tried.push(address.clone()),
                Err(fault) => break Err(fault),
            }
        };
        for participant in made {
            self.give_back(participant);
        }
        picked
    }

    fn choose(
        &self,
        candidates: &[Candidate],
        search: &Search,
        (floor, fallback): (lsn::Position, Fallback),
    ) -> Decision {
        let own = self.params.own();
        let ask = Ask {
            floor,
            lineage: &self.cluster.lineage(search.shard),
            budget_ms: own.min_lsn_wait_ms.saturating_sub(search.waited_ms()),
            fallback,
        };
        floor::choose(candidates, &ask)
    }

    /// A connection to a replica whose incarnation is known; None: it is of no use.
    async fn connect(
        &mut self,
        search: &Search,
        address: &Address,
        made: &mut Vec<Participant>,
    ) -> Result<Option<Participant>, Fault> {
        if let Some(at) = made.iter().position(|p| *p.address == *address) {
            return Ok(Some(made.swap_remove(at)));
        }
        match self.lend(search.shard, address, Place::Replica).await {
            Ok(participant) if participant.lease.incarnation().is_some() => Ok(Some(participant)),
            // Without the extension nothing can be proved there.
            Ok(participant) => {
                self.give_back(participant);
                Ok(None)
            }
            Err(fault) if ends_search(&fault) => Err(fault),
            Err(_) => Ok(None),
        }
    }

    /// Waits for news of the shard's replicas, but not longer than `eta_ms`.
    ///
    /// # Errors
    /// 57014 when the client cancels meanwhile.
    pub(super) async fn wait(&self, shard: ShardNumber, eta_ms: u64) -> Result<(), Fault> {
        self.seen.set_state(crate::observe::ClientState::Waiting);
        let limit = Duration::from_millis(eta_ms.max(1));
        // Whichever comes first; the clock of the budget runs anyway.
        let news = tokio::time::timeout(limit, self.cluster.wait_for_sample(shard));
        let waited = self.running.waiting(news).await;
        self.seen.set_state(crate::observe::ClientState::Active);
        waited.map(|_| ())
    }

    /// The replicas that may answer, the one whose turn it is at the front.
    fn replicas_of(&mut self, search: &Search, nodes: &ShardNodes) -> Vec<Position> {
        let mut positions = self.cluster.positions(search.shard);
        positions.retain(|position| {
            position.address != nodes.primary
                && position.role == Role::Replica
                && !search.tried.contains(&position.address)
                && !self.services.bans.is_banned(&position.address)
                && !self.cluster.is_silent(&position.address)
                && !self.cluster.lags(&nodes.primary, &position.address)
        });
        self.in_order(positions, |position| &position.address)
    }
}

/// Those that a read could have gone to, and where among them the chosen one is: who does not
/// answer the monitor earns no turns meanwhile.
fn heard_of(positions: &[Position], chosen: usize) -> (impl Iterator<Item = &Address>, usize) {
    let counts = move |at: usize| at == chosen || positions[at].sample.is_some();
    let before = (0..chosen).filter(|at| counts(*at)).count();
    let all = (0..positions.len()).filter(move |at| counts(*at));
    (all.map(|at| &positions[at].address), before)
}

/// How a floor is kept that a server was found for.
pub(super) fn how(guard: Option<(lsn::Position, u64)>) -> Outcome {
    match guard {
        None => Outcome::Proved,
        Some(_) => Outcome::Guarded,
    }
}

/// Whether another node would do no better.
fn ends_search(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::PoolTimeout { .. } | Fault::TooMany { .. } | Fault::Cancelled { .. }
    )
}

/// The shard's nodes.
///
/// # Errors
/// There is no such shard.
pub(super) fn nodes_of(topology: &Topology, shard: ShardNumber) -> Result<&ShardNodes, Fault> {
    topology
        .shards
        .get(usize::from(shard.0))
        .ok_or_else(|| Fault::UnknownObject {
            kind: "shard",
            name: shard.to_string(),
        })
}

/// A node under watch. Until there is a connection it is taken to lead to the server that was
/// sampled; `serves` checks that.
pub(super) fn candidate(position: &Position) -> Candidate {
    let sample = position.sample.as_ref();
    Candidate {
        connected: sample.map(|sample| sample.incarnation.clone()),
        sample: sample.map(|sample| floor::Sample {
            incarnation: sample.incarnation.clone(),
            timeline: Some(sample.timeline),
            replayed: sample.replayed,
            rate: rate(sample.replay_bytes_per_s),
            lag_ms: sample.lag_ms,
            age_ms: u64::try_from(sample.taken_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        }),
    }
}

/// The same, by a connection that was made to it, if there is one.
fn candidate_by(position: &Position, made: &[Participant]) -> Candidate {
    let connection = made.iter().find(|p| *p.address == position.address);
    let mut candidate = candidate(position);
    if let Some(known) = connection.and_then(|p| p.lease.incarnation()) {
        candidate.connected = Some(known.clone());
    }
    candidate
}

/// The estimate that a refusal tells. A replica whose replay is paused keeps the rate that was
/// measured before; what did not come while it was waited for is not expected any sooner.
fn no_sooner_than(waited_ms: u64, eta_ms: Option<u64>) -> Option<u64> {
    match (waited_ms, eta_ms) {
        (0, unwaited) => unwaited,
        (waited_ms, eta_ms) => Some(eta_ms.unwrap_or_default().max(waited_ms)),
    }
}

fn rate(bytes_per_s: f64) -> Option<u64> {
    (bytes_per_s >= 1.0).then_some(bytes_per_s as u64)
}

/// Whether the connection leads to the server that the choice was made for, or is guarded.
fn serves(participant: &Participant, candidate: &Candidate, guard: Option<u64>) -> bool {
    let Some(here) = participant.lease.incarnation() else {
        return false;
    };
    guard.is_some()
        || candidate
            .sample
            .as_ref()
            .is_some_and(|s| s.incarnation == *here)
}

#[cfg(test)]
mod tests {
    use pgdog_core::ids::{Incarnation, Timeline};

    use super::*;
    use crate::nodes::Sample;

    #[test]
    fn turns_are_for_those_that_are_heard_of() {
        let sample = Sample {
            incarnation: Incarnation("a".to_owned()),
            timeline: Timeline(1),
            system_identifier: String::new(),
            replayed: None,
            received: None,
            replay_bytes_per_s: 0.0,
            lag_ms: None,
            taken_at: Instant::now(),
        };
        let position = |port, heard_of: bool| Position {
            address: Address {
                host: "h".to_owned(),
                port,
                database: "d".to_owned(),
            },
            role: Role::Replica,
            sample: heard_of.then(|| sample.clone()),
        };
        let positions = [
            position(1, false),
            position(2, true),
            position(3, false),
            position(4, true),
        ];
        let ports = |chosen| {
            let (all, at) = heard_of(&positions, chosen);
            (all.map(|address| address.port).collect::<Vec<_>>(), at)
        };
        assert_eq!(ports(1), (vec![2, 4], 0));
        assert_eq!(ports(3), (vec![2, 4], 1));
        assert_eq!(ports(2), (vec![2, 3, 4], 1));
    }

    #[test]
    fn an_estimate_is_at_least_what_was_waited_in_vain() {
        assert_eq!(no_sooner_than(300, Some(1)), Some(300));
        assert_eq!(no_sooner_than(300, Some(900)), Some(900));
        assert_eq!(no_sooner_than(300, None), Some(300));
        assert_eq!(no_sooner_than(0, None), None);
        assert_eq!(no_sooner_than(0, Some(7)), Some(7));
    }
}
