//! Whole answers to the small statements that pgdog sends itself.

use std::time::Duration;

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::ServerError;
use super::conn::{Conn, Head};
use super::faults;
use super::ledger::Copying;
use crate::proto::backend::tag;
use crate::proto::frame::Message as _;
use crate::proto::{ErrorFields, Frame, answer, frontend};

/// Everything up to one ReadyForQuery.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Rows as text, of all statements in the query.
    pub rows: Vec<Vec<Option<String>>>,
    /// Tag of the last completed statement, such as `SET`.
    pub command: String,
    /// The error that ended it.
    pub error: Option<ErrorFields>,
}

impl Answer {
    /// The rows, or the error.
    ///
    /// # Errors
    /// The server's.
    pub fn into_rows(self) -> Result<Vec<Vec<Option<String>>>, ErrorFields> {
        match self.error {
            None => Ok(self.rows),
            Some(error) => Err(error),
        }
    }
}

impl Conn {
    /// Runs one small statement and returns its rows as text.
    ///
    /// Not cancel safe: dropped half way, the connection is not at rest and will be closed.
    ///
    /// # Errors
    /// The server's error, or that the connection is lost or busy.
    pub async fn simple(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ServerError> {
        if !self.in_sync() {
            return Err(self
                .desynchronized("a control statement inside a batch")
                .into());
        }
        let mut out = BytesMut::with_capacity(sql.len() + 8);
        frontend::query(sql, &mut out);
        self.send(&out).await?;
        self.answer().await?.into_rows().map_err(ServerError::Sql)
    }

    /// Throws away all answers until the connection is at rest; gives up a COPY.
    ///
    /// # Errors
    /// When the connection is lost, or it takes longer than `limit`.
    pub async fn drain(&mut self, limit: Duration) -> Result<(), Fault> {
        let drained = tokio::time::timeout(limit, async {
            if self.copying() == Copying::In {
                self.refuse_copy().await?;
            } else if self.ledger.needs_sync() {
                let mut out = BytesMut::new();
                frontend::sync(&mut out);
                self.send(&out).await?;
            }
            while !self.in_sync() {
                let wants_data = self.pass(|head| match head {
                    Head::Message(message) => message.tag() == tag::COPY_IN,
                    Head::Rows(_) => false,
                })?;
                match wants_data {
                    Some(true) => self.refuse_copy().await?,
                    Some(false) => {}
                    None => self.more().await?,
                }
            }
            Ok(())
        });
        match drained.await {
            Ok(result) => result,
            Err(_) => {
                let why = faults::took_too_long("reading the answers", limit);
                Err(faults::lost(self.endpoint(), why))
            }
        }
    }

    /// Reads up to the next ReadyForQuery.
    pub(super) async fn answer(&mut self) -> Result<Answer, Fault> {
        let mut collected = Answer::default();
        loop {
            let frame = self.recv_answer().await?;
            match frame.tag() {
                tag::READY => return Ok(collected),
                tag::DATA_ROW => collected
                    .rows
                    .push(self.parsed(answer::text_row(frame.body()))?),
                tag::COMMAND_COMPLETE => {
                    let command = answer::command_complete(frame.body()).map(str::to_owned);
                    collected.command = self.parsed(command)?;
                }
                tag::ERROR => {
                    collected.error = Some(self.parsed(ErrorFields::parse(frame.body()))?);
                }
                tag::COPY_IN => self.refuse_copy().await?,
                _ => {}
            }
        }
    }

    /// The next message that answers something: not a notice, setting or notification.
    pub(super) async fn recv_answer(&mut self) -> Result<Frame, Fault> {
        loop {
            let frame = self.recv().await?;
            match frame.tag() {
                tag::NOTICE | tag::PARAMETER_STATUS => {}
                tag::NOTIFICATION => self.pushed.extend_from_slice(frame.raw()),
                _ => return Ok(frame),
            }
        }
    }

    async fn refuse_copy(&mut self) -> Result<(), Fault> {
        let needs_sync = self.owed() == 0;
        let mut out = BytesMut::new();
        frontend::copy_fail("no data is expected here", &mut out);
        if needs_sync {
            frontend::sync(&mut out);
        }
        self.send(&out).await
    }
}
