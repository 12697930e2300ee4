//! EXPLAIN (PGDOG): where a statement would go, and why. What runs is never refused here.

use std::sync::Arc;

use pgdog_core::fault::Fault;

use super::super::dispatch::is_control;
use super::super::gather::unsplit;
use super::super::local::Local;
use super::super::steps::Asked;
use super::super::{Session, faults};
use crate::nodes::Topology;
use crate::plan::{Kind, Prepared, Statement, explained_text};
use crate::route::{Access, AllReason, Route, Target};

impl Session<'_> {
    /// See the module.
    ///
    /// # Errors
    /// The statement would be refused.
    pub(super) async fn explain(&mut self, asked: &Asked<'_>) -> Result<Local, Fault> {
        // A plan of another text, which differs in its constants, would tell of others' keys.
        let plan = self.services.plans.get_or_parse(asked.sql()).ok();
        let statement = plan.as_deref().and_then(|plan| plan.statements.first());
        let inner = statement.and_then(|statement| statement.explained.as_deref());
        let inner = inner.ok_or_else(|| Fault::Internal {
            why: "nothing to explain".into(),
        })?;
        let sql = explained_text(asked.sql());
        let lines = match self.explain_here(inner, sql)? {
            Some(lines) => lines,
            None => self.explain_routed(asked, (inner, sql)).await?,
        };
        Ok(Local {
            columns: vec!["QUERY PLAN".to_owned()],
            rows: lines.into_iter().map(|line| vec![Some(line)]).collect(),
            tag: "EXPLAIN".to_owned(),
        })
    }

    /// What is not routed: the shim answers it, or keeps it for the servers that will need it.
    fn explain_here(
        &mut self,
        statement: &Statement,
        sql: &str,
    ) -> Result<Option<Vec<String>>, Fault> {
        let asked = Asked::Simple {
            sql,
            statement: Some(statement),
        };
        let (target, reason) = match (&statement.kind, &statement.prepared) {
            (Kind::Begin { .. }, _) => (
                "pgdog; a server begins with its first statement".to_owned(),
                "transaction",
            ),
            (kind, _) if is_control(kind) => (self.taking_part(), "transaction"),
            (kind, _) if self.is_own(kind, &asked) => ("pgdog".to_owned(), own_reason(kind)),
            (_, Some(Prepared::Prepare { .. })) if !self.names.own => (
                format!("shard {}, and each that is to run it", self.keeper()?),
                "prepared statement",
            ),
            (_, Some(Prepared::Execute { name, .. }))
                if !self.names.own && self.names.executed_by(statement).is_none() =>
            {
                let text = format!("prepared statement \"{name}\" does not exist");
                return Err(faults::fault("26000", text));
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![
            format!("Target: {target}"),
            format!("Reason: {reason}"),
        ]))
    }

    /// The shards at which the open transaction has begun.
    fn taking_part(&self) -> String {
        let shards = self.participants.keys().map(ToString::to_string);
        let shards: Vec<_> = shards.collect();
        match shards.as_slice() {
            [] => "pgdog; no server takes part in the transaction".to_owned(),
            [shard] => format!("shard {shard}"),
            shards => format!("shards {}", shards.join(", ")),
        }
    }

    async fn explain_routed(
        &mut self,
        asked: &Asked<'_>,
        (inner, sql): (&Statement, &str),
    ) -> Result<Vec<String>, Fault> {
        let mut topology = self.cluster.topology();
        let what = (inner, sql, asked.params());
        let mut decided = self.decide_text(what, &topology).await;
        if matches!(decided, Err(Fault::UndeclaredTable { .. }))
            && let Ok(newer) = self.cluster.refresh().await
        {
            topology = newer;
            decided = self.decide_text(what, &topology).await;
        }
        let route = match decided {
            Ok(route) => route,
            Err(fault) => {
                let asked = Asked::Simple {
                    sql,
                    statement: Some(inner),
                };
                return Err(self.undeclared(&asked, fault).await);
            }
        };
        let target = self.target((inner, sql), &route, &topology)?;
        let role = match (route.access, self.wants_replica_for(Some(inner), &route)) {
            (Access::Read, true) => "replica",
            (Access::Read, false) | (Access::Write, _) => "primary",
        };
        Ok(vec![
            format!("Target: {target}"),
            format!("Role: {role}"),
            format!("Floor: {}", self.told_floor()),
            format!("Reason: {}", route.reason),
            format!("Topology: version {}", topology.version),
        ])
    }

    fn target(
        &self,
        (inner, sql): (&Statement, &str),
        route: &Route,
        topology: &Arc<Topology>,
    ) -> Result<String, Fault> {
        let shards = topology.shards.len();
        let non_transactional = Kind::Ddl {
            transactional: false,
        };
        let how = match route.target {
            Target::Shard(shard) => return Ok(format!("shard {shard}")),
            Target::Any => return Ok(format!("any shard (home: {})", self.anywhere(topology)?)),
            Target::All(_) if shards == 1 => return Ok("shard 0".to_owned()),
            Target::All(AllReason::Read) => {
                let split = self.services.splits.get_or_split(sql, inner.params);
                let how = split.map_err(|why| unsplit(&why))?.how();
                format!("rows {how}")
            }
            Target::All(AllReason::Rows(_)) => "each row to the shard of its key".to_owned(),
            Target::All(AllReason::Ddl) if inner.kind == non_transactional => {
                "one after the other".to_owned()
            }
            Target::All(AllReason::Change) => "one after the other".to_owned(),
            Target::All(AllReason::OmniWrite | AllReason::Ddl | AllReason::Placement) => {
                "shard 0 first".to_owned()
            }
        };
        Ok(format!("all {shards} shards, {how}"))
    }

    /// What reads ask of a replica.
    fn told_floor(&self) -> String {
        let own = self.params.own();
        let position = (!own.min_lsn.is_empty()).then(|| own.min_lsn.to_string());
        let moment = own
            .min_commit_timestamp
            .map(|moment| format!("commits up to {moment}"));
        let floors: Vec<_> = position.into_iter().chain(moment).collect();
        match floors.is_empty() {
            true => "none".to_owned(),
            false => floors.join(", "),
        }
    }
}

/// Why the shim answers this kind of statement itself.
fn own_reason(kind: &Kind) -> &'static str {
    match kind {
        Kind::ExplainRoute => "explain",
        Kind::Session => "prepared statement",
        Kind::Discard { .. } => "session state",
        _ => "setting",
    }
}
