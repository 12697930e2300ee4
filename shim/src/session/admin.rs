//! The admin database: the same protocols, commands instead of SQL.

use std::sync::Arc;

use pgdog_core::fault::Fault;

use super::batch::{Batch, End, Names, split};
use super::client::{Client, Gone};
use super::faults;
use super::local::Local;
use super::services::{AdminResult, Services};
use super::steps::Asked;
use crate::proto::{ErrorFields, Frame, Frontend, Severity, TxStatus, backend};

/// Serves an operator until he leaves.
///
/// # Errors
/// The client is gone.
pub async fn serve(client: &mut Client, services: &Arc<Services>) -> Result<(), Gone> {
    for (name, value) in PARAMETERS {
        backend::parameter_status(name, value, &mut client.out);
    }
    let (key, _running) = services.enter_cancel(client.protocol_minor);
    backend::backend_key_data(&key, &mut client.out);
    backend::ready_for_query(TxStatus::Idle, &mut client.out);
    services.leave_cancel(&key);
    let mut desk = Desk {
        client,
        services,
        names: Names::default(),
        frames: Vec::new(),
    };
    loop {
        desk.client.flush().await?;
        let frame = desk.client.read().await?;
        if !desk.take(frame).await? {
            return Ok(());
        }
    }
}

/// What drivers want to know.
const PARAMETERS: [(&str, &str); 6] = [
    (
        "server_version",
        concat!("15.0 (pgdog ", env!("CARGO_PKG_VERSION"), ")"),
    ),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
];

struct Desk<'a> {
    client: &'a mut Client,
    services: &'a Arc<Services>,
    names: Names,
    frames: Vec<Frame>,
}

impl Desk<'_> {
    /// False: the client leaves.
    async fn take(&mut self, frame: Frame) -> Result<bool, Gone> {
        match Frontend::parse(&frame)? {
            Frontend::Terminate => return Ok(false),
            Frontend::Query { sql } => {
                self.simple(sql).await;
                self.ready();
            }
            Frontend::Sync => {
                self.batch(End::Sync).await?;
                self.ready();
            }
            Frontend::Flush => self.batch(End::Flush).await?,
            Frontend::CopyData(_) | Frontend::CopyDone | Frontend::CopyFail { .. } => {}
            Frontend::FunctionCall(_) | Frontend::Password(_) => {
                self.error(&faults::function_call());
                self.ready();
            }
            Frontend::Parse { .. }
            | Frontend::Bind(_)
            | Frontend::Describe(_)
            | Frontend::Execute { .. }
            | Frontend::Close(_) => self.frames.push(frame),
        }
        Ok(true)
    }

    fn ready(&mut self) {
        backend::ready_for_query(TxStatus::Idle, &mut self.client.out);
    }

    fn error(&mut self, fields: &ErrorFields) {
        backend::error_fields(Severity::Error, fields, &mut self.client.out);
    }

    async fn simple(&mut self, sql: &str) {
        let commands = commands(sql);
        if commands.is_empty() {
            backend::empty_query(&mut self.client.out);
        }
        for command in commands {
            match self.run(command).await {
                Ok(answer) => {
                    let asked = Asked::Simple {
                        sql: command,
                        statement: None,
                    };
                    answer.write(&asked, &mut self.client.out);
                }
                Err(fault) => return self.error(&ErrorFields::from(&fault)),
            }
        }
    }

    async fn batch(&mut self, _end: End) -> Result<(), Gone> {
        let frames = std::mem::take(&mut self.frames);
        let services = self.services.clone();
        let batch = split(
            &frames,
            &mut self.names,
            &services.prepared,
            &services.plans,
        )?;
        self.steps(&batch).await;
        Ok(())
    }

    async fn steps(&mut self, batch: &Batch<'_>) {
        for step in &batch.steps {
            let command = commands(step.sql()).first().copied().unwrap_or_default();
            // A Describe alone must not do anything: only what shows something is asked.
            let shows = command
                .get(..4)
                .is_some_and(|word| word.eq_ignore_ascii_case("show"));
            let answer = match step.executes || shows {
                true => self.run(command).await,
                false => Ok(Local::default()),
            };
            match answer {
                Ok(answer) => answer.write(&Asked::Extended(step), &mut self.client.out),
                Err(fault) => return self.error(&ErrorFields::from(&fault)),
            }
        }
        if let Some(fields) = &batch.error {
            self.error(fields);
        }
    }

    async fn run(&self, command: &str) -> Result<Local, Fault> {
        // What drivers send by themselves around a command.
        let word = command.split_ascii_whitespace().next().unwrap_or_default();
        for tag in ["BEGIN", "COMMIT", "ROLLBACK"] {
            if word.eq_ignore_ascii_case(tag) {
                return Ok(Local::tag(tag));
            }
        }
        let Some(handler) = self.services.admin.get() else {
            return Err(Fault::WrongState {
                what: "cannot run operator commands".to_owned(),
                why: "the process is still starting".to_owned(),
                hint: None,
            });
        };
        let AdminResult { columns, rows, tag } = handler.run(command).await?;
        Ok(Local { columns, rows, tag })
    }
}

/// The commands of a text, without their semicolons; those inside quotes do not count.
fn commands(sql: &str) -> Vec<&str> {
    let mut commands = Vec::new();
    let (mut start, mut quote) = (0, None);
    for (at, c) in sql.char_indices() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, ';') => {
                commands.push(&sql[start..at]);
                start = at + 1;
            }
            (None | Some(_), _) => {}
        }
    }
    commands.push(&sql[start..]);
    commands
        .into_iter()
        .map(str::trim)
        .filter(|command| !command.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_end_at_semicolons_outside_of_quotes() {
        assert_eq!(
            commands("SHOW TASKS; SET x TO 'a;b' ;"),
            ["SHOW TASKS", "SET x TO 'a;b'"]
        );
        assert!(commands(" ; ").is_empty());
    }
}
