//! Who may log in, as the configuration lists them. Plain data.

use std::sync::Arc;
use std::time::Duration;

use super::settings::Keep;
use crate::proto::md5::Stored;
use crate::proto::scram::Verifier;
use crate::server::{Password, Secret};

/// A user.
#[derive(Clone)]
pub struct Account {
    /// Name.
    pub name: String,
    /// What clients are checked by.
    pub known: Known,
    /// Databases that may be used; None is all.
    pub databases: Option<Vec<String>>,
    /// Name on the nodes.
    pub server_user: String,
    /// What logs in to the nodes; None: what the client proved itself with.
    pub server_secret: Option<Secret>,
    /// Startup parameters on the nodes, sorted.
    pub params: Vec<(String, String)>,
    /// After how long without a word the client is sent away, when not the default; zero: never.
    pub idle_timeout: Option<Duration>,
    /// How long this user keeps a server connection, when not as the database says.
    pub keep: Option<Keep>,
    /// Common name in the certificate that the user logs in with.
    pub identity: String,
    /// Whether the user needs a certificate where clients are asked for them.
    pub needs_certificate: bool,
}

/// What is known of somebody's password.
#[derive(Clone)]
pub enum Known {
    /// Nothing here; the nodes may know.
    Nothing,
    /// The password.
    Password(Arc<Password>),
    /// A SCRAM verifier.
    Scram(Verifier),
    /// The hash of the md5 exchange.
    Md5(Stored),
}

impl Known {
    /// From the form in which PostgreSQL keeps it.
    pub fn stored(text: &str) -> Option<Self> {
        let scram = Verifier::parse(text).map(Self::Scram);
        scram.or_else(|| Stored::parse(text).map(Self::Md5))
    }

    /// From a file, where a password may stand in clear text.
    pub fn listed(text: &str) -> Self {
        Self::stored(text).unwrap_or_else(|| Self::Password(Arc::new(Password::new(text))))
    }
}

impl Account {
    /// A user whom only the nodes know.
    pub fn unlisted(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            known: Known::Nothing,
            databases: None,
            server_user: name.to_owned(),
            server_secret: None,
            params: Vec::new(),
            idle_timeout: None,
            keep: None,
            identity: name.to_owned(),
            needs_certificate: true,
        }
    }

    /// Whether that database may be used.
    pub fn may_use(&self, database: &str) -> bool {
        let databases = self.databases.as_ref();
        databases.is_none_or(|list| list.iter().any(|listed| listed == database))
    }
}

/// Passwords stay out of logs.
impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// SCRAM-SHA-256.
    Scram,
    /// MD5 challenge, or SCRAM for who has a SCRAM verifier only.
    Md5,
    /// The password in clear text.
    Plain,
    /// Not at all.
    Trust,
}
