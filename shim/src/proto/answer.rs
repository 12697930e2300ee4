//! What servers say: parsed views.

use std::borrow::Cow;

use bytes::Bytes;

use super::ProtocolError;
use super::backend::TxStatus;
use super::cursor::Cursor;
use super::spelling::Spelling;
use super::startup::CancelKey;

/// The fields of an ErrorResponse or NoticeResponse that pgdog reads and writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorFields {
    /// `ERROR`, `FATAL` … as the server said, not translated; empty when made here.
    pub severity: String,
    /// SQLSTATE, five characters.
    pub code: String,
    /// One line.
    pub message: String,
    /// Facts.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// All other fields by their code, as they came: position, context, names of objects, source.
    pub more: Vec<(u8, String)>,
}

impl ErrorFields {
    /// An error with code and message only.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            ..Self::default()
        }
    }

    /// Reads the body of an ErrorResponse or NoticeResponse.
    ///
    /// # Errors
    /// `08P01` when the body is cut off.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut cursor = Cursor::new(body, "ErrorResponse");
        let mut fields = Self::default();
        loop {
            let code = cursor.u8()?;
            if code == 0 {
                return Ok(fields);
            }
            let text = Spelling::Utf8.read(cursor.cstr()?).into_owned();
            match code {
                b'S' if fields.severity.is_empty() => fields.severity = text,
                b'V' => fields.severity = text,
                b'C' => fields.code = text,
                b'M' => fields.message = text,
                b'D' => fields.detail = Some(text),
                b'H' => fields.hint = Some(text),
                b'S' => {}
                _ => fields.more.push((code, text)),
            }
        }
    }

    /// Lets its position, a count of characters, speak of another text.
    pub fn move_position(&mut self, by: isize) {
        for (code, text) in &mut self.more {
            let position = text.parse().ok().filter(|_| *code == b'P');
            if let Some(moved) = position.and_then(|at: usize| at.checked_add_signed(by)) {
                *text = moved.to_string();
            }
        }
    }

    /// Whether the server ends the connection with this error.
    pub fn ends_connection(&self) -> bool {
        matches!(self.severity.as_str(), "FATAL" | "PANIC")
    }
}

/// ParameterStatus: name and value.
///
/// # Errors
/// `08P01`, `22021` for a name that is not UTF-8.
pub fn parameter_status(body: &[u8]) -> Result<(&str, Cow<'_, str>), ProtocolError> {
    let mut cursor = Cursor::new(body, "ParameterStatus");
    let pair = (cursor.str()?, Spelling::Utf8.read(cursor.cstr()?));
    cursor.end()?;
    Ok(pair)
}

/// ReadyForQuery.
///
/// # Errors
/// `08P01`.
pub fn ready_for_query(body: &[u8]) -> Result<TxStatus, ProtocolError> {
    match body {
        [byte] => TxStatus::from_byte(*byte).ok_or(ProtocolError::Malformed("ReadyForQuery")),
        _ => Err(ProtocolError::Malformed("ReadyForQuery")),
    }
}

/// BackendKeyData.
///
/// # Errors
/// `08P01`.
pub fn backend_key_data(body: &Bytes) -> Result<CancelKey, ProtocolError> {
    let pid = Cursor::new(body, "BackendKeyData").i32()?;
    let secret = body.slice(4..);
    if !(4..=256).contains(&secret.len()) {
        return Err(ProtocolError::Malformed("BackendKeyData"));
    }
    Ok(CancelKey { pid, secret })
}

/// CommandComplete's tag, such as `INSERT 0 5`.
///
/// # Errors
/// `08P01`, `22021`.
pub fn command_complete(body: &[u8]) -> Result<&str, ProtocolError> {
    let mut cursor = Cursor::new(body, "CommandComplete");
    let text = cursor.str()?;
    cursor.end()?;
    Ok(text)
}

/// How many rows a command's tag counts: the number at its end, if there is one.
pub fn affected_rows(command: &str) -> Option<u64> {
    command.rsplit(' ').next()?.parse().ok()
}

/// Names of a RowDescription's columns.
///
/// # Errors
/// `08P01`.
pub fn column_names(body: &[u8]) -> Result<Vec<Cow<'_, str>>, ProtocolError> {
    let mut cursor = Cursor::new(body, "RowDescription");
    let count = cursor.count()?;
    let mut names = Vec::with_capacity(count);
    for _ in 0..count {
        names.push(Spelling::Utf8.read(cursor.cstr()?));
        cursor.bytes(18)?;
    }
    cursor.end()?;
    Ok(names)
}

/// The values of a DataRow; `None` is NULL.
///
/// # Errors
/// `08P01`.
pub fn data_row(body: &[u8]) -> Result<Vec<Option<&[u8]>>, ProtocolError> {
    let mut cursor = Cursor::new(body, "DataRow");
    let count = cursor.count()?;
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        values.push(cursor.value()?);
    }
    cursor.end()?;
    Ok(values)
}

/// As [`data_row`], for values in text format.
///
/// # Errors
/// `08P01`.
pub fn text_row(body: &[u8]) -> Result<Vec<Option<String>>, ProtocolError> {
    let text = |value: &[u8]| Spelling::Utf8.read(value).into_owned();
    let values = data_row(body)?.into_iter();
    Ok(values.map(|value| value.map(text)).collect())
}
