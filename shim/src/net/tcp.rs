//! Options of a socket: how a peer that is gone without a word is found out.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSettings {
    /// Silence after which the peer is probed, pause between probes, and how many may stay
    /// unanswered; none: no probes.
    pub keepalive: Option<(Duration, Duration, u32)>,
    /// How long sent bytes may stay unacknowledged.
    pub user_timeout: Duration,
    /// Congestion control algorithm; the system's when absent.
    pub congestion_control: Option<String>,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            keepalive: Some((Duration::from_secs(30), Duration::from_secs(10), 3)),
            user_timeout: Duration::from_secs(60),
            congestion_control: None,
        }
    }
}

impl TcpSettings {
    /// Sets the options.
    ///
    /// # Errors
    /// The system refuses one, such as an unknown congestion control algorithm.
    pub fn apply(&self, socket: &impl AsFd) -> io::Result<()> {
        if let Some((time, interval, retries)) = self.keepalive {
            setsockopt(socket, sockopt::KeepAlive, &true)?;
            setsockopt(socket, sockopt::TcpKeepIdle, &seconds(time))?;
            setsockopt(socket, sockopt::TcpKeepInterval, &seconds(interval))?;
            setsockopt(socket, sockopt::TcpKeepCount, &retries)?;
        }
        let user_timeout = u32::try_from(self.user_timeout.as_millis()).unwrap_or(u32::MAX);
        setsockopt(socket, sockopt::TcpUserTimeout, &user_timeout)?;
        if let Some(name) = &self.congestion_control {
            setsockopt(socket, sockopt::TcpCongestion, &OsString::from(name))?;
        }
        Ok(())
    }
}

/// The kernel counts whole seconds from one to 32767.
fn seconds(duration: Duration) -> u32 {
    let rounded = duration.as_millis().div_ceil(1000).clamp(1, 32_767);
    u32::try_from(rounded).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use nix::sys::socket::getsockopt;

    use super::*;

    #[test]
    fn a_socket_has_the_options_that_were_set() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let socket = TcpStream::connect(address).expect("it listens");
        let settings = TcpSettings {
            keepalive: Some((Duration::from_millis(1_500), Duration::from_secs(1), 4)),
            user_timeout: Duration::from_millis(1_234),
            congestion_control: Some("reno".to_owned()),
        };
        settings.apply(&socket).expect("the system knows them all");
        let timeout = getsockopt(&socket, sockopt::TcpUserTimeout).expect("readable");
        let idle = getsockopt(&socket, sockopt::TcpKeepIdle).expect("readable");
        assert_eq!((timeout, idle), (1_234, 2));
        let unknown = TcpSettings {
            congestion_control: Some("no such thing".to_owned()),
            ..settings
        };
        assert!(unknown.apply(&socket).is_err());
    }
}
