//! Rows of several shards on their way to the client, in order, as they are needed.
//!
//! Of each shard there is one row at hand; what the servers have found besides waits in their
//! sockets. So memory holds a row of each, whatever the size of the result.

use std::cmp::Ordering;

use futures_util::future::select_all;

use super::super::client::{Client, Gone};
use super::super::faults;
use super::keys::Kind;
use super::part::{End, Part};
use super::rows::{cells, put_first};
use crate::plan::split::SortKey;
use crate::proto::Frame;

/// How many rows go to the client.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// How many are left out first.
    pub offset: u64,
    /// How many are wanted then; none for all.
    pub limit: Option<u64>,
    /// Those equal to the last one come along.
    pub with_ties: bool,
}

/// How rows are compared: by the columns behind the first `visible`.
#[derive(Debug)]
pub struct Order<'a> {
    /// Columns that the client sees.
    pub visible: usize,
    /// The others.
    pub keys: &'a [(SortKey, Kind)],
}

/// Where rows go.
struct Out<'c> {
    client: &'c mut Client,
    visible: Option<usize>,
    sent: u64,
}

impl Out<'_> {
    async fn row(&mut self, row: &Frame) -> Result<(), End> {
        match self.visible {
            Some(visible) => {
                put_first(row.body(), visible, &mut self.client.out).map_err(End::Lost)?;
            }
            None => row.encode(&mut self.client.out),
        }
        self.sent += 1;
        self.client.flush_if_full().await.map_err(End::Gone)
    }
}

/// Waits until one of the parts that are not done has more.
async fn wait_for_any(parts: &mut [Part], client: &Client) -> Result<(), (usize, End)> {
    let waiting = parts
        .iter_mut()
        .enumerate()
        .filter(|(_, part)| !part.is_done())
        .map(|(at, part)| {
            Box::pin(async move {
                let more = part.participant.lease.more().await;
                more.map_err(|fault| (at, End::Lost(fault)))
            })
        });
    let any = select_all(waiting);
    tokio::select! {
        biased;
        (more, _, _) = any => more,
        () = client.vanished() => Err((0, End::Gone(Gone::Left))),
    }
}

/// All rows of all shards as they come.
///
/// # Errors
/// Of which part, and what.
pub async fn side_by_side(
    parts: &mut [Part],
    client: &mut Client,
    window: Window,
) -> Result<u64, (usize, End)> {
    let mut left_out = window.offset;
    let mut out = Out {
        client,
        visible: None,
        sent: 0,
    };
    loop {
        let mut idle = true;
        for (at, part) in parts.iter_mut().enumerate() {
            while let Some(row) = part.row(out.client).map_err(|end| (at, end))? {
                idle = false;
                if left_out > 0 {
                    left_out -= 1;
                } else if window.limit.is_none_or(|limit| out.sent < limit) {
                    out.row(&row).await.map_err(|end| (at, end))?;
                }
            }
        }
        if parts.iter().all(Part::is_done) {
            return Ok(out.sent);
        }
        if idle {
            wait_for_any(parts, out.client).await?;
        }
    }
}

/// The rows of all shards, each of which sends its own in order.
///
/// # Errors
/// Of which part, and what.
pub async fn in_order(
    parts: &mut [Part],
    client: &mut Client,
    window: Window,
    order: &Order<'_>,
) -> Result<u64, (usize, End)> {
    let mut heads: Vec<Option<Frame>> = Vec::with_capacity(parts.len());
    for at in 0..parts.len() {
        heads.push(next(parts, at, client).await?);
    }
    let mut left_out = window.offset;
    let mut last: Option<Frame> = None;
    let mut out = Out {
        client,
        visible: Some(order.visible),
        sent: 0,
    };
    while let Some(at) = first_of(&heads, order).map_err(|end| (0, end))? {
        let Some(row) = heads[at].take() else { break };
        let following = next(parts, at, out.client).await?;
        if let Some(following) = &following
            && order.compare(&row, following).map_err(|end| (at, end))? == Ordering::Greater
        {
            // Never guess: the rows would be in some order, but not in the one that was asked for.
            return Err((at, unordered()));
        }
        heads[at] = following;
        if left_out > 0 {
            left_out -= 1;
            continue;
        }
        let full = window.limit.is_some_and(|limit| out.sent >= limit);
        if full {
            let tie = match (&last, window.with_ties) {
                (Some(last), true) => {
                    order.compare(last, &row).map_err(|end| (at, end))? == Ordering::Equal
                }
                _ => false,
            };
            if !tie {
                break;
            }
        } else {
            last = Some(row.clone());
        }
        out.row(&row).await.map_err(|end| (at, end))?;
    }
    drop(heads);
    let sent = out.sent;
    for (at, part) in parts.iter_mut().enumerate() {
        part.finish(client).await.map_err(|end| (at, end))?;
    }
    Ok(sent)
}

async fn next(
    parts: &mut [Part],
    at: usize,
    client: &mut Client,
) -> Result<Option<Frame>, (usize, End)> {
    let part = &mut parts[at];
    loop {
        match part.row(client).map_err(|end| (at, end))? {
            Some(row) => return Ok(Some(row)),
            None if part.is_done() => return Ok(None),
            None => part.wait(client).await.map_err(|end| (at, end))?,
        }
    }
}

/// The part whose row comes first; of equal rows that of the lowest shard.
fn first_of(heads: &[Option<Frame>], order: &Order<'_>) -> Result<Option<usize>, End> {
    let mut first: Option<(usize, &Frame)> = None;
    for (at, row) in heads.iter().enumerate() {
        let Some(row) = row else { continue };
        let comes_first = match first {
            None => true,
            Some((_, before)) => order.compare(row, before)? == Ordering::Less,
        };
        if comes_first {
            first = Some((at, row));
        }
    }
    Ok(first.map(|(at, _)| at))
}

impl Order<'_> {
    /// Which of two rows comes first.
    fn compare(&self, one: &Frame, other: &Frame) -> Result<Ordering, End> {
        let (mut ones, mut others) = (
            cells(one.body()).map_err(End::Lost)?,
            cells(other.body()).map_err(End::Lost)?,
        );
        for _ in 0..self.visible {
            ones.next().map_err(End::Lost)?;
            others.next().map_err(End::Lost)?;
        }
        for (key, kind) in self.keys {
            let values = (
                ones.next().map_err(End::Lost)?,
                others.next().map_err(End::Lost)?,
            );
            let order = match values {
                (Some(one), Some(other)) => {
                    let order = kind.compare(one, other).ok_or_else(unordered)?;
                    if key.descending {
                        order.reverse()
                    } else {
                        order
                    }
                }
                (None, None) => Ordering::Equal,
                (None, Some(_)) if key.nulls_first => Ordering::Less,
                (Some(_), None) if !key.nulls_first => Ordering::Less,
                (None, Some(_)) | (Some(_), None) => Ordering::Greater,
            };
            if order != Ordering::Equal {
                return Ok(order);
            }
        }
        Ok(Ordering::Equal)
    }
}

fn unordered() -> End {
    End::Own(faults::fault(
        "XX000",
        "a shard's rows are not in the order in which they are merged",
    ))
}

/// Rows of all shards, kept until the last has come.
///
/// # Errors
/// Of which part, and what; 53200 when they are too many.
pub async fn collect(
    parts: &mut [Part],
    client: &mut Client,
    mut keep: impl FnMut(&Frame) -> Result<(), End>,
) -> Result<(), (usize, End)> {
    for at in 0..parts.len() {
        while let Some(row) = next(parts, at, client).await? {
            keep(&row).map_err(|end| (at, end))?;
        }
    }
    Ok(())
}
