//! The shape of a command and of its answer.

use std::pin::Pin;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::Admin;

/// One verb.
pub struct Command {
    /// Upper-case words it starts with, e.g. `["ADD", "SHARD"]`.
    pub words: &'static [&'static str],
    /// How it is written, e.g. `ADD SHARD <database> <shard> [AUTO] [PUBLICATION <name>]`.
    pub usage: &'static str,
    /// Does it. Written as `run: |admin, args| Box::pin(run(admin, args))`.
    pub run: for<'a> fn(&'a Admin, &'a Args) -> Running<'a>,
}

/// A command at work.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<Output, Fault>> + Send + 'a>>;

/// The words after the verb; quoted ones keep their case and lose their quotes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Args {
    /// In order.
    pub words: Vec<String>,
    /// The command's usage, for errors.
    pub usage: &'static str,
}

impl Args {
    /// For commands that take nothing.
    ///
    /// # Errors
    /// 42601.
    pub fn none(&self) -> Result<(), Fault> {
        if self.words.is_empty() {
            Ok(())
        } else {
            Err(self.misused())
        }
    }

    /// The word at this place.
    ///
    /// # Errors
    /// 42601.
    pub fn word(&self, at: usize) -> Result<&str, Fault> {
        self.words
            .get(at)
            .map(String::as_str)
            .ok_or_else(|| self.misused())
    }

    /// The number at this place.
    ///
    /// # Errors
    /// 42601.
    pub fn number(&self, at: usize) -> Result<i64, Fault> {
        self.word(at)?.parse().map_err(|_| self.misused())
    }

    /// The shard number at this place.
    ///
    /// # Errors
    /// 42601.
    pub fn shard(&self, at: usize) -> Result<ShardNumber, Fault> {
        self.word(at)?.parse().map_err(|_| self.misused())
    }

    /// 42601 with the usage.
    pub fn misused(&self) -> Fault {
        Fault::Syntax {
            message: format!("usage: {}", self.usage),
            position: None,
        }
    }
}

/// A result set, or only a tag when there are no columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// Values as text.
    pub rows: Vec<Vec<Option<String>>>,
    /// Command tag, `SHOW` or the verb; empty for an empty query.
    pub tag: String,
}

impl Output {
    /// An empty table.
    pub fn table(columns: &[&'static str]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
            tag: "SHOW".into(),
        }
    }

    /// Only a tag.
    pub fn done(tag: &str) -> Self {
        Self {
            tag: tag.into(),
            ..Self::default()
        }
    }

    /// Adds a row; it has as many cells as there are columns.
    pub fn push(&mut self, cells: Vec<Option<String>>) {
        assert_eq!(
            cells.len(),
            self.columns.len(),
            "one cell per column of {}",
            self.columns[0]
        );
        self.rows.push(cells);
    }
}

/// A cell with a value.
pub(super) fn cell(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

/// `t` or `f`, as PostgreSQL prints a boolean.
pub(super) fn flag(value: bool) -> Option<String> {
    cell(if value { "t" } else { "f" })
}
