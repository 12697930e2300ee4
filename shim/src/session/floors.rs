//! The floor of a read: what the client asks for, by token or by time, and what its own commits
//! raise. And the primary's side of it: a server may take itself for the primary and not be it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pgdog_core::fault::{Fault, NodeError};
use pgdog_core::floor::{self, Ask, Decision, Fallback, Lineage};
use pgdog_core::ids::{ShardNumber, Timeline};
use pgdog_core::lsn::{Lsn, Position};
use pgdog_core::moment::Moment;

use super::Session;
use super::dispatch::Flow;
use super::execute::GUARD_PAUSE_MS;
use super::party::{Participant, Place};
use super::read::{Picked, Search, candidate, how, nodes_of};
use crate::nodes::{Address, Outcome, Role, ShardNodes, Topology};
use crate::plan::{Kind, Statement};
use crate::proto::ErrorFields;
use crate::route::{Access, AllReason, Route, Target};
use crate::server::Lease;

/// How long a guard may wait on a primary, in ms: what is written is there at once.
const PRIMARY_BUDGET_MS: u64 = 1;

/// What a read on a shard asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing: any server of the shard will do.
    Anything,
    /// A server that has this.
    Floor {
        /// This.
        position: Position,
        /// If no replica has it.
        fallback: Fallback,
    },
    /// Commits up to a moment that no position is known to cover: only the primary has them.
    Primary,
}

/// What the commits of a session raise.
#[derive(Debug, Default)]
pub(super) struct OwnFloor {
    /// The last commit on each timeline: a later timeline does not speak for an earlier one, of
    /// which a failover may have lost the end.
    raised: BTreeMap<ShardNumber, Vec<Position>>,
    /// Shards on which one of them has no known position: it was decided, and recovery carries it
    /// out. Positions of later ones do not cover it.
    pub unplaced: BTreeSet<ShardNumber>,
}

impl OwnFloor {
    pub fn raise(&mut self, shard: ShardNumber, (lsn, timeline): Position) {
        let positions = self.raised.entry(shard).or_default();
        match positions.iter_mut().find(|(_, of)| *of == timeline) {
            Some((last, _)) => *last = lsn.max(*last),
            None => positions.push((lsn, timeline)),
        }
    }

    /// The floors of a shard. Those that a later one covers are forgotten.
    fn at(&mut self, shard: ShardNumber, lineage: &Lineage) -> &[Position] {
        let Some(positions) = self.raised.get_mut(&shard) else {
            return &[];
        };
        if positions.len() > 1 && positions.iter().any(|(_, of)| *of == lineage.current) {
            let survived = |lsn, of: &Timeline| lineage.fork(*of).is_some_and(|fork| lsn <= fork);
            positions.retain(|(lsn, of)| !of.as_ref().is_some_and(|of| survived(*lsn, of)));
        }
        positions
    }

    pub fn is_empty(&self) -> bool {
        self.raised.is_empty() && self.unplaced.is_empty()
    }
}

impl Session<'_> {
    /// A connection to the node of a shard that is to run a statement.
    ///
    /// # Errors
    /// As [`Session::pick_replica`] and [`Session::pick_primary`].
    pub(super) async fn pick(
        &mut self,
        search: &mut Search,
        statement: Option<&Statement>,
        route: &Route,
        topology: &Topology,
    ) -> Result<Picked, Fault> {
        let picked = self.pick_by_floor(search, statement, route, topology).await;
        match &picked {
            Err(Fault::NoReplicaCaughtUp { .. }) => {
                self.note_refused(search.shard, topology, Outcome::Refused);
            }
            Err(Fault::WriteLostInFailover { .. }) => {
                self.note_refused(search.shard, topology, Outcome::Lost);
            }
            Ok(_) | Err(_) => {}
        }
        picked
    }

    async fn pick_by_floor(
        &mut self,
        search: &mut Search,
        statement: Option<&Statement>,
        route: &Route,
        topology: &Topology,
    ) -> Result<Picked, Fault> {
        let from_replica = self.wants_replica_for(statement, route);
        // Transactions that write see the latest anyway, or fail to commit.
        let writes = route.access == Access::Write || (self.tx.is_open() && !from_replica);
        let wanted = match writes || statement.is_some_and(reads_no_data) {
            true => Wanted::Anything,
            false => self.wanted(search.shard, &route.target, topology).await?,
        };
        match from_replica {
            true => self.pick_replica(search, wanted, topology).await,
            false => self.pick_primary_for(search, wanted, topology).await,
        }
    }

    /// A connection to the primary, which must have what is wanted.
    ///
    /// # Errors
    /// 58000 if it has not: it is not the primary any more, or the write was lost.
    pub(super) async fn pick_primary_for(
        &mut self,
        search: &Search,
        wanted: Wanted,
        topology: &Topology,
    ) -> Result<Picked, Fault> {
        match wanted {
            Wanted::Anything => self.pick_primary(search.shard, topology).await,
            Wanted::Primary => {
                let kept = Some(Outcome::FellBack);
                let picked = self.pick_primary(search.shard, topology).await?;
                Ok(Picked { kept, ..picked })
            }
            Wanted::Floor { position, .. } => {
                let nodes = nodes_of(topology, search.shard)?;
                self.primary_under(nodes, position).await
            }
        }
    }

    /// As [`Session::pick_primary`], under a floor.
    ///
    /// # Errors
    /// 58000 as above.
    pub(super) async fn primary_under(
        &mut self,
        nodes: &ShardNodes,
        floor: Position,
    ) -> Result<Picked, Fault> {
        let shard = nodes.shard;
        let participant = self.lend(shard, &nodes.primary, Place::Primary).await?;
        if participant.lease.incarnation().is_none() {
            // A plain PostgreSQL cannot be asked, and nothing else takes writes there.
            return Ok(Picked::freely(participant));
        }
        let guard = match self.judge_primary(&participant, floor) {
            Decision::Serve(_) => None,
            Decision::Lost {
                timeline,
                forked_at,
            } => {
                self.give_back(participant);
                return Err(Fault::WriteLostInFailover {
                    shard,
                    floor: floor.0,
                    timeline,
                    forked_at,
                });
            }
            // Nothing newer than the sample is known, which may be from before a promotion: the
            // server itself knows.
            Decision::Guard { .. }
            | Decision::Wait { .. }
            | Decision::Primary
            | Decision::NotCaughtUp { .. } => {
                let lineage = self.cluster.lineage(shard);
                Some((floor::located(floor, &lineage), PRIMARY_BUDGET_MS))
            }
        };
        Ok(Picked {
            participant,
            guard,
            kept: Some(how(guard)),
        })
    }

    /// A guard failed, and the read did not run. Another replica may do better, in a moment; what
    /// the primary has not, nobody has.
    pub(super) async fn unproved(
        &mut self,
        place: Place,
        shard: ShardNumber,
        (topology, fields): (&Topology, &ErrorFields),
    ) -> Option<Flow> {
        if place == Place::Primary {
            self.note_refused(shard, topology, Outcome::Refused);
            self.fail_with(fields).await;
            return Some(Flow::Failed { parsed: 0 });
        }
        match self.wait(shard, GUARD_PAUSE_MS).await {
            Ok(()) => None,
            Err(fault) => Some(self.fault(&fault).await),
        }
    }

    /// Notes who answered, and how the floor was kept if there was one.
    pub(super) fn note_answer(
        &mut self,
        participant: &Participant,
        route: &Route,
        (kept, waited_ms): (Option<Outcome>, u64),
    ) {
        self.note_route(participant, route, waited_ms);
        if let Some(kept) = kept {
            self.cluster
                .note_floor(&participant.address, kept, waited_ms);
        }
    }

    fn note_refused(&self, shard: ShardNumber, topology: &Topology, how: Outcome) {
        if let Ok(nodes) = nodes_of(topology, shard) {
            self.cluster.note_floor(&nodes.primary, how, 0);
        }
    }

    /// What a position says about the server that is taken for the primary. What is written is
    /// there at once, so there is nothing to wait for.
    fn judge_primary(&self, primary: &Participant, floor: Position) -> Decision {
        let positions = self.cluster.positions(primary.shard);
        let position = positions
            .iter()
            .find(|one| one.role == Role::Primary && one.address == *primary.address);
        let mut candidate = position.map(candidate).unwrap_or_default();
        candidate.connected = primary.lease.incarnation().cloned();
        let ask = Ask {
            floor,
            lineage: &self.cluster.lineage(primary.shard),
            budget_ms: PRIMARY_BUDGET_MS,
            fallback: Fallback::Refuse,
        };
        floor::choose(&[candidate], &ask)
    }

    /// What reads on a shard ask for: the client's floors and the own commits' if that is wanted.
    ///
    /// # Errors
    /// 22023: a floor that does not name its shard, for a statement that needs to know.
    pub(super) async fn wanted(
        &mut self,
        shard: ShardNumber,
        target: &Target,
        topology: &Topology,
    ) -> Result<Wanted, Fault> {
        let own = self.params.own();
        if own.read_your_writes && self.own_floor.unplaced.contains(&shard) {
            return Ok(Wanted::Primary);
        }
        let raises = own.read_your_writes && self.own_floor.raised.contains_key(&shard);
        if own.min_lsn.is_empty() && !raises && own.min_commit_timestamp.is_none() {
            return Ok(Wanted::Anything);
        }
        let several = topology.shards.len() > 1;
        if own.min_lsn.bare.is_some() && several && !matches!(target, Target::Shard(_)) {
            return Err(self.unnamed_shard(topology));
        }
        let (asked, fallback) = (own.min_lsn.at(shard), own.primary_fallback);
        let lineage = self.cluster.lineage(shard);
        let stamped = match own.min_commit_timestamp {
            None => None,
            Some(moment) => match self.stamped(shard, moment, &lineage).await {
                None => return Ok(Wanted::Primary),
                known => known,
            },
        };
        let raised = match raises {
            true => self.own_floor.at(shard, &lineage),
            false => &[],
        };
        let floors = [asked, stamped].into_iter().flatten();
        let floors = floors.chain(raised.iter().copied());
        let Some(position) = floor::strictest(floors, &lineage) else {
            return Ok(Wanted::Anything);
        };
        let fallback = match fallback || stamped == Some(position) {
            true => Fallback::Primary,
            false => Fallback::Refuse,
        };
        Ok(Wanted::Floor { position, fallback })
    }

    /// A floor may name a shard that this shim does not know yet: then what is read is not all that
    /// the client has seen before. Tells what becomes of such a read; none: it may run.
    pub(super) async fn check_floors(
        &mut self,
        route: &Route,
        topology: &Topology,
    ) -> Option<Flow> {
        let whole = route.target == Target::All(AllReason::Read);
        if !whole && topology.shards.len() > 1 {
            return None;
        }
        let own = self.params.own();
        let named = beyond(own.min_lsn.parts.keys(), topology);
        let raised = match own.read_your_writes {
            true => beyond(self.own_floor.raised.keys(), topology),
            false => None,
        };
        let fault = self.unknown_shard(named.or(raised)?, topology);
        match self.cluster.refresh().await {
            Ok(newer) if newer.shards.len() > topology.shards.len() => {
                Some(Flow::Again(ErrorFields::from(&fault)))
            }
            // What this client has written itself on a shard was moved when the shard was dropped.
            Ok(_) if named.is_none() || !whole => None,
            Ok(_) | Err(_) => Some(self.fault(&fault).await),
        }
    }

    fn unknown_shard(&self, shard: ShardNumber, topology: &Topology) -> Fault {
        Fault::Node(Box::new(NodeError {
            code: "22023".to_owned(),
            message: format!("a floor of this session is about shard {shard}, which is not known"),
            detail: Some(format!("there are {} shards", topology.shards.len())),
            hint: Some("Take pgdog.min_lsn from a commit in this cluster.".to_owned()),
            ..NodeError::default()
        }))
    }

    /// The position that covers the commits up to a moment, asked for once; None if the primary
    /// cannot tell.
    async fn stamped(
        &mut self,
        shard: ShardNumber,
        moment: Moment,
        lineage: &Lineage,
    ) -> Option<Position> {
        // After a failover the moment has another position.
        let known = self.stamps.get(&shard).filter(|(of, (_, timeline))| {
            *of == moment && (*timeline == lineage.current || lineage.current.is_none())
        });
        if let Some((_, position)) = known {
            return Some(*position);
        }
        match self.cluster.covering(shard, moment).await {
            Ok(Some(position)) => {
                self.stamps.insert(shard, (moment, position));
                Some(position)
            }
            Ok(None) => None,
            Err(fault) => {
                tracing::debug!(%shard, %moment, %fault, "no position for a commit timestamp");
                None
            }
        }
    }

    fn unnamed_shard(&self, topology: &Topology) -> Fault {
        Fault::Node(Box::new(NodeError {
            code: "22023".to_owned(),
            message: format!(
                "pgdog.min_lsn \"{}\" does not name its shard",
                self.params.own().min_lsn
            ),
            detail: Some(format!(
                "the statement is not routed to exactly one of {} shards",
                topology.shards.len()
            )),
            hint: Some("SET pgdog.min_lsn = '0=X/Y,1=X/Y', one for each shard.".to_owned()),
            ..NodeError::default()
        }))
    }

    /// Learns the timeline of a primary before anything is written there: tokens carry it.
    pub(super) async fn meet(&mut self, shard: ShardNumber, address: &Arc<Address>, lease: &Lease) {
        let Some(incarnation) = lease.incarnation() else {
            return;
        };
        let known = self.timelines.get(&shard);
        if known.is_some_and(|(life, _)| life == incarnation) {
            return;
        }
        match self.cluster.timeline_of(address, incarnation).await {
            Some(timeline) => {
                let met = (incarnation.clone(), timeline);
                self.timelines.insert(shard, met);
            }
            None => {
                self.timelines.remove(&shard);
            }
        }
    }

    /// Where a commit on the shard's primary ended.
    pub(super) fn commit_position(&self, shard: ShardNumber, end: Lsn) -> Position {
        let timeline = self.timelines.get(&shard).map(|(_, timeline)| *timeline);
        (end, timeline)
    }
}

/// One of these shards of which a topology does not know.
fn beyond<'a>(
    shards: impl Iterator<Item = &'a ShardNumber>,
    topology: &Topology,
) -> Option<ShardNumber> {
    let mut shards = shards.copied();
    shards.find(|shard| usize::from(shard.0) >= topology.shards.len())
}

/// What is about the session itself is the same everywhere.
fn reads_no_data(statement: &Statement) -> bool {
    matches!(
        statement.kind,
        Kind::Set { .. } | Kind::Reset(_) | Kind::Show(_) | Kind::Discard { .. } | Kind::Session
    )
}

#[cfg(test)]
mod tests {
    use pgdog_core::floor::Fork;

    use super::*;

    /// A failover has lost what came after 90 on the first timeline.
    fn lineage() -> Lineage {
        Lineage {
            current: Some(Timeline(2)),
            forks: vec![Fork {
                timeline: Timeline(1),
                ended_at: Lsn(90),
            }],
        }
    }

    fn strictest(commits: &[(u64, Option<u32>)]) -> Option<Position> {
        let (mut own, shard) = (OwnFloor::default(), ShardNumber(0));
        for (lsn, timeline) in commits {
            own.raise(shard, (Lsn(*lsn), timeline.map(Timeline)));
        }
        let lineage = lineage();
        floor::strictest(own.at(shard, &lineage).iter().copied(), &lineage)
    }

    #[test]
    fn a_commit_that_a_failover_lost_stays_asked_for_whatever_comes_later() {
        let lost = Some((Lsn(100), Some(Timeline(1))));
        assert_eq!(strictest(&[(100, Some(1)), (95, Some(2))]), lost);
        assert_eq!(strictest(&[(100, Some(1)), (500, Some(2))]), lost);
        assert_eq!(
            strictest(&[(80, Some(1)), (100, Some(1)), (500, Some(2))]),
            lost
        );
    }

    #[test]
    fn one_that_survived_is_covered_by_a_later_one() {
        let later = Some((Lsn(95), Some(Timeline(2))));
        assert_eq!(strictest(&[(80, Some(1)), (95, Some(2))]), later);
        let mut own = OwnFloor::default();
        own.raise(ShardNumber(0), (Lsn(80), Some(Timeline(1))));
        own.raise(ShardNumber(0), (Lsn(95), Some(Timeline(2))));
        assert_eq!(own.at(ShardNumber(0), &lineage()).len(), 1);
    }

    #[test]
    fn a_commit_of_unknown_timeline_is_not_given_an_earlier_one() {
        let bare = Some((Lsn(200), None));
        assert_eq!(strictest(&[(80, Some(1)), (200, None)]), bare);
    }
}
