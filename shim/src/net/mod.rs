//! Byte streams to clients and servers: TCP, bare or below TLS.
//!
//! | file | what |
//! |---|---|
//! | `dial`, `client` | connecting to servers, and logging in with tokio-postgres |
//! | `session` | TLS over a socket that is never waited for inside |
//! | `tcp` | options of the sockets |
//! | `tls` | certificates, keys and roots, and what is checked by them |
//! | `certificate` | pure: what rustls does not tell of a certificate |
//!
//! A [`Stream`] has the calls of a [`TcpStream`], so that whoever moves bytes need not know
//! whether they are encrypted on the way.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

mod certificate;
mod client;
mod dial;
mod session;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;

use session::Tls;

pub use client::LoginError;
pub use dial::{Dialer, Encryption};
pub use tcp::TcpSettings;
pub use tls::{Inbound, Mode, Outbound, TlsError};

/// A connection, bare or encrypted.
pub struct Stream {
    tcp: TcpStream,
    tls: Option<Box<Tls>>,
    /// Hash of the server's certificate, for channel binding.
    end_point: Option<Vec<u8>>,
}

impl Stream {
    /// A connection in clear text.
    pub fn new(tcp: TcpStream) -> Self {
        Self {
            tcp,
            tls: None,
            end_point: None,
        }
    }

    /// The socket below, for its options. What is read or written there bypasses TLS.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether the bytes are encrypted on the way.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Becomes encrypted with this end as the server: does the handshake. `received` are bytes of
    /// it that were read already.
    ///
    /// # Errors
    /// When the client fails the handshake (it was sent the alert) or is lost. The stream is of no
    /// use then.
    pub async fn accept(&mut self, rules: &Inbound, received: &[u8]) -> io::Result<()> {
        let connection =
            rustls::ServerConnection::new(rules.config.clone()).map_err(io::Error::other)?;
        self.encrypt(connection.into(), received).await?;
        self.end_point.clone_from(&rules.end_point);
        Ok(())
    }

    async fn encrypt(&mut self, connection: rustls::Connection, received: &[u8]) -> io::Result<()> {
        let mut tls = Tls::new(connection);
        tls.handshake(&self.tcp, received).await?;
        self.end_point = tls.peer().and_then(certificate::end_point);
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Hash of the certificate that the server end has shown, which both ends of an honest
    /// connection know; `None` in clear text.
    pub fn end_point(&self) -> Option<&[u8]> {
        self.end_point.as_deref()
    }

    /// Common name in the certificate that the peer has shown, and that was found good.
    pub fn peer_name(&self) -> Option<String> {
        let tls = self.tls.as_deref()?;
        tls.peer().and_then(certificate::common_name)
    }

    /// Whether the handshake has agreed on PostgreSQL's protocol.
    pub fn speaks_postgresql(&self) -> bool {
        let agreed = self.tls.as_deref().and_then(Tls::protocol);
        agreed == Some(tls::ALPN)
    }

    /// Reads what is there, into the free space of `buffer`; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    pub fn try_read_buf(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match &mut self.tls {
            None => self.tcp.try_read_buf(buffer),
            Some(tls) => tls.try_read(&self.tcp, buffer),
        }
    }

    /// Writes as much as is taken without waiting.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is taken; the next call must bring the same bytes again, as some
    /// of them may be encrypted and on their way already.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.tcp.try_write(bytes),
            Some(tls) => tls.try_write(&self.tcp, bytes),
        }
    }

    /// Waits until a read or write may do something.
    ///
    /// Cancel safety: nothing is consumed.
    ///
    /// # Errors
    /// When the socket can't be watched.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match &self.tls {
            Some(tls) if interest.is_readable() && tls.has_plaintext() => Ok(Ready::READABLE),
            _ => self.tcp.ready(interest).await,
        }
    }

    /// Waits until a read may do something.
    ///
    /// # Errors
    /// As [`Stream::ready`].
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(|_| ())
    }

    /// Reads into the free space of `buffer`, waiting for the first byte; 0 is the end.
    ///
    /// Cancel safety: what was read is in the buffer.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn read_buf(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|context| self.poll_read_buf(context, buffer)).await
    }

    /// As [`Stream::read_buf`], for one look.
    pub fn poll_read_buf(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        let Some(tls) = &mut self.tls else {
            // Unlike `try_read_buf` it knows that a read which did not fill the buffer has emptied
            // the socket: one system call less each time.
            return pin!(self.tcp.read_buf(buffer)).poll(context);
        };
        loop {
            match tls.try_read(&self.tcp, buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.tcp.poll_read_ready(context))?;
                }
                done => return Poll::Ready(done),
            }
        }
    }

    /// Writes everything.
    ///
    /// Cancel safety: not cancel safe; dropped half way, some bytes are written.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn write_all(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tcp.writable().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says that nothing more comes.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        use tokio::io::AsyncWriteExt as _;
        if let Some(tls) = &mut self.tls {
            // A peer that is not read any more does not keep us waiting.
            let _ = tls.say_goodbye(&self.tcp);
        }
        self.tcp.shutdown().await
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("tcp", &self.tcp)
            .field("encrypted", &self.is_encrypted())
            .finish()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(tls) = &mut this.tls else {
            return Pin::new(&mut this.tcp).poll_read(context, buffer);
        };
        loop {
            match tls.try_read_slice(&this.tcp, buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(this.tcp.poll_read_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.tls.is_none() {
            return Pin::new(&mut this.tcp).poll_write(context, bytes);
        }
        loop {
            match this.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(this.tcp.poll_write_ready(context))?;
                }
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What a write took is on the wire.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(tls) = &mut this.tls {
            let _ = tls.say_goodbye(&this.tcp);
        }
        Pin::new(&mut this.tcp).poll_shutdown(context)
    }
}
