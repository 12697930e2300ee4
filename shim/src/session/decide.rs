//! Which shard a statement goes to: the router, fed with what only the database knows.

use std::sync::Arc;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::lookup;
use pgdog_core::placement::{LookupResult, Strategy};

use super::Session;
use super::faults;
use super::forward::{self, Progress, Sink, Trouble};
use super::params::literal;
use super::prepared::Held;
use super::steps::Asked;
use super::tx::identifier;
use super::words::{Stateful, stateful};
use crate::nodes::{self, Topology};
use crate::plan::{self, Kind, Planned, Statement};
use crate::proto::{answer, frame, frontend};
use crate::route::{self, Access, LookupKey, Outcome, Route, SessionView, Target, route};
use crate::server::{Ahead, Conn, ServerError};

/// Rounds of lookups that one statement may need.
const ROUNDS: usize = 4;

impl Session<'_> {
    /// Takes the configuration of now.
    pub(super) fn take_settings(&mut self) {
        if self.settings.number != self.services.settings_number() {
            self.settings = self.services.settings.load_full();
        }
    }

    /// The shard for statements that any shard can answer: the same one all session long.
    pub(super) fn home(&self, topology: &Topology) -> Result<ShardNumber, Fault> {
        let count = u64::try_from(topology.shards.len()).unwrap_or(1);
        match count {
            0 => Err(Fault::NoNode {
                shard: ShardNumber(0),
                role: "primary",
            }),
            count => Ok(ShardNumber((self.seen.session_id % count) as u16)),
        }
    }

    /// What a simple query is. Where everything is in one place, values of keys do not matter.
    pub(super) fn planned(&mut self, sql: &str, undivided: bool) -> Planned {
        let plans = &self.services.plans;
        self.last_read.all_alike = false;
        match undivided {
            true => plans.get_alike(sql, &mut self.last_read.shape),
            false => plans.get_or_parse(sql),
        }
    }

    /// Where a statement goes. One that is only parsed or described goes anywhere.
    ///
    /// # Errors
    /// It is refused, or a lookup failed.
    pub(super) async fn decide(
        &mut self,
        asked: &Asked<'_>,
        topology: &Arc<Topology>,
    ) -> Result<Route, Fault> {
        let Some(statement) = asked.statement().filter(|_| asked.leads()) else {
            return Ok(Route {
                target: Target::Any,
                access: Access::Write,
                reason: "no statement to route".into(),
            });
        };
        if let Asked::Extended(step) = asked
            && let Some(shard) = step.resumes
        {
            let access = match statement.kind {
                Kind::Read => Access::Read,
                _ => Access::Write,
            };
            return Ok(Route {
                target: Target::Shard(shard),
                access,
                reason: "portal on this connection".into(),
            });
        }
        let exact = match statement.alike && !topology.is_undivided() {
            // There was one place for everything a moment ago; now values count.
            true => self.services.plans.get_or_parse(asked.sql()).ok(),
            false => None,
        };
        let exact = exact.as_deref().and_then(|plan| plan.statements.first());
        let statement = exact.unwrap_or(statement);
        let executed = self.executed(asked);
        self.decide_for((statement, asked.sql(), asked.params()), executed, topology)
            .await
    }

    /// As [`Session::decide`], for a statement that is given as such.
    ///
    /// # Errors
    /// As [`Session::decide`].
    pub(super) async fn decide_text(
        &mut self,
        what: (&Statement, &str, &(dyn route::Params + Sync)),
        topology: &Arc<Topology>,
    ) -> Result<Route, Fault> {
        let executed = self.names.executed_by(what.0).cloned();
        self.decide_for(what, executed, topology).await
    }

    async fn decide_for(
        &mut self,
        (statement, sql, params): (&Statement, &str, &(dyn route::Params + Sync)),
        executed: Option<Held>,
        topology: &Arc<Topology>,
    ) -> Result<Route, Fault> {
        if let Some(route) = self.where_its_state_is(statement, sql) {
            return Ok(route);
        }
        let found = match (executed, &statement.prepared) {
            (Some(held), Some(plan::Prepared::Execute { arguments, .. }))
                if matches!(statement.kind, Kind::Session | Kind::Read) =>
            {
                let arguments = route::Arguments(arguments);
                let inner = held.plan().and_then(|plan| plan.statements.first());
                let inner = inner.unwrap_or(statement);
                self.route_with_lookups(inner, &arguments, topology).await?
            }
            _ => self.route_with_lookups(statement, params, topology).await?,
        };
        Ok(match found.target {
            // The tables of the extension tell about the whole cluster on shard 0 only.
            Target::Any if names_extension(statement) => Route {
                target: Target::Shard(ShardNumber(0)),
                ..found
            },
            Target::Any | Target::Shard(_) | Target::All(_) => found,
        })
    }

    /// What only makes sense where a cursor is.
    fn where_its_state_is(&self, statement: &Statement, sql: &str) -> Option<Route> {
        if statement.kind != Kind::Session {
            return None;
        }
        let shard = match stateful(sql) {
            Stateful::Cursor(name) => {
                let portal = self.names.portals.get(&name);
                match (portal.and_then(|portal| portal.shard), self.pin) {
                    (Some(shard), _) | (None, Some((shard, _))) => shard,
                    (None, None) => return None,
                }
            }
            Stateful::Keep(_)
            | Stateful::Declare { .. }
            | Stateful::Execute
            | Stateful::Nothing => return None,
        };
        Some(Route {
            target: Target::Shard(shard),
            access: Access::Write,
            reason: "state on this connection".into(),
        })
    }

    /// The router's answer for a statement.
    ///
    /// # Errors
    /// As [`Session::decide`].
    pub(super) async fn route_with_lookups(
        &mut self,
        statement: &Statement,
        params: &(dyn route::Params + Sync),
        topology: &Arc<Topology>,
    ) -> Result<Route, Fault> {
        let mut lookups: Vec<(LookupKey, ShardNumber)> = Vec::new();
        for _ in 0..ROUNDS {
            let own = self.params.own();
            let view = SessionView {
                search_path: self.params.search_path(),
                shard: own.shard,
                sharding_key: own.sharding_key.as_deref(),
                lookups: &lookups,
                temporary: &self.temporary,
            };
            let keys = match route(statement, params, topology, &view) {
                Outcome::Ready(found) => return Ok(found),
                Outcome::Refused(fault) => return Err(fault),
                Outcome::NeedLookup(keys) => keys,
            };
            let shards = self.look_up(&keys, topology).await?;
            lookups.extend(keys.into_iter().zip(shards));
        }
        Err(Fault::Internal {
            why: "routing asks for ever more lookups".to_owned(),
        })
    }

    async fn look_up(
        &mut self,
        keys: &[LookupKey],
        topology: &Arc<Topology>,
    ) -> Result<Vec<ShardNumber>, Fault> {
        if self.has_written_omni() {
            let mut shards = Vec::with_capacity(keys.len());
            for key in keys {
                shards.push(self.look_up_inside(key, topology).await?);
            }
            return Ok(shards);
        }
        let keys: Vec<_> = keys
            .iter()
            .map(|key| nodes::LookupKey {
                rule: key.rule,
                key: key.key.clone(),
            })
            .collect();
        self.cluster.lookup_many(topology, &keys).await
    }

    /// What is wrong with a table that is not declared: perhaps there is none.
    pub(super) async fn undeclared(&mut self, asked: &Asked<'_>, fault: Fault) -> Fault {
        let (Fault::UndeclaredTable { table }, Some(statement)) = (&fault, asked.statement())
        else {
            return fault;
        };
        let mut named = statement.relations.iter().filter(|one| one.name == *table);
        let Some(relation) = named.next() else {
            return fault;
        };
        let parts = relation.schema.iter().chain([&relation.name]);
        let parts: Vec<_> = parts.map(String::as_str).collect();
        let quoted: Vec<_> = parts.iter().map(|part| identifier(part)).collect();
        let missing = format!(
            "SELECT pg_catalog.to_regclass({}) IS NULL",
            literal(&quoted.join("."))
        );
        match self.ask_home(&missing).await.as_deref() {
            Ok("t") => Fault::UndefinedTable {
                table: parts.join("."),
            },
            Ok(_) | Err(_) => fault,
        }
    }

    /// The only value of a query that any shard can answer, as this client would have it.
    async fn ask_home(&mut self, sql: &str) -> Result<String, ServerError> {
        let topology = self.cluster.topology();
        let home = self.home(&topology)?;
        let mut participant = match self.participants.remove(&home) {
            Some(participant) => participant,
            None => self.pick_primary(home, &topology).await?.participant,
        };
        let rows = participant.lease.simple(sql).await;
        match self.tx.is_open() && participant.begun {
            true => drop(self.participants.insert(home, participant)),
            false => self.give_back(participant),
        }
        let value = rows?.into_iter().flatten().flatten().next();
        Ok(value.unwrap_or_default())
    }

    pub(super) fn has_written_omni(&self) -> bool {
        self.participants
            .get(&ShardNumber(0))
            .is_some_and(|first| first.wrote_omni)
    }

    /// A lookup on the transaction's own connection: it sees the rows that the transaction wrote,
    /// and nobody else gets its answer.
    async fn look_up_inside(
        &mut self,
        key: &LookupKey,
        topology: &Topology,
    ) -> Result<ShardNumber, Fault> {
        let table = topology
            .sharded
            .get(key.rule)
            .ok_or_else(|| Fault::Internal {
                why: "a rule that is not there".to_owned(),
            })?;
        let Strategy::LookupQuery { query, result } = &table.rule.strategy else {
            return Err(Fault::Refused {
                what: "a lookup by a whole map in a transaction that wrote it".to_owned(),
                why: "the map that is loaded does not have the new rows".to_owned(),
                hint: Some("Commit first, or declare the table with lookup_query.".to_owned()),
            });
        };
        let participant =
            self.participants
                .get_mut(&ShardNumber(0))
                .ok_or_else(|| Fault::Internal {
                    why: "no transaction on shard 0".to_owned(),
                })?;
        let rows = ask(&mut participant.lease, query, &key.key).await?;
        fresh(&mut participant.lease).await?;
        let rows: Vec<_> = rows.iter().map(Option::as_deref).collect();
        let asked = lookup::Asked {
            table: &table.table,
            key: &key.key,
        };
        let shards = u16::try_from(topology.shards.len()).unwrap_or(u16::MAX);
        debug_assert!(matches!(
            result,
            LookupResult::Shard | LookupResult::Value | LookupResult::Mapped(_)
        ));
        lookup::interpret(&table.rule, asked, &rows, shards)
    }
}

/// What was just read is of now. A snapshot that is older than a change of placement answers for a
/// map that was, whatever the gate has told this transaction since.
async fn fresh(conn: &mut Conn) -> Result<(), Fault> {
    let sql = "SELECT t.placement_epoch, pgdog.placement_epoch() FROM pgdog.topology t";
    let rows = conn.simple(sql).await.map_err(|error| match error {
        ServerError::Fault(fault) => fault,
        ServerError::Sql(fields) => faults::from_node(&conn.endpoint().to_string(), &fields),
    })?;
    let mut epochs = rows
        .into_iter()
        .flatten()
        .flatten()
        .map(|text| text.parse());
    match (epochs.next(), epochs.next()) {
        (Some(Ok(session)), Some(Ok(node))) if session < node => {
            Err(Fault::StaleTopology { session, node })
        }
        _ => Ok(()),
    }
}

/// Runs a query of one parameter and one column.
async fn ask(conn: &mut Conn, sql: &str, key: &str) -> Result<Vec<Option<String>>, Fault> {
    use super::script::{Item, Script};
    let mut out = bytes::BytesMut::new();
    frontend::parse("", sql, &[], &mut out);
    frontend::bind("", "", &[Some(key)], &mut out);
    frontend::execute("", 0, &mut out);
    frontend::sync(&mut out);
    conn.send_ahead(&Ahead::new(), &out).await?;
    let mut script = Script::default();
    [
        Item::Parse { shown: false },
        Item::Bind,
        Item::Execute,
        Item::Sync,
    ]
    .into_iter()
    .for_each(|item| script.push(item));
    let mut held = bytes::BytesMut::new();
    match forward::drive(conn, &mut script, &mut Sink::Buffer(&mut held)).await {
        Ok(Progress::Done) => {}
        Ok(Progress::CopyIn) | Err(Trouble::Gone(_)) => {
            return Err(Fault::ProtocolViolation {
                why: "unexpected answer to a lookup".into(),
            });
        }
        Err(Trouble::Lost(fault)) => return Err(fault),
    }
    if let Some(fields) = script.error {
        return Err(faults::from_node(&conn.endpoint().to_string(), &fields));
    }
    let violation = |error: crate::proto::ProtocolError| Fault::ProtocolViolation {
        why: error.to_string(),
    };
    let mut rows = Vec::new();
    for message in frame::frames(&held) {
        let (tag, body) = message.map_err(violation)?;
        if tag == crate::proto::backend::tag::DATA_ROW {
            rows.push(
                answer::text_row(body)
                    .map_err(violation)?
                    .into_iter()
                    .next()
                    .flatten(),
            );
        }
    }
    Ok(rows)
}

fn names_extension(statement: &Statement) -> bool {
    statement
        .relations
        .iter()
        .any(|relation| relation.schema.as_deref() == Some("pgdog"))
}
