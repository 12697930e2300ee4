//! PostgreSQL's `md5` password exchange: old, weak, and still asked for.

use postgres_protocol::authentication::md5_hash;
use subtle::ConstantTimeEq;

/// What a client answers to AuthenticationMD5Password.
pub fn answer(user: &str, password: &str, salt: [u8; 4]) -> String {
    md5_hash(user.as_bytes(), password.as_bytes(), salt)
}

/// Whether a client's answer is right; takes the same time for any wrong one.
pub fn verify(user: &str, password: &str, salt: [u8; 4], given: &[u8]) -> bool {
    answer(user, password, salt).as_bytes().ct_eq(given).into()
}
