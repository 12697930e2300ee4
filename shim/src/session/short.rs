//! The short way: a read that concerns nobody but one server.
//!
//! Most messages need little of what the other modules do: one read, outside of any transaction,
//! of a text that was seen before, where there is one node to go to and a connection that has the
//! session's settings. Its bytes go there as they came, those of the answer come back, in one write
//! each, and nothing is allocated.
//!
//! Whatever is not as simple takes the long way: from its start as long as nothing was sent, else
//! from its answer on.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, ShardNumber};

use super::Session;
use super::client::Gone;
use super::effects::is_stale_plan;
use super::forward::{Sink, Trouble};
use super::last_route::LastRoute;
use super::param_values::RoleChoice;
use super::party::{Participant, Place};
use super::prepared::Held;
use super::script::{Item, Script};
use super::settings::Keep;
use crate::nodes::{Address, Topology};
use crate::observe::Counted;
use crate::plan::{Plan, Shape};
use crate::proto::frontend::Types;
use crate::proto::spelling::is_unread;
use crate::proto::{Asked, Request, TxStatus};
use crate::route::{Access, Route, SINGLE_SHARD, Target};
use crate::server::{Conn, Due, Lease, Moment, Pool};

/// The only node that there is for reads, and what a connection to it needs.
#[derive(Debug)]
pub struct Near {
    /// In which all of this is so.
    topology: Arc<Topology>,
    /// Its number.
    picture: u64,
    shard: ShardNumber,
    address: Arc<Address>,
    epoch: Epoch,
    pool: Arc<Pool>,
}

/// The last simple query.
#[derive(Debug, Default)]
pub struct LastRead {
    /// What it is without its constants, if that had to be known; and room for the next one.
    pub shape: Shape,
    /// It was a read, as all texts of that shape are.
    pub all_alike: bool,
}

impl Near {
    fn participant(&self, lease: Lease) -> Participant {
        Participant {
            lease,
            shard: self.shard,
            address: self.address.clone(),
            place: Place::Primary,
            begun: false,
            entered: false,
            wrote_omni: false,
            wrote: false,
        }
    }

    /// Whether the last statement came the short way here, too.
    fn is_route(&self, last: &LastRoute) -> bool {
        let LastRoute::Node {
            address,
            place,
            shard,
            reason,
            waited_ms,
        } = last
        else {
            return false;
        };
        Arc::ptr_eq(address, &self.address)
            && (*place, *shard, *waited_ms) == (Place::Primary, self.shard, 0)
            && matches!(reason, Cow::Borrowed(SINGLE_SHARD))
    }
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
        let (inbox, near) = (self.client.lend_inbox(), self.look_around());
        let (mut served, mut length) = (false, 0);
        if let Some(near) = &near
            && let Some(request) = Request::read(&inbox)
            && let Some(held) = self.takes_short_way(near, &request)
        {
            served = self.there_and_back(near, &request, held, begun).await?;
            length = request.raw.len();
        }
        self.near = near;
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

    /// Whether this is a read. The statement, if it has a name.
    fn takes_short_way(&mut self, near: &Near, request: &Request<'_>) -> Option<Option<Held>> {
        let held = match request.asked {
            Asked::Query(sql) => {
                return self.query_reads(near, read(sql)?).then_some(None);
            }
            Asked::Named { name, .. } => {
                let name = read(name)?;
                self.names.statements.get(name)?
            }
            Asked::Unnamed { sql, types, .. } => {
                let held = self.unnamed(sql, types)?;
                return only_reads(held.plan()?).then_some(None);
            }
        };
        only_reads(held.plan()?).then(|| Some(held.clone()))
    }

    /// Whether a simple query is a read; quickly, if the one before was a read like it.
    fn query_reads(&mut self, near: &Near, sql: &str) -> bool {
        let undivided = near.topology.is_undivided();
        if undivided && self.last_read.all_alike && self.last_read.shape.is_of(sql) {
            return true;
        }
        let Ok(plan) = self.planned(sql, undivided) else {
            return false;
        };
        let reads = only_reads(&plan);
        self.last_read.all_alike = reads && plan.statements.iter().all(|statement| statement.alike);
        reads
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

    /// The place for all reads, if there is only one. Taken out of the session, to be put back.
    fn look_around(&mut self) -> Option<Box<Near>> {
        match self.near.take() {
            Some(near) if near.picture == self.cluster.picture() => Some(near),
            Some(_) | None => self.look_anew(),
        }
    }

    fn look_anew(&mut self) -> Option<Box<Near>> {
        // The number first: a topology that is newer than it is only looked at once more.
        let picture = self.cluster.picture();
        let topology = self.cluster.topology();
        let [nodes] = topology.shards.as_slice() else {
            return None;
        };
        if !nodes.replicas.is_empty() {
            return None;
        }
        let (shard, epoch) = (nodes.shard, nodes.epoch);
        let (address, pool) = self.pool_of(&nodes.primary);
        Some(Box::new(Near {
            topology,
            picture,
            shard,
            address,
            epoch,
            pool,
        }))
    }

    /// A connection that the request can be sent to as it is.
    ///
    /// # Errors
    /// The client has cancelled already.
    fn lend_near(
        &mut self,
        near: &Near,
        held: Option<&Held>,
        now: Instant,
    ) -> Result<Option<Lease>, Fault> {
        let Some(mut lease) = near.pool.checkout_now(now) else {
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
        Ok(Some(lease))
    }

    /// Sends the request and hands on the answer. False when no connection fits, or when it was
    /// routed by an outdated topology: nothing has happened then.
    async fn there_and_back(
        &mut self,
        near: &Near,
        request: &Request<'_>,
        held: Option<Held>,
        begun: Instant,
    ) -> Result<bool, Gone> {
        let (due, held) = (due(request), held.as_ref());
        let mut lease = match self.lend_near(near, held, begun) {
            Ok(Some(lease)) => lease,
            Ok(None) => return Ok(false),
            Err(fault) => return self.tell_fault(&fault, due).await,
        };
        self.tell_news(&mut lease);
        match self.exchange(&mut lease, request, held, due).await {
            Ok(true) => {
                self.seen.count(Counted::Queries, 1);
                self.seen.count(Counted::Transactions, 1);
                self.note_plain_route(near);
                match lease.left().is_some() || lease.has_pushed() {
                    true => self.give_back(near.participant(lease)),
                    false => {
                        self.running.remove(&lease.cancel_token());
                        drop(lease);
                    }
                }
                Ok(true)
            }
            Ok(false) => self.go_on(near.participant(lease), held, due).await,
            Err(trouble) => self.go_wrong(near.participant(lease), due, trouble).await,
        }
    }

    /// Tells whether the whole answer was handed on; if not, none of it was read.
    async fn exchange(
        &mut self,
        conn: &mut Conn,
        request: &Request<'_>,
        held: Option<&Held>,
        due: Due,
    ) -> Result<bool, Trouble> {
        match held {
            Some(held) => {
                self.renamed.clear();
                request.write_named(&held.server_name, &mut self.renamed);
                send(conn, &self.renamed, due).await?;
            }
            None => send(conn, request.raw, due).await?,
        }
        let client = &mut *self.client;
        let alone = poll_fn(|context| match conn.poll_plain(context, due) {
            Poll::Ready(plain) => Poll::Ready(Some(plain)),
            Poll::Pending if client.stirs(context) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        let plain = match alone.await {
            Some(plain) => plain,
            // It has sent more, or has left.
            None => Sink::Client(client).watching(conn.plain(due)).await?,
        };
        let Some(length) = plain? else {
            return Ok(false);
        };
        conn.take_plain(length, |answer| self.client.out.extend_from_slice(answer))?;
        Ok(true)
    }

    /// As [`Session::note_route`], which costs more.
    fn note_plain_route(&mut self, near: &Near) {
        self.seen.count(Counted::Primary, 1);
        if !near.is_route(&self.last_route) {
            self.last_route = LastRoute::Node {
                address: near.address.clone(),
                place: Place::Primary,
                shard: near.shard,
                reason: SINGLE_SHARD.into(),
                waited_ms: 0,
            };
        }
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

async fn send(conn: &mut Conn, messages: &[u8], due: Due) -> Result<(), Fault> {
    let rest = conn.begin_plain(messages, due)?;
    match rest.is_empty() {
        true => Ok(()),
        false => conn.end_plain(&rest).await,
    }
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
