//! Answers that the shim gives itself, in the shape of whichever protocol the client used. Pure.

use bytes::BytesMut;

use super::batch::{Message, Step};
use super::steps::Asked;
use crate::proto::backend;

/// A result set, or only a tag when there are no columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Local {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Values.
    pub rows: Vec<Vec<Option<String>>>,
    /// Command tag.
    pub tag: String,
}

impl Local {
    /// Only a tag.
    pub fn tag(tag: &str) -> Self {
        Self {
            tag: tag.to_owned(),
            ..Self::default()
        }
    }

    /// One column, one row.
    pub fn value(column: &str, value: String, tag: &str) -> Self {
        Self {
            columns: vec![column.to_owned()],
            rows: vec![vec![Some(value)]],
            tag: tag.to_owned(),
        }
    }

    /// Writes the whole answer to what was asked.
    pub fn write(&self, asked: &Asked<'_>, out: &mut BytesMut) {
        self.write_head(asked, out);
        if asked.executes() {
            self.write_tail(asked, out);
        }
    }

    /// Writes the answers to Parse, Bind and Describe: what comes before the command's outcome.
    pub fn write_head(&self, asked: &Asked<'_>, out: &mut BytesMut) {
        match asked {
            Asked::Simple { .. } => {
                if !self.columns.is_empty() {
                    self.description(out);
                }
            }
            Asked::Extended(step) => {
                for message in &step.messages {
                    match message {
                        Message::Parse { .. } => backend::parse_complete(out),
                        Message::Bind { .. } => backend::bind_complete(out),
                        Message::DescribeStatement { .. } => {
                            backend::parameter_description(parameters(step), out);
                            self.description(out);
                        }
                        Message::DescribePortal { .. } => self.description(out),
                        Message::Execute { .. } => return,
                        Message::CloseStatement
                        | Message::CloseOwn { .. }
                        | Message::ClosePortal { .. } => {
                            backend::close_complete(out);
                        }
                    }
                }
            }
        }
    }

    /// Writes the outcome of the command and the answers to what follows it.
    pub fn write_tail(&self, asked: &Asked<'_>, out: &mut BytesMut) {
        if !self.columns.is_empty() {
            for row in &self.rows {
                let row: Vec<_> = row.iter().map(Option::as_deref).collect();
                backend::data_row(&row, out);
            }
        }
        match self.tag.is_empty() {
            true => backend::empty_query(out),
            false => backend::command_complete(&self.tag, out),
        }
        write_closes(asked, out);
    }

    fn description(&self, out: &mut BytesMut) {
        match self.columns.is_empty() {
            true => backend::no_data(out),
            false => {
                let names: Vec<_> = self.columns.iter().map(String::as_str).collect();
                backend::row_description(&names, out);
            }
        }
    }
}

/// Types of the parameters of a statement that is explained, where the client has named all of
/// them; else it is told of none.
fn parameters<'s>(step: &'s Step<'_>) -> &'s [u32] {
    let explained = step.statement().and_then(|one| one.explained.as_ref());
    let declared = step.subject.as_ref().map_or(&[][..], |one| &one.types);
    let fits = explained.is_some_and(|one| one.params <= declared.len());
    match fits && declared.iter().all(|oid| *oid != 0) {
        true => declared,
        false => &[],
    }
}

/// Answers to the Closes behind an Execute.
pub fn write_closes(asked: &Asked<'_>, out: &mut BytesMut) {
    if let Asked::Extended(step) = asked {
        let after = step
            .messages
            .iter()
            .skip_while(|m| !matches!(m, Message::Execute { .. }));
        after.skip(1).for_each(|_| backend::close_complete(out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanCache;
    use crate::proto::frontend::{self, Subject};
    use crate::proto::{Frame, frame};
    use crate::session::batch::{Names, split};
    use crate::session::prepared::Registry;

    fn tags(bytes: &[u8]) -> String {
        frame::frames(bytes)
            .map(|message| message.unwrap().0 as char)
            .collect()
    }

    #[test]
    fn every_message_of_a_step_gets_its_answer_in_order() {
        let mut sent = BytesMut::new();
        frontend::parse("", "SHOW pgdog.role", &[], &mut sent);
        frontend::bind("", "", &[], &mut sent);
        frontend::describe(Subject::Portal(""), &mut sent);
        frontend::execute("", 0, &mut sent);
        frontend::close(Subject::Portal(""), &mut sent);
        let frames: Vec<Frame> = std::iter::from_fn(|| frame::take(&mut sent).unwrap()).collect();
        let mut names = Names::default();
        let (registry, plans) = (Registry::default(), PlanCache::new(1 << 20));
        let batch = split(&frames, &mut names, &registry, &plans).unwrap();
        let mut out = BytesMut::new();
        let answer = Local::value("pgdog.role", "auto".into(), "SHOW");
        answer.write(&Asked::Extended(&batch.steps[0]), &mut out);
        assert_eq!(tags(&out), "12TDC3");
    }

    #[test]
    fn a_simple_query_gets_rows_or_a_tag() {
        let asked = Asked::Simple {
            sql: "",
            statement: None,
        };
        let mut out = BytesMut::new();
        Local::value("a", "1".into(), "SHOW").write(&asked, &mut out);
        Local::tag("SET").write(&asked, &mut out);
        Local::default().write(&asked, &mut out);
        assert_eq!(tags(&out), "TDCCI");
    }
}
