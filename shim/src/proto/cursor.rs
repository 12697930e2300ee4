//! A reader over the body of one message; every step is checked.

use super::ProtocolError;

/// What is left of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    /// Named in errors.
    what: &'static str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(rest: &'a [u8], what: &'static str) -> Self {
        Self { rest, what }
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], ProtocolError> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.malformed()),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let what = self.malformed();
        self.bytes(N)?.try_into().map_err(|_| what)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>()?[0])
    }

    /// A 16-bit count; PostgreSQL reads it unsigned.
    pub(super) fn count(&mut self) -> Result<usize, ProtocolError> {
        self.array()
            .map(|bytes| usize::from(u16::from_be_bytes(bytes)))
    }

    pub(super) fn i32(&mut self) -> Result<i32, ProtocolError> {
        self.array().map(i32::from_be_bytes)
    }

    /// Bytes up to a NUL, which is consumed and not returned.
    pub(super) fn cstr(&mut self) -> Result<&'a [u8], ProtocolError> {
        let end = memchr::memchr(0, self.rest).ok_or_else(|| self.malformed())?;
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(text)
    }

    pub(super) fn str(&mut self) -> Result<&'a str, ProtocolError> {
        std::str::from_utf8(self.cstr()?).map_err(|_| ProtocolError::NotUtf8(self.what))
    }

    /// A length word and that many bytes; -1 is NULL, anything else below 0 an error.
    pub(super) fn value(&mut self) -> Result<Option<&'a [u8]>, ProtocolError> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| self.malformed())?;
                self.bytes(length).map(Some)
            }
        }
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// All bytes must have been used.
    pub(super) fn end(self) -> Result<(), ProtocolError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.malformed())
        }
    }

    fn malformed(&self) -> ProtocolError {
        ProtocolError::Malformed(self.what)
    }
}
