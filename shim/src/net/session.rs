//! TLS over a socket, by rustls.
//!
//! rustls only turns bytes into bytes; when to read and write is decided here. Nothing waits but
//! the handshake: the calls behave as those of a socket that does not block.

use std::io::{self, BufRead as _, ErrorKind, Read, Write};

use bytes::BytesMut;
use rustls::Connection;
use tokio::net::TcpStream;

/// One encrypted connection.
pub(super) struct Tls {
    connection: Connection,
    /// Bytes that were encrypted by a write that could not finish: its caller comes again.
    accepted: usize,
    /// Decrypted bytes that nobody has read yet.
    plaintext: usize,
}

/// The most that one write encrypts before the socket is asked, in bytes.
const WRITE_CHUNK: usize = 64 * 1024;

impl Tls {
    pub(super) fn new(mut connection: Connection) -> Self {
        // A chunk is always taken whole, so that a write is one write.
        connection.set_buffer_limit(None);
        Self {
            connection,
            accepted: 0,
            plaintext: 0,
        }
    }

    /// The certificate that the peer has shown.
    pub(super) fn peer(&self) -> Option<&[u8]> {
        let shown = self.connection.peer_certificates()?;
        shown.first().map(|certificate| certificate.as_ref())
    }

    /// What was agreed on in ALPN.
    pub(super) fn protocol(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    pub(super) fn has_plaintext(&self) -> bool {
        self.plaintext > 0
    }

    /// Both sides agree on keys. `received` was read from the socket before.
    pub(super) async fn handshake(
        &mut self,
        tcp: &TcpStream,
        mut received: &[u8],
    ) -> io::Result<()> {
        while !received.is_empty() {
            if self.connection.read_tls(&mut received)? == 0 {
                break;
            }
            self.decrypt(tcp)?;
        }
        loop {
            self.flush_waiting(tcp).await?;
            if !self.connection.is_handshaking() {
                return Ok(());
            }
            tcp.readable().await?;
            match self.connection.read_tls(&mut Socket(tcp)) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {
                    self.decrypt(tcp)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Everything decrypted goes to `buffer`; 0 is the end.
    pub(super) fn try_read(&mut self, tcp: &TcpStream, buffer: &mut BytesMut) -> io::Result<usize> {
        if !self.receive(tcp)? {
            return Ok(0);
        }
        let mut count = 0;
        while self.plaintext > 0 {
            let mut reader = self.connection.reader();
            let chunk = reader.fill_buf()?;
            let length = chunk.len();
            buffer.extend_from_slice(chunk);
            reader.consume(length);
            count += length;
            self.plaintext = self.plaintext.saturating_sub(length);
        }
        Ok(count)
    }

    /// As [`Tls::try_read`], as much as fits.
    pub(super) fn try_read_slice(
        &mut self,
        tcp: &TcpStream,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        if !self.receive(tcp)? {
            return Ok(0);
        }
        let count = self.connection.reader().read(buffer)?;
        self.plaintext = self.plaintext.saturating_sub(count);
        Ok(count)
    }

    /// Reads from the socket until something is decrypted; false at the end of the stream.
    fn receive(&mut self, tcp: &TcpStream) -> io::Result<bool> {
        while self.plaintext == 0 {
            // A peer that closes the socket without saying so in TLS has left as well: messages
            // know their own length, so that nothing is taken for whole that was cut off.
            if self.connection.read_tls(&mut Socket(tcp))? == 0 {
                return Ok(false);
            }
            if self.decrypt(tcp)? && self.plaintext == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Works on what was read; true when the peer has ended the stream.
    fn decrypt(&mut self, tcp: &TcpStream) -> io::Result<bool> {
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.plaintext = state.plaintext_bytes_to_read();
                Ok(state.peer_has_closed())
            }
            Err(error) => {
                // The alert says why; who does not take it need not know.
                let _ = self.flush(tcp);
                Err(io::Error::new(ErrorKind::InvalidData, error))
            }
        }
    }

    /// Encrypts and writes; see [`super::Stream::try_write`].
    pub(super) fn try_write(&mut self, tcp: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if self.accepted == 0 {
            self.flush(tcp)?;
            let chunk = &bytes[..bytes.len().min(WRITE_CHUNK)];
            self.accepted = self.connection.writer().write(chunk)?;
        }
        self.flush(tcp)?;
        Ok(std::mem::take(&mut self.accepted))
    }

    /// Tells the peer that nothing more comes.
    pub(super) fn say_goodbye(&mut self, tcp: &TcpStream) -> io::Result<()> {
        self.connection.send_close_notify();
        self.flush(tcp)
    }

    /// Hands the socket all encrypted bytes.
    fn flush(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut Socket(tcp))? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    async fn flush_waiting(&mut self, tcp: &TcpStream) -> io::Result<()> {
        loop {
            match self.flush(tcp) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => tcp.writable().await?,
                done => return done,
            }
        }
    }
}

/// The socket in the form that rustls reads from and writes to.
struct Socket<'a>(&'a TcpStream);

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
