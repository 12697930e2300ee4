//! What the configuration says about server connections. Plain data, replaced at RELOAD.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Endpoint;
use super::login::PREPARED_LIMIT;
use crate::net::{Dialer, TcpSettings};

/// Bounds of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Connections at most.
    pub size: usize,
    /// Connections that stay open when idle, once the pool was used.
    pub min: usize,
    /// Idle connections beyond `min` are closed after so long.
    pub idle_timeout: Duration,
    /// A connection is replaced after so long.
    pub lifetime: Duration,
}

/// What all pools share, and where they differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Connections of one user to one endpoint at most, unless `limits` says otherwise.
    pub size: usize,
    /// As [`PoolLimits::min`].
    pub min: usize,
    /// As [`PoolLimits::idle_timeout`].
    pub idle_timeout: Duration,
    /// As [`PoolLimits::lifetime`].
    pub lifetime: Duration,
    /// A connection must be logged in within so long.
    pub connect_timeout: Duration,
    /// Named statements that one connection keeps.
    pub prepared_statements_limit: usize,
    /// How servers are connected to.
    pub dialer: Arc<Dialer>,
    /// Options of the sockets.
    pub tcp: TcpSettings,
    /// Bounds of users at endpoints; of everybody at an endpoint under the empty name.
    pub limits: HashMap<(Endpoint, String), PoolLimits>,
}

impl PoolSettings {
    /// The bounds of a user's pool.
    pub fn limits(&self, endpoint: &Endpoint, user: &str) -> PoolLimits {
        let of = |user: &str| self.limits.get(&(endpoint.clone(), user.to_owned()));
        let own = of(user).or_else(|| of("")).copied();
        own.unwrap_or(PoolLimits {
            size: self.size,
            min: self.min,
            idle_timeout: self.idle_timeout,
            lifetime: self.lifetime,
        })
    }
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            size: 10,
            min: 0,
            idle_timeout: Duration::from_secs(60),
            lifetime: Duration::from_secs(24 * 3600),
            connect_timeout: Duration::from_secs(5),
            prepared_statements_limit: PREPARED_LIMIT,
            dialer: Arc::default(),
            tcp: TcpSettings::default(),
            limits: HashMap::new(),
        }
    }
}
