//! What a client sent up to its Sync (or Flush), cut into steps: one executed statement each. Pure.
//!
//! ```text
//!   P(s) B D E   B E   C   S          P Parse, B Bind, D Describe, E Execute, C Close, S Sync
//!   \_ step 0 _/ \_ step 1 _/
//! ```
//! Names are resolved here, in the order of the messages, so that a step knows its text. A step
//! speaks of one statement only: what is asked about another one begins a step of its own.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use pgdog_core::ids::ShardNumber;

use super::faults;
use super::prepared::{Held, Prepared, Registry};
use crate::plan::{self, Kind, PlanCache, Statement, rename_prepared};
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
        prepared: Held,
        /// As it came.
        frame: &'a Frame,
    },
    /// Bind.
    Bind {
        /// What is bound.
        prepared: Held,
        /// As it came.
        frame: &'a Frame,
    },
    /// Describe of a statement.
    DescribeStatement {
        /// What is described.
        prepared: Held,
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
    /// Close of a statement that the server has under the client's name.
    CloseOwn {
        /// As it came.
        frame: &'a Frame,
    },
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
    /// The batch has executed the portal before.
    pub again: bool,
    /// The portal was bound in an earlier batch, and lives on this shard.
    pub resumes: Option<ShardNumber>,
    /// Only ASCII can be read of the parameters.
    pub foreign: bool,
}

impl Step<'_> {
    /// The plan's statement; None for an empty text, for one that is no SQL, and for several
    /// statements: a server refuses those.
    pub fn statement(&self) -> Option<&Statement> {
        match self.subject.as_deref()?.plan()?.statements.as_slice() {
            [statement] => Some(statement),
            [] | [_, _, ..] => None,
        }
    }

    /// The text.
    pub fn sql(&self) -> &str {
        self.subject.as_deref().map_or("", |prepared| &prepared.sql)
    }

    /// Whether it does nothing but close.
    pub fn only_closes(&self) -> bool {
        let closes = |message: &Message<'_>| {
            matches!(
                message,
                Message::CloseStatement | Message::CloseOwn { .. } | Message::ClosePortal { .. }
            )
        };
        self.messages.iter().all(closes)
    }

    /// Whether its last message is only begun.
    pub fn is_begun(&self) -> bool {
        match self.messages.last() {
            Some(Message::Bind { frame, .. }) => frame.missing() > 0,
            _ => false,
        }
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
            | Message::CloseOwn { frame }
            | Message::ClosePortal { frame } => frame.raw().len(),
            Message::CloseStatement => 0,
        }
    }
}

/// Parameters of an execution, as the router reads them.
impl route::Params for Step<'_> {
    fn param(&self, number: usize) -> Option<route::Bind<'_>> {
        let param = self.bind.as_ref()?.params().nth(number.checked_sub(1)?)?;
        let type_oid = self
            .subject
            .as_ref()
            .map_or(0, |prepared| prepared.type_of(number));
        let is_text = param.format == Format::Text || may_be_text(type_oid);
        if self.foreign && is_text && !param.value.is_none_or(<[u8]>::is_ascii) {
            return None;
        }
        Some(route::Bind {
            value: param.value,
            binary: param.format == Format::Binary,
            type_oid,
        })
    }
}

/// Whether the binary form of a type is in the client's encoding.
fn may_be_text(type_oid: u32) -> bool {
    matches!(type_oid, 0 | 19 | 25 | 705 | 1042 | 1043)
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
    pub statements: HashMap<String, Held>,
    /// What the meaning of a text hangs on, besides itself: database, `search_path`, role.
    pub context: u64,
    /// Only ASCII can be read of values, which are in another encoding.
    pub foreign: bool,
    /// The server minds the names of statements: the connection is the client's alone.
    pub own: bool,
    /// Portals, until the end of the transaction.
    pub portals: HashMap<String, Portal>,
}

impl Names {
    /// Forgets all statements but the unnamed one, as DEALLOCATE ALL does.
    pub fn deallocate_all(&mut self) {
        self.statements.retain(|name, _| name.is_empty());
    }

    /// The statement that an EXECUTE runs.
    pub fn executed_by(&self, statement: &Statement) -> Option<&Held> {
        match &statement.prepared {
            Some(plan::Prepared::Execute { .. }) if self.own => None,
            Some(plan::Prepared::Execute { name, .. }) => self.statements.get(name),
            Some(plan::Prepared::Prepare { .. } | plan::Prepared::Deallocate(_)) | None => None,
        }
    }
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
        bound: HashMap::default(),
        executed: HashSet::default(),
    };
    for frame in frames {
        if let Err(error) = splitter.take(frame, Frontend::parse(frame)?) {
            splitter.batch.error = Some(error);
            break;
        }
    }
    Ok(splitter.finish())
}

/// Whether a message prepares a statement that has a name.
pub fn names_statement(frame: &Frame) -> bool {
    frame.tag() == b'P' && frame.body().first() != Some(&0)
}

struct Splitter<'a, 'n> {
    names: &'n mut Names,
    registry: &'n Registry,
    plans: &'n PlanCache,
    batch: Batch<'a>,
    step: Option<Step<'a>>,
    /// Portals that this batch has bound.
    bound: HashMap<&'a str, Bind<'a>>,
    /// Those of them that it has executed.
    executed: HashSet<&'a str>,
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
                self.subject(&prepared.prepared);
                self.push(Message::Parse {
                    name: statement,
                    prepared,
                    frame,
                });
            }
            Frontend::Bind(bind) => {
                let prepared = self.statement(bind.statement)?;
                let portal = Portal {
                    prepared: Some(prepared.prepared.clone()),
                    shard: None,
                };
                self.names.portals.insert(bind.portal.to_owned(), portal);
                self.bound.insert(bind.portal, bind);
                self.executed.remove(bind.portal);
                self.subject(&prepared.prepared);
                self.step().bind = Some(bind);
                self.push(Message::Bind { prepared, frame });
            }
            Frontend::Describe(Subject::Statement(name)) => {
                let prepared = self.statement(name)?;
                self.subject(&prepared.prepared);
                self.push(Message::DescribeStatement { prepared, frame });
            }
            Frontend::Describe(Subject::Portal(name)) => {
                self.open_portal(name);
                self.push(Message::DescribePortal { frame });
            }
            Frontend::Execute { portal, .. } => {
                self.execute(portal, frame);
            }
            Frontend::Close(Subject::Statement(name)) if self.names.own && !name.is_empty() => {
                self.names.statements.remove(name);
                self.push(Message::CloseOwn { frame });
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

    fn parse(&mut self, name: &str, sql: &str, types: Vec<u32>) -> Result<Held, ErrorFields> {
        if !name.is_empty() && self.names.own {
            let held = Held::now(self.registry.own(name, sql, types, self.plans));
            self.names.statements.insert(name.to_owned(), held.clone());
            return Ok(held);
        }
        if !name.is_empty() && self.names.statements.contains_key(name) {
            return Err(faults::duplicate_statement(name));
        }
        if name.is_empty()
            && let Some(last) = self.names.statements.get_mut("")
            && last.is_same_as(sql.as_bytes(), types.iter().copied())
        {
            *last = Held::now(last.prepared.clone());
            return Ok(last.clone());
        }
        let prepared = match (name, self.executed_by(sql)) {
            (_, Some((executed, text))) => {
                self.registry
                    .alone(&text, types, Some(executed), self.plans)
            }
            ("", None) => self.registry.alone(sql, types, None, self.plans),
            (_, None) => self
                .registry
                .prepare(sql, types, self.names.context, self.plans),
        };
        let held = Held::now(prepared);
        self.names.statements.insert(name.to_owned(), held.clone());
        Ok(held)
    }

    /// The statement behind the text of an EXECUTE, and that text with its name on the servers.
    fn executed_by(&self, sql: &str) -> Option<(Held, String)> {
        let planned = self.plans.get_or_parse(sql).ok()?;
        let [statement] = planned.statements.as_slice() else {
            return None;
        };
        let executed = self.names.executed_by(statement)?;
        let text = rename_prepared(sql, &executed.server_name)?;
        Some((executed.clone(), text))
    }

    /// Behind a statement that may change what texts mean, they are not shared with anybody.
    fn note_setting(&mut self, step: &Step<'_>) {
        let Some(statement) = step.statement() else {
            return;
        };
        if matches!(
            statement.kind,
            Kind::Set { .. } | Kind::Reset(_) | Kind::Discard { .. }
        ) || statement.functions.sets
        {
            self.names.context = rand::random();
            // Neither can it be told which encoding follows.
            self.names.foreign = true;
        }
    }

    fn statement(&self, name: &str) -> Result<Held, ErrorFields> {
        let known = self.names.statements.get(name).cloned();
        if known.is_none() && self.names.own && !name.is_empty() {
            // SQL has prepared it, or the server says that there is none.
            let unseen = self.registry.own(name, "", Vec::new(), self.plans);
            return Ok(Held::now(unseen));
        }
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

    /// Every Execute ends a step.
    fn execute(&mut self, portal: &'a str, frame: &'a Frame) {
        self.open_portal(portal);
        let again = !self.executed.insert(portal);
        self.push(Message::Execute { frame });
        let mut step = self.step.take().unwrap_or_default();
        step.again = again;
        step.executes = true;
        self.note_setting(&step);
        self.batch.steps.push(step);
    }

    fn step(&mut self) -> &mut Step<'a> {
        let foreign = self.names.foreign;
        self.step.get_or_insert_with(|| Step {
            foreign,
            ..Step::default()
        })
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
#[path = "batch_tests.rs"]
mod tests;
