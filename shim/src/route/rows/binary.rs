//! Where a row of binary COPY data ends.

use std::ops::Range;

use pgdog_core::fault::Fault;
use pgdog_core::placement::{DataType, Key};

use super::{Dialect, Found, Keyed, Trouble, bad, not_utf8};

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
const BAD: &str = "22P04";

/// Finds the ends of rows, wherever the data is cut.
#[derive(Debug, Default)]
pub(super) struct Binary {
    /// Texts are in UTF-8.
    utf8: bool,
    /// The header was read.
    opened: bool,
    /// The trailer was read.
    closed: bool,
    /// Rows that are whole.
    rows: u64,
    /// Fields that are still to come of the row at hand; none before its count was read.
    left: Option<i16>,
    /// How much of the row at hand was looked at.
    seen: usize,
    /// Fields that were looked at.
    fields: usize,
    /// Where the key of the row at hand is, once it was seen; `Some(None)`: it is NULL.
    key: Option<Option<Range<usize>>>,
}

impl Binary {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            utf8: dialect.utf8,
            ..Self::default()
        }
    }

    /// The row at hand, counted from 1.
    pub(super) fn row(&self) -> u64 {
        self.rows + 1
    }

    /// The next row, or the header, or the trailer.
    pub(super) fn next(&mut self, rest: &[u8], last: bool, key: usize) -> Result<Found, Trouble> {
        if self.closed {
            return match rest.is_empty() {
                true => Ok(Found::Nothing),
                false => Err(self.bad("received copy data after EOF marker")),
            };
        }
        let found = match self.opened {
            false => self.header(rest)?,
            true => self.tuple(rest, key)?,
        };
        if found == Found::Nothing && last && (!rest.is_empty() || !self.opened) {
            return Err(self.bad("unexpected EOF in COPY data"));
        }
        Ok(found)
    }

    fn header(&mut self, rest: &[u8]) -> Result<Found, Trouble> {
        let known = rest.len().min(SIGNATURE.len());
        if rest[..known] != SIGNATURE[..known] {
            return Err(self.bad("COPY file signature not recognized"));
        }
        let Some(extension) = word(rest, SIGNATURE.len() + 4) else {
            return Ok(Found::Nothing);
        };
        let Ok(extension) = usize::try_from(extension) else {
            return Err(self.bad("invalid COPY file header (missing length)"));
        };
        let length = SIGNATURE.len() + 8 + extension;
        if rest.len() < length {
            return Ok(Found::Nothing);
        }
        self.opened = true;
        Ok(Found::Frame(length))
    }

    fn tuple(&mut self, rest: &[u8], key: usize) -> Result<Found, Trouble> {
        let mut left = match self.left {
            Some(left) => left,
            None => {
                let Some(count) = rest.first_chunk::<2>() else {
                    return Ok(Found::Nothing);
                };
                let count = i16::from_be_bytes(*count);
                if count == -1 {
                    self.closed = true;
                    return Ok(Found::Frame(2));
                }
                if usize::try_from(count).is_ok_and(|count| count <= key) || count < 0 {
                    return Err(self.bad(format!("row field count is {count}")));
                }
                (self.seen, self.fields, self.key) = (2, 0, None);
                count
            }
        };
        while left > 0 {
            self.left = Some(left);
            let Some(length) = word(rest, self.seen) else {
                return Ok(Found::Nothing);
            };
            let start = self.seen + 4;
            let end = match length {
                -1 => start,
                length => match usize::try_from(length) {
                    Ok(length) => start + length,
                    Err(_) => return Err(self.bad("invalid field size")),
                },
            };
            if rest.len() < end {
                return Ok(Found::Nothing);
            }
            if self.fields == key {
                self.key = Some((length >= 0).then_some(start..end));
            }
            self.seen = end;
            self.fields += 1;
            left -= 1;
        }
        self.left = None;
        self.rows += 1;
        Ok(Found::Row {
            length: self.seen,
            content: self.seen,
            line: self.rows,
        })
    }

    /// The key of the row that was found last; none if it is NULL.
    pub(super) fn key(&self, row: &[u8], keyed: &Keyed) -> Result<Option<Key>, Fault> {
        match &self.key {
            Some(Some(span)) => {
                let bytes = row.get(span.clone()).unwrap_or_default();
                let text = keyed.data_type == DataType::Varchar;
                if text && !self.utf8 && !bytes.is_ascii() {
                    return Err(not_utf8(keyed));
                }
                Key::from_binary(keyed.data_type, bytes).map(Some)
            }
            Some(None) => Ok(None),
            None => Err(bad(format!("missing data for column \"{}\"", keyed.column))),
        }
    }

    fn bad(&self, message: impl Into<String>) -> Trouble {
        Trouble::new(BAD, message, self.row())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<i32> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    Some(i32::from_be_bytes(*word))
}
