//! What travels ahead of a client's batch in the same write, so that it costs no round trip.
//!
//! ```text
//!   sent       Q "SET pgdog.epoch = '7'"   Q "BEGIN"    guard: C C P B E     client: B E S
//!   answered   C Z                         C Z          3 3 1 2 C            2 D C Z
//!              \___ an Answer each _______________/     \_ Guarded _/        left for recv()
//! ```
//!
//! - A *query* is settled by its own ReadyForQuery. Its failure does **not** stop what follows:
//!   only such statements belong here whose failure the server itself turns into a refusal of the
//!   rest (an aborted transaction, an epoch that is not current).
//! - A *guard* shares the segment of the client's batch. When it fails, the server skips the
//!   batch: the statement is not run. It uses a statement and a portal of its own name, so that
//!   the client's unnamed ones are not touched.

use std::time::Duration;

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_core::lsn::{Lsn, Position};
use tokio::time::timeout;

use super::answer::Answer;
use super::conn::Conn;
use super::faults;
use crate::proto::backend::tag;
use crate::proto::frontend::{self, Subject};
use crate::proto::{ErrorFields, frame};

/// Statement and portal name of guards; not for clients.
pub(super) const GUARD_NAME: &str = "pgdog_guard";

/// Answers to one guard statement when all goes well.
const GUARD_ANSWERS: [u8; 5] = [
    tag::CLOSE_COMPLETE,
    tag::CLOSE_COMPLETE,
    tag::PARSE_COMPLETE,
    tag::BIND_COMPLETE,
    tag::COMMAND_COMPLETE,
];

/// How much longer than a guard itself waits its answer may take: a server that is frozen answers
/// nothing, and its connection looks as well as ever.
const ANSWER: Duration = Duration::from_secs(1);

const UNGUARDABLE: &str = "a guarded batch must end with its only Sync or Query";

/// Statements to run before a client's batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ahead {
    queries: Vec<String>,
    guard: Option<Guard>,
}

/// Statements whose failure makes the server skip the batch behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    statements: Vec<String>,
    /// How long it may take by its own words.
    budget: Option<Duration>,
}

/// How a guard ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guarded {
    /// There was none.
    None,
    /// It held; the answers of the batch come next.
    Passed,
    /// It failed: the batch was not run, and the connection is at rest again (in a failed
    /// transaction if it was in one).
    Failed(ErrorFields),
}

/// What came of an [`Ahead`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// One for each query, in order.
    pub answers: Vec<Answer>,
    /// The guard.
    pub guard: Guarded,
}

impl Settled {
    /// The first error of a query; the guard's is in `guard`.
    pub fn error(&self) -> Option<&ErrorFields> {
        self.answers.iter().find_map(|answer| answer.error.as_ref())
    }
}

impl Ahead {
    /// Nothing ahead.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one statement.
    pub fn query(&mut self, sql: impl Into<String>) -> &mut Self {
        self.queries.push(sql.into());
        self
    }

    /// Sets the guard, which runs after all queries.
    pub fn guard(&mut self, guard: Guard) -> &mut Self {
        self.guard = Some(guard);
        self
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty() && self.guard.is_none()
    }

    fn encode(&self, out: &mut BytesMut) {
        self.queries
            .iter()
            .for_each(|sql| frontend::query(sql, out));
        let guards = self.guard.iter().flat_map(|guard| &guard.statements);
        guards.for_each(|sql| encode_guard(sql, out));
    }
}

impl Guard {
    /// Lets a batch run only once the server has replayed `floor`, waiting up to `budget_ms`.
    pub fn wait_lsn(floor: Lsn, budget_ms: u64) -> Self {
        Self::wait_position((floor, None), budget_ms)
    }

    /// As [`Guard::wait_lsn`], for a position that lies on a known timeline: a server whose own
    /// history does not contain it refuses.
    pub fn wait_position((floor, timeline): Position, budget_ms: u64) -> Self {
        let timeline = timeline
            .map(|timeline| format!("@{timeline}"))
            .unwrap_or_default();
        Self {
            statements: vec![
                format!("SET pgdog.wait_lsn_timeout = {budget_ms}"),
                format!("SET pgdog.wait_lsn = '{floor}{timeline}'"),
            ],
            budget: Some(Duration::from_millis(budget_ms)),
        }
    }

    /// Any statements without parameters and without rows.
    pub fn statements(statements: Vec<String>) -> Self {
        Self {
            statements,
            budget: None,
        }
    }
}

fn encode_guard(sql: &str, out: &mut BytesMut) {
    // Closing what does not exist is no error; the portal outlives the batch in a transaction.
    frontend::close(Subject::Statement(GUARD_NAME), out);
    frontend::close(Subject::Portal(GUARD_NAME), out);
    frontend::parse(GUARD_NAME, sql, &[], out);
    frontend::bind(GUARD_NAME, GUARD_NAME, &[], out);
    frontend::execute(GUARD_NAME, 0, out);
}

impl Conn {
    /// Sends `ahead` and a client's batch in one write. [`Conn::settle_ahead`] must follow.
    ///
    /// A guard protects up to the first Sync or Query, so a guarded batch may hold only one, as
    /// its last message.
    ///
    /// # Errors
    /// When the connection is lost, or the batch can't be guarded (then nothing was sent).
    pub async fn send_ahead(&mut self, ahead: &Ahead, batch: &[u8]) -> Result<(), Fault> {
        if ahead.is_empty() {
            return self.send(batch).await;
        }
        if ahead.guard.is_some() && !can_be_guarded(batch) {
            return Err(faults::internal(UNGUARDABLE));
        }
        let mut out = BytesMut::with_capacity(batch.len() + 256);
        ahead.encode(&mut out);
        out.extend_from_slice(batch);
        self.send(&out).await
    }

    /// Reads the answers to `ahead`, which was just sent, and no more.
    ///
    /// Queries are all read, also after one failed; the caller then decides about the batch,
    /// whose answers are still to come ([`Conn::drain`] throws them away). After a failed guard
    /// nothing is to come.
    ///
    /// # Errors
    /// When the connection is lost, or a guard is not answered when its time is long over.
    pub async fn settle_ahead(&mut self, ahead: &Ahead) -> Result<Settled, Fault> {
        let Some(budget) = ahead.guard.as_ref().and_then(|guard| guard.budget) else {
            return self.read_ahead(ahead).await;
        };
        match timeout(budget + ANSWER, self.read_ahead(ahead)).await {
            Ok(settled) => settled,
            Err(_) => Err(self.lose("does not answer")),
        }
    }

    async fn read_ahead(&mut self, ahead: &Ahead) -> Result<Settled, Fault> {
        let mut answers = Vec::with_capacity(ahead.queries.len());
        for _ in &ahead.queries {
            answers.push(self.answer().await?);
        }
        let guard = match &ahead.guard {
            None => Guarded::None,
            Some(guard) => self.settle_guard(guard.statements.len()).await?,
        };
        Ok(Settled { answers, guard })
    }

    async fn settle_guard(&mut self, statements: usize) -> Result<Guarded, Fault> {
        for expected in (0..statements).flat_map(|_| GUARD_ANSWERS) {
            let frame = self.recv_answer().await?;
            if frame.tag() == tag::ERROR {
                let error = self.parsed(ErrorFields::parse(frame.body()))?;
                self.resume().await?;
                return Ok(Guarded::Failed(error));
            }
            if frame.tag() != expected {
                return Err(self.desynchronized("an answer that does not fit the guard"));
            }
        }
        Ok(Guarded::Passed)
    }

    /// Brings the server out of skipping, up to ReadyForQuery.
    async fn resume(&mut self) -> Result<(), Fault> {
        if self.ledger.skip_to_sync() {
            let mut out = BytesMut::new();
            frontend::sync(&mut out);
            self.send(&out).await?;
        }
        self.answer().await.map(|_| ())
    }
}

/// Whether the only Sync or Query is the last message.
fn can_be_guarded(batch: &[u8]) -> bool {
    let mut ended = false;
    for message in frame::frames(batch) {
        match message {
            Ok(_) if ended => return false,
            Ok((tag, _)) => ended = matches!(tag, b'S' | b'Q' | b'F'),
            Err(_) => return false,
        }
    }
    true
}
