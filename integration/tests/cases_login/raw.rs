//! A login spoken byte by byte, over any stream, by any version of the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Buf as _, BufMut as _};
use postgres_protocol::authentication::sasl::{
    ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};

/// SSLRequest, whole.
pub const SSL_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
/// GSSENCRequest, whole.
pub const GSS_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x30";

/// How long an answer may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A socket that does not wait for ever.
pub fn dial(port: u16) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A startup packet.
pub fn startup(minor: u16, params: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u32((3 << 16) | u32::from(minor));
    for (name, value) in params {
        body.put_slice(name.as_bytes());
        body.put_u8(0);
        body.put_slice(value.as_bytes());
        body.put_u8(0);
    }
    body.put_u8(0);
    let mut packet = Vec::new();
    packet.put_u32(4 + body.len() as u32);
    packet.put_slice(&body);
    packet
}

/// Who logs in.
#[derive(Debug, Clone)]
pub struct Who {
    pub user: String,
    pub password: String,
    pub database: String,
}

/// What came of a login, and the stream for what follows.
pub struct Session<S> {
    pub stream: S,
    /// NegotiateProtocolVersion: version and unknown options.
    pub negotiated: Option<(u32, Vec<String>)>,
    /// Mechanisms that were offered.
    pub mechanisms: Vec<String>,
    /// The server's first SCRAM message.
    pub server_first: String,
    pub pid: i32,
    pub secret: Vec<u8>,
    /// Code and message of a refusal.
    pub refused: Option<(String, String)>,
}

impl<S: Read + Write> Session<S> {
    /// Logs in; a refusal is a result. `end_point` binds to the server's certificate.
    pub fn open(
        mut stream: S,
        minor: u16,
        who: &Who,
        more: &[(&str, &str)],
        end_point: Option<Vec<u8>>,
    ) -> anyhow::Result<Self> {
        let mut params = vec![("user", &*who.user), ("database", &*who.database)];
        params.extend(more);
        stream.write_all(&startup(minor, &params))?;
        let mut session = Self {
            stream,
            negotiated: None,
            mechanisms: Vec::new(),
            server_first: String::new(),
            pid: 0,
            secret: Vec::new(),
            refused: None,
        };
        session.follow(who, end_point)?;
        Ok(session)
    }

    fn follow(&mut self, who: &Who, end_point: Option<Vec<u8>>) -> anyhow::Result<()> {
        let mut scram = None;
        loop {
            let (tag, body) = self.read().context("during the login")?;
            let mut rest = &body[..];
            match tag {
                'v' => {
                    let version = rest.get_u32();
                    let count = rest.get_u32();
                    let names = (0..count).map(|_| text(&mut rest)).collect();
                    self.negotiated = Some((version, names));
                }
                'R' => match (rest.get_u32(), &mut scram) {
                    (0, _) => {}
                    (3, _) => self.send(b'p', &[who.password.as_bytes(), b"\0"].concat())?,
                    (5, _) => {
                        let salt = rest.get_u32().to_be_bytes();
                        let (user, password) = (who.user.as_bytes(), who.password.as_bytes());
                        let hash =
                            postgres_protocol::authentication::md5_hash(user, password, salt);
                        self.send(b'p', &[hash.as_bytes(), b"\0"].concat())?;
                    }
                    (10, _) => scram = Some(self.begin(who, rest, end_point.clone())?),
                    (11, Some(scram)) => {
                        self.server_first = String::from_utf8_lossy(rest).into_owned();
                        scram.update(rest)?;
                        let answer = scram.message().to_vec();
                        self.send(b'p', &answer)?;
                    }
                    (12, Some(scram)) => scram.finish(rest)?,
                    (other, _) => bail!("authentication {other} was not expected"),
                },
                'K' => {
                    self.pid = rest.get_i32();
                    self.secret = rest.to_vec();
                }
                'E' => {
                    self.refused = Some((field(&body, 'C'), field(&body, 'M')));
                    return Ok(());
                }
                'Z' => return Ok(()),
                _ => {}
            }
        }
    }

    fn begin(
        &mut self,
        who: &Who,
        mut offered: &[u8],
        end_point: Option<Vec<u8>>,
    ) -> anyhow::Result<ScramSha256> {
        while offered.first().is_some_and(|byte| *byte != 0) {
            self.mechanisms.push(text(&mut offered));
        }
        let (mechanism, binding) = match end_point {
            Some(hash) => {
                let binding = ChannelBinding::tls_server_end_point(hash);
                (SCRAM_SHA_256_PLUS, binding)
            }
            None => (SCRAM_SHA_256, ChannelBinding::unsupported()),
        };
        let scram = ScramSha256::new(who.password.as_bytes(), binding);
        let mut body = Vec::new();
        body.put_slice(mechanism.as_bytes());
        body.put_u8(0);
        body.put_u32(scram.message().len() as u32);
        body.put_slice(scram.message());
        self.send(b'p', &body)?;
        Ok(scram)
    }

    /// The code of the refusal; empty when there is none.
    pub fn code(&self) -> &str {
        self.refused.as_ref().map_or("", |(code, _)| code)
    }

    /// Sends one message.
    pub fn send(&mut self, tag: u8, body: &[u8]) -> anyhow::Result<()> {
        let mut message = vec![tag];
        message.put_u32(4 + body.len() as u32);
        message.put_slice(body);
        self.stream.write_all(&message)?;
        Ok(())
    }

    /// Runs a query; the code of its error, or the first value.
    pub fn query(&mut self, sql: &str) -> anyhow::Result<Result<String, String>> {
        self.send(b'Q', &[sql.as_bytes(), b"\0"].concat())?;
        let mut answer = Ok(String::new());
        loop {
            let (tag, body) = self.read()?;
            match tag {
                'D' => {
                    let mut rest = &body[2..];
                    let length = usize::try_from(rest.get_i32()).unwrap_or(0);
                    answer = Ok(String::from_utf8_lossy(&rest[..length]).into_owned());
                }
                'E' => answer = Err(field(&body, 'C')),
                'Z' => return Ok(answer),
                _ => {}
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<(char, Vec<u8>)> {
        let mut header = [0; 5];
        self.stream.read_exact(&mut header)?;
        let mut length = &header[1..];
        let mut body = vec![0; length.get_u32() as usize - 4];
        self.stream.read_exact(&mut body)?;
        Ok((char::from(header[0]), body))
    }
}

/// Everything up to the end of the stream, however it ends.
pub fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        all.extend_from_slice(&piece[..count]);
    }
    all
}

/// A field of an error.
pub fn field(body: &[u8], code: char) -> String {
    let mut rest = body;
    while rest.first().is_some_and(|byte| *byte != 0) {
        let found = char::from(rest.get_u8());
        let value = text(&mut rest);
        if found == code {
            return value;
        }
    }
    String::new()
}

fn text(body: &mut &[u8]) -> String {
    let end = body.iter().position(|byte| *byte == 0);
    let end = end.unwrap_or(body.len());
    let text = String::from_utf8_lossy(&body[..end]).into_owned();
    *body = body.get(end + 1..).unwrap_or_default();
    text
}
