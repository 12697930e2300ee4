//! PostgreSQL's `md5` password exchange: old, weak, and still asked for.
//!
//! What a server stores (`md5` and a hash of password and name) is all that a client needs: who
//! has it can log in. So it is also all that is passed on.

use md5::{Digest, Md5};
use subtle::ConstantTimeEq;

/// What PostgreSQL stores of a password: `md5` and 32 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Stored([u8; 32]);

/// Hashes stay out of logs.
impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stored")
    }
}

impl Stored {
    /// From a password; the user's name is the salt.
    pub fn from_password(user: &str, password: &str) -> Self {
        Self(hex(&[password.as_bytes(), user.as_bytes()]))
    }

    /// From the stored form.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("md5")?.as_bytes();
        let are_hex = digits
            .iter()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        digits.try_into().ok().filter(|_| are_hex).map(Self)
    }

    /// What a client answers to AuthenticationMD5Password.
    pub fn answer(&self, salt: [u8; 4]) -> String {
        let digits = hex(&[&self.0, &salt]);
        format!("md5{}", String::from_utf8_lossy(&digits))
    }

    /// Whether a client's answer is right; takes the same time for any wrong one.
    pub fn verify(&self, salt: [u8; 4], given: &[u8]) -> bool {
        self.answer(salt).as_bytes().ct_eq(given).into()
    }

    /// Whether this is the hash of that password.
    pub fn fits(&self, user: &str, password: &str) -> bool {
        Self::from_password(user, password).0.ct_eq(&self.0).into()
    }
}

/// MD5 of the pieces, in hexadecimal digits.
fn hex(pieces: &[&[u8]]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hash = Md5::new();
    pieces.iter().for_each(|piece| hash.update(piece));
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(hash.finalize()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    digits
}
