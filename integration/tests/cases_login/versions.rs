//! Versions of the protocol, and names of databases.

use anyhow::ensure;
use pgdog_integration::{Cluster, wait_until};

use super::raw::{Session, dial};
use super::{app, log_in};

/// 3.2
const NEWEST: u32 = (3 << 16) | 2;

/// R046: the newest minor version and the names that are not known come back, then the login goes
/// on; 3.2 itself is spoken.
pub async fn r046_newer_versions_and_unknown_options_are_negotiated(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let option = [("_pq_.test_protocol_negotiation", "on")];
    let unknown = vec![option[0].0.to_owned()];
    for (minor, more, expected) in [
        (0, &[][..], None),
        (2, &[][..], None),
        (9999, &[][..], Some((NEWEST, vec![]))),
        (2, &option[..], Some((NEWEST, unknown.clone()))),
        (9999, &option[..], Some((NEWEST, unknown.clone()))),
        (0, &option[..], Some((3 << 16, unknown))),
    ] {
        let stream = dial(cluster.description().port)?;
        let mut session = Session::open(stream, minor, &app(cluster), more, None)?;
        let what = format!("3.{minor} {more:?}");
        ensure!(session.refused.is_none(), "{what}: {:?}", session.refused);
        ensure!(
            session.negotiated == expected,
            "{what}: {:?}",
            session.negotiated
        );
        ensure!(
            session.query("SELECT 40 + 2")? == Ok("42".to_owned()),
            "{what}: no answer"
        );
    }
    Ok(())
}

/// R047: exactly 4 bytes for 3.0, 4 to 256 for 3.2, never 0; both cancel.
pub async fn r047_secrets_are_as_long_as_the_version_wants(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    for (minor, lengths) in [(0, 4..=4), (2, 4..=256)] {
        let port = cluster.description().port;
        let mut session = Session::open(dial(port)?, minor, &app(cluster), &[], None)?;
        let length = session.secret.len();
        ensure!(lengths.contains(&length), "3.{minor}: {length} bytes");
        ensure!(session.pid != 0, "3.{minor}: no process");
        ensure!(
            session.secret.iter().any(|byte| *byte != 0),
            "3.{minor}: no secret"
        );

        let (pid, secret) = (session.pid, session.secret.clone());
        let sleeping = std::thread::spawn(move || session.query("SELECT pg_sleep(300)"));
        let limit = std::time::Duration::from_secs(60);
        wait_until("the cancelled query's end", limit, || async {
            send_cancel(port, pid, &secret)?;
            Ok(sleeping.is_finished().then_some(()))
        })
        .await?;
        let answer = sleeping.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        ensure!(answer == Err("57014".to_owned()), "3.{minor}: {answer:?}");
    }
    Ok(())
}

fn send_cancel(port: u16, pid: i32, secret: &[u8]) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut stream = dial(port)?;
    let mut packet = ((12 + secret.len()) as u32).to_be_bytes().to_vec();
    packet.extend_from_slice(&80_877_102_u32.to_be_bytes());
    packet.extend_from_slice(&pid.to_be_bytes());
    packet.extend_from_slice(secret);
    stream.write_all(&packet)?;
    let back = super::raw::rest(&mut stream);
    ensure!(back.is_empty(), "an answer to a cancel request");
    Ok(())
}

/// R049: FATAL 3D000 each time for who has proved who he is; others go on.
pub async fn r049_an_unknown_database_is_told_every_time(cluster: &Cluster) -> anyhow::Result<()> {
    let other = cluster.connect().await?;
    let mut nowhere = app(cluster);
    nowhere.database = "nope_db".to_owned();
    for nth in 0..20 {
        let session = log_in(cluster, &nowhere)?;
        let told = session.refused.clone().unwrap_or_default();
        ensure!(told.0 == "3D000", "login {nth}: {told:?}");
        ensure!(told.1 == "database \"nope_db\" does not exist", "{told:?}");
        ensure!(other.value("SELECT 1").await? == "1", "another client");
    }
    nowhere.password = "wrong".to_owned();
    let session = log_in(cluster, &nowhere)?;
    ensure!(
        session.code() == "28P01",
        "nobody else is told: {:?}",
        session.refused
    );
    Ok(())
}
