//! One route for a text of several statements.

use crate::nodes::topology::Topology;
use crate::plan::{Kind, Statement};

use super::{
    Access, AllReason, LookupKey, NoParams, Outcome, Route, SessionView, Target, refuse, route,
};

/// One route for the statements of one simple query: all on one shard, or all on every shard.
/// Transaction control and settings go along with the others.
pub fn route_all(
    statements: &[Statement],
    topology: &Topology,
    session: &SessionView<'_>,
) -> Outcome {
    let mut wanted: Vec<LookupKey> = Vec::new();
    let mut merged: Option<Route> = None;
    let mut first: Option<Route> = None;
    let mut moved = false;
    for statement in statements {
        let routed = match route(statement, &NoParams, topology, session) {
            Outcome::Ready(routed) => routed,
            Outcome::Refused(fault) => return Outcome::Refused(fault),
            Outcome::NeedLookup(keys) => {
                wanted.extend(keys);
                continue;
            }
        };
        if is_neutral(&statement.kind) {
            moved |= topology.shards.len() > 1 && changes_routes(&statement.kind);
            first.get_or_insert(routed);
            continue;
        }
        if moved {
            return refuse::mixed_text();
        }
        let both = match merged.take() {
            None => Some(routed),
            Some(before) => merge(before, routed),
        };
        if both.is_none() && wanted.is_empty() {
            return refuse::mixed_text();
        }
        merged = both;
    }
    if !wanted.is_empty() {
        return Outcome::NeedLookup(wanted);
    }
    let empty = || Route {
        target: Target::Any,
        access: Access::Read,
        reason: "empty query".into(),
    };
    Outcome::Ready(merged.or(first).unwrap_or_else(empty))
}

fn merge(before: Route, next: Route) -> Option<Route> {
    let target = match (before.target, next.target) {
        (Target::Any, Target::Shard(shard)) | (Target::Shard(shard), Target::Any) => {
            Target::Shard(shard)
        }
        (Target::All(AllReason::Change), Target::All(other))
        | (Target::All(other), Target::All(AllReason::Change))
            if other != AllReason::Change =>
        {
            return None;
        }
        (one, other) if one == other => one,
        // Each is merged by itself.
        (Target::All(AllReason::Rows(_) | AllReason::Read), _)
        | (_, Target::All(AllReason::Rows(_) | AllReason::Read)) => return None,
        (Target::All(one), Target::All(other)) => Target::All(stronger(one, other)),
        _ => return None,
    };
    let access = match (before.access, next.access) {
        (Access::Read, Access::Read) => Access::Read,
        (Access::Write, _) | (_, Access::Write) => Access::Write,
    };
    let reason = if matches!(target, Target::Shard(_)) {
        next.reason
    } else {
        before.reason
    };
    Some(Route {
        target,
        access,
        reason,
    })
}

/// The one whose precautions include the other's.
fn stronger(one: AllReason, other: AllReason) -> AllReason {
    let rank = |reason| match reason {
        AllReason::Placement => 3,
        AllReason::OmniWrite => 2,
        AllReason::Ddl => 1,
        // Never merged with others.
        AllReason::Read | AllReason::Change | AllReason::Rows(_) => 0,
    };
    match rank(one) >= rank(other) {
        true => one,
        false => other,
    }
}

/// Statements that go along with whatever stands beside them.
fn is_neutral(kind: &Kind) -> bool {
    match kind {
        Kind::Begin { .. }
        | Kind::Commit { .. }
        | Kind::Rollback { .. }
        | Kind::Savepoint(_)
        | Kind::RollbackTo(_)
        | Kind::Release(_)
        | Kind::Set { .. }
        | Kind::SetServerTimestamp(_)
        | Kind::Reset(_)
        | Kind::Show(_)
        | Kind::Current(_)
        | Kind::Discard { .. }
        | Kind::ExplainRoute => true,
        Kind::Read
        | Kind::Write
        | Kind::Placement
        | Kind::Ddl { .. }
        | Kind::CopyIn
        | Kind::CopyOut
        | Kind::TwoPhase
        | Kind::Session => false,
    }
}

/// Settings after which `session` no longer tells how the next statement is routed.
fn changes_routes(kind: &Kind) -> bool {
    match kind {
        Kind::Set { name, .. } | Kind::Reset(Some(name)) => matches!(
            name.as_str(),
            "search_path" | "role" | "session_authorization" | "pgdog.shard" | "pgdog.sharding_key"
        ),
        Kind::Reset(None) | Kind::Discard { .. } => true,
        Kind::Begin { .. }
        | Kind::Commit { .. }
        | Kind::Rollback { .. }
        | Kind::Savepoint(_)
        | Kind::RollbackTo(_)
        | Kind::Release(_)
        | Kind::SetServerTimestamp(_)
        | Kind::Show(_)
        | Kind::Current(_)
        | Kind::ExplainRoute
        | Kind::Read
        | Kind::Write
        | Kind::Placement
        | Kind::Ddl { .. }
        | Kind::CopyIn
        | Kind::CopyOut
        | Kind::TwoPhase
        | Kind::Session => false,
    }
}
