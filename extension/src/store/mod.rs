//! Reads of the extension's tables: `scan` for the hooks, `rules` by SPI for functions.

mod rules;
mod scan;

pub(crate) use rules::{hash_rule, lookup, rule_of};
pub(crate) use scan::{relation, scan};
