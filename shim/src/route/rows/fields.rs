//! The key among the fields of a line.

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use pgdog_core::fault::Fault;
use pgdog_core::placement::{DataType, Key};

use crate::plan::{CopyFormat, CopyIn};

use super::{Dialect, Keyed, bad, not_utf8};

/// Finds the key of a line.
#[derive(Debug)]
pub(super) struct Fields {
    csv: bool,
    delimiter: u8,
    quote: u8,
    escape: u8,
    null: Vec<u8>,
    default: Option<Vec<u8>>,
    force_null: bool,
    force_not_null: bool,
    utf8: bool,
    keyed: Keyed,
}

/// One field as it stands in a CSV line.
struct CsvField<'a> {
    raw: &'a [u8],
    value: Cow<'a, [u8]>,
    quoted: bool,
}

impl Fields {
    pub(super) fn new(copy: &CopyIn, keyed: &Keyed, dialect: Dialect) -> Self {
        Self {
            csv: copy.format == CopyFormat::Csv,
            delimiter: copy.delimiter,
            quote: copy.quote,
            escape: copy.escape,
            null: copy.null.clone(),
            default: copy.default.clone(),
            force_null: copy.force_null.has(&keyed.column),
            force_not_null: copy.force_not_null.has(&keyed.column),
            utf8: dialect.utf8,
            keyed: keyed.clone(),
        }
    }

    /// The key of a line without its end; none if it is NULL.
    ///
    /// # Errors
    /// There is no such field, or it is no key.
    pub(super) fn key(&self, line: &[u8]) -> Result<Option<Key>, Fault> {
        let value = match self.csv {
            true => self.csv_value(line)?,
            false => self.text_value(line)?,
        };
        value.map(|value| self.read(&value)).transpose()
    }

    fn text_value<'a>(&self, line: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, Fault> {
        let mut rest = line;
        for _ in 0..self.keyed.place {
            let end = self.text_end(rest).ok_or_else(|| self.missing())?;
            rest = &rest[end + 1..];
        }
        let raw = &rest[..self.text_end(rest).unwrap_or(rest.len())];
        if raw == self.null {
            return Ok(None);
        }
        self.refuse_default(raw)?;
        Ok(Some(match memchr(b'\\', raw) {
            None => Cow::Borrowed(raw),
            Some(_) => Cow::Owned(unescape(raw)),
        }))
    }

    /// Where the field at the head ends, unless it is the last one.
    fn text_end(&self, rest: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            at += memchr2(self.delimiter, b'\\', rest.get(at..)?)?;
            if rest[at] == self.delimiter {
                return Some(at);
            }
            at += 2;
        }
    }

    fn csv_value<'a>(&self, line: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, Fault> {
        let mut rest = line;
        for _ in 0..self.keyed.place {
            let (_, behind) = self.csv_field(rest, false)?;
            rest = behind.ok_or_else(|| self.missing())?;
        }
        let (field, _) = self.csv_field(rest, true)?;
        let is_null = field.raw == self.null || (field.quoted && *field.value == *self.null);
        let is_null = match field.quoted {
            true => self.force_null && is_null,
            false => !self.force_not_null && is_null,
        };
        if is_null {
            return Ok(None);
        }
        if !field.quoted {
            self.refuse_default(field.raw)?;
        }
        Ok(Some(field.value))
    }

    /// The field at the head, and what is behind its delimiter.
    fn csv_field<'a>(
        &self,
        rest: &'a [u8],
        wanted: bool,
    ) -> Result<(CsvField<'a>, Option<&'a [u8]>), Fault> {
        let mut value = Vec::new();
        let (mut at, mut quoted) = (0, false);
        let mut keep = |bytes: &[u8]| {
            if wanted {
                value.extend_from_slice(bytes);
            }
        };
        let end = loop {
            let tail = &rest[at..];
            let Some(special) = memchr2(self.delimiter, self.quote, tail) else {
                keep(tail);
                break rest.len();
            };
            keep(&tail[..special]);
            at += special;
            if rest[at] == self.delimiter {
                break at;
            }
            quoted = true;
            at = self.csv_quoted(rest, at + 1, &mut keep)?;
        };
        let raw = &rest[..end];
        let behind = (end < rest.len()).then(|| &rest[end + 1..]);
        let value = match quoted {
            true => Cow::Owned(value),
            false => Cow::Borrowed(raw),
        };
        Ok((CsvField { raw, value, quoted }, behind))
    }

    /// Reads on within quotes; returns where they are closed.
    fn csv_quoted(
        &self,
        rest: &[u8],
        mut at: usize,
        keep: &mut impl FnMut(&[u8]),
    ) -> Result<usize, Fault> {
        loop {
            let tail = &rest[at..];
            let special = memchr2(self.escape, self.quote, tail)
                .ok_or_else(|| bad("unterminated CSV quoted field"))?;
            keep(&tail[..special]);
            at += special;
            let next = rest.get(at + 1);
            let escapes = rest[at] == self.escape
                && next.is_some_and(|next| *next == self.escape || *next == self.quote);
            if escapes {
                keep(&rest[at + 1..at + 2]);
                at += 2;
            } else if rest[at] == self.quote {
                return Ok(at + 1);
            } else {
                keep(&rest[at..=at]);
                at += 1;
            }
        }
    }

    fn read(&self, value: &[u8]) -> Result<Key, Fault> {
        let text = match self.utf8 || value.is_ascii() {
            true => std::str::from_utf8(value).ok(),
            false => None,
        };
        match (text, self.keyed.data_type) {
            (Some(text), data_type) => Key::parse(data_type, text),
            (None, DataType::Varchar) => Err(not_utf8(&self.keyed)),
            (None, data_type) => Key::parse(data_type, &String::from_utf8_lossy(value)),
        }
    }

    fn refuse_default(&self, raw: &[u8]) -> Result<(), Fault> {
        match &self.default {
            Some(default) if raw == default => Err(bad(format!(
                "sharding key \"{}\" is left to its default",
                self.keyed.column
            ))),
            Some(_) | None => Ok(()),
        }
    }

    fn missing(&self) -> Fault {
        bad(format!("missing data for column \"{}\"", self.keyed.column))
    }
}

/// The value of a text field.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(raw.len());
    let mut rest = raw.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            value.push(byte);
            continue;
        }
        // A backslash at the very end stands for nothing.
        let Some(byte) = rest.next() else { break };
        let mut digits = |radix: u32, first: u32, most: usize| {
            let mut number = first;
            for _ in 0..most {
                let digit = rest
                    .peek()
                    .and_then(|byte| char::from(*byte).to_digit(radix));
                let Some(digit) = digit else { break };
                number = number * radix + digit;
                rest.next();
            }
            u8::try_from(number & 0xff).unwrap_or_default()
        };
        value.push(match byte {
            b'0'..=b'7' => digits(8, u32::from(byte - b'0'), 2),
            b'x' => match rest.peek().and_then(|byte| char::from(*byte).to_digit(16)) {
                Some(first) => {
                    rest.next();
                    let second = rest.peek().and_then(|byte| char::from(*byte).to_digit(16));
                    if second.is_some() {
                        rest.next();
                    }
                    let number = second.map_or(first, |second| first * 16 + second);
                    u8::try_from(number).unwrap_or_default()
                }
                None => b'x',
            },
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            other => other,
        });
    }
    value
}
