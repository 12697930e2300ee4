//! What clients say.

use bytes::{BufMut, BytesMut};

use super::ProtocolError;
use super::cursor::Cursor;
use super::frame::{Frame, HEADER, MAX_LENGTH, put, put_cstr};

/// Most bytes of messages that carry no user data (`PQ_SMALL_MESSAGE_LIMIT`).
const SMALL: u32 = 10_000;
/// Most bytes of an authentication token (`PG_MAX_AUTH_TOKEN_LENGTH`).
const TOKEN: u32 = 65_535;

/// One message from a client, borrowed from its [`Frame`].
#[derive(Debug, Clone, PartialEq)]
pub enum Frontend<'a> {
    /// Simple query: one text, maybe of several statements.
    Query {
        /// The text.
        sql: &'a str,
    },
    /// Names a statement.
    Parse {
        /// Name, empty for the unnamed one.
        statement: &'a str,
        /// The text.
        sql: &'a str,
        /// Types of the parameters that the client declares.
        types: Types<'a>,
    },
    /// Gives a statement its parameters.
    Bind(Bind<'a>),
    /// Asks for the shape of a statement or portal.
    Describe(Subject<'a>),
    /// Runs a portal.
    Execute {
        /// Name, empty for the unnamed one.
        portal: &'a str,
        /// Stop after so many rows; 0 is no limit.
        max_rows: i32,
    },
    /// Drops a statement or portal.
    Close(Subject<'a>),
    /// Ends a batch.
    Sync,
    /// Asks for the answers so far.
    Flush,
    /// A piece of COPY data.
    CopyData(&'a [u8]),
    /// COPY is over.
    CopyDone,
    /// COPY is given up.
    CopyFail {
        /// Why.
        message: &'a str,
    },
    /// Password, or SASL message, as the state of the login tells.
    Password(&'a [u8]),
    /// Calls a function by its oid.
    FunctionCall(&'a [u8]),
    /// The client leaves.
    Terminate,
}

/// A statement or a portal by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A prepared statement.
    Statement(&'a str),
    /// A portal.
    Portal(&'a str),
}

/// Type oids of a Parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types<'a>(&'a [u8]);

impl<'a> Types<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, ProtocolError> {
        let count = cursor.count()?;
        Ok(Self(cursor.bytes(count * 4)?))
    }

    /// The oids in order; 0 is "not said".
    pub fn iter(self) -> impl ExactSizeIterator<Item = u32> + 'a {
        let (words, _) = self.0.as_chunks::<4>();
        words.iter().map(|word| u32::from_be_bytes(*word))
    }
}

/// Whether a value travels as text or in the type's binary form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As SQL would print it.
    Text,
    /// As the type's send function makes it.
    Binary,
}

/// The parameters of a statement, all checked to be well formed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bind<'a> {
    /// Portal to make, empty for the unnamed one.
    pub portal: &'a str,
    /// Statement to take, empty for the unnamed one.
    pub statement: &'a str,
    formats: &'a [u8],
    count: usize,
    values: &'a [u8],
    result_formats: &'a [u8],
}

/// One parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param<'a> {
    /// How to read `value`.
    pub format: Format,
    /// The bytes; `None` is NULL.
    pub value: Option<&'a [u8]>,
}

impl<'a> Bind<'a> {
    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The parameters in order.
    pub fn params(&self) -> impl Iterator<Item = Param<'a>> + use<'a> {
        let formats = self.formats;
        let mut values = Cursor::new(self.values, "Bind");
        (0..self.count).map_while(move |index| {
            let value = values.value().ok()?;
            Some(Param {
                format: format_at(formats, index),
                value,
            })
        })
    }

    /// The formats asked for results as they were given: none, one for all, or one for each.
    pub fn result_formats(&self) -> impl Iterator<Item = Format> + use<'a> {
        let (codes, _) = self.result_formats.as_chunks::<2>();
        codes.iter().map(|code| match code {
            [0, 1] => Format::Binary,
            _ => Format::Text,
        })
    }

    /// The format asked for a result column.
    pub fn result_format(&self, column: usize) -> Format {
        format_at(self.result_formats, column)
    }
}

/// No code: text for all; one code: that for all; else one for each.
fn format_at(codes: &[u8], index: usize) -> Format {
    let (codes, _) = codes.as_chunks::<2>();
    let code = if codes.len() == 1 {
        codes.first()
    } else {
        codes.get(index)
    };
    match code {
        Some([0, 1]) => Format::Binary,
        _ => Format::Text,
    }
}

impl<'a> Frontend<'a> {
    /// Reads a client's message.
    ///
    /// # Errors
    /// `08P01` when the tag is unknown or the body is not what the tag promises, `22021` when a
    /// text isn't UTF-8 and was not read as something else.
    pub fn parse(frame: &'a Frame) -> Result<Self, ProtocolError> {
        let body = frame.readable();
        let message = match frame.tag() {
            b'Q' => Self::Query {
                sql: whole_str(body, "Query")?,
            },
            b'P' => parse_parse(body)?,
            b'B' if frame.missing() > 0 => Self::Bind(parse_bind_beginning(body)?),
            b'B' => Self::Bind(parse_bind(body)?),
            b'D' => Self::Describe(subject(body, "Describe")?),
            b'E' => parse_execute(body)?,
            b'C' => Self::Close(subject(body, "Close")?),
            b'S' => empty(body, "Sync", Self::Sync)?,
            b'H' => empty(body, "Flush", Self::Flush)?,
            b'd' => Self::CopyData(body),
            b'c' => empty(body, "CopyDone", Self::CopyDone)?,
            b'f' => Self::CopyFail {
                message: whole_str(body, "CopyFail")?,
            },
            b'p' => Self::Password(body),
            b'F' => Self::FunctionCall(body),
            b'X' => empty(body, "Terminate", Self::Terminate)?,
            other => return Err(ProtocolError::UnknownTag(other)),
        };
        Ok(message)
    }
}

/// The longest message that PostgreSQL accepts with this tag; `None`: no such tag.
pub(super) fn max_length(tag: u8) -> Option<u32> {
    match tag {
        b'Q' | b'P' | b'B' | b'd' | b'F' => Some(MAX_LENGTH),
        b'C' | b'D' | b'E' | b'H' | b'S' | b'X' | b'c' | b'f' => Some(SMALL),
        b'p' => Some(TOKEN),
        _ => None,
    }
}

/// A password message's text, without its NUL.
///
/// # Errors
/// `08P01` when there is no NUL at its end.
pub fn password_text(body: &[u8]) -> Result<&[u8], ProtocolError> {
    let mut cursor = Cursor::new(body, "password");
    let text = cursor.cstr()?;
    cursor.end()?;
    Ok(text)
}

/// A SASLInitialResponse: the mechanism and the client's first message.
///
/// # Errors
/// `08P01` when it isn't one.
pub fn sasl_initial(body: &[u8]) -> Result<(&str, &[u8]), ProtocolError> {
    let mut cursor = Cursor::new(body, "SASL initial response");
    let mechanism = cursor.str()?;
    let message = cursor.value()?.unwrap_or_default();
    cursor.end()?;
    Ok((mechanism, message))
}

/// Appends a Parse, Bind, Describe or Close with another statement name.
///
/// Describe and Close of a portal, and all other messages, are appended as they are.
///
/// # Errors
/// `08P01` when the body is cut off, or the message would be too long.
pub fn with_statement_name(
    frame: &Frame,
    name: &str,
    out: &mut BytesMut,
) -> Result<(), ProtocolError> {
    let body = frame.body();
    let mut cursor = Cursor::new(body, "statement name");
    let before = match frame.tag() {
        b'P' => 0,
        b'B' => cursor.cstr()?.len() + 1,
        b'D' | b'C' if body.first() == Some(&b'S') => cursor.bytes(1)?.len(),
        _ => {
            frame.encode(out);
            return Ok(());
        }
    };
    cursor.cstr()?;
    let after = cursor.rest();
    if body.len() + frame.missing() + name.len() > MAX_LENGTH as usize - 8 {
        return Err(ProtocolError::BadLength {
            tag: frame.tag(),
            length: MAX_LENGTH,
        });
    }
    let missing = frame.missing();
    let start = out.len();
    out.reserve(HEADER + body.len() + name.len());
    put(out, frame.tag(), |out| {
        out.extend_from_slice(&body[..before]);
        put_cstr(out, name);
        out.extend_from_slice(after);
    });
    if missing > 0 {
        let length = (out.len() - start - 1 + missing) as u32;
        out[start + 1..start + HEADER].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

/// Appends a simple query.
pub fn query(sql: &str, out: &mut BytesMut) {
    put(out, b'Q', |out| put_cstr(out, sql));
}

/// Appends a Parse.
pub fn parse(statement: &str, sql: &str, types: &[u32], out: &mut BytesMut) {
    put(out, b'P', |out| {
        put_cstr(out, statement);
        put_cstr(out, sql);
        out.put_u16(types.len() as u16);
        types.iter().for_each(|oid| out.put_u32(*oid));
    });
}

/// Appends a Bind with text parameters and text results.
pub fn bind(portal: &str, statement: &str, params: &[Option<&str>], out: &mut BytesMut) {
    put(out, b'B', |out| {
        put_cstr(out, portal);
        put_cstr(out, statement);
        out.put_u16(0);
        out.put_u16(params.len() as u16);
        params
            .iter()
            .for_each(|value| put_value(out, value.map(str::as_bytes)));
        out.put_u16(0);
    });
}

/// Appends a Describe.
pub fn describe(subject: Subject<'_>, out: &mut BytesMut) {
    put(out, b'D', |out| put_subject(out, subject));
}

/// Appends an Execute; 0 rows is no limit.
pub fn execute(portal: &str, max_rows: i32, out: &mut BytesMut) {
    put(out, b'E', |out| {
        put_cstr(out, portal);
        out.put_i32(max_rows);
    });
}

/// Appends a Close.
pub fn close(subject: Subject<'_>, out: &mut BytesMut) {
    put(out, b'C', |out| put_subject(out, subject));
}

/// Appends a Sync.
pub fn sync(out: &mut BytesMut) {
    put(out, b'S', |_| {});
}

/// Appends a Flush.
pub fn flush(out: &mut BytesMut) {
    put(out, b'H', |_| {});
}

/// Appends a piece of COPY data.
pub fn copy_data(data: &[u8], out: &mut BytesMut) {
    put(out, b'd', |out| out.extend_from_slice(data));
}

/// Appends a CopyDone.
pub fn copy_done(out: &mut BytesMut) {
    put(out, b'c', |_| {});
}

/// Appends a CopyFail.
pub fn copy_fail(message: &str, out: &mut BytesMut) {
    put(out, b'f', |out| put_cstr(out, message));
}

/// Appends a password message.
pub fn password(text: &str, out: &mut BytesMut) {
    put(out, b'p', |out| put_cstr(out, text));
}

/// Appends a SASLInitialResponse.
pub fn sasl_initial_response(mechanism: &str, message: &[u8], out: &mut BytesMut) {
    put(out, b'p', |out| {
        put_cstr(out, mechanism);
        put_value(out, Some(message));
    });
}

/// Appends a SASLResponse.
pub fn sasl_response(message: &[u8], out: &mut BytesMut) {
    put(out, b'p', |out| out.extend_from_slice(message));
}

/// Appends a Terminate.
pub fn terminate(out: &mut BytesMut) {
    put(out, b'X', |_| {});
}

/// Writes a length word and the bytes, or -1.
pub(super) fn put_value(out: &mut BytesMut, value: Option<&[u8]>) {
    match value {
        None => out.put_i32(-1),
        Some(bytes) => {
            out.put_u32(bytes.len() as u32);
            out.extend_from_slice(bytes);
        }
    }
}

fn put_subject(out: &mut BytesMut, subject: Subject<'_>) {
    let (kind, name) = match subject {
        Subject::Statement(name) => (b'S', name),
        Subject::Portal(name) => (b'P', name),
    };
    out.put_u8(kind);
    put_cstr(out, name);
}

fn whole_str<'a>(body: &'a [u8], what: &'static str) -> Result<&'a str, ProtocolError> {
    let mut cursor = Cursor::new(body, what);
    let text = cursor.str()?;
    cursor.end()?;
    Ok(text)
}

fn empty<'a>(
    body: &[u8],
    what: &'static str,
    message: Frontend<'a>,
) -> Result<Frontend<'a>, ProtocolError> {
    Cursor::new(body, what).end().map(|()| message)
}

fn parse_parse(body: &[u8]) -> Result<Frontend<'_>, ProtocolError> {
    let mut cursor = Cursor::new(body, "Parse");
    let statement = cursor.str()?;
    let sql = cursor.str()?;
    let types = Types::read(&mut cursor)?;
    cursor.end()?;
    Ok(Frontend::Parse {
        statement,
        sql,
        types,
    })
}

/// Of a Bind that is only begun: its names, and nothing of its parameters.
fn parse_bind_beginning(body: &[u8]) -> Result<Bind<'_>, ProtocolError> {
    let mut cursor = Cursor::new(body, "Bind");
    Ok(Bind {
        portal: cursor.str()?,
        statement: cursor.str()?,
        formats: &[],
        count: 0,
        values: &[],
        result_formats: &[],
    })
}

fn parse_bind(body: &[u8]) -> Result<Bind<'_>, ProtocolError> {
    let mut cursor = Cursor::new(body, "Bind");
    let portal = cursor.str()?;
    let statement = cursor.str()?;
    let formats = formats(&mut cursor)?;
    let count = cursor.count()?;
    if formats.len() > 2 && formats.len() != count * 2 {
        return Err(ProtocolError::Malformed(
            "Bind has another number of formats than values",
        ));
    }
    let values = cursor.rest();
    for _ in 0..count {
        cursor.value()?;
    }
    let values = &values[..values.len() - cursor.rest().len()];
    let result_formats = self::formats(&mut cursor)?;
    cursor.end()?;
    Ok(Bind {
        portal,
        statement,
        formats,
        count,
        values,
        result_formats,
    })
}

/// Format codes: a count and so many of 0 or 1.
fn formats<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], ProtocolError> {
    let count = cursor.count()?;
    let codes = cursor.bytes(count * 2)?;
    let (pairs, _) = codes.as_chunks::<2>();
    if pairs.iter().any(|pair| !matches!(pair, [0, 0 | 1])) {
        return Err(ProtocolError::Malformed("format code is neither 0 nor 1"));
    }
    Ok(codes)
}

fn parse_execute(body: &[u8]) -> Result<Frontend<'_>, ProtocolError> {
    let mut cursor = Cursor::new(body, "Execute");
    let portal = cursor.str()?;
    let max_rows = cursor.i32()?;
    cursor.end()?;
    Ok(Frontend::Execute { portal, max_rows })
}

fn subject<'a>(body: &'a [u8], what: &'static str) -> Result<Subject<'a>, ProtocolError> {
    let mut cursor = Cursor::new(body, what);
    let kind = cursor.u8()?;
    let name = cursor.str()?;
    cursor.end()?;
    match kind {
        b'S' => Ok(Subject::Statement(name)),
        b'P' => Ok(Subject::Portal(name)),
        _ => Err(ProtocolError::Malformed(what)),
    }
}
