//! What cannot run in a transaction: one shard after the other.

use bytes::BytesMut;

use super::Session;
use super::client::Gone;
use super::dispatch::Flow;
use super::fanout::run_part;
use super::forward::{Sink, Trouble};
use super::party::Participant;
use super::steps::Input;
use crate::proto::ErrorFields;

impl Session<'_> {
    /// What cannot run in a transaction: shard by shard, with a report of what was done.
    pub(super) async fn one_by_one(&mut self, input: &Input<'_>, at: usize) -> Result<Flow, Gone> {
        let topology = self.cluster.topology();
        let work = input.work(at, at + 1);
        let mut held = BytesMut::new();
        for nodes in &topology.shards {
            let shard = nodes.shard;
            let mut participant = match self.pick_primary(shard, &topology).await {
                Ok(picked) => picked.participant,
                Err(fault) => return Ok(self.fault(&fault).await),
            };
            let ran = match self.prepare_ahead(&mut participant, &topology).await {
                Ok(ahead) => {
                    let mut sink = match shard.0 {
                        0 => Sink::Buffer(&mut held),
                        _ => Sink::Nowhere,
                    };
                    run_part(&mut participant, &ahead, &work, &mut sink).await
                }
                Err(fault) => Err(Trouble::Lost(fault)),
            };
            let error = match ran {
                Ok((script, _, _)) => {
                    self.note_commit_quietly(&participant);
                    self.give_back(participant);
                    script.error
                }
                Err(Trouble::Gone(gone)) => return Err(gone),
                Err(Trouble::Lost(fault)) => {
                    self.throw_away(participant);
                    Some(ErrorFields::from(&fault))
                }
            };
            if let Some(mut fields) = error {
                if shard.0 > 0 {
                    fields.detail = Some(format!(
                        "failed on shard {shard}; done on the shards before it"
                    ));
                }
                self.fail_with(&fields).await;
                return Ok(Flow::Failed { parsed: 0 });
            }
        }
        self.put_held(&held);
        Ok(Flow::Next(at + 1))
    }

    fn note_commit_quietly(&mut self, participant: &Participant) {
        if let Some(lsn) = participant.lease.commit_lsn() {
            let position = self.commit_position(participant.shard, lsn);
            self.own_floor.raise(participant.shard, position);
            self.commit_token.raise(participant.shard, position);
        }
    }
}
