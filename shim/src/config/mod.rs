//! Configuration files: `pgdog.toml` and `users.toml`.
