//! Which answers a server owes for the messages it was sent, which of them the client sees. Pure.
//!
//! The client must get exactly the answers to what *it* sent, in order, although the shim may have
//! sent more (a Parse that this connection lacked) or less (a Parse that it had already).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;

use super::prepared::Prepared;
use crate::proto::backend::{self, tag};
use crate::proto::frame::{self, Message};
use crate::proto::{ErrorFields, Frame, ProtocolError, answer};

/// One message and the answer due for it.
#[derive(Debug, Clone)]
pub enum Item {
    /// Parse; the client is told only if it asked.
    Parse {
        /// Whether the client sent it.
        shown: bool,
    },
    /// Bind.
    Bind,
    /// Describe; of a statement, whose parameter types are learnt.
    Describe(Option<Arc<Prepared>>),
    /// Execute.
    Execute,
    /// Close; the client is told only if it asked.
    Close {
        /// Whether the client sent it.
        shown: bool,
    },
    /// A Parse that was not sent: the connection knows the statement. Answered in its turn.
    ParsedAlready,
    /// A Close that was not sent: the statement is shared. Answered in its turn.
    ClosedHere,
    /// Sync.
    Sync,
    /// Simple query.
    Query,
    /// Function call.
    Call,
}

/// What to do with a message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// For the client.
    Show,
    /// Not for the client.
    Hide,
}

/// The answers due, and what came.
#[derive(Debug, Default)]
pub struct Script {
    due: VecDeque<Item>,
    /// The first error.
    pub error: Option<ErrorFields>,
    /// Tags of the completed commands, in order.
    pub tags: Vec<String>,
    /// How many Parses of the client were answered.
    pub parsed: usize,
    /// Whether an execution stopped at its row limit.
    pub suspended: bool,
    /// How many characters further on in the client's query stands what was sent: positions of
    /// errors count them.
    pub offset: isize,
}

impl Script {
    /// An empty one with room for so many answers.
    pub fn with_room(answers: usize) -> Self {
        Self {
            due: VecDeque::with_capacity(answers),
            ..Self::default()
        }
    }

    /// Adds a message.
    pub fn push(&mut self, item: Item) {
        self.due.push_back(item);
    }

    /// Nothing is due any more.
    pub fn is_done(&self) -> bool {
        self.due.is_empty()
    }

    /// Answers whose turn it is and that no server gives.
    pub fn lead(&mut self, out: &mut BytesMut) {
        loop {
            match self.due.front() {
                Some(Item::ParsedAlready) => {
                    self.parsed += 1;
                    backend::parse_complete(out);
                }
                Some(Item::ClosedHere) => backend::close_complete(out),
                _ => return,
            }
            self.due.pop_front();
        }
    }

    /// An error as the client must see it when only a part of its query was sent.
    ///
    /// # Errors
    /// It is cut off.
    pub fn placed(&self, frame: &impl Message) -> Result<Frame, ProtocolError> {
        let mut fields = ErrorFields::parse(frame.body())?;
        fields.move_position(self.offset);
        let mut out = BytesMut::new();
        backend::error_fields(backend::Severity::Error, &fields, &mut out);
        Ok(frame::take(&mut out)?.expect("one whole message was just written"))
    }

    /// Takes note of a message other than a notice, setting or notification.
    ///
    /// # Errors
    /// The server answered something that is not due.
    pub fn accept(&mut self, frame: &impl Message) -> Result<Verdict, ProtocolError> {
        let front = self.due.front();
        match (frame.tag(), front) {
            (tag::ERROR, Some(_)) => {
                let fields = ErrorFields::parse(frame.body())?;
                self.error.get_or_insert(fields);
                self.skip_to_end();
                Ok(Verdict::Show)
            }
            (tag::READY, Some(_)) => {
                self.skip_to_end();
                self.due.pop_front();
                Ok(Verdict::Hide)
            }
            (tag::COMMAND_COMPLETE, Some(Item::Query | Item::Execute)) => {
                self.tags
                    .push(answer::command_complete(frame.body())?.to_owned());
                self.finish_execute()
            }
            (tag::EMPTY_QUERY, Some(Item::Query | Item::Execute)) => {
                self.tags.push(String::new());
                self.finish_execute()
            }
            (tag::PORTAL_SUSPENDED, Some(Item::Execute)) => {
                self.suspended = true;
                self.finish_execute()
            }
            (tag::PARSE_COMPLETE, Some(Item::Parse { shown })) => {
                let verdict = if *shown { Verdict::Show } else { Verdict::Hide };
                self.parsed += usize::from(*shown);
                self.pop(verdict)
            }
            (tag::CLOSE_COMPLETE, Some(Item::Close { shown })) => {
                let verdict = if *shown { Verdict::Show } else { Verdict::Hide };
                self.pop(verdict)
            }
            (tag::BIND_COMPLETE, Some(Item::Bind))
            | (tag::ROW_DESCRIPTION | tag::NO_DATA, Some(Item::Describe(_))) => {
                self.pop(Verdict::Show)
            }
            (tag::PARAMETER_DESCRIPTION, Some(Item::Describe(Some(prepared)))) => {
                prepared.note_described(parameter_types(frame.body())?);
                Ok(Verdict::Show)
            }
            (
                tag::ROW_DESCRIPTION
                | tag::DATA_ROW
                | tag::COPY_IN
                | tag::COPY_OUT
                | tag::COPY_DATA
                | tag::COPY_DONE,
                Some(Item::Query | Item::Execute),
            )
            | (tag::FUNCTION_CALL, Some(Item::Call)) => Ok(Verdict::Show),
            _ => Err(ProtocolError::Malformed("an answer that is not due")),
        }
    }

    fn finish_execute(&mut self) -> Result<Verdict, ProtocolError> {
        match self.due.front() {
            Some(Item::Execute) => self.pop(Verdict::Show),
            _ => Ok(Verdict::Show),
        }
    }

    fn pop(&mut self, verdict: Verdict) -> Result<Verdict, ProtocolError> {
        self.due.pop_front();
        Ok(verdict)
    }

    /// After an error the server skips to the Sync; a simple query ends by itself.
    fn skip_to_end(&mut self) {
        while !matches!(
            self.due.front(),
            Some(Item::Sync | Item::Query | Item::Call) | None
        ) {
            self.due.pop_front();
        }
    }
}

fn parameter_types(body: &[u8]) -> Result<Vec<u32>, ProtocolError> {
    let words = body
        .get(2..)
        .ok_or(ProtocolError::Malformed("ParameterDescription"))?;
    let (oids, _) = words.as_chunks::<4>();
    Ok(oids.iter().map(|oid| u32::from_be_bytes(*oid)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanCache;
    use crate::session::prepared::Registry;

    fn shown(script: &mut Script, tags: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for tag in tags {
            let mut lead = BytesMut::new();
            script.lead(&mut lead);
            out.extend(lead.iter().filter(|byte| byte.is_ascii_alphanumeric()));
            let body: &[u8] = match tag {
                b'E' => b"SERROR\0C22012\0Mx\0\0",
                b'C' => b"SELECT 1\0",
                b'Z' => b"I",
                _ => b"",
            };
            if script.accept(&Frame::new(*tag, body)).unwrap() == Verdict::Show {
                out.push(*tag);
            }
        }
        out
    }

    fn script(items: &[Item]) -> Script {
        let mut script = Script::default();
        items.iter().for_each(|item| script.push(item.clone()));
        script
    }

    #[test]
    fn injected_parses_are_hidden_and_spared_ones_are_answered_in_turn() {
        let mut s = script(&[
            Item::Parse { shown: false },
            Item::Bind,
            Item::Execute,
            Item::ParsedAlready,
            Item::Bind,
            Item::Execute,
            Item::Sync,
        ]);
        assert_eq!(shown(&mut s, b"12DC2DCZ"), b"2DC12DC");
        assert!(s.is_done());
        assert_eq!((s.tags.len(), s.parsed), (2, 1));
    }

    #[test]
    fn an_error_skips_what_was_due_up_to_the_sync() {
        let mut s = script(&[
            Item::Parse { shown: true },
            Item::Bind,
            Item::Execute,
            Item::ParsedAlready,
            Item::Sync,
        ]);
        assert_eq!(shown(&mut s, b"1EZ"), b"1E");
        assert!(s.is_done());
        assert_eq!(s.error.unwrap().code, "22012");
        assert_eq!(s.parsed, 1);
    }

    #[test]
    fn a_simple_query_ends_with_ready_whatever_came_before() {
        let mut s = script(&[Item::Query]);
        assert_eq!(shown(&mut s, b"TDCCEZ"), b"TDCCE");
        assert!(s.is_done());
    }

    #[test]
    fn answers_that_nobody_asked_for_are_errors() {
        let mut s = script(&[Item::Bind]);
        assert!(s.accept(&Frame::new(b'1', b"")).is_err());
        let mut s = script(&[]);
        assert!(s.accept(&Frame::new(b'Z', b"I")).is_err());
    }

    #[test]
    fn the_position_of_an_error_counts_what_was_not_sent() {
        let s = Script {
            offset: 7,
            ..Script::default()
        };
        let error = Frame::new(b'E', b"SERROR\0C42703\0Mx\0P8\0\0");
        let placed = s.placed(&error).unwrap();
        let fields = ErrorFields::parse(placed.body()).unwrap();
        assert_eq!(fields.more, [(b'P', "15".to_owned())]);
    }

    #[test]
    fn types_of_parameters_are_learnt_from_a_describe() {
        let plans = PlanCache::new(1 << 20);
        let prepared = Registry::default().prepare("SELECT $1", vec![], 0, &plans);
        let mut s = script(&[Item::Describe(Some(prepared.clone())), Item::Sync]);
        s.accept(&Frame::new(b't', &[0, 1, 0, 0, 0, 20])).unwrap();
        s.accept(&Frame::new(b'n', b"")).unwrap();
        assert_eq!(prepared.type_of(1), 20);
    }
}
