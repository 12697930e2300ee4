//! TLS towards clients.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use pgdog_integration::{Cluster, wait_until};

use super::raw::{GSS_REQUEST, SSL_REQUEST, Session, dial, field, rest, startup};
use super::tls::{Authority, encrypt};
use super::{app, configure, everywhere, go_back, log_in, reload, role};

/// How long a stranger may be kept: the case's own bound.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// An authority, and lines of `[general]` that serve a certificate of it.
fn serving(cluster: &Cluster, name: &str) -> anyhow::Result<(Authority, String)> {
    let authority = Authority::new(&cluster.dir().join(name))?;
    authority.sign("shim", &["localhost"])?;
    let file = |name: &str| authority.path(name).display().to_string();
    let lines = format!(
        "tls_certificate = \"{}\"\ntls_private_key = \"{}\"",
        file("shim.pem"),
        file("shim.key")
    );
    Ok((authority, lines))
}

/// A socket on which the shim agreed to encrypt.
fn agreed(port: u16) -> anyhow::Result<std::net::TcpStream> {
    use std::io::Read as _;
    let mut stream = dial(port)?;
    stream.write_all(SSL_REQUEST)?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    ensure!(answer == *b"S", "answered {answer:?} to SSLRequest");
    Ok(stream)
}

/// R048: with TLS a hello with the right ALPN is served and one without is closed; without TLS
/// both are closed at once.
pub async fn r048_direct_tls_needs_alpn(cluster: &Cluster) -> anyhow::Result<()> {
    let port = cluster.description().port;
    for alpn in [None, Some("postgresql")] {
        // What one exchange takes on this machine is not the shim's delay.
        let began = Instant::now();
        Session::open(dial(port)?, 0, &app(cluster), &[], None)?;
        let machine = began.elapsed();
        let began = Instant::now();
        ensure!(
            encrypt(dial(port)?, alpn).is_err(),
            "TLS although it is off"
        );
        ensure!(
            began.elapsed() < CLOSED_WITHIN + machine,
            "kept for {:?}",
            began.elapsed()
        );
    }
    let (_authority, lines) = serving(cluster, "direct")?;
    configure(cluster, &lines, "", "").await?;
    let (stream, _) = encrypt(dial(port)?, Some("postgresql"))?;
    let mut session = Session::open(stream, 0, &app(cluster), &[], None)?;
    ensure!(session.refused.is_none(), "{:?}", session.refused);
    ensure!(
        session.query("SELECT 42")? == Ok("42".to_owned()),
        "no answer"
    );

    let without = encrypt(dial(port)?, None).and_then(|(mut stream, _)| {
        stream.write_all(&startup(0, &[("user", "app")]))?;
        Ok(rest(&mut stream))
    });
    ensure!(
        without.unwrap_or_default().is_empty(),
        "served without ALPN"
    );
    let other = encrypt(dial(port)?, Some("http/1.1"));
    ensure!(other.is_err(), "served as another protocol");

    // Asked for by SSLRequest, ALPN is not needed.
    let (stream, _) = encrypt(agreed(port)?, None)?;
    let session = Session::open(stream, 0, &app(cluster), &[], None)?;
    ensure!(session.refused.is_none(), "{:?}", session.refused);
    go_back(cluster).await
}

/// `tls_client_required`: nobody logs in in clear text, but a cancel request needs no TLS.
pub async fn clients_without_tls_are_refused_where_it_is_required(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let port = cluster.description().port;
    let (_authority, lines) = serving(cluster, "required")?;
    let required = format!("{lines}\ntls_client_required = true");
    configure(cluster, &required, "", "").await?;
    let bare = log_in(cluster, &app(cluster))?;
    ensure!(bare.code() == "28000", "in clear text: {:?}", bare.refused);
    let (stream, _) = encrypt(agreed(port)?, None)?;
    let session = Session::open(stream, 0, &app(cluster), &[], None)?;
    ensure!(session.refused.is_none(), "{:?}", session.refused);
    // The operator of these tests speaks clear text: SIGHUP is how he gets in again.
    for file in [&cluster.description().config, &cluster.description().users] {
        std::fs::copy(file.with_extension("first"), file)?;
    }
    cluster.signal_shim(0, nix::sys::signal::Signal::SIGHUP)?;
    wait_until("clear text again", Duration::from_secs(60), || async {
        let session = log_in(cluster, &app(cluster))?;
        Ok(session.refused.is_none().then_some(()))
    })
    .await
}

/// R050: the connection is refused, and what was injected does not act as a startup packet.
pub async fn r050_clear_bytes_after_a_request_for_encryption_are_refused(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let port = cluster.description().port;
    let injected = startup(0, &[("user", "app"), ("database", "app")]);
    let (_authority, lines) = serving(cluster, "injected")?;
    for general in ["", lines.as_str()] {
        configure(cluster, general, "", "").await?;
        for request in [SSL_REQUEST, GSS_REQUEST] {
            let mut stream = dial(port)?;
            stream.write_all(&[request, &injected].concat())?;
            let answer = rest(&mut stream);
            ensure!(answer.first() == Some(&b'E'), "answered {answer:?}");
            ensure!(field(&answer[5..], 'C') == "08P01", "{answer:?}");
            let told = field(&answer[5..], 'M');
            ensure!(told.contains("received unencrypted data after"), "{told}");
        }
    }
    // As the case has it: the handshake after it meets a closed connection.
    let mut stream = dial(port)?;
    stream.write_all(&[SSL_REQUEST, &injected].concat())?;
    ensure!(encrypt(stream, Some("postgresql")).is_err(), "a handshake");
    // Encryption by GSSAPI is refused, and TLS may still follow.
    let mut stream = dial(port)?;
    stream.write_all(GSS_REQUEST)?;
    let mut answer = [0];
    std::io::Read::read_exact(&mut stream, &mut answer)?;
    ensure!(answer == *b"N", "GSSENCRequest: {answer:?}");
    let session = Session::open(stream, 0, &app(cluster), &[], None)?;
    ensure!(session.refused.is_none(), "{:?}", session.refused);
    go_back(cluster).await
}

/// libpq itself: `sslmode=verify-full` and `channel_binding=require` are satisfied, and a proof
/// that is bound to another certificate is refused.
pub async fn libpq_binds_to_the_certificate(cluster: &Cluster) -> anyhow::Result<()> {
    let (authority, lines) = serving(cluster, "bound")?;
    configure(cluster, &lines, "", "").await?;
    let ca = authority.path("ca.pem");
    let who = app(cluster);
    let conninfo = format!(
        "sslmode=verify-full sslrootcert={} channel_binding=require",
        ca.display()
    );
    ensure!(
        psql(cluster, &who.user, &who.password, &conninfo)? == "42",
        "libpq"
    );

    let port = cluster.description().port;
    for (spoilt, expected) in [(false, ""), (true, "28P01")] {
        let (stream, certificate) = encrypt(agreed(port)?, Some("postgresql"))?;
        let hash = sha256(&certificate, spoilt);
        let session = Session::open(stream, 0, &who, &[], Some(hash))?;
        ensure!(
            session.code() == expected,
            "{spoilt}: {:?}",
            session.refused
        );
        ensure!(
            session.mechanisms == ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"],
            "offered {:?}",
            session.mechanisms
        );
    }
    let clear = log_in(cluster, &who)?;
    ensure!(
        clear.mechanisms == ["SCRAM-SHA-256"],
        "{:?}",
        clear.mechanisms
    );
    go_back(cluster).await
}

/// The hash of the certificate, by a program that has nothing to do with ours.
fn sha256(certificate: &[u8], spoilt: bool) -> Vec<u8> {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let mut hash = digest.as_ref().to_vec();
    hash[0] ^= u8::from(spoilt);
    hash
}

/// Renewed files count after RELOAD; files that cannot be used leave everything as it was; who is
/// connected goes on.
pub async fn certificates_are_read_again_at_reload(cluster: &Cluster) -> anyhow::Result<()> {
    let port = cluster.description().port;
    let (authority, lines) = serving(cluster, "renewed")?;
    configure(cluster, &lines, "", "").await?;
    let (stream, first) = encrypt(agreed(port)?, Some("postgresql"))?;
    let mut session = Session::open(stream, 0, &app(cluster), &[], None)?;

    let renewed = authority.sign("shim", &["localhost"])?;
    ensure!(renewed != first, "another certificate");
    reload(cluster).await?;
    let shown = encrypt(agreed(port)?, Some("postgresql"))?.1;
    ensure!(shown == renewed, "the renewed certificate is shown");

    std::fs::write(authority.path("shim.key"), "no key")?;
    ensure!(
        reload(cluster).await.is_err(),
        "a key that is none is accepted"
    );
    let shown = encrypt(agreed(port)?, Some("postgresql"))?.1;
    ensure!(shown == renewed, "the last good certificate stays");
    ensure!(
        session.query("SELECT 42")? == Ok("42".to_owned()),
        "who was connected"
    );
    go_back(cluster).await
}

/// A certificate that is not there yet counts as soon as it is: nobody has to remember to reload.
pub async fn a_certificate_that_comes_late_is_found(cluster: &Cluster) -> anyhow::Result<()> {
    let port = cluster.description().port;
    let (authority, lines) = serving(cluster, "late")?;
    let (there, away) = (authority.path("shim.pem"), authority.path("shim.away"));
    std::fs::rename(&there, &away)?;
    configure(cluster, &lines, "", "").await?;
    ensure!(agreed(port).is_err(), "TLS without a certificate");
    let bare = log_in(cluster, &app(cluster))?;
    ensure!(bare.refused.is_none(), "{:?}", bare.refused);
    std::fs::rename(&away, &there)?;
    let limit = Duration::from_secs(90);
    wait_until("TLS", limit, || async { Ok(agreed(port).ok()) }).await?;
    let (stream, _) = encrypt(agreed(port)?, None)?;
    let session = Session::open(stream, 0, &app(cluster), &[], None)?;
    ensure!(session.refused.is_none(), "{:?}", session.refused);
    go_back(cluster).await
}

/// A signed certificate with the user's name logs in without a password; nobody else's does.
pub async fn clients_log_in_by_certificate(cluster: &Cluster) -> anyhow::Result<()> {
    let (authority, lines) = serving(cluster, "certified")?;
    for name in ["carla", "shop"] {
        authority.sign(name, &[])?;
    }
    let strange = Authority::new(&cluster.dir().join("strange"))?;
    strange.sign("carla", &[])?;
    let ca = authority.path("ca.pem").display().to_string();
    role(cluster, "carla", "c").await?;
    role(cluster, "carlo", "c").await?;
    let database = &cluster.description().database;
    let users = format!(
        "[[users]]\nname = \"carla\"\ndatabase = \"{database}\"\nserver_password = \"c\"\n\
         [[users]]\nname = \"carlo\"\ndatabase = \"{database}\"\npassword = \"c\"\n\
         identity = \"shop\"\ntls_client_certificate_required = false\n"
    );
    let general = format!("{lines}\ntls_client_ca_certificate = \"{ca}\"");
    configure(cluster, &general, "", &users).await?;
    let with = |authority: &Authority, name: &str| {
        let file = |kind: &str| authority.path(&format!("{name}.{kind}"));
        let (pem, key) = (file("pem"), file("key"));
        format!(
            "sslmode=require sslcert={} sslkey={}",
            pem.display(),
            key.display()
        )
    };
    let bare = "sslmode=require";
    for (user, password, conninfo, served) in [
        ("carla", "", with(&authority, "carla"), true),
        ("carla", "c", with(&authority, "shop"), false),
        ("carla", "c", with(&strange, "carla"), false),
        ("carla", "c", bare.to_owned(), false),
        ("carla", "c", "sslmode=disable".to_owned(), false),
        ("carlo", "", with(&authority, "shop"), true),
        ("carlo", "c", bare.to_owned(), true),
        ("carlo", "wrong", bare.to_owned(), false),
        ("nobody", "", with(&authority, "carla"), false),
    ] {
        let answer = psql(cluster, user, password, &conninfo);
        let what = format!("{user} {password:?} {conninfo}: {answer:?}");
        ensure!(answer.is_ok_and(|value| value == "42") == served, "{what}");
    }
    go_back(cluster).await?;
    everywhere(cluster, "DROP ROLE carla, carlo").await
}

/// What libpq's own client says to `SELECT 42`.
fn psql(cluster: &Cluster, user: &str, password: &str, more: &str) -> anyhow::Result<String> {
    let d = cluster.description();
    let conninfo = format!(
        "host=localhost hostaddr=127.0.0.1 port={} dbname={} user={user} {more}",
        d.port, d.database
    );
    let output = Command::new(program("psql")?)
        .args([
            "--no-password",
            "--no-psqlrc",
            "-Atc",
            "SELECT 42",
            "-d",
            &conninfo,
        ])
        .env("PGPASSWORD", password)
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn program(name: &str) -> anyhow::Result<std::path::PathBuf> {
    let pg_config = std::env::var("PG_CONFIG").unwrap_or("/usr/bin/pg_config".to_owned());
    let output = Command::new(&pg_config).arg("--bindir").output()?;
    let dir = String::from_utf8(output.stdout)?;
    Ok(Path::new(dir.trim()).join(name))
}
