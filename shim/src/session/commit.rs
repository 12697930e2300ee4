//! How a transaction ends on the servers that took part: nothing to do, one COMMIT, or two phases.
//!
//! ```text
//!   decider (lowest writer)      others                     when it fails
//!   record gid, PREPARE    ──►                              roll back everywhere
//!                                PREPARE, side by side ──►  ROLLBACK PREPARED: decider, others
//!   COMMIT PREPARED  = decision                             lost: 08007, recovery decides
//!                                COMMIT PREPARED            recovery finishes; committed anyway
//! ```

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::lsn::Lsn;

use super::Session;
use super::faults;
use super::forward;
use super::params::literal;
use super::party::{Participant, Place};
use super::tx::{CommitPlan, commit_plan};
use crate::nodes::Part;
use crate::observe::Counted;
use crate::proto::{ErrorFields, TxStatus};
use crate::server::{Ahead, Applied};

/// How the transaction ended.
#[derive(Debug)]
pub enum Ended {
    /// Committed; positions of the commits.
    Committed {
        /// One for each server that wrote.
        commits: Vec<(ShardNumber, Lsn)>,
    },
    /// It failed, and is rolled back, or its outcome is told by the error.
    Failed(ErrorFields),
}

impl Session<'_> {
    /// Commits the open transaction; afterwards there is none.
    pub(super) async fn commit_all(&mut self) -> Ended {
        let written: Vec<_> = self
            .participants
            .values()
            .map(|p| (p.shard, p.wrote))
            .collect();
        let ended = match commit_plan(&written, self.settings.two_phase) {
            CommitPlan::Nothing => Ended::Committed {
                commits: Vec::new(),
            },
            CommitPlan::Single { shard, readers } => self.commit_single(shard, &readers).await,
            CommitPlan::Sequential(shards) => self.commit_in_turn(&shards).await,
            CommitPlan::TwoPhase {
                decider,
                others,
                readers,
            } => self.commit_two_phase(decider, &others, &readers).await,
        };
        self.settle(&ended).await;
        ended
    }

    /// Ends the implicit transaction of a message.
    pub(super) async fn finish_implicit(&mut self) {
        if self.tx.is_failed() {
            return self.abandon().await;
        }
        let simple_mark = self.message_mark;
        let fields = match self.commit_all().await {
            Ended::Committed { commits } => return self.note_commits(&commits),
            Ended::Failed(fields) => fields,
        };
        // Nobody must read of a success that was none.
        if self.client.holds(simple_mark) && self.simple_message {
            self.client.cut(simple_mark);
        }
        self.report(&fields);
    }

    async fn settle(&mut self, ended: &Ended) {
        let committed = matches!(ended, Ended::Committed { .. });
        self.settle_settings(committed);
        self.roll_back_all().await;
        self.tx.end();
        self.seen.count(Counted::Transactions, 1);
        if std::mem::take(&mut self.reshaped) && committed {
            // The next statement of this client must see it.
            if let Err(fault) = self.cluster.refresh().await {
                tracing::warn!(%fault, "cannot refresh the topology after a change");
            }
        }
    }

    /// What the transaction has set holds from now on, or not at all.
    pub(super) fn settle_settings(&mut self, committed: bool) {
        if !committed {
            // Who was prepared, or committed before the others failed, has kept what was set.
            let changed = self.params.have_changed();
            for Participant { lease, .. } in self.participants.values_mut() {
                lease.applied.unknown |= changed && lease.tx_status() == TxStatus::Idle;
            }
            return self.params.rollback();
        }
        self.params.commit();
        // Everybody who took part has seen the transaction's SETs.
        for participant in self.participants.values_mut() {
            participant.lease.applied = Applied {
                fingerprint: self.params.fingerprint(),
                commands: self.params.wanted().clone(),
                unknown: participant.lease.applied.unknown,
            };
        }
    }

    async fn commit_single(&mut self, shard: ShardNumber, readers: &[ShardNumber]) -> Ended {
        let mut commits = match self.end_readers(readers).await {
            Ok(commits) => commits,
            Err(fields) => return Ended::Failed(fields),
        };
        let Some(participant) = self.participants.get_mut(&shard) else {
            return Ended::Committed { commits };
        };
        participant.lease.forget_commit_lsn();
        let done = match forward::command(&mut participant.lease, "COMMIT").await {
            Ok(done) => done,
            Err(fault) => return Ended::Failed(ErrorFields::from(&fault)),
        };
        self.client.put_pushed(&done.pushed);
        let commit = participant.lease.commit_lsn().map(|lsn| (shard, lsn));
        if let Err(fields) = done.outcome().and_then(|tag| committed(&tag)) {
            return Ended::Failed(fields);
        }
        commits.extend(commit);
        Ended::Committed { commits }
    }

    /// What only read is committed too, so that its savepoints and SETs end the same way; and
    /// before the others, since code may have written there that no text shows: nothing is
    /// committed without it.
    async fn end_readers(
        &mut self,
        readers: &[ShardNumber],
    ) -> Result<Vec<(ShardNumber, Lsn)>, ErrorFields> {
        for (shard, told) in self.tell(readers, "COMMIT").await {
            let writes = self.participants.get(&shard).map(|p| p.place) == Some(Place::Primary);
            match told.and_then(|tag| committed(&tag)) {
                Err(fields) if writes => return Err(fields),
                Err(fields) => tracing::debug!(%shard, sqlstate = fields.code,
                    "a replica was lost at commit"),
                Ok(()) => {}
            }
        }
        Ok(self.commits_of(readers))
    }

    /// Positions of the commits on some shards.
    fn commits_of(&self, shards: &[ShardNumber]) -> Vec<(ShardNumber, Lsn)> {
        let commits = shards.iter().filter_map(|shard| {
            let participant = self.participants.get(shard)?;
            Some((*shard, participant.lease.commit_lsn()?))
        });
        commits.collect()
    }

    async fn commit_in_turn(&mut self, shards: &[ShardNumber]) -> Ended {
        for (nth, shard) in shards.iter().enumerate() {
            let Some(participant) = self.participants.get_mut(shard) else {
                continue;
            };
            participant.lease.forget_commit_lsn();
            let told = match forward::command(&mut participant.lease, "COMMIT").await {
                Ok(done) => {
                    self.client.put_pushed(&done.pushed);
                    done.outcome().and_then(|tag| committed(&tag))
                }
                Err(fault) => Err(ErrorFields::from(&fault)),
            };
            if let Err(mut fields) = told {
                if nth > 0 {
                    tracing::error!(%shard, "transaction is committed on some shards only");
                    let done: Vec<_> = shards[..nth].iter().map(ToString::to_string).collect();
                    fields.detail = Some(format!("committed on shards {} only", done.join(", ")));
                }
                return Ended::Failed(fields);
            }
        }
        Ended::Committed {
            commits: self.commits_of(shards),
        }
    }

    async fn commit_two_phase(
        &mut self,
        decider: ShardNumber,
        others: &[ShardNumber],
        readers: &[ShardNumber],
    ) -> Ended {
        let topology = self.cluster.topology();
        let epoch = topology
            .shards
            .get(usize::from(decider.0))
            .map(|shard| shard.epoch);
        let gid = match self
            .cluster
            .new_gid((decider, others), epoch.unwrap_or_default())
            .await
        {
            Ok(gid) => gid,
            Err(fault) => return Ended::Failed(ErrorFields::from(&fault)),
        };
        let gid: &str = &gid;
        if let Err(fields) = self.prepare_decider(decider, gid).await {
            return Ended::Failed(fields);
        }
        if let Err(fields) = self.prepare_others(others, gid).await {
            self.undo_prepared(decider, others, gid).await;
            return Ended::Failed(fields);
        }
        let mut commits = match self.end_readers(readers).await {
            Ok(commits) => commits,
            Err(fields) => {
                self.undo_prepared(decider, others, gid).await;
                return Ended::Failed(fields);
            }
        };
        if let Err(fields) = self.decide_commit(decider, others, gid).await {
            return Ended::Failed(fields);
        }
        if let Err(fault) = self.commit_others(decider, others, gid).await {
            return Ended::Failed(ErrorFields::from(&fault));
        }
        commits.extend(self.commits_of(&[decider]));
        commits.extend(self.commits_of(others));
        Ended::Committed { commits }
    }

    /// It is decided: recovery commits what cannot be committed now. Only what somebody else has
    /// rolled back, by hand or by a failover, can not.
    async fn commit_others(
        &mut self,
        decider: ShardNumber,
        others: &[ShardNumber],
        gid: &str,
    ) -> Result<(), Fault> {
        let commit = format!("COMMIT PREPARED {}", literal(gid));
        let mut missing = Vec::new();
        for (shard, told) in self.tell(others, &commit).await {
            let Err(fields) = told else {
                continue;
            };
            tracing::warn!(%shard, gid, sqlstate = fields.code, error = fields.message,
                "a decided part is not committed by its own connection");
            match self.cluster.finish_part(gid, shard, decider).await {
                Part::Committed => {}
                Part::Unknown => tracing::warn!(%shard, gid, "it is left to recovery"),
                Part::Lost => missing.push(shard),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        tracing::error!(
            gid,
            ?missing,
            "transaction is committed on some shards only"
        );
        Err(Fault::HalfCommitted {
            gid: gid.to_owned(),
            missing,
        })
    }

    async fn prepare_decider(
        &mut self,
        decider: ShardNumber,
        gid: &str,
    ) -> Result<(), ErrorFields> {
        let Some(participant) = self.participants.get_mut(&decider) else {
            return Err(faults::plain(
                "XX000",
                "the deciding shard is not part of it",
            ));
        };
        record_and_prepare(participant, gid).await
    }

    async fn prepare_others(
        &mut self,
        others: &[ShardNumber],
        gid: &str,
    ) -> Result<(), ErrorFields> {
        let parts = self.participants.values_mut();
        let parts = parts.filter(|part| others.contains(&part.shard));
        let prepared = parts.map(|part| record_and_prepare(part, gid));
        let prepared = futures_util::future::join_all(prepared).await;
        prepared.into_iter().collect()
    }

    /// COMMIT PREPARED on the decider.
    async fn decide_commit(
        &mut self,
        decider: ShardNumber,
        others: &[ShardNumber],
        gid: &str,
    ) -> Result<(), ErrorFields> {
        let Some(participant) = self.participants.get_mut(&decider) else {
            return Err(faults::plain("XX000", "the deciding shard is not there"));
        };
        let unknown = |why: String| {
            ErrorFields::from(&Fault::OutcomeUnknown {
                gid: gid.to_owned(),
                why,
            })
        };
        let commit = format!("COMMIT PREPARED {}", literal(gid));
        match forward::command(&mut participant.lease, &commit).await {
            Ok(done) => {
                self.client.put_pushed(&done.pushed);
                match done.outcome() {
                    Ok(tag) if tag == "COMMIT PREPARED" => Ok(()),
                    Ok(tag) => Err(unknown(format!("the server answered {tag}"))),
                    Err(fields) => {
                        // Somebody else rolled it back, or it cannot be committed now.
                        tracing::warn!(gid, sqlstate = fields.code, "decision failed");
                        self.undo_prepared(decider, others, gid).await;
                        Err(taken_back(fields))
                    }
                }
            }
            Err(fault) => Err(unknown(fault.message())),
        }
    }

    /// The decider first: only once it is gone there must the others be rolled back.
    async fn undo_prepared(&mut self, decider: ShardNumber, others: &[ShardNumber], gid: &str) {
        let rollback = format!("ROLLBACK PREPARED {}", literal(gid));
        let undone = self.tell(&[decider], &rollback).await;
        let gone = undone.iter().all(|(_, told)| match told {
            Ok(_) => true,
            Err(fields) => fields.code == "42704",
        });
        if !gone {
            tracing::warn!(gid, "a prepared transaction is left to recovery");
            return;
        }
        for (shard, told) in self.tell(others, &rollback).await {
            match told {
                Ok(_) => {}
                // It had not been prepared there.
                Err(fields) if fields.code == "42704" => {}
                Err(fields) => tracing::warn!(%shard, gid, sqlstate = fields.code,
                    "a prepared transaction is left to recovery"),
            }
        }
    }

    /// Runs a command on some participants side by side; returns tag or error of each.
    pub(super) async fn tell(
        &mut self,
        shards: &[ShardNumber],
        command: &str,
    ) -> Vec<(ShardNumber, Result<String, ErrorFields>)> {
        let told = self
            .participants
            .values_mut()
            .filter(|p| shards.contains(&p.shard))
            .map(|participant: &mut Participant| async {
                let done = forward::command(&mut participant.lease, command).await;
                (participant.shard, done)
            });
        let mut outcomes = Vec::new();
        for (shard, done) in futures_util::future::join_all(told).await {
            let outcome = match done {
                Ok(done) => {
                    self.client.put_pushed(&done.pushed);
                    done.outcome()
                }
                Err(fault) => Err(ErrorFields::from(&fault)),
            };
            outcomes.push((shard, outcome));
        }
        outcomes
    }
}

/// The row tells who comes later that the part was committed: of the decider it is the decision.
async fn record_and_prepare(part: &mut Participant, gid: &str) -> Result<(), ErrorFields> {
    part.lease.forget_commit_lsn();
    let mut both = Ahead::new();
    both.query(format!("SELECT pgdog.two_phase_record({})", literal(gid)));
    both.query(format!("PREPARE TRANSACTION {}", literal(gid)));
    let settled = async {
        part.lease.send_ahead(&both, &[]).await?;
        part.lease.settle_ahead(&both).await
    };
    let settled = settled.await.map_err(|fault| ErrorFields::from(&fault))?;
    if let Some(fields) = settled.error() {
        return Err(fields.clone());
    }
    prepared(settled.answers.last().map(|answer| answer.command.as_str()))
}

/// Only we commit on the decider. So if the transaction is not there any more, another shim took us
/// for dead and rolled it back: the client may simply try again.
fn taken_back(fields: ErrorFields) -> ErrorFields {
    match fields.code.as_str() {
        "42704" => faults::rolled_back("it was not decided in time"),
        _ => fields,
    }
}

/// COMMIT of a transaction that has failed without anybody's knowledge is answered by ROLLBACK.
fn committed(tag: &str) -> Result<(), ErrorFields> {
    match tag {
        "COMMIT" => Ok(()),
        _ => Err(faults::rolled_back("it had failed on a server")),
    }
}

/// PREPARE TRANSACTION of a failed transaction answers ROLLBACK.
fn prepared(tag: Option<&str>) -> Result<(), ErrorFields> {
    match tag {
        Some("PREPARE TRANSACTION") => Ok(()),
        _ => Err(faults::plain(
            "25P02",
            "the transaction had failed before it was committed",
        )),
    }
}
