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
        let pair = general.tls_certificate.as_deref();
        let pair = pair.zip(general.tls_private_key.as_deref());
        let inbound = match pair {
            Some((certificate, key))
                if missing == Missing::IsTold
                    && may_be_bare(general)
                    && !(certificate.exists() && key.exists()) =>
            {
                tracing::error!(certificate = %certificate.display(), key = %key.display(),
                    "certificate or key is not there: clients are served without TLS");
                None
            }
            pair => pair,
        };
        let clients = general.tls_client_ca_certificate.as_deref();
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
            inbound: inbound
                .map(|(certificate, key)| Inbound::load(certificate, key, clients))
                .transpose()
                .map_err(|error| unusable("tls_certificate", &error))?,
            outbound: Outbound::load(
                mode,
                roots,
                own.zip(general.tls_server_private_key.as_deref()),
            )
            .map_err(|error| unusable("tls_verify", &error))?,
        })
    }
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
