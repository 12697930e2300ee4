//! Who a client is: certificate, SCRAM-SHA-256, MD5, clear text or trust.
//!
//! Whoever fails is told the same, whatever was wrong, and after the same time: a user that is
//! not there goes through the same exchange, and the nodes are asked about those as well whom the
//! configuration knows.

use std::sync::Arc;
use std::time::Duration;

use pgdog_core::fault::Fault;

use super::account::{Account, Auth, Known};
use super::client::{Client, Gone};
use super::services::Services;
use super::settings::Settings;
use crate::nodes::Cluster;
use crate::proto::md5::Stored;
use crate::proto::scram::{self, Exchange, Verifier};
use crate::proto::{ErrorFields, Frame, backend, frontend};
use crate::server::Secret;

/// How long somebody whom the configuration knows waits for nodes that do not answer.
const LISTED_WAIT: Duration = Duration::from_millis(250);

/// Who claims to be whom.
#[derive(Clone, Copy)]
pub(super) struct Claim<'a> {
    /// The name in the startup packet.
    pub(super) user: &'a str,
    /// What the configuration says about that user.
    pub(super) account: Option<&'a Account>,
    /// An operator is meant.
    pub(super) is_admin: bool,
    /// Whose nodes may be asked what they know.
    pub(super) witness: Option<&'a Cluster>,
}

/// Lets the client prove its claim; returns without AuthenticationOk what logs in to the nodes.
///
/// # Errors
/// The client failed (it was told) or left.
pub(super) async fn authenticate(
    client: &mut Client,
    services: &Services,
    settings: &Settings,
    claim: &Claim<'_>,
) -> Result<Secret, Gone> {
    let proved = match by_certificate(client, services, claim) {
        Certified::Yes => Some(Secret::None),
        Certified::No => None,
        Certified::NotAsked => match settings.auth {
            Auth::Trust => claim.account.map(|_| Secret::None),
            Auth::Scram | Auth::Md5 | Auth::Plain => {
                by_password(client, services, settings, claim).await?
            }
        },
    };
    let Some(proved) = proved else {
        let fault = Fault::LoginFailed {
            user: claim.user.to_owned(),
        };
        return Err(client.dismiss(&ErrorFields::from(&fault)).await);
    };
    let own = claim
        .account
        .and_then(|account| account.server_secret.clone());
    Ok(own.unwrap_or(proved))
}

enum Certified {
    Yes,
    No,
    /// A password counts.
    NotAsked,
}

fn by_certificate(client: &Client, services: &Services, claim: &Claim<'_>) -> Certified {
    let tls = services.tls.load();
    let asks = tls.as_ref().is_some_and(|tls| tls.asks_for_certificates());
    if !asks || claim.is_admin {
        return Certified::NotAsked;
    }
    let needs = claim
        .account
        .is_none_or(|account| account.needs_certificate);
    // Somebody whom only the nodes know has no account, and the node decides who that is.
    let may_be = claim.account.is_some() || claim.witness.is_some();
    let identity = claim
        .account
        .map_or(claim.user, |account| account.identity.as_str());
    match client.certified_name() {
        Some(name) if name == identity && may_be => Certified::Yes,
        _ if needs => Certified::No,
        _ => Certified::NotAsked,
    }
}

/// None: the proof is wrong, or there is no such user.
async fn by_password(
    client: &mut Client,
    services: &Services,
    settings: &Settings,
    claim: &Claim<'_>,
) -> Result<Option<Secret>, Gone> {
    let (known, from_node) = match known(claim).await {
        Ok(known) => known,
        Err(fault) => return Err(client.dismiss(&ErrorFields::from(&fault)).await),
    };
    let mock = || Verifier::mock(claim.user, &services.mock_secret(settings));
    let proved = match (settings.auth, known) {
        (Auth::Plain, known) => clear_text(client, services, claim.user, known, mock()).await?,
        (_, Known::Scram(verifier)) => scram(client, verifier).await?,
        (Auth::Md5, Known::Password(password)) => {
            let stored = Stored::from_password(claim.user, password.as_str());
            md5(client, stored).await?
        }
        (Auth::Md5, Known::Md5(stored)) => md5(client, stored).await?,
        (Auth::Md5, Known::Nothing) => {
            let nobody = rand::random::<u128>().to_string();
            let stored = Stored::from_password(claim.user, &nobody);
            md5(client, stored).await?.and(None)
        }
        (_, Known::Password(password)) => {
            let verifier = services.verifier(password.as_str());
            scram(client, verifier).await?
        }
        // As in PostgreSQL: a hash for md5 is of no use to who wants SCRAM.
        (_, Known::Md5(_) | Known::Nothing) => scram(client, mock()).await?,
    };
    if proved.is_none()
        && from_node
        && let Some(witness) = claim.witness
    {
        witness.forget_verifier(claim.user).await;
    }
    Ok(proved)
}

/// What the client is checked by, and whether the nodes said so.
async fn known(claim: &Claim<'_>) -> Result<(Known, bool), Fault> {
    let listed = claim.account.map(|account| account.known.clone());
    let Some(witness) = claim.witness else {
        return Ok((listed.unwrap_or(Known::Nothing), false));
    };
    let asked = witness.verifier(claim.user);
    match listed {
        Some(known @ (Known::Password(_) | Known::Scram(_) | Known::Md5(_))) => {
            // Only for the time that it takes.
            let _ = tokio::time::timeout(LISTED_WAIT, asked).await;
            Ok((known, false))
        }
        Some(Known::Nothing) | None => {
            let said = asked.await?;
            let known = said.as_deref().and_then(Known::stored);
            Ok((known.unwrap_or(Known::Nothing), true))
        }
    }
}

async fn scram(client: &mut Client, verifier: Verifier) -> Result<Option<Secret>, Gone> {
    let end_point = client.end_point().map(<[u8]>::to_vec);
    match end_point {
        Some(_) => {
            let offered = [scram::MECHANISM_PLUS, scram::MECHANISM];
            backend::auth_sasl(&offered, &mut client.out);
        }
        None => backend::auth_sasl(&[scram::MECHANISM], &mut client.out),
    }
    let first = answer(client).await?;
    let (mechanism, message) = frontend::sasl_initial(first.body())?;
    let Ok(exchange) = Exchange::start(verifier, mechanism, end_point.as_deref(), message) else {
        return Ok(None);
    };
    backend::auth_sasl_continue(exchange.server_first(), &mut client.out);
    let last = answer(client).await?;
    Ok(exchange.finish(last.body()).ok().map(|proved| {
        backend::auth_sasl_final(&proved.answer, &mut client.out);
        Secret::Keys(Arc::new(proved.keys))
    }))
}

async fn md5(client: &mut Client, stored: Stored) -> Result<Option<Secret>, Gone> {
    let salt: [u8; 4] = rand::random();
    backend::auth_md5(salt, &mut client.out);
    let given = answer(client).await?;
    let text = frontend::password_text(given.body())?;
    Ok(stored.verify(salt, text).then_some(Secret::Md5(stored)))
}

async fn clear_text(
    client: &mut Client,
    services: &Services,
    user: &str,
    known: Known,
    mock: Verifier,
) -> Result<Option<Secret>, Gone> {
    backend::auth_cleartext(&mut client.out);
    let given = answer(client).await?;
    let text = frontend::password_text(given.body())?;
    let Ok(text) = String::from_utf8(text.to_vec()) else {
        return Ok(None);
    };
    let verifier = match known {
        Known::Password(password) => services.verifier(password.as_str()),
        Known::Scram(verifier) => verifier,
        Known::Md5(stored) => {
            let right = stored.fits(user, &text);
            return Ok(right.then(|| Secret::password(&text)));
        }
        Known::Nothing => mock,
    };
    // Milliseconds of work: others must not wait for it.
    let work = tokio::task::spawn_blocking(move || verifier.fits(&text).then_some(text));
    let right = work.await.unwrap_or_default();
    Ok(right.map(|text| Secret::password(&text)))
}

async fn answer(client: &mut Client) -> Result<Frame, Gone> {
    client.flush().await?;
    client.read_password().await
}
