//! What TLS is done with: certificates, keys and roots from files, and what is checked by them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::certificate;

/// The protocol's name in ALPN.
pub(super) const ALPN: &[u8] = b"postgresql";

/// Why files can't be used; says which one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// How clients are served.
#[derive(Clone)]
pub struct Inbound {
    pub(super) config: Arc<ServerConfig>,
    pub(super) end_point: Option<Vec<u8>>,
    asks_for_certificates: bool,
}

impl Inbound {
    /// From PEM files: the certificate with its chain, its key, and who signs clients'
    /// certificates, if these are asked for.
    ///
    /// # Errors
    /// A file can't be read, holds something else, or the key is not the certificate's.
    pub fn load(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Self, TlsError> {
        let chain = certificates(certificate)?;
        let end_point = chain.first().and_then(|own| certificate::end_point(own));
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(certificate, &error))?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(path) => builder.with_client_cert_verifier(Arc::new(Signed::load(path)?)),
        };
        let mut config = builder
            .with_single_cert(chain, private_key(key)?)
            .map_err(|error| unusable(key, &error))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // As PostgreSQL: nobody resumes, and the tickets would only be bytes.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            config: Arc::new(config),
            end_point,
            asks_for_certificates: clients.is_some(),
        })
    }

    /// Whether clients are asked for certificates, which then say who they are.
    pub fn asks_for_certificates(&self) -> bool {
        self.asks_for_certificates
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("asks_for_certificates", &self.asks_for_certificates)
            .finish_non_exhaustive()
    }
}

/// When connections to servers are encrypted, and what is checked: libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Never.
    #[default]
    Disable,
    /// When the server can, whoever it is.
    Prefer,
    /// Always, whoever the server is.
    Require,
    /// Always, with a certificate that a known root has signed.
    VerifyCa,
    /// As well, and it must name the host.
    VerifyFull,
}

/// How servers are connected to.
#[derive(Clone, Default)]
pub struct Outbound {
    pub(super) mode: Mode,
    pub(super) config: Option<Arc<ClientConfig>>,
    pub(super) libpq: Vec<(&'static str, String)>,
}

impl Outbound {
    /// From PEM files: roots (the system's own when none are given), and a certificate with its
    /// key for servers that ask for one. As in libpq, roots make `require` verify them.
    ///
    /// # Errors
    /// A file can't be read or holds something else.
    pub fn load(
        mode: Mode,
        roots: Option<&Path>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self, TlsError> {
        let trust = match (mode, roots) {
            (Mode::Disable, _) => {
                return Ok(Self {
                    libpq: libpq(mode, None, None),
                    ..Self::default()
                });
            }
            (Mode::Prefer, _) | (Mode::Require, None) => None,
            (Mode::Require | Mode::VerifyCa | Mode::VerifyFull, Some(path)) => {
                Some(Trust::load(path)?)
            }
            (Mode::VerifyCa | Mode::VerifyFull, None) => Some(Trust::of_system()?),
        };
        let check = ServerCheck {
            provider: provider(),
            trust,
            names_host: mode == Mode::VerifyFull,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(check));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|error| unusable(key, &error))?,
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            mode,
            config: Some(Arc::new(config)),
            libpq: libpq(mode, roots, identity),
        })
    }
}

/// Where Debian keeps the system's roots in one file.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The rules as libpq's environment.
fn libpq(
    mode: Mode,
    roots: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Vec<(&'static str, String)> {
    let word = match mode {
        Mode::Disable => "disable",
        Mode::Prefer => "prefer",
        Mode::Require => "require",
        Mode::VerifyCa => "verify-ca",
        Mode::VerifyFull => "verify-full",
    };
    let mut variables = vec![("PGSSLMODE", word.to_owned())];
    let mut file = |name, path: &Path| variables.push((name, path.display().to_string()));
    match (mode, roots) {
        (Mode::Disable | Mode::Prefer, _) | (Mode::Require, None) => {}
        (_, Some(path)) => file("PGSSLROOTCERT", path),
        (Mode::VerifyCa | Mode::VerifyFull, None) => file("PGSSLROOTCERT", SYSTEM_ROOTS.as_ref()),
    }
    if let Some((certificate, key)) = identity {
        file("PGSSLCERT", certificate);
        file("PGSSLKEY", key);
    }
    variables
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// Roots, and the very certificates that were given as such: one that a server or client shows
/// itself is trusted although it is no root's.
#[derive(Debug)]
struct Trust {
    given: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
}

impl Trust {
    fn load(path: &Path) -> Result<Self, TlsError> {
        let given = certificates(path)?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(given.iter().cloned());
        Ok(Self {
            given,
            roots: Arc::new(roots),
        })
    }

    fn of_system() -> Result<Self, TlsError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = "the system has no root certificates; give tls_server_ca_certificate";
            return Err(TlsError(why.to_owned()));
        }
        Ok(Self {
            given: Vec::new(),
            roots: Arc::new(roots),
        })
    }

    fn was_given(&self, certificate: &CertificateDer<'_>) -> bool {
        self.given.iter().any(|given| given == certificate)
    }
}

/// What is checked of a server's certificate.
#[derive(Debug)]
struct ServerCheck {
    provider: Arc<CryptoProvider>,
    /// `None`: any certificate will do.
    trust: Option<Trust>,
    names_host: bool,
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(trust) = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(certificate)?;
        if !trust.was_given(certificate) {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &trust.roots,
                intermediates,
                now,
                algorithms,
            )?;
        }
        if self.names_host
            && let Err(error) = verify_server_name(&parsed, host)
            && !subject_is(certificate, host)
        {
            return Err(error);
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let checked = verify_tls13_signature(message, certificate, signed, algorithms);
        // Certificates of version 1, as `openssl x509 -req` makes them, cannot be read by rustls.
        // Where any will do, the key in it is enough.
        match (checked, &self.trust, certificate::public_key(certificate)) {
            (Err(rustls::Error::InvalidCertificate(_)), None, Some(key)) => {
                let key = SubjectPublicKeyInfoDer::from(key);
                verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
            }
            (checked, _, _) => checked,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// As libpq: the subject's name counts where no alternative names are given.
fn subject_is(certificate: &CertificateDer<'_>, host: &ServerName<'_>) -> bool {
    let is_address = matches!(host, ServerName::IpAddress(_));
    if certificate::names_alternatives(certificate, is_address) {
        return false;
    }
    let Some(name) = certificate::common_name(certificate) else {
        return false;
    };
    let host = host.to_str();
    let wildcard = name
        .strip_prefix("*.")
        .filter(|_| !is_address)
        .zip(host.split_once('.'));
    match wildcard {
        Some((domain, (_, rest))) => rest.eq_ignore_ascii_case(domain),
        None => name.eq_ignore_ascii_case(&host),
    }
}

/// What is checked of a client's certificate: that it is one of those given, or signed by one.
/// Whether a client needs one is decided when its user is known.
#[derive(Debug)]
struct Signed {
    trust: Trust,
    signed: Arc<dyn ClientCertVerifier>,
}

impl Signed {
    fn load(path: &Path) -> Result<Self, TlsError> {
        let trust = Trust::load(path)?;
        let signed = WebPkiClientVerifier::builder_with_provider(trust.roots.clone(), provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| TlsError(format!("{}: {error}", path.display())))?;
        Ok(Self { trust, signed })
    }
}

impl ClientCertVerifier for Signed {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if self.trust.was_given(certificate) {
            return Ok(ClientCertVerified::assertion());
        }
        self.signed
            .verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, &error));
    match found {
        Ok(none) if none.is_empty() => {
            Err(TlsError(format!("{} holds no certificate", path.display())))
        }
        other => other,
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, error: &dyn fmt::Display) -> TlsError {
    TlsError(format!("cannot use {}: {error}", path.display()))
}
