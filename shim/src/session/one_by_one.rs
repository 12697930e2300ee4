//! What cannot run in a transaction: one shard after the other.

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::Session;
use super::client::Gone;
use super::dispatch::Flow;
use super::fanout::run_part;
use super::faults;
use super::forward::{Sink, Trouble};
use super::params::literal;
use super::party::Participant;
use super::steps::Input;
use super::tx::identifier;
use crate::plan::{ConcurrentIndex, concurrent_index};
use crate::proto::ErrorFields;
use crate::server::{Conn, ServerError};

/// How long to wait for those who hold a table whose index is to be dropped again: a client that
/// has cancelled its statement waits for the answer.
const DROP_WAIT: &str = "SET lock_timeout = '5s'";

impl Session<'_> {
    /// What cannot run in a transaction: shard by shard, with a report of what was done.
    pub(super) async fn one_by_one(&mut self, input: &Input<'_>, at: usize) -> Result<Flow, Gone> {
        let topology = self.cluster.topology();
        let work = input.work(at, at + 1);
        let index = concurrent_index(input.at(at).sql());
        let mut held = BytesMut::new();
        for nodes in &topology.shards {
            let shard = nodes.shard;
            let mut participant = match self.pick_primary(shard, &topology).await {
                Ok(picked) => picked.participant,
                Err(fault) => {
                    let fields = ErrorFields::from(&fault);
                    return Ok(self.stop_at(shard, topology.shards.len(), fields).await);
                }
            };
            // What is there before is not ours, whatever becomes of the statement.
            let before = match &index {
                Some(index) => is_there(&mut participant.lease, index).await,
                None => Ok(false),
            };
            let ahead = match before {
                Ok(_) => self.prepare_ahead(&mut participant, &topology).await,
                Err(ref fault) => Err(fault.clone()),
            };
            let ran = match ahead {
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
                    let error = match &index {
                        Some(index) => {
                            let was_there = before.unwrap_or(true);
                            let conn = &mut participant.lease;
                            whole(conn, (index, was_there), script.error).await
                        }
                        None => script.error,
                    };
                    self.give_back(participant);
                    error
                }
                Err(Trouble::Gone(gone)) => return Err(gone),
                Err(Trouble::Lost(fault)) => {
                    self.throw_away(participant);
                    Some(ErrorFields::from(&fault))
                }
            };
            if let Some(fields) = error {
                return Ok(self.stop_at(shard, topology.shards.len(), fields).await);
            }
        }
        self.put_held(&held);
        Ok(Flow::Next(at + 1))
    }

    /// The error of one shard, with what is done on the others.
    async fn stop_at(
        &mut self,
        shard: ShardNumber,
        shards: usize,
        mut fields: ErrorFields,
    ) -> Flow {
        if shards > 1 {
            let report = report(usize::from(shard.0), shards);
            fields.detail = Some(match fields.detail.take() {
                Some(detail) => format!("{detail}\n{report}"),
                None => report,
            });
        }
        self.fail_with(&fields).await;
        Flow::Failed { parsed: 0 }
    }

    fn note_commit_quietly(&mut self, participant: &Participant) {
        if let Some(lsn) = participant.lease.commit_lsn() {
            let position = self.commit_position(participant.shard, lsn);
            self.own_floor.raise(participant.shard, position);
            self.commit_token.raise(participant.shard, position);
        }
    }
}

/// What each shard has come to when one of them failed.
fn report(failed: usize, shards: usize) -> String {
    let listed = |of: std::ops::Range<usize>| {
        let names: Vec<_> = of.map(|shard| shard.to_string()).collect();
        match names.len() {
            1 => format!("shard {}", names[0]),
            _ => format!("shards {}", names.join(", ")),
        }
    };
    let mut parts = vec![format!("failed on shard {failed}")];
    if failed > 0 {
        parts.push(format!("done on {}", listed(0..failed)));
    }
    if failed + 1 < shards {
        parts.push(format!("not begun on {}", listed(failed + 1..shards)));
    }
    parts.join("; ")
}

/// An index that could not be built is taken away, so that the same statement repairs it; one that
/// an earlier statement has left is not taken for built, and one that another one is building is
/// left to it.
async fn whole(
    conn: &mut Conn,
    (index, was_there): (&ConcurrentIndex, bool),
    error: Option<ErrorFields>,
) -> Option<ErrorFields> {
    if conn.is_broken() {
        return error;
    }
    let unusable = match unusable(conn, index).await {
        Ok(unusable) => unusable,
        Err(fault) => return Some(error.unwrap_or_else(|| ErrorFields::from(&fault))),
    };
    match (unusable, error) {
        (None, error) => error,
        (Some(left), None) => Some(ErrorFields::from(&not_usable(left))),
        (Some(left), Some(error)) => {
            if !was_there && !left.is_being_built {
                drop_index(conn, &left.name).await;
            }
            Some(error)
        }
    }
}

fn not_usable(left: Unusable) -> Fault {
    let Unusable {
        name,
        is_being_built,
    } = left;
    let (why, hint) = match is_being_built {
        true => (
            "another statement is building it",
            "Wait for it.".to_owned(),
        ),
        false => (
            "an earlier statement that should have built it was broken off",
            format!("DROP INDEX {name}, then try again."),
        ),
    };
    Fault::WrongState {
        what: format!("index {name} is not usable"),
        why: why.into(),
        hint: Some(hint),
    }
}

async fn drop_index(conn: &mut Conn, name: &str) {
    let dropped = async {
        let before = run(conn, "SELECT pg_catalog.current_setting('lock_timeout')").await?;
        run(conn, DROP_WAIT).await?;
        let dropped = run(conn, &format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")).await;
        let before = before.into_iter().flatten().flatten().next();
        let restore = format!(
            "SET lock_timeout = {}",
            literal(&before.unwrap_or_default())
        );
        run(conn, &restore).await?;
        dropped
    };
    if let Err(fault) = dropped.await {
        tracing::warn!(index = name, %fault, "an index that failed is left behind");
    }
}

/// An index that cannot be used.
struct Unusable {
    /// With its schema, quoted.
    name: String,
    is_being_built: bool,
}

/// The index by its full name, if it is there and cannot be used.
async fn unusable(conn: &mut Conn, index: &ConcurrentIndex) -> Result<Option<Unusable>, Fault> {
    let sql = format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), EXISTS (
                    SELECT FROM pg_catalog.pg_stat_progress_create_index p
                     WHERE p.index_relid OPERATOR(pg_catalog.=) c.oid)
           FROM {} AND NOT i.indisvalid",
        of_index(index)
    );
    let mut row = run(conn, &sql).await?.into_iter().flatten().flatten();
    Ok(row.next().map(|name| Unusable {
        name,
        is_being_built: row.next().as_deref() == Some("t"),
    }))
}

/// Whether there is one of that name, of whatever kind.
async fn is_there(conn: &mut Conn, index: &ConcurrentIndex) -> Result<bool, Fault> {
    let sql = format!("SELECT 1 FROM {}", of_index(index));
    Ok(!run(conn, &sql).await?.is_empty())
}

fn of_index(index: &ConcurrentIndex) -> String {
    let parts = index.schema.iter().chain([&index.table]);
    let parts: Vec<_> = parts.map(|part| identifier(part)).collect();
    format!(
        "pg_catalog.pg_index i
           JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
           JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
          WHERE c.relname OPERATOR(pg_catalog.=) {}
            AND i.indrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass({})",
        literal(&index.name),
        literal(&parts.join("."))
    )
}

async fn run(conn: &mut Conn, sql: &str) -> Result<Vec<Vec<Option<String>>>, Fault> {
    conn.simple(sql).await.map_err(|error| match error {
        ServerError::Fault(fault) => fault,
        ServerError::Sql(fields) => faults::from_node(&conn.endpoint().to_string(), &fields),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_every_shard() {
        assert_eq!(report(0, 3), "failed on shard 0; not begun on shards 1, 2");
        assert_eq!(
            report(1, 3),
            "failed on shard 1; done on shard 0; not begun on shard 2"
        );
        assert_eq!(report(2, 3), "failed on shard 2; done on shards 0, 1");
    }
}
