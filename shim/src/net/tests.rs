//! What is shown: both ends of this module agree, what they bind to is the same, and whoever is
//! not what the rules want is refused. Certificates are made anew for each test.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::BytesMut;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SignatureAlgorithm,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A folder with an authority and what it has signed.
struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).expect("written");
        Self { dir, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Signs for somebody; `names` are alternative names.
    fn sign(&self, subject: &str, names: &[&str], kind: &'static SignatureAlgorithm) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, subject);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate_for(kind).expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        let file = |kind: &str| self.path(&format!("{subject}.{kind}"));
        std::fs::write(file("pem"), signed.pem()).expect("written");
        std::fs::write(file("key"), key.serialize_pem()).expect("written");
        signed.der().to_vec()
    }

    fn inbound(&self, subject: &str, clients: Option<&Path>) -> Result<Inbound, TlsError> {
        let file = |kind: &str| self.path(&format!("{subject}.{kind}"));
        Inbound::load(&file("pem"), &file("key"), clients)
    }
}

/// A server that answers to SSLRequest, echoes what it is sent and tells what it has seen.
async fn serve(inbound: Option<Inbound>) -> (u16, tokio::task::JoinHandle<Vec<Seen>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let task = tokio::spawn(async move {
        let mut seen = Vec::new();
        // A client that is refused may come again in clear text.
        while let Ok((tcp, _)) = listener.accept().await {
            if let Some(one) = answer(tcp, inbound.as_ref()).await {
                seen.push(one);
                break;
            }
        }
        seen
    });
    (port, task)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    encrypted: bool,
    end_point: Option<Vec<u8>>,
    peer: Option<String>,
}

async fn answer(tcp: TcpStream, inbound: Option<&Inbound>) -> Option<Seen> {
    let mut stream = Stream::new(tcp);
    let mut request = BytesMut::with_capacity(64);
    stream.read_buf(&mut request).await.ok()?;
    if request[..] == *b"\0\0\0\x08\x04\xd2\x16\x2f" {
        let reply = if inbound.is_some() { b"S" } else { b"N" };
        stream.write_all(reply).await.ok()?;
        if let Some(inbound) = inbound {
            stream.accept(inbound, &[]).await.ok()?;
            assert!(stream.speaks_postgresql());
        }
        request.clear();
        stream
            .read_buf(&mut request)
            .await
            .ok()
            .filter(|count| *count > 0)?;
    }
    stream.write_all(&request).await.ok()?;
    Some(Seen {
        encrypted: stream.is_encrypted(),
        end_point: stream.end_point().map(<[u8]>::to_vec),
        peer: stream.peer_name(),
    })
}

/// Connects by the rules and hears its own words.
async fn call(host: &str, port: u16, rules: Outbound) -> std::io::Result<Stream> {
    let dialer = Dialer::new(rules);
    let mut stream = dialer.connect(host, port, Encryption::ByRule).await?;
    stream.write_all(b"hello").await?;
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await?;
    assert_eq!(&heard, b"hello");
    Ok(stream)
}

#[tokio::test]
async fn both_ends_see_the_same_certificate() {
    let authority = Authority::new();
    for (kind, hash) in [
        (&PKCS_ECDSA_P256_SHA256, true),
        (&PKCS_ECDSA_P384_SHA384, true),
        (&PKCS_ED25519, true),
    ] {
        let der = authority.sign("server", &["localhost"], kind);
        let (port, task) = serve(Some(authority.inbound("server", None).expect("usable"))).await;
        let rules = Outbound::load(Mode::VerifyFull, Some(&authority.ca()), None);
        let stream = call("localhost", port, rules.expect("usable"))
            .await
            .expect("served");
        let seen = task.await.expect("no panic");
        assert_eq!(seen[0].end_point.as_deref(), stream.end_point());
        // The authority's own key has signed all of them.
        assert_eq!(stream.end_point().is_some(), hash, "{kind:?}");
        assert_eq!(certificate::end_point(&der).as_deref(), stream.end_point());
        assert_eq!(seen[0].peer, None, "no certificate was asked for");
    }
}

#[tokio::test]
async fn modes_mean_what_they_mean_in_libpq() {
    let authority = Authority::new();
    let other = Authority::new();
    authority.sign("server", &["localhost"], &PKCS_ECDSA_P256_SHA256);
    authority.sign("127.0.0.1", &[], &PKCS_ECDSA_P256_SHA256);
    let (ca, strange) = (authority.ca(), other.ca());
    let (ca, strange) = (Some(ca.as_path()), Some(strange.as_path()));
    // Mode, roots, host, certificate of the server: encrypted, clear, or refused.
    let (tls, clear, refused) = (Some(true), Some(false), None);
    for (mode, roots, host, subject, expected) in [
        (Mode::Disable, None, "127.0.0.1", Some("server"), clear),
        (Mode::Prefer, None, "127.0.0.1", Some("server"), tls),
        (Mode::Prefer, strange, "127.0.0.1", Some("server"), tls),
        (Mode::Prefer, None, "127.0.0.1", None, clear),
        (Mode::Require, None, "127.0.0.1", Some("server"), tls),
        (Mode::Require, strange, "127.0.0.1", Some("server"), refused),
        (Mode::Require, None, "127.0.0.1", None, refused),
        (Mode::VerifyCa, ca, "127.0.0.1", Some("server"), tls),
        (
            Mode::VerifyCa,
            strange,
            "127.0.0.1",
            Some("server"),
            refused,
        ),
        (Mode::VerifyCa, ca, "127.0.0.1", None, refused),
        (Mode::VerifyFull, ca, "localhost", Some("server"), tls),
        (Mode::VerifyFull, ca, "127.0.0.1", Some("server"), refused),
        (
            Mode::VerifyFull,
            strange,
            "localhost",
            Some("server"),
            refused,
        ),
        // No alternative names: the subject counts.
        (Mode::VerifyFull, ca, "127.0.0.1", Some("127.0.0.1"), tls),
        (
            Mode::VerifyFull,
            ca,
            "localhost",
            Some("127.0.0.1"),
            refused,
        ),
    ] {
        let inbound = subject.map(|subject| authority.inbound(subject, None).expect("usable"));
        let (port, task) = serve(inbound).await;
        let rules = Outbound::load(mode, roots, None).expect("usable");
        let called = call(host, port, rules).await;
        let what = format!("{mode:?} {roots:?} {host} {subject:?}: {called:?}");
        assert_eq!(
            called.ok().map(|stream| stream.is_encrypted()),
            expected,
            "{what}"
        );
        task.abort();
    }
}

#[tokio::test]
async fn a_certificate_that_is_given_as_a_root_is_trusted_itself() {
    let authority = Authority::new();
    // Self-signed and an authority at once, as `openssl req -x509` makes it.
    let (pem, key) = (authority.ca(), authority.path("ca.key"));
    std::fs::write(&key, authority.issuer.key().serialize_pem()).expect("written");
    let inbound = Inbound::load(&pem, &key, Some(&pem)).expect("usable");
    let (port, task) = serve(Some(inbound)).await;
    let identity = Some((pem.as_path(), key.as_path()));
    let rules = Outbound::load(Mode::VerifyCa, Some(&pem), identity).expect("usable");
    let stream = call("127.0.0.1", port, rules).await.expect("served");
    assert!(stream.is_encrypted());
    let seen = task.await.expect("no panic");
    assert!(seen[0].encrypted);
}

#[tokio::test]
async fn a_clients_certificate_says_who_it_is_if_it_is_signed() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.sign("server", &[], &PKCS_ECDSA_P256_SHA256);
    authority.sign("alice", &[], &PKCS_ECDSA_P256_SHA256);
    other.sign("mallory", &[], &PKCS_ECDSA_P256_SHA256);
    let ca = authority.ca();
    for (who, expected) in [
        (Some((&authority, "alice")), Some(Some("alice".to_owned()))),
        (None, Some(None)),
        (Some((&other, "mallory")), None),
    ] {
        let inbound = authority.inbound("server", Some(&ca)).expect("usable");
        assert!(inbound.asks_for_certificates());
        let (port, task) = serve(Some(inbound)).await;
        let files = who.map(|(of, name)| {
            (
                of.path(&format!("{name}.pem")),
                of.path(&format!("{name}.key")),
            )
        });
        let identity = files
            .as_ref()
            .map(|(pem, key)| (pem.as_path(), key.as_path()));
        let rules = Outbound::load(Mode::Require, None, identity).expect("usable");
        match expected {
            Some(name) => {
                call("127.0.0.1", port, rules).await.expect("served");
                assert_eq!(task.await.expect("no panic")[0].peer, name);
            }
            None => {
                call("127.0.0.1", port, rules).await.expect_err("refused");
                task.abort();
            }
        }
    }
}

#[tokio::test]
async fn much_goes_both_ways_at_once() {
    let authority = Authority::new();
    authority.sign("server", &[], &PKCS_ECDSA_P256_SHA256);
    let inbound = authority.inbound("server", None).expect("usable");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let echo = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.expect("a client");
        let mut stream = Stream::new(tcp);
        let mut request = [0; 8];
        stream.read_exact(&mut request).await.expect("SSLRequest");
        stream.write_all(b"S").await.expect("written");
        stream.accept(&inbound, &[]).await.expect("a handshake");
        let mut buffer = BytesMut::new();
        let mut total = 0;
        loop {
            buffer.reserve(8192);
            match stream.read_buf(&mut buffer).await.expect("bytes") {
                0 => return total,
                count => total += count,
            }
            stream.write_all(&buffer.split()).await.expect("written");
        }
    });
    let rules = Outbound::load(Mode::Require, None, None).expect("usable");
    let dialer = Dialer::new(rules);
    let dialed = dialer.connect("127.0.0.1", port, Encryption::ByRule).await;
    let (mut reader, mut writer) = tokio::io::split(dialed.expect("served"));
    let sent: Arc<Vec<u8>> = Arc::new((0..8 << 20).map(|n: u32| (n % 251) as u8).collect());
    let bytes = sent.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&bytes).await.expect("written");
        writer
    });
    let mut heard = vec![0; sent.len()];
    reader.read_exact(&mut heard).await.expect("all of it");
    assert!(heard == *sent, "as it was sent");
    let mut writer = writing.await.expect("no panic");
    writer.shutdown().await.expect("said");
    assert_eq!(echo.await.expect("no panic"), sent.len());
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.sign("one", &[], &PKCS_ECDSA_P256_SHA256);
    other.sign("two", &[], &PKCS_ECDSA_P256_SHA256);
    let (pem, key) = (authority.path("one.pem"), authority.path("one.key"));
    let told = |result: Result<Inbound, TlsError>, name: &str| {
        let error = result.expect_err("refused").to_string();
        assert!(error.contains(name), "{error}");
    };
    told(Inbound::load(&authority.path("none"), &key, None), "none");
    told(Inbound::load(&key, &key, None), "one.key");
    told(Inbound::load(&pem, &pem, None), "one.pem");
    told(Inbound::load(&pem, &other.path("two.key"), None), "two.key");
    told(Inbound::load(&pem, &key, Some(&key)), "one.key");
    let rules = Outbound::load(Mode::VerifyCa, Some(&key), None);
    assert!(rules.expect_err("refused").to_string().contains("one.key"));
}

/// As `openssl x509 -req` makes them: version 1, which rustls does not read.
const VERSION_1: &[u8] = b"-----BEGIN CERTIFICATE-----
MIIBGDCBvwIUW6d8yWvxFTgRZtUUTPXNxlq3REEwCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDb2xkMCAXDTI2MTEzMDE0NTkxNFoYDzIxMjYxMTA2MTQ1OTE0WjAOMQww
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATFa+6LQ9PMXcaW
QVI+80EfJQHt1AHbuileaJCTsv7M1tvxNT0rQu9Pk0DClTAfXuTczG/AAjYdaGqA
MU34iIXEMAoGCCqGSM49BAMCA0gAMEUCIDXczA4jRDQCRS1cvVpVjI0zPkJGbHcr
CSRoj0mM1U7hAiEA/8m46Tggcek2K5w9MKJjDldC5dOERdn1K/NCcGsSuIA=
-----END CERTIFICATE-----
";

#[test]
fn certificates_of_version_1_are_read() {
    let old = CertificateDer::from_pem_slice(VERSION_1).expect("a certificate");
    assert_eq!(certificate::common_name(&old).as_deref(), Some("old"));
    let key = certificate::public_key(&old).expect("its key");
    // A SubjectPublicKeyInfo of 89 bytes that ends with the point on the curve.
    assert_eq!((key.len(), &key[..2]), (91, &[0x30, 0x59][..]));
    assert_eq!(key[key.len() - 2..], [0x85, 0xc4]);
    assert!(certificate::end_point(&old).is_some());
}

#[test]
fn certificates_are_read_without_a_panic_wherever_they_are_cut() {
    let authority = Authority::new();
    let der = authority.sign(
        "somebody",
        &["a.example", "10.0.0.1"],
        &PKCS_ECDSA_P256_SHA256,
    );
    assert_eq!(certificate::common_name(&der).as_deref(), Some("somebody"));
    assert!(certificate::names_alternatives(&der, true));
    assert!(certificate::names_alternatives(&der, false));
    let plain = authority.sign("plain", &[], &PKCS_ECDSA_P256_SHA256);
    assert!(!certificate::names_alternatives(&plain, false));
    for end in 0..der.len() {
        let cut = &der[..end];
        assert_eq!(certificate::common_name(cut), None);
        assert_eq!(certificate::end_point(cut), None);
        assert_eq!(certificate::public_key(cut), None);
        assert!(!certificate::names_alternatives(cut, false));
    }
    for at in 0..der.len() {
        let mut spoilt = der.clone();
        spoilt[at] ^= 0x55;
        let _ = certificate::common_name(&spoilt);
        let _ = certificate::end_point(&spoilt);
        let _ = certificate::public_key(&spoilt);
        let _ = certificate::names_alternatives(&spoilt, true);
    }
}
