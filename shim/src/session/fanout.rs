//! A statement on every shard: the lowest first and alone, then the others side by side.
//!
//! What shard 0 answers is held back until all shards have done the same; the transaction that
//! this forms is committed in two phases.

use std::sync::Arc;

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, ShardNumber, TopologyVersion};

use super::client::Gone;
use super::dispatch::Flow;
use super::finish::give_up;
use super::forward::{self, Progress, Sink, Trouble};
use super::last_route::LastRoute;
use super::party::Participant;
use super::script::Script;
use super::steps::{Asked, Input};
use super::work::Work;
use super::{Session, faults};
use crate::nodes::Topology;
use crate::observe::Counted;
use crate::plan::Kind;
use crate::proto::ErrorFields;
use crate::proto::backend::tag;
use crate::proto::{answer, frame};
use crate::route::{AllReason, Target};
use crate::server::Ahead;

/// Enters the gate of omni writes; tells whether anything has changed meanwhile.
const ENTER: &str = "SELECT version, shards, epoch FROM pgdog.omni_enter()";

/// What the gate told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate {
    version: TopologyVersion,
    shards: u16,
    epoch: Epoch,
}

/// One shard's part of the statement.
pub(super) struct Part {
    pub(super) participant: Participant,
    pub(super) script: Script,
    pub(super) progress: Progress,
    /// Set when this statement entered the gate.
    entered: Option<Gate>,
}

impl Session<'_> {
    /// Runs a statement on every shard.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn everywhere(
        &mut self,
        input: &Input<'_>,
        at: usize,
        reason: AllReason,
    ) -> Result<Flow, Gone> {
        let asked = input.at(at);
        let kind = asked.statement().map(|statement| &statement.kind);
        if matches!(
            kind,
            Some(Kind::Ddl {
                transactional: false
            })
        ) && !self.tx.is_open()
        {
            return self.one_by_one(input, at).await;
        }
        let own_transaction = !self.tx.is_open();
        let first = self.may_start_over() && self.participants.is_empty();
        if own_transaction {
            self.begin_implicit();
        }
        let mark = self.client.mark();
        match self.run_parts(input, at, reason).await {
            Ok(held) => {
                self.tx.note_statement();
                self.reshaped |= matches!(reason, AllReason::Ddl | AllReason::Placement);
                self.put_held(&held);
                Ok(Flow::Next(at + 1))
            }
            Err(Trouble::Gone(gone)) => Err(gone),
            Err(Trouble::Lost(fault)) => {
                let fields = ErrorFields::from(&fault);
                let again = first && faults::is_stale_topology(&fields) && self.client.holds(mark);
                if again {
                    self.client.cut(mark);
                    self.roll_back_all().await;
                    if own_transaction {
                        self.params.rollback();
                        self.tx.end();
                    }
                    return Ok(Flow::Again(fields));
                }
                self.tx.note_statement();
                Ok(self.fault(&fault).await)
            }
        }
    }

    pub(super) fn put_held(&mut self, held: &[u8]) {
        for message in frame::frames(held).flatten() {
            if message.0 == tag::COMMAND_COMPLETE {
                self.client.note_completion();
            }
            if message.0 == tag::PARAMETER_STATUS {
                if let Ok((name, value)) = answer::parameter_status(message.1) {
                    self.client.tell_setting(name, &value);
                }
                continue;
            }
            frame::put(&mut self.client.out, message.0, |out| {
                out.extend_from_slice(message.1)
            });
        }
    }

    /// Runs the parts; returns what shard 0 answered. All participants are put back.
    async fn run_parts(
        &mut self,
        input: &Input<'_>,
        at: usize,
        reason: AllReason,
    ) -> Result<BytesMut, Trouble> {
        let work = &input.work(at, at + 1);
        let mut topology = self.cluster.topology();
        self.check_rows(reason, &topology)?;
        let mut held = BytesMut::new();
        let mut parts = Vec::new();
        let first = self.first_part(work, reason, &topology, &mut held).await?;
        let news = first.entered.filter(|gate| gate.is_ahead_of(&topology));
        parts.push(first);
        if let Some(gate) = news {
            match self.catch_up(&input.at(at), gate, &topology).await {
                Ok(newer) => topology = newer,
                Err(fault) => {
                    give_up(&mut parts, work.is_extended()).await;
                    self.put_back(parts);
                    return Err(Trouble::Lost(fault));
                }
            }
        }
        if let Err(trouble) = self.other_parts(work, reason, &topology, &mut parts).await {
            give_up(&mut parts, work.is_extended()).await;
            self.put_back(parts);
            return Err(trouble);
        }
        let how = (reason, &topology);
        let agreed = self
            .finish_parts(&input.at(at), how, &mut parts, &mut held)
            .await;
        self.last_route = LastRoute::All {
            shards: topology.shards.len(),
            reason,
        };
        self.seen.count(Counted::Primary, parts.len() as u64);
        match agreed {
            Ok(()) => {
                // A server that was lost since stays part of it: what comes next, COMMIT or another
                // statement, fails there and says so. Without it the rest would be committed alone.
                let kept = parts.into_iter().map(|part| part.participant);
                self.participants.extend(kept.map(|one| (one.shard, one)));
                Ok(held)
            }
            Err(trouble) => {
                self.put_back(parts);
                Err(trouble)
            }
        }
    }

    /// The topology that the gate told of, if the statement goes everywhere by it as well: with
    /// other columns, or with a second shard, it may be refused.
    async fn catch_up(
        &mut self,
        asked: &Asked<'_>,
        gate: Gate,
        known: &Arc<Topology>,
    ) -> Result<Arc<Topology>, Fault> {
        let newer = if usize::from(gate.shards) > known.shards.len() {
            self.cluster.refresh_at_least(gate.version).await?
        } else {
            // One look: the epoch may be of this very transaction, which nobody else sees yet.
            self.cluster.refresh().await?
        };
        match self.decide(asked, &newer).await?.target {
            Target::All(_) => Ok(newer),
            Target::Any | Target::Shard(_) => Err(Fault::StaleTopology {
                session: first_epoch(known),
                node: gate.epoch,
            }),
        }
    }

    async fn first_part(
        &mut self,
        work: &Work<'_>,
        reason: AllReason,
        topology: &Arc<Topology>,
        held: &mut BytesMut,
    ) -> Result<Part, Trouble> {
        let shard = ShardNumber(0);
        let (mut participant, ahead) = self.enter(shard, reason, topology).await?;
        let ran = run_part(&mut participant, &ahead, work, &mut Sink::Buffer(held)).await;
        match ran {
            Ok((script, progress, entered)) => {
                if script.error.is_some() && script.is_done() {
                    let fields = script.error.clone().unwrap_or_default();
                    self.participants.insert(shard, participant);
                    return Err(Trouble::Lost(server_error(shard, &fields)));
                }
                participant.wrote = true;
                participant.wrote_omni |= reason == AllReason::OmniWrite;
                Ok(Part {
                    participant,
                    script,
                    progress,
                    entered,
                })
            }
            Err(trouble) => {
                self.keep_if_whole(participant);
                Err(trouble)
            }
        }
    }

    /// The other shards, lent one after the other, then working side by side.
    async fn other_parts(
        &mut self,
        work: &Work<'_>,
        reason: AllReason,
        topology: &Arc<Topology>,
        parts: &mut Vec<Part>,
    ) -> Result<(), Trouble> {
        let mut ready = Vec::new();
        let mut refused = None;
        for nodes in topology.shards.iter().skip(1) {
            match self.enter(nodes.shard, reason, topology).await {
                Ok(one) => ready.push(one),
                Err(trouble) => {
                    refused = Some(trouble);
                    break;
                }
            }
        }
        if let Some(trouble) = refused {
            ready
                .into_iter()
                .for_each(|(participant, _)| self.keep_if_whole(participant));
            return Err(trouble);
        }
        let runs = ready
            .into_iter()
            .map(|(mut participant, ahead)| async move {
                let ran = run_part(&mut participant, &ahead, work, &mut Sink::Nowhere).await;
                (participant, ran)
            });
        let mut first_trouble = None;
        for (mut participant, ran) in in_turn_or_at_once(reason, runs).await {
            let shard = participant.shard;
            match ran {
                Ok((script, progress, entered)) => {
                    if let Some(fields) = script.error.as_ref().filter(|_| script.is_done()) {
                        let trouble = Trouble::Lost(server_error(shard, fields));
                        first_trouble.get_or_insert(trouble);
                    }
                    participant.wrote = true;
                    participant.wrote_omni |= reason == AllReason::OmniWrite;
                    parts.push(Part {
                        participant,
                        script,
                        progress,
                        entered,
                    });
                }
                Err(trouble) => {
                    first_trouble.get_or_insert(trouble);
                    self.keep_if_whole(participant);
                }
            }
        }
        first_trouble.map_or(Ok(()), Err)
    }

    /// A shard's participant, and what must run on it before the statement.
    async fn enter(
        &mut self,
        shard: ShardNumber,
        reason: AllReason,
        topology: &Arc<Topology>,
    ) -> Result<(Participant, Ahead), Trouble> {
        let mut participant = match self.participants.remove(&shard) {
            Some(participant) => participant,
            None => self.pick_primary(shard, topology).await?.participant,
        };
        if let Err(fault) = self.ensure_needed(&mut participant).await {
            self.keep_if_whole(participant);
            return Err(Trouble::Lost(fault));
        }
        let mut ahead = match self.prepare_ahead(&mut participant, topology).await {
            Ok(ahead) => ahead,
            Err(fault) => {
                self.throw_away(participant);
                return Err(Trouble::Lost(fault));
            }
        };
        // After ROLLBACK TO the gate may be left, though it was entered: a write to an omnisharded
        // table enters it by itself then.
        if reason == AllReason::Change || reason == AllReason::OmniWrite && !participant.entered {
            ahead.query(ENTER);
        }
        Ok((participant, ahead))
    }

    fn put_back(&mut self, parts: Vec<Part>) {
        for part in parts {
            self.keep_if_whole(part.participant);
        }
    }

    fn keep_if_whole(&mut self, participant: Participant) {
        match participant.lease.is_broken() || !participant.lease.in_sync() {
            true => self.lose(participant),
            false => {
                self.participants.insert(participant.shard, participant);
            }
        }
    }
}

/// What all have done. Changes of sharded rows lock other rows on every shard: if all lock those of
/// one shard after the other, no two of them wait for each other where no server can see it.
async fn in_turn_or_at_once<F: Future>(
    reason: AllReason,
    runs: impl Iterator<Item = F>,
) -> Vec<F::Output> {
    if reason != AllReason::Change {
        return futures_util::future::join_all(runs).await;
    }
    let mut done = Vec::new();
    for run in runs {
        done.push(run.await);
    }
    done
}

/// Runs the statement on one shard, up to its end or to the point where it wants COPY data.
pub(super) async fn run_part(
    participant: &mut Participant,
    ahead: &Ahead,
    work: &Work<'_>,
    sink: &mut Sink<'_>,
) -> Result<(Script, Progress, Option<Gate>), Trouble> {
    let shard = participant.shard;
    let conn = &mut *participant.lease;
    let mut script = forward::send(conn, ahead, work).await?;
    let mut entered = None;
    if !ahead.is_empty() {
        let settled = forward::settle(conn, ahead).await?;
        if let Some(fields) = settled.error() {
            return Err(Trouble::Lost(server_error(shard, fields)));
        }
        entered = settled
            .answers
            .iter()
            .find_map(|answer| gate_answer(&answer.rows));
        participant.entered |= entered.is_some();
    }
    let progress = forward::drive(&mut participant.lease, &mut script, sink).await?;
    Ok((script, progress, entered))
}

impl Gate {
    fn is_ahead_of(&self, known: &Topology) -> bool {
        usize::from(self.shards) > known.shards.len() || self.epoch > first_epoch(known)
    }
}

fn first_epoch(topology: &Topology) -> Epoch {
    topology
        .shards
        .first()
        .map(|nodes| nodes.epoch)
        .unwrap_or_default()
}

fn gate_answer(rows: &[Vec<Option<String>>]) -> Option<Gate> {
    match rows {
        [row] => match row.as_slice() {
            [Some(version), Some(shards), Some(epoch)] => Some(Gate {
                version: version.parse().ok()?,
                shards: shards.parse().ok()?,
                epoch: epoch.parse().ok()?,
            }),
            _ => None,
        },
        _ => None,
    }
}

/// A shard's own error, as it came.
pub(super) fn server_error(shard: ShardNumber, fields: &ErrorFields) -> Fault {
    faults::from_node(&format!("shard {shard}"), fields)
}
