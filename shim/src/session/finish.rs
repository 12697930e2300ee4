//! The rest of a statement on every shard: COPY data for those that want some, and what they all
//! say in the end.

use std::sync::Arc;

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_core::placement::Strategy;

use super::Session;
use super::fanout::{Part, server_error};
use super::feed::{Taker, feed, refuse};
use super::forward::{self, Progress, Sink, Trouble};
use super::spread::{Placing, Spread};
use super::steps::Asked;
use crate::nodes::Topology;
use crate::plan::{CopyFormat, CopyIn};
use crate::proto::backend::tag;
use crate::proto::{answer, backend, frame};
use crate::route::rows::{Dialect, Keyed, Splitter};
use crate::route::{AllReason, Rows, is_plain};
use crate::server::{Conn, ServerError};

/// Before this version `\.` on a line of its own ends CSV data.
const CSV_WITHOUT_MARKER: u32 = 18;

impl Session<'_> {
    /// Refuses rows whose shards cannot be looked up here.
    pub(super) fn check_rows(&self, reason: AllReason, topology: &Topology) -> Result<(), Fault> {
        let AllReason::Rows(rows) = reason else {
            return Ok(());
        };
        match topology.sharded.get(rows.table) {
            Some(table) if is_looked_up(&table.rule.strategy) && self.has_written_omni() => {
                Err(Fault::Refused {
                    what: format!(
                        "COPY into sharded table \"{}\" in a transaction that wrote an \
                         omnisharded one",
                        table.table
                    ),
                    why: "its lookups would not see what was written".to_owned(),
                    hint: Some("Commit first.".to_owned()),
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// COPY data to the shards, then the rest of the answers, which must agree.
    pub(super) async fn finish_parts(
        &mut self,
        asked: &Asked<'_>,
        (reason, topology): (AllReason, &Arc<Topology>),
        parts: &mut [Part],
        held: &mut BytesMut,
    ) -> Result<(), Trouble> {
        if parts.iter().all(|part| part.progress == Progress::Done) {
            return match reason {
                AllReason::Change => add_up(parts, held),
                _ => agree(parts),
            };
        }
        let extended = matches!(asked, Asked::Extended(_));
        let spread = match reason {
            AllReason::Rows(rows) => self.placing(asked, (rows, topology), parts, held),
            AllReason::OmniWrite
            | AllReason::Ddl
            | AllReason::Placement
            | AllReason::Read
            | AllReason::Change => Ok(Spread::Everywhere(BytesMut::new())),
        };
        let mut spread = match spread {
            Ok(spread) => spread,
            // The client was not told yet that it shall send data.
            Err(fault) => {
                give_up(parts, extended).await;
                return Err(Trouble::Lost(fault));
            }
        };
        self.client.out.extend_from_slice(held);
        held.clear();
        self.sync_ignored |= extended && self.synced;
        let fed = {
            let mut takers: Vec<_> = takers(parts, spread.is_everywhere()).collect();
            feed(self.client, &mut takers, &mut spread, extended).await
        };
        let mut trouble = match fed {
            Err(Trouble::Gone(gone)) => return Err(Trouble::Gone(gone)),
            Err(trouble) => Some(trouble),
            Ok(()) => None,
        };
        for (nth, part) in parts.iter_mut().enumerate() {
            let mut sink = match nth {
                0 => Sink::Buffer(&mut *held),
                _ => Sink::Nowhere,
            };
            let conn = &mut part.participant.lease;
            let driven = forward::drive(conn, &mut part.script, &mut sink).await;
            let found = match (driven, &part.script.error) {
                (Err(trouble), _) => trouble,
                (Ok(_), Some(fields)) => {
                    Trouble::Lost(server_error(part.participant.shard, fields))
                }
                (Ok(_), None) => continue,
            };
            trouble.get_or_insert(found);
        }
        if let Some(trouble) = trouble {
            return Err(told_apart(trouble, reason));
        }
        match reason {
            AllReason::Rows(rows) => {
                still_placed(parts, (rows, topology)).await?;
                count_together(parts, held);
                Ok(())
            }
            AllReason::OmniWrite
            | AllReason::Ddl
            | AllReason::Placement
            | AllReason::Read
            | AllReason::Change => agree(parts),
        }
    }

    /// What cuts the data into rows and finds their shards.
    fn placing(
        &self,
        asked: &Asked<'_>,
        (rows, topology): (Rows, &Arc<Topology>),
        parts: &[Part],
        held: &BytesMut,
    ) -> Result<Spread, Fault> {
        let internal = |why: &str| Fault::Internal {
            why: why.to_owned(),
        };
        let copy = asked
            .statement()
            .and_then(|statement| statement.copy_in.as_deref())
            .ok_or_else(|| internal("rows of a statement that copies none"))?;
        let table = topology
            .sharded
            .get(rows.table)
            .ok_or_else(|| internal("a rule that is not there"))?;
        let first = parts.first().map(|part| &*part.participant.lease);
        let first = first.ok_or_else(|| internal("a COPY on no shard"))?;
        let encoding = encoding_of(copy, setting(first, "client_encoding"));
        if copy.format != CopyFormat::Binary && !is_plain(encoding) {
            return Err(Fault::Refused {
                what: format!("COPY into sharded table \"{}\" in {encoding}", table.table),
                why: "bytes of its characters look like delimiters".to_owned(),
                hint: Some("SET client_encoding = 'UTF8'".to_owned()),
            });
        }
        let announced = announced(held).ok_or_else(|| internal("no answer to a COPY"))?;
        if announced != (copy.format == CopyFormat::Binary, rows.columns) {
            return Err(changed_columns(&table.table));
        }
        let version = setting(first, "server_version").unwrap_or_default();
        let major = version.split(|c: char| !c.is_ascii_digit()).next();
        let major: u32 = major
            .and_then(|major| major.parse().ok())
            .unwrap_or_default();
        let dialect = Dialect {
            utf8: is_utf8(encoding),
            csv_marker: major < CSV_WITHOUT_MARKER,
        };
        let keyed = Keyed {
            table: table.table.clone(),
            column: table.column.clone(),
            place: rows.place,
            data_type: table.rule.data_type,
            max_length: table.max_length,
        };
        Ok(Spread::Rows(Box::new(Placing::new(
            Splitter::new(copy, keyed, dialect),
            rows,
            self.cluster.clone(),
            topology.clone(),
        ))))
    }
}

/// Ends a COPY that was begun and for which there will be no data.
pub(super) async fn give_up(parts: &mut [Part], extended: bool) {
    let waiting = |part: &&mut Part| part.progress == Progress::CopyIn;
    let mut waiting: Vec<_> = parts.iter_mut().filter(waiting).collect();
    let mut takers: Vec<_> = waiting.iter_mut().map(|part| taker(part, false)).collect();
    refuse(
        &mut takers,
        "the statement failed on another shard",
        extended,
    )
    .await;
    drop(takers);
    for part in waiting {
        let conn = &mut part.participant.lease;
        if let Err(Trouble::Lost(fault)) =
            forward::drive(conn, &mut part.script, &mut Sink::Nowhere).await
        {
            tracing::debug!(shard = %part.participant.shard, %fault, "a COPY did not end");
        }
    }
}

/// The servers' ends. Of what is the same everywhere the client hears shard 0 only.
fn takers(parts: &mut [Part], alike: bool) -> impl Iterator<Item = Taker<'_>> {
    let parts = parts.iter_mut().enumerate();
    parts.map(move |(nth, part)| taker(part, nth == 0 || !alike))
}

fn taker(part: &mut Part, is_heard: bool) -> Taker<'_> {
    Taker {
        shard: part.participant.shard,
        conn: &mut part.participant.lease,
        script: &mut part.script,
        is_heard,
    }
}

fn setting<'a>(conn: &'a Conn, name: &str) -> Option<&'a str> {
    conn.parameters().get(name).map(String::as_str)
}

/// The columns of a table are not those by which its rows would be placed.
fn changed_columns(table: &str) -> Fault {
    Fault::Refused {
        what: format!("COPY into sharded table \"{table}\""),
        why: "its columns have just changed, and the key might be another one of them".to_owned(),
        hint: Some("Try again, or name the columns.".to_owned()),
    }
}

/// Of the texts that are copied. Those in binary come through the receive functions of their
/// types, which know of the client's encoding only.
fn encoding_of<'a>(copy: &'a CopyIn, client: Option<&'a str>) -> &'a str {
    let option = copy.encoding.as_deref();
    let option = option.filter(|_| copy.format != CopyFormat::Binary);
    option.or(client).unwrap_or_default()
}

fn is_utf8(encoding: &str) -> bool {
    let letters = encoding.chars().filter(char::is_ascii_alphanumeric);
    let name: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    matches!(name.as_str(), "utf8" | "unicode")
}

/// Whether a server expects binary data, and of how many columns.
fn announced(held: &[u8]) -> Option<(bool, usize)> {
    let mut messages = frame::frames(held).flatten();
    let (_, body) = messages.find(|(tag, _)| *tag == tag::COPY_IN)?;
    let [format, high, low, ..] = body else {
        return None;
    };
    Some((*format == 1, usize::from(u16::from_be_bytes([*high, *low]))))
}

fn is_looked_up(strategy: &Strategy) -> bool {
    matches!(
        strategy,
        Strategy::LookupQuery { .. } | Strategy::WholeMap { .. }
    )
}

/// A server counts the lines that it was sent.
fn told_apart(trouble: Trouble, reason: AllReason) -> Trouble {
    match (trouble, reason) {
        (Trouble::Lost(Fault::Node(mut error)), AllReason::Rows(_)) if !error.node.is_empty() => {
            let contexts = error.more.iter_mut().filter(|(code, _)| *code == b'W');
            for (_, text) in contexts.filter(|(_, text)| text.starts_with("COPY ")) {
                *text = format!("{text}\nlines of the rows for {}", error.node);
            }
            Trouble::Lost(Fault::Node(error))
        }
        (trouble, _) => trouble,
    }
}

/// A row that moved to another shard since it was looked up would be lost to its readers.
async fn still_placed(
    parts: &mut [Part],
    (rows, topology): (Rows, &Topology),
) -> Result<(), Trouble> {
    let table = topology.sharded.get(rows.table);
    if !table.is_some_and(|table| is_looked_up(&table.rule.strategy)) {
        return Ok(());
    }
    for part in parts {
        let shard = usize::from(part.participant.shard.0);
        let Some(session) = topology.shards.get(shard).map(|nodes| nodes.epoch) else {
            continue;
        };
        // Whatever snapshot the transaction has.
        let sql = "SELECT pgdog.placement_epoch()";
        let answer = match part.participant.lease.simple(sql).await {
            Ok(rows) => rows,
            Err(ServerError::Fault(fault)) => return Err(Trouble::Lost(fault)),
            Err(ServerError::Sql(fields)) => {
                return Err(Trouble::Lost(server_error(part.participant.shard, &fields)));
            }
        };
        let epoch = answer.into_iter().flatten().flatten().next();
        match epoch.and_then(|text| text.parse().ok()) {
            Some(node) if node > session => {
                return Err(Trouble::Lost(Fault::StaleTopology { session, node }));
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// One answer for the rows of all shards.
fn count_together(parts: &[Part], held: &mut BytesMut) {
    let counts = parts.iter().filter_map(|part| part.script.tags.last());
    let total: u64 = counts.filter_map(|tag| answer::affected_rows(tag)).sum();
    let mut out = BytesMut::with_capacity(held.len());
    for (tag, body) in frame::frames(held).flatten() {
        match tag {
            tag::COMMAND_COMPLETE => backend::command_complete(&format!("COPY {total}"), &mut out),
            _ => frame::put(&mut out, tag, |out| out.extend_from_slice(body)),
        }
    }
    *held = out;
}

/// One answer for the rows that all shards have changed: each statement's count is their sum.
fn add_up(parts: &[Part], held: &mut BytesMut) -> Result<(), Trouble> {
    let statements = parts.first().map_or(0, |part| part.script.tags.len());
    if parts
        .iter()
        .any(|part| part.script.tags.len() != statements)
    {
        return agree(parts);
    }
    let mut out = BytesMut::with_capacity(held.len());
    let mut nth = 0;
    for (tag, body) in frame::frames(held).flatten() {
        if tag != tag::COMMAND_COMPLETE {
            frame::put(&mut out, tag, |out| out.extend_from_slice(body));
            continue;
        }
        let mut tags = parts.iter().filter_map(|part| part.script.tags.get(nth));
        let counts = tags.clone().map(|tag| answer::affected_rows(tag));
        match (tags.next(), counts.sum::<Option<u64>>()) {
            (Some(first), Some(total)) if first.starts_with(['U', 'D']) => {
                let verb = first.split(' ').next().unwrap_or_default();
                backend::command_complete(&format!("{verb} {total}"), &mut out);
            }
            _ => frame::put(&mut out, tag, |out| out.extend_from_slice(body)),
        }
        nth += 1;
    }
    *held = out;
    Ok(())
}

/// All shards must have done the same.
fn agree(parts: &[Part]) -> Result<(), Trouble> {
    let Some(first) = parts.first() else {
        return Ok(());
    };
    if parts
        .iter()
        .all(|part| part.script.tags == first.script.tags)
    {
        return Ok(());
    }
    let answers = parts.iter().map(|part| {
        (
            part.participant.shard,
            part.script.tags.last().cloned().unwrap_or_default(),
        )
    });
    Err(Trouble::Lost(Fault::ShardsDisagree {
        what: "the rows of a statement that runs on all of them".to_owned(),
        answers: answers.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::parse;

    #[test]
    fn the_encoding_option_counts_for_texts_only() {
        let encoding = |options: &str| {
            let plan = parse(&format!("COPY t FROM STDIN ({options})")).expect("well formed");
            let copy = plan.statements[0].copy_in.clone().expect("a COPY");
            encoding_of(&copy, Some("WIN1251")).to_owned()
        };
        assert_eq!(encoding("FORMAT csv, ENCODING 'UTF8'"), "UTF8");
        assert_eq!(encoding("FORMAT csv"), "WIN1251");
        assert_eq!(encoding("FORMAT binary, ENCODING 'UTF8'"), "WIN1251");
    }
}
