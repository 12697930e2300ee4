//! `SHOW CLIENTS`: who is connected.

use pgdog_core::fault::Fault;

use super::command::{cell, flag, time_before};
use super::{Admin, Args, Command, Output};

pub(super) const COMMAND: Command = Command {
    words: &["SHOW", "CLIENTS"],
    usage: "SHOW CLIENTS [<column>, ...]",
    run: |admin, args| Box::pin(run(admin, args)),
};

/// PgDog's columns, then ours. What is not measured is NULL; times are in ms.
const COLUMNS: &[&str] = &[
    "id",
    "user",
    "database",
    "addr",
    "port",
    "state",
    "replication",
    "connect_time",
    "last_request",
    "queries",
    "transactions",
    "transactions_2pc",
    "wait_time",
    "query_time",
    "transaction_time",
    "bytes_received",
    "bytes_sent",
    "errors",
    "application_name",
    "locked",
    "prepared_statements",
    "age",
    "pinned",
];

/// Shown whatever columns are asked for.
const ALWAYS: &[&str] = &["user", "database", "addr", "port"];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    let wanted = columns(args)?;
    let mut output = Output::table(COLUMNS);
    for client in admin.host().clients() {
        let ms = |us: u64| cell(format!("{:.3}", us as f64 / 1000.0));
        output.push(vec![
            cell(client.id),
            Some(client.user),
            Some(client.database),
            Some(client.addr),
            cell(client.port),
            Some(client.state),
            cell("none"),
            cell(time_before(client.connected_s)),
            None,
            cell(client.queries),
            cell(client.transactions),
            None,
            ms(client.wait_us),
            ms(client.query_us),
            ms(client.transaction_us),
            cell(client.received_bytes),
            cell(client.sent_bytes),
            cell(client.errors),
            Some(client.application_name),
            flag(!client.pinned.is_empty()),
            None,
            cell(client.connected_s),
            Some(client.pinned),
        ]);
    }
    Ok(match wanted.is_empty() {
        true => output,
        false => output.only(|column| ALWAYS.contains(&column) || wanted.contains(&column)),
    })
}

/// The columns that are asked for; none are all.
fn columns(args: &Args) -> Result<Vec<&'static str>, Fault> {
    let words = args.words.iter().flat_map(|word| word.split(','));
    words
        .filter(|word| !word.is_empty())
        .map(|word| {
            let known = COLUMNS
                .iter()
                .find(|column| column.eq_ignore_ascii_case(word));
            known.copied().ok_or_else(|| Fault::Syntax {
                message: format!("SHOW CLIENTS has no column \"{word}\""),
                position: None,
            })
        })
        .collect()
}
