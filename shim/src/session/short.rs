//! The short way: a read that concerns nobody but one server.
//!
//! Most messages need little of what the other modules do: one read, outside of any transaction,
//! of a text that was seen before, where there is one node to go to and a connection that has the
//! session's settings. Its bytes go there as they came, those of the answer come back, in one write
//! each, and nothing is allocated.
//!
//! Whatever is not as simple takes the long way: from its start as long as nothing was sent, else
//! from its answer on.

use std::sync::Arc;
use std::time::Instant;

use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, ShardNumber};

use super::Session;
use super::client::Gone;
use super::effects::is_stale_plan;
use super::forward::{Sink, Trouble};
use super::param_values::RoleChoice;
use super::party::{Participant, Place};
use super::prepared::Held;
use super::script::{Item, Script};
use super::settings::Keep;
use crate::nodes::{Address, Topology};
use crate::observe::Counted;
use crate::plan::Plan;
use crate::proto::frontend::Types;
use crate::proto::spelling::is_unread;
use crate::proto::{Asked, Request, TxStatus};
use crate::route::{Access, Route, SINGLE_SHARD, Target};
use crate::server::{Due, Moment, Pool};

/// The only node that there is for reads, and what a connection to it needs.
#[derive(Debug)]
pub struct Near {
    /// In which all of this is so.
    topology: Arc<Topology>,
    shard: ShardNumber,
    address: Arc<Address>,
    epoch: Epoch,
    pool: Arc<Pool>,
}

impl Session<'_> {
    /// Serves the message at the head of what the client has sent if it may go the short way;
    /// tells whether it did.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn short_way(&mut self, begun: Instant) -> Result<bool, Gone> {
        if !self.is_free() {
            return Ok(false);
        }
        let inbox = self.client.lend_inbox();
        let (mut served, mut length) = (false, 0);
        if let Some(request) = Request::read(&inbox)
            && let Some(held) = self.takes_short_way(&request)
        {
            served = self.there_and_back(&request, held.as_ref(), begun).await?;
            length = request.raw.len();
        }
        self.client.put_back(inbox, if served { length } else { 0 });
        if served {
            self.end_message(begun).await?;
        }
        Ok(served)
    }

    /// Whether the session has nothing open, kept or wanted that a message must be seen with.
    fn is_free(&self) -> bool {
        let own = self.params.own();
        !self.tx.is_open()
            && !self.skipping
            && self.put_aside.is_none()
            && self.pin.is_none()
            && self.keep != Keep::Session
            && !self.names.own
            && !self.client.is_foreign()
            && self.settings.query_timeout.is_none()
            && own.role != RoleChoice::Replica
            && own.min_lsn.is_empty()
            && own.min_commit_timestamp.is_none()
            && (!own.read_your_writes || self.own_floor.is_empty())
            && own.shard.is_none()
            && own.sharding_key.is_none()
    }

    /// Whether this is a read with only one place to go. The statement, if it has a name.
    fn takes_short_way(&mut self, request: &Request<'_>) -> Option<Option<Held>> {
        let topology = self.cluster.topology();
        let known = self.near.as_ref();
        if !known.is_some_and(|near| Arc::ptr_eq(&near.topology, &topology)) {
            self.near = self.look_around(topology);
        }
        let undivided = self.near.as_ref()?.topology.is_undivided();
        let held = match request.asked {
            Asked::Query(sql) => {
                let planned = self.planned(read(sql)?, undivided);
                return only_reads(&*planned.ok()?).then_some(None);
            }
            Asked::Named { name, .. } => {
                let name = read(name)?;
                self.names.statements.get(name)?.clone()
            }
            Asked::Unnamed { sql, types, .. } => {
                let held = self.unnamed(sql, types)?;
                return only_reads(held.plan()?).then_some(None);
            }
        };
        only_reads(held.plan()?).then_some(Some(held))
    }

    /// The unnamed statement, which has this text from now on if that is a read.
    fn unnamed(&mut self, sql: &[u8], types: Types<'_>) -> Option<&Held> {
        let sql_text = read(sql)?;
        let statements = &mut self.names.statements;
        let before = statements.get_mut("");
        let same = before.filter(|before| before.is_same_as(sql, types.iter()));
        match same {
            Some(same) => same.since = Moment::now(),
            None => {
                let types = types.iter().collect();
                let (registry, plans) = (&self.services.prepared, &self.services.plans);
                let new = registry.alone(sql_text, types, None, plans);
                if !only_reads(new.plan()?) {
                    return None;
                }
                statements.insert(String::new(), Held::now(new));
            }
        }
        statements.get("")
    }

    /// The place for all reads, if there is only one.
    fn look_around(&mut self, topology: Arc<Topology>) -> Option<Near> {
        let [nodes] = topology.shards.as_slice() else {
            return None;
        };
        if !nodes.replicas.is_empty() {
            return None;
        }
        let (shard, epoch) = (nodes.shard, nodes.epoch);
        let (address, pool) = self.pool_of(&nodes.primary);
        Some(Near {
            topology,
            shard,
            address,
            epoch,
            pool,
        })
    }

    /// A connection that the request can be sent to as it is.
    ///
    /// # Errors
    /// The client has cancelled already.
    fn lend_near(
        &mut self,
        held: Option<&Held>,
        now: Instant,
    ) -> Result<Option<Participant>, Fault> {
        let near = self.near.as_ref();
        let lent = near.and_then(|near| Some((near, near.pool.checkout_now(now)?)));
        let Some((near, mut lease)) = lent else {
            return Ok(None);
        };
        let applied = &lease.applied;
        let fits = applied.fingerprint == self.params.fingerprint()
            && !applied.unknown
            && (near.epoch.0 == 0 || lease.epoch == Some(near.epoch))
            && !self.is_of_old_role(&lease);
        let knows = |held: &Held| {
            let known = lease.prepared_at(&held.server_name);
            known.is_some_and(|known| known > held.since)
        };
        if !fits || !held.is_none_or(knows) {
            return Ok(None);
        }
        lease.forget_commit_lsn();
        self.running.add(near.shard, lease.cancel_token())?;
        Ok(Some(Participant {
            lease,
            shard: near.shard,
            address: near.address.clone(),
            place: Place::Primary,
            begun: false,
            entered: false,
            wrote: false,
        }))
    }

    /// Sends the request and hands on the answer. False when no connection fits, or when it was
    /// routed by an outdated topology: nothing has happened then.
    async fn there_and_back(
        &mut self,
        request: &Request<'_>,
        held: Option<&Held>,
        begun: Instant,
    ) -> Result<bool, Gone> {
        let due = due(request);
        let mut participant = match self.lend_near(held, begun) {
            Ok(Some(participant)) => participant,
            Ok(None) => return Ok(false),
            Err(fault) => return self.tell_fault(&fault, due).await,
        };
        self.tell_news(&mut participant.lease);
        match self.exchange(&mut participant, request, held, due).await {
            Ok(true) => {
                self.seen.count(Counted::Queries, 1);
                self.seen.count(Counted::Transactions, 1);
                self.note_route(&participant, &route_of(participant.shard), 0);
                self.give_back(participant);
                Ok(true)
            }
            Ok(false) => self.go_on(participant, held, due).await,
            Err(trouble) => self.go_wrong(participant, due, trouble).await,
        }
    }

    /// Tells whether the whole answer was handed on; if not, none of it was read.
    async fn exchange(
        &mut self,
        participant: &mut Participant,
        request: &Request<'_>,
        held: Option<&Held>,
        due: Due,
    ) -> Result<bool, Trouble> {
        let conn = &mut *participant.lease;
        match held {
            Some(held) => {
                self.renamed.clear();
                request.write_named(&held.server_name, &mut self.renamed);
                conn.send_plain(&self.renamed, due).await?;
            }
            None => conn.send_plain(request.raw, due).await?,
        }
        let sink = Sink::Client(&mut *self.client);
        let Some(length) = sink.watching(conn.plain(due)).await?? else {
            return Ok(false);
        };
        conn.take_plain(length, |answer| self.client.out.extend_from_slice(answer))?;
        Ok(true)
    }

    /// The request was sent, and its answer takes the long way.
    async fn go_on(
        &mut self,
        mut participant: Participant,
        held: Option<&Held>,
        due: Due,
    ) -> Result<bool, Gone> {
        let mark = self.client.mark();
        let (mut script, extended) = (script(due), due.bind);
        self.synced = extended;
        if let Err(trouble) = self.relay(&mut participant, &mut script, extended).await {
            return self.go_wrong(participant, due, trouble).await;
        }
        self.seen.count(Counted::Transactions, 1);
        self.note_route(&participant, &route_of(participant.shard), 0);
        if self.startable_over(&script, mark).is_some() {
            self.client.cut(mark);
            self.give_back(participant);
            // The long way tries again, and tells if that does not help.
            let _ = self.cluster.refresh().await;
            return Ok(false);
        }
        self.note_commit_of(&participant);
        match &script.error {
            None => self.seen.count(Counted::Queries, 1),
            Some(fields) => {
                self.seen.count(Counted::Errors, 1);
                if let (true, Some(held)) = (is_stale_plan(fields), held) {
                    participant.lease.spoil_prepared(&held.server_name);
                }
                self.forget_unnamed(due.parse && script.parsed == 0);
            }
        }
        match participant.lease.tx_status() {
            TxStatus::Idle => self.give_back(participant),
            // A transaction that came about in a way that the text did not show.
            TxStatus::InTransaction | TxStatus::Failed => self.adopt(participant),
        }
        self.finish_message(true).await?;
        Ok(true)
    }

    /// The client or the connection is lost.
    async fn go_wrong(
        &mut self,
        participant: Participant,
        due: Due,
        trouble: Trouble,
    ) -> Result<bool, Gone> {
        let fault = match trouble {
            Trouble::Gone(gone) => return Err(gone),
            Trouble::Lost(fault) => fault,
        };
        self.throw_away(participant);
        self.tell_fault(&fault, due).await
    }

    /// The request is not answered by a server.
    async fn tell_fault(&mut self, fault: &Fault, due: Due) -> Result<bool, Gone> {
        self.fault(fault).await;
        self.forget_unnamed(due.parse);
        self.finish_message(true).await?;
        Ok(true)
    }

    /// A Parse of the unnamed statement was not answered: there is none.
    fn forget_unnamed(&mut self, failed: bool) {
        if failed {
            self.names.statements.remove("");
        }
    }
}

/// A text as it came, if nothing in it looks like a character that stands for another.
fn read(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok();
    text.filter(|text| !is_unread(text))
}

fn only_reads(plan: &Plan) -> bool {
    matches!(plan.statements.as_slice(), [statement] if statement.only_reads())
}

/// What a server owes for a request.
fn due(request: &Request<'_>) -> Due {
    match request.asked {
        Asked::Query(_) => Due::QUERY,
        Asked::Named { describes, .. } => Due {
            parse: false,
            bind: true,
            describe: describes,
        },
        Asked::Unnamed { describes, .. } => Due {
            parse: true,
            bind: true,
            describe: describes,
        },
    }
}

/// The same as the long way has it.
fn script(due: Due) -> Script {
    let mut script = Script::default();
    if !due.bind {
        script.push(Item::Query);
        return script;
    }
    if due.parse {
        script.push(Item::Parse { shown: true });
    }
    script.push(Item::Bind);
    if due.describe {
        script.push(Item::Describe(None));
    }
    script.push(Item::Execute);
    script.push(Item::Sync);
    script
}

fn route_of(shard: ShardNumber) -> Route {
    Route {
        target: Target::Shard(shard),
        access: Access::Read,
        reason: SINGLE_SHARD.into(),
    }
}
