//! Moves a server's answers to where they belong: to the client, into a buffer, or nowhere.

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::client::{Client, Gone};
use super::faults;
use super::script::{Script, Verdict};
use super::work::Work;
use crate::proto::backend::{self, tag};
use crate::proto::frame::Message;
use crate::proto::{ErrorFields, ProtocolError, answer};
use crate::server::{Ahead, Conn, Guarded, Head, Settled};

/// Most bytes of answers that are held back until all shards agree.
const HELD_BYTES: usize = 64 << 20;

/// Why a run cannot go on.
#[derive(Debug)]
pub enum Trouble {
    /// The client is not there any more.
    Gone(Gone),
    /// The server connection is not usable any more.
    Lost(Fault),
}

impl From<Gone> for Trouble {
    fn from(gone: Gone) -> Self {
        Trouble::Gone(gone)
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Trouble::Lost(fault)
    }
}

/// Where answers go.
pub enum Sink<'a> {
    /// To the client.
    Client(&'a mut Client),
    /// Held back.
    Buffer(&'a mut BytesMut),
    /// Only what the server says by itself is kept: notices and notifications.
    Pushed(&'a mut BytesMut),
    /// Only counted.
    Nowhere,
}

impl Sink<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self {
            Sink::Client(client) => client.out.extend_from_slice(bytes),
            Sink::Buffer(buffer) if buffer.len() + bytes.len() > HELD_BYTES => {
                return Err(faults::fault(
                    "54000",
                    format!("answer of more than {HELD_BYTES} bytes to a write on every shard"),
                ));
            }
            Sink::Buffer(buffer) => buffer.extend_from_slice(bytes),
            Sink::Pushed(_) | Sink::Nowhere => {}
        }
        Ok(())
    }

    fn lead(&mut self, script: &mut Script) {
        match self {
            Sink::Client(client) => script.lead(&mut client.out),
            Sink::Buffer(buffer) => script.lead(buffer),
            Sink::Pushed(_) | Sink::Nowhere => script.lead(&mut BytesMut::new()),
        }
    }

    /// Waits for something, but not for a client that has gone.
    pub async fn watching<T>(&self, what: impl Future<Output = T>) -> Result<T, Gone> {
        let Sink::Client(client) = self else {
            return Ok(what.await);
        };
        tokio::select! {
            biased;
            done = what => Ok(done),
            () = client.vanished() => Err(Gone::Left),
        }
    }

    /// A row ends in the middle.
    fn tear(&mut self) {
        if let Sink::Client(client) = self {
            client.tear();
        }
    }

    async fn breathe(&mut self) -> Result<(), Gone> {
        match self {
            Sink::Client(client) => client.flush_if_full().await,
            Sink::Buffer(_) | Sink::Pushed(_) | Sink::Nowhere => Ok(()),
        }
    }
}

/// How far the answers came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All answers are there.
    Done,
    /// The server waits for COPY data.
    CopyIn,
}

/// Sends a run to a server, with what must go ahead of it.
///
/// # Errors
/// The server connection is lost, or was given more than it can take.
pub async fn send(conn: &mut Conn, ahead: &Ahead, work: &Work<'_>) -> Result<Script, Fault> {
    let mut out = BytesMut::with_capacity(work.len_bytes() + SPARE_BYTES);
    let script = work.encode(conn, &mut out).map_err(violation)?;
    conn.send_ahead(ahead, &out).await?;
    Ok(script)
}

/// Sends a run whose last message is only begun. What goes ahead of it is sent by itself, so that
/// nobody waits for it with half a message on its way.
///
/// # Errors
/// As [`send`].
pub async fn begin(conn: &mut Conn, work: &Work<'_>) -> Result<Script, Fault> {
    let mut out = BytesMut::new();
    let script = work.encode(conn, &mut out).map_err(violation)?;
    conn.send_beginning(&out).await?;
    Ok(script)
}

/// Reads what came of `ahead`. An error of one of its statements is returned with the connection
/// at rest: the run's own answers are thrown away then.
///
/// # Errors
/// The server connection is lost.
pub async fn settle(conn: &mut Conn, ahead: &Ahead) -> Result<Settled, Fault> {
    let settled = conn.settle_ahead(ahead).await?;
    if settled.error().is_some() && !matches!(settled.guard, Guarded::Failed(_)) {
        conn.drain(DRAIN_LIMIT).await?;
    }
    Ok(settled)
}

/// Room for a Sync and longer names, in bytes.
const SPARE_BYTES: usize = 256;

/// How long answers that nobody wants may take.
const DRAIN_LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

/// Moves answers until all that are due have come, or the server wants COPY data.
///
/// # Errors
/// Either end is lost.
pub async fn drive(
    conn: &mut Conn,
    script: &mut Script,
    sink: &mut Sink<'_>,
) -> Result<Progress, Trouble> {
    loop {
        sink.lead(script);
        if script.is_done() {
            return Ok(Progress::Done);
        }
        let passed = conn.pass(|head| match head {
            Head::Rows(bytes) => sink.put(bytes).map(|()| Progress::Done),
            Head::Message(message) => take(script, sink, &message).map(|()| match message.tag() {
                tag::COPY_IN => Progress::CopyIn,
                _ => Progress::Done,
            }),
        })?;
        match passed.transpose()? {
            Some(Progress::CopyIn) => return Ok(Progress::CopyIn),
            Some(Progress::Done) => {}
            None => {
                let more = sink.watching(conn.more()).await?;
                if more.is_err() && conn.is_inside_row() {
                    sink.tear();
                }
                more?;
            }
        }
        sink.breathe().await?;
    }
}

/// Moves one message that is no row.
///
/// # Errors
/// The server ends the connection with it, or it is not due.
pub fn take(script: &mut Script, sink: &mut Sink<'_>, frame: &impl Message) -> Result<(), Fault> {
    if frame.tag() == tag::ERROR {
        let fields = ErrorFields::parse(frame.body()).map_err(violation)?;
        if fields.ends_connection() {
            // The server's connection ends, not the client's: told as an error, and only once.
            return Err(faults::from_node("", &fields));
        }
    }
    let verdict = match frame.tag() {
        tag::NOTICE | tag::NOTIFICATION => {
            match sink {
                Sink::Pushed(buffer) => buffer.extend_from_slice(frame.raw()),
                Sink::Client(client) => {
                    client.put_pushed(frame.raw());
                    return Ok(());
                }
                Sink::Buffer(_) | Sink::Nowhere => {}
            }
            Verdict::Show
        }
        tag::PARAMETER_STATUS => {
            let (name, value) = answer::parameter_status(frame.body()).map_err(violation)?;
            match sink {
                Sink::Client(client) => {
                    client.tell_setting(name, &value);
                    Verdict::Hide
                }
                Sink::Buffer(_) | Sink::Pushed(_) | Sink::Nowhere => Verdict::Show,
            }
        }
        _ => script.accept(frame).map_err(violation)?,
    };
    if let (tag::COMMAND_COMPLETE, Sink::Client(client)) = (frame.tag(), &mut *sink) {
        client.note_completion();
    }
    match verdict {
        Verdict::Show if frame.tag() == tag::ERROR && script.offset != 0 => {
            sink.put(script.placed(frame).map_err(violation)?.raw())
        }
        Verdict::Show => sink.put(frame.raw()),
        Verdict::Hide => Ok(()),
    }
}

fn violation(error: ProtocolError) -> Fault {
    Fault::ProtocolViolation {
        why: error.to_string(),
    }
}

/// Runs one statement of the shim's own.
///
/// # Errors
/// The server's error, or that the connection is lost.
pub async fn command(conn: &mut Conn, sql: &str) -> Result<Done, Fault> {
    let mut script = send(conn, &Ahead::new(), &Work::Query(sql)).await?;
    let mut pushed = BytesMut::new();
    match drive(conn, &mut script, &mut Sink::Pushed(&mut pushed)).await {
        Ok(Progress::Done) => {}
        Ok(Progress::CopyIn) => {
            return Err(Fault::ProtocolViolation {
                why: "unexpected COPY".to_owned(),
            });
        }
        Err(Trouble::Lost(fault)) => return Err(fault),
        Err(Trouble::Gone(_)) => unreachable!("no client is part of this"),
    }
    Ok(Done {
        tag: script.tags.pop().unwrap_or_default(),
        error: script.error,
        pushed,
    })
}

/// What came of a [`command`].
#[derive(Debug)]
pub struct Done {
    /// The last command's tag.
    pub tag: String,
    /// The error that ended it.
    pub error: Option<ErrorFields>,
    /// Notices and notifications that came with it, for the client.
    pub pushed: BytesMut,
}

impl Done {
    /// The tag, or the error.
    ///
    /// # Errors
    /// The server's.
    pub fn outcome(self) -> Result<String, ErrorFields> {
        self.error.map_or(Ok(self.tag), Err)
    }
}

/// Writes a notice.
pub fn warn(client: &mut Client, code: &str, message: &str) {
    let fields = faults::plain(code, message);
    backend::notice(backend::Severity::Warning, &fields, &mut client.out);
}
