//! Configuration files: `pgdog.toml` and `users.toml`.
//!
//! | file | what |
//! |---|---|
//! | `general` | `[general]` and `[admin]` |
//! | `databases` | `[[databases]]`: where the nodes are |
//! | `tables` | `[[sharded_tables]]`, `[[sharded_mappings]]`, `[[omnisharded_tables]]` |
//! | `users` | `users.toml` |
//! | `keys` | which keys exist; PgDog's that have no use here; the nearest name to a typo |
//! | `validate` | what must hold between the values |
//!
//! The keys are PgDog's where the meaning is the same, and so are the defaults.

use std::path::{Path, PathBuf};

use serde::Deserialize;

mod databases;
mod general;
mod keys;
mod tables;
#[cfg(test)]
mod tests;
mod users;
mod validate;

pub use databases::{Database, Role};
pub use general::{
    Admin, AuthType, BalancingStrategy, CutoverAction, General, Ms, PoolerMode, ReadWriteSplit,
    ReadWriteStrategy, UnlistedTables,
};
pub use tables::{
    DataType, Key, LookupResult, Mapping, MappingKind, OmnishardedTables, ShardedTable,
};
pub use users::{User, Users};

/// Everything that the two files say, checked.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `[general]`.
    pub general: General,
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
    /// Where this was read from.
    #[serde(skip)]
    pub path: PathBuf,
    /// Where the users were read from.
    #[serde(skip)]
    pub users_path: PathBuf,
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
        let text = read(path)?;
        let users = match users_path.exists() {
            true => read(users_path)?,
            false => String::new(),
        };
        let mut config = Self::parse(&text, &users)?;
        config.path = path.to_path_buf();
        config.users_path = users_path.to_path_buf();
        Ok(config)
    }

    /// Parses and checks the texts of the two files.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, users_text: &str) -> Result<Self, ConfigError> {
        let mut report = keys::Report::default();
        let config_table = keys::table("pgdog.toml", text, &mut report);
        let users_table = keys::table("users.toml", users_text, &mut report);
        if let Some(table) = &config_table {
            keys::check_config(table, &mut report);
        }
        if let Some(table) = &users_table {
            keys::check_users(table, &mut report);
        }
        report.into_result()?;

        let mut config: Config = toml::from_str(text)
            .map_err(|e| ConfigError::one(format!("pgdog.toml: {}", one_line(&e))))?;
        config.users = toml::from_str(users_text)
            .map_err(|e| ConfigError::one(format!("users.toml: {}", one_line(&e))))?;
        config.warnings = keys::idle_keys(config_table.as_ref(), users_table.as_ref());

        let mappings = std::mem::take(&mut config.sharded_mappings);
        let mut problems = tables::distribute(&mut config.sharded_tables, mappings);
        problems.extend(validate::problems(&config));
        config.warnings.extend(validate::warnings(&config));
        match problems.is_empty() {
            true => Ok(config),
            false => Err(ConfigError { problems }),
        }
    }

    /// Names of the logical databases, in order of appearance.
    pub fn database_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for database in &self.databases {
            if !names.contains(&database.name.as_str()) {
                names.push(&database.name);
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
            .or_else(|| users.next())
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|e| ConfigError::one(format!("cannot read {}: {e}", path.display())))
}

/// The parser's message without its picture of the source.
fn one_line(error: &toml::de::Error) -> String {
    error.message().replace('\n', ", ")
}
