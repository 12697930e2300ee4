//! What a step works with, and what it answers.

use std::time::Duration;

use futures_util::future::try_join_all;
use pgdog_core::ids::ShardNumber;
use pgdog_core::workflow::Event;
use serde_json::Value;

use crate::nodes::Address;

use super::error::WorkflowError;
use super::node::Node;
use super::site::Site;
use super::task::Task;

/// A task with the sessions that every step needs.
pub struct Work<'a> {
    /// Where the shards are.
    pub site: &'a Site,
    /// The row as it was when the step began.
    pub task: &'a Task,
    /// Session on shard 0.
    pub lead: &'a Node,
    /// Session on the new shard; it holds the advisory lock.
    pub target: &'a Node,
    /// Number of the new shard.
    pub shard: ShardNumber,
    /// Where the new shard is.
    pub address: &'a Address,
}

impl Work<'_> {
    /// One more session on the new shard.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn another_target(&self) -> Result<Node, WorkflowError> {
        Node::connect(self.site, self.address, Some(self.task.id())).await
    }

    /// A session on every shard that served before, in order.
    ///
    /// # Errors
    /// When one cannot be reached.
    pub async fn old_shards(&self) -> Result<Vec<Node>, WorkflowError> {
        let task = Some(self.task.id());
        let addresses = self.site.old_shards(self.shard).iter();
        try_join_all(addresses.map(|address| Node::connect(self.site, address, task))).await
    }
}

/// What follows from one step.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// The state's work is done, or failed for good: this event tells which.
    Advance(Event, Value),
    /// Nothing to report; do the step again after this while.
    Wait(Duration),
}
