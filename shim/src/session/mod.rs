//! One client's life: accept, authenticate, then over and over
//! read → plan → intercept → route → pool → forward → observe → settle.
//!
//! | file | what it does |
//! |---|---|
//! | `greet`, `auth`, `account` | from accepting to who the client is |
//! | `startup`, `startup_options` | from there to the first ReadyForQuery |
//! | `client`, `inbox` | the client's end: frames in, buffered bytes out |
//! | `batch`, `steps` | pure: what was asked, cut into single statements |
//! | `dispatch` | the page to read first: what happens to each statement |
//! | `intercept`, `control`, `local` | what the shim answers itself |
//! | `params`, `param_values`, `replay` | pure: parameters of the session |
//! | `settings` | pure: what sessions need of the configuration |
//! | `tx`, `commit` | the transaction: its state (pure), and how it ends on several servers |
//! | `decide`, `read`, `balance` | which shard, and which node of it |
//! | `words`, `keep`, `pin` | which statements leave something on their connection, and till when |
//! | `left` | what code has left there, as its server says |
//! | `sequences` | `currval` and `lastval` |
//! | `party`, `running` | server connections on loan, and what cancels them |
//! | `work`, `script`, `forward`, `copy` | messages to servers, answers from them |
//! | `short` | the way of the commonest messages, in one piece |
//! | `execute`, `fanout`, `finish` | a run on one server, a statement on every shard |
//! | `feed`, `spread` | COPY data for several servers |
//! | `one_by_one` | what cannot run in a transaction |
//! | `call`, `closes` | a function call; messages that only close |
//! | `busy` | what is answered while no server is free |
//! | `long`, `semicolons` | messages that pass through unread |
//! | `idle` | waiting for the client |
//! | `effects`, `last_route` | what a statement that ran changes about the session |
//! | `prepared`, `services`, `seats`, `bans` | what sessions share |
//! | `sql_prepared` | PREPARE, EXECUTE and their relatives |
//! | `admin` | the admin database |

mod account;
mod admin;
mod auth;
mod balance;
mod bans;
mod batch;
mod busy;
mod call;
mod client;
mod closes;
mod commit;
mod control;
mod copy;
mod decide;
mod dispatch;
mod effects;
mod execute;
mod fanout;
mod faults;
mod feed;
mod finish;
mod floors;
mod forward;
mod gather;
mod greet;
mod idle;
mod inbox;
mod intercept;
mod keep;
mod last_route;
mod left;
mod local;
mod long;
mod one_by_one;
mod param_values;
mod params;
mod party;
mod pin;
mod prepared;
mod read;
mod replay;
mod running;
mod script;
mod search_path;
mod seats;
mod semicolons;
mod sequences;
mod services;
mod settings;
mod short;
mod spread;
mod sql_prepared;
mod startup;
mod startup_options;
mod steps;
mod two_phase;
mod tx;
mod words;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use pgdog_core::ids::{Incarnation, ShardNumber, Timeline};
use pgdog_core::lsn::{Position, Token};
use pgdog_core::moment::Moment as CommitTime;

use batch::{Batch, End, Names, names_statement, split};
use client::{Client, Gone, Mark};
use idle::Signals;
use last_route::LastRoute;
use params::Params;
use party::Participant;
use prepared::Held;
use running::Running;
use short::{LastRead, Near};
use steps::Input;
use tx::Tx;

use crate::nodes::{Address, Cluster, Guest};
use crate::observe::{self, ClientState, Counted};
use crate::proto::{CancelKey, ErrorFields, Frame, Frontend, TxStatus, backend};
use crate::server::{Leader, Login, Moment, Pool};

pub use account::{Account, Auth, Known};
pub use param_values::Values;
pub use services::{AdminHandler, AdminReply, AdminResult, Services};
pub use settings::{Balancing, Keep, Reads, Settings};
pub use startup::serve;

/// A batch longer than this is worked on before its Sync has come, in bytes.
const BATCH_BYTES: usize = 256 << 10;

/// What a client in session mode is told when its statements must be known from now on.
const NOT_OWN_ANY_MORE: &str =
    "terminating connection: tables of this database were declared, reconnect to use them";

/// Messages of most batches: room for them is made in one go.
const TYPICAL_BATCH: usize = 8;

/// One logged-in client.
struct Session<'a> {
    client: &'a mut Client,
    services: Arc<Services>,
    settings: Arc<Settings>,
    cluster: Arc<Cluster>,
    guest: Guest,
    account: Account,
    login: Login,
    seen: Arc<observe::Client>,
    cancel_key: CancelKey,
    running: Arc<Running>,
    params: Params,
    /// Names of the temporary tables made here.
    temporary: Vec<String>,
    tx: Tx,
    /// Servers that take part in the open transaction.
    participants: BTreeMap<ShardNumber, Participant>,
    /// Shard whose primary connection is kept, and why.
    pin: Option<(ShardNumber, &'static str)>,
    /// The kept connection, unless it takes part in the transaction.
    pinned: Option<Participant>,
    names: Names,
    pools: Vec<(Arc<Address>, Arc<Pool>)>,
    /// Whether this client leads among those who want connections of several pools.
    leader: Leader,
    /// Positions of the last commit, as `SHOW pgdog.commit_lsn` prints them.
    commit_token: Token,
    /// Timelines that the shards' primaries write on, by the life that was met last.
    timelines: BTreeMap<ShardNumber, (Incarnation, Timeline)>,
    /// Positions that cover the commits up to `pgdog.min_commit_timestamp`.
    stamps: BTreeMap<ShardNumber, (CommitTime, Position)>,
    /// Floor raised by own commits, for `pgdog.read_your_writes = session`.
    own_floor: floors::OwnFloor,
    last_route: LastRoute,
    /// A message that came behind a batch without a Sync, to be looked at next.
    put_aside: Option<Frame>,
    /// After an error: everything up to the Sync is ignored.
    skipping: bool,
    /// The current batch ends with a Sync.
    synced: bool,
    /// The server has ignored the batch's Sync, as it came while COPY data was awaited.
    sync_ignored: bool,
    /// State that only a lost connection had (temporary tables, LISTEN ...): why it was kept.
    state_lost: Option<&'static str>,
    /// Placement or definitions changed in the open transaction.
    reshaped: bool,
    /// When the open transaction began.
    tx_since: Option<Instant>,
    /// How long a server connection is kept.
    keep: Keep,
    /// Names the settings of role and database at login, and when they were read.
    role_settings: Option<(u64, Moment)>,
    /// Something that pins may have come or gone.
    touched: bool,
    /// Connections whose loan has ended, on which code has left something.
    held_back: Vec<Participant>,
    /// The kept connection has own values of sequences among those of others: it was not cleared
    /// before the transaction in which it came to be kept.
    values_are_mixed: bool,
    /// The statement at hand asks for values that the session took from sequences.
    asks_for_values: bool,
    /// Statements that the run at hand needs on its connection.
    needed: Vec<Held>,
    /// Where the answers to the current message begin.
    message_mark: Mark,
    /// The current message is a simple query.
    simple_message: bool,
    /// The last simple query, which the next one may be like.
    last_read: LastRead,
    /// The node that messages go to which take the short way.
    near: Option<Box<Near>>,
    /// Room for a message with another name in it.
    renamed: BytesMut,
}

impl<'a> Session<'a> {
    fn new(
        client: &'a mut Client,
        services: Arc<Services>,
        cluster: Arc<Cluster>,
        account: Account,
        seen: Arc<observe::Client>,
    ) -> Self {
        let login = Login {
            user: account.server_user.clone(),
            secret: account.server_secret.clone().unwrap_or_default(),
            params: account.params.clone(),
            number: services.next_login(),
        };
        let (cancel_key, running) = services.enter_cancel(client.protocol_minor);
        let settings = services.settings.load_full();
        let message_mark = client.mark();
        Self {
            client,
            params: Params::new(settings.values.clone(), &login.user),
            settings,
            services,
            guest: cluster.guest(),
            cluster,
            account,
            login,
            seen,
            cancel_key,
            running,
            temporary: Vec::new(),
            tx: Tx::default(),
            participants: BTreeMap::new(),
            pin: None,
            pinned: None,
            names: Names::default(),
            pools: Vec::new(),
            leader: Leader::default(),
            commit_token: Token::default(),
            timelines: BTreeMap::new(),
            stamps: BTreeMap::new(),
            own_floor: floors::OwnFloor::default(),
            last_route: LastRoute::None,
            put_aside: None,
            skipping: false,
            synced: false,
            sync_ignored: false,
            state_lost: None,
            reshaped: false,
            tx_since: None,
            keep: Keep::Transaction,
            role_settings: None,
            touched: false,
            held_back: Vec::new(),
            values_are_mixed: false,
            asks_for_values: false,
            needed: Vec::new(),
            message_mark,
            simple_message: false,
            last_read: LastRead::default(),
            near: None,
            renamed: BytesMut::new(),
        }
    }

    /// Serves the client until it leaves.
    async fn run(&mut self) -> Result<(), Gone> {
        let mut signals = Signals::of(&self.services, &self.cluster);
        loop {
            if self.put_aside.is_none() {
                self.wait_for_client(&mut signals).await?;
            }
            let begun = Instant::now();
            self.running.begin_message();
            self.take_settings();
            self.seen.set_state(ClientState::Active);
            if self.short_way(begun).await? {
                continue;
            }
            let first = match self.put_aside.take() {
                Some(put_aside) => put_aside,
                None => self.client.read_beginning().await?,
            };
            let Some(first) = self.streamed(first, begun).await? else {
                continue;
            };
            if self.names.own && !self.cluster.topology().is_undivided() {
                let divided = faults::plain("57P01", NOT_OWN_ANY_MORE);
                return Err(self.client.dismiss(&divided).await);
            }
            self.message_mark = self.client.mark();
            self.simple_message = first.tag() == b'Q';
            match Frontend::parse(&first)? {
                Frontend::Terminate => return Ok(()),
                Frontend::Query { .. } | Frontend::FunctionCall(_) if self.skipping => {}
                Frontend::Query { sql } => self.simple(sql).await?,
                Frontend::FunctionCall(body) => {
                    self.call(&first, body).await?;
                    self.finish_message(true).await?;
                }
                // Leftovers of a COPY that failed.
                Frontend::CopyData(_) | Frontend::CopyDone | Frontend::CopyFail { .. } => {}
                Frontend::Password(_) => {
                    return Err(Gone::Protocol(crate::proto::ProtocolError::UnknownTag(
                        b'p',
                    )));
                }
                Frontend::Parse { .. }
                | Frontend::Bind(_)
                | Frontend::Describe(_)
                | Frontend::Execute { .. }
                | Frontend::Close(_)
                | Frontend::Sync
                | Frontend::Flush => self.extended(first).await?,
            }
            self.end_message(begun).await?;
        }
    }

    async fn simple(&mut self, sql: &str) -> Result<(), Gone> {
        let planned = self.planned(sql, self.cluster.topology().is_undivided());
        let statements = match &planned {
            Ok(plan) if plan.statements.is_empty() => {
                backend::empty_query(&mut self.client.out);
                return self.finish_message(true).await;
            }
            Ok(plan) => plan.statements.as_slice(),
            Err(_) => &[],
        };
        let input = Input::Simple {
            sql,
            statements,
            further: 0,
        };
        self.run_steps(&input).await?;
        self.finish_message(true).await
    }

    async fn extended(&mut self, first: Frame) -> Result<(), Gone> {
        let (frames, end) = self.read_batch(first).await?;
        self.synced = end == End::Sync;
        let mut went_well = true;
        if !self.skipping {
            let services = self.services.clone();
            self.names.foreign = self.client.foreign_encoding().is_some();
            if frames.iter().any(names_statement) {
                self.names.context = self.meaning();
            }
            let batch = split(
                &frames,
                &mut self.names,
                &services.prepared,
                &services.plans,
            )?;
            went_well = self.run_batch(&batch, end).await?;
            self.skipping = !went_well && end == End::Flush;
        }
        if end == End::Sync {
            let ignored = std::mem::take(&mut self.sync_ignored);
            // The Sync that counts is still to come.
            self.skipping = ignored && !went_well;
            self.finish_message(!ignored).await?;
        }
        Ok(())
    }

    async fn run_batch(&mut self, batch: &Batch<'_>, end: End) -> Result<bool, Gone> {
        let input = Input::Extended {
            steps: &batch.steps,
            end,
        };
        if !self.run_steps(&input).await? {
            return Ok(false);
        }
        match &batch.error {
            Some(fields) => {
                self.fail_with(fields).await;
                Ok(false)
            }
            None => Ok(true),
        }
    }

    /// Reads up to the Sync or Flush, which is not returned; or up to a message of another kind,
    /// which goes on in the same transaction.
    async fn read_batch(&mut self, first: Frame) -> Result<(Vec<Frame>, End), Gone> {
        let mut frames = Vec::with_capacity(TYPICAL_BATCH);
        let mut bytes = 0;
        let mut next = first;
        loop {
            match next.tag() {
                b'S' => return Ok((frames, End::Sync)),
                b'H' => return Ok((frames, End::Flush)),
                b'X' => return Err(Gone::Left),
                b'Q' | b'F' => {
                    self.put_aside = Some(next);
                    return Ok((frames, End::Flush));
                }
                b'B' if self.client.is_long() && self.may_stream() => {
                    frames.push(next);
                    return Ok((frames, End::Flush));
                }
                _ => {
                    next = self.client.complete(next).await?;
                    bytes += next.raw().len();
                }
            }
            frames.push(next);
            if bytes > BATCH_BYTES {
                return Ok((frames, End::Flush));
            }
            next = self.client.read_beginning().await?;
        }
    }

    /// End of a simple query or of a batch: an implicit transaction ends with it.
    async fn finish_message(&mut self, ready: bool) -> Result<(), Gone> {
        if self.tx.block() == tx::Block::Implicit {
            self.finish_implicit().await;
        }
        if !self.tx.is_open() {
            self.names.portals.clear();
        }
        if !self.held_back.is_empty() {
            self.look_at_left().await;
        }
        self.look_at_pin().await;
        if ready {
            let status = match (self.tx.is_open(), self.tx.is_failed()) {
                (false, _) => TxStatus::Idle,
                (true, false) => TxStatus::InTransaction,
                (true, true) => TxStatus::Failed,
            };
            backend::ready_for_query(status, &mut self.client.out);
        }
        Ok(())
    }

    /// Tells the client of an error that some server, or nobody, knows of.
    fn report(&mut self, fields: &ErrorFields) {
        self.seen.count(Counted::Errors, 1);
        backend::error_fields(backend::Severity::Error, fields, &mut self.client.out);
    }

    /// Tells the client of an error of the shim's own and makes it count as one on the servers.
    async fn fail_with(&mut self, fields: &ErrorFields) {
        self.report(fields);
        if self.tx.is_explicit() && !self.tx.is_failed() {
            self.poison().await;
        }
        self.tx.fail();
    }
}

/// Whatever way a session ends, nothing of it stays behind.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Some(mut pinned) = self.pinned.take() {
            pinned.lease.mark_dirty();
        }
        self.services.leave_cancel(&self.cancel_key);
        self.running.clear();
        self.services.clients.leave(&self.seen);
    }
}
