//! `SHOW TASKS`: topology tasks, the newest first.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::nodes::tasks::{self, Task};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "TASKS"],
    usage: "SHOW TASKS",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &[
    "id",
    "scope",
    "type",
    "status",
    "inner_status",
    "started_at",
    "updated_at",
    "elapsed",
    "elapsed_ms",
    "tables_done",
    "tables_total",
    "rows_done",
    "rows_total",
    "bytes_done",
    "bytes_total",
    "lag_bytes",
    "retained_wal_bytes",
    "pause_ms",
    "error",
];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    args.none()?;
    let mut output = Output::table(COLUMNS);
    for cluster in admin
        .host()
        .clusters()
        .into_iter()
        .filter(|cluster| !cluster.is_plain())
    {
        for task in tasks::list(&cluster).await? {
            output.push(row(cluster.name(), &task));
        }
    }
    Ok(output)
}

fn row(database: &str, task: &Task) -> Vec<Option<String>> {
    let elapsed_ms = task.number("elapsed_ms").unwrap_or(0).max(0);
    let text = |column: &str| task.text(column);
    vec![
        cell(task.task_id),
        cell(format!(
            "{database} shard {}",
            text("shard").unwrap_or_default()
        )),
        text("type"),
        text("status"),
        text("inner_status"),
        text("started_at"),
        text("updated_at"),
        cell(human(elapsed_ms)),
        cell(elapsed_ms),
        text("tables_done"),
        text("tables_total"),
        text("rows_done"),
        text("rows_total"),
        text("bytes_done"),
        text("bytes_total"),
        text("lag_bytes"),
        text("retained_wal_bytes"),
        text("pause_ms"),
        text("error"),
    ]
}

/// `1h 02m 03s`, `2m 03s`, `3.4s`.
fn human(ms: i64) -> String {
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}.{}s", ms / 100 % 10),
        (0, _) => format!("{minutes}m {seconds:02}s"),
        (_, _) => format!("{hours}h {minutes:02}m {seconds:02}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_is_readable() {
        assert_eq!(human(3456), "3.4s");
        assert_eq!(human(123_000), "2m 03s");
        assert_eq!(human(3_723_000), "1h 02m 03s");
    }

    #[test]
    fn a_row_has_a_cell_for_each_column_and_null_stays_null() {
        let task = Task {
            task_id: pgdog_core::ids::TaskId(7),
            row: serde_json::from_str(
                r#"{"task_id":7,"shard":2,"type":"add_shard","status":"fencing","error":null}"#,
            )
            .expect("valid"),
        };
        let row = row("prod", &task);
        assert_eq!(row.len(), COLUMNS.len());
        assert_eq!(row[1].as_deref(), Some("prod shard 2"));
        assert_eq!(row[3].as_deref(), Some("fencing"));
        assert_eq!(row[18], None);
    }
}
