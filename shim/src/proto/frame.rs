//! Where a message starts and ends.
//!
//! ```text
//!   tag | length, 4 bytes, big endian, counts itself | body
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{ProtocolError, spelling};

/// Bytes of a tag and its length word.
pub const HEADER: usize = 5;

/// The longest message, in bytes: what PostgreSQL allocates at most (`MaxAllocSize`).
pub const MAX_LENGTH: u32 = 0x3fff_ffff;

/// One whole message with its raw bytes, so that forwarding needs no encoding.
///
/// Cloning and slicing share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Header and body; never shorter than [`HEADER`], and the length word is right, but for a
    /// beginning, which is shorter than that word says.
    raw: Bytes,
    /// The body with its texts as they are read, where that is not how they came.
    spelled: Option<Box<[u8]>>,
}

impl Frame {
    /// Makes a message from its parts.
    ///
    /// # Panics
    /// If the body exceeds [`MAX_LENGTH`], which no peer would accept.
    pub fn new(tag: u8, body: &[u8]) -> Self {
        let mut raw = BytesMut::with_capacity(HEADER + body.len());
        put(&mut raw, tag, |out| out.extend_from_slice(body));
        Self::of(raw.freeze())
    }

    fn of(raw: Bytes) -> Self {
        Self { raw, spelled: None }
    }

    /// Reads the message's texts from now on in this way.
    pub(super) fn spell(&mut self, body: Vec<u8>) {
        self.spelled = Some(body.into_boxed_slice());
    }

    /// The body to read the message from.
    pub(super) fn readable(&self) -> &[u8] {
        self.spelled.as_deref().unwrap_or(self.body())
    }

    /// The beginning of a message that is too long to be held: its header and some of its body.
    /// `None` when the header is not all there.
    pub fn beginning(raw: Bytes) -> Option<Self> {
        (raw.len() >= HEADER).then(|| Self::of(raw))
    }

    /// Bytes that are missing; 0 of a whole message.
    pub fn missing(&self) -> usize {
        match head(&self.raw) {
            Ok(Some((_, total))) => total - self.raw.len().min(total),
            Ok(None) | Err(_) => 0,
        }
    }

    /// The message's kind. The same letter may mean different things in the two directions.
    pub fn tag(&self) -> u8 {
        self.raw[0]
    }

    /// The body, without tag and length.
    pub fn body(&self) -> &[u8] {
        &self.raw[HEADER..]
    }

    /// The body, sharing the frame's bytes.
    pub fn body_bytes(&self) -> Bytes {
        self.raw.slice(HEADER..)
    }

    /// Tag, length and body as they came.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Gives up the frame for its raw bytes.
    pub fn into_raw(self) -> Bytes {
        self.raw
    }

    /// Looks at it.
    pub fn view(&self) -> View<'_> {
        View { raw: &self.raw }
    }

    /// Appends the frame as it came.
    pub fn encode(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.raw);
    }
}

/// A whole message, wherever its bytes are.
pub trait Message {
    /// Tag, length and body as they came.
    fn raw(&self) -> &[u8];

    /// The message's kind.
    fn tag(&self) -> u8 {
        self.raw()[0]
    }

    /// The body, without tag and length.
    fn body(&self) -> &[u8] {
        &self.raw()[HEADER..]
    }
}

impl Message for Frame {
    fn raw(&self) -> &[u8] {
        &self.raw
    }
}

/// A whole message where it was read, which costs nothing.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    raw: &'a [u8],
}

impl Message for View<'_> {
    fn raw(&self) -> &[u8] {
        self.raw
    }
}

/// Looks at the first message of a server's stream; `None` when it isn't whole yet.
///
/// # Errors
/// `08P01` when the length word is impossible.
pub fn peek(buffer: &[u8]) -> Result<Option<View<'_>>, ProtocolError> {
    let total = whole_length(buffer, MAX_LENGTH)?;
    let raw = total.and_then(|total| buffer.get(..total));
    Ok(raw.map(|raw| View { raw }))
}

/// Takes one message from a server's stream; `None` when it isn't whole yet.
///
/// # Errors
/// `08P01` when the length word is impossible.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
    match whole_length(buffer, MAX_LENGTH)? {
        Some(total) if buffer.len() >= total => {
            Ok(Some(Frame::of(buffer.split_to(total).freeze())))
        }
        Some(total) => {
            // One growth instead of many for a long message; bounded, since nothing came yet.
            buffer.reserve((total - buffer.len()).min(1 << 20));
            Ok(None)
        }
        None => Ok(None),
    }
}

/// As [`take`], from a client's stream: unknown tags and lengths that PostgreSQL would refuse
/// are errors as soon as the header is there.
///
/// # Errors
/// `08P01`.
pub fn take_frontend(buffer: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
    head_frontend(buffer)?;
    take(buffer)
}

/// As [`head`], of a client's stream.
///
/// # Errors
/// `08P01`, as [`take_frontend`].
pub fn head_frontend(buffer: &[u8]) -> Result<Option<(u8, usize)>, ProtocolError> {
    let Some(tag) = buffer.first() else {
        return Ok(None);
    };
    let limit = super::frontend::max_length(*tag).ok_or(ProtocolError::UnknownTag(*tag))?;
    let total = whole_length(buffer, limit)?;
    Ok(total.map(|total| (*tag, total)))
}

/// As [`take_frontend`] before the login is done, when only passwords may come: nobody who is
/// not
/// known yet makes the buffer grow.
///
/// # Errors
/// `08P01`.
pub fn take_password(buffer: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
    match buffer.first() {
        Some(b'p') | None => take_frontend(buffer),
        Some(other) => Err(ProtocolError::UnknownTag(*other)),
    }
}

/// A run of rows at the head of a server's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Bytes of whole messages that carry rows, from the start of the buffer.
    pub len: usize,
    /// How many messages these are.
    pub frames: usize,
    /// Tag of the first message of another kind (maybe not whole yet); `None` when the buffer
    /// ends first.
    pub stop: Option<u8>,
}

/// Finds the DataRow and CopyData messages at the head of a server's stream, which can be
/// forwarded in one piece.
///
/// # Errors
/// `08P01` when a length word is impossible and no whole row precedes it.
pub fn scan(buffer: &[u8]) -> Result<Run, ProtocolError> {
    scan_while(buffer, |tag| matches!(tag, b'D' | b'd'))
}

/// As [`scan`] for a client's stream: only CopyData carries rows there.
///
/// # Errors
/// `08P01`.
pub fn scan_copy_data(buffer: &[u8]) -> Result<Run, ProtocolError> {
    scan_while(buffer, |tag| tag == b'd')
}

fn scan_while(buffer: &[u8], is_row: impl Fn(u8) -> bool) -> Result<Run, ProtocolError> {
    let mut run = Run {
        len: 0,
        frames: 0,
        stop: None,
    };
    loop {
        let rest = &buffer[run.len..];
        match rest.first() {
            None => return Ok(run),
            Some(tag) if is_row(*tag) => {}
            Some(other) => {
                return Ok(Run {
                    stop: Some(*other),
                    ..run
                });
            }
        }
        match whole_length(rest, MAX_LENGTH) {
            Ok(Some(total)) if rest.len() >= total => {
                run.len += total;
                run.frames += 1;
            }
            Ok(_) => return Ok(run),
            // The rows before it are good; the error shows at the next call.
            Err(_) if run.frames > 0 => return Ok(run),
            Err(error) => return Err(error),
        }
    }
}

/// Walks over whole messages: tag and body of each.
///
/// Ends with an error when the bytes don't end where a message ends.
pub fn frames(bytes: &[u8]) -> Frames<'_> {
    Frames { rest: bytes }
}

/// See [`frames`].
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<(u8, &'a [u8]), ProtocolError>;

    fn next(&mut self) -> Option<Self::Item> {
        let tag = *self.rest.first()?;
        match whole_length(self.rest, MAX_LENGTH) {
            Ok(Some(total)) if self.rest.len() >= total => {
                let body = &self.rest[HEADER..total];
                self.rest = &self.rest[total..];
                Some(Ok((tag, body)))
            }
            Ok(_) => {
                self.rest = &[];
                Some(Err(ProtocolError::Malformed("a message is cut off")))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

/// Writes one message: tag, length, and whatever `body` appends.
///
/// # Panics
/// If the body exceeds [`MAX_LENGTH`], which no peer would accept.
pub fn put(out: &mut BytesMut, tag: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(tag);
    put_untagged(out, body);
}

/// Writes a length and whatever `body` appends: a startup packet.
pub(super) fn put_untagged(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32(0);
    body(out);
    let length = u32::try_from(out.len() - start)
        .ok()
        .filter(|length| *length <= MAX_LENGTH)
        .expect("a message made here is far below 1 GB");
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Writes a text and its NUL, in the bytes that it was read from; ends at an inner NUL, as
/// PostgreSQL would read it.
pub(super) fn put_cstr(out: &mut BytesMut, text: &str) {
    let bytes = text.as_bytes();
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    spelling::write(&bytes[..end], out);
    out.put_u8(0);
}

/// Tag and length (header included) of the message at the head of a stream, once its header is
/// there.
///
/// # Errors
/// `08P01` when the length word is impossible.
pub fn head(buffer: &[u8]) -> Result<Option<(u8, usize)>, ProtocolError> {
    let total = whole_length(buffer, MAX_LENGTH)?;
    Ok(total.map(|total| (buffer[0], total)))
}

/// Header and body length of the message at the head, when its header is there.
fn whole_length(buffer: &[u8], limit: u32) -> Result<Option<usize>, ProtocolError> {
    if buffer.len() < HEADER {
        return Ok(None);
    }
    let tag = buffer[0];
    let length = (&buffer[1..HEADER]).get_u32();
    if length < 4 || length > limit {
        return Err(ProtocolError::BadLength { tag, length });
    }
    Ok(Some(1 + length as usize))
}
