//! COPY FROM STDIN: data from the client to one server, or to all of them.

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::client::Client;
use super::forward::Trouble;
use crate::proto::frontend;
use crate::server::Conn;

/// Data is collected up to here before it is sent on, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Passes the client's data on until it says that this was all, or gives up.
///
/// A server that fails in the middle goes on taking data and ignores it; its error is read with
/// the other answers. `extended`: the servers have ignored the batch's Sync and get one now.
///
/// # Errors
/// Either end is lost.
pub async fn feed(
    client: &mut Client,
    conns: &mut [&mut Conn],
    extended: bool,
) -> Result<(), Trouble> {
    client.flush().await?;
    let mut chunk = BytesMut::new();
    loop {
        let frame = client.read().await?;
        match frame.tag() {
            b'd' => frame.encode(&mut chunk),
            // Ignored by PostgreSQL while it awaits data.
            b'H' | b'S' => {}
            b'c' | b'f' => {
                frame.encode(&mut chunk);
                if extended {
                    frontend::sync(&mut chunk);
                }
                return send(conns, &chunk).await;
            }
            b'X' => return Err(Trouble::Gone(super::client::Gone::Left)),
            tag => {
                let why = format!("unexpected message type {} during COPY", tag.escape_ascii());
                frontend::copy_fail(&why, &mut chunk);
                if extended {
                    frontend::sync(&mut chunk);
                }
                return send(conns, &chunk).await;
            }
        }
        if chunk.len() >= CHUNK_BYTES {
            send(conns, &chunk).await?;
            chunk.clear();
        }
    }
}

async fn send(conns: &mut [&mut Conn], bytes: &[u8]) -> Result<(), Trouble> {
    let sends = conns.iter_mut().map(|conn| conn.send(bytes));
    let sent: Result<Vec<()>, Fault> = futures_util::future::join_all(sends)
        .await
        .into_iter()
        .collect();
    sent.map(|_| ()).map_err(Trouble::Lost)
}
