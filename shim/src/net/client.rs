//! Logging in with tokio-postgres over a [`Stream`], for the shim's own statements.

use std::io;

use socket2::{SockRef, TcpKeepalive};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls};

use super::{Dialer, Encryption, Stream};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// No connection, or none by the rules.
    #[error("{0}")]
    Dial(#[from] io::Error),
    /// The server or the driver says why.
    #[error("{0}")]
    Login(#[from] tokio_postgres::Error),
}

impl Dialer {
    /// Connects by the rules to the first host of `config` and logs in as it says.
    ///
    /// # Errors
    /// See [`LoginError`].
    pub async fn log_in(
        &self,
        config: &Config,
    ) -> Result<(Client, Connection<Stream, NoTlsStream>), LoginError> {
        match self.log_in_over(config, Encryption::ByRule).await {
            // As libpq: pg_hba.conf may have an entry for clear text alone.
            Err(LoginError::Login(error))
                if error.code().is_some_and(|code| code.code() == "28000")
                    && self.may_fall_back() =>
            {
                self.log_in_over(config, Encryption::Off).await
            }
            other => other,
        }
    }

    async fn log_in_over(
        &self,
        config: &Config,
        encryption: Encryption,
    ) -> Result<(Client, Connection<Stream, NoTlsStream>), LoginError> {
        let (Some(Host::Tcp(host)), Some(port)) =
            (config.get_hosts().first(), config.get_ports().first())
        else {
            return Err(io::Error::other("no host to connect to").into());
        };
        let dialing = self.connect(host, *port, encryption);
        let stream = match config.get_connect_timeout() {
            None => dialing.await?,
            Some(limit) => tokio::time::timeout(*limit, dialing)
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
        };
        watch(&stream, config)?;
        // What tokio-postgres would do about TLS is done already.
        let mut config = config.clone();
        config.ssl_mode(SslMode::Disable);
        Ok(config.connect_raw(stream, NoTls).await?)
    }
}

/// When a server that is silent counts as lost.
fn watch(stream: &Stream, config: &Config) -> io::Result<()> {
    let socket = SockRef::from(stream.tcp());
    let mut keepalive = TcpKeepalive::new().with_time(config.get_keepalives_idle());
    if let Some(interval) = config.get_keepalives_interval() {
        keepalive = keepalive.with_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        keepalive = keepalive.with_retries(retries);
    }
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(config.get_tcp_user_timeout().copied())
}
