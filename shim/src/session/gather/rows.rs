//! Rows and their columns as servers send them. Pure.

use bytes::{BufMut as _, Bytes, BytesMut};
use pgdog_core::fault::Fault;

use crate::plan::SplitColumn;
use crate::proto::backend::tag;
use crate::proto::frame;
use crate::proto::frontend::{Format, Param};

/// A column as RowDescription tells, without its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Name with its end, table, place there, type, length and modifier.
    raw: Bytes,
    /// Where the name ends.
    name: usize,
    /// `pg_type.oid`
    pub type_oid: u32,
}

/// The first `oid` that is not PostgreSQL's own: it may be another one on each server.
const FIRST_OWN_OID: u32 = 16384;

impl Described {
    /// Whether a column of another server is the same.
    pub fn fits(&self, other: &Self) -> bool {
        let is_own = |oid: u32| oid >= FIRST_OWN_OID;
        let same_type =
            self.type_oid == other.type_oid || (is_own(self.type_oid) && is_own(other.type_oid));
        same_type && self.raw[..self.name] == other.raw[..other.name]
    }
}

/// Reads a RowDescription's body.
///
/// # Errors
/// 08P01 when it is cut off.
pub fn described(body: &Bytes) -> Result<Vec<Described>, Fault> {
    /// Table, place, type, length and modifier.
    const FIXED: usize = 4 + 2 + 4 + 2 + 4;
    let mut columns = Vec::new();
    let mut rest = body.clone();
    let count = take(&mut rest, 2)?;
    for _ in 0..u16::from_be_bytes([count[0], count[1]]) {
        let name = memchr::memchr(0, &rest).ok_or_else(cut_off)? + 1;
        let raw = take(&mut rest, name + FIXED)?;
        take(&mut rest, 2)?;
        let oid = raw
            .get(name + 6..name + 10)
            .and_then(|oid| oid.try_into().ok());
        columns.push(Described {
            raw,
            name,
            type_oid: oid.map_or(0, u32::from_be_bytes),
        });
    }
    Ok(columns)
}

fn take(rest: &mut Bytes, count: usize) -> Result<Bytes, Fault> {
    match rest.len() >= count {
        true => Ok(rest.split_to(count)),
        false => Err(cut_off()),
    }
}

fn cut_off() -> Fault {
    Fault::ProtocolViolation {
        why: "a message about rows is cut off".to_owned(),
    }
}

/// Writes a RowDescription.
pub fn put_described(columns: &[Described], format: impl Fn(usize) -> Format, out: &mut BytesMut) {
    frame::put(out, tag::ROW_DESCRIPTION, |out| {
        out.put_u16(u16::try_from(columns.len()).unwrap_or(u16::MAX));
        for (place, column) in columns.iter().enumerate() {
            out.extend_from_slice(&column.raw);
            out.put_u16(code(format(place)));
        }
    });
}

fn code(format: Format) -> u16 {
    match format {
        Format::Text => 0,
        Format::Binary => 1,
    }
}

/// Writes a Bind of the unnamed statement to the unnamed portal. The formats of results are none
/// (text), one for all, or one for each.
pub fn put_bind(params: &[Param<'_>], results: &[Format], out: &mut BytesMut) {
    let put_count = |count: usize, out: &mut BytesMut| {
        out.put_u16(u16::try_from(count).unwrap_or(u16::MAX));
    };
    frame::put(out, b'B', |out| {
        out.put_u16(0); // no names
        put_count(params.len(), out);
        params
            .iter()
            .for_each(|param| out.put_u16(code(param.format)));
        put_count(params.len(), out);
        for param in params {
            match param.value {
                None => out.put_i32(-1),
                Some(value) => {
                    out.put_u32(value.len() as u32);
                    out.extend_from_slice(value);
                }
            }
        }
        put_count(results.len(), out);
        results.iter().for_each(|format| out.put_u16(code(*format)));
    });
}

/// Where the values of a DataRow's body stand; none for NULL.
///
/// # Errors
/// 08P01 when it is cut off.
pub fn cells(body: &[u8]) -> Result<Cells<'_>, Fault> {
    let (count, rest) = body.split_first_chunk::<2>().ok_or_else(cut_off)?;
    Ok(Cells {
        left: u16::from_be_bytes(*count),
        rest,
    })
}

/// The values of a row.
#[derive(Debug, Clone)]
pub struct Cells<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> Cells<'a> {
    /// How many there are still.
    pub fn left(&self) -> usize {
        usize::from(self.left)
    }

    /// The next one.
    ///
    /// # Errors
    /// 08P01 when it is cut off.
    pub fn next(&mut self) -> Result<Option<&'a [u8]>, Fault> {
        self.left = self.left.checked_sub(1).ok_or_else(cut_off)?;
        let (length, rest) = self.rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            self.rest = rest;
            return Ok(None);
        };
        let (value, rest) = rest.split_at_checked(length).ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(Some(value))
    }
}

/// Writes the first columns of a DataRow.
///
/// # Errors
/// 08P01 when it is cut off.
pub fn put_first(body: &[u8], columns: usize, out: &mut BytesMut) -> Result<(), Fault> {
    let mut rest = cells(body)?;
    for _ in 0..columns {
        rest.next()?;
    }
    let end = body.len() - rest.rest.len();
    frame::put(out, tag::DATA_ROW, |out| {
        out.put_u16(u16::try_from(columns).unwrap_or(u16::MAX));
        out.extend_from_slice(&body[2..end]);
    });
    Ok(())
}

/// All rows, column by column, as arrays in their binary form.
#[derive(Debug)]
pub struct Collected {
    columns: Vec<Array>,
    rows: i32,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Array {
    values: BytesMut,
    has_null: bool,
}

impl Collected {
    /// No rows of so many columns.
    pub fn new(columns: usize) -> Self {
        Self {
            columns: std::iter::repeat_with(Array::default)
                .take(columns)
                .collect(),
            rows: 0,
            bytes: 0,
        }
    }

    /// Adds a DataRow's body.
    ///
    /// # Errors
    /// 08P01 when it is cut off or has other columns.
    pub fn add(&mut self, body: &[u8]) -> Result<(), Fault> {
        let mut cells = cells(body)?;
        if cells.left() != self.columns.len() {
            return Err(cut_off());
        }
        for column in &mut self.columns {
            match cells.next()? {
                Some(value) => {
                    column.values.put_u32(value.len() as u32);
                    column.values.extend_from_slice(value);
                }
                None => {
                    column.values.put_i32(-1);
                    column.has_null = true;
                }
            }
        }
        self.rows = self.rows.checked_add(1).ok_or_else(cut_off)?;
        self.bytes += body.len();
        Ok(())
    }

    /// About how many bytes they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Each column as an array.
    pub fn arrays(self, types: &[SplitColumn]) -> Vec<BytesMut> {
        let rows = self.rows;
        let columns = self.columns.into_iter().zip(types);
        columns
            .map(|(column, column_type)| {
                let mut array = BytesMut::with_capacity(column.values.len() + 20);
                array.put_i32(i32::from(rows > 0)); // dimensions
                array.put_i32(i32::from(column.has_null));
                array.put_u32(column_type.type_oid);
                if rows > 0 {
                    array.put_i32(rows);
                    array.put_i32(1); // first index
                }
                array.unsplit(column.values);
                array
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut out = BytesMut::new();
        out.put_u16(values.len() as u16);
        for value in values {
            match value {
                Some(value) => {
                    out.put_u32(value.len() as u32);
                    out.extend_from_slice(value);
                }
                None => out.put_i32(-1),
            }
        }
        out.to_vec()
    }

    #[test]
    fn hidden_columns_are_cut_off() {
        let body = row(&[Some(b"ab"), None, Some(b"hidden")]);
        let mut out = BytesMut::new();
        put_first(&body, 2, &mut out).unwrap();
        assert_eq!(&out[5..], row(&[Some(b"ab"), None]));
        assert!(put_first(&body[..8], 2, &mut out).is_err());
    }

    #[test]
    fn rows_are_collected_as_arrays() {
        let mut collected = Collected::new(1);
        collected.add(&row(&[Some(&[0, 0, 0, 7])])).unwrap();
        collected.add(&row(&[None])).unwrap();
        assert!(collected.add(&row(&[None, None])).is_err());
        let types = [SplitColumn {
            type_oid: 23,
            array_oid: 1007,
        }];
        let [array] = collected.arrays(&types).try_into().unwrap();
        let words: Vec<i32> = array
            .chunks(4)
            .map(|word| i32::from_be_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [1, 1, 23, 2, 1, 4, 7, -1]);
    }
}
