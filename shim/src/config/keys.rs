//! Which keys the files may have.
//!
//! serde knows the fields of our own structs; they are read from it, not listed twice. PgDog's
//! keys beyond those are in `known`: some are accepted without effect, some are refused because
//! going on without them would change what is served.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::value::Error as FieldError;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::known::*;
use super::source::Source;
use super::tables::{Mapping, SharedMapping};
use super::{
    Admin, Config, ConfigError, Database, General, Lookup, OmnishardedTables, ShardedTable,
};
use super::{Tcp, User, Users};

/// Problems found so far.
#[derive(Default)]
pub(super) struct Report {
    problems: Vec<String>,
    /// Databases that cannot be served as they are declared, each with the reason.
    aside: BTreeMap<String, String>,
}

impl Report {
    /// Adds a problem, once.
    pub(super) fn add(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Notes that a database cannot be served; the others can.
    fn set_aside(&mut self, database: &str, why: String) {
        self.aside.entry(database.to_owned()).or_insert(why);
    }

    /// The databases that cannot be served.
    pub(super) fn take_aside(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.aside)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    pub(super) fn into_result(self) -> Result<(), ConfigError> {
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(ConfigError {
                problems: self.problems,
            }),
        }
    }
}

/// One table of a file: what may stand in it.
struct Section {
    name: &'static str,
    fields: &'static [&'static str],
    idle: &'static [&'static str],
    refused: Refused,
    /// The key that names the database which a row is about.
    database: Option<&'static str>,
}

fn sections() -> [Section; 9] {
    [
        section::<General>("general", IDLE_GENERAL, REFUSED_GENERAL),
        section::<Tcp>("tcp", IDLE_TCP, &[]),
        section::<Admin>("admin", &[], &[]),
        section::<Database>("databases", IDLE_DATABASE, REFUSED_DATABASE).of("name"),
        section::<ShardedTable>("sharded_tables", IDLE_SHARDED, REFUSED_SHARDED).of("database"),
        section::<SharedMapping>("sharded_mappings", &[], &[]),
        section::<OmnishardedTables>("omnisharded_tables", IDLE_OMNISHARDED, &[]),
        section::<Mapping>("sharded_tables.mapping", &[], &[]),
        section::<User>("users", IDLE_USER, REFUSED_USER),
    ]
}

fn section<T: for<'de> Deserialize<'de>>(
    name: &'static str,
    idle: &'static [&'static str],
    refused: Refused,
) -> Section {
    Section {
        name,
        fields: fields_of::<T>(),
        idle,
        refused,
        database: None,
    }
}

impl Section {
    fn of(self, database: &'static str) -> Self {
        Self {
            database: Some(database),
            ..self
        }
    }
}

/// Checks every key of `pgdog.toml`.
pub(super) fn check_config(source: &Source<'_>, report: &mut Report) {
    let sections = sections();
    let top = fields_of::<Config>();
    for (key, value) in source.root() {
        let name = &**key.get_ref();
        if IDLE_TOP.contains(&name) {
            continue;
        }
        let place = source.place(&key.span());
        if let Some((_, why)) = REFUSED_TOP.iter().find(|(refused, _)| *refused == name) {
            report.add(format!("{place}: [{name}] is not accepted: {why}"));
            continue;
        }
        if let Some((_, why)) = ASIDE_TOP.iter().find(|(aside, _)| *aside == name) {
            for row in rows(value) {
                match text(row, "database") {
                    Some(database) => {
                        report.set_aside(database, format!("{place}: [[{name}]]: {why}"));
                    }
                    None => report.add(format!("{place}: [[{name}]] names no database")),
                }
            }
            continue;
        }
        let known = top.contains(&name);
        match sections.iter().find(|s| known && s.name == name) {
            Some(section) => {
                check_section(source, section, value, report);
                if name == "sharded_tables" {
                    check_mappings(source, &sections, value, report);
                }
            }
            None => report.add(unknown(&place, "table", name, top)),
        }
    }
}

/// Checks every key of `users.toml`.
pub(super) fn check_users(source: &Source<'_>, report: &mut Report) {
    let sections = sections();
    let top = fields_of::<Users>();
    for (key, value) in source.root() {
        let name = &**key.get_ref();
        match sections
            .iter()
            .find(|s| s.name == name && top.contains(&name))
        {
            Some(section) => check_section(source, section, value, report),
            None => report.add(unknown(&source.place(&key.span()), "table", name, top)),
        }
    }
}

/// The queries that say where keys live.
pub(super) fn lookups(source: &Source<'_>) -> Vec<Lookup> {
    let tables = source.root().get("sharded_tables");
    let mut found = Vec::new();
    for row in tables.into_iter().flat_map(rows) {
        for key in ["lookup_query", "query"] {
            let Some(value) = row.get(key) else {
                continue;
            };
            let name = text(row, "name").unwrap_or("*");
            let column = text(row, "column").unwrap_or_default();
            found.extend(value.get_ref().as_str().map(|query| Lookup {
                place: source.place(&value.span()),
                label: format!("[[sharded_tables]] {name}.{column}: {key}"),
                query: query.to_owned(),
                is_map: key == "query",
            }));
        }
    }
    found
}

/// One warning per key that has no effect.
pub(super) fn idle_keys(sources: &[&Source<'_>]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |file: &str, place: &str| {
        let line = format!("{file}: {place} is accepted as PgDog's and has no effect");
        if !warnings.contains(&line) {
            warnings.push(line);
        }
    };
    for source in sources {
        for key in source.root().keys() {
            if IDLE_TOP.contains(&&**key.get_ref()) {
                warn(source.file, &format!("[{}]", key.get_ref()));
            }
        }
        for section in sections() {
            let Some(value) = source.root().get(section.name) else {
                continue;
            };
            for key in rows(value).into_iter().flat_map(DeTable::keys) {
                let key = &**key.get_ref();
                if section.idle.contains(&key) && !section.fields.contains(&key) {
                    warn(source.file, &format!("{key} in [{}]", section.name));
                }
            }
        }
    }
    warnings
}

fn check_mappings(
    source: &Source<'_>,
    sections: &[Section],
    tables: &Spanned<DeValue<'_>>,
    report: &mut Report,
) {
    let Some(section) = sections.iter().find(|s| s.name == "sharded_tables.mapping") else {
        return;
    };
    for mapping in rows(tables).into_iter().filter_map(|t| t.get("mapping")) {
        check_section(source, section, mapping, report);
    }
}

fn check_section(
    source: &Source<'_>,
    section: &Section,
    value: &Spanned<DeValue<'_>>,
    report: &mut Report,
) {
    let cells = rows(value)
        .into_iter()
        .flat_map(|row| row.iter().map(move |(key, value)| (row, key, value)));
    for (row, key, value) in cells {
        let name = &**key.get_ref();
        if section.fields.contains(&name) || section.idle.contains(&name) {
            continue;
        }
        let harmless = HARMLESS.iter().any(|(key, harmless)| {
            *key == name
                && match value.get_ref() {
                    DeValue::String(text) => text == harmless,
                    DeValue::Boolean(flag) => flag.to_string() == *harmless,
                    DeValue::Integer(_)
                    | DeValue::Float(_)
                    | DeValue::Datetime(_)
                    | DeValue::Array(_)
                    | DeValue::Table(_) => false,
                }
        });
        if harmless {
            continue;
        }
        let place = source.place(&key.span());
        let table = format!("[{}]", section.name);
        match section.refused.iter().find(|(refused, _)| *refused == name) {
            Some((_, why)) => {
                let why = format!("{place}: {name} in {table} is not accepted: {why}");
                match section.database.and_then(|key| text(row, key)) {
                    Some(database) => report.set_aside(database, why),
                    None => report.add(why),
                }
            }
            None => {
                let problem = unknown(&place, "key", name, section.fields);
                report.add(format!("{problem} (in {table})"));
            }
        }
    }
}

/// A string of a table.
fn text<'v>(row: &'v DeTable<'_>, key: &str) -> Option<&'v str> {
    row.get(key)?.get_ref().as_str()
}

/// The tables of a section, written once or as an array.
fn rows<'v, 't>(value: &'v Spanned<DeValue<'t>>) -> Vec<&'v DeTable<'t>> {
    match value.get_ref() {
        DeValue::Table(table) => vec![table],
        DeValue::Array(rows) => rows
            .iter()
            .filter_map(|row| row.get_ref().as_table())
            .collect(),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => Vec::new(),
    }
}

fn unknown(place: &str, what: &str, key: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(key, name), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3);
    match nearest {
        Some((_, name)) => format!("{place}: unknown {what} {key}; did you mean {name}?"),
        None => format!("{place}: unknown {what} {key}"),
    }
}

/// The fields of a struct as serde knows them.
pub(super) fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // The result is always the error of `FieldNames`: nothing is built, only the names are taken.
    let _ = T::deserialize(FieldNames(&mut fields));
    fields
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, FieldError> {
        Err(FieldError::custom(
            "only structs are asked for their fields",
        ))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, FieldError> {
        *self.0 = fields;
        Err(FieldError::custom("names taken"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
