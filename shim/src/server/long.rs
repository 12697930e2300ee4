//! Messages that are too long to be held: they pass through in pieces.

use bytes::Buf as _;
use pgdog_core::fault::Fault;

use super::conn::Conn;
use super::faults;
use crate::proto::frame::{self, HEADER};
use crate::proto::{ProtocolError, backend::tag};

/// A row longer than this is handed on as it comes, in bytes.
const LONG_ROW: usize = 64 * 1024;

impl Conn {
    /// Whether the row that was handed on last is not whole yet.
    pub fn is_inside_row(&self) -> bool {
        self.row_left > 0
    }

    /// How many bytes at the head of what came are a piece of a long row or of COPY data: its
    /// beginning, or more of it.
    pub(super) fn piece_of_row(&mut self) -> Result<Option<usize>, ProtocolError> {
        if self.row_left > 0 {
            let length = self.row_left.min(self.input.len());
            self.row_left -= length;
            return Ok((length > 0).then_some(length));
        }
        match frame::head(&self.input)? {
            Some((tag::DATA_ROW | tag::COPY_DATA, total))
                if total > LONG_ROW && total > self.input.len() =>
            {
                self.row_left = total - self.input.len();
                Ok(Some(self.input.len()))
            }
            _ => Ok(None),
        }
    }

    /// Throws away what has come of a long row; tells whether that was all of it.
    pub(super) fn skip_row(&mut self) -> bool {
        let length = self.row_left.min(self.input.len());
        self.input.advance(length);
        self.row_left -= length;
        self.row_left == 0
    }

    /// Sends messages of which the last one is only begun; [`Conn::send_rest`] must follow until
    /// it is whole.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn send_beginning(&mut self, messages: &[u8]) -> Result<(), Fault> {
        self.check()?;
        let mut rest = messages;
        while let Ok(Some((tag, total))) = frame::head(rest) {
            let end = total.min(rest.len());
            self.ledger.note_sent(tag, &rest[HEADER..end]);
            self.message_left = total - end;
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            return Err(faults::internal(
                "a message was to be sent without its length",
            ));
        }
        self.write(messages).await
    }

    /// Sends more of a message that was begun.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn send_rest(&mut self, piece: &[u8]) -> Result<(), Fault> {
        self.check()?;
        if piece.len() > self.message_left {
            return Err(faults::internal(
                "more than the rest of a message was to be sent",
            ));
        }
        self.message_left -= piece.len();
        self.write(piece).await
    }

    /// Sends COPY data as it came, cut anywhere but in a header; `left` bytes of the last message
    /// are still to come.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn send_copy(&mut self, piece: &[u8], left: usize) -> Result<(), Fault> {
        self.check()?;
        self.message_left = left;
        self.write(piece).await
    }

    /// Whether a message is begun and not whole yet.
    pub fn is_inside_message(&self) -> bool {
        self.message_left > 0
    }
}
