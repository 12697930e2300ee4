//! One connection to PostgreSQL.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use pgdog_core::fault::Fault;
use pgdog_core::ids::{Epoch, Incarnation};
use pgdog_core::lsn::Lsn;

use super::applied::Applied;
use super::cancel::CancelToken;
use super::ledger::{Copying, Ledger, Noted};
use super::left::Left;
use super::prepared::Moment;
use super::settings::PoolSettings;
use super::stats::ServerInfo;
use super::{Endpoint, faults};
use crate::net::{Dialer, Stream};
use crate::proto::backend::tag;
use crate::proto::frame::{Message, View};
use crate::proto::frontend::{self, Subject};
use crate::proto::{CancelKey, ErrorFields, Frame, ProtocolError, TxStatus, answer, frame, scan};

/// Free space that a read always finds, in bytes.
const READ_SPACE: usize = 8 * 1024;
/// A read buffer that ever was larger is given up once it is empty.
const READ_KEPT: usize = 1 << 20;
/// How much the read buffer grows by when it has less.
const READ_GROWTH: usize = 64 * 1024;

/// A connection that is logged in. Reads and writes are the caller's; the state is kept here.
pub struct Conn {
    pub(super) io: Stream,
    pub(super) input: BytesMut,
    pub(super) ledger: Ledger,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) key: Arc<CancelKey>,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) commit_lsn: Option<Lsn>,
    /// Notifications that came between answers to the shim's own statements.
    pub(super) pushed: BytesMut,
    /// Something is left here that nothing takes away: never for another client.
    pub(super) lasting: bool,
    /// What code has left here, told but not seen to.
    pub(super) left: Option<Box<Left>>,
    /// The `pgdog.epoch` that this server session has; `None` when never set.
    pub epoch: Option<Epoch>,
    /// What its borrowers have set.
    pub applied: Applied,
    /// Names the settings of role and database that this server session began with.
    pub(super) role_settings: u64,
    /// Nobody but who has it now has taken values of sequences here.
    pub sequences_are_own: bool,
    /// When it was logged in.
    pub(super) opened: Moment,
    /// A setting that clients are told of has changed.
    pub(super) news: bool,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) dialer: Arc<Dialer>,
    pub(super) info: Arc<ServerInfo>,
    pub(super) cancels_underway: Arc<AtomicUsize>,
    /// Made when it is asked for, which is when the login is done.
    pub(super) cancel_token: OnceLock<Arc<CancelToken>>,
    dirty: bool,
    /// The read buffer grew beyond what an idle connection should keep.
    swollen: bool,
    /// A write was begun: if it was not finished, half a message is on the wire.
    pub(super) writing: bool,
    /// Bytes still to be sent of a message that was begun.
    pub(super) message_left: usize,
    /// Bytes still to come of a row whose beginning was handed on.
    pub(super) row_left: usize,
    pub(super) broken: Option<&'static str>,
}

/// What is at the head of the read buffer.
#[derive(Debug, Clone, Copy)]
pub enum Head<'a> {
    /// DataRow and CopyData messages, as they came: whole ones, or a piece of a long one.
    Rows(&'a [u8]),
    /// One message of another kind.
    Message(View<'a>),
}

impl Conn {
    pub(super) fn new(io: Stream, endpoint: Arc<Endpoint>, settings: &PoolSettings) -> Self {
        Self {
            io,
            input: BytesMut::with_capacity(READ_GROWTH),
            ledger: Ledger::new(settings.prepared_statements_limit),
            parameters: BTreeMap::new(),
            key: Arc::new(CancelKey::new(0, [0; 4])),
            incarnation: None,
            commit_lsn: None,
            pushed: BytesMut::new(),
            lasting: false,
            left: None,
            epoch: None,
            applied: Applied::default(),
            role_settings: 0,
            sequences_are_own: true,
            opened: Moment::now(),
            news: false,
            endpoint,
            dialer: settings.dialer.clone(),
            info: Arc::new(ServerInfo::new()),
            cancels_underway: Arc::default(),
            cancel_token: OnceLock::new(),
            dirty: false,
            swollen: false,
            writing: false,
            message_left: 0,
            row_left: 0,
            broken: None,
        }
    }

    /// Where this connection leads.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The server start that this connection talks to; `None` without the extension.
    pub fn incarnation(&self) -> Option<&Incarnation> {
        self.incarnation.as_ref()
    }

    /// The latest `pgdog.commit_lsn` that the server pushed on this connection. May stem from an
    /// earlier lease: [`Conn::forget_commit_lsn`] first.
    pub fn commit_lsn(&self) -> Option<Lsn> {
        self.commit_lsn
    }

    /// Makes [`Conn::commit_lsn`] `None` until the next commit.
    pub fn forget_commit_lsn(&mut self) {
        self.commit_lsn = None;
    }

    /// All settings that the server reports, as of now.
    pub fn parameters(&self) -> &BTreeMap<String, String> {
        &self.parameters
    }

    /// Transaction state at the last ReadyForQuery.
    pub fn tx_status(&self) -> TxStatus {
        self.ledger.tx()
    }

    /// Whether a COPY is going on.
    pub fn copying(&self) -> Copying {
        self.ledger.copying()
    }

    /// Whether the server owes nothing and waits for a new batch (maybe inside a transaction).
    pub fn in_sync(&self) -> bool {
        self.ledger.in_sync()
    }

    /// How many ReadyForQuery are to come for what was sent.
    pub fn owed(&self) -> usize {
        self.ledger.owed()
    }

    /// Whether the connection can't be used any more.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some() || self.writing || self.message_left > 0
    }

    /// Whatever comes next from the server fits nothing that was asked: it is not used again.
    pub fn give_up(&mut self, why: &'static str) {
        self.broken.get_or_insert(why);
    }

    /// Whether the next client may have it: at rest, no transaction, no cancel on its way.
    pub(super) fn is_reusable(&self) -> bool {
        let cancels = self.cancels_underway.load(Ordering::SeqCst);
        let at_rest = self.in_sync() && self.tx_status() == TxStatus::Idle;
        !self.is_broken() && !self.lasting && at_rest && cancels == 0
    }

    /// Gives back the memory that a very long message took.
    pub(super) fn shrink(&mut self) {
        if self.swollen && self.input.is_empty() {
            self.input = BytesMut::new();
            self.swollen = false;
        }
    }

    /// Tells the server that the connection ends, if that costs no wait.
    pub(super) fn say_goodbye(&mut self) {
        if self.is_broken() {
            return;
        }
        let mut out = BytesMut::new();
        frontend::terminate(&mut out);
        // The socket is closed next: a server that does not hear this sees the end of the stream.
        let _ = self.io.try_write(&out);
    }

    /// To be called after `DEALLOCATE ALL` or `DISCARD ALL` went through.
    pub fn forget_prepared(&mut self) {
        self.ledger.forget_prepared();
    }

    /// The session's settings were changed in a way that the next client must not see: the
    /// connection is reset before it is lent again.
    pub fn mark_dirty(&mut self) {
        self.dirty = true;
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty || self.left.is_some()
    }

    /// Backend process id, as the server gave it.
    pub fn pid(&self) -> i32 {
        self.key.pid
    }

    /// Sends whole messages in one write.
    ///
    /// What the server says meanwhile is buffered, so that a server that must write before it
    /// reads on does not block both sides; the buffer grows by what the batch's answers hold.
    ///
    /// Cancel safety: not cancel safe; dropped half way, the connection is broken.
    ///
    /// # Errors
    /// When the connection is lost, or `messages` ends inside a message (nothing is sent then).
    pub async fn send(&mut self, messages: &[u8]) -> Result<(), Fault> {
        self.check()?;
        if self.message_left > 0 {
            return Err(self.lose("a message inside of another one"));
        }
        if frame::frames(messages).any(|message| message.is_err()) {
            return Err(faults::internal("half a message was to be sent"));
        }
        let evicted = self.ledger.take_evicted();
        for (tag, body) in frame::frames(messages).flatten() {
            self.ledger.note_sent(tag, body);
        }
        if evicted.is_empty() {
            return self.write(messages).await;
        }
        let mut out = BytesMut::with_capacity(messages.len() + evicted.len() * 32);
        evicted
            .iter()
            .for_each(|name| frontend::close(Subject::Statement(name), &mut out));
        out.extend_from_slice(messages);
        self.write(&out).await
    }

    /// The next message.
    ///
    /// Cancel safety: what was read stays in the connection.
    ///
    /// # Errors
    /// When the connection is lost or the server breaks the protocol.
    pub async fn recv(&mut self) -> Result<Frame, Fault> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.more().await?;
        }
    }

    /// Shows what came next, where it was read: rows in one piece, as many as are there; a long row
    /// in pieces. `None` when nothing of that is there: [`Conn::more`] waits for it.
    ///
    /// # Errors
    /// When the server breaks the protocol.
    pub fn pass<T>(&mut self, see: impl FnOnce(Head<'_>) -> T) -> Result<Option<T>, Fault> {
        loop {
            if self.row_left == 0 {
                let run = scan(&self.input);
                let run = self.parsed(run)?;
                if run.frames > 0 {
                    let seen = see(Head::Rows(&self.input[..run.len]));
                    self.input.advance(run.len);
                    return Ok(Some(seen));
                }
                if run.stop.is_none() && self.input.is_empty() {
                    return Ok(None);
                }
            }
            let piece = self.piece_of_row();
            if let Some(length) = self.parsed(piece)? {
                let seen = see(Head::Rows(&self.input[..length]));
                self.input.advance(length);
                return Ok(Some(seen));
            }
            if self.row_left > 0 {
                return Ok(None);
            }
            let message = match frame::peek(&self.input) {
                // These are noted with more than the ledger.
                Ok(Some(message))
                    if !matches!(message.tag(), tag::PARAMETER_STATUS | tag::ERROR) =>
                {
                    message
                }
                Ok(_) | Err(_) => {
                    let frame = self.buffered()?;
                    return Ok(frame.map(|frame| see(Head::Message(frame.view()))));
                }
            };
            let noted = self.ledger.note_received(&message);
            if message.tag() == tag::READY {
                self.info
                    .note_batch(self.ledger.tx(), self.ledger.prepared_count());
            }
            let length = message.raw().len();
            if matches!(noted, Ok(Noted::Pass)) {
                let seen = see(Head::Message(message));
                self.input.advance(length);
                return Ok(Some(seen));
            }
            self.parsed(noted)?;
            self.input.advance(length);
        }
    }

    /// The next message if it is already there: lets a caller collect before it writes.
    ///
    /// # Errors
    /// When the server breaks the protocol.
    pub fn buffered(&mut self) -> Result<Option<Frame>, Fault> {
        loop {
            if self.row_left > 0 && !self.skip_row() {
                return Ok(None);
            }
            let taken = frame::take(&mut self.input);
            let Some(frame) = self.parsed(taken)? else {
                return Ok(None);
            };
            let noted = self.note(&frame);
            match self.parsed(noted)? {
                Noted::Pass => return Ok(Some(frame)),
                Noted::Swallow => {}
            }
        }
    }

    /// Looks at a connection that was idle: reads what came meanwhile, finds out if it is closed.
    pub(super) fn refresh(&mut self) -> Result<(), Fault> {
        if !self.input.is_empty() {
            self.absorb()?;
        }
        loop {
            self.make_room();
            match self.io.try_read_buf(&mut self.input) {
                Ok(0) => return Err(self.lose("closed by the server while idle")),
                Ok(_) => self.absorb()?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.check(),
                Err(_) => return Err(self.lose("lost while idle")),
            }
        }
    }

    /// At rest only notices, settings and notifications may come.
    fn absorb(&mut self) -> Result<(), Fault> {
        while let Some(frame) = self.buffered()? {
            match frame.tag() {
                tag::NOTICE | tag::PARAMETER_STATUS | tag::NOTIFICATION => {}
                _ => return Err(self.lose("answers that nobody asked for")),
            }
        }
        Ok(())
    }

    /// Clears what `DISCARD ALL` has cleared on the server.
    pub(super) fn note_reset(&mut self) {
        self.dirty = false;
        self.epoch = None;
        self.applied = Applied::default();
        self.commit_lsn = None;
        self.left = None;
        self.pushed.clear();
        self.sequences_are_own = true;
        self.ledger.forget_prepared();
    }

    /// Marks the connection as unusable when a message can't be read.
    pub(super) fn parsed<T>(&mut self, result: Result<T, ProtocolError>) -> Result<T, Fault> {
        result.map_err(|error| {
            self.broken = Some("broke the protocol");
            faults::lost(&self.endpoint, error)
        })
    }

    pub(super) fn desynchronized(&mut self, what: &'static str) -> Fault {
        self.lose(what)
    }

    pub(super) fn lose(&mut self, why: &'static str) -> Fault {
        self.broken = Some(why);
        faults::lost(&self.endpoint, why)
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.broken {
            Some(why) => Err(faults::lost(&self.endpoint, why)),
            None if self.writing => Err(faults::lost(&self.endpoint, "a write was cut off")),
            None => Ok(()),
        }
    }

    fn note(&mut self, frame: &impl Message) -> Result<Noted, ProtocolError> {
        match frame.tag() {
            tag::PARAMETER_STATUS => {
                let (name, value) = answer::parameter_status(frame.body())?;
                self.note_parameter(name, &value);
            }
            tag::ERROR if ErrorFields::parse(frame.body())?.ends_connection() => {
                self.broken = Some("ended by the server");
            }
            _ => {}
        }
        let noted = self.ledger.note_received(frame)?;
        if frame.tag() == tag::READY {
            self.info
                .note_batch(self.ledger.tx(), self.ledger.prepared_count());
        }
        Ok(noted)
    }

    /// Waits until more has come. Cancel safety: what was read stays in the connection.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn more(&mut self) -> Result<(), Fault> {
        poll_fn(|context| self.poll_more(context)).await
    }

    /// As [`Conn::more`], for one look.
    pub(super) fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.check()?;
        self.make_room();
        Poll::Ready(
            match ready!(self.io.poll_read_buf(context, &mut self.input)) {
                Ok(0) => Err(self.lose("closed by the server")),
                Ok(_) => Ok(()),
                Err(_) => Err(self.lose("connection lost")),
            },
        )
    }

    /// Frames share the buffer's memory; when they are gone it is reused, else a new one is made.
    pub(super) fn make_room(&mut self) {
        if self.input.capacity() - self.input.len() < READ_SPACE {
            self.input.reserve(READ_GROWTH);
        }
        self.swollen |= self.input.capacity() > READ_KEPT;
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("endpoint", &self.endpoint)
            .field("pid", &self.key.pid)
            .field("ledger", &self.ledger)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
