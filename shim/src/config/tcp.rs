//! `[tcp]`: how dead peers are found out.

use serde::{Deserialize, Serialize};

use super::Ms;

/// Settings of the sockets, towards clients and nodes alike.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Tcp {
    /// Whether silent connections are probed.
    pub keepalive: bool,
    /// After how much silence the first probe is sent.
    pub time: Ms,
    /// Pause between two probes.
    pub interval: Ms,
    /// Probes without an answer after which the connection is lost.
    pub retries: u32,
    /// How long sent bytes may stay unacknowledged before the connection is lost.
    pub user_timeout: Ms,
    /// Congestion control algorithm; the system's when absent.
    pub congestion_control: Option<String>,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            keepalive: true,
            time: Ms(30_000),
            interval: Ms(10_000),
            retries: 3,
            user_timeout: Ms(60_000),
            congestion_control: None,
        }
    }
}
