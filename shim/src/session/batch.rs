//! What a client sent up to its Sync (or Flush), cut into steps: one executed statement each. Pure.
//!
//! ```text
//!   P(s) B D E   B E   C   S          P Parse, B Bind, D Describe, E Execute, C Close, S Sync
//!   \_ step 0 _/ \_ step 1 _/
//! ```
//! Names are resolved here, in the order of the messages, so that a step knows its text. A step
//! speaks of one statement only: what is asked about another one begins a step of its own.

use std::collections::HashMap;
use std::sync::Arc;

use pgdog_core::ids::ShardNumber;

use super::faults;
use super::prepared::{Prepared, Registry};
use crate::plan::{PlanCache, Statement};
use crate::proto::frontend::{Bind, Format, Subject};
use crate::proto::{ErrorFields, Frame, Frontend, ProtocolError};
use crate::route;

/// How the client ended what it sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Sync: answer with ReadyForQuery.
    Sync,
    /// Flush: answers so far, more to come before the Sync.
    Flush,
}

/// One message of a step, with its name resolved.
#[derive(Debug)]
pub enum Message<'a> {
    /// Parse.
    Parse {
        /// What the client calls it.
        name: &'a str,
        /// What it is.
        prepared: Arc<Prepared>,
        /// As it came.
        frame: &'a Frame,
    },
    /// Bind.
    Bind {
        /// What is bound.
        prepared: Arc<Prepared>,
        /// As it came.
        frame: &'a Frame,
    },
    /// Describe of a statement.
    DescribeStatement {
        /// What is described.
        prepared: Arc<Prepared>,
        /// As it came.
        frame: &'a Frame,
    },
    /// Describe of a portal.
    DescribePortal {
        /// As it came.
        frame: &'a Frame,
    },
    /// Execute.
    Execute {
        /// As it came.
        frame: &'a Frame,
    },
    /// Close of a statement: the client's name only, servers keep theirs.
    CloseStatement,
    /// Close of a portal.
    ClosePortal {
        /// As it came.
        frame: &'a Frame,
    },
}

/// A run of messages with at most one Execute, which comes last but for Closes.
#[derive(Debug, Default)]
pub struct Step<'a> {
    /// In order.
    pub messages: Vec<Message<'a>>,
    /// The statement that is executed, or else described or parsed.
    pub subject: Option<Arc<Prepared>>,
    /// The parameters of the execution.
    pub bind: Option<Bind<'a>>,
    /// Whether something is executed.
    pub executes: bool,
    /// The portal was bound in an earlier batch, and lives on this shard.
    pub resumes: Option<ShardNumber>,
}

impl Step<'_> {
    /// The plan's statement; None for an empty text, and for one that is no SQL.
    pub fn statement(&self) -> Option<&Statement> {
        self.subject.as_deref()?.plan()?.statements.first()
    }

    /// The text.
    pub fn sql(&self) -> &str {
        self.subject.as_deref().map_or("", |prepared| &prepared.sql)
    }

    /// Bytes of its messages.
    pub fn len_bytes(&self) -> usize {
        self.messages
            .iter()
            .map(|message| message.frame_len())
            .sum()
    }
}

impl Message<'_> {
    fn frame_len(&self) -> usize {
        match self {
            Message::Parse { frame, .. }
            | Message::Bind { frame, .. }
            | Message::DescribeStatement { frame, .. }
            | Message::DescribePortal { frame }
            | Message::Execute { frame }
            | Message::ClosePortal { frame } => frame.raw().len(),
            Message::CloseStatement => 0,
        }
    }
}

/// Parameters of an execution, as the router reads them.
impl route::Params for Step<'_> {
    fn param(&self, number: usize) -> Option<route::Bind<'_>> {
        let param = self.bind.as_ref()?.params().nth(number.checked_sub(1)?)?;
        Some(route::Bind {
            value: param.value,
            binary: param.format == Format::Binary,
            type_oid: self
                .subject
                .as_ref()
                .map_or(0, |prepared| prepared.type_of(number)),
        })
    }
}

/// A portal that outlives its batch.
#[derive(Debug, Clone)]
pub struct Portal {
    /// What is bound; None for a cursor that SQL declared.
    pub prepared: Option<Arc<Prepared>>,
    /// Where it was opened; None until it has run.
    pub shard: Option<ShardNumber>,
}

/// A client's names.
#[derive(Debug, Default)]
pub struct Names {
    /// Statements.
    pub statements: HashMap<String, Arc<Prepared>>,
    /// Portals, until the end of the transaction.
    pub portals: HashMap<String, Portal>,
}

/// A batch in steps.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// In order.
    pub steps: Vec<Step<'a>>,
    /// What is wrong with the message after the last step; what follows is skipped.
    pub error: Option<ErrorFields>,
}

/// Cuts a batch into steps.
///
/// # Errors
/// A message that is not of the protocol; names that do not exist are the batch's `error`.
pub fn split<'a>(
    frames: &'a [Frame],
    names: &mut Names,
    registry: &Registry,
    plans: &PlanCache,
) -> Result<Batch<'a>, ProtocolError> {
    let mut splitter = Splitter {
        names,
        registry,
        plans,
        batch: Batch::default(),
        step: None,
        bound: HashMap::new(),
    };
    for frame in frames {
        if let Err(error) = splitter.take(frame, Frontend::parse(frame)?) {
            splitter.batch.error = Some(error);
            break;
        }
    }
    Ok(splitter.finish())
}

struct Splitter<'a, 'n> {
    names: &'n mut Names,
    registry: &'n Registry,
    plans: &'n PlanCache,
    batch: Batch<'a>,
    step: Option<Step<'a>>,
    /// Portals that this batch has bound.
    bound: HashMap<&'a str, Bind<'a>>,
}

impl<'a> Splitter<'a, '_> {
    fn take(&mut self, frame: &'a Frame, message: Frontend<'a>) -> Result<(), ErrorFields> {
        match message {
            Frontend::Parse {
                statement,
                sql,
                types,
            } => {
                let prepared = self.parse(statement, sql, types.iter().collect())?;
                self.subject(&prepared);
                self.push(Message::Parse {
                    name: statement,
                    prepared,
                    frame,
                });
            }
            Frontend::Bind(bind) => {
                let prepared = self.statement(bind.statement)?;
                let portal = Portal {
                    prepared: Some(prepared.clone()),
                    shard: None,
                };
                self.names.portals.insert(bind.portal.to_owned(), portal);
                self.bound.insert(bind.portal, bind);
                self.subject(&prepared);
                self.step().bind = Some(bind);
                self.push(Message::Bind { prepared, frame });
            }
            Frontend::Describe(Subject::Statement(name)) => {
                let prepared = self.statement(name)?;
                self.subject(&prepared);
                self.push(Message::DescribeStatement { prepared, frame });
            }
            Frontend::Describe(Subject::Portal(name)) => {
                self.open_portal(name);
                self.push(Message::DescribePortal { frame });
            }
            Frontend::Execute { portal, .. } => {
                self.open_portal(portal);
                self.step().executes = true;
                self.push(Message::Execute { frame });
                let step = self.step.take().unwrap_or_default();
                self.batch.steps.push(step);
            }
            Frontend::Close(Subject::Statement(name)) => {
                self.names.statements.remove(name);
                self.push_close(Message::CloseStatement);
            }
            Frontend::Close(Subject::Portal(name)) => {
                self.names.portals.remove(name);
                self.bound.remove(name);
                self.push_close(Message::ClosePortal { frame });
            }
            // A client that sends COPY data after the server has failed it is ignored.
            Frontend::CopyData(_) | Frontend::CopyDone | Frontend::CopyFail { .. } => {}
            Frontend::Query { .. }
            | Frontend::FunctionCall(_)
            | Frontend::Sync
            | Frontend::Flush
            | Frontend::Password(_)
            | Frontend::Terminate => {
                return Err(faults::plain("08P01", "unexpected message in a batch"));
            }
        }
        Ok(())
    }

    fn parse(
        &mut self,
        name: &str,
        sql: &str,
        types: Vec<u32>,
    ) -> Result<Arc<Prepared>, ErrorFields> {
        if name.is_empty() {
            let prepared = self.registry.unnamed(sql, types, self.plans);
            self.names
                .statements
                .insert(String::new(), prepared.clone());
            return Ok(prepared);
        }
        if self.names.statements.contains_key(name) {
            return Err(faults::duplicate_statement(name));
        }
        let prepared = self.registry.prepare(sql, types, self.plans);
        self.names
            .statements
            .insert(name.to_owned(), prepared.clone());
        Ok(prepared)
    }

    fn statement(&self, name: &str) -> Result<Arc<Prepared>, ErrorFields> {
        let known = self.names.statements.get(name).cloned();
        known.ok_or_else(|| faults::unknown_statement(name))
    }

    /// Describe or Execute of a portal: of this step, or of an earlier one. One that is not known
    /// here may be a cursor; else the server says that it does not exist.
    fn open_portal(&mut self, name: &str) {
        let portal = self.names.portals.get(name).cloned();
        if let Some(prepared) = portal.as_ref().and_then(|portal| portal.prepared.clone()) {
            self.subject(&prepared);
        }
        let bind = self.bound.get(name).copied();
        let step = self.step();
        step.bind = bind;
        step.resumes = match bind {
            // It lives where its parameters lead.
            Some(_) => None,
            None => portal.and_then(|portal| portal.shard),
        };
    }

    fn step(&mut self) -> &mut Step<'a> {
        self.step.get_or_insert_default()
    }

    /// The next message is about this statement.
    fn subject(&mut self, prepared: &Arc<Prepared>) {
        let other = |subject: &Arc<Prepared>| !Arc::ptr_eq(subject, prepared);
        if let Some(step) = self
            .step
            .take_if(|step| step.subject.as_ref().is_some_and(other))
        {
            self.batch.steps.push(step);
        }
        self.step().subject = Some(prepared.clone());
    }

    fn push(&mut self, message: Message<'a>) {
        self.step().messages.push(message);
    }

    /// A Close belongs to the step before it when no new one has begun.
    fn push_close(&mut self, message: Message<'a>) {
        match (&mut self.step, self.batch.steps.last_mut()) {
            (None, Some(last)) => last.messages.push(message),
            _ => self.push(message),
        }
    }

    fn finish(mut self) -> Batch<'a> {
        if let Some(step) = self.step.take()
            && !step.messages.is_empty()
        {
            self.batch.steps.push(step);
        }
        self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::frame;
    use crate::proto::frontend;
    use bytes::BytesMut;

    fn frames(write: impl FnOnce(&mut BytesMut)) -> Vec<Frame> {
        let mut out = BytesMut::new();
        write(&mut out);
        std::iter::from_fn(|| frame::take(&mut out).unwrap()).collect()
    }

    fn cut<'a>(frames: &'a [Frame], names: &mut Names) -> Batch<'a> {
        split(
            frames,
            names,
            &Registry::new(1 << 20),
            &PlanCache::new(1 << 20),
        )
        .unwrap()
    }

    #[test]
    fn every_execute_ends_a_step_and_closes_stay_with_it() {
        let frames = frames(|out| {
            frontend::parse("s", "SELECT $1", &[], out);
            frontend::bind("", "s", &[Some("1")], out);
            frontend::execute("", 0, out);
            frontend::bind("", "s", &[Some("2")], out);
            frontend::execute("", 0, out);
            frontend::close(Subject::Portal(""), out);
            frontend::describe(Subject::Statement("s"), out);
        });
        let mut names = Names::default();
        let batch = cut(&frames, &mut names);
        let lens: Vec<_> = batch.steps.iter().map(|step| step.messages.len()).collect();
        assert_eq!(lens, [3, 3, 1]);
        let executes: Vec<_> = batch.steps.iter().map(|step| step.executes).collect();
        assert_eq!(executes, [true, true, false]);
        let value = route::Params::param(&batch.steps[1], 1).unwrap().value;
        assert_eq!(value, Some(&b"2"[..]));
        assert!(route::Params::param(&batch.steps[1], 2).is_none());
    }

    #[test]
    fn an_unknown_name_ends_the_batch_there() {
        let frames = frames(|out| {
            frontend::parse("", "SELECT 1", &[], out);
            frontend::bind("", "", &[], out);
            frontend::execute("", 0, out);
            frontend::bind("", "nobody", &[], out);
            frontend::execute("", 0, out);
        });
        let batch = cut(&frames, &mut Names::default());
        assert_eq!(batch.steps.len(), 1);
        assert_eq!(batch.error.unwrap().code, "26000");
    }

    #[test]
    fn a_named_statement_is_not_parsed_twice_and_a_closed_one_may_be() {
        let twice = frames(|out| {
            frontend::parse("s", "SELECT 1", &[], out);
            frontend::parse("s", "SELECT 2", &[], out);
        });
        assert_eq!(
            cut(&twice, &mut Names::default()).error.unwrap().code,
            "42P05"
        );
        let closed = frames(|out| {
            frontend::parse("s", "SELECT 1", &[], out);
            frontend::close(Subject::Statement("s"), out);
            frontend::parse("s", "SELECT 2", &[], out);
        });
        assert!(cut(&closed, &mut Names::default()).error.is_none());
    }

    #[test]
    fn a_step_speaks_of_one_statement_only() {
        let frames = frames(|out| {
            frontend::parse("a", "SELECT 1", &[], out);
            frontend::describe(Subject::Statement("a"), out);
            frontend::parse("", "BEGIN", &[], out);
            frontend::bind("", "", &[], out);
            frontend::execute("", 0, out);
        });
        let batch = cut(&frames, &mut Names::default());
        let texts: Vec<_> = batch.steps.iter().map(|step| step.sql()).collect();
        assert_eq!(texts, ["SELECT 1", "BEGIN"]);
    }

    #[test]
    fn a_portal_that_goes_on_in_its_batch_keeps_its_parameters() {
        let frames = frames(|out| {
            frontend::parse("", "SELECT $1", &[], out);
            frontend::bind("p", "", &[Some("7")], out);
            frontend::execute("p", 1, out);
            frontend::execute("p", 1, out);
        });
        let batch = cut(&frames, &mut Names::default());
        let value = route::Params::param(&batch.steps[1], 1).unwrap().value;
        assert_eq!(value, Some(&b"7"[..]));
    }

    #[test]
    fn a_portal_of_an_earlier_batch_is_resumed_where_it_lives() {
        let mut names = Names::default();
        let first = frames(|out| {
            frontend::parse("", "SELECT 1", &[], out);
            frontend::bind("p", "", &[], out);
            frontend::execute("p", 1, out);
        });
        cut(&first, &mut names);
        names.portals.get_mut("p").unwrap().shard = Some(ShardNumber(1));
        let second = frames(|out| frontend::execute("p", 1, out));
        let batch = cut(&second, &mut names);
        assert_eq!(batch.steps[0].resumes, Some(ShardNumber(1)));
        assert_eq!(batch.steps[0].sql(), "SELECT 1");
    }
}
