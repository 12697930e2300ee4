//! Configuration files: `pgdog.toml` and `users.toml`.
//!
//! | file | what |
//! |---|---|
//! | `general` | `[general]` and `[admin]` |
//! | `tcp` | `[tcp]` |
//! | `databases` | `[[databases]]`: where the nodes are |
//! | `tables` | `[[sharded_tables]]`, `[[sharded_mappings]]`, `[[omnisharded_tables]]` |
//! | `users` | `users.toml` |
//! | `login` | keys about logins and TLS |
//! | `source` | a file with its places, read so that every problem shows |
//! | `keys`, `known` | which keys exist; PgDog's without use here; the nearest name to a typo |
//! | `validate` | what must hold between the values |
//!
//! The keys are PgDog's where the meaning is the same, and so are the defaults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use source::Source;

mod databases;
mod general;
mod keys;
mod known;
mod login;
#[cfg(test)]
mod pgdog_files;
mod source;
mod tables;
mod tcp;
#[cfg(test)]
mod tests;
mod users;
mod validate;

pub use databases::{Database, Role};
pub use general::{
    Admin, BalancingStrategy, CutoverAction, General, LogFormat, Ms, PoolerMode, ReadWriteSplit,
    ReadWriteStrategy, UnlistedTables,
};
pub use login::{AuthType, Passthrough, TlsVerify};
pub use tables::{
    DataType, Key, LookupResult, Mapping, MappingKind, OmnishardedTables, ShardedTable,
};
pub use tcp::Tcp;
pub use users::{User, Users};

/// Everything that the two files say, checked.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `[general]`.
    pub general: General,
    /// `[tcp]`.
    pub tcp: Tcp,
    /// `[admin]`.
    pub admin: Admin,
    /// `[[databases]]`: one entry for every node.
    pub databases: Vec<Database>,
    /// `[[sharded_tables]]`, with the `[[sharded_mappings]]` that belong to them.
    pub sharded_tables: Vec<ShardedTable>,
    /// `[[sharded_mappings]]` as PgDog writes them; moved into `sharded_tables` by `load`.
    sharded_mappings: Vec<tables::SharedMapping>,
    /// `[[omnisharded_tables]]`.
    pub omnisharded_tables: Vec<OmnishardedTables>,
    /// The contents of `users.toml`.
    #[serde(skip)]
    pub users: Users,
    /// What a person should know although the files are accepted.
    #[serde(skip)]
    pub warnings: Vec<String>,
    /// Databases whose declaration asks for something that does not exist here, with the reason:
    /// they are not served, the others are.
    #[serde(skip)]
    pub unserved: BTreeMap<String, String>,
    /// Where this was read from.
    #[serde(skip)]
    pub path: PathBuf,
    /// Where the users were read from.
    #[serde(skip)]
    pub users_path: PathBuf,
}

/// A query that says where keys live, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// File and line.
    pub place: String,
    /// Which table's, and by which key of the file.
    pub label: String,
    /// Its text.
    pub query: String,
    /// Whether it answers a whole map instead of one key.
    pub is_map: bool,
}

/// Why a configuration is not accepted: every problem at once, so that one round is enough.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("configuration is not accepted:\n  - {}", .problems.join("\n  - "))]
pub struct ConfigError {
    /// One line per problem, each naming the file, the key and the remedy.
    pub problems: Vec<String>,
}

impl ConfigError {
    fn one(problem: String) -> Self {
        Self {
            problems: vec![problem],
        }
    }
}

impl Config {
    /// Reads and checks both files. A missing `users.toml` is the same as an empty one.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, an unknown key (with the nearest known one), or values
    /// that contradict each other.
    pub fn load(path: &Path, users_path: &Path) -> Result<Self, ConfigError> {
        Self::load_with(path, users_path, &[])
    }

    /// As [`Config::load`], with settings of `[general]` that count before those of the file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with(
        path: &Path,
        users_path: &Path,
        general: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let users = match users_path.exists() {
            true => read(users_path),
            false => Ok(String::new()),
        };
        let (text, users) = match (read(path), users) {
            (Ok(text), Ok(users)) => (text, users),
            (text, users) => {
                let failed = [text.err(), users.err()].into_iter().flatten();
                let problems = failed.flat_map(|error| error.problems).collect();
                return Err(ConfigError { problems });
            }
        };
        let mut config = Self::parse_with(&text, &users, general)?;
        config.path = path.to_path_buf();
        config.users_path = users_path.to_path_buf();
        Ok(config)
    }

    /// Parses and checks the texts of the two files.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, users_text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, users_text, &[])
    }

    fn parse_with(
        text: &str,
        users_text: &str,
        general: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let mut report = keys::Report::default();
        let mut config = Config::default();
        let mut idle = Vec::new();
        let literals = general
            .iter()
            .map(|(name, value)| source::general_literal(name, value));
        let literals: Vec<String> = literals.collect();
        let mut source = Source::parse("pgdog.toml", text, &mut report);
        if let Some(source) = &mut source {
            literals
                .iter()
                .for_each(|literal| source.set_general(literal));
        }
        let users_source = Source::parse("users.toml", users_text, &mut report);
        if let Some(source) = &source {
            keys::check_config(source, &mut report);
            config = source.read(&mut report);
            idle.push(source);
        }
        if let Some(source) = &users_source {
            keys::check_users(source, &mut report);
            config.users = source.read(&mut report);
            idle.push(source);
        }
        config.warnings = keys::idle_keys(&idle);
        config.admin = config.users.admin.take().unwrap_or(config.admin);
        config
            .warnings
            .extend(databases::merge(&mut config.databases));

        config.unserved = report.take_aside();
        databases::set_aside_patterns(&config.databases, &mut config.unserved);
        let mappings = std::mem::take(&mut config.sharded_mappings);
        let mut problems = tables::distribute(&mut config.sharded_tables, mappings);
        // What could not be read is missing: conclusions from that would only mislead.
        if report.is_empty() {
            problems.extend(validate::problems(&config));
            config.warnings.extend(validate::warnings(&config));
        }
        problems.into_iter().for_each(|problem| report.add(problem));
        report.into_result().map(|()| config)
    }

    /// The queries of a text of `pgdog.toml` that say where keys live, with their places.
    pub fn lookups(text: &str) -> Vec<Lookup> {
        let mut report = keys::Report::default();
        let source = Source::parse("pgdog.toml", text, &mut report);
        source
            .map(|source| keys::lookups(&source))
            .unwrap_or_default()
    }

    /// `[general]` and `[tcp]` by name, as SHOW CONFIG has them; `default` where nothing is set.
    pub fn entries(&self) -> Vec<(String, String)> {
        let general = toml::Table::try_from(&self.general).unwrap_or_default();
        let tcp = toml::Table::try_from(&self.tcp).unwrap_or_default();
        let general = keys::fields_of::<General>()
            .iter()
            .map(|name| ("", *name, &general));
        let tcp = keys::fields_of::<Tcp>()
            .iter()
            .map(|name| ("tcp_", *name, &tcp));
        let mut entries: Vec<_> = general
            .chain(tcp)
            .filter(|(_, name, _)| *name != "max_pool_size")
            .map(|(prefix, name, table)| {
                let value = match table.get(name) {
                    Some(toml::Value::String(text)) => text.clone(),
                    Some(other) => other.to_string(),
                    None => "default".to_owned(),
                };
                (format!("{prefix}{name}"), value)
            })
            .collect();
        entries.sort();
        entries
    }

    /// Names of the logical databases that can be served, in order of appearance.
    pub fn database_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for database in &self.databases {
            let name = database.name.as_str();
            if !names.contains(&name) && !self.unserved.contains_key(name) {
                names.push(name);
            }
        }
        names
    }

    /// The nodes of one logical database, provisioning ones included.
    pub fn nodes<'a>(&'a self, database: &'a str) -> impl Iterator<Item = &'a Database> {
        self.databases.iter().filter(move |d| d.name == database)
    }

    /// The user of that name who may log in to that database.
    pub fn user(&self, name: &str, database: &str) -> Option<&User> {
        self.users
            .users
            .iter()
            .find(|u| u.name == name && u.may_use(database))
    }

    /// Who the shim itself is on the nodes of a database: the `schema_admin`, else any user of it.
    pub fn control_user(&self, database: &str) -> Option<&User> {
        let mut users = self.users.users.iter().filter(|u| u.may_use(database));
        users
            .clone()
            .find(|u| u.schema_admin)
            .or_else(|| users.clone().find(|u| u.has_own_login()))
            .or_else(|| users.next())
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|e| ConfigError::one(format!("cannot read {}: {e}", path.display())))
}
