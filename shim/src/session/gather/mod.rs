//! A read over several shards: each finds its own rows, and the client sees one result.
//!
//! ```text
//!   lend a connection to every shard, each by its floor
//!   describe    shard 0 tells types, where they matter     (an order, groups)
//!   run         all shards at once
//!   merge       side by side | in order | collected, and finished by shard 0
//! ```
//! Nothing is kept but a row of each shard, or what must be finished, up to a limit.

mod ask;
mod job;
mod keys;
mod merge;
mod part;
mod rows;

use std::sync::Arc;

use pgdog_core::fault::Fault;

use super::client::{Gone, Mark};
use super::dispatch::Flow;
use super::last_route::LastRoute;
use super::party::Place;
use super::read::{Picked, Search};
use super::steps::{Asked, Input};
use super::{Session, faults};
use crate::nodes::Topology;
use crate::observe::Counted;
use crate::plan::{Kind, Unsplit, is_unread};
use crate::proto::TxStatus;
use crate::route::Route;
use ask::Failed;
use job::Job;
use part::{End, Part};

/// What is refused, and why.
pub(super) fn unsplit(unsplit: &Unsplit) -> Fault {
    Fault::Refused {
        what: "this read of rows on several shards".to_owned(),
        why: unsplit.why.clone(),
        hint: Some(
            unsplit
                .hint
                .unwrap_or("Bind the sharding key to a value, or name the shard: SET pgdog.shard.")
                .to_owned(),
        ),
    }
}

/// What came of one try.
enum Tried {
    /// It is answered, or failed.
    Flow(Flow),
    /// Another node may do better.
    Again,
}

impl Tried {
    /// Behind as many Parses that the client was told of.
    fn behind(self, parsed: usize) -> Self {
        match self {
            Tried::Flow(Flow::Failed { .. }) => Tried::Flow(Flow::Failed { parsed }),
            other => other,
        }
    }
}

impl Session<'_> {
    /// Runs a read on every shard and merges what they find.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn gather(
        &mut self,
        input: &Input<'_>,
        at: usize,
        (route, topology): (&Route, &Arc<Topology>),
    ) -> Result<Flow, Gone> {
        let rest = (at + 1..input.len()).any(|index| self.needs_server(input, index));
        if rest || input.is_open_ended() {
            self.begin_implicit();
        }
        let asked = input.at(at);
        let job = match self.job(&asked) {
            Ok(job) => job,
            Err(fault) => return Ok(self.fault(&fault).await),
        };
        self.needed.clear();
        let shards = topology.shards.iter();
        let mut searches: Vec<Search> = shards.map(|nodes| Search::new(nodes.shard)).collect();
        self.tx.gathers = true;
        let flow = loop {
            let tried = self
                .try_gather(&asked, (&job, &mut searches), (route, topology))
                .await;
            match tried {
                Ok(Tried::Again) => {}
                Ok(Tried::Flow(Flow::Next(_))) => break Ok(Flow::Next(at + 1)),
                Ok(Tried::Flow(flow)) => break Ok(flow),
                Err(gone) => break Err(gone),
            }
        };
        self.tx.gathers = false;
        flow
    }

    fn job<'j>(&self, asked: &Asked<'j>) -> Result<Job<'j>, Fault> {
        let statement = asked
            .statement()
            .filter(|statement| statement.kind == Kind::Read)
            .ok_or_else(|| {
                unsplit(&Unsplit {
                    why: "it is not a plain SELECT".to_owned(),
                    hint: None,
                })
            })?;
        let sql = asked.sql();
        if is_unread(sql) || (self.client.is_foreign() && !sql.is_ascii()) {
            return Err(unsplit(&Unsplit {
                why: "its text has characters that cannot be read here".to_owned(),
                hint: Some("SET client_encoding = 'UTF8', or send them as parameters."),
            }));
        }
        let params = statement.params.max(asked.declared().len());
        let split = self
            .services
            .splits
            .get_or_split(sql, params)
            .map_err(|why| unsplit(&why))?;
        Job::new(asked, split)
    }

    async fn try_gather(
        &mut self,
        asked: &Asked<'_>,
        (job, searches): (&Job<'_>, &mut [Search]),
        (route, topology): (&Route, &Arc<Topology>),
    ) -> Result<Tried, Gone> {
        let first = self.may_start_over() && self.participants.is_empty();
        let mut parts = Vec::with_capacity(searches.len());
        for search in searches.iter_mut() {
            match self.join_part(search, asked, (route, topology)).await {
                Ok(part) => parts.push(part),
                Err(fault) => {
                    self.put_parts_back(parts);
                    return Ok(Tried::Flow(self.fault(&fault).await));
                }
            }
        }
        if asked.sql().contains('\\') && parts.iter().any(Part::escapes) {
            self.put_parts_back(parts);
            let fault = unsplit(&Unsplit {
                why: "backslashes in its texts are escapes".to_owned(),
                hint: Some("SET standard_conforming_strings = on"),
            });
            return Ok(Tried::Flow(self.fault(&fault).await));
        }
        let mark = self.client.mark();
        let limit = self.settings.query_timeout;
        let ran = job.run(&mut parts, self.client, limit).await;
        match ran {
            Ok(ran) => {
                self.note_gathered(&parts, (job, ran.how), (route, searches));
                job.put_end(ran.rows, self.client);
                self.tx.note_statement();
                self.put_parts_back(parts);
                if let Some(portal) = job.portal {
                    self.names.portals.remove(portal);
                }
                Ok(Tried::Flow(Flow::Next(0)))
            }
            Err(failed) => {
                let retry = first && self.client.holds(mark);
                let again = retry.then_some(mark);
                let tried = self.failed(parts, failed, again, (searches, topology));
                tried.await.map(|tried| tried.behind(job.parsed()))
            }
        }
    }

    /// What becomes of a try that failed on one of the parts. With `again` nothing of it, nor of a
    /// transaction, has reached anybody.
    async fn failed(
        &mut self,
        parts: Vec<Part>,
        (at, end): Failed,
        again: Option<Mark>,
        (searches, topology): (&mut [Search], &Arc<Topology>),
    ) -> Result<Tried, Gone> {
        let failed = parts.get(at).map(|part| &part.participant);
        let failed = failed.map(|one| (one.place, one.address.clone()));
        if let End::Gone(gone) = end {
            return Err(gone);
        }
        let whole = self.stopped(parts).await;
        match (end, again, failed) {
            (End::Sql(fields), Some(mark), _) if faults::is_stale_topology(&fields) => {
                self.client.cut(mark);
                self.dismiss_parts(whole).await;
                Ok(Tried::Flow(Flow::Again(*fields)))
            }
            (End::Unproved(fields), Some(mark), Some((place, _))) => {
                self.client.cut(mark);
                self.dismiss_parts(whole).await;
                let shard = searches[at].shard;
                let flow = self.unproved(place, shard, (topology, &fields)).await;
                Ok(flow.map_or(Tried::Again, Tried::Flow))
            }
            (End::Lost(fault), Some(mark), Some((Place::Replica, address))) => {
                tracing::warn!(%fault, "replica lost, read goes to another node");
                searches[at].tried.push((*address).clone());
                self.client.cut(mark);
                self.dismiss_parts(whole).await;
                Ok(Tried::Again)
            }
            (End::Sql(fields) | End::Unproved(fields), _, _) => {
                self.put_parts_back(whole);
                self.fail_with(&fields).await;
                Ok(Tried::Flow(Flow::Failed { parsed: 0 }))
            }
            (End::Lost(fault), _, _) => {
                self.put_parts_back(whole);
                self.report_loss(&fault).await.map(Tried::Flow)
            }
            (End::Own(fault), _, _) => {
                self.put_parts_back(whole);
                Ok(Tried::Flow(self.fault(&fault).await))
            }
            (End::Gone(gone), _, _) => Err(gone),
        }
    }

    /// Ends what still runs; returns the parts whose connections are at rest then.
    async fn stopped(&mut self, parts: Vec<Part>) -> Vec<Part> {
        let stops = parts.into_iter().map(|mut part| async {
            let at_rest = part.stop().await;
            (part, at_rest)
        });
        let mut whole = Vec::new();
        for (part, at_rest) in futures_util::future::join_all(stops).await {
            match at_rest {
                true => whole.push(part),
                false if self.tx.is_open() => self.lose(part.participant),
                false => self.throw_away(part.participant),
            }
        }
        whole
    }

    /// A shard's part, with what must go ahead of it.
    async fn join_part(
        &mut self,
        search: &mut Search,
        asked: &Asked<'_>,
        (route, topology): (&Route, &Arc<Topology>),
    ) -> Result<Part, Fault> {
        let picked = match self.participants.remove(&search.shard) {
            Some(participant) => Picked::freely(participant),
            None => {
                self.pick(search, asked.statement(), route, topology)
                    .await?
            }
        };
        let mut part = Part::new(picked.participant, picked.guard);
        part.kept = picked.kept;
        part.note_state();
        match self.prepare_ahead(&mut part.participant, topology).await {
            Ok(ahead) => {
                part.ahead = ahead;
                Ok(part)
            }
            // The transaction may have a part there, which ends with the connection.
            Err(fault) => {
                match self.tx.is_open() {
                    true => self.lose(part.participant),
                    false => self.throw_away(part.participant),
                }
                Err(fault)
            }
        }
    }

    /// Ends the loans, or keeps the parts in the transaction.
    fn put_parts_back(&mut self, parts: Vec<Part>) {
        for mut part in parts {
            let untouched = part.take_back_ahead();
            let participant = part.participant;
            if untouched {
                match participant.lease.tx_status() {
                    TxStatus::Idle => self.give_back(participant),
                    TxStatus::InTransaction | TxStatus::Failed => self.throw_away(participant),
                }
                continue;
            }
            let whole = !participant.lease.is_broken() && participant.lease.in_sync();
            match (self.tx.is_open(), whole) {
                (true, true) => {
                    self.participants.insert(participant.shard, participant);
                }
                (true, false) => self.lose(participant),
                (false, true) if participant.lease.tx_status() == TxStatus::Idle => {
                    self.give_back(participant);
                }
                (false, _) => self.throw_away(participant),
            }
        }
    }

    /// As if they had never been asked.
    async fn dismiss_parts(&mut self, parts: Vec<Part>) {
        for mut part in parts {
            part.take_back_ahead();
            self.dismiss(part.participant).await;
        }
    }

    fn note_gathered(
        &mut self,
        parts: &[Part],
        (job, how): (&Job<'_>, &'static str),
        (route, searches): (&Route, &[Search]),
    ) {
        let mut waited_ms = 0;
        for (part, search) in parts.iter().zip(searches) {
            let looked_ms = job
                .started
                .saturating_duration_since(search.started)
                .as_millis();
            let waited = u64::try_from(looked_ms).unwrap_or(u64::MAX) + part.waited_ms();
            waited_ms = waited_ms.max(waited);
            self.note_answer(&part.participant, route, (part.kept, waited));
        }
        let on_primary = |part: &Part| part.participant.place == Place::Primary;
        self.last_route = LastRoute::Merged {
            shards: parts.len(),
            role: match (parts.iter().any(on_primary), parts.iter().all(on_primary)) {
                (_, true) => "primary",
                (true, false) => "mixed",
                (false, false) => "replica",
            },
            how,
            waited_ms,
        };
        if !self.tx.is_open() {
            self.seen.count(Counted::Transactions, 1);
        }
    }
}
