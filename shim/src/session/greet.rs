//! From the first byte to a client that has proved who it is.
//!
//! ```text
//!   TLS hello ───────────── handshake with ALPN ──┐
//!   SSLRequest ── S ─────── handshake ────────────┤
//!              └─ N ──┐                           │
//!   GSSENCRequest ─ N ┴───────────────────────────┴── startup packet ── proof ── AuthenticationOk
//!                                                  └── cancel request
//! ```

use std::sync::Arc;

use pgdog_core::fault::Fault;

use super::account::Account;
use super::auth::{Claim, authenticate};
use super::client::{Client, Gone};
use super::faults;
use super::seats::Seat;
use super::services::Services;
use super::settings::Settings;
use crate::nodes::Cluster;
use crate::observe::LoginEnd;
use crate::proto::startup::{ENCRYPTION, NO_ENCRYPTION};
use crate::proto::{ErrorFields, ProtocolError, Startup, StartupPacket, backend};

/// A client that has proved who it is.
pub(super) struct Guest {
    pub(super) startup: Startup,
    /// With what logs in to the nodes.
    pub(super) account: Account,
    pub(super) database: Database,
    /// None for operators, who are let in in any case.
    _seat: Option<Seat>,
}

pub(super) enum Database {
    Admin,
    Cluster(Arc<Cluster>),
}

/// None: the client asked for something that needs no session.
pub(super) async fn greet(
    client: &mut Client,
    services: &Arc<Services>,
) -> Result<Option<Guest>, Gone> {
    let settings = services.settings.load_full();
    let Some(startup) = open(client, services).await? else {
        return Ok(None);
    };
    client.protocol_minor = startup.minor;
    if let Some(negotiation) = startup.negotiation() {
        client.out.extend_from_slice(&negotiation);
    }
    let named = startup.get("user").filter(|user| !user.is_empty());
    let Some(user) = named.map(str::to_owned) else {
        let nameless = faults::plain(
            "28000",
            "no PostgreSQL user name specified in startup packet",
        );
        return Err(client.dismiss(&nameless).await);
    };
    if settings.tls_required && !client.is_encrypted() {
        let bare = faults::plain("28000", "connections without TLS are not accepted here");
        return Err(client.dismiss(&bare).await);
    }
    let name = startup.database().unwrap_or(&user).to_owned();
    let found = find(services, &settings, &user, &name);
    let seat = match found.is_admin {
        true => None,
        false => Some(take_seat(client, services, settings.max_clients).await?),
    };
    let secret = match authenticate(client, services, &settings, &found.claim(&user)).await {
        Ok(secret) => secret,
        Err(gone) => {
            if matches!(gone, Gone::Dismissed) {
                services.logins.note(LoginEnd::Refused);
            }
            return Err(gone);
        }
    };
    let database = match (found.is_admin, found.cluster) {
        (true, _) => Database::Admin,
        (false, Some(cluster)) => Database::Cluster(cluster),
        // As in PostgreSQL: who has proved who he is may know that there is no such database.
        (false, None) => {
            let absent = services.absent.load().get(&name).cloned();
            let fault = absent.unwrap_or(Fault::UnknownDatabase { database: name });
            services.logins.note(LoginEnd::Refused);
            return Err(client.dismiss(&ErrorFields::from(&fault)).await);
        }
    };
    backend::auth_ok(&mut client.out);
    let mut account = found.account.unwrap_or_else(|| Account::unlisted(&user));
    account.server_secret = Some(secret);
    Ok(Some(Guest {
        startup,
        account,
        database,
        _seat: seat,
    }))
}

async fn take_seat(client: &mut Client, services: &Services, limit: usize) -> Result<Seat, Gone> {
    match services.seats.take(limit) {
        Ok(seat) => Ok(seat),
        Err(fault) => {
            services.logins.note(LoginEnd::TooMany);
            Err(client.dismiss(&ErrorFields::from(&fault)).await)
        }
    }
}

/// Reads up to the startup packet and answers what may come before it.
async fn open(client: &mut Client, services: &Services) -> Result<Option<Startup>, Gone> {
    let (mut tls_settled, mut gss_settled) = (false, false);
    match client.begins_with_tls().await? {
        None => return Ok(None),
        Some(true) => {
            let Some(tls) = services.tls.load_full() else {
                return Ok(None);
            };
            client.accept_tls(&tls).await?;
            // Without it the hello may have been meant for another protocol: nothing is answered.
            if !client.speaks_postgresql() {
                tracing::info!("direct TLS without ALPN \"postgresql\" is refused");
                return Ok(None);
            }
            (tls_settled, gss_settled) = (true, true);
        }
        Some(false) => {}
    }
    loop {
        match client.read_startup().await? {
            None => return Ok(None),
            Some(StartupPacket::Ssl) if !tls_settled => {
                refuse_injected(client, "SSL request").await?;
                tls_settled = true;
                match services.tls.load_full() {
                    Some(tls) => {
                        gss_settled = true;
                        client.out.extend_from_slice(ENCRYPTION);
                        client.flush().await?;
                        client.accept_tls(&tls).await?;
                    }
                    None => {
                        client.out.extend_from_slice(NO_ENCRYPTION);
                        client.flush().await?;
                    }
                }
            }
            Some(StartupPacket::Gss) if !gss_settled => {
                refuse_injected(client, "GSSAPI encryption request").await?;
                gss_settled = true;
                client.out.extend_from_slice(NO_ENCRYPTION);
                client.flush().await?;
            }
            // PostgreSQL takes a second one for a protocol that it does not know.
            Some(StartupPacket::Ssl) => return Err(unsupported(5679)),
            Some(StartupPacket::Gss) => return Err(unsupported(5680)),
            Some(StartupPacket::Cancel(key)) => {
                services.cancel(&key).await;
                return Ok(None);
            }
            Some(StartupPacket::Startup(startup)) => return Ok(Some(startup)),
        }
    }
}

fn unsupported(minor: u16) -> Gone {
    Gone::Protocol(ProtocolError::UnsupportedProtocol { major: 1234, minor })
}

/// Bytes behind a request for encryption were sent before there was any: whoever has put them
/// there wants them taken for the client's own.
async fn refuse_injected(client: &mut Client, request: &str) -> Result<(), Gone> {
    if !client.has_more() {
        return Ok(());
    }
    let mut fields = faults::plain(
        "08P01",
        format!("received unencrypted data after {request}"),
    );
    fields.detail = Some(
        "This could be either a client-software bug or evidence of an attempted \
         man-in-the-middle attack."
            .to_owned(),
    );
    Err(client.dismiss(&fields).await)
}

/// What is known of somebody who asks for a database.
struct Found {
    is_admin: bool,
    account: Option<Account>,
    cluster: Option<Arc<Cluster>>,
    /// Whose nodes are asked for a verifier.
    witness: Option<Arc<Cluster>>,
}

impl Found {
    fn claim<'a>(&'a self, user: &'a str) -> Claim<'a> {
        Claim {
            user,
            account: self.account.as_ref(),
            is_admin: self.is_admin,
            witness: self.witness.as_deref(),
        }
    }
}

fn find(services: &Services, settings: &Settings, user: &str, database: &str) -> Found {
    if settings.admin.is_some() && database == settings.admin_database {
        let admin = settings.admin.as_ref();
        return Found {
            is_admin: true,
            account: admin.filter(|admin| admin.name == user).cloned(),
            cluster: None,
            witness: None,
        };
    }
    let clusters = services.clusters.load();
    let cluster = clusters.get(database).cloned();
    let account = match &cluster {
        Some(_) => settings.account(user, database),
        // Somebody with an account elsewhere is let far enough to be told that this is wrong.
        None => settings.accounts_of(user).next(),
    };
    // Who is listed for other databases only is not asked about: the list is what he has.
    let may_ask = account.is_some() || settings.accounts_of(user).next().is_none();
    let any = || {
        let mut names: Vec<_> = clusters.keys().collect();
        names.sort_unstable();
        names.first().and_then(|name| clusters.get(*name)).cloned()
    };
    let witness = cluster
        .clone()
        .or_else(any)
        .filter(|_| settings.asks_nodes && may_ask);
    Found {
        is_admin: false,
        account: account.cloned(),
        cluster,
        witness,
    }
}
