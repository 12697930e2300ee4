//! Finds unfinished tasks and drives them by their state.
//!
//! Every shim runs one driver per database. Who holds the advisory lock on the *new* shard works
//! (`lock`); a killed coordinator is replaced within a second, a frozen one within ten.

use std::sync::Arc;
use std::time::Duration;

use pgdog_core::ids::{ShardNumber, TaskId};
use pgdog_core::workflow::{Event, State};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::nodes::{Address, Cluster};

use super::error::WorkflowError;
use super::node::Node;
use super::site::Site;
use super::task::{self, Task};
use super::work::{Next, Work};
use super::{cleanup, data, fence, lock, recover, schema, validate};

/// How often shard 0 is asked for tasks.
const POLL: Duration = Duration::from_secs(1);
/// Pause after an error.
const RETRY: Duration = Duration::from_secs(1);
/// Answers of the same kind after which a task that can be undone is given up.
const GIVE_UP_AFTER: u32 = 5;
/// Attempts to reach a new shard that does not answer, before a stop goes on without it.
const UNREACHABLE_AFTER: u32 = 10;

/// The hands of one shim for one database.
pub struct Driver {
    cluster: Arc<Cluster>,
    shutdown: CancellationToken,
    /// Shard 0, and where it was when we logged in.
    lead: Option<(Address, Node)>,
    unreachable: u32,
}

impl Driver {
    /// Works until `shutdown`. A step that is under way is left where it is: every step can be
    /// repeated, by us or by another shim.
    pub async fn run(cluster: Arc<Cluster>, shutdown: CancellationToken) {
        let mut driver = Self {
            cluster,
            shutdown: shutdown.clone(),
            lead: None,
            unreachable: 0,
        };
        let rounds = async {
            loop {
                if let Err(error) = driver.round().await {
                    tracing::warn!(database = driver.cluster.name(), %error, "task not driven");
                }
                sleep(POLL).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = rounds => {}
        }
    }

    async fn round(&mut self) -> Result<(), WorkflowError> {
        let site = Site::of(&self.cluster);
        let first = site.first()?;
        // A primary that was replaced may still run, and knows nothing of what comes after.
        let kept = self.lead.take();
        let kept = kept.filter(|(address, lead)| address == first && !lead.is_closed());
        let lead = match kept {
            Some((_, lead)) => lead,
            None => Node::connect(&site, first, None).await?,
        };
        let tasks = task::unfinished(&lead).await?;
        self.lead = Some((first.clone(), lead));
        for task in tasks {
            let cluster = Arc::clone(&self.cluster);
            let flipped = move || {
                let cluster = Arc::clone(&cluster);
                tokio::spawn(async move {
                    // The watcher finds it a second later if this fails.
                    if let Err(error) = cluster.refresh().await {
                        tracing::warn!(%error, "topology not refreshed after the flip");
                    }
                });
            };
            let driven = tokio::select! {
                driven = drive(&site, task, &self.shutdown, flipped) => driven,
                () = a_primary_moves(&self.cluster, &site) => {
                    tracing::warn!(task_id = %task, "a shard has another primary: looking anew");
                    Ok(Outcome::Interrupted)
                }
            };
            match driven {
                Ok(Outcome::Busy | Outcome::Finished | Outcome::Interrupted) => {
                    self.unreachable = 0;
                }
                Err(error) => {
                    self.note(task, &error).await;
                    self.unreachable += 1;
                    if self.unreachable > UNREACHABLE_AFTER {
                        stop_without_target(&site, task).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts the error on the task, where the operator looks.
    async fn note(&self, task: TaskId, error: &WorkflowError) {
        tracing::warn!(task_id = %task, %error, "step failed, will be repeated");
        if let Some((_, lead)) = &self.lead {
            let columns = json!({ "error": error.to_string() });
            // If shard 0 is what failed, the log line above is all there can be.
            let _ = task::progress(lead, task, &columns).await;
        }
    }
}

/// Waits until one of the shards that serve in `site` has another primary. What is under way on the
/// old one, which may still run, must not go on: it would copy and fence what nobody writes to.
async fn a_primary_moves(cluster: &Cluster, site: &Site) {
    let mut changes = cluster.changes();
    loop {
        changes.borrow_and_update();
        let now = Site::of(cluster);
        let same = site
            .serving
            .iter()
            .zip(&now.serving)
            .all(|(then, now)| then == now);
        if !same {
            return;
        }
        if changes.changed().await.is_err() {
            // The cluster has ended, and its driver with it.
            std::future::pending::<()>().await;
        }
    }
}

/// Why [`drive`] came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The task is done or aborted.
    Finished,
    /// Somebody else drives it.
    Busy,
    /// We were asked to end.
    Interrupted,
}

/// Drives one task as far as it goes. `flipped` is called as soon as the new shard serves and again
/// when every shard says so.
///
/// # Errors
/// When a step fails for now; call it again.
pub async fn drive(
    site: &Site,
    task: TaskId,
    shutdown: &CancellationToken,
    flipped: impl Fn(),
) -> Result<Outcome, WorkflowError> {
    let lead = Node::connect(site, site.first()?, Some(task)).await?;
    let row = task::read(&lead, task).await?;
    let shard = row.shard()?;
    let Some(address) = site.new_shard(shard) else {
        return undeclared(&lead, &row, site).await;
    };
    let target = Node::connect(site, address, Some(task)).await?;
    if !lock::take(&target, task).await? {
        return Ok(Outcome::Busy);
    }
    let columns = json!({ "coordinator": site.instance_id });
    task::progress(&lead, task, &columns).await?;
    let base = Base {
        site,
        lead: &lead,
        target: &target,
        shard,
        address,
    };
    tokio::select! {
        outcome = steps(&base, task, shutdown, flipped) => outcome,
        lost = lock::pulse(&target) => {
            // Either the new shard is away, which the next round says, or somebody else took over,
            // and then what stands on the task is his.
            let Err(error) = lost;
            tracing::warn!(task_id = %task, %error, "no longer the coordinator");
            Ok(Outcome::Busy)
        }
    }
}

/// What stays the same from step to step.
struct Base<'a> {
    site: &'a Site,
    lead: &'a Node,
    target: &'a Node,
    shard: ShardNumber,
    address: &'a Address,
}

/// One step after the other.
async fn steps(
    base: &Base<'_>,
    task: TaskId,
    shutdown: &CancellationToken,
    flipped: impl Fn(),
) -> Result<Outcome, WorkflowError> {
    let Base { lead, target, .. } = *base;
    let mut failures = 0;
    loop {
        let row = task::read(lead, task).await?;
        let state = row.state()?;
        if state.is_terminal() {
            return Ok(Outcome::Finished);
        }
        if shutdown.is_cancelled() {
            return Ok(Outcome::Interrupted);
        }
        let work = Work {
            site: base.site,
            task: &row,
            lead,
            target,
            shard: base.shard,
            address: base.address,
        };
        match step(&work, state).await {
            Ok(Next::Advance(event, detail)) => {
                failures = 0;
                advance(lead, task, event, &detail).await?;
                if matches!(event, Event::Decided | Event::Activated) {
                    flipped();
                }
            }
            Ok(Next::Wait(pause)) => {
                failures = 0;
                sleep(pause).await;
            }
            Err(error) if error.is_answer() && !lead.is_closed() && !target.is_closed() => {
                failures += 1;
                fail(lead, &row, &error, failures).await?;
                sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The work of one state.
async fn step(work: &Work<'_>, state: State) -> Result<Next, WorkflowError> {
    if let Some(event) = after_a_lost_decision(work, state).await? {
        return Ok(Next::Advance(event, json!({ "recovered": true })));
    }
    let undo = work.task.stopping || state == State::Lost;
    match state {
        // Only the new shard knows whether a flip was decided; that comes before any wish.
        State::Deciding => fence::decide(work).await,
        State::Activating => cleanup::activate(work).await,
        State::Cleaning => cleanup::clean(work).await,
        State::Validating
        | State::SyncingSchema
        | State::SyncingData
        | State::Indexing
        | State::Replicating
        | State::AwaitingCutover
        | State::Fencing
        | State::Broken
        | State::Lost
            if undo =>
        {
            cleanup::undo(work).await
        }
        State::Validating => validate::validate(work).await,
        State::SyncingSchema => schema::early(work).await,
        State::SyncingData => data::copy(work).await,
        State::Indexing => schema::late(work).await,
        State::Replicating => data::catch_up(work).await,
        State::AwaitingCutover => data::parked(work).await,
        State::Fencing => fence::fence(work).await,
        State::Broken => data::repaired(work).await,
        State::Lost | State::Done | State::Aborted => Ok(Next::Wait(POLL)),
    }
}

/// The way on when the new shard serves although shard 0 says that it is still waited for: it was
/// decided, and shard 0 has lost its record of that in a failover. Nothing can be undone then.
async fn after_a_lost_decision(
    work: &Work<'_>,
    state: State,
) -> Result<Option<Event>, WorkflowError> {
    let event = match state {
        State::Replicating => Event::CaughtUp,
        State::AwaitingCutover => Event::CutoverRequested,
        _ => return Ok(None),
    };
    let serves = cleanup::has_extension(work.target).await?
        && recover::serving_as(work.target, work.shard)
            .await?
            .is_some();
    if serves {
        let task_id = work.task.id();
        tracing::warn!(%task_id, "the new shard serves: shard 0 has lost that in a failover");
    }
    Ok(serves.then_some(event))
}

async fn advance(
    lead: &Node,
    task: TaskId,
    event: Event,
    detail: &Value,
) -> Result<(), WorkflowError> {
    // The event's own error is stored by task_advance, which also forgets that of a step that was
    // repeated until it worked; except at the end, where it is kept for stopped tasks.
    let columns = match (event, detail.get("pause_ms")) {
        (Event::Decided, Some(pause_ms)) => json!({ "pause_ms": pause_ms }),
        (Event::Cleaned, _) => json!({ "error": null }),
        _ => json!({}),
    };
    if columns
        .as_object()
        .is_some_and(|columns| !columns.is_empty())
    {
        task::progress(lead, task, &columns).await?;
    }
    let state = task::advance(lead, task, event, detail).await?;
    tracing::info!(task_id = %task, %event, state, "task advanced");
    Ok(())
}

/// An answer that does not change: give up what can be undone, keep trying what cannot.
async fn fail(
    lead: &Node,
    row: &Task,
    error: &WorkflowError,
    failures: u32,
) -> Result<(), WorkflowError> {
    tracing::warn!(task_id = %row.id(), %error, failures, "step failed");
    let columns = json!({ "error": error.to_string() });
    task::progress(lead, row.id(), &columns).await?;
    let setting_up = matches!(
        row.state()?,
        State::Validating | State::SyncingSchema | State::SyncingData | State::Indexing
    );
    if failures == GIVE_UP_AFTER && setting_up && !row.stopping {
        let detail = json!({ "error": error.to_string() });
        task::advance(lead, row.id(), Event::StopRequested, &detail).await?;
    }
    Ok(())
}

/// The configuration no longer names the new shard: nothing to do but to say so, or to stop.
async fn undeclared(lead: &Node, row: &Task, site: &Site) -> Result<Outcome, WorkflowError> {
    if row.stopping {
        stop_without_target(site, row.id()).await?;
        return Ok(Outcome::Finished);
    }
    let text = format!(
        "shard {} is not declared with provisioning = true",
        row.shard()?
    );
    task::progress(lead, row.id(), &json!({ "error": text })).await?;
    Ok(Outcome::Busy)
}

/// Stops a task whose new shard is gone. In *deciding* nobody may: the flip may be committed there.
async fn stop_without_target(site: &Site, task: TaskId) -> Result<(), WorkflowError> {
    let lead = Node::connect(site, site.first()?, Some(task)).await?;
    let row = task::read(&lead, task).await?;
    let state = row.state()?;
    if !row.stopping || !state.is_before_point_of_no_return() || state == State::Deciding {
        return Ok(());
    }
    if let Some(address) = site.new_shard(row.shard()?)
        && Node::connect(site, address, Some(task)).await.is_ok()
    {
        // It is back: the usual way is the better one.
        return Ok(());
    }
    let mut old = Vec::new();
    for address in site.old_shards(row.shard()?) {
        old.push(Node::connect(site, address, Some(task)).await?);
    }
    match cleanup::undo_without_target(&lead, &old, &row, &site.database).await? {
        Next::Advance(event, detail) => advance(&lead, task, event, &detail).await,
        Next::Wait(_) => Ok(()),
    }
}
