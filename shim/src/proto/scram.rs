//! The server's half of SCRAM-SHA-256 (RFC 5802, RFC 7677), without channel binding.
//!
//! ```text
//!   client                                   server
//!   n,,n=,r=<client nonce>             →     Exchange::start
//!                                      ←     r=<both nonces>,s=<salt>,i=<iterations>
//!   c=biws,r=<both nonces>,p=<proof>   →     Exchange::finish
//!                                      ←     v=<server signature>
//! ```
//!
//! An unknown user goes through the same exchange with [`Verifier::mock`], so that nobody can
//! tell an unknown user from a wrong password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use rand::RngExt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The one mechanism offered.
pub const MECHANISM: &str = "SCRAM-SHA-256";

/// What is kept of a password: enough to check it, not enough to log in elsewhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: [u8; 32],
    server_key: [u8; 32],
    /// A mock never lets anybody in.
    mock: bool,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

/// Why a login failed. The client is told only that it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScramError {
    /// The message is not SCRAM as spoken here.
    Malformed(&'static str),
    /// The client insists on channel binding, which needs TLS.
    ChannelBinding,
    /// Wrong password, or no such user.
    WrongPassword,
}

impl Verifier {
    /// From a password, with a random salt. Costs some milliseconds: make it once per user.
    pub fn from_password(password: &str) -> Self {
        let text = postgres_protocol::password::scram_sha_256(password.as_bytes());
        Self::parse(&text).expect("the verifier was just made in PostgreSQL's form")
    }

    /// From PostgreSQL's stored form, `SCRAM-SHA-256$<iterations>:<salt>$<stored>:<server>`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("SCRAM-SHA-256$")?;
        let (parameters, keys) = rest.split_once('$')?;
        let (iterations, salt) = parameters.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let key = |text| STANDARD.decode(text).ok()?.try_into().ok();
        Some(Self {
            iterations: iterations.parse().ok().filter(|count| *count > 0)?,
            salt: STANDARD.decode(salt).ok()?,
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
            mock: false,
        })
    }

    /// For a user that doesn't exist. The salt depends on the name and on a secret of this
    /// process, so that asking twice shows the same salt, as for a real user.
    pub fn mock(user: &str, process_secret: &[u8; 32]) -> Self {
        let salt = hmac(process_secret, user.as_bytes())[..16].to_vec();
        Self {
            iterations: 4096,
            salt,
            stored_key: [0; 32],
            server_key: [0; 32],
            mock: true,
        }
    }
}

/// A login that waits for the client's second message.
#[derive(Debug)]
pub struct Exchange {
    verifier: Verifier,
    nonce: String,
    /// `client-first-message-bare,server-first-message,`
    auth_message: String,
    /// Base64 of the client's GS2 header, to be repeated in `c=`.
    binding: String,
    server_first: String,
}

impl Exchange {
    /// Reads the client's first message.
    ///
    /// # Errors
    /// When it isn't one, or insists on channel binding.
    pub fn start(verifier: Verifier, client_first: &[u8]) -> Result<Self, ScramError> {
        let random: [u8; 18] = rand::rng().random();
        Self::start_with_nonce(verifier, client_first, &STANDARD.encode(random))
    }

    fn start_with_nonce(
        verifier: Verifier,
        client_first: &[u8],
        server_nonce: &str,
    ) -> Result<Self, ScramError> {
        let text = utf8(client_first)?;
        let bare = match text.get(..2) {
            Some("n," | "y,") => &text[2..],
            Some("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Malformed("channel binding flag")),
        };
        // An authorization identity (a=…) is not supported, as in PostgreSQL.
        let bare = bare
            .strip_prefix(',')
            .ok_or(ScramError::Malformed("authzid"))?;
        let binding = STANDARD.encode(&text[..3]);

        let mut attributes = bare.split(',');
        // The name is the one of the startup packet; PostgreSQL ignores this one as well.
        attribute(attributes.next(), "n=", "user name")?;
        let client_nonce = attribute(attributes.next(), "r=", "nonce")?;
        let printable = |byte: u8| (0x21..=0x7e).contains(&byte) && byte != b',';
        if client_nonce.is_empty() || !client_nonce.bytes().all(printable) {
            return Err(ScramError::Malformed("nonce"));
        }

        let nonce = format!("{client_nonce}{server_nonce}");
        let salt = STANDARD.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let auth_message = format!("{bare},{server_first},");
        Ok(Self {
            verifier,
            nonce,
            auth_message,
            binding,
            server_first,
        })
    }

    /// The server's first message.
    pub fn server_first(&self) -> &[u8] {
        self.server_first.as_bytes()
    }

    /// Checks the client's proof and returns the server's last message.
    ///
    /// # Errors
    /// When the proof is wrong, or the message isn't the second one of this exchange.
    pub fn finish(self, client_final: &[u8]) -> Result<Vec<u8>, ScramError> {
        let text = utf8(client_final)?;
        let (without_proof, proof) = text
            .rsplit_once(",p=")
            .ok_or(ScramError::Malformed("proof"))?;
        let mut attributes = without_proof.split(',');
        let binding = attribute(attributes.next(), "c=", "channel binding")?;
        let nonce = attribute(attributes.next(), "r=", "nonce")?;
        if binding != self.binding {
            return Err(ScramError::Malformed("channel binding"));
        }
        if nonce != self.nonce {
            return Err(ScramError::Malformed("nonce"));
        }
        let proof: [u8; 32] = STANDARD
            .decode(proof)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(ScramError::Malformed("proof"))?;

        let auth_message = format!("{}{without_proof}", self.auth_message);
        let signature = hmac(&self.verifier.stored_key, auth_message.as_bytes());
        let mut client_key = signature;
        client_key
            .iter_mut()
            .zip(proof)
            .for_each(|(byte, other)| *byte ^= other);
        let candidate: [u8; 32] = Sha256::digest(client_key).into();
        let right = bool::from(candidate.ct_eq(&self.verifier.stored_key));
        if !right || self.verifier.mock {
            return Err(ScramError::WrongPassword);
        }
        let answer = hmac(&self.verifier.server_key, auth_message.as_bytes());
        Ok(format!("v={}", STANDARD.encode(answer)).into_bytes())
    }
}

fn utf8(message: &[u8]) -> Result<&str, ScramError> {
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed("encoding"))
}

fn attribute<'a>(
    text: Option<&'a str>,
    name: &str,
    what: &'static str,
) -> Result<&'a str, ScramError> {
    text.and_then(|text| text.strip_prefix(name))
        .ok_or(ScramError::Malformed(what))
}

fn hmac(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}
