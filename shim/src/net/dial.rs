//! Connecting to servers.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::BytesMut;
use rustls::ClientConnection;
use rustls::pki_types::{IpAddr, Ipv4Addr, ServerName};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::tls::{Mode, Outbound};
use super::{Stream, TcpSettings};
use crate::proto::startup;

/// Connects to servers by the rules of the configuration, which may change meanwhile.
#[derive(Debug, Default)]
pub struct Dialer {
    rules: ArcSwap<Outbound>,
}

/// Two are the same when they are one: rules come and go.
impl PartialEq for Dialer {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Dialer {}

/// Whether a connection may be encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// As the rules say.
    ByRule,
    /// It is not: the server has refused the encrypted one, and the rules allow both.
    Off,
}

impl Dialer {
    /// Connects by these rules.
    pub fn new(rules: Outbound) -> Arc<Self> {
        Arc::new(Self {
            rules: ArcSwap::from_pointee(rules),
        })
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<Outbound> {
        self.rules.load_full()
    }

    /// Other rules for connections from now on.
    pub fn follow(&self, rules: Arc<Outbound>) {
        self.rules.store(rules);
    }

    /// Whether clear text would do where encryption fails.
    pub fn may_fall_back(&self) -> bool {
        self.rules.load().mode == Mode::Prefer
    }

    /// Whether there is no connection without encryption.
    pub fn must_encrypt(&self) -> bool {
        match self.rules.load().mode {
            Mode::Disable | Mode::Prefer => false,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => true,
        }
    }

    /// The same rules for programs that use libpq, as variables of their environment.
    pub fn libpq(&self) -> Vec<(&'static str, String)> {
        self.rules.load().libpq.clone()
    }

    /// Connects and encrypts; the server waits for the startup packet then.
    ///
    /// # Errors
    /// When the server can't be reached, or is not what the rules want.
    pub async fn connect(
        &self,
        host: &str,
        port: u16,
        encryption: Encryption,
    ) -> io::Result<Stream> {
        let rules = self.rules.load_full();
        let mut stream = Stream::new(open(host, port).await?);
        let (Some(config), Encryption::ByRule) = (&rules.config, encryption) else {
            return Ok(stream);
        };
        if !ask(&mut stream).await? {
            return match rules.mode {
                Mode::Disable | Mode::Prefer => Ok(stream),
                Mode::Require | Mode::VerifyCa | Mode::VerifyFull => Err(io::Error::other(
                    "the server does not support TLS, which tls_verify demands",
                )),
            };
        }
        // A name that can't be in a certificate is looked for in vain, and not sent.
        let nowhere = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0; 4])));
        let name = ServerName::try_from(host.to_owned()).unwrap_or(nowhere);
        let connection = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        match stream.encrypt(connection.into(), &[]).await {
            Ok(()) => Ok(stream),
            Err(_) if rules.mode == Mode::Prefer => Ok(Stream::new(open(host, port).await?)),
            Err(error) => Err(error),
        }
    }
}

async fn open(host: &str, port: u16) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    TcpSettings::default().apply(&tcp)?;
    Ok(tcp)
}

/// SSLRequest; whether the server agrees. Exactly one byte is read: what follows it in clear text
/// is left for the handshake, which refuses it.
async fn ask(stream: &mut Stream) -> io::Result<bool> {
    let mut request = BytesMut::new();
    startup::ssl_request(&mut request);
    stream.write_all(&request).await?;
    match stream.read_u8().await? {
        b'S' => Ok(true),
        b'N' => Ok(false),
        // An error of a server that can't even start a backend.
        _ => Err(io::Error::other("the server does not answer to SSLRequest")),
    }
}
