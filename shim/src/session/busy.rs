//! What is answered while every server connection is in use.
//!
//! A client may serve many connections with one thread and wait in that thread for the answer to a
//! Parse, as pgbench does. If it had to wait for a server connection that another client of the
//! thread holds in its transaction, both would wait until the checkout times out. So a statement
//! that a server has accepted before is taken as accepted; it is parsed where it is bound first,
//! and what has become wrong with it meanwhile shows there.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::Session;
use super::batch::{Message, Step};
use super::local::Local;
use super::steps::{Asked, Input};
use crate::nodes::Topology;

/// Names that are kept at most; beyond that all are forgotten, and statements wait for a server.
const KEPT: usize = 100_000;

/// Statements that some server has accepted, by their names there.
#[derive(Debug, Default)]
pub struct Accepted(Mutex<HashSet<String>>);

impl Accepted {
    fn contains(&self, name: &str) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(name)
    }

    fn insert(&self, name: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(name) {
            return;
        }
        if names.len() >= KEPT {
            names.clear();
        }
        names.insert(name.to_owned());
    }
}

impl Session<'_> {
    /// Answers a step that only prepares what is known, when a server could not soon. Tells whether
    /// it did.
    pub(super) fn answer_when_busy(&mut self, asked: &Asked<'_>, topology: &Topology) -> bool {
        let Asked::Extended(step) = asked else {
            return false;
        };
        let answers = self.only_prepares_known(step) && self.is_all_lent(topology);
        if answers {
            Local::default().write(asked, &mut self.client.out);
        }
        answers
    }

    fn only_prepares_known(&self, step: &Step<'_>) -> bool {
        let accepted = &self.services.accepted;
        let known = |message: &Message<'_>| match message {
            Message::Parse { prepared, .. } => {
                prepared.named && accepted.contains(&prepared.server_name)
            }
            Message::CloseStatement | Message::CloseOwn { .. } => true,
            Message::Bind { .. }
            | Message::DescribeStatement { .. }
            | Message::DescribePortal { .. }
            | Message::Execute { .. }
            | Message::ClosePortal { .. } => false,
        };
        step.messages.iter().all(known)
    }

    /// Whether the client holds no server connection, and none of the home shard is left.
    fn is_all_lent(&self, topology: &Topology) -> bool {
        let Ok(home) = self.home(topology) else {
            return false;
        };
        let nodes = topology.shards.get(usize::from(home.0));
        let primary = nodes.map(|nodes| &nodes.primary);
        let mut pools = self.pools.iter();
        self.participants.is_empty()
            && self.pinned.is_none()
            && pools.any(|(node, pool)| Some(&**node) == primary && pool.is_all_lent())
    }

    /// Remembers the statements that a server has accepted.
    pub(super) fn note_accepted(&self, input: &Input<'_>, from: usize, to: usize) {
        let Input::Extended { steps, .. } = input else {
            return;
        };
        for message in steps[from..to].iter().flat_map(|step| &step.messages) {
            if let Message::Parse { prepared, .. } = message
                && prepared.named
            {
                self.services.accepted.insert(&prepared.server_name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_remembered_up_to_a_bound() {
        let accepted = Accepted::default();
        accepted.insert("a");
        assert!(accepted.contains("a") && !accepted.contains("b"));
        (0..KEPT).for_each(|n| accepted.insert(&n.to_string()));
        assert!(!accepted.contains("a"));
        assert!(accepted.contains(&(KEPT - 1).to_string()));
    }
}
