//! CancelRequest towards a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::conn::Conn;
use super::{Endpoint, faults};
use crate::net::{Dialer, Encryption};
use crate::proto::CancelKey;
use crate::proto::startup;

/// Cancels whatever one server connection runs; valid as long as the lease it was taken from.
///
/// A connection with a cancel on its way is closed when its lease ends, so that a late cancel
/// never hits the next client.
#[derive(Debug, Clone)]
pub struct CancelToken {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) dialer: Arc<Dialer>,
    pub(super) encryption: Encryption,
    pub(super) key: Arc<CancelKey>,
    pub(super) underway: Arc<AtomicUsize>,
}

impl CancelToken {
    /// Begins a cancel: from now on the connection is not lent to anybody else before it ended.
    pub fn begin(&self) -> Cancel {
        Cancel {
            token: self.clone(),
            _underway: Underway::new(&self.underway),
        }
    }

    /// Sends the request and waits until the server has taken it.
    ///
    /// # Errors
    /// When the server can't be reached within `limit`.
    pub async fn cancel(&self, limit: Duration) -> Result<(), Fault> {
        self.begin().send(limit).await
    }

    async fn send(&self, limit: Duration) -> Result<(), Fault> {
        match tokio::time::timeout(limit, self.request()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(faults::cannot_connect(&self.endpoint, error)),
            Err(_) => {
                let why = faults::took_too_long("the cancel request", limit);
                Err(faults::cannot_connect(&self.endpoint, why))
            }
        }
    }

    async fn request(&self) -> std::io::Result<()> {
        let (host, port) = (self.endpoint.host.as_str(), self.endpoint.port);
        let mut io = self.dialer.connect(host, port, self.encryption).await?;
        let mut out = BytesMut::new();
        startup::cancel_request(&self.key, &mut out);
        io.write_all(&out).await?;
        // The server closes once it has signalled the backend. Reset instead of end is as good.
        let mut nothing = BytesMut::with_capacity(1);
        io.read_buf(&mut nothing).await.map(|_| ()).or(Ok(()))
    }
}

/// A cancel that has begun.
#[derive(Debug)]
pub struct Cancel {
    token: CancelToken,
    _underway: Underway,
}

impl Cancel {
    /// Sends the request and waits until the server has taken it.
    ///
    /// # Errors
    /// When the server can't be reached within `limit`.
    pub async fn send(self, limit: Duration) -> Result<(), Fault> {
        self.token.send(limit).await
    }
}

/// Counts a cancel while it is on its way, also when it is given up.
#[derive(Debug)]
struct Underway(Arc<AtomicUsize>);

impl Underway {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Conn {
    /// What cancels the statement that runs here.
    pub fn cancel_token(&self) -> Arc<CancelToken> {
        let token = self.cancel_token.get_or_init(|| {
            Arc::new(CancelToken {
                endpoint: self.endpoint.clone(),
                dialer: self.dialer.clone(),
                encryption: self.encryption(),
                key: self.key.clone(),
                underway: self.cancels_underway.clone(),
            })
        });
        token.clone()
    }

    /// What told the server's secret in clear text may do so again; what did not must not.
    fn encryption(&self) -> Encryption {
        match self.io.is_encrypted() {
            true => Encryption::ByRule,
            false => Encryption::Off,
        }
    }
}
