//! Plain answers: short ones to one statement that went well, handed on in one piece.

use std::borrow::Cow;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use pgdog_core::fault::Fault;

use super::conn::Conn;
use super::faults;
use crate::proto::backend::tag;
use crate::proto::frame::{self, Message as _};
use crate::proto::frontend::Subject;
use crate::proto::{TxStatus, frontend};

/// The longest plain answer, in bytes.
const SHORT: usize = 16 << 10;

/// The answers that are due for one statement and the end of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// It is parsed.
    pub parse: bool,
    /// It is bound.
    pub bind: bool,
    /// Its columns are told.
    pub describe: bool,
}

/// What is at the head of a server's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// A plain answer of so many bytes, up to ReadyForQuery outside of any transaction.
    Plain(usize),
    /// Maybe a plain answer, of which not all is there.
    Open,
    /// Anything else.
    Other,
}

impl Due {
    /// Of a simple query.
    pub const QUERY: Self = Self {
        parse: false,
        bind: false,
        describe: true,
    };

    /// The parts of the answer but for its rows, each one bit, in their order.
    fn parts(self) -> u8 {
        let part = |due, bit| if due { bit } else { 0 };
        part(self.parse, PARSED)
            | part(self.bind, BOUND)
            | part(self.describe, DESCRIBED)
            | COMPLETED
            | READY
    }

    /// Looks at what a server has sent.
    pub fn outlook(self, buffer: &[u8]) -> Outlook {
        let (mut seen, mut at) = (0, 0);
        loop {
            let rest = &buffer[at..];
            let message = match frame::peek(rest) {
                Ok(Some(message)) => message,
                Ok(None) if buffer.len() < SHORT && goes_on(rest) => return Outlook::Open,
                Ok(None) | Err(_) => return Outlook::Other,
            };
            let part = match message.tag() {
                tag::DATA_ROW if seen < COMPLETED => 0,
                tag::PARSE_COMPLETE => PARSED,
                tag::BIND_COMPLETE => BOUND,
                tag::ROW_DESCRIPTION | tag::NO_DATA => DESCRIBED,
                tag::COMMAND_COMPLETE => COMPLETED,
                tag::READY if message.body() == [TxStatus::Idle.byte()] => READY,
                _ => return Outlook::Other,
            };
            if part > 0 && seen >= part {
                return Outlook::Other;
            }
            seen |= part;
            at += message.raw().len();
            if part == READY {
                return match seen == self.parts() {
                    true => Outlook::Plain(at),
                    false => Outlook::Other,
                };
            }
        }
    }
}

const PARSED: u8 = 1;
const BOUND: u8 = 2;
const DESCRIBED: u8 = 4;
const COMPLETED: u8 = 8;
const READY: u8 = 16;

/// Whether a message that is not whole yet may be of a plain answer, and short.
fn goes_on(rest: &[u8]) -> bool {
    let tags = [
        tag::DATA_ROW,
        tag::PARSE_COMPLETE,
        tag::BIND_COMPLETE,
        tag::ROW_DESCRIPTION,
        tag::NO_DATA,
        tag::COMMAND_COMPLETE,
        tag::READY,
    ];
    match (rest.first(), frame::head(rest)) {
        (None, _) => true,
        (Some(tag), Ok(head)) => tags.contains(tag) && head.is_none_or(|(_, total)| total < SHORT),
        (Some(_), Err(_)) => false,
    }
}

impl Conn {
    /// Sends one statement and the end of its message, of which the caller knows that they are
    /// whole; `due` are the answers. What the socket does not take at once is returned, and is to
    /// be sent with [`Conn::end_plain`] before anything else.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn begin_plain<'a>(
        &mut self,
        messages: &'a [u8],
        due: Due,
    ) -> Result<Cow<'a, [u8]>, Fault> {
        self.check()?;
        if self.message_left > 0 {
            return Err(faults::internal("a message inside of another one"));
        }
        let evicted = self.ledger.take_evicted();
        self.ledger.note_plain(due);
        if evicted.is_empty() {
            return self.write_at_once(messages).map(Cow::Borrowed);
        }
        let mut out = BytesMut::new();
        evicted
            .iter()
            .for_each(|name| frontend::close(Subject::Statement(name), &mut out));
        out.extend_from_slice(messages);
        let rest = self.write_at_once(&out)?.to_vec();
        Ok(Cow::Owned(rest))
    }

    /// Sends what [`Conn::begin_plain`] has left.
    ///
    /// Cancel safety: not cancel safe; dropped half way, the connection is broken.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn end_plain(&mut self, rest: &[u8]) -> Result<(), Fault> {
        self.write(rest).await
    }

    /// Waits for a plain answer, and tells how long it is; `None` when what has come is none.
    ///
    /// Cancel safety: what was read stays in the connection.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn plain(&mut self, due: Due) -> Result<Option<usize>, Fault> {
        poll_fn(|context| self.poll_plain(context, due)).await
    }

    /// As [`Conn::plain`], for one look.
    ///
    /// # Errors
    /// As [`Conn::plain`].
    pub fn poll_plain(
        &mut self,
        context: &mut Context<'_>,
        due: Due,
    ) -> Poll<Result<Option<usize>, Fault>> {
        loop {
            if !self.input.is_empty() {
                match due.outlook(&self.input) {
                    Outlook::Plain(length) => return Poll::Ready(Ok(Some(length))),
                    Outlook::Open => {}
                    Outlook::Other => return Poll::Ready(Ok(None)),
                }
            }
            ready!(self.poll_more(context))?;
        }
    }

    /// Shows a plain answer where it was read, and takes it.
    ///
    /// # Errors
    /// When nobody has asked for it.
    pub fn take_plain(&mut self, length: usize, see: impl FnOnce(&[u8])) -> Result<(), Fault> {
        let settled = self.ledger.settle_plain();
        self.parsed(settled)?;
        self.info
            .note_batch(TxStatus::Idle, self.ledger.prepared_count());
        see(&self.input[..length]);
        match length == self.input.len() {
            // The next answer is read to where this one was, which is in the processor's cache.
            true => self.input.clear(),
            false => self.input.advance(length),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::backend;

    const ALL: Due = Due {
        parse: true,
        bind: true,
        describe: true,
    };

    /// An answer with these tags.
    fn answer(tags: &str) -> BytesMut {
        let mut out = BytesMut::new();
        for tag in tags.bytes() {
            let body: &[u8] = match tag {
                b'Z' => b"I",
                b'z' => b"T",
                b'D' => b"\0\x01\0\0\0\x011",
                _ => b"x",
            };
            // A small z is a ReadyForQuery inside of a transaction.
            let tag = if tag == b'z' { b'Z' } else { tag };
            frame::put(&mut out, tag, |out| {
                out.extend_from_slice(body);
            });
        }
        out
    }

    #[test]
    fn an_answer_is_plain_when_just_what_is_due_comes_in_its_order() {
        let bound = Due {
            parse: false,
            describe: false,
            ..ALL
        };
        for (due, tags) in [
            (Due::QUERY, "TDDCZ"),
            (Due::QUERY, "TCZ"),
            (ALL, "12TDCZ"),
            (ALL, "12nCZ"),
            (bound, "2DDDCZ"),
        ] {
            let mut bytes = answer(tags);
            let length = bytes.len();
            for end in 0..length {
                assert_eq!(due.outlook(&bytes[..end]), Outlook::Open, "{tags} {end}");
            }
            bytes.extend_from_slice(b"N");
            assert_eq!(due.outlook(&bytes), Outlook::Plain(length), "{tags}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        for (due, tags) in [
            (Due::QUERY, "E"),
            (Due::QUERY, "TDSCZ"),
            (Due::QUERY, "TDCz"),
            (Due::QUERY, "TDCTDCZ"),
            (Due::QUERY, "TCDZ"),
            (Due::QUERY, "G"),
            (ALL, "2TDCZ"),
            (ALL, "21TDCZ"),
            (ALL, "12DCZ"),
            (ALL, "12TZ"),
            (ALL, "1122TCZ"),
            (ALL, "12TDsCZ"),
        ] {
            assert_eq!(due.outlook(&answer(tags)), Outlook::Other, "{tags}");
        }
        assert_eq!(Due::QUERY.outlook(b"T\0\0\0\0"), Outlook::Other);
        assert_eq!(Due::QUERY.outlook(b"D\0\x01\0\0"), Outlook::Other, "long");
        assert_eq!(Due::QUERY.outlook(b"N"), Outlook::Other, "a notice begins");
        let many = answer(&format!("T{}", "D".repeat(2000)));
        assert_eq!(Due::QUERY.outlook(&many), Outlook::Other, "too many rows");
        let mut error = BytesMut::new();
        backend::error_response(&crate::server::faults::internal("x"), &mut error);
        assert_eq!(Due::QUERY.outlook(&error), Outlook::Other);
    }
}
