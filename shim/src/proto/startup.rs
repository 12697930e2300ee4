//! The packets without a tag that open a connection.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::ProtocolError;
use super::cursor::Cursor;
use super::frame::{put, put_cstr, put_untagged};
use super::spelling::Spelling;

/// PostgreSQL's `MAX_STARTUP_PACKET_LENGTH`, in bytes.
const MAX_STARTUP: u32 = 10_000;
/// The newest minor version of protocol 3 that is spoken here.
const MINOR: u16 = 2;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// The answer to SSLRequest when TLS follows.
pub const ENCRYPTION: &[u8] = b"S";
/// The answer to SSLRequest and GSSENCRequest when there is no encryption.
pub const NO_ENCRYPTION: &[u8] = b"N";

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartupPacket {
    /// Asks for TLS; answered by one byte, then the client goes on.
    Ssl,
    /// Asks for GSSAPI encryption; answered by one byte, then the client goes on.
    Gss,
    /// Asks to cancel what another connection runs; nothing is answered.
    Cancel(CancelKey),
    /// Opens a session.
    Startup(Startup),
}

/// What names a running connection in a CancelRequest.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CancelKey {
    /// Process id, or whatever the server gave as such.
    pub pid: i32,
    /// The secret: 4 bytes in protocol 3.0, up to 256 since 3.2.
    pub secret: Bytes,
}

impl CancelKey {
    /// A key with the 4-byte secret that every client understands.
    pub fn new(pid: i32, secret: [u8; 4]) -> Self {
        Self {
            pid,
            secret: Bytes::copy_from_slice(&secret),
        }
    }
}

impl fmt::Debug for CancelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelKey")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// The opening of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Startup {
    /// 3.
    pub major: u16,
    /// 0 to 2, or newer: see [`Startup::negotiation`].
    pub minor: u16,
    /// Names and values in their order; `user` is not checked to be there.
    pub params: Vec<(String, String)>,
}

impl Startup {
    /// The last value given for a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.params
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The database asked for: the user's name when none is given, as in PostgreSQL.
    pub fn database(&self) -> Option<&str> {
        self.get("database")
            .filter(|name| !name.is_empty())
            .or_else(|| self.get("user"))
    }

    /// The NegotiateProtocolVersion to send before authentication, when one is due: the client
    /// asked for a newer minor version or for `_pq_.` options, none of which are known here.
    pub fn negotiation(&self) -> Option<Bytes> {
        let unknown: Vec<&str> = self
            .params
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| name.starts_with("_pq_."))
            .collect();
        if self.minor <= MINOR && unknown.is_empty() {
            return None;
        }
        let mut out = BytesMut::new();
        put(&mut out, b'v', |out| {
            out.put_u32(version(3, self.minor.min(MINOR)));
            out.put_u32(unknown.len() as u32);
            unknown.iter().for_each(|name| put_cstr(out, name));
        });
        Some(out.freeze())
    }
}

/// Takes the packet that opens a connection; `None` when it isn't whole yet.
///
/// # Errors
/// `08P01` for impossible lengths and bodies, `0A000` for another major version,
/// `22021` when a parameter isn't UTF-8.
pub fn take_startup(buffer: &mut BytesMut) -> Result<Option<StartupPacket>, ProtocolError> {
    if buffer.len() < 4 {
        return Ok(None);
    }
    let length = (&buffer[..4]).get_u32();
    if !(8..=MAX_STARTUP).contains(&length) {
        return Err(ProtocolError::BadLength { tag: 0, length });
    }
    if buffer.len() < length as usize {
        return Ok(None);
    }
    let packet = buffer.split_to(length as usize).freeze();
    let code = (&packet[4..8]).get_u32();
    let body = packet.slice(8..);
    match code {
        SSL_REQUEST if body.is_empty() => Ok(Some(StartupPacket::Ssl)),
        GSS_REQUEST if body.is_empty() => Ok(Some(StartupPacket::Gss)),
        SSL_REQUEST | GSS_REQUEST => Err(ProtocolError::BadLength { tag: 0, length }),
        CANCEL_REQUEST => cancel(body).map(Some),
        _ => startup(code, &body).map(Some),
    }
}

/// Appends a startup packet of protocol 3.0.
pub fn startup_message<'a>(
    params: impl IntoIterator<Item = (&'a str, &'a str)>,
    out: &mut BytesMut,
) {
    put_untagged(out, |out| {
        out.put_u32(version(3, 0));
        for (name, value) in params {
            put_cstr(out, name);
            put_cstr(out, value);
        }
        out.put_u8(0);
    });
}

/// Appends a CancelRequest.
pub fn cancel_request(key: &CancelKey, out: &mut BytesMut) {
    put_untagged(out, |out| {
        out.put_u32(CANCEL_REQUEST);
        out.put_i32(key.pid);
        out.extend_from_slice(&key.secret);
    });
}

/// Appends an SSLRequest.
pub fn ssl_request(out: &mut BytesMut) {
    put_untagged(out, |out| out.put_u32(SSL_REQUEST));
}

fn version(major: u16, minor: u16) -> u32 {
    (u32::from(major) << 16) | u32::from(minor)
}

fn cancel(body: Bytes) -> Result<StartupPacket, ProtocolError> {
    let secret_length = body.len().saturating_sub(4);
    if !(4..=256).contains(&secret_length) {
        return Err(ProtocolError::Malformed("cancel request"));
    }
    let pid = (&body[..4]).get_i32();
    Ok(StartupPacket::Cancel(CancelKey {
        pid,
        secret: body.slice(4..),
    }))
}

fn startup(code: u32, body: &[u8]) -> Result<StartupPacket, ProtocolError> {
    let (major, minor) = ((code >> 16) as u16, code as u16);
    if major != 3 {
        return Err(ProtocolError::UnsupportedProtocol { major, minor });
    }
    let mut cursor = Cursor::new(body, "startup packet");
    let mut params = Vec::new();
    loop {
        let name = Spelling::Utf8.read(cursor.cstr()?);
        if name.is_empty() {
            break;
        }
        let value = Spelling::Utf8.read(cursor.cstr()?);
        params.push((name.into_owned(), value.into_owned()));
    }
    cursor.end()?;
    Ok(StartupPacket::Startup(Startup {
        major,
        minor,
        params,
    }))
}
