//! Settings that clients have made on a server connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::conn::Conn;
use super::prepared::Moment;

/// What the borrowers of a connection have set, with the command that makes each setting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Names the commands; 0 for none.
    pub fingerprint: u64,
    /// By the lower-case name of the parameter.
    pub commands: Arc<BTreeMap<String, String>>,
    /// Code has run that may have set anything else.
    pub unknown: bool,
}

impl Conn {
    /// Whether a setting has changed, of which clients are told, since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Names the settings of role and database that this server session began with.
    pub fn role_settings(&self) -> u64 {
        self.role_settings
    }

    /// When it was logged in.
    pub fn opened(&self) -> Moment {
        self.opened
    }

    /// When a named statement was prepared here, if it is or is about to be. Counts as a use.
    pub fn prepared_at(&mut self, name: &str) -> Option<Moment> {
        self.ledger.prepared_at(name)
    }

    /// To be called after `PREPARE name ...` of so many bytes went through.
    pub fn note_prepared(&mut self, name: &str, bytes: usize) {
        self.ledger.note_prepared(name, bytes);
    }

    /// A named statement does not fit its tables any more: from now on it counts as older than
    /// whatever any client prepared.
    pub fn spoil_prepared(&mut self, name: &str) {
        self.ledger.spoil_prepared(name);
    }

    /// The connection is one client's, who names its statements: they all stay.
    pub fn keep_all_prepared(&mut self) {
        self.ledger.keep_all_prepared();
    }

    /// To be called after `DEALLOCATE name` went through.
    pub fn forget_one_prepared(&mut self, name: &str) {
        self.ledger.forget_one_prepared(name);
    }
}
