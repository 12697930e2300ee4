//! The client's end of a session: frames in, buffered bytes out.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::Interest;

use crate::net::{Inbound, Stream};
use crate::proto::backend::tag::NOTIFICATION;
use crate::proto::frame::{self, Frame};
use crate::proto::spelling::{Spelling, spell};
use crate::proto::startup::{self, StartupPacket};
use crate::proto::{ErrorFields, ProtocolError, Severity, backend};

/// Answers are collected up to here before they are written, in bytes.
const FLUSH_AT: usize = 64 * 1024;
/// Messages with data that are longer than this are not held but passed on, in bytes.
pub(super) const LONG_BYTES: usize = 1 << 20;
/// A buffer that grew beyond this is given up when it is empty, in bytes.
const KEPT_BYTES: usize = 1 << 20;
/// Room asked for before a read, in bytes.
const READ_ROOM: usize = 16 * 1024;

/// First byte of a TLS handshake. A startup packet that begins with it would be 350 MB long.
const TLS_HANDSHAKE: u8 = 0x16;
/// Pause between two looks at a client that has sent more than was read.
const VANISHED_AGAIN: Duration = Duration::from_millis(500);

/// The client is not there any more, or must be sent away.
#[derive(Debug)]
pub enum Gone {
    /// It closed the connection, with or without Terminate.
    Left,
    /// The connection broke.
    Broken(std::io::Error),
    /// It does not speak the protocol.
    Protocol(ProtocolError),
    /// The session was ended with an error that was sent already.
    Dismissed,
}

impl From<std::io::Error> for Gone {
    fn from(error: std::io::Error) -> Self {
        Gone::Broken(error)
    }
}

impl From<ProtocolError> for Gone {
    fn from(error: ProtocolError) -> Self {
        Gone::Protocol(error)
    }
}

/// A place in the outgoing bytes to which they can be cut back while nothing was written since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    len: usize,
    written_bytes: u64,
}

/// What came while COPY data is awaited.
#[derive(Debug)]
pub enum Copied {
    /// CopyData messages, cut anywhere but in a header.
    Data(Bytes),
    /// A message of another kind.
    Other(Frame),
}

/// The client's connection.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    pub(super) inbox: BytesMut,
    /// Bytes still to come of a message whose beginning was read.
    pub(super) rest: usize,
    /// A row was cut off: nothing more can be said.
    torn: bool,
    /// Answers not written yet.
    pub out: BytesMut,
    /// What the client was told of its settings last.
    reported: BTreeMap<String, String>,
    /// Minor version of the protocol that the client speaks.
    pub protocol_minor: u16,
    /// How its texts are to be read.
    spelling: Spelling,
    /// Process id of the server that works for it, and the one that it was told.
    pids: (i32, i32),
    /// Where in `out` the last CommandComplete begins.
    completion: Option<usize>,
    written_bytes: u64,
    received_bytes: u64,
    counted_bytes: u64,
}

impl Client {
    /// Takes over an accepted connection.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            inbox: BytesMut::new(),
            rest: 0,
            torn: false,
            out: BytesMut::new(),
            reported: BTreeMap::new(),
            protocol_minor: 0,
            spelling: Spelling::default(),
            pids: (0, 0),
            completion: None,
            written_bytes: 0,
            received_bytes: 0,
            counted_bytes: 0,
        }
    }

    /// Whether the client opens with TLS instead of asking for it; None when it left.
    pub async fn begins_with_tls(&mut self) -> Result<Option<bool>, Gone> {
        while self.inbox.is_empty() {
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
        Ok(Some(self.inbox.first() == Some(&TLS_HANDSHAKE)))
    }

    /// Does the handshake; bytes already read are part of it.
    pub async fn accept_tls(&mut self, rules: &Inbound) -> Result<(), Gone> {
        let received = self.inbox.split();
        self.stream.accept(rules, &received).await?;
        Ok(())
    }

    /// Whether bytes are there that were not asked for yet.
    pub fn has_more(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Whether the client is behind TLS.
    pub fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Whether the TLS handshake has agreed on PostgreSQL's protocol.
    pub fn speaks_postgresql(&self) -> bool {
        self.stream.speaks_postgresql()
    }

    /// Hash of the certificate that the client was shown.
    pub fn end_point(&self) -> Option<&[u8]> {
        self.stream.end_point()
    }

    /// Common name in the client's certificate, which was found good.
    pub fn certified_name(&self) -> Option<String> {
        self.stream.peer_name()
    }

    /// The next message of a client that is not known yet.
    pub async fn read_password(&mut self) -> Result<Frame, Gone> {
        loop {
            if let Some(frame) = frame::take_password(&mut self.inbox)? {
                return Ok(frame);
            }
            if self.fill().await? == 0 {
                return Err(Gone::Left);
            }
        }
    }

    /// The next packet of the opening; None when the client left.
    pub async fn read_startup(&mut self) -> Result<Option<StartupPacket>, Gone> {
        loop {
            if let Some(packet) = startup::take_startup(&mut self.inbox)? {
                return Ok(Some(packet));
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Whether there is more to come of the message that was read last.
    pub fn is_long(&self) -> bool {
        self.rest > 0
    }

    /// More of the message that was read last; None when it is whole.
    pub async fn read_rest(&mut self) -> Result<Option<Bytes>, Gone> {
        loop {
            if self.rest == 0 {
                return Ok(None);
            }
            if let Some(piece) = self.piece() {
                return Ok(Some(piece));
            }
            if self.fill().await? == 0 {
                return Err(Gone::Left);
            }
        }
    }

    /// The whole message, of which this is the beginning.
    pub async fn complete(&mut self, beginning: Frame) -> Result<Frame, Gone> {
        if self.rest == 0 {
            return Ok(beginning);
        }
        let mut raw = BytesMut::with_capacity(beginning.raw().len() + self.rest);
        beginning.encode(&mut raw);
        drop(beginning);
        while let Some(piece) = self.read_rest().await? {
            raw.extend_from_slice(&piece);
        }
        let whole = frame::take(&mut raw)?.expect("as many bytes as its length says");
        Ok(self.spelled(whole))
    }

    /// COPY data as it came, or another message.
    ///
    /// Cancel safety: bytes read stay in the buffer.
    pub async fn read_copy(&mut self) -> Result<Copied, Gone> {
        loop {
            if let Some(piece) = self.piece() {
                return Ok(Copied::Data(piece));
            }
            if self.rest == 0 {
                let run = frame::scan_copy_data(&self.inbox)?;
                if run.frames > 0 {
                    return Ok(Copied::Data(self.inbox.split_to(run.len).freeze()));
                }
                match frame::head(&self.inbox)? {
                    Some((b'd', total)) if total > LONG_BYTES.max(self.inbox.len()) => {
                        self.rest = total - self.inbox.len();
                        return Ok(Copied::Data(self.inbox.split().freeze()));
                    }
                    _ => {}
                }
                if let Some(frame) = frame::take_frontend(&mut self.inbox)? {
                    return Ok(Copied::Other(self.spelled(frame)));
                }
            }
            if self.fill().await? == 0 {
                return Err(Gone::Left);
            }
        }
    }

    /// Bytes still to come of the message that was read last.
    pub fn rest(&self) -> usize {
        self.rest
    }

    fn piece(&mut self) -> Option<Bytes> {
        let length = self.rest.min(self.inbox.len());
        self.rest -= length;
        (length > 0).then(|| self.inbox.split_to(length).freeze())
    }

    /// A whole message that is there, behind what nobody wants of the one before.
    fn whole(&mut self) -> Result<Option<Frame>, Gone> {
        match self.skip_rest() {
            true => {
                let frame = frame::take_frontend(&mut self.inbox)?;
                Ok(frame.map(|frame| self.spelled(frame)))
            }
            false => Ok(None),
        }
    }

    /// Throws away what has come of the message before; tells whether the next one begins.
    pub(super) fn skip_rest(&mut self) -> bool {
        let length = self.rest.min(self.inbox.len());
        self.inbox.advance(length);
        self.rest -= length;
        self.rest == 0
    }

    pub(super) fn spelled(&self, mut frame: Frame) -> Frame {
        spell(&mut frame, self.spelling);
        frame
    }

    /// Whether only ASCII can be read of the client's texts.
    pub fn is_foreign(&self) -> bool {
        self.spelling.is_foreign()
    }

    /// The client's encoding, if only ASCII can be read of its texts.
    pub fn foreign_encoding(&self) -> Option<&str> {
        let reported = self.reported.get("client_encoding").map(String::as_str);
        reported.filter(|_| self.spelling.is_foreign())
    }

    /// A row is on its way to the client and will never be whole.
    pub fn tear(&mut self) {
        self.torn = true;
    }

    /// Whether the client can't be told anything any more.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// The next message. Cancel safety: bytes read stay in the buffer.
    pub async fn read(&mut self) -> Result<Frame, Gone> {
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(frame);
            }
            if self.fill().await? == 0 {
                return Err(Gone::Left);
            }
        }
    }

    /// Waits until the client has closed its end, which is looked at without reading.
    ///
    /// Cancel safety: nothing is consumed.
    pub async fn vanished(&self) {
        loop {
            // Cheaper than `ready`, which has a list of all who wait; this is done for every answer
            // of a server that is not there yet.
            if poll_fn(|context| self.stream.tcp().poll_read_ready(context))
                .await
                .is_err()
            {
                return;
            }
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                Ok(_) | Err(_) => return,
            }
            // More messages of the client are there: they stay until it is their turn.
            tokio::time::sleep(VANISHED_AGAIN).await;
        }
    }

    pub(super) async fn fill(&mut self) -> Result<usize, Gone> {
        poll_fn(|context| self.poll_fill(context)).await
    }

    /// Reads more; 0 is the end. Cancel safety: bytes read stay in the buffer.
    pub(super) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Gone>> {
        self.inbox.reserve(READ_ROOM);
        let count = ready!(self.stream.poll_read_buf(context, &mut self.inbox))?;
        self.received_bytes += count as u64;
        Poll::Ready(Ok(count))
    }

    /// Whether the client has sent more, or has left. If not, the task is woken when it does.
    pub(super) fn stirs(&self, context: &mut Context<'_>) -> bool {
        self.stream.tcp().poll_read_ready(context).is_ready()
    }

    /// Writes everything collected.
    pub async fn flush(&mut self) -> Result<(), Gone> {
        if !self.out.is_empty() {
            // It nearly always takes all of it at once.
            let written = match self.stream.try_write(&self.out) {
                Ok(written) => written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error.into()),
            };
            if written < self.out.len() {
                self.stream.write_all(&self.out[written..]).await?;
            }
            self.written_bytes += self.out.len() as u64;
            self.out.clear();
            if self.out.capacity() > KEPT_BYTES {
                self.out = BytesMut::new();
            }
            self.completion = None;
        }
        Ok(())
    }

    /// Notes that what is put next is a CommandComplete.
    pub fn note_completion(&mut self) {
        self.completion = Some(self.out.len());
    }

    /// Notes that the CommandComplete is what came first after the mark.
    pub fn note_completion_at(&mut self, mark: Mark) {
        self.completion = self.holds(mark).then_some(mark.len);
    }

    /// Puts a message before the last CommandComplete if that was not written yet, else behind.
    pub fn put_before_completion(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let at = self
            .completion
            .unwrap_or(self.out.len())
            .min(self.out.len());
        let tail = self.out.split_off(at);
        put(&mut self.out);
        self.completion = Some(self.out.len());
        self.out.unsplit(tail);
    }

    /// Tells of a setting, unless the client knows it. What is of one server only stays with us.
    pub fn tell_setting(&mut self, name: &str, value: &str) {
        if name == "client_encoding" {
            self.spelling = Spelling::of(value);
        }
        let of_one_server = matches!(
            name,
            "in_hot_standby" | "server_version" | "server_encoding" | "integer_datetimes"
        );
        let told = self.reported.get(name);
        let known = told.is_some_and(|told| told == value);
        if known || name.starts_with("pgdog.") || (of_one_server && told.is_some()) {
            return;
        }
        self.reported.insert(name.to_owned(), value.to_owned());
        backend::parameter_status(name, value, &mut self.out);
    }

    /// Whose notifications are the client's own: those of a server process, for which it was told
    /// another number.
    pub fn know_server(&mut self, server_pid: i32, told_pid: i32) {
        self.pids = (server_pid, told_pid);
    }

    /// Puts what a server said by itself: notices and notifications.
    pub fn put_pushed(&mut self, messages: &[u8]) {
        let (server, told) = self.pids;
        for (tag, body) in frame::frames(messages).flatten() {
            frame::put(&mut self.out, tag, |out| match body.split_first_chunk() {
                Some((pid, rest)) if tag == NOTIFICATION && *pid == server.to_be_bytes() => {
                    out.extend_from_slice(&told.to_be_bytes());
                    out.extend_from_slice(rest);
                }
                _ => out.extend_from_slice(body),
            });
        }
    }

    /// Writes when much has been collected: this holds a fast server back for a slow client.
    pub async fn flush_if_full(&mut self) -> Result<(), Gone> {
        match self.out.len() >= FLUSH_AT {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Where the answers stand now.
    pub fn mark(&self) -> Mark {
        Mark {
            len: self.out.len(),
            written_bytes: self.written_bytes,
        }
    }

    /// Whether nothing that came after the mark was written.
    pub fn holds(&self, mark: Mark) -> bool {
        self.written_bytes == mark.written_bytes
    }

    /// Forgets what came after the mark.
    pub fn cut(&mut self, mark: Mark) {
        assert!(self.holds(mark), "what was written cannot be taken back");
        self.out.truncate(mark.len);
        self.torn = false;
        self.completion = None;
    }

    /// Bytes (received, sent) since the last call.
    pub fn take_traffic(&mut self) -> (u64, u64) {
        let sent = self.written_bytes - self.counted_bytes;
        self.counted_bytes = self.written_bytes;
        (std::mem::take(&mut self.received_bytes), sent)
    }

    /// Sends a last error and closes.
    pub async fn dismiss(&mut self, fields: &ErrorFields) -> Gone {
        backend::error_fields(Severity::Fatal, fields, &mut self.out);
        match self.flush().await {
            Ok(()) => {
                let _ = self.stream.shutdown().await;
                Gone::Dismissed
            }
            Err(gone) => gone,
        }
    }
}
