//! What is sent to a server for a run of steps: the client's messages, with names as this
//! connection knows them. Pure but for the connection's list of names.

use std::sync::Arc;

use bytes::BytesMut;

use super::batch::{Message, Step};
use super::prepared::{Held, Prepared};
use super::script::{Item, Script};
use crate::proto::frontend::{self, Subject};
use crate::proto::{Frame, ProtocolError};
use crate::server::Moment;

/// A run of statements for one server.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// A simple query.
    Query(&'a str),
    /// Some statements of a simple query, and how many characters further on they stand there.
    Part(&'a str, isize),
    /// Steps of a batch.
    Steps(&'a [Step<'a>]),
    /// A function call.
    Call(&'a Frame),
    /// A simple query of which this is the beginning.
    Streamed(&'a Frame),
}

/// Which named statements a connection knows.
pub trait Known {
    /// When this one was prepared there, if it is.
    fn known_since(&mut self, server_name: &str) -> Option<Moment>;
}

impl Known for crate::server::Conn {
    fn known_since(&mut self, server_name: &str) -> Option<Moment> {
        self.prepared_at(server_name)
    }
}

impl Work<'_> {
    /// Writes the messages and tells which answers are due.
    ///
    /// # Errors
    /// A message of the client is cut off.
    pub fn encode(
        &self,
        known: &mut dyn Known,
        out: &mut BytesMut,
    ) -> Result<Script, ProtocolError> {
        let mut script = Script::with_room(self.count());
        match self {
            Work::Query(sql) => {
                frontend::query(sql, out);
                script.push(Item::Query);
            }
            Work::Part(sql, offset) => {
                frontend::query(sql, out);
                script.push(Item::Query);
                script.offset = *offset;
            }
            Work::Streamed(frame) => {
                frame.encode(out);
                script.push(Item::Query);
            }
            Work::Call(frame) => {
                frame.encode(out);
                script.push(Item::Call);
            }
            Work::Steps(steps) => {
                let mut encoder = Encoder {
                    known,
                    out,
                    script,
                    sent: Vec::new(),
                    unnamed: None,
                };
                for message in steps.iter().flat_map(|step| &step.messages) {
                    encoder.message(message)?;
                }
                script = encoder.script;
                if !self.is_begun() {
                    frontend::sync(out);
                }
                script.push(Item::Sync);
            }
        }
        Ok(script)
    }

    /// About how many answers are due.
    fn count(&self) -> usize {
        match self {
            Work::Query(_) | Work::Part(..) | Work::Call(_) | Work::Streamed(_) => 1,
            Work::Steps(steps) => {
                let messages = steps.iter().map(|step| step.messages.len());
                messages.sum::<usize>() + 2
            }
        }
    }

    /// About how many bytes it is.
    pub fn len_bytes(&self) -> usize {
        match self {
            Work::Query(sql) | Work::Part(sql, _) => sql.len(),
            Work::Steps(steps) => steps.iter().map(Step::len_bytes).sum(),
            Work::Call(frame) | Work::Streamed(frame) => frame.raw().len(),
        }
    }

    /// Whether its last message is only begun: the rest comes from the client.
    pub fn is_begun(&self) -> bool {
        match self {
            Work::Query(_) | Work::Part(..) | Work::Call(_) => false,
            Work::Streamed(_) => true,
            Work::Steps(steps) => steps.last().is_some_and(Step::is_begun),
        }
    }

    /// Whether it is in the extended protocol.
    pub fn is_extended(&self) -> bool {
        matches!(self, Work::Steps(_))
    }
}

struct Encoder<'a> {
    known: &'a mut dyn Known,
    out: &'a mut BytesMut,
    script: Script,
    /// Named statements whose Parse is in this batch.
    sent: Vec<Arc<Prepared>>,
    /// Number of the statement that is the unnamed one on the server at this point of the batch.
    unnamed: Option<u64>,
}

impl Encoder<'_> {
    fn message(&mut self, message: &Message<'_>) -> Result<(), ProtocolError> {
        match message {
            Message::Parse {
                prepared, frame, ..
            } if prepared.own => {
                frame.encode(self.out);
                self.script.push(Item::Parse { shown: true });
            }
            Message::Parse { prepared, .. } if prepared.named && self.is_sent(prepared) => {
                self.script.push(Item::ParsedAlready);
            }
            Message::Parse { prepared, .. } => self.parse(prepared, true),
            Message::Bind {
                prepared, frame, ..
            } => {
                self.require(prepared);
                self.named(prepared, frame)?;
                self.script.push(Item::Bind);
            }
            Message::DescribeStatement { prepared, frame } => {
                self.require(prepared);
                self.named(prepared, frame)?;
                let described = Some(prepared.prepared.clone());
                self.script.push(Item::Describe(described));
            }
            Message::DescribePortal { frame } => {
                frame.encode(self.out);
                self.script.push(Item::Describe(None));
            }
            Message::Execute { frame } => {
                frame.encode(self.out);
                self.script.push(Item::Execute);
            }
            Message::ClosePortal { frame } => {
                frame.encode(self.out);
                self.script.push(Item::Close { shown: true });
            }
            Message::CloseOwn { frame } => {
                frame.encode(self.out);
                self.script.push(Item::Close { shown: true });
            }
            Message::CloseStatement => self.script.push(Item::ClosedHere),
        }
        Ok(())
    }

    /// Sends a Parse that the client does not see when the connection lacks the statement, or has
    /// it from a time before the client prepared it.
    fn require(&mut self, prepared: &Held) {
        let is_there = match prepared.named {
            _ if prepared.own => true,
            false => self.unnamed == Some(prepared.number),
            true => self.is_sent(prepared) || self.is_current(prepared),
        };
        if !is_there {
            self.parse(prepared, false);
        }
    }

    fn parse(&mut self, prepared: &Held, shown: bool) {
        if prepared.named && self.known.known_since(&prepared.server_name).is_some() {
            frontend::close(Subject::Statement(&prepared.server_name), self.out);
            self.script.push(Item::Close { shown: false });
        }
        let (name, sql) = (prepared.server_name.as_str(), &prepared.sql);
        frontend::parse(name, sql, &prepared.types, self.out);
        self.script.push(Item::Parse { shown });
        match prepared.named {
            false => self.unnamed = Some(prepared.number),
            true => self.sent.push(prepared.prepared.clone()),
        }
    }

    fn is_sent(&self, prepared: &Held) -> bool {
        let mut sent = self.sent.iter();
        sent.any(|sent| sent.server_name == prepared.server_name)
    }

    fn is_current(&mut self, prepared: &Held) -> bool {
        let known = self.known.known_since(&prepared.server_name);
        // What SQL prepared is made sure of before the batch is sent.
        known.is_some_and(|since| since > prepared.since) || prepared.by_sql.is_some()
    }

    fn named(&mut self, prepared: &Held, frame: &Frame) -> Result<(), ProtocolError> {
        match prepared.named {
            _ if prepared.own => {
                frame.encode(self.out);
                Ok(())
            }
            // Its client may have given it a name.
            false if prepared.executes.is_some() => {
                frontend::with_statement_name(frame, "", self.out)
            }
            false => {
                frame.encode(self.out);
                Ok(())
            }
            true => frontend::with_statement_name(frame, &prepared.server_name, self.out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanCache;
    use crate::proto::frame;
    use crate::proto::frontend::Subject;
    use crate::session::batch::{Names, split};
    use crate::session::prepared::Registry;

    /// Statements that a connection knows: all of this moment.
    struct Knows(Vec<(String, Moment)>);

    impl Known for Knows {
        fn known_since(&mut self, server_name: &str) -> Option<Moment> {
            let known = self.0.iter().find(|(name, _)| name == server_name);
            known.map(|(_, since)| *since)
        }
    }

    fn frames(write: impl FnOnce(&mut BytesMut)) -> Vec<Frame> {
        let mut out = BytesMut::new();
        write(&mut out);
        std::iter::from_fn(|| frame::take(&mut out).unwrap()).collect()
    }

    /// Tags that go to a server which knows `known`.
    fn sent(frames: &[Frame], names: &mut Names, registry: &Registry, known: &mut Knows) -> String {
        let plans = PlanCache::new(1 << 20);
        let batch = split(frames, names, registry, &plans).unwrap();
        let mut out = BytesMut::new();
        Work::Steps(&batch.steps).encode(known, &mut out).unwrap();
        frame::frames(&out)
            .map(|message| message.unwrap().0 as char)
            .collect()
    }

    fn bind_and_execute(statement: &str) -> Vec<Frame> {
        frames(|out| {
            frontend::bind("", statement, &[], out);
            frontend::execute("", 0, out);
        })
    }

    #[test]
    fn a_connection_that_lacks_a_statement_or_has_an_old_one_is_given_it_first() {
        let (mut names, registry) = (Names::default(), Registry::default());
        let (mut nothing, before) = (Knows(vec![]), Moment::now());
        let parse = frames(|out| frontend::parse("s", "SELECT 1", &[], out));
        assert_eq!(sent(&parse, &mut names, &registry, &mut nothing), "PS");
        let name = names.statements["s"].server_name.clone();
        let mut old = Knows(vec![(name.clone(), before)]);
        let mut current = Knows(vec![(name, Moment::now())]);
        let bind = bind_and_execute("s");
        assert_eq!(sent(&bind, &mut names, &registry, &mut current), "BES");
        assert_eq!(sent(&bind, &mut names, &registry, &mut nothing), "PBES");
        assert_eq!(sent(&bind, &mut names, &registry, &mut old), "CPBES");
    }

    #[test]
    fn a_text_is_parsed_once_in_a_batch_and_the_clients_close_is_not_sent() {
        let (mut names, registry) = (Names::default(), Registry::default());
        let mut known = Knows(vec![]);
        let all = frames(|out| {
            frontend::parse("a", "SELECT 1", &[], out);
            frontend::close(Subject::Statement("a"), out);
            frontend::parse("b", "SELECT 1", &[], out);
            frontend::describe(Subject::Statement("b"), out);
            frontend::close(Subject::Statement("b"), out);
        });
        assert_eq!(sent(&all, &mut names, &registry, &mut known), "PDS");
    }

    #[test]
    fn the_unnamed_statement_is_sent_again_in_every_batch() {
        let (mut names, registry) = (Names::default(), Registry::default());
        let mut known = Knows(vec![]);
        let parse = frames(|out| {
            frontend::parse("", "SELECT 1", &[], out);
            frontend::describe(Subject::Statement(""), out);
        });
        assert_eq!(sent(&parse, &mut names, &registry, &mut known), "PDS");
        let bind = bind_and_execute("");
        assert_eq!(sent(&bind, &mut names, &registry, &mut known), "PBES");
    }
}
