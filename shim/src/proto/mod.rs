//! Bytes to messages and back; pure.
//!
//! | file | what it knows |
//! |---|---|
//! | `frame` | where a message starts and ends, in either direction |
//! | `startup` | the packets without a tag that open a connection |
//! | `frontend` | what clients say: parsed views, and encoders for what the shim says itself |
//! | `request` | the commonest requests of clients, read where they are |
//! | `backend` | what servers say: encoders |
//! | `answer` | what servers say: parsed views |
//! | `scram`, `scram_client` | the two halves of SCRAM-SHA-256 |
//! | `md5` | the older password exchange |
//!
//! Nothing here panics on any input: a peer that breaks the protocol gets a [`ProtocolError`].
//! Source: PostgreSQL's documentation, "Frontend/Backend Protocol".

use std::fmt;

pub mod answer;
#[cfg(test)]
mod auth_tests;
pub mod backend;
mod cursor;
pub mod frame;
pub mod frontend;
pub mod md5;
mod request;
pub mod scram;
pub mod scram_client;
pub mod spelling;
pub mod startup;

#[cfg(test)]
mod tests;

pub use answer::ErrorFields;
pub use backend::{Severity, TxStatus};
pub use frame::{Frame, Run, scan};
pub use frontend::Frontend;
pub use request::{Asked, Request};
pub use startup::{CancelKey, Startup, StartupPacket};

/// A peer sent bytes that are not the protocol. The stream can't be trusted after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolError {
    /// The length word can't be that of a message of this kind.
    BadLength {
        /// Tag of the message; 0 for a startup packet.
        tag: u8,
        /// The length that it claims, in bytes, itself included.
        length: u32,
    },
    /// No message has this tag.
    UnknownTag(u8),
    /// The body does not hold what the tag promises.
    Malformed(&'static str),
    /// A text is not UTF-8.
    NotUtf8(&'static str),
    /// The startup packet asks for a protocol that is not spoken here.
    UnsupportedProtocol {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
}

impl ProtocolError {
    /// PostgreSQL's code for this error.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Self::BadLength { .. } | Self::UnknownTag(_) | Self::Malformed(_) => "08P01",
            Self::NotUtf8(_) => "22021",
            Self::UnsupportedProtocol { .. } => "0A000",
        }
    }

    /// The same error as fields of an ErrorResponse.
    pub fn fields(&self) -> ErrorFields {
        ErrorFields::new(self.sqlstate(), self.to_string())
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLength { tag: 0, length } => {
                write!(f, "invalid length {length} of startup packet")
            }
            Self::BadLength { tag, length } => {
                write!(
                    f,
                    "invalid length {length} of message type {}",
                    tag.escape_ascii()
                )
            }
            Self::UnknownTag(tag) => write!(f, "invalid message type {tag}"),
            Self::Malformed(what) => write!(f, "invalid message format: {what}"),
            Self::NotUtf8(what) => write!(f, "invalid byte sequence for encoding UTF8 in {what}"),
            Self::UnsupportedProtocol { major, minor } => {
                write!(
                    f,
                    "unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2"
                )
            }
        }
    }
}

impl std::error::Error for ProtocolError {}
