//! The decision: which shard, which kind of node, and why.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use crate::nodes::topology::Topology;
use crate::plan::{Hint, Kind, Prepared, RoleHint, Statement};

use super::bind::{Binder, Bound, is_insert};
use super::class::{Class, class, is_opaque};
use super::{Access, AllReason, Outcome, Params, Route, SessionView, Target, refuse};

const FIRST: ShardNumber = ShardNumber(0);

/// The reason when rows may be on all shards.
const EVERY_SHARD: &str = "rows on every shard";

/// The reason when there is no choice.
pub const SINGLE_SHARD: &str = "single shard";

/// Where one statement goes, and why.
///
/// `NeedLookup` asks the caller to resolve keys and call again with them in `session.lookups`.
pub fn route(
    statement: &Statement,
    params: &dyn Params,
    topology: &Topology,
    session: &SessionView<'_>,
) -> Outcome {
    let access = access(statement);
    if let Some(route) = without_tables(statement, access, topology) {
        return route;
    }
    if runs_as_it_is(statement, topology) {
        return ready(Target::Shard(FIRST), access, SINGLE_SHARD);
    }
    let relations = statement.relations.iter();
    let classes: Vec<Class> = relations
        .map(|relation| class(relation, topology, session))
        .collect();
    let binder = Binder::new(statement, &classes, params, (topology, session));
    Decision {
        statement,
        classes: &classes,
        topology,
        access,
        binder,
    }
    .decide(session)
}

/// On one shard only definitions and writes to omnisharded tables need a closer look.
fn runs_as_it_is(statement: &Statement, topology: &Topology) -> bool {
    let writes = || statement.relations.iter().any(|relation| relation.written);
    topology.shards.len() == 1
        && !matches!(statement.kind, Kind::Ddl { .. })
        && (topology.omnisharded.is_empty() || !writes())
}

fn ready(target: Target, access: Access, reason: impl Into<Cow<'static, str>>) -> Outcome {
    Outcome::Ready(Route {
        target,
        access,
        reason: reason.into(),
    })
}

fn access(statement: &Statement) -> Access {
    match &statement.kind {
        _ if statement.role == Some(RoleHint::Primary) => Access::Write,
        Kind::CopyOut if statement.relations.iter().any(|relation| relation.written) => {
            Access::Write
        }
        Kind::Read
        | Kind::CopyOut
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
        | Kind::ExplainRoute
        | Kind::Begin {
            read_only: Some(true),
        } => Access::Read,
        Kind::Begin {
            read_only: None | Some(false),
        }
        | Kind::Write
        | Kind::Placement
        | Kind::Ddl { .. }
        | Kind::CopyIn
        | Kind::TwoPhase
        | Kind::Session => Access::Write,
    }
}

/// Kinds whose route needs no look at tables.
fn without_tables(statement: &Statement, access: Access, topology: &Topology) -> Option<Outcome> {
    if let Some(Hint::Invalid(text)) = &statement.hint {
        return Some(Outcome::Refused(Fault::BadParameter {
            name: "hint".to_owned(),
            value: text.clone(),
            why: "expected one shard number or one sharding key".to_owned(),
        }));
    }
    let any = |reason| Some(ready(Target::Any, access, reason));
    match &statement.kind {
        Kind::Begin { .. }
        | Kind::Commit { .. }
        | Kind::Rollback { .. }
        | Kind::Savepoint(_)
        | Kind::RollbackTo(_)
        | Kind::Release(_) => any("transaction"),
        Kind::Set { .. }
        | Kind::SetServerTimestamp(_)
        | Kind::Reset(_)
        | Kind::Show(_)
        | Kind::Current(_)
        | Kind::Discard { .. } => any("setting"),
        Kind::ExplainRoute => any("explain"),
        Kind::TwoPhase if topology.shards.len() > 1 => Some(refuse::two_phase()),
        Kind::Placement => Some(ready(
            Target::All(AllReason::Placement),
            access,
            "placement",
        )),
        Kind::Read
        | Kind::Write
        | Kind::Ddl { .. }
        | Kind::CopyIn
        | Kind::CopyOut
        | Kind::TwoPhase
        | Kind::Session => None,
    }
}

/// One statement with its tables told apart.
pub(super) struct Decision<'a> {
    pub(super) statement: &'a Statement,
    pub(super) classes: &'a [Class],
    pub(super) topology: &'a Topology,
    access: Access,
    pub(super) binder: Binder<'a>,
}

impl Decision<'_> {
    fn decide(mut self, session: &SessionView<'_>) -> Outcome {
        let several = self.topology.shards.len() > 1;
        if matches!(self.statement.kind, Kind::Ddl { .. }) {
            return self.definition(several);
        }
        // Omni writes enter the gate even on one shard: there may be two when they are let in.
        let omni = self.first(|class, written| matches!(class, Class::Omni(_)) && written);
        if !several {
            return match omni {
                Some(_) => self.all(AllReason::OmniWrite, "omnisharded write"),
                None => ready(Target::Shard(FIRST), self.access, SINGLE_SHARD),
            };
        }
        let named = match self.named_shard(session) {
            Ok(named) => named,
            Err(outcome) => return outcome,
        };
        if let Some(why) = self.statement.opaque {
            return match named {
                Some((shard, reason)) => ready(Target::Shard(shard), self.access, reason),
                None => refuse::opaque(why),
            };
        }
        if let Some(undeclared) = self.first(|class, _| class == Class::Unlisted) {
            let table = self.name(undeclared).to_owned();
            return match named {
                Some((shard, reason)) => ready(Target::Shard(shard), self.access, reason),
                None => Outcome::Refused(Fault::UndeclaredTable { table }),
            };
        }
        if named.is_none()
            && omni.is_none()
            && !self.has_sharded()
            && let Some(function) = self.opaque_call(session)
        {
            return refuse::opaque_call(function);
        }
        match (omni, self.has_sharded()) {
            (Some(written), _) => self.omni_write(written, session),
            (None, true) if self.statement.kind == Kind::CopyIn => {
                self.copied_rows(named.map(|(shard, _)| shard))
            }
            (None, true) => self.sharded(named),
            (None, false) => self.anywhere(named),
        }
    }

    fn definition(&self, several: bool) -> Outcome {
        if self
            .first(|class, written| class == Class::Temporary && written)
            .is_some()
        {
            return ready(Target::Any, self.access, "temporary table");
        }
        if several {
            let read = self.first(|class, written| matches!(class, Class::Sharded(_)) && !written);
            if let Some(read) = read {
                return refuse::definition_reads(self.name(read));
            }
            if let Some(name) = &self.statement.functions.divergent {
                // The rows of a sharded table are each on one shard: they may differ.
                let filled =
                    self.first(|class, written| matches!(class, Class::Omni(_)) && written);
                if let Some(omni) = filled {
                    return refuse::divergent(self.name(omni), name);
                }
                if self.first(|_, written| !written).is_some() {
                    return refuse::divergent("that is created", name);
                }
            }
        }
        self.all(AllReason::Ddl, "definition")
    }

    /// A write to an omnisharded table: on every shard, if every shard does the same.
    fn omni_write(&self, written: usize, session: &SessionView<'_>) -> Outcome {
        let omni = self.name(written);
        let sharded =
            |wanted: bool| self.first(|class, w| matches!(class, Class::Sharded(_)) && w == wanted);
        if let Some(both) = sharded(true) {
            return refuse::omni_and_sharded(omni, self.name(both));
        }
        if let Some(read) = sharded(false) {
            return refuse::omni_reads(omni, self.name(read), "sharded table");
        }
        let local = [Class::Catalog, Class::Central, Class::Temporary];
        if let Some(read) = self.first(|class, _| local.contains(&class)) {
            return refuse::omni_reads(omni, self.name(read), "the node's own table");
        }
        if let Some(name) = &self.statement.functions.divergent {
            return refuse::divergent(omni, name);
        }
        // Each shard would call it, whichever the client names.
        if let Some(function) = self.opaque_call(session) {
            return refuse::opaque_value(omni, function);
        }
        if let Some(outcome) = self.differing_default() {
            return outcome;
        }
        self.all(AllReason::OmniWrite, "omnisharded write")
    }

    /// Every sharded relation must be bound to the same shard.
    fn sharded(&mut self, named: Option<(ShardNumber, String)>) -> Outcome {
        let mut chosen: Option<(ShardNumber, String, String)> = None;
        let mut refused = None;
        for (index, class) in self.classes.iter().enumerate() {
            let Class::Sharded(table) = *class else {
                continue;
            };
            if let Err(outcome) = self.check_key(index, table, named.is_some()) {
                return outcome;
            }
            let bound = match self.binder.bind(index, table) {
                Ok(bound) => bound,
                Err(fault) => return Outcome::Refused(fault),
            };
            let only = named.as_ref().map(|(shard, _)| *shard);
            if let Err(outcome) = self.check_assigned(index, table, (&bound, only)) {
                return outcome;
            }
            if let Some((shard, _)) = &named {
                if let Err(outcome) = self.check_named(index, *shard, &bound) {
                    return outcome;
                }
                continue;
            }
            match self.single(index, table, bound) {
                Err(outcome) => refused = refused.or(Some(outcome)),
                Ok(None) => {}
                Ok(Some((shard, reason))) => match &chosen {
                    None => chosen = Some((shard, reason, self.name(index).to_owned())),
                    Some((before, _, _)) if *before == shard => {}
                    Some((_, why, table)) => {
                        let second = (self.name(index), reason.as_str());
                        let outcome = refuse::parts_disagree((table, why), second);
                        refused = refused.or(Some(outcome));
                    }
                },
            }
        }
        if !self.binder.wanted.is_empty() {
            return Outcome::NeedLookup(std::mem::take(&mut self.binder.wanted));
        }
        match (refused, named, chosen) {
            (_, Some((shard, reason)), _) => ready(Target::Shard(shard), self.access, reason),
            (Some(outcome), None, _) => match self.scattered() {
                Ok(()) => self.all(AllReason::Read, EVERY_SHARD),
                Err(why) => why.unwrap_or_else(|| self.changed(outcome)),
            },
            (None, None, Some((shard, reason, _))) => {
                ready(Target::Shard(shard), self.access, reason)
            }
            // No row can match, so every shard gives the same answer.
            (None, None, None) => ready(Target::Shard(FIRST), self.access, "no row can match"),
        }
    }

    /// The one shard of a relation; none when no row of it can match.
    fn single(
        &self,
        index: usize,
        table: usize,
        bound: Bound,
    ) -> Result<Option<(ShardNumber, String)>, Outcome> {
        let name = self.name(index);
        let relation = &self.statement.relations[index];
        match bound {
            Bound::To { shards, reason } => {
                let mut shards = shards.into_iter();
                match (shards.next(), shards.next()) {
                    (None, _) => Ok(None),
                    (Some(shard), None) => Ok(Some((shard, reason))),
                    (Some(_), Some(_)) => {
                        Err(refuse::several_shards(name, &reason, is_insert(relation)))
                    }
                }
            }
            Bound::Unbound if !self.binder.wanted.is_empty() => Ok(None),
            Bound::Unbound => Err(match &self.statement.kind {
                Kind::CopyOut if self.statement.relations.len() == 1 => {
                    refuse::whole_table("COPY TO from", name)
                }
                Kind::Session if relation.written => refuse::whole_table("LOCK of", name),
                _ => {
                    let verb = match (relation.written, is_insert(relation)) {
                        (true, true) => "inserting into",
                        (true, false) => "writing",
                        (false, _) => "reading",
                    };
                    refuse::unbound(name, &self.binder.table(table).column, verb)
                }
            }),
        }
    }

    /// The key must be one that is known here: that of the rows that are written in any case.
    fn check_key(&self, index: usize, table: usize, named: bool) -> Result<(), Outcome> {
        let declared = self.binder.table(table);
        let relation = &self.statement.relations[index];
        if let Some(why) = declared
            .unfit
            .as_ref()
            .filter(|_| relation.written || !named)
        {
            return Err(refuse::unfit_key(self.name(index), &declared.column, why));
        }
        match relation.overrides_user && declared.identity {
            true => Err(refuse::replaced_key(self.name(index), &declared.column)),
            false => Ok(()),
        }
    }

    /// An assigned key must be the one that the row has already, or one of the shard where the
    /// touched rows are.
    fn check_assigned(
        &mut self,
        index: usize,
        table: usize,
        (bound, only): (&Bound, Option<ShardNumber>),
    ) -> Result<(), Outcome> {
        let declared = self.binder.table(table);
        let statement = self.statement;
        for (column, value) in &statement.relations[index].assigned {
            if *column != declared.column {
                continue;
            }
            let refused = || refuse::key_update(&declared.table, column);
            let value = value.as_ref().ok_or_else(refused)?;
            let data_type = declared.rule.data_type;
            let assigned =
                super::key::read(value, data_type, self.binder.params).map_err(Outcome::Refused)?;
            let [super::key::Read::Key(assigned)] = assigned.as_slice() else {
                return Err(refused());
            };
            let keys = self.binder.keys(index, table).map_err(Outcome::Refused)?;
            if keys.contains(assigned) {
                continue;
            }
            super::bind::fits(assigned, declared.max_length).map_err(Outcome::Refused)?;
            let shard = self.binder.shard_of(assigned, table);
            let shard = shard.map_err(Outcome::Refused)?;
            let stays = match (only, bound) {
                // Not all keys are looked up yet: it will be asked again.
                _ if !self.binder.wanted.is_empty() => true,
                (Some(only), _) => shard == Some(only),
                (None, Bound::To { shards, .. }) => {
                    shard.is_some_and(|shard| shards.len() == 1 && shards.contains(&shard))
                }
                (None, Bound::Unbound) => false,
            };
            if !stays {
                return Err(refused());
            }
        }
        Ok(())
    }

    /// Rows must not be written where their key does not belong, whoever names the shard.
    fn check_named(&self, index: usize, shard: ShardNumber, bound: &Bound) -> Result<(), Outcome> {
        let relation = &self.statement.relations[index];
        match bound {
            Bound::To { shards, reason }
                if is_insert(relation) && *shards != BTreeSet::from([shard]) =>
            {
                Err(refuse::misplaced(self.name(index), reason))
            }
            Bound::To { .. } | Bound::Unbound => Ok(()),
        }
    }

    /// No sharded table and no omni write.
    fn anywhere(&self, named: Option<(ShardNumber, String)>) -> Outcome {
        if let Some((shard, reason)) = named {
            return ready(Target::Shard(shard), self.access, reason);
        }
        if self.first(|class, _| class == Class::Central).is_some() {
            return ready(Target::Shard(FIRST), Access::Write, "kept on shard 0");
        }
        let written = |kind: Class| self.first(|class, w| class == kind && w).is_some();
        if written(Class::Catalog) {
            return ready(Target::Shard(FIRST), self.access, "catalog");
        }
        let named_relations = self
            .first(|class, _| matches!(class, Class::Omni(_)))
            .is_some();
        if let (Some(name), false) = (&self.statement.functions.shared, named_relations) {
            return ready(
                Target::Shard(FIRST),
                self.access,
                format!("{name} is for all clients"),
            );
        }
        let locks = self.access == Access::Write && self.statement.role.is_none();
        if named_relations && locks && self.statement.kind == Kind::Write {
            // Row locks of omnisharded tables: where every writer comes first.
            return ready(Target::Shard(FIRST), self.access, "omnisharded lock");
        }
        let reason = match &self.statement.prepared {
            Some(Prepared::Prepare { .. } | Prepared::Execute { .. } | Prepared::Deallocate(_)) => {
                "prepared statement"
            }
            None if named_relations => "omnisharded read",
            None if self.classes.contains(&Class::Temporary) => "temporary table",
            None if self.classes.contains(&Class::Catalog) => "catalog",
            None => "table-less",
        };
        ready(Target::Any, self.access, reason)
    }

    /// The first function that it calls and that may touch any table.
    fn opaque_call(&self, session: &SessionView<'_>) -> Option<&str> {
        let mut called = self.statement.functions.called.iter();
        called
            .find(|called| is_opaque(called, self.topology, session.search_path))
            .map(|called| called.name.as_str())
    }

    fn has_sharded(&self) -> bool {
        self.classes
            .iter()
            .any(|class| matches!(class, Class::Sharded(_)))
    }

    /// The first relation of which this holds, given its class and whether it is written.
    pub(super) fn first(&self, holds: impl Fn(Class, bool) -> bool) -> Option<usize> {
        let relations = self.statement.relations.iter().zip(self.classes);
        relations
            .enumerate()
            .find(|(_, (relation, class))| holds(**class, relation.written))
            .map(|(index, _)| index)
    }

    pub(super) fn name(&self, relation: usize) -> &str {
        &self.statement.relations[relation].name
    }

    pub(super) fn all(&self, reason: AllReason, why: &'static str) -> Outcome {
        ready(Target::All(reason), self.access, why)
    }
}
