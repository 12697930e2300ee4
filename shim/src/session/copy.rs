//! COPY FROM STDIN: data from the client to one server.

use bytes::BytesMut;

use super::client::{Client, Copied, Gone};
use super::forward::{self, Sink, Trouble};
use super::script::Script;
use crate::proto::{Frame, frontend};
use crate::server::Conn;

/// What comes next while a server takes data.
enum Event {
    Client(Copied),
    Server(Frame),
}

/// Passes the client's data on until it says that this was all, or gives up, or the server has
/// had enough: its error goes to the client at once.
///
/// `extended`: the server has ignored the batch's Sync and gets one now.
///
/// # Errors
/// Either end is lost.
pub async fn feed(
    client: &mut Client,
    conn: &mut Conn,
    (script, extended): (&mut Script, bool),
) -> Result<(), Trouble> {
    client.flush().await?;
    loop {
        let event = tokio::select! {
            biased;
            frame = conn.recv() => Event::Server(frame?),
            piece = client.read_copy() => Event::Client(piece?),
        };
        match event {
            Event::Client(Copied::Data(piece)) => conn.send_copy(&piece, client.rest()).await?,
            Event::Client(Copied::Other(frame)) => {
                if let Some(end) = ending(&frame, extended)? {
                    return Ok(conn.send(&end).await?);
                }
            }
            Event::Server(frame) => {
                forward::take(script, &mut Sink::Client(client), &frame)?;
                client.flush().await?;
                if script.error.is_some() {
                    return end_refused(client, conn, extended).await;
                }
            }
        }
    }
}

/// The server has failed the COPY: what the client still sends is for nobody, but a message that
/// was begun must be ended.
async fn end_refused(client: &mut Client, conn: &mut Conn, extended: bool) -> Result<(), Trouble> {
    while conn.is_inside_message() {
        match client.read_copy().await? {
            Copied::Data(piece) => conn.send_copy(&piece, client.rest()).await?,
            // Never inside of a message.
            Copied::Other(_) => break,
        }
    }
    if extended {
        let mut out = BytesMut::new();
        frontend::sync(&mut out);
        conn.send(&out).await?;
    }
    Ok(())
}

/// What ends the data, if the client's message does.
pub(super) fn ending(frame: &Frame, extended: bool) -> Result<Option<BytesMut>, Gone> {
    let mut out = BytesMut::new();
    match frame.tag() {
        // Ignored by PostgreSQL while it awaits data.
        b'H' | b'S' => return Ok(None),
        b'c' | b'f' => frame.encode(&mut out),
        b'X' => return Err(Gone::Left),
        tag => {
            let why = format!("unexpected message type {} during COPY", tag.escape_ascii());
            frontend::copy_fail(&why, &mut out);
        }
    }
    if extended {
        frontend::sync(&mut out);
    }
    Ok(Some(out))
}
