//! COPY data cut into rows, each with its sharding key. Pure: bytes in, rows out.
//!
//! Rows end where PostgreSQL would end them, and their bytes are left as they are: what else is
//! wrong with a row its server says. What would be wrong only for all rows together (two kinds of
//! line ends, data behind the end) is an error here, as no server sees all of them.

mod binary;
mod fields;
mod lines;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use pgdog_core::fault::{Fault, NodeError};
use pgdog_core::placement::{DataType, Key};

use crate::plan::{CopyFormat, CopyIn};
use crate::route::bind::fits;

use binary::Binary;
use fields::Fields;
use lines::Lines;

/// A row may be this long, in bytes.
pub const MAX_ROW_BYTES: usize = 64 << 20;

/// What is to be known of a table to find the keys of its rows.
#[derive(Debug, Clone)]
pub struct Keyed {
    /// Its name.
    pub table: String,
    /// Its sharding key.
    pub column: String,
    /// The key's 0-based place among the columns that are copied.
    pub place: usize,
    /// The key's type.
    pub data_type: DataType,
    /// How many characters it may have.
    pub max_length: Option<usize>,
}

/// What a server of this cluster makes of the data.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Texts are in UTF-8: of other encodings only ASCII is certain.
    pub utf8: bool,
    /// In CSV `\.` on a line of its own ends the data: before PostgreSQL 18.
    pub csv_marker: bool,
}

/// Cuts COPY data into rows.
#[derive(Debug)]
pub struct Splitter {
    reader: Reader,
    /// What came and is not part of a whole row yet.
    buffer: BytesMut,
    keyed: Keyed,
}

#[derive(Debug)]
enum Reader {
    Lines(Lines, Fields),
    Binary(Binary),
}

/// Some whole rows.
#[derive(Debug)]
pub struct Chunk {
    /// Their bytes.
    pub bytes: Bytes,
    /// The rows in order, one behind the other.
    pub rows: Vec<Row>,
}

/// One row.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// Where in the bytes.
    pub span: Range<usize>,
    /// On which line of the data it began; of binary data: which row it is.
    pub line: u64,
    /// Its key. `None` for what every server must see: header and trailer.
    pub key: Option<Key>,
}

/// What a reader found at the head of the buffer.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Not yet a whole one.
    Nothing,
    /// For every server, so many bytes.
    Frame(usize),
    /// A row: so many bytes, of which the first so many without the line's end.
    Row {
        length: usize,
        content: usize,
        line: u64,
    },
    /// The data ends here, whatever comes behind it.
    End,
}

impl Splitter {
    /// For data that is written in this way.
    pub fn new(copy: &CopyIn, keyed: Keyed, dialect: Dialect) -> Self {
        let reader = match copy.format {
            CopyFormat::Binary => Reader::Binary(Binary::new(dialect)),
            CopyFormat::Text | CopyFormat::Csv => Reader::Lines(
                Lines::new(copy, dialect),
                Fields::new(copy, &keyed, dialect),
            ),
        };
        Self {
            reader,
            buffer: BytesMut::new(),
            keyed,
        }
    }

    /// Adds data.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The rows that are whole now; `last`: there is no more data to come.
    ///
    /// # Errors
    /// A row without a key, or one that no server could read.
    pub fn take(&mut self, last: bool) -> Result<Chunk, Fault> {
        let mut rows = Vec::new();
        let mut at = 0;
        loop {
            let rest = &self.buffer[at..];
            let found = match &mut self.reader {
                Reader::Lines(lines, _) => lines.next(rest, last),
                Reader::Binary(binary) => binary.next(rest, last, self.keyed.place),
            };
            let found = found.map_err(|trouble| trouble.at(&self.keyed))?;
            let (length, line, key) = match found {
                Found::Nothing => break,
                Found::End => {
                    self.buffer.truncate(at);
                    break;
                }
                Found::Frame(length) => (length, 0, None),
                Found::Row {
                    length,
                    content,
                    line,
                } => {
                    let row = &self.buffer[at..at + content];
                    let key = self.key(row).map_err(|why| self.in_line(why, line))?;
                    (length, line, Some(key))
                }
            };
            rows.push(Row {
                span: at..at + length,
                line,
                key,
            });
            at += length;
        }
        if self.buffer.len() - at > MAX_ROW_BYTES {
            let why = format!("row of more than {MAX_ROW_BYTES} bytes");
            return Err(Trouble::new("54000", why, self.line()).at(&self.keyed));
        }
        Ok(Chunk {
            bytes: self.buffer.split_to(at).freeze(),
            rows,
        })
    }

    fn key(&self, row: &[u8]) -> Result<Key, Fault> {
        let keyed = &self.keyed;
        let key = match &self.reader {
            Reader::Lines(_, fields) => fields.key(row)?,
            Reader::Binary(binary) => binary.key(row, keyed)?,
        };
        let key = key.ok_or_else(|| Fault::NullKey {
            table: keyed.table.clone(),
            column: keyed.column.clone(),
        })?;
        fits(&key, keyed.max_length)?;
        Ok(key)
    }

    fn line(&self) -> u64 {
        match &self.reader {
            Reader::Lines(lines, _) => lines.line(),
            Reader::Binary(binary) => binary.row(),
        }
    }

    /// An error with the line where it is, said as PostgreSQL says it.
    pub fn in_line(&self, fault: Fault, line: u64) -> Fault {
        let Keyed { table, column, .. } = &self.keyed;
        let place = format!("COPY {table}, line {line}, column {column}");
        let mut error = match fault {
            Fault::Node(error) => *error,
            other => NodeError {
                node: String::new(),
                code: other.sqlstate().to_owned(),
                message: other.message(),
                detail: other.detail(),
                hint: other.hint(),
                more: Vec::new(),
            },
        };
        error.more.push((b'W', place));
        Fault::Node(Box::new(error))
    }
}

/// What is wrong with the data as a whole.
#[derive(Debug, PartialEq, Eq)]
struct Trouble {
    code: &'static str,
    message: String,
    line: u64,
}

impl Trouble {
    fn new(code: &'static str, message: impl Into<String>, line: u64) -> Self {
        Self {
            code,
            message: message.into(),
            line,
        }
    }

    fn at(self, keyed: &Keyed) -> Fault {
        let place = format!("COPY {}, line {}", keyed.table, self.line);
        Fault::Node(Box::new(NodeError {
            code: self.code.to_owned(),
            message: self.message,
            more: vec![(b'W', place)],
            ..NodeError::default()
        }))
    }
}

fn bad(message: impl Into<String>) -> Fault {
    Fault::Node(Box::new(NodeError {
        code: "22P04".to_owned(),
        message: message.into(),
        ..NodeError::default()
    }))
}

fn not_utf8(keyed: &Keyed) -> Fault {
    bad(format!("sharding key \"{}\" is not in UTF-8", keyed.column))
}
