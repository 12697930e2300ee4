//! What a login proves itself with.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use super::stats::lock;
use crate::proto::md5::Stored;
use crate::proto::scram_client::Keys;

/// Keys of one password that are kept: one for every salt, and servers of one database have as
/// many salts as it has shards.
const KEPT_KEYS: usize = 64;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Secret {
    /// Nothing: the server must trust, or know us by our certificate.
    #[default]
    None,
    /// A password.
    Password(Arc<Password>),
    /// What a client has proved itself with; good where the same verifier is kept.
    Keys(Arc<Keys>),
    /// The hash that servers keep for the md5 exchange.
    Md5(Stored),
}

impl Secret {
    /// A password.
    pub fn password(text: &str) -> Self {
        Self::Password(Arc::new(Password::new(text)))
    }
}

/// A password with the keys that were derived from it, as deriving them takes milliseconds.
pub struct Password {
    text: String,
    derived: Mutex<Vec<Arc<Keys>>>,
}

impl Password {
    /// Derives nothing yet.
    pub fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            derived: Mutex::default(),
        }
    }

    /// In clear text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Keys for a salt that has been met already.
    pub fn known_keys(&self, salt: &[u8], iterations: u32) -> Option<Arc<Keys>> {
        let derived = lock(&self.derived);
        let found = derived.iter().find(|keys| keys.fit(salt, iterations));
        found.cloned()
    }

    /// Keys for any salt. Takes milliseconds when it is met for the first time.
    pub fn keys(&self, salt: &[u8], iterations: u32) -> Arc<Keys> {
        if let Some(known) = self.known_keys(salt, iterations) {
            return known;
        }
        let made = Arc::new(Keys::derive(&self.text, salt, iterations));
        let mut derived = lock(&self.derived);
        if derived.len() >= KEPT_KEYS {
            derived.remove(0);
        }
        derived.push(made.clone());
        made
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Password {}

impl Hash for Password {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// Passwords stay out of logs.
impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_derived_once_for_every_salt() {
        let password = Password::new("x");
        let one = password.keys(b"salt", 10);
        assert!(Arc::ptr_eq(&one, &password.keys(b"salt", 10)));
        assert_ne!(one, password.keys(b"other", 10));
        assert_ne!(one, password.keys(b"salt", 11));
        for number in 0..2 * KEPT_KEYS as u32 {
            password.keys(&number.to_be_bytes(), 1);
        }
        assert!(lock(&password.derived).len() <= KEPT_KEYS, "bounded");
    }
}
