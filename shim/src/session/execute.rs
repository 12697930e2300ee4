//! A run of statements on one server: by itself, or inside the open transaction.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::lsn;

use super::client::{Gone, Mark};
use super::copy;
use super::dispatch::Flow;
use super::forward::{self, Progress, Sink, Trouble};
use super::party::{Participant, Place};
use super::read::{Picked, Search};
use super::script::Script;
use super::steps::{Asked, Input};
use super::tx::Block;
use super::work::Work;
use super::{Session, faults, long, pin};
use crate::nodes::Topology;
use crate::observe::Counted;
use crate::plan::Kind;
use crate::proto::{ErrorFields, TxStatus, frontend};
use crate::route::{Access, Route, Target};
use crate::server::{Guard, Guarded};

/// How long a cancel request to a server may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// A run that was answered.
struct Ran {
    participant: Participant,
    script: Script,
    /// Where its answers begin.
    mark: Mark,
}

/// What came of a run on one server.
pub(super) enum Attempt {
    /// It ran; its errors are in the script and the client was told.
    Ran {
        /// What was answered.
        script: Script,
        /// How long the server waited for the floor, in ms.
        waited_ms: u64,
    },
    /// The guard failed: it did not run.
    Unproved(ErrorFields),
    /// Something ahead of it failed: what the client sees of it was thrown away.
    Refused(ErrorFields),
}

impl Session<'_> {
    /// Runs statements outside of any transaction.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn run_alone(
        &mut self,
        input: &Input<'_>,
        range: Range<usize>,
        route: &Route,
        topology: &Topology,
    ) -> Result<Flow, Gone> {
        let shard = match self.shard_of(input, range.start, route, topology) {
            Ok(shard) => shard,
            Err(fault) => return Ok(self.fault(&fault).await),
        };
        let work = input.work(range.start, range.end);
        let mut search = Search::new(shard);
        loop {
            let statement = input.at(input.lead(&range)).statement();
            let picked = self.pick(&mut search, statement, route, topology).await;
            let Picked {
                mut participant,
                guard,
                kept,
            } = match picked {
                Ok(picked) => picked,
                Err(fault) => return Ok(self.fault(&fault).await),
            };
            let waited_ms = search.waited_ms();
            let mark = self.client.mark();
            let outcome = self.attempt(&mut participant, guard, &work, topology).await;
            match outcome {
                Err(Trouble::Gone(gone)) => return Err(gone),
                Err(Trouble::Lost(fault)) => {
                    let again = route.access == Access::Read && self.client.holds(mark);
                    let place = participant.place;
                    search.tried.push((*participant.address).clone());
                    self.throw_away(participant);
                    if again && place == Place::Replica {
                        tracing::warn!(%shard, %fault, "replica lost, read goes to another node");
                        self.client.cut(mark);
                        continue;
                    }
                    return self.report_loss(&fault).await;
                }
                Ok(Attempt::Unproved(fields)) => {
                    tracing::debug!(%shard, sqlstate = fields.code, "guard refused");
                    let place = participant.place;
                    self.give_back(participant);
                    if let Some(flow) = self.unproved(place, shard, (topology, &fields)).await {
                        return Ok(flow);
                    }
                }
                Ok(Attempt::Refused(fields)) => {
                    self.refuse(participant).await;
                    self.fail_with(&fields).await;
                    return Ok(Flow::Failed { parsed: 0 });
                }
                Ok(Attempt::Ran {
                    script,
                    waited_ms: by_server,
                }) => {
                    self.note_answer(&participant, route, (kept, waited_ms + by_server));
                    let ran = Ran {
                        participant,
                        script,
                        mark,
                    };
                    return Ok(self.ran_alone(input, range, ran));
                }
            }
        }
    }

    fn ran_alone(&mut self, input: &Input<'_>, range: Range<usize>, ran: Ran) -> Flow {
        let Ran {
            mut participant,
            script,
            mark,
        } = ran;
        self.seen.count(Counted::Transactions, 1);
        if let Some(fields) = self.startable_over(&script, mark) {
            self.client.cut(mark);
            self.give_back(participant);
            return Flow::Again(fields);
        }
        self.note_commit_of(&participant);
        for index in range.clone() {
            self.note_effects(&input.at(index), &mut participant, &script);
        }
        if script.error.is_some() {
            self.seen.count(Counted::Errors, 1);
        }
        let failed = script.error.is_some();
        match participant.lease.tx_status() {
            TxStatus::Idle => self.give_back(participant),
            // A transaction that came about in a way that the text did not show.
            TxStatus::InTransaction | TxStatus::Failed => {
                self.adopt(participant);
            }
        }
        match failed {
            true => Flow::Failed {
                parsed: script.parsed,
            },
            false => Flow::Next(range.end),
        }
    }

    pub(super) fn adopt(&mut self, mut participant: Participant) {
        self.params.begin();
        self.tx.begin("BEGIN", false);
        self.tx.note_statement();
        participant.begun = true;
        participant.wrote = participant.place == Place::Primary;
        if participant.lease.tx_status() == TxStatus::Failed {
            self.tx.fail();
        }
        self.participants.insert(participant.shard, participant);
    }

    /// Runs statements inside the open transaction.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn run_inside(
        &mut self,
        input: &Input<'_>,
        range: Range<usize>,
        route: &Route,
        topology: &Topology,
    ) -> Result<Flow, Gone> {
        let shard = match self.shard_of(input, range.start, route, topology) {
            Ok(shard) => shard,
            Err(fault) => return Ok(self.fault(&fault).await),
        };
        let work = input.work(range.start, range.end);
        let mut search = Search::new(shard);
        loop {
            let joined = self
                .join(&mut search, input.at(input.lead(&range)), route, topology)
                .await;
            let Picked {
                mut participant,
                guard,
                kept,
            } = match joined {
                Ok(picked) => picked,
                Err(fault) => return Ok(self.fault(&fault).await),
            };
            let waited_ms = search.waited_ms();
            let first = self.tx.is_untouched() && self.participants.is_empty();
            let mark = self.client.mark();
            participant.wrote |= may_write(input, &range, route.access);
            match self.attempt(&mut participant, guard, &work, topology).await {
                Err(Trouble::Gone(gone)) => return Err(gone),
                Err(Trouble::Lost(fault)) => {
                    let place = participant.place;
                    search.tried.push((*participant.address).clone());
                    if first && place == Place::Replica && self.client.holds(mark) {
                        self.throw_away(participant);
                        self.client.cut(mark);
                        continue;
                    }
                    self.lose(participant);
                    return self.report_loss(&fault).await;
                }
                Ok(Attempt::Unproved(fields)) => {
                    let place = participant.place;
                    self.dismiss(participant).await;
                    if let Some(flow) = self.unproved(place, shard, (topology, &fields)).await {
                        return Ok(flow);
                    }
                }
                Ok(Attempt::Refused(fields)) => {
                    self.refuse(participant).await;
                    self.fail_with(&fields).await;
                    return Ok(Flow::Failed { parsed: 0 });
                }
                Ok(Attempt::Ran {
                    script,
                    waited_ms: by_server,
                }) => {
                    self.note_answer(&participant, route, (kept, waited_ms + by_server));
                    let again = self.startable_over(&script, mark).filter(|_| first);
                    if let Some(fields) = again {
                        self.client.cut(mark);
                        self.dismiss(participant).await;
                        return Ok(Flow::Again(fields));
                    }
                    let shard = participant.shard;
                    let flow = self.ran_inside(input, range.clone(), participant, script);
                    return match flow {
                        Flow::Next(_) => self.spread_settings(input, range, shard).await,
                        other => Ok(other),
                    };
                }
            }
        }
    }

    fn ran_inside(
        &mut self,
        input: &Input<'_>,
        range: Range<usize>,
        mut participant: Participant,
        script: Script,
    ) -> Flow {
        self.tx.note_statement();
        for index in range.clone() {
            self.note_effects(&input.at(index), &mut participant, &script);
            self.note_portal(input.at(index), participant.shard);
        }
        let failed = script.error.is_some();
        let status = participant.lease.tx_status();
        let begun = participant.begun;
        match begun {
            true => drop(self.participants.insert(participant.shard, participant)),
            false => self.give_back(participant),
        }
        if failed {
            self.seen.count(Counted::Errors, 1);
            self.tx.fail();
        }
        if begun && status == TxStatus::Idle && self.tx.block() == Block::Explicit {
            // PREPARE TRANSACTION took it away, or rolled it back.
            let rolled_back = script.tags.last().is_some_and(|tag| tag == "ROLLBACK");
            self.settle_settings(!failed && !rolled_back);
            for (_, gone) in std::mem::take(&mut self.participants) {
                self.give_back(gone);
            }
            self.tx.end();
        }
        match failed {
            true => Flow::Failed {
                parsed: script.parsed,
            },
            false => Flow::Next(range.end),
        }
    }

    /// The participant of a shard, or a new one.
    async fn join(
        &mut self,
        search: &mut Search,
        asked: Asked<'_>,
        route: &Route,
        topology: &Topology,
    ) -> Result<Picked, Fault> {
        if let Some(participant) = self.participants.remove(&search.shard) {
            return Ok(Picked::freely(participant));
        }
        if let Some(Kind::Set { name, .. }) = asked.statement().map(|statement| &statement.kind)
            && name.starts_with("transaction_")
        {
            // What it says of the transaction counts for where it runs itself.
            self.tx.heed(asked.sql());
        }
        self.pick(search, asked.statement(), route, topology).await
    }

    /// Which shard a run goes to; a portal is resumed where it was opened, and what any shard can
    /// answer goes where the transaction is already.
    fn shard_of(
        &self,
        input: &Input<'_>,
        index: usize,
        route: &Route,
        topology: &Topology,
    ) -> Result<ShardNumber, Fault> {
        if let Asked::Extended(step) = input.at(index)
            && let Some(shard) = step.resumes
        {
            return Ok(shard);
        }
        match route.target {
            Target::Shard(shard) => Ok(shard),
            Target::Any | Target::All(_) => self.anywhere(topology),
        }
    }

    /// Where a statement goes that any shard can answer.
    pub(super) fn anywhere(&self, topology: &Topology) -> Result<ShardNumber, Fault> {
        let home = self.home(topology)?;
        Ok(match (self.pin, self.participants.keys().next()) {
            (Some((pinned, _)), _) => pinned,
            (None, Some(_)) if self.participants.contains_key(&home) => home,
            (None, Some(shard)) => *shard,
            (None, None) => home,
        })
    }

    /// Sends a run to a server and moves its answers to the client.
    pub(super) async fn attempt(
        &mut self,
        participant: &mut Participant,
        guard: Option<(lsn::Position, u64)>,
        work: &Work<'_>,
        topology: &Topology,
    ) -> Result<Attempt, Trouble> {
        if self
            .pin
            .is_some_and(|pin| pin::is_lasting(pin, participant.shard))
        {
            participant.lease.mark_lasting();
        }
        if let Err(fault) = self.ensure_needed(participant).await {
            let Fault::Node(_) = fault else {
                return Err(Trouble::Lost(fault));
            };
            let fields = ErrorFields::from(&fault);
            self.report(&fields);
            let mut script = Script::default();
            script.error = Some(fields);
            return Ok(Attempt::Ran {
                script,
                waited_ms: 0,
            });
        }
        let mut ahead = match self.prepare_ahead(participant, topology).await {
            Ok(ahead) => ahead,
            Err(fault @ Fault::Node(_)) => {
                return Ok(Attempt::Refused(ErrorFields::from(&fault)));
            }
            Err(fault) => return Err(Trouble::Lost(fault)),
        };
        if let Some((floor, budget_ms)) = guard {
            ahead.guard(Guard::wait_position(floor, budget_ms));
        }
        let sent = guard.is_some().then(Instant::now);
        let mut waited_ms = 0;
        let conn = &mut *participant.lease;
        let begun = work.is_begun();
        let mut script = match begun {
            true => {
                // Without a Sync behind it a guard is answered because of this.
                let mut answer = BytesMut::new();
                frontend::flush(&mut answer);
                conn.send_ahead(&ahead, &answer).await?;
                Script::default()
            }
            false => forward::send(conn, &ahead, work).await?,
        };
        if !ahead.is_empty() {
            let settled = forward::settle(conn, &ahead).await?;
            self.client.put_pushed(&conn.take_pushed());
            if let Guarded::Failed(fields) = settled.guard {
                return Ok(Attempt::Unproved(fields));
            }
            if let Some(fields) = settled.error() {
                return Ok(Attempt::Refused(fields.clone()));
            }
        }
        if begun {
            script = forward::begin(conn, work).await?;
            long::pour(self.client, conn, work).await?;
        }
        if let (Some((floor, _)), Some(sent), Some(incarnation)) = (guard, sent, conn.incarnation())
        {
            waited_ms = u64::try_from(sent.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.cluster
                .note_proof(&participant.address, incarnation, floor);
        }
        self.relay(participant, &mut script, work.is_extended())
            .await?;
        Ok(Attempt::Ran { script, waited_ms })
    }

    /// Moves answers to the client until all have come, within the limit for a statement.
    pub(super) async fn relay(
        &mut self,
        participant: &mut Participant,
        script: &mut Script,
        extended: bool,
    ) -> Result<(), Trouble> {
        loop {
            match self.drive_within_limit(participant, script).await? {
                Progress::Done => return Ok(()),
                Progress::CopyIn => {
                    self.sync_ignored |= extended && self.synced;
                    copy::feed(self.client, &mut participant.lease, (script, extended)).await?;
                }
            }
        }
    }

    async fn drive_within_limit(
        &mut self,
        participant: &mut Participant,
        script: &mut Script,
    ) -> Result<Progress, Trouble> {
        let mut sink = Sink::Client(&mut *self.client);
        let Some(limit) = self.settings.query_timeout else {
            return forward::drive(&mut participant.lease, script, &mut sink).await;
        };
        let token = participant.lease.cancel_token();
        let driving = forward::drive(&mut participant.lease, script, &mut sink);
        tokio::pin!(driving);
        tokio::select! {
            progress = &mut driving => progress,
            () = tokio::time::sleep(limit) => {
                tracing::info!(limit_ms = limit.as_millis(), "query timeout");
                token.cancel(CANCEL_LIMIT).await.map_err(Trouble::Lost)?;
                driving.await
            }
        }
    }

    /// The error of a statement that was routed by an older topology, if nothing that came of it
    /// has reached the client.
    pub(super) fn startable_over(&self, script: &Script, mark: Mark) -> Option<ErrorFields> {
        let fields = script
            .error
            .as_ref()
            .filter(|fields| faults::is_stale_topology(fields))?;
        self.client.holds(mark).then(|| fields.clone())
    }
}

/// Whether statements write, or run code that may do so whatever their texts say.
fn may_write(input: &Input<'_>, range: &Range<usize>, access: Access) -> bool {
    let mut statements = range
        .clone()
        .filter_map(|index| input.at(index).statement());
    let calls = statements.any(|statement| !statement.functions.called.is_empty());
    input.executes(range) && (access == Access::Write || calls)
}

/// Pause after a guard that failed before its time, in ms.
pub(super) const GUARD_PAUSE_MS: u64 = 10;
