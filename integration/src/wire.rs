//! A client that speaks the protocol message by message, for what a driver would hide.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, BufMut as _, BytesMut};
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::Login;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(60);

/// One message from a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its type byte.
    pub tag: char,
    /// What follows the length.
    pub body: Vec<u8>,
}

/// A logged-in connection.
pub struct Wire {
    /// The socket, for those who want to leave without a word.
    pub stream: TcpStream,
    inbox: BytesMut,
    /// Process id and secret for cancel requests.
    pub key: (i32, i32),
    /// Settings as the server reported them.
    pub settings: BTreeMap<String, String>,
}

impl Wire {
    /// Logs in.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses the login.
    pub async fn connect(login: &Login) -> anyhow::Result<Self> {
        Self::connect_with(login, &[]).await
    }

    /// As [`Wire::connect`], with more keys in the startup packet.
    ///
    /// # Errors
    /// As [`Wire::connect`].
    pub async fn connect_with(login: &Login, keys: &[(&str, &str)]) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", login.port)).await?;
        stream.set_nodelay(true)?;
        let mut wire = Self {
            stream,
            inbox: BytesMut::new(),
            key: (0, 0),
            settings: BTreeMap::new(),
        };
        let mut params = vec![
            ("user", login.user.as_str()),
            ("database", login.database.as_str()),
        ];
        if !login.options.is_empty() {
            params.push(("options", login.options.as_str()));
        }
        params.extend_from_slice(keys);
        let mut out = BytesMut::new();
        frontend::startup_message(params, &mut out)?;
        wire.send(&out).await?;
        wire.authenticate(login).await?;
        Ok(wire)
    }

    async fn authenticate(&mut self, login: &Login) -> anyhow::Result<()> {
        let mut scram = None;
        loop {
            let message = self.read().await?;
            let mut body = &message.body[..];
            match message.tag {
                'R' => match (body.get_u32(), &mut scram) {
                    (0, _) => {}
                    (10, _) => {
                        let binding = ChannelBinding::unsupported();
                        let begun = ScramSha256::new(login.password.as_bytes(), binding);
                        let mut out = BytesMut::new();
                        frontend::sasl_initial_response(SCRAM_SHA_256, begun.message(), &mut out)?;
                        self.send(&out).await?;
                        scram = Some(begun);
                    }
                    (11, Some(scram)) => {
                        scram.update(body)?;
                        let mut out = BytesMut::new();
                        frontend::sasl_response(scram.message(), &mut out)?;
                        self.send(&out).await?;
                    }
                    (12, Some(scram)) => scram.finish(body)?,
                    (other, _) => bail!("authentication {other} was not expected"),
                },
                'S' => {
                    let (name, value) = pair(body);
                    self.settings.insert(name, value);
                }
                'K' => self.key = (body.get_i32(), body.get_i32()),
                'Z' => return Ok(()),
                'E' => bail!("login: {}", Fields::of(&message).text()),
                _ => {}
            }
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        tokio::time::timeout(LIMIT, self.stream.write_all(bytes))
            .await
            .context("nobody reads what is sent")??;
        Ok(())
    }

    /// The next message.
    ///
    /// # Errors
    /// When the connection ends, or nothing comes for a minute.
    pub async fn read(&mut self) -> anyhow::Result<Message> {
        loop {
            if let Some(mut header) = self.inbox.get(..5) {
                let tag = char::from(header.get_u8());
                let total = 1 + header.get_u32() as usize;
                if self.inbox.len() >= total {
                    let mut raw = self.inbox.split_to(total);
                    let body = raw.split_off(5).to_vec();
                    return Ok(Message { tag, body });
                }
            }
            let read = self.stream.read_buf(&mut self.inbox);
            let count = tokio::time::timeout(LIMIT, read)
                .await
                .context("no message for a minute")??;
            ensure!(count > 0, "the connection was closed");
        }
    }

    /// All messages up to the next ReadyForQuery, which is the last of them.
    ///
    /// # Errors
    /// As [`Wire::read`].
    pub async fn until_ready(&mut self) -> anyhow::Result<Vec<Message>> {
        let mut messages = Vec::new();
        loop {
            let message = self.read().await?;
            let ready = message.tag == 'Z';
            // Settings come whenever they change.
            if message.tag == 'S' {
                let (name, value) = pair(&message.body);
                self.settings.insert(name, value);
            } else {
                messages.push(message);
            }
            if ready {
                return Ok(messages);
            }
        }
    }

    /// Sends a batch and reads up to ReadyForQuery.
    ///
    /// # Errors
    /// As [`Wire::read`].
    pub async fn ask(&mut self, batch: &Batch) -> anyhow::Result<Vec<Message>> {
        self.send(&batch.bytes).await?;
        self.until_ready().await
    }

    /// Runs a simple query and reads up to ReadyForQuery.
    ///
    /// # Errors
    /// As [`Wire::read`].
    pub async fn query(&mut self, sql: &str) -> anyhow::Result<Vec<Message>> {
        self.ask(&Batch::new().query(sql)).await
    }

    /// Sends a cancel request for this connection to a shim, and returns what came back: nothing,
    /// if all is well.
    ///
    /// # Errors
    /// When the socket is not closed within the limit.
    pub async fn cancel(port: u16, key: (i32, i32), limit: Duration) -> anyhow::Result<usize> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let mut out = BytesMut::new();
        frontend::cancel_request(key.0, key.1, &mut out);
        stream.write_all(&out).await?;
        let mut back = Vec::new();
        tokio::time::timeout(limit, stream.read_to_end(&mut back))
            .await
            .context("the cancel request's connection stays open")??;
        Ok(back.len())
    }

    /// Closes the connection with a reset instead of an end.
    ///
    /// # Errors
    /// When the socket does not allow it.
    pub fn reset(self) -> anyhow::Result<()> {
        self.stream.set_zero_linger()?;
        Ok(())
    }
}

/// What is sent in one go.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The messages.
    pub bytes: BytesMut,
}

impl Batch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Any message.
    #[must_use]
    pub fn message(mut self, tag: u8, body: &[u8]) -> Self {
        self.bytes.put_u8(tag);
        self.bytes.put_u32(4 + body.len() as u32);
        self.bytes.put_slice(body);
        self
    }

    /// Simple query.
    #[must_use]
    pub fn query(self, sql: &str) -> Self {
        self.message(b'Q', &terminated(&[sql]))
    }

    /// Parse, without types of parameters.
    #[must_use]
    pub fn parse(self, name: &str, sql: &str) -> Self {
        self.parse_typed(name, sql, &[])
    }

    /// Parse, with the oids of the parameters' types.
    #[must_use]
    pub fn parse_typed(self, name: &str, sql: &str, types: &[u32]) -> Self {
        let mut body = terminated(&[name, sql]);
        body.put_u16(types.len() as u16);
        types.iter().for_each(|oid| body.put_u32(*oid));
        self.message(b'P', &body)
    }

    /// Bind of texts to the unnamed portal.
    #[must_use]
    pub fn bind(self, statement: &str, values: &[&str]) -> Self {
        self.bind_portal("", statement, values)
    }

    /// Bind of texts.
    #[must_use]
    pub fn bind_portal(self, portal: &str, statement: &str, values: &[&str]) -> Self {
        let mut body = terminated(&[portal, statement]);
        body.put_u16(0);
        body.put_u16(values.len() as u16);
        for value in values {
            body.put_u32(value.len() as u32);
            body.put_slice(value.as_bytes());
        }
        body.put_u16(0);
        self.message(b'B', &body)
    }

    /// Bind of binary values to the unnamed portal; None is NULL.
    #[must_use]
    pub fn bind_binary(self, statement: &str, values: &[Option<&[u8]>]) -> Self {
        let mut body = terminated(&["", statement]);
        body.put_slice(&[0, 1, 0, 1]);
        body.put_u16(values.len() as u16);
        for value in values {
            body.put_i32(value.map_or(-1, |value| value.len() as i32));
            body.put_slice(value.unwrap_or_default());
        }
        body.put_u16(0);
        self.message(b'B', &body)
    }

    /// Describe of a statement.
    #[must_use]
    pub fn describe(self, statement: &str) -> Self {
        self.message(b'D', &[b"S", &terminated(&[statement])[..]].concat())
    }

    /// Describe of the unnamed portal.
    #[must_use]
    pub fn describe_portal(self) -> Self {
        self.message(b'D', b"P\0")
    }

    /// Execute of the unnamed portal; 0 is no limit.
    #[must_use]
    pub fn execute(self, rows: i32) -> Self {
        self.execute_portal("", rows)
    }

    /// Execute.
    #[must_use]
    pub fn execute_portal(self, portal: &str, rows: i32) -> Self {
        let mut body = terminated(&[portal]);
        body.put_i32(rows);
        self.message(b'E', &body)
    }

    /// Parse, Bind and Execute of an unnamed statement.
    #[must_use]
    pub fn run(self, sql: &str, values: &[&str]) -> Self {
        self.parse("", sql).bind("", values).execute(0)
    }

    /// Close of a statement.
    #[must_use]
    pub fn close(self, statement: &str) -> Self {
        self.message(b'C', &[b"S", &terminated(&[statement])[..]].concat())
    }

    /// Flush.
    #[must_use]
    pub fn flush(self) -> Self {
        self.message(b'H', b"")
    }

    /// Sync.
    #[must_use]
    pub fn sync(self) -> Self {
        self.message(b'S', b"")
    }

    /// A piece of COPY data.
    #[must_use]
    pub fn copy_data(self, data: &[u8]) -> Self {
        self.message(b'd', data)
    }

    /// The end of COPY data.
    #[must_use]
    pub fn copy_done(self) -> Self {
        self.message(b'c', b"")
    }
}

fn terminated(texts: &[&str]) -> BytesMut {
    let mut bytes = BytesMut::new();
    for text in texts {
        bytes.put_slice(text.as_bytes());
        bytes.put_u8(0);
    }
    bytes
}

fn pair(mut body: &[u8]) -> (String, String) {
    (text(&mut body), text(&mut body))
}

fn text(body: &mut &[u8]) -> String {
    let end = body.iter().position(|byte| *byte == 0);
    let end = end.unwrap_or(body.len());
    let text = String::from_utf8_lossy(&body[..end]).into_owned();
    *body = body.get(end + 1..).unwrap_or_default();
    text
}

/// Types of messages on one line: errors with their code, completions with their tag,
/// ReadyForQuery with its status.
pub fn shape(messages: &[Message]) -> String {
    let words = messages.iter().map(|message| {
        let mut body = &message.body[..];
        match message.tag {
            'C' => format!("C({})", text(&mut body)),
            'Z' => format!("Z({})", char::from(message.body[0])),
            'E' => format!("E({})", Fields::of(message).get('C')),
            'N' => format!("N({})", Fields::of(message).get('C')),
            other => other.to_string(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The values of all DataRow messages, as text.
pub fn rows(messages: &[Message]) -> Vec<Vec<Option<String>>> {
    let rows = messages.iter().filter(|message| message.tag == 'D');
    rows.map(|message| {
        let mut body = &message.body[..];
        let count = body.get_u16();
        (0..count)
            .map(|_| match body.get_i32() {
                -1 => None,
                length => {
                    let (value, rest) = body.split_at(length as usize);
                    body = rest;
                    Some(String::from_utf8_lossy(value).into_owned())
                }
            })
            .collect()
    })
    .collect()
}

/// The first value of the first row.
pub fn value(messages: &[Message]) -> Option<String> {
    rows(messages).into_iter().next()?.into_iter().next()?
}

/// The first value that a simple query answers with.
///
/// # Errors
/// When it answers with none.
pub async fn ask(client: &mut Wire, sql: &str) -> anyhow::Result<String> {
    let answers = client.query(sql).await?;
    value(&answers).with_context(|| format!("{sql}: {}", shape(&answers)))
}

/// Checks the first value that a simple query answers with.
///
/// # Errors
/// When it is another one.
pub async fn expect(client: &mut Wire, sql: &str, expected: &str) -> anyhow::Result<()> {
    let found = ask(client, sql).await?;
    ensure!(
        found == expected,
        "{sql}: {found:?} instead of {expected:?}"
    );
    Ok(())
}

/// The fields of an error or a notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields(pub BTreeMap<char, String>);

impl Fields {
    /// Reads them.
    pub fn of(message: &Message) -> Self {
        let mut body = &message.body[..];
        let mut fields = BTreeMap::new();
        while body.first().is_some_and(|code| *code != 0) {
            let code = char::from(body.get_u8());
            fields.insert(code, text(&mut body));
        }
        Self(fields)
    }

    /// One of them; empty when it is not there.
    pub fn get(&self, code: char) -> &str {
        self.0.get(&code).map_or("", String::as_str)
    }

    /// Code and message.
    pub fn text(&self) -> String {
        format!("{} {}", self.get('C'), self.get('M'))
    }
}
