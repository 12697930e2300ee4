//! The server's half of SCRAM-SHA-256 (RFC 5802, RFC 7677), with or without channel binding.
//!
//! ```text
//!   client                                   server
//!   n,,n=,r=<client nonce>             →     Exchange::start
//!                                      ←     r=<both nonces>,s=<salt>,i=<iterations>
//!   c=biws,r=<both nonces>,p=<proof>   →     Exchange::finish
//!                                      ←     v=<server signature>
//! ```
//!
//! The proof tells more than that the password is right: it is the client's key, hidden by a
//! signature that the verifier's owner can compute. [`Exchange::finish`] returns that key, and
//! [`super::scram_client`] logs in elsewhere with it, as long as the other server keeps the same
//! verifier.
//!
//! An unknown user goes through the same exchange with [`Verifier::mock`], so that nobody can
//! tell an unknown user from a wrong password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use rand::RngExt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::scram_client::Keys;

/// The mechanism that is always offered.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// The one that is offered as well where both sides can see the server's certificate.
pub const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// Iterations of new verifiers: PostgreSQL's default.
pub const ITERATIONS: u32 = 4096;
/// The only channel binding that PostgreSQL knows.
pub(super) const END_POINT: &str = "p=tls-server-end-point,,";

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
    /// The client's idea of channel binding is not that of the mechanism or of this server.
    ChannelBinding,
    /// Wrong password, or no such user.
    WrongPassword,
}

impl Verifier {
    /// From a password, with a random salt. Costs some milliseconds: make it once per user.
    pub fn from_password(password: &str) -> Self {
        let salt: [u8; 16] = rand::rng().random();
        let keys = Keys::derive(password, &salt, ITERATIONS);
        Self::of(&keys)
    }

    /// The verifier that these keys satisfy.
    pub fn of(keys: &Keys) -> Self {
        Self {
            iterations: keys.iterations,
            salt: keys.salt.clone(),
            stored_key: keys.stored_key(),
            server_key: keys.server_key,
            mock: false,
        }
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

    /// For a user that doesn't exist. The salt depends on the name and on a secret, so that
    /// asking twice shows the same salt, as for a real user.
    pub fn mock(user: &str, secret: &[u8; 32]) -> Self {
        let salt = hmac(secret, user.as_bytes())[..16].to_vec();
        Self {
            iterations: ITERATIONS,
            salt,
            stored_key: [0; 32],
            server_key: [0; 32],
            mock: true,
        }
    }

    /// Whether this is the verifier of a password in clear text. As costly as deriving keys.
    pub fn fits(&self, password: &str) -> bool {
        let keys = Keys::derive(password, &self.salt, self.iterations);
        bool::from(keys.stored_key().ct_eq(&self.stored_key)) && !self.mock
    }
}

/// A login that waits for the client's second message.
#[derive(Debug)]
pub struct Exchange {
    verifier: Verifier,
    nonce: String,
    /// `client-first-message-bare,server-first-message,`
    auth_message: String,
    /// What `c=` must repeat: the client's GS2 header and what it binds to, in Base64.
    binding: String,
    server_first: String,
}

/// A client that has proved that it knows the password.
#[derive(Debug)]
pub struct Proved {
    /// The server's last message.
    pub answer: Vec<u8>,
    /// What the client knows, good for any server that keeps the same verifier.
    pub keys: Keys,
}

impl Exchange {
    /// Reads the client's first message, sent for the mechanism that it chose. `end_point` is the
    /// hash of the certificate that the client was shown, when both mechanisms were offered.
    ///
    /// # Errors
    /// When it isn't one, or is not for this channel.
    pub fn start(
        verifier: Verifier,
        mechanism: &str,
        end_point: Option<&[u8]>,
        client_first: &[u8],
    ) -> Result<Self, ScramError> {
        let random: [u8; 18] = rand::rng().random();
        let nonce = STANDARD.encode(random);
        let text = utf8(client_first)?;
        let (header, bound) = channel(mechanism, end_point, text)?;
        // An authorization identity (a=…) is not supported, as in PostgreSQL.
        let bare = text
            .strip_prefix(header)
            .ok_or(ScramError::Malformed("authzid"))?;
        let binding = STANDARD.encode([header.as_bytes(), bound].concat());
        Self::begin(verifier, bare, &nonce, binding)
    }

    fn begin(
        verifier: Verifier,
        bare: &str,
        server_nonce: &str,
        binding: String,
    ) -> Result<Self, ScramError> {
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

    /// Checks the client's proof.
    ///
    /// # Errors
    /// When the proof is wrong, or the message isn't the second one of this exchange.
    pub fn finish(self, client_final: &[u8]) -> Result<Proved, ScramError> {
        let text = utf8(client_final)?;
        let (without_proof, proof) = text
            .rsplit_once(",p=")
            .ok_or(ScramError::Malformed("proof"))?;
        let mut attributes = without_proof.split(',');
        let binding = attribute(attributes.next(), "c=", "channel binding")?;
        let nonce = attribute(attributes.next(), "r=", "nonce")?;
        if binding != self.binding {
            return Err(ScramError::ChannelBinding);
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
        let client_key = xor(signature, proof);
        let candidate: [u8; 32] = Sha256::digest(client_key).into();
        let right = bool::from(candidate.ct_eq(&self.verifier.stored_key));
        if !right || self.verifier.mock {
            return Err(ScramError::WrongPassword);
        }
        let answer = hmac(&self.verifier.server_key, auth_message.as_bytes());
        Ok(Proved {
            answer: format!("v={}", STANDARD.encode(answer)).into_bytes(),
            keys: Keys {
                salt: self.verifier.salt,
                iterations: self.verifier.iterations,
                client_key,
                server_key: self.verifier.server_key,
            },
        })
    }
}

/// The GS2 header that must open the first message, and what it binds the exchange to.
fn channel<'a>(
    mechanism: &str,
    end_point: Option<&'a [u8]>,
    first: &str,
) -> Result<(&'static str, &'a [u8]), ScramError> {
    let flag = first.bytes().next();
    match (mechanism, end_point, flag) {
        (MECHANISM_PLUS, Some(hash), Some(b'p')) if first.starts_with(END_POINT) => {
            Ok((END_POINT, hash))
        }
        (MECHANISM, _, Some(b'n')) => Ok(("n,,", &[])),
        // It could bind and was not offered to: fine if that is so, else somebody has cut the
        // offer out of our message.
        (MECHANISM, None, Some(b'y')) => Ok(("y,,", &[])),
        (_, _, Some(b'n' | b'y' | b'p')) => Err(ScramError::ChannelBinding),
        (_, _, _) => Err(ScramError::Malformed("channel binding flag")),
    }
}

pub(super) fn utf8(message: &[u8]) -> Result<&str, ScramError> {
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed("encoding"))
}

pub(super) fn attribute<'a>(
    text: Option<&'a str>,
    name: &str,
    what: &'static str,
) -> Result<&'a str, ScramError> {
    text.and_then(|text| text.strip_prefix(name))
        .ok_or(ScramError::Malformed(what))
}

pub(super) fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

pub(super) fn xor(mut one: [u8; 32], other: [u8; 32]) -> [u8; 32] {
    one.iter_mut()
        .zip(other)
        .for_each(|(byte, other)| *byte ^= other);
    one
}
