//! What is shown: both halves of SCRAM agree with others' and with each other, keys travel, and
//! messages of other exchanges or channels are refused.

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

use super::md5::Stored;
use super::scram::{Exchange, MECHANISM, MECHANISM_PLUS, Proved, ScramError, Verifier};
use super::scram_client::{Attempt, Channel, Keys};

/// Another client with a password against our server half.
fn login(verifier: Verifier, password: &str) -> Result<Proved, ScramError> {
    let mut client = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
    let server = Exchange::start(verifier, MECHANISM, None, client.message())?;
    client
        .update(server.server_first())
        .expect("the server's first message");
    let proved = server.finish(client.message())?;
    client
        .finish(&proved.answer)
        .expect("the server proves that it knows the password");
    Ok(proved)
}

/// Our client half with keys against our server half, over channels that may differ.
fn relogin(
    verifier: &Verifier,
    keys: &Keys,
    channel: &Channel,
    end_point: Option<&[u8]>,
) -> Result<(), ScramError> {
    let attempt = Attempt::new(channel);
    let (mechanism, first) = (attempt.mechanism(), attempt.first());
    let server = Exchange::start(verifier.clone(), mechanism, end_point, &first)?;
    let challenge = attempt.challenge(server.server_first())?;
    assert!(keys.fit(&challenge.salt, challenge.iterations));
    let (message, answered) = challenge.answer(keys);
    answered.check(&server.finish(&message)?.answer)
}

#[test]
fn the_servers_half_of_scram_agrees_with_postgres_protocols_client() {
    let verifier = Verifier::from_password("pässword\u{a0}x");
    assert!(
        login(verifier.clone(), "pässword x").is_ok(),
        "SASLprep maps the space"
    );
    let wrong = login(verifier, "password").expect_err("another password");
    assert_eq!(wrong, ScramError::WrongPassword);
    let mock = login(Verifier::mock("nobody", &[1; 32]), "password").expect_err("nobody");
    assert_eq!(mock, ScramError::WrongPassword);
}

#[test]
fn keys_that_a_client_proved_with_log_in_where_the_same_verifier_is_kept() {
    let verifier = Verifier::from_password("x");
    let keys = login(verifier.clone(), "x").expect("right").keys;
    assert_eq!(relogin(&verifier, &keys, &Channel::Unbound, None), Ok(()));
    assert_eq!(Verifier::of(&keys), verifier);
    let elsewhere = Verifier::from_password("x");
    let challenge = Exchange::start(elsewhere, MECHANISM, None, b"n,,n=,r=a").expect("fine");
    let text = String::from_utf8(challenge.server_first().to_vec()).expect("ASCII");
    let (salt, iterations) = (text.split(',').nth(1).expect("a salt"), 4096);
    assert!(!keys.fit(salt.as_bytes(), iterations), "another salt");
}

#[test]
fn a_login_is_bound_to_the_certificate_that_both_sides_saw() {
    let keys = Keys::derive("x", b"salt", 10);
    let verifier = Verifier::of(&keys);
    let bound = |hash: &[u8]| Channel::EndPoint(hash.to_vec());
    let tried = |channel, end_point| relogin(&verifier, &keys, &channel, end_point);
    assert_eq!(tried(bound(b"one"), Some(b"one")), Ok(()));
    let refused = Err(ScramError::ChannelBinding);
    assert_eq!(
        tried(bound(b"one"), Some(b"other")),
        refused,
        "somebody between"
    );
    assert_eq!(tried(bound(b"one"), None), refused, "not offered");
    assert_eq!(
        tried(Channel::NotOffered, Some(b"one")),
        refused,
        "the offer was cut out"
    );
    assert_eq!(tried(Channel::NotOffered, None), Ok(()));
    assert_eq!(
        tried(Channel::Unbound, Some(b"one")),
        Ok(()),
        "a client that cannot bind"
    );
}

#[test]
fn the_clients_half_refuses_servers_that_do_not_know_the_verifier() {
    let keys = Keys::derive("x", b"salt", 10);
    let attempt = Attempt::new(&Channel::Unbound);
    let first = String::from_utf8(attempt.first()).expect("ASCII");
    let nonce = first.strip_prefix("n,,n=,r=").expect("the nonce");
    let server_first = format!("r={nonce}more,s=c2FsdA==,i=10");
    let (_, answered) = attempt
        .challenge(server_first.as_bytes())
        .expect("well formed")
        .answer(&keys);
    let made_up = b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    assert_eq!(answered.check(made_up), Err(ScramError::WrongPassword));
    let bad = |text: String| {
        let attempt = Attempt::new(&Channel::Unbound);
        attempt.challenge(text.as_bytes()).expect_err("refused")
    };
    let malformed = ScramError::Malformed;
    assert_eq!(bad(server_first), malformed("nonce"), "of another login");
    assert_eq!(bad(String::new()), malformed("nonce"));
    let attempt = Attempt::new(&Channel::Unbound);
    let first = String::from_utf8(attempt.first()).expect("ASCII");
    let nonce = first
        .strip_prefix("n,,n=,r=")
        .expect("the nonce")
        .to_owned();
    let endless = format!("r={nonce}more,s=c2FsdA==,i=0");
    assert_eq!(
        attempt.challenge(endless.as_bytes()).expect_err("refused"),
        malformed("iterations")
    );
}

#[test]
fn an_unknown_user_sees_the_same_salt_twice_and_another_one_than_others() {
    let first = |user: &str| {
        let verifier = Verifier::mock(user, &[1; 32]);
        let exchange = Exchange::start(verifier, MECHANISM, None, b"n,,n=,r=abc");
        let text = String::from_utf8(exchange.expect("well formed").server_first().to_vec());
        let text = text.expect("ASCII");
        text.split(',').nth(1).expect("a salt").to_owned()
    };
    assert_eq!(first("a"), first("a"));
    assert_ne!(first("a"), first("b"));
}

#[test]
fn scram_messages_of_other_exchanges_are_refused() {
    let start = |mechanism: &str, first: &[u8]| {
        Exchange::start(Verifier::mock("x", &[1; 32]), mechanism, None, first).err()
    };
    let bound = b"p=tls-server-end-point,,n=,r=a";
    assert_eq!(start(MECHANISM, bound), Some(ScramError::ChannelBinding));
    assert_eq!(
        start(MECHANISM_PLUS, bound),
        Some(ScramError::ChannelBinding)
    );
    assert_eq!(
        start("OTHER", b"n,,n=,r=a"),
        Some(ScramError::ChannelBinding)
    );
    assert_eq!(
        start(MECHANISM, b"n,a=other,n=,r=a"),
        Some(ScramError::Malformed("authzid"))
    );
    assert_eq!(
        start(MECHANISM, b"n,,n=,r="),
        Some(ScramError::Malformed("nonce"))
    );
    assert_eq!(
        start(MECHANISM, b"x"),
        Some(ScramError::Malformed("channel binding flag"))
    );
    assert_eq!(
        start(MECHANISM, b"\xff"),
        Some(ScramError::Malformed("encoding"))
    );
    let verifier = Verifier::mock("x", &[1; 32]);
    let exchange = Exchange::start(verifier, MECHANISM, None, b"n,,n=,r=a").expect("fine");
    let replayed = b"c=biws,r=another,p=AAAA";
    let refused = exchange.finish(replayed).expect_err("refused");
    assert_eq!(refused, ScramError::Malformed("nonce"));
}

#[test]
fn stored_verifiers_are_read_in_postgres_form_only() {
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    assert!(Verifier::parse(&format!("SCRAM-SHA-256$4096:c2FsdA==${key}:{key}")).is_some());
    assert!(Verifier::parse(&format!("SCRAM-SHA-256$0:c2FsdA==${key}:{key}")).is_none());
    assert!(Verifier::parse("md5d41d8cd98f00b204e9800998ecf8427e").is_none());
    let text = postgres_protocol::password::scram_sha_256(b"x");
    let verifier = Verifier::parse(&text).expect("others' form");
    assert!(verifier.fits("x") && !verifier.fits("y"));
    assert!(login(verifier, "x").is_ok());
}

#[test]
fn md5_answers_are_those_of_others_and_checked_whole() {
    let salt = [1, 2, 3, 4];
    let stored = Stored::from_password("u", "p");
    let answer = stored.answer(salt);
    assert_eq!(answer, md5_hash(b"u", b"p", salt));
    assert!(stored.verify(salt, answer.as_bytes()));
    assert!(!stored.verify([1, 2, 3, 5], answer.as_bytes()));
    assert!(!stored.verify(salt, &answer.as_bytes()[..8]));
    assert!(stored.fits("u", "p") && !stored.fits("u", "q"));
    let text = postgres_protocol::password::md5(b"p", "u");
    assert_eq!(Stored::parse(&text), Some(stored));
    assert_eq!(Stored::parse("md5D41D8CD98F00B204E9800998ECF8427E"), None);
    assert_eq!(Stored::parse("md5d41d"), None);
}
