//! What happens to each statement of a message, in order. The page to read first.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::Session;
use super::client::Gone;
use super::prepared::Prepared;
use super::steps::{Asked, Input};
use super::tx::Block;
use crate::nodes::Topology;
use crate::observe::Counted;
use crate::plan::Kind;
use crate::proto::ErrorFields;
use crate::route::{Access, AllReason, Route, Target};

/// Bytes of statements that are sent to a server in one write at most.
///
/// So few that they fit into the sockets' buffers: what a server answers meanwhile must not pile
/// up here.
const RUN_BYTES: usize = 64 << 10;

/// What came of a statement, or of several that were sent together.
#[derive(Debug)]
pub enum Flow {
    /// Go on with this one.
    Next(usize),
    /// It was routed by an older topology than a node's, and nothing has happened: again.
    Again(ErrorFields),
    /// The client was told of an error.
    Failed {
        /// How many Parses of the failed run were answered before.
        parsed: usize,
    },
}

/// Between two attempts to learn of a newer topology.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

impl Session<'_> {
    /// Runs all statements of a message, up to the first that fails; tells whether none did.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn run_steps(&mut self, input: &Input<'_>) -> Result<bool, Gone> {
        let mut deadline = None;
        let mut at = 0;
        while at < input.len() {
            match self.statement(input, at).await? {
                Flow::Next(next) => {
                    self.note_accepted(input, at, next);
                    self.seen.count(Counted::Queries, (next - at) as u64);
                    at = next;
                }
                Flow::Again(fields) => {
                    tracing::debug!(sqlstate = fields.code, "stale topology, routing again");
                    let patience = self.settings.checkout_timeout;
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
                    let refreshed = self.cluster.refresh().await;
                    if refreshed.is_err() {
                        // A node that has just refused may only be slow to tell why.
                        tokio::time::sleep(REFRESH_PAUSE).await;
                    }
                    if Instant::now() > deadline {
                        self.fail_with(&fields).await;
                        self.forget_names(input, at, 0);
                        return Ok(false);
                    }
                }
                Flow::Failed { parsed } => {
                    self.forget_names(input, at, parsed);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// One statement, together with those behind it that can travel in the same write.
    async fn statement(&mut self, input: &Input<'_>, at: usize) -> Result<Flow, Gone> {
        let asked = input.at(at);
        if let Asked::Extended(step) = asked
            && step.only_closes()
        {
            return self.close(input, at, step).await;
        }
        let kind = asked.statement().map(|statement| &statement.kind);
        if self.tx.is_failed()
            && !kind.is_some_and(may_end_failure)
            && !self.has_its_own_end(&asked)
        {
            return Ok(self.fault(&Fault::AbortedTransaction).await);
        }
        match kind {
            Some(kind) if is_control(kind) => self.control(&asked, at, kind).await,
            Some(kind) if self.is_own(kind, &asked) => self.intercept(&asked, at, kind).await,
            _ => {
                if let Some(flow) = self.prepared_by_sql(input, at).await? {
                    return Ok(flow);
                }
                let flow = self.routed(input, at).await?;
                match flow {
                    Flow::Next(_) => self.bring_defaults_back(&asked, flow).await,
                    Flow::Again(_) | Flow::Failed { .. } => Ok(flow),
                }
            }
        }
    }

    /// What a server has another answer for in a failed transaction than that it is failed: a text
    /// that is empty or no SQL, and PREPARE TRANSACTION, which rolls it back.
    fn has_its_own_end(&self, asked: &Asked<'_>) -> bool {
        let statement = asked.statement().filter(|_| asked.executes());
        if statement.is_some_and(|statement| statement.kind == Kind::TwoPhase) {
            return !self.participants.is_empty();
        }
        match asked {
            Asked::Simple { statement, .. } => statement.is_none() && !self.participants.is_empty(),
            Asked::Extended(step) => {
                let text = |subject: &Prepared| {
                    let plan = subject.plan();
                    plan.is_some_and(|plan| !plan.statements.is_empty())
                };
                !step.subject.as_deref().is_some_and(text) && !self.participants.is_empty()
            }
        }
    }

    /// A statement for a server.
    pub(super) async fn routed(&mut self, input: &Input<'_>, at: usize) -> Result<Flow, Gone> {
        let mut topology = self.cluster.topology();
        self.asks_for_values = false;
        // What is only parsed or described travels with the next statement that is run.
        let behind = at + self.count_silent(input, at);
        let lead = match behind < input.len() && behind > at && self.may_join(input, at, behind) {
            true => behind,
            false => at,
        };
        let mut asked = input.at(lead);
        let mut next = lead + 1;
        let mut decided = self.decide(&asked, &topology).await;
        if lead > at && !matches!(&decided, Ok(route) if !matches!(route.target, Target::All(_))) {
            // It has an answer of its own, also when that statement is refused.
            asked = input.at(at);
            next = behind;
            decided = self.decide(&asked, &topology).await;
        }
        if matches!(decided, Err(Fault::UndeclaredTable { .. }))
            && let Ok(newer) = self.cluster.refresh().await
        {
            // Another shim may have declared it a moment ago.
            topology = newer;
            decided = self.decide(&asked, &topology).await;
        }
        let route = match decided {
            Ok(route) => route,
            Err(fault) => {
                let fault = self.undeclared(&asked, fault).await;
                return Ok(self.fault(&fault).await);
            }
        };
        if self.answer_when_busy(&asked, &topology) {
            return Ok(Flow::Next(at + 1));
        }
        if let Some(flow) = self.check_floors(&route, &topology).await {
            return Ok(flow);
        }
        if let Err(fault) = self.check_state(&asked, &route, topology.shards.len()) {
            return Ok(self.fault(&fault).await);
        }
        if input.is_several() && bars_transaction(&asked) {
            // Statements of one query are a transaction, in which a server refuses this one.
            self.begin_implicit();
        }
        self.needed = self.needed_by_all(input, at..next);
        let several = topology.shards.len() > 1;
        if matches!(route.target, Target::All(_)) && several && !asked.executes() {
            return Ok(self.fault(&bound_only()).await);
        }
        if route.target == Target::All(AllReason::Read) {
            return self.gather(input, at, (&route, &topology)).await;
        }
        if let Target::All(reason) = route.target {
            let alone = topology.shards.len() == 1 && reason != AllReason::OmniWrite;
            if !alone {
                return self.everywhere(input, at, reason).await;
            }
        }
        let mut route = route;
        let next = self.join_more(input, at..next, &mut route, &topology).await;
        self.needed = self.needed_by_all(input, at..next);
        let rest_needs_server = (next..input.len()).any(|index| self.needs_server(input, index));
        if self.tx.block() == Block::Idle && (rest_needs_server || input.is_open_ended()) {
            self.begin_implicit();
        }
        match self.tx.is_open() {
            true => self.run_inside(input, at..next, &route, &topology).await,
            false => self.run_alone(input, at..next, &route, &topology).await,
        }
    }

    /// How far the statements go that can travel in the same write as these.
    async fn join_more(
        &mut self,
        input: &Input<'_>,
        first: Range<usize>,
        route: &mut Route,
        topology: &Arc<Topology>,
    ) -> usize {
        let Range {
            start,
            end: mut next,
        } = first;
        let mut bytes: usize = (start..next).map(|index| input.len_bytes(index)).sum();
        while next < input.len() && self.may_join(input, start, next) {
            bytes += input.len_bytes(next);
            if bytes > RUN_BYTES {
                break;
            }
            if !input.at(next).leads() {
                next += 1;
                continue;
            }
            let keeps = self.keeps_state(&input.at(next));
            let Ok(more) = self.decide(&input.at(next), topology).await else {
                break;
            };
            let elsewhere = more.target != route.target || matches!(more.target, Target::All(_));
            if elsewhere || !matches!(keeps, Ok(None)) {
                break;
            }
            if more.access == Access::Write {
                route.access = Access::Write;
            }
            next += 1;
        }
        next
    }

    /// Whether statement `next` may travel together with statement `first`.
    fn may_join(&self, input: &Input<'_>, first: usize, next: usize) -> bool {
        let plain = |index: usize| {
            let kind = input.at(index).statement().map(|statement| &statement.kind);
            matches!(kind, Some(Kind::Read | Kind::Write)) || self.is_silent(input, index)
        };
        let resumes = match input.at(next) {
            Asked::Simple { .. } => false,
            Asked::Extended(step) => step.resumes.is_some(),
        };
        plain(first) && plain(next) && !resumes
    }

    /// How many messages from here on only parse, describe or close.
    fn count_silent(&self, input: &Input<'_>, at: usize) -> usize {
        (at..input.len())
            .take_while(|index| self.is_silent(input, *index))
            .count()
    }

    /// Nothing is run, and a server has the answer.
    fn is_silent(&self, input: &Input<'_>, index: usize) -> bool {
        let asked = input.at(index);
        let kind = asked.statement().map(|statement| &statement.kind);
        !asked.leads() && !kind.is_some_and(|kind| is_control(kind) || self.is_own(kind, &asked))
    }

    /// Whether a server is needed for one of the statements.
    pub(super) fn needs_server(&self, input: &Input<'_>, index: usize) -> bool {
        let asked = input.at(index);
        let kind = asked.statement().map(|statement| &statement.kind);
        !kind.is_some_and(|kind| self.is_own(kind, &asked))
    }

    /// Refuses, or prepares for, what keeps state on one server connection.
    fn check_state(
        &mut self,
        asked: &Asked<'_>,
        route: &Route,
        shards: usize,
    ) -> Result<(), Fault> {
        let two_phase = asked.statement().is_some_and(|s| s.kind == Kind::TwoPhase);
        if two_phase && shards > 1 {
            return Err(Fault::Refused {
                what: "a two-phase commit of the client's own".to_owned(),
                why: "the transaction may have parts on several shards".to_owned(),
                hint: Some("COMMIT does it in two phases by itself.".to_owned()),
            });
        }
        let Some(why) = self.keeps_state(asked)? else {
            return Ok(());
        };
        let shard = match route.target {
            Target::Shard(shard) => shard,
            Target::Any => self.keeper()?,
            Target::All(_) if shards == 1 => self.keeper()?,
            Target::All(_) => {
                return Err(Fault::Refused {
                    what: format!("{why} on several shards"),
                    why: "a client keeps state on one server only".to_owned(),
                    hint: None,
                });
            }
        };
        self.pin(shard, why)
    }

    /// The shard whose connection is kept, or would be.
    pub(super) fn keeper(&self) -> Result<ShardNumber, Fault> {
        match self.pin {
            Some((shard, _)) => Ok(shard),
            None => self.home(&self.cluster.topology()),
        }
    }

    /// Reports an error of the shim's own.
    pub(super) async fn fault(&mut self, fault: &Fault) -> Flow {
        self.fail_with(&ErrorFields::from(fault)).await;
        Flow::Failed { parsed: 0 }
    }

    /// Opens the transaction that the statements of one message form.
    pub(super) fn begin_implicit(&mut self) {
        if self.tx.block() == Block::Idle {
            self.tx.begin_implicit();
            self.params.begin();
        }
    }

    /// After an error: statements whose Parse was not answered do not exist.
    fn forget_names(&mut self, input: &Input<'_>, from: usize, parsed: usize) {
        let Input::Extended { steps, .. } = input else {
            return;
        };
        let messages = steps[from..].iter().flat_map(|step| &step.messages);
        let parses = messages.filter_map(|message| match message {
            super::batch::Message::Parse { name, .. } => Some(*name),
            _ => None,
        });
        for name in parses.skip(parsed) {
            self.names.statements.remove(name);
        }
    }
}

/// A portal is on one server.
fn bound_only() -> Fault {
    Fault::Refused {
        what: "a portal on several shards".to_owned(),
        why: "it is bound and executed in different batches".to_owned(),
        hint: Some("Send Bind and Execute before the same Sync or Flush.".to_owned()),
    }
}

/// BEGIN, COMMIT and the like.
pub(super) fn is_control(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Begin { .. }
            | Kind::Commit { .. }
            | Kind::Rollback { .. }
            | Kind::Savepoint(_)
            | Kind::RollbackTo(_)
            | Kind::Release(_)
    )
}

/// VACUUM and the like.
fn bars_transaction(asked: &Asked<'_>) -> bool {
    let statement = asked.statement();
    let barred = Kind::Ddl {
        transactional: false,
    };
    statement.is_some_and(|statement| statement.kind == barred)
}

/// What is accepted in a failed transaction.
fn may_end_failure(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Commit { .. } | Kind::Rollback { .. } | Kind::RollbackTo(_)
    )
}
