//! What must hold between the values, each with its reason and its remedy.

use std::collections::BTreeSet;

use super::{Config, Database, LookupResult, MappingKind, Role, ShardedTable};

/// Everything that is wrong.
pub(super) fn problems(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    general(config, &mut problems);
    nodes(config, &mut problems);
    tables(config, &mut problems);
    users(config, &mut problems);
    super::login::problems(config, &mut problems);
    problems
}

/// What works but is probably not meant.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, why) in &config.unserved {
        warnings.push(format!("database {name} is not served: {why}"));
    }
    for user in &config.users.users {
        for database in user.database.iter().chain(&user.databases) {
            if !config.databases.iter().any(|d| d.name == *database) {
                warnings.push(format!(
                    "[[users]] {}: database {database} is not in [[databases]]",
                    user.name
                ));
            }
        }
    }
    let password = config.admin.password.as_deref().unwrap_or_default();
    if config.admin != super::Admin::default() && password.is_empty() {
        warnings.push("[admin] has no password: there is no admin database".to_owned());
    }
    for name in config.database_names() {
        if !config
            .users
            .users
            .iter()
            .any(|u| u.may_use(name) && u.schema_admin)
        {
            warnings.push(format!(
                "database {name}: no user has schema_admin = true; topology tasks and two-phase \
                 recovery run with the rights of an ordinary user"
            ));
        }
    }
    warnings
}

fn general(config: &Config, problems: &mut Vec<String>) {
    let general = &config.general;
    if general.default_pool_size == 0 {
        problems.push("default_pool_size: 0 lets nobody in; give at least 1".to_owned());
    }
    if general.max_client_conn == Some(0) {
        problems.push("max_client_conn: 0 lets nobody in; give at least 1".to_owned());
    }
    if general.openmetrics_port.is_some() && general.openmetrics_port == general.healthcheck_port {
        problems.push("openmetrics_port and healthcheck_port are the same; take two".to_owned());
    }
    if config.databases.iter().any(|d| d.name == config.admin.name) {
        problems.push(format!(
            "[admin] name {} is also a database; rename one of them",
            config.admin.name
        ));
    }
}

fn nodes(config: &Config, problems: &mut Vec<String>) {
    if config.databases.is_empty() {
        problems.push("no [[databases]]: there is nothing to serve; add an entry".to_owned());
    } else if config.database_names().is_empty() {
        problems.extend(config.unserved.values().cloned());
    }
    let mut addresses = BTreeSet::new();
    let served = |d: &&Database| !config.unserved.contains_key(&d.name);
    for d in config.databases.iter().filter(served) {
        if d.read_only == Some(true) && d.role != Role::Replica {
            problems.push(format!(
                "[[databases]] {}:{}: read_only of a primary is not accepted; give read_only to \
                 the users who may only read",
                d.host, d.port
            ));
        }
        if d.pool_size == Some(0) {
            problems.push(format!(
                "[[databases]] {}:{}: pool_size 0 lets nobody in",
                d.host, d.port
            ));
        }
        if !addresses.insert((&d.name, &d.host, d.port, d.database_on_node())) {
            problems.push(format!(
                "[[databases]] {}:{}/{} is listed twice; one node is one entry",
                d.host,
                d.port,
                d.database_on_node()
            ));
        }
    }
    for name in config.database_names() {
        database_shards(config, name, problems);
    }
}

/// Numbers from 0 without a gap, one primary each, the provisioning ones last.
fn database_shards(config: &Config, name: &str, problems: &mut Vec<String>) {
    let shards: BTreeSet<u16> = config.nodes(name).map(|d| d.shard).collect();
    for (expected, shard) in (0_u16..).zip(&shards) {
        if expected != *shard {
            problems.push(format!(
                "database {name}: shard {expected} has no node although shard {shard} has; \
                 shards are numbered from 0 without a gap"
            ));
            return;
        }
    }
    let mut seen_provisioning = None;
    for shard in shards {
        let of_shard = || config.nodes(name).filter(move |d| d.shard == shard);
        let primaries = of_shard().filter(|d| d.role == Role::Primary).count();
        let automatic = of_shard().filter(|d| d.role == Role::Auto).count();
        if primaries > 1 {
            problems.push(format!(
                "database {name}: shard {shard} has {primaries} primaries; a duplicate shard \
                 number, or role = \"replica\" is missing"
            ));
        }
        if primaries == 0 && automatic == 0 {
            problems.push(format!(
                "database {name}: shard {shard} has no primary; add one, or use role = \"auto\""
            ));
        }
        let provisioning = of_shard().filter(|d| d.provisioning).count();
        if provisioning != 0 && provisioning != of_shard().count() {
            problems.push(format!(
                "database {name}: shard {shard} is provisioning on some nodes and not on others"
            ));
        }
        match (provisioning != 0, seen_provisioning) {
            (true, _) => seen_provisioning = Some(shard),
            // The database decides what serves; a file that still has the flag for a lower shard
            // than a serving one can only be a mistake.
            (false, Some(lower)) => problems.push(format!(
                "database {name}: shard {lower} is provisioning but the higher shard {shard} is not"
            )),
            (false, None) => {}
        }
        if shard == 0 && provisioning != 0 {
            problems.push(format!("database {name}: shard 0 cannot be provisioning"));
        }
    }
}

fn tables(config: &Config, problems: &mut Vec<String>) {
    let mut sharded = BTreeSet::new();
    let served = |database: &str| !config.unserved.contains_key(database);
    for table in &config.sharded_tables {
        if !served(&table.database) {
            continue;
        }
        let label = table.label();
        known_database(
            config,
            &table.database,
            &format!("[[sharded_tables]] {label}"),
            problems,
        );
        let schema = table.schema.as_deref().unwrap_or("public");
        if !sharded.insert((&table.database, schema, &table.name, &table.column)) {
            problems.push(format!("[[sharded_tables]] {label} is declared twice"));
        }
        strategy(table, problems);
        mapping(config, table, problems);
    }
    let mut omni = BTreeSet::new();
    for list in &config.omnisharded_tables {
        known_database(config, &list.database, "[[omnisharded_tables]]", problems);
        for name in &list.tables {
            if !omni.insert((&list.database, name)) {
                problems.push(format!("[[omnisharded_tables]] {name} is listed twice"));
            }
            let is_sharded = config
                .sharded_tables
                .iter()
                .any(|t| t.database == list.database && t.name.as_deref() == Some(name.as_str()));
            if is_sharded {
                problems.push(format!("table {name} is both sharded and omnisharded"));
            }
        }
    }
}

fn known_database(config: &Config, database: &str, what: &str, problems: &mut Vec<String>) {
    if !config.databases.iter().any(|d| d.name == database) {
        problems.push(format!(
            "{what}: database {database} is not in [[databases]]"
        ));
    }
}

/// One way to find the shard, and that one complete.
fn strategy(table: &ShardedTable, problems: &mut Vec<String>) {
    let label = format!("[[sharded_tables]] {}", table.label());
    if table.lookup.is_some() != table.query.is_some() {
        problems.push(format!(
            "{label}: lookup and query go together; give both or neither"
        ));
    }
    let ways = [
        ("mapping", !table.mapping.is_empty()),
        ("lookup", table.lookup.is_some() || table.query.is_some()),
        ("lookup_query", table.lookup_query.is_some()),
    ];
    let given: Vec<&str> = ways
        .iter()
        .filter(|(_, is)| *is)
        .map(|(name, _)| *name)
        .collect();
    if given.len() > 1 {
        problems.push(format!(
            "{label}: {} exclude each other",
            given.join(" and ")
        ));
    }
    match (&table.lookup_query, table.lookup_result) {
        (Some(query), _) if !query.contains("$1") => problems.push(format!(
            "{label}: lookup_query does not refer to $1, so it would give every key the same answer"
        )),
        (None, Some(LookupResult::Shard)) => problems.push(format!(
            "{label}: lookup_result = \"shard\" needs a lookup_query that answers with the shard"
        )),
        (None, Some(LookupResult::Value)) | (None | Some(_), None) | (Some(_), Some(_)) => {}
    }
}

fn mapping(config: &Config, table: &ShardedTable, problems: &mut Vec<String>) {
    let label = format!("[[sharded_tables]] {}", table.label());
    let declared = config
        .nodes(&table.database)
        .map(|d| d.shard)
        .max()
        .unwrap_or(0);
    for rule in &table.mapping {
        if rule.shard > declared {
            problems.push(format!(
                "{label}: mapping names shard {} but the highest declared is {declared}",
                rule.shard
            ));
        }
        let complete = match rule.kind {
            MappingKind::List => {
                !rule.values.is_empty() && rule.start.is_none() && rule.end.is_none()
            }
            MappingKind::Range => {
                rule.values.is_empty() && (rule.start.is_some() || rule.end.is_some())
            }
            MappingKind::Default => {
                rule.values.is_empty() && rule.start.is_none() && rule.end.is_none()
            }
        };
        if !complete {
            problems.push(format!(
                "{label}: a list mapping has values, a range mapping start or end, a default \
                 neither"
            ));
        }
    }
}

fn users(config: &Config, problems: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for user in &config.users.users {
        if !seen.insert((&user.name, &user.database)) {
            problems.push(format!(
                "[[users]] {} is listed twice for one database",
                user.name
            ));
        }
        if user.database.is_none() && user.databases.is_empty() && !user.all_databases {
            problems.push(format!(
                "[[users]] {}: no database; give database, databases or all_databases = true",
                user.name
            ));
        }
        if user.pool_size == Some(0) {
            problems.push(format!(
                "[[users]] {}: pool_size 0 lets nobody in",
                user.name
            ));
        }
    }
}
