//! What is needed of an X.509 certificate and rustls does not tell: who its subject says he is,
//! and the hash that SCRAM binds to. Pure; reads DER and never panics on any.
//!
//! Nothing is verified here: that the certificate is genuine is rustls' work.

use sha2::{Digest, Sha256, Sha384, Sha512};

/// Tags of DER that are met here.
mod tag {
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const OCTETS: u8 = 0x04;
    pub(super) const OID: u8 = 0x06;
    pub(super) const UTF8: u8 = 0x0c;
    pub(super) const PRINTABLE: u8 = 0x13;
    pub(super) const TELETEX: u8 = 0x14;
    pub(super) const IA5: u8 = 0x16;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
    pub(super) const VERSION: u8 = 0xa0;
    pub(super) const EXTENSIONS: u8 = 0xa3;
    pub(super) const DNS_NAME: u8 = 0x82;
    pub(super) const IP_ADDRESS: u8 = 0x87;
}

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.29.17
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// 1.2.840.113549.1.1, the arc of RSA's signatures.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
/// 1.2.840.10045.4.3, the arc of ECDSA with SHA-2.
const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
/// 2.16.840.1.101.3.4.2, the arc of SHA-2.
const SHA2: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];

/// The subject's common name.
pub(super) fn common_name(der: &[u8]) -> Option<String> {
    let mut subject = body(der)?.subject;
    while let Some(mut set) = subject.take(tag::SET) {
        while let Some(mut pair) = set.take(tag::SEQUENCE) {
            if pair.take(tag::OID)?.0 == COMMON_NAME {
                return text(pair);
            }
        }
    }
    None
}

/// The public key, as it stands in a certificate of any version.
pub(super) fn public_key(der: &[u8]) -> Option<&[u8]> {
    let rest = body(der)?.rest;
    let mut behind = rest;
    behind.take(tag::SEQUENCE)?;
    rest.0.get(..rest.0.len() - behind.0.len())
}

/// Whether the certificate names hosts (or, for an address, addresses) beside its subject: then
/// the common name says nothing about the host.
pub(super) fn names_alternatives(der: &[u8], is_address: bool) -> bool {
    let wanted = match is_address {
        true => tag::IP_ADDRESS,
        false => tag::DNS_NAME,
    };
    alternatives(der)
        .is_some_and(|mut names| std::iter::from_fn(|| names.next()).any(|(tag, _)| tag == wanted))
}

/// The hash of `tls-server-end-point` (RFC 5929): that of the certificate's own signature, SHA-256
/// in place of weaker ones. `None` where no hash is defined (Ed25519).
pub(super) fn end_point(der: &[u8]) -> Option<Vec<u8>> {
    let mut certificate = Der(der).take(tag::SEQUENCE)?;
    certificate.take(tag::SEQUENCE)?;
    let mut algorithm = certificate.take(tag::SEQUENCE)?;
    let oid = algorithm.take(tag::OID)?.0;
    let hash = match (oid.strip_prefix(RSA), oid.strip_prefix(ECDSA)) {
        (Some([4 | 5 | 11]), _) | (_, Some([2])) => Hash::Sha256,
        (Some([12]), _) | (_, Some([3])) => Hash::Sha384,
        (Some([13]), _) | (_, Some([4])) => Hash::Sha512,
        (Some([10]), _) => pss_hash(algorithm)?,
        _ => return None,
    };
    Some(match hash {
        Hash::Sha256 => Sha256::digest(der).to_vec(),
        Hash::Sha384 => Sha384::digest(der).to_vec(),
        Hash::Sha512 => Sha512::digest(der).to_vec(),
    })
}

enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// RSASSA-PSS names its hash in its parameters; SHA-1 when it names none.
fn pss_hash(mut algorithm: Der<'_>) -> Option<Hash> {
    let mut parameters = algorithm.take(tag::SEQUENCE)?;
    let Some(mut named) = parameters.take(tag::VERSION) else {
        return Some(Hash::Sha256);
    };
    let oid = named.take(tag::SEQUENCE)?.take(tag::OID)?.0;
    match oid.strip_prefix(SHA2)? {
        [1] => Some(Hash::Sha256),
        [2] => Some(Hash::Sha384),
        [3] => Some(Hash::Sha512),
        _ => None,
    }
}

struct Body<'a> {
    subject: Der<'a>,
    rest: Der<'a>,
}

fn body(der: &[u8]) -> Option<Body<'_>> {
    let mut body = Der(der).take(tag::SEQUENCE)?.take(tag::SEQUENCE)?;
    let _version = body.take(tag::VERSION);
    body.take(tag::INTEGER)?;
    // Signature algorithm, issuer, validity.
    for _ in 0..3 {
        body.take(tag::SEQUENCE)?;
    }
    let subject = body.take(tag::SEQUENCE)?;
    Some(Body {
        subject,
        rest: body,
    })
}

/// The GeneralNames of the extension.
fn alternatives(der: &[u8]) -> Option<Der<'_>> {
    let mut rest = body(der)?.rest;
    let mut extensions = loop {
        match rest.next()? {
            (tag::EXTENSIONS, mut list) => break list.take(tag::SEQUENCE)?,
            _ => continue,
        }
    };
    while let Some(mut extension) = extensions.take(tag::SEQUENCE) {
        if extension.take(tag::OID)?.0 != ALTERNATIVE_NAMES {
            continue;
        }
        return std::iter::from_fn(|| extension.next())
            .find(|(tag, _)| *tag == tag::OCTETS)
            .and_then(|(_, mut octets)| octets.take(tag::SEQUENCE));
    }
    None
}

/// A name with a NUL in it would be two names to others: it is none.
fn text(mut value: Der<'_>) -> Option<String> {
    let (tag, bytes) = value.next()?;
    match tag {
        tag::UTF8 | tag::PRINTABLE | tag::TELETEX | tag::IA5 => {}
        _ => return None,
    }
    let text = std::str::from_utf8(bytes.0).ok()?;
    (!text.is_empty() && !text.contains('\0')).then(|| text.to_owned())
}

/// The rest of a sequence of values.
#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value's tag and contents.
    fn next(&mut self) -> Option<(u8, Der<'a>)> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let length = digits
                    .iter()
                    .fold(0, |all, byte| all << 8 | usize::from(*byte));
                (length, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, Der(content)))
    }

    /// The next value's contents if it has that tag; else it stays.
    fn take(&mut self, wanted: u8) -> Option<Der<'a>> {
        let mut ahead = *self;
        let (tag, content) = ahead.next()?;
        (tag == wanted).then(|| {
            *self = ahead;
            content
        })
    }
}
