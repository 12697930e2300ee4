//! What servers say: encoders. All append to the given buffer.

use bytes::{BufMut, BytesMut};

use super::answer::ErrorFields;
use super::frame::{put, put_cstr};
use super::frontend::put_value;
use super::startup::CancelKey;

/// Tags of the messages that servers send.
pub mod tag {
    /// Any message of the login.
    pub const AUTHENTICATION: u8 = b'R';
    /// What to send to cancel.
    pub const BACKEND_KEY_DATA: u8 = b'K';
    /// Bind succeeded.
    pub const BIND_COMPLETE: u8 = b'2';
    /// Close succeeded.
    pub const CLOSE_COMPLETE: u8 = b'3';
    /// A statement is done.
    pub const COMMAND_COMPLETE: u8 = b'C';
    /// COPY in both directions (replication).
    pub const COPY_BOTH: u8 = b'W';
    /// A piece of COPY data.
    pub const COPY_DATA: u8 = b'd';
    /// COPY TO is over.
    pub const COPY_DONE: u8 = b'c';
    /// COPY FROM begins.
    pub const COPY_IN: u8 = b'G';
    /// COPY TO begins.
    pub const COPY_OUT: u8 = b'H';
    /// One row.
    pub const DATA_ROW: u8 = b'D';
    /// The text held no statement.
    pub const EMPTY_QUERY: u8 = b'I';
    /// An error.
    pub const ERROR: u8 = b'E';
    /// Result of FunctionCall.
    pub const FUNCTION_CALL: u8 = b'V';
    /// The newest minor protocol that the server speaks.
    pub const NEGOTIATE: u8 = b'v';
    /// The statement returns no rows.
    pub const NO_DATA: u8 = b'n';
    /// A notice.
    pub const NOTICE: u8 = b'N';
    /// From NOTIFY.
    pub const NOTIFICATION: u8 = b'A';
    /// Types of a statement's parameters.
    pub const PARAMETER_DESCRIPTION: u8 = b't';
    /// A setting's value.
    pub const PARAMETER_STATUS: u8 = b'S';
    /// Parse succeeded.
    pub const PARSE_COMPLETE: u8 = b'1';
    /// The row limit was reached.
    pub const PORTAL_SUSPENDED: u8 = b's';
    /// The server waits for the next batch.
    pub const READY: u8 = b'Z';
    /// Names and types of columns.
    pub const ROW_DESCRIPTION: u8 = b'T';
}

/// A session's transaction state as ReadyForQuery tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxStatus {
    /// No transaction block.
    Idle,
    /// In a transaction block.
    InTransaction,
    /// In a transaction block that can only be rolled back.
    Failed,
}

impl TxStatus {
    /// As ReadyForQuery carries it.
    pub fn byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }

    /// Reads ReadyForQuery's byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }
}

/// How bad it is, in PostgreSQL's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement failed; the connection lives.
    Error,
    /// The connection ends.
    Fatal,
    /// A warning.
    Warning,
    /// A notice.
    Notice,
}

impl Severity {
    /// The word of fields S and V.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Warning => "WARNING",
            Self::Notice => "NOTICE",
        }
    }
}

/// AuthenticationOk.
pub fn auth_ok(out: &mut BytesMut) {
    put(out, tag::AUTHENTICATION, |out| out.put_u32(0));
}

/// AuthenticationCleartextPassword.
pub fn auth_cleartext(out: &mut BytesMut) {
    put(out, tag::AUTHENTICATION, |out| out.put_u32(3));
}

/// AuthenticationMD5Password.
pub fn auth_md5(salt: [u8; 4], out: &mut BytesMut) {
    put(out, tag::AUTHENTICATION, |out| {
        out.put_u32(5);
        out.extend_from_slice(&salt);
    });
}

/// AuthenticationSASL with the mechanisms offered.
pub fn auth_sasl(mechanisms: &[&str], out: &mut BytesMut) {
    put(out, tag::AUTHENTICATION, |out| {
        out.put_u32(10);
        mechanisms.iter().for_each(|name| put_cstr(out, name));
        out.put_u8(0);
    });
}

/// AuthenticationSASLContinue.
pub fn auth_sasl_continue(message: &[u8], out: &mut BytesMut) {
    put(out, tag::AUTHENTICATION, |out| {
        out.put_u32(11);
        out.extend_from_slice(message);
    });
}

/// AuthenticationSASLFinal.
pub fn auth_sasl_final(message: &[u8], out: &mut BytesMut) {
    put(out, tag::AUTHENTICATION, |out| {
        out.put_u32(12);
        out.extend_from_slice(message);
    });
}

/// ParameterStatus.
pub fn parameter_status(name: &str, value: &str, out: &mut BytesMut) {
    put(out, tag::PARAMETER_STATUS, |out| {
        put_cstr(out, name);
        put_cstr(out, value);
    });
}

/// BackendKeyData.
pub fn backend_key_data(key: &CancelKey, out: &mut BytesMut) {
    put(out, tag::BACKEND_KEY_DATA, |out| {
        out.put_i32(key.pid);
        out.extend_from_slice(&key.secret);
    });
}

/// ReadyForQuery.
pub fn ready_for_query(status: TxStatus, out: &mut BytesMut) {
    put(out, tag::READY, |out| out.put_u8(status.byte()));
}

/// CommandComplete with its tag, such as `SELECT 3`.
pub fn command_complete(command: &str, out: &mut BytesMut) {
    put(out, tag::COMMAND_COMPLETE, |out| put_cstr(out, command));
}

/// EmptyQueryResponse.
pub fn empty_query(out: &mut BytesMut) {
    put(out, tag::EMPTY_QUERY, |_| {});
}

/// ParseComplete.
pub fn parse_complete(out: &mut BytesMut) {
    put(out, tag::PARSE_COMPLETE, |_| {});
}

/// BindComplete.
pub fn bind_complete(out: &mut BytesMut) {
    put(out, tag::BIND_COMPLETE, |_| {});
}

/// CloseComplete.
pub fn close_complete(out: &mut BytesMut) {
    put(out, tag::CLOSE_COMPLETE, |_| {});
}

/// NoData.
pub fn no_data(out: &mut BytesMut) {
    put(out, tag::NO_DATA, |_| {});
}

/// ParameterDescription.
pub fn parameter_description(types: &[u32], out: &mut BytesMut) {
    put(out, tag::PARAMETER_DESCRIPTION, |out| {
        out.put_u16(types.len() as u16);
        types.iter().for_each(|oid| out.put_u32(*oid));
    });
}

/// RowDescription of text columns.
pub fn row_description(names: &[&str], out: &mut BytesMut) {
    const TEXT_OID: u32 = 25;
    put(out, tag::ROW_DESCRIPTION, |out| {
        out.put_u16(names.len() as u16);
        for name in names {
            put_cstr(out, name);
            out.put_u32(0); // no table
            out.put_u16(0); // no column of a table
            out.put_u32(TEXT_OID);
            out.put_i16(-1); // varying length
            out.put_i32(-1); // no type modifier
            out.put_u16(0); // text format
        }
    });
}

/// DataRow of texts; `None` is NULL.
pub fn data_row(values: &[Option<&str>], out: &mut BytesMut) {
    put(out, tag::DATA_ROW, |out| {
        out.put_u16(values.len() as u16);
        values
            .iter()
            .for_each(|value| put_value(out, value.map(str::as_bytes)));
    });
}

/// CopyInResponse for `columns` columns in text (`binary = false`) or binary format.
pub fn copy_in(format: super::frontend::Format, columns: u16, out: &mut BytesMut) {
    let code = match format {
        super::frontend::Format::Text => 0,
        super::frontend::Format::Binary => 1,
    };
    put(out, tag::COPY_IN, |out| {
        out.put_u8(code);
        out.put_u16(columns);
        (0..columns).for_each(|_| out.put_u16(u16::from(code)));
    });
}

/// ErrorResponse of anything that is an error (a `&Fault`, say); the connection lives.
pub fn error_response(error: impl Into<ErrorFields>, out: &mut BytesMut) {
    error_fields(Severity::Error, &error.into(), out);
}

/// As [`error_response`], for an error that ends the connection.
pub fn fatal_response(error: impl Into<ErrorFields>, out: &mut BytesMut) {
    error_fields(Severity::Fatal, &error.into(), out);
}

/// ErrorResponse from its fields.
pub fn error_fields(severity: Severity, fields: &ErrorFields, out: &mut BytesMut) {
    put(out, tag::ERROR, |out| put_fields(severity, fields, out));
}

/// NoticeResponse from its fields.
pub fn notice(severity: Severity, fields: &ErrorFields, out: &mut BytesMut) {
    put(out, tag::NOTICE, |out| put_fields(severity, fields, out));
}

fn put_fields(severity: Severity, fields: &ErrorFields, out: &mut BytesMut) {
    let optional = |code, value: &Option<String>, out: &mut BytesMut| {
        if let Some(text) = value {
            put_field(code, text, out);
        }
    };
    put_field(b'S', severity.as_str(), out);
    put_field(b'V', severity.as_str(), out);
    put_field(b'C', &fields.code, out);
    put_field(b'M', &fields.message, out);
    optional(b'D', &fields.detail, out);
    optional(b'H', &fields.hint, out);
    fields
        .more
        .iter()
        .for_each(|(code, text)| put_field(*code, text, out));
    out.put_u8(0);
}

fn put_field(code: u8, text: &str, out: &mut BytesMut) {
    out.put_u8(code);
    put_cstr(out, text);
}
