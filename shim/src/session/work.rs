//! What is sent to a server for a run of steps: the client's messages, with names as this
//! connection knows them. Pure but for the connection's list of names.

use bytes::BytesMut;

use super::batch::{Message, Step};
use super::prepared::Prepared;
use super::script::{Item, Script};
use crate::proto::frontend;
use crate::proto::{Frame, ProtocolError};

/// A run of statements for one server.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// A simple query.
    Query(&'a str),
    /// Steps of a batch.
    Steps(&'a [Step<'a>]),
    /// A function call.
    Call(&'a Frame),
}

/// Which named statements a connection knows.
pub trait Known {
    /// Whether this one is prepared there.
    fn knows(&mut self, server_name: &str) -> bool;
}

impl Known for crate::server::Conn {
    fn knows(&mut self, server_name: &str) -> bool {
        self.has_prepared(server_name)
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
        let mut script = Script::default();
        match self {
            Work::Query(sql) => {
                frontend::query(sql, out);
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
                frontend::sync(encoder.out);
                script = encoder.script;
                script.push(Item::Sync);
            }
        }
        Ok(script)
    }

    /// About how many bytes it is.
    pub fn len_bytes(&self) -> usize {
        match self {
            Work::Query(sql) => sql.len(),
            Work::Steps(steps) => steps.iter().map(Step::len_bytes).sum(),
            Work::Call(frame) => frame.raw().len(),
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
    /// Numbers of the named statements whose Parse is in this batch.
    sent: Vec<u64>,
    /// Number of the statement that is the unnamed one on the server at this point of the batch.
    unnamed: Option<u64>,
}

impl Encoder<'_> {
    fn message(&mut self, message: &Message<'_>) -> Result<(), ProtocolError> {
        match message {
            Message::Parse { prepared, .. } if self.is_there(prepared) && prepared.named => {
                self.script.push(Item::ParsedAlready);
            }
            Message::Parse {
                prepared, frame, ..
            } => {
                self.named(prepared, frame)?;
                self.note(prepared);
                self.script.push(Item::Parse { shown: true });
            }
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
                self.script.push(Item::Describe(Some(prepared.clone())));
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
                self.script.push(Item::Close);
            }
            Message::CloseStatement => self.script.push(Item::ClosedHere),
        }
        Ok(())
    }

    /// Sends a Parse that the client does not see when the connection lacks the statement.
    fn require(&mut self, prepared: &Prepared) {
        if !self.is_there(prepared) {
            let name = if prepared.named {
                prepared.server_name.as_str()
            } else {
                ""
            };
            frontend::parse(name, &prepared.sql, &prepared.types, self.out);
            self.script.push(Item::Parse { shown: false });
            self.note(prepared);
        }
    }

    fn is_there(&mut self, prepared: &Prepared) -> bool {
        match prepared.named {
            false => self.unnamed == Some(prepared.number),
            true => self.sent.contains(&prepared.number) || self.known.knows(&prepared.server_name),
        }
    }

    fn note(&mut self, prepared: &Prepared) {
        match prepared.named {
            false => self.unnamed = Some(prepared.number),
            true => self.sent.push(prepared.number),
        }
    }

    fn named(&mut self, prepared: &Prepared, frame: &Frame) -> Result<(), ProtocolError> {
        match prepared.named {
            false => frame.encode(self.out),
            true => frontend::with_statement_name(frame, &prepared.server_name)?.encode(self.out),
        }
        Ok(())
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

    struct Knows(Vec<String>);

    impl Known for Knows {
        fn knows(&mut self, server_name: &str) -> bool {
            self.0.iter().any(|name| name == server_name)
        }
    }

    fn frames(write: impl FnOnce(&mut BytesMut)) -> Vec<Frame> {
        let mut out = BytesMut::new();
        write(&mut out);
        std::iter::from_fn(|| frame::take(&mut out).unwrap()).collect()
    }

    /// Tags that go to a server which knows `known`.
    fn sent(frames: &[Frame], names: &mut Names, registry: &Registry, known: &[&str]) -> String {
        let plans = PlanCache::new(1 << 20);
        let batch = split(frames, names, registry, &plans).unwrap();
        let mut known = Knows(known.iter().map(|name| name.to_string()).collect());
        let mut out = BytesMut::new();
        Work::Steps(&batch.steps)
            .encode(&mut known, &mut out)
            .unwrap();
        frame::frames(&out)
            .map(|message| message.unwrap().0 as char)
            .collect()
    }

    #[test]
    fn a_connection_that_lacks_a_statement_is_given_it_first() {
        let (mut names, registry) = (Names::default(), Registry::new(1 << 20));
        let parse = frames(|out| frontend::parse("s", "SELECT 1", &[], out));
        assert_eq!(sent(&parse, &mut names, &registry, &[]), "PS");
        let bind = frames(|out| {
            frontend::bind("", "s", &[], out);
            frontend::execute("", 0, out);
            frontend::bind("", "s", &[], out);
            frontend::execute("", 0, out);
        });
        assert_eq!(sent(&bind, &mut names, &registry, &["__pgdog_1"]), "BEBES");
        assert_eq!(sent(&bind, &mut names, &registry, &[]), "PBEBES");
    }

    #[test]
    fn a_known_statement_is_not_parsed_again_and_never_closed() {
        let (mut names, registry) = (Names::default(), Registry::new(1 << 20));
        let all = frames(|out| {
            frontend::parse("s", "SELECT 1", &[], out);
            frontend::describe(Subject::Statement("s"), out);
            frontend::close(Subject::Statement("s"), out);
        });
        assert_eq!(sent(&all, &mut names, &registry, &["__pgdog_1"]), "DS");
    }

    #[test]
    fn the_unnamed_statement_is_sent_again_in_every_batch() {
        let (mut names, registry) = (Names::default(), Registry::new(1 << 20));
        let parse = frames(|out| {
            frontend::parse("", "SELECT 1", &[], out);
            frontend::describe(Subject::Statement(""), out);
        });
        assert_eq!(sent(&parse, &mut names, &registry, &[]), "PDS");
        let bind = frames(|out| {
            frontend::bind("", "", &[], out);
            frontend::execute("", 0, out);
        });
        assert_eq!(sent(&bind, &mut names, &registry, &[]), "PBES");
    }
}
