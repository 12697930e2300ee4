//! A relay in front of a server that notes what it is asked.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A message to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Who is logged in.
    pub user: String,
    /// Its type byte.
    pub tag: char,
    /// Its body where that is readable, up to the first NUL.
    pub text: String,
}

/// See the module. It ends when dropped, and its connections with the server's.
pub struct Counter {
    asked: Arc<Mutex<Vec<Asked>>>,
    relay: JoinHandle<()>,
}

impl Counter {
    /// Relays from one port to another.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub async fn start(from: u16, to: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, from)).await;
        let listener = listener.with_context(|| format!("port {from}"))?;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&asked);
        let relay = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Who cannot be connected sees that his connection is closed.
                tokio::spawn(relay(client, to, Arc::clone(&notes)));
            }
        });
        Ok(Self { asked, relay })
    }

    /// What was asked since the last call, in the order in which it arrived.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.relay.abort();
    }
}

async fn relay(client: TcpStream, to: u16, notes: Arc<Mutex<Vec<Asked>>>) -> std::io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth = async {
        let mut reader = Reader::default();
        let mut chunk = BytesMut::new();
        loop {
            chunk.clear();
            if from_client.read_buf(&mut chunk).await? == 0 {
                return to_server.shutdown().await;
            }
            // Noted before the answer can be there.
            let news = reader.read(&chunk);
            notes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(news);
            to_server.write_all(&chunk).await?;
        }
    };
    let back = async {
        tokio::io::copy(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::try_join!(forth, back).map(drop)
}

/// Cuts a client's bytes into messages.
#[derive(Debug, Default)]
struct Reader {
    rest: BytesMut,
    /// Known from the startup packet on.
    user: Option<String>,
}

const PROTOCOL_3: i32 = 3;

impl Reader {
    fn read(&mut self, bytes: &[u8]) -> Vec<Asked> {
        self.rest.extend_from_slice(bytes);
        let mut asked = Vec::new();
        while let Some((tag, body)) = self.message() {
            match &self.user {
                Some(user) => asked.push(Asked {
                    user: user.clone(),
                    tag,
                    text: text(&body),
                }),
                None => self.user = user_of(&body),
            }
        }
        asked
    }

    /// The next message; those before the login have no type.
    fn message(&mut self) -> Option<(char, BytesMut)> {
        let head = usize::from(self.user.is_some());
        let length = self.rest.get(head..head + 4)?;
        let length = i32::from_be_bytes(length.try_into().ok()?);
        let end = head + usize::try_from(length).ok()?;
        if self.rest.len() < end {
            return None;
        }
        let mut message = self.rest.split_to(end);
        let tag = if head == 1 {
            char::from(message[0])
        } else {
            ' '
        };
        message.advance(head + 4);
        Some((tag, message))
    }
}

/// The user of a startup packet; None for requests of another kind, which come before it.
fn user_of(body: &[u8]) -> Option<String> {
    let (code, params) = body.split_at_checked(4)?;
    if i32::from_be_bytes(code.try_into().ok()?) >> 16 != PROTOCOL_3 {
        return None;
    }
    let words: Vec<String> = params.split(|byte| *byte == 0).map(text).collect();
    let at = words.iter().position(|word| word == "user")?;
    words.get(at + 1).cloned()
}

fn text(body: &[u8]) -> String {
    let end = body.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&body[..end.unwrap_or(body.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(tag: Option<u8>, body: &[u8]) -> Vec<u8> {
        let mut packet: Vec<u8> = tag.into_iter().collect();
        packet.extend((body.len() as i32 + 4).to_be_bytes());
        packet.extend(body);
        packet
    }

    #[test]
    fn messages_are_cut_wherever_the_bytes_break() {
        let mut bytes = packet(None, &80_877_103_i32.to_be_bytes());
        let mut startup = (3_i32 << 16).to_be_bytes().to_vec();
        startup.extend(b"user\0app\0database\0d\0\0");
        bytes.extend(packet(None, &startup));
        bytes.extend(packet(Some(b'Q'), b"SELECT 1\0"));
        bytes.extend(packet(Some(b'S'), b""));
        let asked = |tag, text: &str| Asked {
            user: "app".to_owned(),
            tag,
            text: text.to_owned(),
        };
        let expected = [asked('Q', "SELECT 1"), asked('S', "")];
        for size in 1..bytes.len() {
            let mut reader = Reader::default();
            let read = bytes.chunks(size).flat_map(|chunk| reader.read(chunk));
            assert_eq!(read.collect::<Vec<_>>(), expected);
        }
    }
}
