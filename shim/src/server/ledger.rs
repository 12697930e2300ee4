//! What a conversation owes; pure.
//!
//! The ledger sees every message in both directions and knows from them alone whether the
//! connection is at rest, in which transaction state, in COPY, and which statements are prepared.
//!
//! ```text
//!   sent:      P B E S   Q   P B E S
//!   segment:   \_ 0 _/   1   \_ 2 _/      each ends with one ReadyForQuery
//! ```

use std::collections::VecDeque;

use super::ahead::GUARD_NAME;
use super::plain::Due;
use super::prepared::{Moment, Prepared};
use crate::proto::answer;
use crate::proto::backend::tag;
use crate::proto::frame::Message;
use crate::proto::{ProtocolError, TxStatus};

/// Whether a COPY is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copying {
    /// None.
    No,
    /// The server waits for data.
    In,
    /// The server sends data.
    Out,
}

/// Something sent that the server has not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    /// A simple query or function call: one ReadyForQuery.
    Ready,
    /// A Sync: one ReadyForQuery, or none if it arrives while the server is reading COPY data.
    Sync,
    /// CopyDone or CopyFail sent before the server asked for data; has no answer of its own.
    CopyEnd,
}

/// A named statement whose Parse is on its way.
#[derive(Debug)]
struct Parsing {
    name: String,
    bytes: usize,
    sent: Moment,
}

/// What to do with a message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noted {
    /// It is for the caller.
    Pass,
    /// It answers something that the connection sent by itself.
    Swallow,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    tx: TxStatus,
    copying: Copying,
    owed: VecDeque<Owed>,
    /// Extended-protocol messages were sent after the last Sync.
    open: bool,
    /// Segments sent and settled so far; a message sent now belongs to segment `sent`.
    sent: u64,
    settled: u64,
    /// Parse and Close messages on their way, with their segment; `None` is not to be remembered.
    parsing: VecDeque<(u64, Option<Parsing>)>,
    closing: VecDeque<(u64, Option<String>)>,
    prepared: Prepared,
    /// CloseComplete answers to come for evicted statements.
    own_closes: usize,
}

impl Ledger {
    pub(super) fn new(prepared_limit: usize) -> Self {
        Self {
            tx: TxStatus::Idle,
            copying: Copying::No,
            owed: VecDeque::new(),
            open: false,
            sent: 0,
            settled: 0,
            parsing: VecDeque::new(),
            closing: VecDeque::new(),
            prepared: Prepared::new(prepared_limit),
            own_closes: 0,
        }
    }

    /// A startup packet went out: one ReadyForQuery will end the login.
    pub(super) fn expect_login(&mut self) {
        self.owe(Owed::Ready);
    }

    pub(super) fn tx(&self) -> TxStatus {
        self.tx
    }

    pub(super) fn copying(&self) -> Copying {
        self.copying
    }

    /// Nothing is owed, in either direction.
    pub(super) fn in_sync(&self) -> bool {
        self.owed.is_empty() && !self.open && self.copying == Copying::No
    }

    /// Messages were sent that only a Sync will settle.
    pub(super) fn needs_sync(&self) -> bool {
        self.open
    }

    /// How many ReadyForQuery are to come.
    pub(super) fn owed(&self) -> usize {
        self.owed
            .iter()
            .filter(|owed| **owed != Owed::CopyEnd)
            .count()
    }

    /// When the Parse of a statement was sent, if the server knows it or is about to.
    pub(super) fn prepared_at(&mut self, name: &str) -> Option<Moment> {
        let mut on_their_way = self
            .parsing
            .iter()
            .rev()
            .filter_map(|(_, one)| one.as_ref());
        let on_its_way = on_their_way.find(|one| one.name == name);
        on_its_way
            .map(|one| one.sent)
            .or_else(|| self.prepared.touch(name))
    }

    /// SQL has prepared a statement by this name.
    pub(super) fn note_prepared(&mut self, name: &str, bytes: usize) {
        self.prepared.insert(name.to_owned(), bytes, Moment::now());
    }

    /// The statement is of no use any more.
    pub(super) fn spoil_prepared(&mut self, name: &str) {
        self.prepared.spoil(name);
    }

    /// SQL has deallocated it.
    pub(super) fn forget_one_prepared(&mut self, name: &str) {
        self.prepared.forget(name);
    }

    pub(super) fn prepared_count(&self) -> usize {
        self.prepared.len()
    }

    /// The names are a client's: none of them may go by itself.
    pub(super) fn keep_all_prepared(&mut self) {
        self.prepared.keep_all();
    }

    pub(super) fn forget_prepared(&mut self) {
        self.prepared.clear();
    }

    /// Statements to close ahead of the next batch. Only at rest: then their answers come first.
    pub(super) fn take_evicted(&mut self) -> Vec<String> {
        if !self.prepared.has_evicted() || !self.in_sync() {
            return Vec::new();
        }
        let names = self.prepared.take_evicted();
        self.own_closes = names.len();
        names
    }

    /// A whole message went out.
    pub(super) fn note_sent(&mut self, tag: u8, body: &[u8]) {
        match tag {
            b'Q' | b'F' => self.owe(Owed::Ready),
            b'S' if self.copying == Copying::In => {} // ignored by the server
            b'S' => self.owe(Owed::Sync),
            b'c' | b'f' if self.copying == Copying::In => self.copying = Copying::No,
            // Ahead of the server's CopyInResponse; or too late, after an error ended the COPY.
            b'c' | b'f' if self.open || !self.owed.is_empty() => {
                self.owed.push_back(Owed::CopyEnd);
            }
            b'P' => {
                self.open = true;
                let parsing = name_of(body).map(|name| Parsing {
                    name,
                    bytes: body.len(),
                    sent: Moment::now(),
                });
                self.parsing.push_back((self.sent, parsing));
            }
            b'C' => {
                self.open = true;
                let name = body.strip_prefix(b"S").and_then(name_of);
                self.closing.push_back((self.sent, name));
            }
            b'B' | b'D' | b'E' | b'H' => self.open = true,
            _ => {}
        }
    }

    /// One statement went out, not named when it is parsed, with the end of its message.
    pub(super) fn note_plain(&mut self, due: Due) {
        if due.parse {
            self.parsing.push_back((self.sent, None));
        }
        self.owe(if due.bind { Owed::Sync } else { Owed::Ready });
    }

    /// All answers to what [`Ledger::note_plain`] has noted came in.
    pub(super) fn settle_plain(&mut self) -> Result<(), ProtocolError> {
        self.tx = TxStatus::Idle;
        self.settle()
    }

    fn owe(&mut self, what: Owed) {
        self.open = false;
        self.sent += 1;
        self.owed.push_back(what);
    }

    /// A whole message came in.
    pub(super) fn note_received(&mut self, frame: &impl Message) -> Result<Noted, ProtocolError> {
        match frame.tag() {
            tag::READY => {
                self.tx = answer::ready_for_query(frame.body())?;
                self.settle()?;
            }
            tag::PARSE_COMPLETE => {
                if let Some((_, Some(done))) = self.parsing.pop_front() {
                    self.prepared.insert(done.name, done.bytes, done.sent);
                }
            }
            tag::CLOSE_COMPLETE if self.own_closes > 0 => {
                self.own_closes -= 1;
                return Ok(Noted::Swallow);
            }
            tag::CLOSE_COMPLETE => {
                if let Some((_, Some(name))) = self.closing.pop_front() {
                    self.prepared.forget(&name);
                }
            }
            tag::COPY_IN => self.enter_copy_in(),
            tag::COPY_OUT | tag::COPY_BOTH => self.copying = Copying::Out,
            tag::COPY_DONE | tag::ERROR => self.copying = Copying::No,
            _ => {}
        }
        Ok(Noted::Pass)
    }

    /// Syncs that are already on their way arrive while the server reads COPY data, which ignores
    /// them, unless the end of the data was sent before them.
    fn enter_copy_in(&mut self) {
        self.copying = Copying::In;
        while self.owed.front() == Some(&Owed::Sync) {
            self.owed.pop_front();
            self.settled += 1;
        }
        if self.owed.contains(&Owed::CopyEnd) {
            self.copying = Copying::No;
        }
        self.open |= self.owed.is_empty();
    }

    fn settle(&mut self) -> Result<(), ProtocolError> {
        self.copying = Copying::No;
        self.own_closes = 0;
        loop {
            match self.owed.pop_front() {
                Some(Owed::CopyEnd) => {}
                Some(Owed::Ready | Owed::Sync) => break,
                None => {
                    return Err(ProtocolError::Malformed(
                        "ReadyForQuery that nobody asked for",
                    ));
                }
            }
        }
        // An end of data that came too late was ignored by the server.
        while self.owed.front() == Some(&Owed::CopyEnd) {
            self.owed.pop_front();
        }
        self.settled += 1;
        self.prepared.trim();
        // What had not completed by the end of its segment was skipped after an error.
        let settled = self.settled;
        self.parsing.retain(|(segment, _)| *segment >= settled);
        self.closing.retain(|(segment, _)| *segment >= settled);
        Ok(())
    }

    /// After an error in extended protocol the server skips everything up to a Sync. Tells
    /// whether such a Sync must still be sent, having forgotten the simple query that is skipped.
    pub(super) fn skip_to_sync(&mut self) -> bool {
        while self.owed.front() == Some(&Owed::Ready) {
            self.owed.pop_front();
            self.settled += 1;
        }
        self.owed.is_empty()
    }
}

/// The name at the start of a body, when it is worth remembering.
fn name_of(body: &[u8]) -> Option<String> {
    let end = memchr::memchr(0, body)?;
    let name = std::str::from_utf8(&body[..end]).ok()?;
    (!name.is_empty() && name != GUARD_NAME).then(|| name.to_owned())
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
