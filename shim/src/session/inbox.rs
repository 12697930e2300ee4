//! Where a client's messages begin: waiting for them, and taking them.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};

use super::client::{Client, Gone, LONG_BYTES};
use crate::proto::frame::{self, Frame};

/// What is read of such a message before it is looked at, in bytes.
const BEGINNING_BYTES: usize = 32 * 1024;

/// Whether a message of that kind and length is not held but passed on.
fn is_long(tag: u8, total: usize) -> bool {
    matches!(tag, b'Q' | b'B' | b'F') && total > LONG_BYTES
}

impl Client {
    /// The next message, or only its beginning if it is long: see [`Client::is_long`].
    ///
    /// Cancel safety: bytes read stay in the buffer.
    pub async fn read_beginning(&mut self) -> Result<Frame, Gone> {
        loop {
            self.arrived().await?;
            if let Some(frame) = self.take_beginning()? {
                return Ok(frame);
            }
        }
    }

    /// Waits until there is something that [`Client::read_beginning`] returns at once.
    ///
    /// Cancel safety: bytes read stay in the buffer.
    pub async fn arrived(&mut self) -> Result<(), Gone> {
        poll_fn(|context| self.poll_arrived(context)).await
    }

    /// As [`Client::arrived`], for one look.
    pub fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        while !self.has_beginning()? {
            if ready!(self.poll_fill(context))? == 0 {
                return Poll::Ready(Err(Gone::Left));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn has_beginning(&mut self) -> Result<bool, Gone> {
        if !self.skip_rest() {
            return Ok(false);
        }
        let there = self.inbox.len();
        Ok(match frame::head_frontend(&self.inbox)? {
            Some((_, total)) if total <= there => true,
            Some((tag, total)) if is_long(tag, total) => there >= BEGINNING_BYTES,
            Some((_, total)) => {
                // One growth instead of many; bounded, since nothing came yet.
                self.inbox.reserve((total - there).min(LONG_BYTES));
                false
            }
            None => false,
        })
    }

    fn take_beginning(&mut self) -> Result<Option<Frame>, Gone> {
        let there = self.inbox.len();
        match frame::head(&self.inbox)? {
            Some((tag, total)) if total > there && is_long(tag, total) => {
                self.rest = total - there;
                let beginning = Frame::beginning(self.inbox.split().freeze());
                Ok(beginning.map(|frame| self.spelled(frame)))
            }
            _ => {
                let frame = frame::take(&mut self.inbox)?;
                Ok(frame.map(|frame| self.spelled(frame)))
            }
        }
    }

    /// Lends out what has come and was not read yet, for somebody who looks at it while the client
    /// is used otherwise. Nothing may be read until [`Client::put_back`].
    pub fn lend_inbox(&mut self) -> BytesMut {
        std::mem::take(&mut self.inbox)
    }

    /// Puts back what was lent out, without so many bytes at its head.
    pub fn put_back(&mut self, mut inbox: BytesMut, read: usize) {
        match read == inbox.len() {
            // The next message is read to where this one was, which is in the processor's cache.
            true => inbox.clear(),
            false => inbox.advance(read),
        }
        self.inbox = inbox;
    }
}
