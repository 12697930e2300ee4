//! What must be, before a shard is added. Pure: facts in, findings out; all of them, not the first.

use std::collections::BTreeSet;

use super::facts::Facts;

/// One guard's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Name of the guard.
    pub guard: &'static str,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What was found.
    pub reason: String,
    /// What to do about it; empty when it holds.
    pub remedy: String,
}

/// What follows from a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Pass,
    /// Growth goes on, but somebody should know.
    Warn,
    /// No growth.
    Fail,
}

impl Verdict {
    /// As tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "ok",
            Self::Warn => "warning",
            Self::Fail => "blocked",
        }
    }
}

/// A transaction older than this keeps slots from being created for too long.
const OLD_TRANSACTION_S: f64 = 60.0;
/// A prepared transaction older than this is an orphan rather than one in flight.
const OLD_PREPARED_S: f64 = 10.0;

/// Judges everything.
pub fn check(facts: &Facts) -> Vec<Finding> {
    let groups: [fn(&Facts) -> Vec<Finding>; 7] = [
        numbers,
        versions,
        same_names,
        capacity,
        publication,
        tables,
        traffic,
    ];
    groups.iter().flat_map(|group| group(facts)).collect()
}

/// The blocking findings in one text; none when growth may go on.
pub fn blockers(findings: &[Finding]) -> Option<String> {
    let failed = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Fail);
    let texts: Vec<String> = failed
        .map(|f| format!("{}: {} ({})", f.guard, f.reason, f.remedy))
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn numbers(facts: &Facts) -> Vec<Finding> {
    let next = usize::from(facts.shard) == facts.serving;
    let target = &facts.target;
    vec![
        fail_unless(
            next,
            "next number",
            format!(
                "shard {} asked for, {} shards serve",
                facts.shard, facts.serving
            ),
            format!("add shard {} first", facts.serving),
        ),
        fail_unless(
            !target.in_recovery && !facts.source.in_recovery,
            "primaries",
            "both ends have to be primaries".into(),
            "declare the primary, not a standby".into(),
        ),
        fail_unless(
            target.system_identifier != facts.source.system_identifier,
            "own server",
            format!(
                "system identifier of the new shard is {}",
                target.system_identifier
            ),
            "the new shard must be a server of its own, made by initdb".into(),
        ),
        fail_unless(
            facts.source.superuser && target.superuser,
            "superuser",
            "a subscription needs a superuser on both ends".into(),
            "give schema_admin = true to a superuser in users.toml".into(),
        ),
        fail_unless(
            facts.target_contents.is_empty(),
            "empty target",
            match facts.target_contents.is_empty() {
                true => "nothing there".into(),
                false => format!("found {}", facts.target_contents.join(", ")),
            },
            "recreate the database on the new shard".into(),
        ),
        fail_unless(
            matches!(
                target.state.as_deref(),
                None | Some("empty" | "provisioning")
            ),
            "target state",
            format!(
                "topology says \"{}\"",
                target.state.as_deref().unwrap_or("no extension")
            ),
            "the node already serves; recreate its database".into(),
        ),
    ]
}

fn versions(facts: &Facts) -> Vec<Finding> {
    let (source, target) = (&facts.source, &facts.target);
    let wanted = source.extensions.iter().filter(|(name, version)| {
        target.extensions.get(*name) != Some(version)
            && !target.available.contains(&format!("{name} {version}"))
    });
    let missing: Vec<String> = wanted.map(|(name, v)| format!("{name} {v}")).collect();
    let other = source.extensions.iter().filter_map(|(name, version)| {
        let there = target.extensions.get(name)?;
        (there != version).then(|| format!("{name} {there}, shard 0 has {version}"))
    });
    let other: Vec<String> = other.collect();
    vec![
        fail_unless(
            source.version / 10_000 == target.version / 10_000,
            "same major version",
            format!(
                "shard 0 runs {}, the new shard {}",
                source.version, target.version
            ),
            "install the same major version of PostgreSQL".into(),
        ),
        fail_unless(
            source.locale == target.locale,
            "same locale",
            format!(
                "shard 0 has {:?}, the new shard {:?}",
                source.locale, target.locale
            ),
            "create the database with shard 0's encoding and collation".into(),
        ),
        fail_unless(
            missing.is_empty(),
            "extensions available",
            listed(&missing, "all of shard 0's versions are available"),
            "install these versions on the new shard's server".into(),
        ),
        fail_unless(
            other.is_empty(),
            "extension versions",
            listed(&other, "none differs"),
            "ALTER EXTENSION … UPDATE, or drop them there".into(),
        ),
        fail_unless(
            target.preloaded || !source.preloaded,
            "preloaded",
            "shared_preload_libraries of shard 0 has pgdog".into(),
            "set shared_preload_libraries = 'pgdog' on the new shard and restart it".into(),
        ),
    ]
}

fn same_names(facts: &Facts) -> Vec<Finding> {
    let (source, target) = (&facts.source, &facts.target);
    let settings: Vec<&str> = source
        .settings
        .difference(&target.settings)
        .map(String::as_str)
        .collect();
    let roles: Vec<&str> = source
        .roles
        .difference(&target.roles)
        .map(String::as_str)
        .collect();
    vec![
        fail_unless(
            roles.is_empty(),
            "roles present",
            listed(&roles, "all of shard 0's roles exist"),
            "CREATE ROLE them on the new shard".into(),
        ),
        warn_unless(
            settings.is_empty(),
            "database settings",
            listed(&settings, "all of shard 0's are there"),
            "ALTER DATABASE … SET them on the new shard: a dump does not carry them".into(),
        ),
    ]
}

fn capacity(facts: &Facts) -> Vec<Finding> {
    let (source, target) = (&facts.source, &facts.target);
    let needed = 1 + target.sync_workers;
    let lowest = facts.prepared_limits.iter().copied().min().unwrap_or(0);
    let free = |(limit, used): (i32, i32)| limit - used;
    vec![
        fail_unless(
            source.wal_level == "logical",
            "wal_level",
            format!("shard 0 has wal_level = {}", source.wal_level),
            "set wal_level = logical on shard 0 and restart it".into(),
        ),
        fail_unless(
            free(source.slots) >= needed,
            "replication slots",
            format!(
                "shard 0 has {} free, {needed} are needed",
                free(source.slots)
            ),
            "raise max_replication_slots on shard 0 or drop unused slots".into(),
        ),
        fail_unless(
            free(source.senders) >= needed,
            "WAL senders",
            format!(
                "shard 0 has {} free, {needed} are needed",
                free(source.senders)
            ),
            "raise max_wal_senders on shard 0".into(),
        ),
        fail_unless(
            target.slots.0 >= needed && target.replication_workers >= needed,
            "replication workers",
            format!(
                "the new shard allows {} origins and {} workers, {needed} are needed",
                target.slots.0, target.replication_workers
            ),
            "raise max_replication_slots and max_logical_replication_workers there".into(),
        ),
        fail_unless(
            lowest > 0 && target.prepared_limit >= source.prepared_limit,
            "two-phase commit",
            format!(
                "max_prepared_transactions is {lowest} at least on the serving shards, {} on the \
                 new one",
                target.prepared_limit
            ),
            "set max_prepared_transactions on every shard, on the new one as high as on shard 0"
                .into(),
        ),
    ]
}

fn publication(facts: &Facts) -> Vec<Finding> {
    let Some((name, tables)) = &facts.publication else {
        return Vec::new();
    };
    let Some(published) = tables else {
        return vec![fail_unless(
            false,
            "publication",
            format!("publication \"{name}\" does not exist on shard 0"),
            "create it, or leave PUBLICATION away".into(),
        )];
    };
    let all = facts
        .tables
        .iter()
        .map(|table| format!("{}.{}", table.schema, table.name));
    let all: BTreeSet<String> = all.collect();
    let sent: BTreeSet<String> = published.whole.union(&published.in_part).cloned().collect();
    let names = |some: &mut dyn Iterator<Item = &String>| some.cloned().collect::<Vec<String>>();
    let missing = names(&mut all.difference(&sent));
    let foreign = names(&mut sent.difference(&all));
    let in_part = names(&mut all.intersection(&published.in_part));
    vec![
        fail_unless(
            missing.is_empty(),
            "publication",
            listed(&missing, "it holds every omni table"),
            format!("ALTER PUBLICATION \"{name}\" ADD TABLE these"),
        ),
        fail_unless(
            foreign.is_empty(),
            "publication of omni tables",
            listed(&foreign, "it holds no other tables"),
            "their rows of shard 0 would be copied: name a publication without them".into(),
        ),
        fail_unless(
            in_part.is_empty(),
            "publication of whole tables",
            listed(&in_part, "no omni table has a row filter or a column list"),
            format!("ALTER PUBLICATION \"{name}\" SET TABLE without WHERE and columns"),
        ),
        fail_unless(
            published.every_change,
            "publication of every change",
            match published.every_change {
                true => "it publishes every kind of change".into(),
                false => "it leaves out inserts, updates, deletes or truncates".into(),
            },
            format!(
                "ALTER PUBLICATION \"{name}\" SET (publish = 'insert, update, delete, truncate')"
            ),
        ),
    ]
}

fn tables(facts: &Facts) -> Vec<Finding> {
    let which = |wrong: fn(&super::facts::TableFacts) -> bool| -> Vec<String> {
        let wrong = facts.tables.iter().filter(|table| wrong(table));
        wrong
            .map(|table| format!("{}.{}", table.schema, table.name))
            .collect()
    };
    let (no_identity, unlogged) = (which(|t| !t.has_identity), which(|t| t.unlogged));
    vec![
        fail_unless(
            facts.hash_routed.is_empty(),
            "stable placement",
            listed(&facts.hash_routed, "no sharded table is routed by hash"),
            "rows would have to move; use lookup_result = \"shard\" or a mapping".into(),
        ),
        fail_unless(
            facts.missing_tables.is_empty(),
            "omni tables exist",
            listed(&facts.missing_tables, "all of them"),
            "SELECT pgdog.unshard_table(…) what no longer exists".into(),
        ),
        fail_unless(
            no_identity.is_empty(),
            "replica identity",
            listed(&no_identity, "every omni table has one"),
            "add a primary key, or ALTER TABLE … REPLICA IDENTITY FULL".into(),
        ),
        fail_unless(
            unlogged.is_empty(),
            "logged",
            listed(&unlogged, "every omni table is logged"),
            "ALTER TABLE … SET LOGGED".into(),
        ),
        fail_unless(
            facts.foreign_keys_out.is_empty(),
            "foreign keys",
            listed(
                &facts.foreign_keys_out,
                "omni tables refer to omni tables only",
            ),
            "the rows referred to are not on every shard; drop the constraint".into(),
        ),
        warn_unless(
            facts.always_triggers.is_empty(),
            "triggers",
            listed(&facts.always_triggers, "none fires for replicated rows"),
            "they will fire on the new shard for rows that come after the copy".into(),
        ),
        fail_unless(
            facts.paused_maps.is_empty(),
            "maps",
            listed(&facts.paused_maps, "no map is paused"),
            "pgdog.resume_lookup_writes(…): nobody could while definitions are frozen".into(),
        ),
        match &facts.drift {
            Ok(tables) => fail_unless(
                tables.is_empty(),
                "shards agree",
                listed(tables, "omni tables are equal on every serving shard"),
                "repair them: the new shard inherits shard 0's rows, right or wrong".into(),
            ),
            Err(why) => fail_unless(
                false,
                "shards agree",
                format!("could not be compared: {why}"),
                "try again when omni writes are calmer".into(),
            ),
        },
    ]
}

fn traffic(facts: &Facts) -> Vec<Finding> {
    let old = facts
        .prepared
        .iter()
        .filter(|(_, _, age_s)| *age_s > OLD_PREPARED_S);
    let old: Vec<String> = old
        .map(|(gid, database, age_s)| format!("{gid} in {database} for {age_s:.0} s"))
        .collect();
    let long = facts
        .oldest_transaction
        .as_ref()
        .filter(|(_, age_s)| *age_s > OLD_TRANSACTION_S);
    vec![
        fail_unless(
            old.is_empty(),
            "prepared transactions",
            listed(&old, "no old one on shard 0's server"),
            "COMMIT PREPARED or ROLLBACK PREPARED them: they block slot creation for ever".into(),
        ),
        fail_unless(
            long.is_none(),
            "long transactions",
            match long {
                None => "no old one on shard 0's server".into(),
                Some((who, age_s)) => format!("{who} for {age_s:.0} s"),
            },
            "wait for it or end it: slot creation waits for it".into(),
        ),
        fail_unless(
            facts.differing_instances.is_empty(),
            "same configuration",
            listed(
                &facts.differing_instances,
                "every live shim declares the same",
            ),
            "give all shims the same declarations, and RELOAD".into(),
        ),
        warn_unless(
            facts.blind_instances.is_empty(),
            "instances reach it",
            listed(
                &facts.blind_instances,
                "every live shim reaches the new shard",
            ),
            "AUTO waits and CUTOVER refuses without FORCE until they do".into(),
        ),
    ]
}

fn listed<T: AsRef<str>>(names: &[T], none: &str) -> String {
    if names.is_empty() {
        return none.to_owned();
    }
    let shown: Vec<&str> = names.iter().map(AsRef::as_ref).take(10).collect();
    let more = match names.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join(", "))
}

fn fail_unless(holds: bool, guard: &'static str, reason: String, remedy: String) -> Finding {
    finding(holds, Verdict::Fail, guard, (reason, remedy))
}

fn warn_unless(holds: bool, guard: &'static str, reason: String, remedy: String) -> Finding {
    finding(holds, Verdict::Warn, guard, (reason, remedy))
}

fn finding(
    holds: bool,
    otherwise: Verdict,
    guard: &'static str,
    (reason, remedy): (String, String),
) -> Finding {
    match holds {
        true => Finding {
            guard,
            verdict: Verdict::Pass,
            reason,
            remedy: String::new(),
        },
        false => Finding {
            guard,
            verdict: otherwise,
            reason,
            remedy,
        },
    }
}

#[cfg(test)]
mod tests;
