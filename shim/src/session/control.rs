//! BEGIN, COMMIT, ROLLBACK and savepoints.

use pgdog_core::fault::Fault;

use super::client::Gone;
use super::commit::Ended;
use super::dispatch::Flow;
use super::local::Local;
use super::settings::Keep;
use super::steps::Asked;
use super::tx::identifier;
use super::{Session, faults, forward};
use crate::observe::Counted;
use crate::plan::Kind;
use crate::proto::ErrorFields;

impl Session<'_> {
    /// Runs a transaction command.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn control(
        &mut self,
        asked: &Asked<'_>,
        at: usize,
        kind: &Kind,
    ) -> Result<Flow, Gone> {
        if !asked.executes() {
            Local::default().write(asked, &mut self.client.out);
            return Ok(Flow::Next(at + 1));
        }
        match kind {
            Kind::Begin { .. } if self.keep == Keep::Statement => {
                let refused = Fault::Refused {
                    what: "a transaction block".to_owned(),
                    why: "pooler_mode is \"statement\" here".to_owned(),
                    hint: Some(
                        "Use a database or user with pooler_mode = \"transaction\".".to_owned(),
                    ),
                };
                Ok(self.fault(&refused).await)
            }
            Kind::Begin { read_only } => {
                self.begin(asked, read_only.unwrap_or(false));
                Ok(Flow::Next(at + 1))
            }
            Kind::Commit { chain } => self.commit(asked, at, *chain).await,
            Kind::Rollback { chain } => self.roll_back(asked, at, *chain).await,
            Kind::Savepoint(name) => {
                let command = format!("SAVEPOINT {}", identifier(name));
                let flow = self.on_savepoint(asked, at, &command, "SAVEPOINT").await;
                if matches!(flow, Flow::Next(_)) {
                    self.tx.savepoint(name);
                    self.params.savepoint(name);
                }
                Ok(flow)
            }
            Kind::Release(name) => {
                if self.tx.is_explicit() && !self.tx.has_savepoint(name) {
                    return Ok(self.fault(&faults::unknown_savepoint(name)).await);
                }
                let command = format!("RELEASE SAVEPOINT {}", identifier(name));
                let flow = self.on_savepoint(asked, at, &command, "RELEASE").await;
                if matches!(flow, Flow::Next(_)) {
                    self.tx.release(name);
                    self.params.release(name);
                }
                Ok(flow)
            }
            Kind::RollbackTo(name) => self.roll_back_to(asked, at, name).await,
            _ => Ok(self.routed_control(asked)),
        }
    }

    /// Unreachable by construction: `dispatch` sends only transaction commands here.
    fn routed_control(&mut self, asked: &Asked<'_>) -> Flow {
        let fields = faults::plain(
            "XX000",
            format!("not a transaction command: {}", asked.sql()),
        );
        self.report(&fields);
        Flow::Failed { parsed: 0 }
    }

    fn begin(&mut self, asked: &Asked<'_>, read_only: bool) {
        match self.tx.is_explicit() {
            true => {
                forward::warn(
                    self.client,
                    "25001",
                    "there is already a transaction in progress",
                );
            }
            false => {
                if !self.tx.is_open() {
                    self.params.begin();
                }
                let text = asked.sql().trim().trim_end_matches(';');
                self.tx.begin(text, read_only);
            }
        }
        let word = asked.sql().trim_start().get(..5).unwrap_or_default();
        let tag = match word.eq_ignore_ascii_case("start") {
            true => "START TRANSACTION",
            false => "BEGIN",
        };
        Local::tag(tag).write(asked, &mut self.client.out);
    }

    async fn commit(&mut self, asked: &Asked<'_>, at: usize, chain: bool) -> Result<Flow, Gone> {
        if self.tx.has_lost_part() {
            // Where a server is lost to its client, COMMIT fails. The tag ROLLBACK would tell only
            // those who look at it.
            Local::default().write_head(asked, &mut self.client.out);
            self.abandon().await;
            self.report(&faults::rolled_back(
                "a server that took part in it was lost",
            ));
            return Ok(Flow::Failed { parsed: usize::MAX });
        }
        if self.tx.is_failed() {
            return self.roll_back(asked, at, chain).await;
        }
        let text = self.tx.begin_text().to_owned();
        let read_only = self.tx.is_read_only();
        if !self.tx.is_explicit() {
            if chain {
                return Ok(self
                    .fault(&faults::outside_transaction("COMMIT AND CHAIN"))
                    .await);
            }
            forward::warn(self.client, "25P01", "there is no transaction in progress");
        }
        Local::default().write_head(asked, &mut self.client.out);
        let mark = self.client.mark();
        match self.commit_all().await {
            (Ended::Committed { commits }, reports) => {
                Local::tag("COMMIT").write_tail(asked, &mut self.client.out);
                self.client.note_completion_at(mark);
                self.note_commits(&commits, reports);
            }
            (Ended::Failed(fields), _) => {
                self.report(&fields);
                return Ok(Flow::Failed { parsed: usize::MAX });
            }
        }
        if chain {
            self.params.begin();
            self.tx.begin(&text, read_only);
        }
        Ok(Flow::Next(at + 1))
    }

    async fn roll_back(&mut self, asked: &Asked<'_>, at: usize, chain: bool) -> Result<Flow, Gone> {
        let text = self.tx.begin_text().to_owned();
        let read_only = self.tx.is_read_only();
        if !self.tx.is_explicit() {
            if chain {
                return Ok(self
                    .fault(&faults::outside_transaction("ROLLBACK AND CHAIN"))
                    .await);
            }
            forward::warn(self.client, "25P01", "there is no transaction in progress");
        }
        self.abandon().await;
        Local::tag("ROLLBACK").write(asked, &mut self.client.out);
        if chain {
            self.params.begin();
            self.tx.begin(&text, read_only);
        }
        Ok(Flow::Next(at + 1))
    }

    /// Rolls back whatever is open.
    pub(super) async fn abandon(&mut self) {
        self.roll_back_all().await;
        if self.tx.is_open() {
            self.seen.count(Counted::Transactions, 1);
        }
        self.params.rollback();
        self.tx.end();
        self.reshaped = false;
    }

    async fn roll_back_to(
        &mut self,
        asked: &Asked<'_>,
        at: usize,
        name: &str,
    ) -> Result<Flow, Gone> {
        if self.tx.is_explicit() && !self.tx.has_savepoint(name) {
            return Ok(self.fault(&faults::unknown_savepoint(name)).await);
        }
        if self.tx.has_lost_part() {
            return Ok(self.fault(&Fault::AbortedTransaction).await);
        }
        let command = format!("ROLLBACK TO SAVEPOINT {}", identifier(name));
        let flow = self.on_savepoint(asked, at, &command, "ROLLBACK").await;
        if matches!(flow, Flow::Next(_)) {
            self.tx.rollback_to(name);
            self.params.rollback_to(name);
        }
        Ok(flow)
    }

    /// Runs a savepoint command on every server that takes part.
    async fn on_savepoint(
        &mut self,
        asked: &Asked<'_>,
        at: usize,
        command: &str,
        tag: &str,
    ) -> Flow {
        if !self.tx.is_explicit() {
            let name = match tag {
                "ROLLBACK" => "ROLLBACK TO SAVEPOINT",
                "RELEASE" => "RELEASE SAVEPOINT",
                other => other,
            };
            return self.fault(&faults::outside_transaction(name)).await;
        }
        if let Err(fields) = self.tell_all(command).await {
            self.fail_with(&fields).await;
            return Flow::Failed { parsed: 0 };
        }
        self.tell_all_news();
        let answer = Local::tag(tag);
        answer.write_head(asked, &mut self.client.out);
        answer.write_tail(asked, &mut self.client.out);
        Flow::Next(at + 1)
    }

    /// Runs a command on every server that takes part; the first error counts.
    pub(super) async fn tell_all(&mut self, command: &str) -> Result<(), ErrorFields> {
        let told = self.participants.values_mut().map(|participant| async {
            (
                participant.shard,
                forward::command(&mut participant.lease, command).await,
            )
        });
        let mut first = Ok(());
        for (shard, told) in futures_util::future::join_all(told).await {
            let error = match told {
                Ok(done) => {
                    self.client.put_pushed(&done.pushed);
                    done.error
                }
                Err(fault) => {
                    if let Some(lost) = self.participants.remove(&shard) {
                        self.lose(lost);
                    }
                    Some(ErrorFields::from(&fault))
                }
            };
            if let (Some(fields), Ok(())) = (error, &first) {
                first = Err(fields);
            }
        }
        first
    }
}
