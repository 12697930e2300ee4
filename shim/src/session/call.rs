//! The function call message: passed through to the server where the client's state is.

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::Session;
use super::client::Gone;
use super::execute::Attempt;
use super::forward::Trouble;
use super::party::Participant;
use super::work::Work;
use crate::nodes::Topology;
use crate::observe::Counted;
use crate::proto::{Frame, TxStatus};

/// Functions that take an advisory lock for the session (`pg_proc.oid`).
const SESSION_LOCKS: [u32; 8] = [2880, 2881, 2882, 2883, 2886, 2887, 2888, 2889];

/// What users make has numbers from here on (`FirstNormalObjectId`).
const FIRST_OF_USERS: u32 = 16384;

impl Session<'_> {
    /// Calls a function on the server that is kept for the client, on the one that takes part in
    /// the transaction, or on shard 0, where functions of no table run. One of a user may touch any
    /// table: it needs a shard that the client has named.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn call(&mut self, frame: &Frame, body: &[u8]) -> Result<(), Gone> {
        let oid = body.first_chunk::<4>();
        let oid = oid.map(|oid| u32::from_be_bytes(*oid));
        self.call_with(&Work::Call(frame), oid).await
    }

    /// Runs what nobody looks into: a function call, or a query that only passes through.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn call_with(
        &mut self,
        work: &Work<'_>,
        oid: Option<u32>,
    ) -> Result<(), Gone> {
        if self.tx.is_failed() {
            self.fault(&Fault::AbortedTransaction).await;
            return Ok(());
        }
        let topology = self.cluster.topology();
        let by_user = oid.is_some_and(|oid| oid >= FIRST_OF_USERS) && !topology.is_undivided();
        let named = self.params.own().shard.filter(|_| by_user);
        let shard = match named {
            None if by_user => {
                self.fault(&needs_a_shard()).await;
                return Ok(());
            }
            Some(named) => ShardNumber(named),
            None => self.shard_of_calls(),
        };
        if oid.is_some_and(|oid| SESSION_LOCKS.contains(&oid))
            && let Err(fault) = self.pin(shard, "advisory lock")
        {
            self.fault(&fault).await;
            return Ok(());
        }
        let picked = match self.participants.remove(&shard) {
            Some(participant) => Ok(participant),
            None => self
                .pick_primary(shard, &topology)
                .await
                .map(|picked| picked.participant),
        };
        match picked {
            Ok(participant) => self.call_on(participant, work, &topology).await,
            Err(fault) => {
                self.fault(&fault).await;
                Ok(())
            }
        }
    }

    fn shard_of_calls(&self) -> ShardNumber {
        let pinned = self.pin.map(|(shard, _)| shard);
        let joined = self.participants.keys().next().copied();
        pinned.or(joined).unwrap_or(ShardNumber(0))
    }

    async fn call_on(
        &mut self,
        mut participant: Participant,
        work: &Work<'_>,
        topology: &Topology,
    ) -> Result<(), Gone> {
        participant.wrote = true;
        self.needed.clear();
        match self.attempt(&mut participant, None, work, topology).await {
            Err(Trouble::Gone(gone)) => return Err(gone),
            Err(Trouble::Lost(fault)) => {
                self.lose(participant);
                self.report_loss(&fault).await?;
            }
            Ok(Attempt::Unproved(fields) | Attempt::Refused(fields)) => {
                self.refuse(participant).await;
                self.fail_with(&fields).await;
            }
            Ok(Attempt::Ran { script, .. }) => {
                if script.error.is_some() {
                    self.seen.count(Counted::Errors, 1);
                    self.tx.fail();
                }
                if self.tx.is_open() || participant.lease.tx_status() != TxStatus::Idle {
                    self.tx.note_statement();
                    self.participants.insert(participant.shard, participant);
                } else {
                    self.note_commit_of(&participant);
                    self.give_back(participant);
                }
            }
        }
        Ok(())
    }
}

fn needs_a_shard() -> Fault {
    Fault::Refused {
        what: "a function call message for a function of a user".to_owned(),
        why: "the function may touch any table, and which shard it belongs to is not said"
            .to_owned(),
        hint: Some("Call it with SELECT, or SET pgdog.shard first.".to_owned()),
    }
}
