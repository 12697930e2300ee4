//! Where a line of text or CSV ends.

use memchr::{memchr_iter, memchr3};

use crate::plan::{CopyFormat, CopyIn};

use super::{Dialect, Found, Trouble};

const BAD: &str = "22P04";

/// How lines end; PostgreSQL learns it from the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Unknown,
    Lf,
    Cr,
    CrLf,
}

/// Finds the ends of lines, wherever the data is cut.
#[derive(Debug)]
pub(super) struct Lines {
    csv: bool,
    quote: u8,
    /// None when a quote is doubled to stand for itself.
    escape: Option<u8>,
    /// `\.` on a line of its own ends the data.
    marker: bool,
    header: bool,
    ends: Ends,
    /// Lines that were begun.
    begun: u64,
    ended: bool,
    /// How much of the line at hand was looked at.
    seen: usize,
    in_quote: bool,
    /// What stands here is escaped.
    escaped: Option<usize>,
    /// Line ends within quotes.
    inner: u64,
}

/// What the bytes at one place are.
enum End {
    /// More bytes are needed to tell.
    Unclear,
    /// Of the line: so many bytes behind its content.
    Line(usize),
    /// Of the data.
    Data,
    /// Nothing: go on here.
    None(usize),
}

impl Lines {
    pub(super) fn new(copy: &CopyIn, dialect: Dialect) -> Self {
        let csv = copy.format == CopyFormat::Csv;
        Self {
            csv,
            quote: copy.quote,
            escape: (copy.escape != copy.quote).then_some(copy.escape),
            marker: !csv || dialect.csv_marker,
            header: copy.header,
            ends: Ends::Unknown,
            begun: 0,
            ended: false,
            seen: 0,
            in_quote: false,
            escaped: None,
            inner: 0,
        }
    }

    /// The line that was begun last.
    pub(super) fn line(&self) -> u64 {
        self.begun + 1
    }

    /// The next line.
    pub(super) fn next(&mut self, rest: &[u8], last: bool) -> Result<Found, Trouble> {
        if self.ended {
            return Ok(Found::End);
        }
        loop {
            let Some(at) = self.next_special(rest) else {
                self.count_inner(rest, rest.len());
                self.seen = rest.len();
                break;
            };
            let end = match self.csv {
                true => self.special_in_csv(rest, at, last)?,
                false => self.special_in_text(rest, at, last)?,
            };
            match end {
                End::Unclear => {
                    self.seen = at;
                    return Ok(Found::Nothing);
                }
                End::Line(length) => return Ok(self.whole(at, length)),
                End::Data => {
                    self.ended = true;
                    return Ok(Found::End);
                }
                End::None(next) => self.seen = next.min(rest.len()),
            }
        }
        match last && !rest.is_empty() {
            // In a quote: the server says so.
            true => Ok(self.whole(rest.len(), 0)),
            false => Ok(Found::Nothing),
        }
    }

    fn whole(&mut self, content: usize, end: usize) -> Found {
        let line = self.begun + 1;
        self.begun += 1 + self.inner;
        self.seen = 0;
        self.inner = 0;
        self.in_quote = false;
        self.escaped = None;
        let length = content + end;
        match std::mem::take(&mut self.header) {
            true => Found::Frame(length),
            false => Found::Row {
                length,
                content,
                line,
            },
        }
    }

    /// The next byte that may mean something.
    fn next_special(&self, rest: &[u8]) -> Option<usize> {
        let tail = &rest[self.seen..];
        let found = match (self.csv, self.in_quote) {
            (false, _) => memchr3(b'\n', b'\r', b'\\', tail),
            (true, true) => memchr::memchr2(self.quote, self.escape.unwrap_or(self.quote), tail),
            (true, false) if self.marker && self.seen == 0 && tail.first() == Some(&b'\\') => {
                Some(0)
            }
            (true, false) => memchr3(b'\n', b'\r', self.quote, tail),
        };
        found.map(|at| at + self.seen)
    }

    fn special_in_text(&mut self, rest: &[u8], at: usize, last: bool) -> Result<End, Trouble> {
        if rest[at] != b'\\' {
            return self.line_end(rest, at, last);
        }
        match rest.get(at + 1) {
            None if last => Ok(End::None(at + 1)),
            None => Ok(End::Unclear),
            Some(b'.') if at > 0 => Err(self.bad("end-of-copy marker is not alone on its line")),
            Some(b'.') => match self.behind_marker(rest, last)? {
                End::None(_) => Err(self.bad("end-of-copy marker corrupt")),
                end => Ok(end),
            },
            Some(_) => Ok(End::None(at + 2)),
        }
    }

    fn special_in_csv(&mut self, rest: &[u8], at: usize, last: bool) -> Result<End, Trouble> {
        let byte = rest[at];
        if self.in_quote {
            self.count_inner(rest, at);
            let escaped = self.escaped == Some(at);
            if Some(byte) == self.escape {
                self.escaped = (!escaped).then_some(at + 1);
            } else if !escaped {
                self.in_quote = false;
            }
            return Ok(End::None(at + 1));
        }
        match byte {
            b'\n' | b'\r' => self.line_end(rest, at, last),
            b'\\' if at == 0 && self.marker && self.quote != b'\\' => match rest.get(1) {
                None if !last => Ok(End::Unclear),
                Some(b'.') => self.behind_marker(rest, last),
                None | Some(_) => Ok(End::None(1)),
            },
            _ => {
                self.in_quote = true;
                Ok(End::None(at + 1))
            }
        }
    }

    /// Counts line ends within quotes from where the line was looked at last.
    fn count_inner(&mut self, rest: &[u8], to: usize) {
        if self.in_quote {
            self.inner += memchr_iter(b'\n', &rest[self.seen..to]).count() as u64;
        }
    }

    /// What is behind `\.` at the head of a line; nothing if it is no line end.
    fn behind_marker(&mut self, rest: &[u8], last: bool) -> Result<End, Trouble> {
        match rest.get(2) {
            None if last => Ok(End::Data),
            None => Ok(End::Unclear),
            Some(b'\n' | b'\r') => match self.line_end(rest, 2, last)? {
                End::Unclear => Ok(End::Unclear),
                End::Line(_) | End::Data | End::None(_) => Ok(End::Data),
            },
            Some(_) => Ok(End::None(1)),
        }
    }

    fn line_end(&mut self, rest: &[u8], at: usize, last: bool) -> Result<End, Trouble> {
        if rest[at] == b'\n' {
            return match self.ends {
                Ends::Unknown | Ends::Lf => {
                    self.ends = Ends::Lf;
                    Ok(End::Line(1))
                }
                Ends::Cr | Ends::CrLf => Err(self.stray("newline")),
            };
        }
        match (self.ends, rest.get(at + 1)) {
            (Ends::Cr, _) => Ok(End::Line(1)),
            (Ends::Lf, _) => Err(self.stray("carriage return")),
            (Ends::Unknown | Ends::CrLf, None) if !last => Ok(End::Unclear),
            (Ends::Unknown | Ends::CrLf, Some(b'\n')) => {
                self.ends = Ends::CrLf;
                Ok(End::Line(2))
            }
            (Ends::CrLf, _) => Err(self.stray("carriage return")),
            (Ends::Unknown, _) => {
                self.ends = Ends::Cr;
                Ok(End::Line(1))
            }
        }
    }

    fn stray(&self, what: &str) -> Trouble {
        match self.csv {
            true => self.bad(format!("unquoted {what} found in data")),
            false => self.bad(format!("literal {what} found in data")),
        }
    }

    fn bad(&self, message: impl Into<String>) -> Trouble {
        Trouble::new(BAD, message, self.line())
    }
}
