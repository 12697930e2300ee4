//! How a transaction ends on the servers that took part: nothing to do, one COMMIT, or two phases,
//! which are in `two_phase`.

use pgdog_core::ids::ShardNumber;
use pgdog_core::lsn::Lsn;

use super::Session;
use super::faults;
use super::forward;
use super::party::{Participant, Place};
use super::tx::{CommitPlan, commit_plan};
use crate::observe::Counted;
use crate::proto::{ErrorFields, TxStatus};
use crate::server::Applied;

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
    /// Commits the open transaction; afterwards there is none. Also whether its token is to be
    /// pushed: a SET LOCAL counts up to its end.
    pub(super) async fn commit_all(&mut self) -> (Ended, bool) {
        let reports = self.params.own().report_commit_lsn;
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
        (ended, reports)
    }

    /// Ends the implicit transaction of a message.
    pub(super) async fn finish_implicit(&mut self) {
        if self.tx.is_failed() {
            return self.abandon().await;
        }
        let simple_mark = self.message_mark;
        let fields = match self.commit_all().await {
            (Ended::Committed { commits }, reports) => return self.note_commits(&commits, reports),
            (Ended::Failed(fields), _) => fields,
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
        // Whatever comes of the rest.
        self.raise_own_floor(&commits);
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
    pub(super) async fn end_readers(
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
    pub(super) fn commits_of(&self, shards: &[ShardNumber]) -> Vec<(ShardNumber, Lsn)> {
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
                self.raise_own_floor(&self.commits_of(&shards[..nth]));
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

/// COMMIT of a transaction that has failed without anybody's knowledge is answered by ROLLBACK.
fn committed(tag: &str) -> Result<(), ErrorFields> {
    match tag {
        "COMMIT" => Ok(()),
        _ => Err(faults::rolled_back("it had failed on a server")),
    }
}
