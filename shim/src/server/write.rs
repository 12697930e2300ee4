//! Writing to a server that may want to be read first.

use std::io::ErrorKind;

use pgdog_core::fault::Fault;
use tokio::io::Interest;

use super::conn::Conn;

impl Conn {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let mut rest = self.write_at_once(bytes)?;
        while !rest.is_empty() {
            self.wait_for_room().await?;
            rest = self.write_at_once(rest)?;
        }
        Ok(())
    }

    /// Writes what the socket takes, and returns the rest: until that is written, the connection is
    /// of no other use.
    pub(super) fn write_at_once<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let mut rest = bytes;
        self.writing = true;
        while !rest.is_empty() {
            match self.io.try_write(rest) {
                Ok(0) => return Err(self.lose("connection closed while writing")),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(rest),
                Err(_) => return Err(self.lose("connection lost while writing")),
            }
        }
        self.writing = false;
        Ok(rest)
    }

    /// Waits until the socket takes bytes, reading what arrives meanwhile.
    async fn wait_for_room(&mut self) -> Result<(), Fault> {
        let Ok(ready) = self.io.ready(Interest::READABLE | Interest::WRITABLE).await else {
            return Err(self.lose("connection lost while writing"));
        };
        if !ready.is_readable() {
            return Ok(());
        }
        self.make_room();
        match self.io.try_read_buf(&mut self.input) {
            Ok(0) => Err(self.lose("closed by the server while writing")),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(self.lose("connection lost while writing")),
        }
    }
}
