//! Keys about logins and TLS, and what must hold between them.

use serde::{Deserialize, Serialize};

use super::{Config, User};

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthType {
    /// SCRAM-SHA-256.
    #[default]
    Scram,
    /// PostgreSQL's old challenge with MD5; SCRAM for who is known by a SCRAM verifier only.
    Md5,
    /// The password in clear text: for networks that are trusted, or below TLS.
    Plain,
    /// Not at all.
    Trust,
}

/// When connections to nodes are encrypted, and what is checked: libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsVerify {
    /// Never.
    #[serde(alias = "disable")]
    Disabled,
    /// When the node can.
    #[default]
    Prefer,
    /// Always; any certificate will do.
    Require,
    /// Always, with a certificate that a known root has signed.
    #[serde(alias = "verify-ca")]
    VerifyCa,
    /// As well, and it must name the host.
    #[serde(alias = "verify-full")]
    VerifyFull,
}

/// Whether users who are not in `users.toml` may log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Passthrough {
    /// They may not.
    Disabled,
    /// With the password that the nodes know.
    #[default]
    #[serde(
        alias = "enabled_plain",
        alias = "enabled_allow_change",
        alias = "enabled_plain_allow_change"
    )]
    Enabled,
}

impl User {
    /// Whether the password is a hash in the form in which PostgreSQL keeps it: enough to check a
    /// client by, not to log in with.
    pub fn is_hashed(&self) -> bool {
        let hashed = |text: &String| {
            text.starts_with("SCRAM-SHA-256$") || (text.starts_with("md5") && text.len() == 35)
        };
        self.password.as_ref().is_some_and(hashed)
    }

    /// Whether the shim by itself can log in to nodes as this user, as far as passwords go.
    pub fn has_own_login(&self) -> bool {
        self.server_password.is_some() || (self.password.is_some() && !self.is_hashed())
    }
}

/// Everything that is wrong.
pub(super) fn problems(config: &Config, problems: &mut Vec<String>) {
    let general = &config.general;
    let mut pair = |one: (&str, bool), other: (&str, bool)| {
        if one.1 != other.1 {
            let (given, missing) = if one.1 {
                (one.0, other.0)
            } else {
                (other.0, one.0)
            };
            problems.push(format!("{given} is of no use without {missing}; give both"));
        }
    };
    pair(
        ("tls_certificate", general.tls_certificate.is_some()),
        ("tls_private_key", general.tls_private_key.is_some()),
    );
    pair(
        (
            "tls_server_certificate",
            general.tls_server_certificate.is_some(),
        ),
        (
            "tls_server_private_key",
            general.tls_server_private_key.is_some(),
        ),
    );
    let serves = general.tls_certificate.is_some();
    let needs = [
        ("tls_client_required", general.tls_client_required),
        (
            "tls_client_ca_certificate",
            general.tls_client_ca_certificate.is_some(),
        ),
    ];
    for (key, _) in needs.iter().filter(|(_, given)| *given && !serves) {
        problems.push(format!(
            "{key}: TLS is not served; give tls_certificate and tls_private_key"
        ));
    }
    for user in &config.users.users {
        user_problems(config, user, problems);
    }
}

fn user_problems(config: &Config, user: &User, problems: &mut Vec<String>) {
    let general = &config.general;
    let name = &user.name;
    let trusted = general.auth_type == AuthType::Trust;
    let certified = general.tls_client_ca_certificate.is_some();
    let asked = general.passthrough_auth == Passthrough::Enabled;
    if user.password.is_none() && !trusted && !certified && !asked {
        problems.push(format!(
            "[[users]] {name}: no password; give one, or let the nodes be asked by \
             passthrough_auth = \"enabled\""
        ));
    }
    let renamed = user.server_user.as_ref().is_some_and(|other| other != name);
    if renamed && !user.has_own_login() && !trusted {
        problems.push(format!(
            "[[users]] {name}: server_user needs a server_password, as {name}'s own proof is not \
             that of another role"
        ));
    }
    if user.schema_admin && user.is_hashed() && !user.has_own_login() {
        problems.push(format!(
            "[[users]] {name}: a schema_admin logs in by itself, which a hash is not enough for; \
             give server_password"
        ));
    }
}
