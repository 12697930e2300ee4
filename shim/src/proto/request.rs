//! The commonest requests, read where they are: one query, or one statement bound and run once.
//!
//! Everything else (`None`) is for [`Frontend`](super::Frontend), which also says what is wrong.

use bytes::{BufMut as _, BytesMut};

use super::cursor::Cursor;
use super::frame::{self, put};
use super::frontend::Types;

/// What a client asks for in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// All of it as it came, up to the Query or the Sync.
    pub raw: &'a [u8],
    /// What it is.
    pub asked: Asked<'a>,
}

/// See [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked<'a> {
    /// A simple query with this text.
    Query(&'a [u8]),
    /// A statement by its name: Bind, Execute and Sync.
    Named {
        /// Name, never empty.
        name: &'a [u8],
        /// The portal is described before it is run.
        describes: bool,
    },
    /// The unnamed statement: Parse, Bind, Execute and Sync.
    Unnamed {
        /// The text.
        sql: &'a [u8],
        /// Types of the parameters that the client declares.
        types: Types<'a>,
        /// The portal is described before it is run.
        describes: bool,
    },
}

/// Bodies of Describe and Execute of the unnamed portal, the latter for all rows.
const DESCRIBE_UNNAMED: &[u8] = b"P\0";
const EXECUTE_UNNAMED: &[u8] = &[0; 5];

impl<'a> Request<'a> {
    /// The request at the head of what a client has sent, if it is whole.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut walk = Walk { bytes, at: 0 };
        let asked = match walk.next()? {
            (b'Q', body) => Asked::Query(body.strip_suffix(b"\0").filter(|sql| is_text(sql))?),
            (b'B', body) => Asked::Named {
                name: bound(body).filter(|name| !name.is_empty())?,
                describes: walk.runs()?,
            },
            (b'P', body) => {
                let mut cursor = Cursor::new(body, "Parse");
                let name = cursor.cstr().ok()?;
                let sql = cursor.cstr().ok()?;
                let types = Types::read(&mut cursor).ok()?;
                cursor.end().ok()?;
                let (b'B', body) = walk.next()? else {
                    return None;
                };
                if !name.is_empty() || !bound(body)?.is_empty() {
                    return None;
                }
                Asked::Unnamed {
                    sql,
                    types,
                    describes: walk.runs()?,
                }
            }
            _ => return None,
        };
        let raw = &bytes[..walk.at];
        Some(Self { raw, asked })
    }

    /// Whether the portal is described.
    pub fn describes(&self) -> bool {
        match self.asked {
            Asked::Query(_) => false,
            Asked::Named { describes, .. } | Asked::Unnamed { describes, .. } => describes,
        }
    }

    /// Appends it with another name of its statement, one of the shim's own making. A query has
    /// none, and stays as it is.
    pub fn write_named(&self, name: &str, out: &mut BytesMut) {
        let (Asked::Named { name: before, .. }, Ok(Some((tag, length)))) =
            (self.asked, frame::head(self.raw))
        else {
            out.extend_from_slice(self.raw);
            return;
        };
        let (bind, rest) = self.raw.split_at(length);
        // The name of the portal, which is empty, stands before that of the statement.
        let behind = frame::HEADER + 1 + before.len() + 1;
        put(out, tag, |out| {
            out.put_u8(0);
            out.extend_from_slice(name.as_bytes());
            out.put_u8(0);
            out.extend_from_slice(&bind[behind..]);
        });
        out.extend_from_slice(rest);
    }
}

/// Whole messages, one after the other.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let rest = &self.bytes[self.at..];
        let (tag, length) = frame::head(rest).ok()??;
        let message = rest.get(..length)?;
        self.at += length;
        Some((tag, &message[frame::HEADER..]))
    }

    /// The unnamed portal is run to its end, and that ends the batch; tells whether it is
    /// described before.
    fn runs(&mut self) -> Option<bool> {
        let (mut tag, mut body) = self.next()?;
        let describes = tag == b'D' && body == DESCRIBE_UNNAMED;
        if describes {
            (tag, body) = self.next()?;
        }
        let runs = tag == b'E' && body == EXECUTE_UNNAMED;
        let ends = runs && self.next()? == (b'S', b"");
        ends.then_some(describes)
    }
}

/// The statement that a Bind gives to the unnamed portal.
fn bound(body: &[u8]) -> Option<&[u8]> {
    let rest = body.strip_prefix(b"\0")?;
    rest.get(..memchr::memchr(0, rest)?)
}

fn is_text(bytes: &[u8]) -> bool {
    memchr::memchr(0, bytes).is_none()
}

#[cfg(test)]
mod tests {
    use super::super::frontend::{self, Subject};
    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> BytesMut {
        let mut out = BytesMut::new();
        write(&mut out);
        out
    }

    fn batch(parse: Option<&str>, statement: &str, describes: bool) -> BytesMut {
        written(|out| {
            if let Some(sql) = parse {
                frontend::parse("", sql, &[23], out);
            }
            frontend::bind("", statement, &[Some("1")], out);
            if describes {
                frontend::describe(Subject::Portal(""), out);
            }
            frontend::execute("", 0, out);
            frontend::sync(out);
        })
    }

    #[test]
    fn a_query_is_read_and_what_comes_behind_it_is_left() {
        let mut bytes = written(|out| frontend::query("SELECT 1", out));
        let length = bytes.len();
        frontend::query("SELECT 2", &mut bytes);
        let request = Request::read(&bytes).unwrap();
        assert_eq!(request.asked, Asked::Query(b"SELECT 1"));
        assert_eq!(request.raw.len(), length);
    }

    #[test]
    fn a_statement_is_read_with_and_without_its_text() {
        for describes in [false, true] {
            let named = batch(None, "s", describes);
            let request = Request::read(&named).unwrap();
            let name = b"s".as_slice();
            assert_eq!(request.asked, Asked::Named { name, describes });
            assert_eq!((request.raw, request.describes()), (&named[..], describes));
            let unnamed = batch(Some("SELECT $1"), "", describes);
            let Asked::Unnamed { sql, types, .. } = Request::read(&unnamed).unwrap().asked else {
                panic!("the unnamed statement");
            };
            assert_eq!(sql, b"SELECT $1");
            assert_eq!(types.iter().collect::<Vec<_>>(), [23]);
        }
    }

    #[test]
    fn another_name_is_put_in_and_everything_else_stays() {
        let (mut out, wanted) = (BytesMut::new(), batch(None, "a_longer_name", true));
        let bytes = batch(None, "s", true);
        let request = Request::read(&bytes).unwrap();
        request.write_named("a_longer_name", &mut out);
        assert_eq!(out, wanted);
    }

    #[test]
    fn what_is_not_whole_or_not_common_is_not_read() {
        let whole = batch(Some("SELECT $1"), "", true);
        for end in 0..whole.len() {
            assert_eq!(Request::read(&whole[..end]), None, "{end}");
        }
        let others: [fn(&mut BytesMut); 8] = [
            |out| frontend::sync(out),
            |out| frontend::parse("s", "SELECT 1", &[], out),
            |out| frontend::bind("p", "s", &[], out),
            |out| frontend::bind("", "", &[], out),
            |out| {
                frontend::bind("", "s", &[], out);
                frontend::describe(Subject::Statement("s"), out);
            },
            |out| {
                frontend::bind("", "s", &[], out);
                frontend::execute("", 5, out);
            },
            |out| {
                frontend::bind("", "s", &[], out);
                frontend::execute("", 0, out);
                frontend::flush(out);
            },
            |out| {
                frontend::parse("", "SELECT 1", &[], out);
                frontend::bind("", "s", &[], out);
            },
        ];
        for write in others {
            let mut bytes = written(write);
            frontend::execute("", 0, &mut bytes);
            frontend::sync(&mut bytes);
            assert_eq!(Request::read(&bytes), None, "{bytes:?}");
        }
        let two_texts = written(|out| put(out, b'Q', |out| out.extend_from_slice(b"a\0b\0")));
        assert_eq!(Request::read(&two_texts), None);
    }
}
