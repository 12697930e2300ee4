//! COPY data from the client to several servers at once.

use bytes::BytesMut;
use futures_util::future::{join_all, select_all};
use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use super::client::{Client, Copied};
use super::copy::ending;
use super::fanout::server_error;
use super::forward::{self, Sink, Trouble};
use super::script::Script;
use super::spread::Spread;
use crate::proto::{Frame, frame, frontend};
use crate::server::Conn;

/// A server that takes data.
pub(super) struct Taker<'a> {
    /// Its shard.
    pub(super) shard: ShardNumber,
    /// Its connection.
    pub(super) conn: &'a mut Conn,
    /// What it owes.
    pub(super) script: &'a mut Script,
    /// Whether its notices are for the client.
    pub(super) is_heard: bool,
}

/// What comes next while servers take data.
enum Event {
    Client(Copied),
    Server(usize, Frame),
}

/// Passes the client's data on until it says that this was all, or gives up. A server that has had
/// enough, or a row that has no place, ends it for all of them at once.
///
/// Afterwards every server that is still there owes the rest of its answers.
///
/// # Errors
/// The client is gone, or why the COPY ended.
pub(super) async fn feed(
    client: &mut Client,
    takers: &mut [Taker<'_>],
    spread: &mut Spread,
    extended: bool,
) -> Result<(), Trouble> {
    let fed = pass_on(client, takers, spread, extended).await;
    if let Err(Trouble::Lost(fault)) = &fed {
        refuse(takers, &fault.message(), extended).await;
    }
    fed
}

async fn pass_on(
    client: &mut Client,
    takers: &mut [Taker<'_>],
    spread: &mut Spread,
    extended: bool,
) -> Result<(), Trouble> {
    client.flush().await?;
    let mut payloads = Payloads::default();
    let mut outs = vec![BytesMut::new(); takers.len()];
    loop {
        match next(client, takers).await? {
            Event::Client(Copied::Data(piece)) => {
                payloads.each(&piece, |data| spread.push(data));
                spread.put(false, &mut outs).await?;
                send(takers, &mut outs).await?;
            }
            Event::Client(Copied::Other(message)) => {
                let Some(end) = ending(&message, extended)? else {
                    continue;
                };
                if message.tag() == b'c' {
                    spread.put(true, &mut outs).await?;
                }
                outs.iter_mut().for_each(|out| out.extend_from_slice(&end));
                return Ok(send(takers, &mut outs).await?);
            }
            Event::Server(nth, message) => {
                let taker = &mut takers[nth];
                let mut sink = match taker.is_heard {
                    true => Sink::Pushed(&mut client.out),
                    false => Sink::Nowhere,
                };
                forward::take(taker.script, &mut sink, &message)?;
                if let Some(fields) = &taker.script.error {
                    return Err(Trouble::Lost(server_error(taker.shard, fields)));
                }
                client.flush().await?;
            }
        }
    }
}

async fn next(client: &mut Client, takers: &mut [Taker<'_>]) -> Result<Event, Trouble> {
    let answers = takers.iter_mut().map(|taker| Box::pin(taker.conn.recv()));
    tokio::select! {
        biased;
        (answer, nth, _) = select_all(answers) => Ok(Event::Server(nth, answer?)),
        piece = client.read_copy() => Ok(Event::Client(piece?)),
    }
}

/// Sends each server its part; the slowest holds back the client.
async fn send(takers: &mut [Taker<'_>], outs: &mut [BytesMut]) -> Result<(), Fault> {
    let sends = takers
        .iter_mut()
        .zip(outs.iter())
        .map(|(taker, out)| async {
            match out.is_empty() {
                true => Ok(()),
                false => taker.conn.send(out).await,
            }
        });
    let sent: Result<Vec<()>, Fault> = join_all(sends).await.into_iter().collect();
    outs.iter_mut().for_each(BytesMut::clear);
    sent.map(drop)
}

/// Tells every server that still takes data that there is no more.
///
/// `extended`: the servers have ignored the batch's Sync and get one now.
pub(super) async fn refuse(takers: &mut [Taker<'_>], why: &str, extended: bool) {
    for taker in takers.iter_mut().filter(|taker| !taker.conn.is_broken()) {
        let mut out = BytesMut::new();
        if taker.script.error.is_none() {
            frontend::copy_fail(why, &mut out);
        }
        if extended {
            frontend::sync(&mut out);
        }
        if let Err(fault) = taker.conn.send(&out).await {
            tracing::debug!(shard = %taker.shard, %fault, "a server was lost during COPY");
        }
    }
}

/// Takes the data out of CopyData messages that are cut anywhere but in a header. Pure.
#[derive(Debug, Default)]
struct Payloads {
    /// Bytes still to come of the message at hand.
    left: usize,
}

impl Payloads {
    fn each(&mut self, piece: &[u8], mut see: impl FnMut(&[u8])) {
        let mut rest = piece;
        loop {
            let (data, behind) = rest.split_at(self.left.min(rest.len()));
            see(data);
            self.left -= data.len();
            rest = behind;
            match frame::head(rest) {
                Ok(Some((_, total))) => {
                    self.left = total - frame::HEADER;
                    rest = &rest[frame::HEADER..];
                }
                Ok(None) | Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_taken_out_of_messages_wherever_they_are_cut() {
        let mut messages = BytesMut::new();
        for data in [&b"one"[..], b"", b"two and three"] {
            frontend::copy_data(data, &mut messages);
        }
        // Behind the headers, in the data.
        for cut in [6, 8, 13, 18, 20, messages.len()] {
            let (mut payloads, mut seen) = (Payloads::default(), Vec::new());
            for piece in [&messages[..cut], &messages[cut..]] {
                payloads.each(piece, |data| seen.extend_from_slice(data));
            }
            assert_eq!(seen, b"onetwo and three", "cut at {cut}");
        }
    }
}
