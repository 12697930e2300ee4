//! What logins by way of a shim need of this server.

use pgrx::prelude::*;

/// Bytes of PostgreSQL's nonce (`MOCK_AUTH_NONCE_LEN`).
const NONCE_BYTES: usize = 32;

/// The cluster's secret for mock authentication, from pg_control: a base backup copies it.
#[pg_extern(sql = false)]
fn mock_nonce() -> Vec<u8> {
    // SAFETY: points into the process' copy of pg_control, which is as long and stays.
    unsafe {
        let nonce = pg_sys::GetMockAuthenticationNonce().cast::<u8>();
        std::slice::from_raw_parts(nonce, NONCE_BYTES).to_vec()
    }
}
