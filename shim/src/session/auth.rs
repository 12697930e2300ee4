//! Who a client is: SCRAM-SHA-256, MD5 or trust.

use pgdog_core::fault::Fault;

use super::client::{Client, Gone};
use super::services::Services;
use super::settings::Auth;
use crate::proto::scram::{Exchange, MECHANISM, Verifier};
use crate::proto::{ErrorFields, backend, frontend, md5};

/// Who claims to be whom.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The name in the startup packet.
    pub user: &'a str,
    /// The right password; None: there is no such user, or he has none.
    pub password: Option<&'a str>,
    /// Whether there is such a user for that database.
    pub known: bool,
}

/// Lets the client prove its claim; returns without AuthenticationOk.
///
/// # Errors
/// The client failed (it was told) or left.
pub async fn authenticate(
    client: &mut Client,
    services: &Services,
    auth: Auth,
    claim: Claim<'_>,
) -> Result<(), Gone> {
    let right = match auth {
        Auth::Trust => claim.known,
        Auth::Scram => scram(client, services, claim).await? && claim.known,
        Auth::Md5 => md5_exchange(client, claim).await? && claim.known,
    };
    match right {
        true => Ok(()),
        false => {
            let fault = Fault::LoginFailed {
                user: claim.user.to_owned(),
            };
            Err(client.dismiss(&ErrorFields::from(&fault)).await)
        }
    }
}

async fn scram(client: &mut Client, services: &Services, claim: Claim<'_>) -> Result<bool, Gone> {
    backend::auth_sasl(&[MECHANISM], &mut client.out);
    let first = answer(client).await?;
    let (mechanism, message) = frontend::sasl_initial(first.body())?;
    if mechanism != MECHANISM {
        return Ok(false);
    }
    let verifier: Verifier = match claim.password {
        Some(password) => services.verifier(password),
        None => services.mock_verifier(claim.user),
    };
    let Ok(exchange) = Exchange::start(verifier, message) else {
        return Ok(false);
    };
    backend::auth_sasl_continue(exchange.server_first(), &mut client.out);
    let last = answer(client).await?;
    match exchange.finish(last.body()) {
        Ok(signature) => {
            backend::auth_sasl_final(&signature, &mut client.out);
            Ok(true)
        }
        Err(_) => Ok(false),
    }
}

async fn md5_exchange(client: &mut Client, claim: Claim<'_>) -> Result<bool, Gone> {
    let salt: [u8; 4] = rand::random();
    backend::auth_md5(salt, &mut client.out);
    let given = answer(client).await?;
    let text = frontend::password_text(given.body())?;
    Ok(claim
        .password
        .is_some_and(|password| md5::verify(claim.user, password, salt, text)))
}

async fn answer(client: &mut Client) -> Result<crate::proto::Frame, Gone> {
    client.flush().await?;
    let frame = client.read().await?;
    match frame.tag() {
        b'p' => Ok(frame),
        tag => Err(Gone::Protocol(crate::proto::ProtocolError::UnknownTag(tag))),
    }
}
