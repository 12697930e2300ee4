//! Certificates and keys, loaded from the files that the configuration names.

use std::path::Path;

use pgdog_core::fault::Fault;

use crate::config::{General, TlsVerify};
use crate::net::{Inbound, Mode, Outbound, TlsError};

/// How clients are served, and how nodes are connected to.
pub struct Tls {
    /// None: without TLS.
    pub inbound: Option<Inbound>,
    /// Rules towards nodes.
    pub outbound: Outbound,
}

/// What a certificate for clients means that is named and not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Clients are served without TLS, if they may be.
    IsTold,
    /// Nothing: those who are behind TLS now must not fall back.
    IsWrong,
}

impl Tls {
    /// Reads the files. A reload reads them again, so that renewed certificates count.
    ///
    /// # Errors
    /// A file that is named cannot be used.
    pub fn load(general: &General, missing: Missing) -> Result<Self, Fault> {
        let own = general.tls_server_certificate.as_deref();
        let mode = match general.tls_verify {
            TlsVerify::Disabled => Mode::Disable,
            TlsVerify::Prefer => Mode::Prefer,
            TlsVerify::Require => Mode::Require,
            TlsVerify::VerifyCa => Mode::VerifyCa,
            TlsVerify::VerifyFull => Mode::VerifyFull,
        };
        let roots: Option<&Path> = general.tls_server_ca_certificate.as_deref();
        Ok(Self {
            inbound: inbound(general, missing)?,
            outbound: Outbound::load(
                mode,
                roots,
                own.zip(general.tls_server_private_key.as_deref()),
            )
            .map_err(|error| unusable("tls_verify", &error))?,
        })
    }
}

/// How clients are served.
///
/// # Errors
/// A file that is named cannot be used.
pub fn inbound(general: &General, missing: Missing) -> Result<Option<Inbound>, Fault> {
    let Some((certificate, key)) = pair(general) else {
        return Ok(None);
    };
    let there = certificate.exists() && key.exists();
    if missing == Missing::IsTold && may_be_bare(general) && !there {
        tracing::error!(certificate = %certificate.display(), key = %key.display(),
            "certificate or key is not there: clients are served without TLS until it is");
        return Ok(None);
    }
    let clients = general.tls_client_ca_certificate.as_deref();
    Inbound::load(certificate, key, clients)
        .map(Some)
        .map_err(|error| unusable("tls_certificate", &error))
}

/// The certificate for clients and its key, if they are named.
fn pair(general: &General) -> Option<(&Path, &Path)> {
    let certificate = general.tls_certificate.as_deref();
    certificate.zip(general.tls_private_key.as_deref())
}

/// Whether clients are to be served with TLS.
pub fn is_named(general: &General) -> bool {
    pair(general).is_some()
}

/// Whether clients without TLS are let in, and none proves himself by a certificate.
fn may_be_bare(general: &General) -> bool {
    !general.tls_client_required && general.tls_client_ca_certificate.is_none()
}

fn unusable(key: &str, error: &TlsError) -> Fault {
    Fault::BadConfig {
        place: format!("[general] {key}"),
        why: error.to_string(),
        hint: None,
    }
}
