//! The shape of a command and of its answer.

use std::pin::Pin;
use std::time::Duration;

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

    /// The same with some of the columns only.
    #[must_use]
    pub fn only(mut self, wanted: impl Fn(&str) -> bool) -> Self {
        let kept: Vec<bool> = self.columns.iter().map(|column| wanted(column)).collect();
        let mut keep = kept.iter().cycle();
        self.columns.retain(|_| keep.next() == Some(&true));
        for row in &mut self.rows {
            let mut keep = kept.iter();
            row.retain(|_| keep.next() == Some(&true));
        }
        self
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

/// The time so many seconds ago, in UTC.
pub(super) fn time_before(seconds: u64) -> String {
    let now = std::time::SystemTime::now();
    let then = now.checked_sub(Duration::from_secs(seconds)).unwrap_or(now);
    let epoch = then
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    utc(epoch.as_secs())
}

/// A Unix time as `2026-11-30 10:00:00 UTC`.
///
/// Days to date: <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>
fn utc(unix: u64) -> String {
    let (days, second) = (unix / 86_400 + 719_468, unix % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_time_is_a_date() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_796_036_645), "2026-11-30 11:04:05 UTC");
    }

    #[test]
    fn some_columns_are_kept_in_every_row() {
        let mut output = Output::table(&["a", "b", "c"]);
        output.push(vec![cell(1), cell(2), cell(3)]);
        output.push(vec![cell(4), cell(5), cell(6)]);
        let output = output.only(|column| column != "b");
        assert_eq!(output.columns, ["a", "c"]);
        assert_eq!(output.rows[1], [cell(4), cell(6)]);
    }
}
