//! A task as it goes: bars on a terminal, one line per state elsewhere.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};

use super::tasks_link::{Link, Table};

/// Between two looks at the task, five times a second: as often as a bar need move.
const POLL: Duration = Duration::from_millis(200);

/// When to stop following.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The new shard serves and nothing is left to clean.
    Done,
    /// It waits for the cutover.
    Parked,
    /// It is undone.
    Stopped,
}

impl Until {
    /// Whether a task in this state needs no more following.
    fn reached(self, status: &str) -> bool {
        match status {
            "done" | "aborted" => true,
            "broken" => self != Self::Stopped,
            "awaiting cutover" => self == Self::Parked,
            _ => false,
        }
    }
}

/// Shows the task until it gets there; its last row.
pub(super) async fn follow(link: &Link, task: &str, until: Until) -> anyhow::Result<Table> {
    let mut view = View::new();
    loop {
        let row = link.ask("SHOW TASKS").await?.only("id", task);
        let status = row
            .first("status")
            .with_context(|| format!("task {task} is gone"))?;
        view.show(&row, status);
        if until.reached(status) {
            view.end();
            return Ok(row);
        }
        // The admin database answers questions and tells nothing by itself.
        tokio::time::sleep(POLL).await;
    }
}

/// An error unless the task ended as it was asked to.
pub(super) fn verdict(row: &Table, until: Until) -> anyhow::Result<()> {
    let status = row.first("status").unwrap_or("unknown");
    let error = row
        .first("error")
        .map(|error| format!(": {error}"))
        .unwrap_or_default();
    match (until, status) {
        (Until::Done | Until::Parked, "done")
        | (Until::Parked, "awaiting cutover")
        | (Until::Stopped, "aborted") => Ok(()),
        _ => bail!("the task is {status}{error}"),
    }
}

struct View {
    bar: ProgressBar,
    terminal: bool,
    last_status: String,
    last_error: String,
    copying_since: Option<Instant>,
}

impl View {
    fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = match terminal {
            true => ProgressBar::new(0),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template(
            "{prefix:>17} {bar:30.cyan/blue} {percent:>3}% {msg} [{elapsed}]",
        );
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self {
            bar,
            terminal,
            last_status: String::new(),
            last_error: String::new(),
            copying_since: None,
        }
    }

    fn show(&mut self, row: &Table, status: &str) {
        if status == "syncing data" && self.copying_since.is_none() {
            self.copying_since = Some(Instant::now());
        }
        let message = message(row, status, self.copying_since);
        let error = row.first("error").unwrap_or_default();
        if self.terminal {
            let number = |column| row.first(column).and_then(|n| n.parse().ok()).unwrap_or(0);
            self.bar.set_length(number("rows_total").max(1));
            self.bar
                .set_position(number("rows_done").min(number("rows_total")));
            self.bar.set_prefix(status.to_owned());
            self.bar.set_message(message);
            if error != self.last_error && !error.is_empty() {
                self.bar.println(format!("{status}: {error}"));
            }
            self.bar.tick();
        } else if status != self.last_status || error != self.last_error {
            eprintln!(
                "{status}: {message}{}{error}",
                if error.is_empty() { "" } else { "; " }
            );
        }
        self.last_status = status.to_owned();
        self.last_error = error.to_owned();
    }

    fn end(&self) {
        self.bar.finish();
    }
}

/// `3/11 tables, 120000/137579 rows, 8 MiB/s, 2 s left, lag 12 KiB, WAL kept 3 MiB`.
fn message(row: &Table, status: &str, copying_since: Option<Instant>) -> String {
    let number = |column: &str| row.first(column).and_then(|text| text.parse::<u64>().ok());
    let mut parts = Vec::new();
    if let (Some(done), Some(total)) = (number("tables_done"), number("tables_total")) {
        parts.push(format!("{done}/{total} tables"));
    }
    if let (Some(done), Some(total)) = (number("rows_done"), number("rows_total")) {
        parts.push(format!("{done}/{total} rows"));
    }
    if let (Some(done), Some(total)) = (number("bytes_done"), number("bytes_total")) {
        parts.push(format!("{} of {}", HumanBytes(done), HumanBytes(total)));
        let seconds = copying_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        if status == "syncing data" && seconds > 0.5 && done > 0 {
            let rate = done as f64 / seconds;
            let left = Duration::from_secs_f64(total.saturating_sub(done) as f64 / rate);
            parts.push(format!("{}/s", HumanBytes(rate as u64)));
            parts.push(format!("{} left", HumanDuration(left)));
        }
    }
    if let Some(lag) = number("lag_bytes") {
        parts.push(format!("lag {}", HumanBytes(lag)));
    }
    if let Some(kept) = number("retained_wal_bytes") {
        parts.push(format!("WAL kept {}", HumanBytes(kept)));
    }
    if let Some(pause) = row.first("pause_ms") {
        parts.push(format!("omni writes paused {pause} ms"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[(&str, &str)]) -> Table {
        Table {
            columns: cells.iter().map(|(name, _)| (*name).to_owned()).collect(),
            rows: vec![
                cells
                    .iter()
                    .map(|(_, cell)| Some((*cell).to_owned()))
                    .collect(),
            ],
        }
    }

    #[test]
    fn following_ends_where_it_was_asked_to() {
        assert!(Until::Parked.reached("awaiting cutover"));
        assert!(!Until::Done.reached("awaiting cutover"));
        assert!(!Until::Stopped.reached("broken"));
        for until in [Until::Done, Until::Parked, Until::Stopped] {
            assert!(until.reached("done") && until.reached("aborted"));
            assert!(!until.reached("syncing data"));
        }
    }

    #[test]
    fn an_aborted_task_is_a_failure_unless_it_was_stopped() {
        let aborted = row(&[("status", "aborted"), ("error", "wal_level: replica")]);
        let error = verdict(&aborted, Until::Done).unwrap_err().to_string();
        assert!(error.contains("wal_level"), "{error}");
        assert!(verdict(&aborted, Until::Stopped).is_ok());
        assert!(verdict(&row(&[("status", "done")]), Until::Stopped).is_err());
    }

    #[test]
    fn the_message_tells_what_is_known() {
        let text = message(
            &row(&[
                ("tables_done", "3"),
                ("tables_total", "11"),
                ("lag_bytes", "2048"),
            ]),
            "replicating",
            None,
        );
        assert_eq!(text, "3/11 tables, lag 2.00 KiB");
    }
}
