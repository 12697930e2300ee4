//! The client's half of SCRAM-SHA-256, from keys instead of a password.
//!
//! ```text
//!   client                                        server
//!   Attempt::new, Attempt::first            →
//!                                           ←     r=<both nonces>,s=<salt>,i=<iterations>
//!   Attempt::challenge, Challenge::answer   →
//!                                           ←     v=<server signature>, Answered::check
//! ```
//!
//! Between the second and the third step the caller finds [`Keys`] for that salt: those that a
//! client has proved with, or new ones from a password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::RngExt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::scram::{END_POINT, MECHANISM, MECHANISM_PLUS, ScramError, attribute, hmac, utf8, xor};

/// What somebody who knows the password can prove with, for one salt.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Keys {
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
    pub(super) client_key: [u8; 32],
    pub(super) server_key: [u8; 32],
}

/// Keys stay out of logs.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

impl Keys {
    /// From a password. Costs milliseconds, as many as the server has wanted.
    pub fn derive(password: &str, salt: &[u8], iterations: u32) -> Self {
        // As PostgreSQL: what SASLprep refuses is taken as it is.
        let prepared = stringprep::saslprep(password).unwrap_or(password.into());
        let mut salted = [0; 32];
        pbkdf2::pbkdf2_hmac::<Sha256>(prepared.as_bytes(), salt, iterations, &mut salted);
        Self {
            salt: salt.to_vec(),
            iterations,
            client_key: hmac(&salted, b"Client Key"),
            server_key: hmac(&salted, b"Server Key"),
        }
    }

    /// Whether they answer that challenge.
    pub fn fit(&self, salt: &[u8], iterations: u32) -> bool {
        self.salt == salt && self.iterations == iterations
    }

    pub(super) fn stored_key(&self) -> [u8; 32] {
        Sha256::digest(self.client_key).into()
    }
}

/// What the client knows of the channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    /// Clear text, or a certificate that can't be bound to.
    Unbound,
    /// The server doesn't offer to bind although we could: it will notice if that is a lie.
    NotOffered,
    /// Hash of the certificate that the server has shown.
    EndPoint(Vec<u8>),
}

/// A login that was begun.
#[derive(Debug)]
pub struct Attempt {
    mechanism: &'static str,
    header: &'static str,
    /// `c=` of the last message.
    binding: String,
    bare: String,
    nonce: String,
}

impl Attempt {
    /// Begins with a random nonce.
    pub fn new(channel: &Channel) -> Self {
        let (mechanism, header, bound): (_, _, &[u8]) = match channel {
            Channel::Unbound => (MECHANISM, "n,,", &[]),
            Channel::NotOffered => (MECHANISM, "y,,", &[]),
            Channel::EndPoint(hash) => (MECHANISM_PLUS, END_POINT, hash),
        };
        let random: [u8; 18] = rand::rng().random();
        let nonce = STANDARD.encode(random);
        Self {
            mechanism,
            header,
            binding: STANDARD.encode([header.as_bytes(), bound].concat()),
            bare: format!("n=,r={nonce}"),
            nonce,
        }
    }

    /// The mechanism to ask for.
    pub fn mechanism(&self) -> &'static str {
        self.mechanism
    }

    /// The client's first message.
    pub fn first(&self) -> Vec<u8> {
        format!("{}{}", self.header, self.bare).into_bytes()
    }

    /// Reads the server's first message.
    ///
    /// # Errors
    /// When it isn't one, or not for this login.
    pub fn challenge(self, server_first: &[u8]) -> Result<Challenge, ScramError> {
        let text = utf8(server_first)?;
        let mut attributes = text.split(',');
        let nonce = attribute(attributes.next(), "r=", "nonce")?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Malformed("nonce"));
        }
        let salt = attribute(attributes.next(), "s=", "salt")?;
        let salt = STANDARD
            .decode(salt)
            .map_err(|_| ScramError::Malformed("salt"))?;
        let iterations = attribute(attributes.next(), "i=", "iterations")?
            .parse()
            .ok()
            .filter(|count| *count > 0)
            .ok_or(ScramError::Malformed("iterations"))?;
        let without_proof = format!("c={},r={nonce}", self.binding);
        Ok(Challenge {
            auth_message: format!("{},{text},{without_proof}", self.bare),
            without_proof,
            salt,
            iterations,
        })
    }
}

/// What the server wants proved.
#[derive(Debug)]
pub struct Challenge {
    /// The salt of the server's verifier.
    pub salt: Vec<u8>,
    /// Its iterations.
    pub iterations: u32,
    auth_message: String,
    without_proof: String,
}

impl Challenge {
    /// The client's last message, and what the server must answer to it.
    pub fn answer(self, keys: &Keys) -> (Vec<u8>, Answered) {
        let message = self.auth_message.as_bytes();
        let proof = xor(keys.client_key, hmac(&keys.stored_key(), message));
        let text = format!("{},p={}", self.without_proof, STANDARD.encode(proof));
        let signature = hmac(&keys.server_key, message);
        (text.into_bytes(), Answered { signature })
    }
}

/// A login that waits for the server's proof.
#[derive(Debug)]
pub struct Answered {
    signature: [u8; 32],
}

impl Answered {
    /// Checks that the server knows the verifier: another one could only have passed messages on.
    ///
    /// # Errors
    /// When it doesn't.
    pub fn check(self, server_final: &[u8]) -> Result<(), ScramError> {
        let text = utf8(server_final)?;
        let given = attribute(text.split(',').next(), "v=", "server signature")?;
        let given = STANDARD
            .decode(given)
            .map_err(|_| ScramError::Malformed("server signature"))?;
        match bool::from(given.ct_eq(&self.signature[..])) {
            true => Ok(()),
            false => Err(ScramError::WrongPassword),
        }
    }
}
