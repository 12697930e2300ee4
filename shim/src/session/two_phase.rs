//! How a transaction that wrote on several servers is committed.
//!
//! ```text
//!   decider (lowest writer)      others                     when it fails
//!   record gid, PREPARE    ──►                              roll back everywhere
//!                                PREPARE, side by side ──►  ROLLBACK PREPARED: decider, others
//!   COMMIT PREPARED  = decision                             lost: 08007, recovery decides
//!                                COMMIT PREPARED            recovery finishes; committed anyway
//! ```
//!
//! What its own connection cannot do with a part that is prepared, a control connection does.

use std::time::Instant;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::lsn::Lsn;

use super::commit::Ended;
use super::params::{LocalRole, literal};
use super::party::Participant;
use super::{Session, faults, forward};
use crate::nodes::{Gid, Part};
use crate::proto::ErrorFields;
use crate::server::Ahead;

/// A transaction that is being committed on several shards.
struct Global {
    /// In use until all is done.
    gid: Gid,
    decider: ShardNumber,
    others: Vec<ShardNumber>,
    /// Whose parts are, once they are prepared, if not the user's that the session is then.
    role: Option<LocalRole>,
}

impl Global {
    fn command(&self, how: &str) -> String {
        format!("{how} PREPARED {}", literal(&self.gid))
    }

    fn unknown(&self, why: String) -> ErrorFields {
        ErrorFields::from(&Fault::OutcomeUnknown {
            gid: self.gid.to_string(),
            why,
        })
    }
}

/// What came of a command about a part that is prepared: the server's answer, or that the
/// connection is lost.
type Told = Result<Result<String, ErrorFields>, Fault>;

impl Session<'_> {
    pub(super) async fn commit_two_phase(
        &mut self,
        decider: ShardNumber,
        others: &[ShardNumber],
        readers: &[ShardNumber],
    ) -> Ended {
        match self.run_phases(decider, others, readers).await {
            Ok(commits) => Ended::Committed { commits },
            Err(fields) => Ended::Failed(fields),
        }
    }

    async fn run_phases(
        &mut self,
        decider: ShardNumber,
        others: &[ShardNumber],
        readers: &[ShardNumber],
    ) -> Result<Vec<(ShardNumber, Lsn)>, ErrorFields> {
        let topology = self.cluster.topology();
        let nodes = topology.shards.get(usize::from(decider.0));
        let epoch = nodes.map(|shard| shard.epoch).unwrap_or_default();
        let gid = self.cluster.new_gid((decider, others), epoch).await;
        let global = Global {
            gid: gid.map_err(|fault| ErrorFields::from(&fault))?,
            decider,
            others: others.to_vec(),
            role: self.params.local_role(),
        };
        self.prepare_parts(&[decider], &global).await?;
        if let Err(fields) = self.prepare_parts(others, &global).await {
            self.undo_prepared(&global).await;
            return Err(fields);
        }
        let mut commits = match self.end_readers(readers).await {
            Ok(commits) => commits,
            Err(fields) => {
                self.undo_prepared(&global).await;
                return Err(fields);
            }
        };
        // Whatever comes of the rest.
        self.raise_own_floor(&commits);
        let asked = Instant::now();
        commits.extend(self.decide_commit(&global).await?);
        commits.extend(self.commits_of(&[decider]));
        let finished = self.commit_others(&global, asked).await;
        commits.extend(self.commits_of(others));
        self.raise_own_floor(&commits);
        commits.extend(finished?);
        Ok(commits)
    }

    async fn prepare_parts(
        &mut self,
        shards: &[ShardNumber],
        global: &Global,
    ) -> Result<(), ErrorFields> {
        let parts = self.participants.values_mut();
        let parts = parts.filter(|part| shards.contains(&part.shard));
        let prepared = parts.map(|part| record_and_prepare(part, &global.gid));
        let prepared = futures_util::future::join_all(prepared).await;
        if prepared.len() < shards.len() {
            return Err(faults::plain("XX000", "a shard is no part of it any more"));
        }
        prepared.into_iter().collect()
    }

    /// COMMIT PREPARED on the decider. A position only where its own connection has none.
    async fn decide_commit(
        &mut self,
        global: &Global,
    ) -> Result<Option<(ShardNumber, Lsn)>, ErrorFields> {
        let decider = global.decider;
        let command = global.command("COMMIT");
        let told = self
            .tell_prepared(&[decider], (&command, &global.role))
            .await;
        let fields = match told.into_iter().next() {
            Some((_, Ok(Ok(tag)))) if tag == "COMMIT PREPARED" => return Ok(None),
            Some((_, Ok(Ok(tag)))) => {
                return Err(global.unknown(format!("the server answered {tag}")));
            }
            Some((_, Ok(Err(fields)))) => fields,
            Some((_, Err(fault))) => return Err(global.unknown(fault.message())),
            None => return Err(faults::plain("XX000", "the deciding shard is not there")),
        };
        tracing::warn!(gid = %global.gid, sqlstate = fields.code, "decision failed");
        if !may_be_decided_otherwise(&fields) {
            self.undo_prepared(global).await;
            return Err(fields);
        }
        let asked = Instant::now();
        let decision = self
            .cluster
            .finish_part(&global.gid, decider, (decider, asked));
        match decision.await {
            Part::Committed(end) => Ok(Some((decider, end))),
            Part::Gone | Part::Lost => {
                // Another shim took us for dead and rolled it back: the client may try again.
                self.undo_others(global).await;
                Err(faults::rolled_back("it was not decided in time"))
            }
            Part::Unknown => Err(global.unknown(fields.message)),
        }
    }

    /// It is decided: recovery commits what cannot be committed now. Only what somebody else has
    /// rolled back, by hand or by a failover, can not.
    async fn commit_others(
        &mut self,
        global: &Global,
        asked: Instant,
    ) -> Result<Vec<(ShardNumber, Lsn)>, ErrorFields> {
        let (gid, decider) = (&global.gid, global.decider);
        let command = global.command("COMMIT");
        let told = self
            .tell_prepared(&global.others, (&command, &global.role))
            .await;
        let cluster = &self.cluster;
        let finishing = told.into_iter().filter_map(|(shard, told)| {
            let fields = match told {
                Ok(Ok(_)) => return None,
                Ok(Err(fields)) => fields,
                Err(fault) => ErrorFields::from(&fault),
            };
            tracing::warn!(%shard, %gid, sqlstate = fields.code, error = fields.message,
                "a decided part is not committed by its own connection");
            let part = cluster.finish_part(gid, shard, (decider, asked));
            Some(async move { (shard, part.await) })
        });
        let finished = futures_util::future::join_all(finishing).await;
        let (mut commits, mut missing, mut gone) = (Vec::new(), Vec::new(), 0);
        for (shard, part) in finished {
            match part {
                Part::Committed(end) => commits.push((shard, end)),
                Part::Unknown => {
                    tracing::warn!(%shard, %gid, "it is left to recovery");
                    self.own_floor.unplaced.insert(shard);
                }
                Part::Lost => missing.push(shard),
                Part::Gone => {
                    gone += 1;
                    missing.push(shard);
                }
            }
        }
        if missing.is_empty() {
            return Ok(commits);
        }
        if gone == global.others.len() {
            tracing::error!(%gid, "a decided transaction was lost in a failover of its decider");
            return Err(faults::rolled_back("a failover has lost its decision"));
        }
        if gone > 0 {
            missing.insert(0, decider);
        }
        tracing::error!(%gid, ?missing, "transaction is committed on some shards only");
        Err(ErrorFields::from(&Fault::HalfCommitted {
            gid: gid.to_string(),
            missing,
        }))
    }

    /// The decider first: only once it is gone there must the others be rolled back.
    async fn undo_prepared(&mut self, global: &Global) {
        let (gid, decider) = (&global.gid, global.decider);
        let command = global.command("ROLLBACK");
        let told = self
            .tell_prepared(&[decider], (&command, &global.role))
            .await;
        let undone = told.iter().all(|(_, told)| matches!(told, Ok(Ok(_))));
        if undone || self.cluster.undo_part(gid, decider).await {
            return self.undo_others(global).await;
        }
        tracing::warn!(%gid, "a prepared transaction is left to recovery");
    }

    async fn undo_others(&mut self, global: &Global) {
        let gid = &global.gid;
        let command = global.command("ROLLBACK");
        for (shard, told) in self
            .tell_prepared(&global.others, (&command, &global.role))
            .await
        {
            match told {
                Ok(Ok(_)) => {}
                // It had not been prepared there.
                Ok(Err(fields)) if fields.code == "42704" => {}
                Ok(Err(_)) | Err(_) if self.cluster.undo_part(gid, shard).await => {}
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(%shard, %gid, "a prepared transaction is left to recovery");
                }
            }
        }
    }

    /// Runs a command about parts that are prepared on their own connections, side by side.
    async fn tell_prepared(
        &mut self,
        shards: &[ShardNumber],
        (command, role): (&str, &Option<LocalRole>),
    ) -> Vec<(ShardNumber, Told)> {
        let parts = self.participants.values_mut();
        let told =
            parts
                .filter(|part| shards.contains(&part.shard))
                .map(|part: &mut Participant| async {
                    let told = match role {
                        None => forward::command(&mut part.lease, command)
                            .await
                            .map(|done| {
                                let pushed = done.pushed.clone();
                                (done.outcome(), pushed)
                            }),
                        Some(role) => {
                            let told = as_role(part, command, role).await;
                            told.map(|outcome| (outcome, Default::default()))
                        }
                    };
                    (part.shard, told)
                });
        let told = futures_util::future::join_all(told).await;
        let told = told.into_iter().map(|(shard, told)| {
            let told = told.map(|(outcome, pushed)| {
                self.client.put_pushed(&pushed);
                outcome
            });
            (shard, told)
        });
        told.collect()
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

/// What was prepared under a role that held until the end of the transaction can be ended by that
/// role only.
async fn as_role(part: &mut Participant, command: &str, role: &LocalRole) -> Told {
    let mut all = Ahead::new();
    all.query(&*role.take)
        .query(command)
        .query(&*role.give_back);
    part.lease.send_ahead(&all, &[]).await?;
    let mut answers = part.lease.settle_ahead(&all).await?.answers.into_iter();
    let (_, told, back) = (answers.next(), answers.next(), answers.next());
    // Whoever comes next is not to be who this was.
    part.lease.applied.unknown |= back.is_none_or(|back| back.error.is_some());
    let told = told.unwrap_or_default();
    Ok(told.error.map_or(Ok(told.command), Err))
}

/// Somebody else has ended it or is at it, or it is another user's.
fn may_be_decided_otherwise(fields: &ErrorFields) -> bool {
    matches!(fields.code.as_str(), "42704" | "55000" | "42501")
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
