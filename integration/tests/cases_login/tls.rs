//! Certificates for the tests, and a client below TLS that looks at what it is shown.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

/// A folder with an authority and what it has signed.
pub struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one; its certificate is `ca.pem`.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        std::fs::write(dir.join("ca.pem"), issuer.pem())?;
        let dir = dir.to_path_buf();
        Ok(Self { dir, issuer })
    }

    /// Signs a certificate and returns it in DER; `NAME.pem` and `NAME.key` are its files.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> anyhow::Result<Vec<u8>> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let signed = params.signed_by(&key, &self.issuer)?;
        std::fs::write(self.path(&format!("{name}.pem")), signed.pem())?;
        let path = self.path(&format!("{name}.key"));
        std::fs::write(&path, key.serialize_pem())?;
        // PostgreSQL and libpq refuse keys that others may read.
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(signed.der().to_vec())
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// A stream below TLS.
pub type Encrypted = StreamOwned<ClientConnection, TcpStream>;

/// Does the handshake; returns the certificate that was shown.
pub fn encrypt(stream: TcpStream, alpn: Option<&str>) -> anyhow::Result<(Encrypted, Vec<u8>)> {
    let shown = Arc::new(Shown::default());
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(shown.clone())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost")?;
    let connection = ClientConnection::new(Arc::new(config), name)?;
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    stream.flush()?;
    let certificate = shown.0.lock().unwrap_or_else(PoisonError::into_inner);
    let certificate = certificate.clone();
    Ok((stream, certificate))
}

/// Takes any certificate, and keeps it.
#[derive(Debug, Default)]
struct Shown(Mutex<Vec<u8>>);

impl ServerCertVerifier for Shown {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = certificate.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
