//! One view of what a client asked, whichever protocol it used. Pure.

use std::ops::Range;

use super::batch::{End, Step};
use super::work::Work;
use crate::plan::Statement;
use crate::route::{NoParams, Params};

/// Statements of one message or batch.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A simple query.
    Simple {
        /// The whole text.
        sql: &'a str,
        /// Its statements; empty: the text is no SQL, and some server shall say so.
        statements: &'a [Statement],
        /// How many characters further on it stands in what the client has sent.
        further: isize,
    },
    /// A batch of the extended protocol.
    Extended {
        /// Its steps.
        steps: &'a [Step<'a>],
        /// How it ends.
        end: End,
    },
}

/// One statement that is asked for.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// In a simple query.
    Simple {
        /// Its text.
        sql: &'a str,
        /// What it is; None for what is no SQL.
        statement: Option<&'a Statement>,
    },
    /// In a batch.
    Extended(&'a Step<'a>),
}

impl<'a> Input<'a> {
    /// How many statements.
    pub fn len(&self) -> usize {
        match self {
            Input::Simple { statements, .. } => statements.len().max(1),
            Input::Extended { steps, .. } => steps.len(),
        }
    }

    /// Whether it is a simple query of several statements.
    pub fn is_several(&self) -> bool {
        matches!(self, Input::Simple { statements, .. } if statements.len() > 1)
    }

    /// One of them.
    pub fn at(&self, index: usize) -> Asked<'a> {
        match self {
            Input::Simple {
                sql, statements, ..
            } => Asked::Simple {
                sql: statements
                    .get(index)
                    .map_or(*sql, |s| sql.get(s.span.clone()).unwrap_or(sql)),
                statement: statements.get(index),
            },
            Input::Extended { steps, .. } => Asked::Extended(&steps[index]),
        }
    }

    /// The first of some that is executed, else the first.
    pub fn lead(&self, range: &Range<usize>) -> usize {
        let executed = range.clone().find(|index| self.at(*index).executes());
        executed.unwrap_or(range.start)
    }

    /// Whether any of some is executed.
    pub fn executes(&self, range: &Range<usize>) -> bool {
        range.clone().any(|index| self.at(index).executes())
    }

    /// Bytes that one of them takes in a batch.
    pub fn len_bytes(&self, index: usize) -> usize {
        match self {
            Input::Simple { .. } => 0,
            Input::Extended { steps, .. } => steps[index].len_bytes(),
        }
    }

    /// Some of them, to be sent in one go.
    pub fn work(&self, from: usize, to: usize) -> Work<'a> {
        match self {
            Input::Simple {
                sql,
                statements,
                further,
            } if from == 0 && to >= statements.len() => match further {
                0 => Work::Query(sql),
                further => Work::Part(sql, *further),
            },
            Input::Simple {
                sql,
                statements,
                further,
            } => {
                let span = statements[from].span.start..statements[to - 1].span.end;
                let before = sql.get(..span.start).unwrap_or_default().chars().count();
                Work::Part(sql.get(span).unwrap_or(sql), further + before.cast_signed())
            }
            Input::Extended { steps, .. } => Work::Steps(&steps[from..to]),
        }
    }

    /// Whether more may follow that belongs to the same implicit transaction.
    pub fn is_open_ended(&self) -> bool {
        match self {
            Input::Simple { .. } => false,
            Input::Extended { steps, end } => {
                *end == End::Flush && steps.iter().any(|step| step.bind.is_some())
            }
        }
    }
}

impl<'a> Asked<'a> {
    /// What it is.
    pub fn statement(&self) -> Option<&'a Statement> {
        match self {
            Asked::Simple { statement, .. } => *statement,
            Asked::Extended(step) => step.statement(),
        }
    }

    /// Its text.
    pub fn sql(&self) -> &'a str {
        match self {
            Asked::Simple { sql, .. } => sql,
            Asked::Extended(step) => step.sql(),
        }
    }

    /// Its parameters.
    pub fn params(&self) -> &'a (dyn Params + Sync) {
        match self {
            Asked::Simple { .. } => &NoParams,
            Asked::Extended(step) => *step,
        }
    }

    /// The types of its parameters that the client has named.
    pub fn declared(&self) -> &'a [u32] {
        match self {
            Asked::Simple { .. } => &[],
            Asked::Extended(step) => step.subject.as_ref().map_or(&[], |subject| &subject.types),
        }
    }

    /// Whether its parameters are there, so that it goes where they lead: it is run now, or its
    /// portal is.
    pub fn leads(&self) -> bool {
        match self {
            Asked::Simple { .. } => true,
            Asked::Extended(step) => step.executes || step.bind.is_some(),
        }
    }

    /// Whether it is run, not only parsed or described.
    pub fn executes(&self) -> bool {
        match self {
            Asked::Simple { .. } => true,
            Asked::Extended(step) => step.executes,
        }
    }
}
