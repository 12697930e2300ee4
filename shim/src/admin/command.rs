//! The shape of a command and of its answer.

use std::future::Future;
use std::pin::Pin;

use pgdog_core::fault::Fault;

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
