//! One file: its text, where things stand in it, and how it becomes a typed value.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::keys::Report;

/// Problems of one file that are worth telling at once.
const PROBLEMS: usize = 50;

/// A file that is well-formed TOML.
pub(super) struct Source<'t> {
    /// How messages name it.
    pub(super) file: &'static str,
    text: &'t str,
    root: Spanned<DeTable<'t>>,
}

impl<'t> Source<'t> {
    /// Parses a file; a syntax error goes to the report with its place.
    pub(super) fn parse(file: &'static str, text: &'t str, report: &mut Report) -> Option<Self> {
        match DeTable::parse(text) {
            Ok(root) => Some(Self { file, text, root }),
            Err(error) => {
                let line = line_of(text, error.span().map_or(0, |span| span.start));
                let why = one_line(error.message());
                report.add(format!("{file}, line {line}: {why}"));
                None
            }
        }
    }

    /// The top of the file.
    pub(super) fn root(&self) -> &DeTable<'t> {
        self.root.get_ref()
    }

    /// `file, line N`, as messages begin.
    pub(super) fn place(&self, span: &Range<usize>) -> String {
        format!("{}, line {}", self.file, line_of(self.text, span.start))
    }

    /// Settings of `[general]` that count before those of the file; see [`general_literal`].
    pub(super) fn set_general(&mut self, literal: &'t str) {
        let Ok(literal) = DeTable::parse(literal) else {
            return;
        };
        for (name, section) in literal.into_inner() {
            let general = self
                .root
                .get_mut()
                .entry(name)
                .or_insert_with(|| Spanned::new(0..0, DeValue::Table(DeTable::new())));
            if let (DeValue::Table(ours), DeValue::Table(theirs)) =
                (general.get_mut(), section.into_inner())
            {
                for (name, value) in theirs {
                    ours.remove(&name);
                    ours.insert(name, value);
                }
            }
        }
    }

    /// The file as a value. What has a wrong type or is missing goes to the report; the rest is
    /// read without it, so that one round shows everything.
    pub(super) fn read<T: DeserializeOwned + Default>(&self, report: &mut Report) -> T {
        let mut root = self.root.clone();
        for _ in 0..PROBLEMS {
            let error = match T::deserialize(Deserializer::from(root.clone())) {
                Ok(value) => return value,
                Err(error) => error,
            };
            let span = error.span().unwrap_or(0..0);
            let why = one_line(error.message());
            report.add(format!("{}: {why}", self.place(&span)));
            if !take_out(root.get_mut(), &span) {
                break;
            }
        }
        T::default()
    }
}

/// A setting as the file would have it. What is no value of TOML is meant as a string.
pub(super) fn general_literal(name: &str, value: &str) -> String {
    let plain = format!("[general]\n{name} = {value}\n");
    match DeTable::parse(&plain) {
        Ok(_) => plain,
        Err(_) => {
            let quoted = toml::Value::String(value.to_owned());
            format!("[general]\n{name} = {quoted}\n")
        }
    }
}

/// Removes the smallest part that contains the span: an entry of a table or of an array of tables.
fn take_out(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    let mut inside = None;
    for (key, value) in table.iter_mut() {
        let place = value.span();
        let taken = match value.get_mut() {
            DeValue::Table(table) => take_out(table, span),
            DeValue::Array(items) => take_out_of_array(items, span),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => false,
        };
        if taken {
            return true;
        }
        if contains(&place, span) || key.span() == *span {
            inside = Some(key.get_ref().to_string());
        }
    }
    match inside {
        Some(key) => table.remove(key.as_str()).is_some(),
        None => false,
    }
}

fn take_out_of_array(items: &mut [Spanned<DeValue<'_>>], span: &Range<usize>) -> bool {
    for item in items.iter_mut() {
        let DeValue::Table(table) = item.get_mut() else {
            continue;
        };
        if take_out(table, span) {
            return true;
        }
    }
    false
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    !inner.is_empty() && outer.start <= inner.start && inner.end <= outer.end
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    before.bytes().filter(|byte| *byte == b'\n').count() + 1
}

/// The parser's message without its picture of the source.
fn one_line(message: &str) -> String {
    message.replace('\n', ", ")
}
