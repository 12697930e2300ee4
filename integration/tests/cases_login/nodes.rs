//! Logins at the nodes.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::{Client, Login};
use pgdog_integration::{Cluster, wait_until};

use super::raw::Who;
use super::tls::Authority;
use super::{app, configure, everywhere, go_back, log_in, role, who};

/// R053: a role with the same password on two servers, each with a salt of its own.
pub async fn r053_two_servers_with_two_salts(cluster: &Cluster) -> anyhow::Result<()> {
    let d = cluster.description();
    let mut databases = String::new();
    let mut users = String::new();
    for (shard, name) in [(0_u16, "d1"), (1, "d2")] {
        let node = cluster.primary(shard).await?;
        node.batch_execute("CREATE ROLE u53 LOGIN PASSWORD 'x'")
            .await?;
        node.batch_execute(&format!("CREATE DATABASE {name}"))
            .await?;
        let port = cluster.shard(shard)?.primary.port;
        databases +=
            &format!("[[databases]]\nname = \"{name}\"\nhost = \"127.0.0.1\"\nport = {port}\n");
        users += &format!(
            "[[users]]\nname = \"{}\"\ndatabase = \"{name}\"\npassword = \"{}\"\n\
             schema_admin = true\n",
            d.superuser.user, d.superuser.password
        );
    }
    configure(cluster, "", &databases, &users).await?;
    for nth in 0..20 {
        let who = Who {
            user: "u53".to_owned(),
            password: "x".to_owned(),
            database: ["d1", "d2"][nth % 2].to_owned(),
        };
        let mut session = log_in(cluster, &who)?;
        ensure!(
            session.refused.is_none(),
            "login {nth}: {:?}",
            session.refused
        );
        let at = session.query("SELECT current_database()")?;
        ensure!(at == Ok(who.database), "login {nth}: {at:?}");
    }
    // One database that has both servers cannot know which salt to show: that is told.
    let who = Who {
        user: "u53".to_owned(),
        password: "x".to_owned(),
        database: d.database.clone(),
    };
    for _ in 0..2 {
        let session = log_in(cluster, &who)?;
        ensure!(
            matches!(session.code(), "" | "28P01"),
            "{:?}",
            session.refused
        );
    }
    go_back(cluster).await?;
    for (shard, name) in [(0, "d1"), (1, "d2")] {
        drop_database(cluster, shard, name).await?;
    }
    everywhere(cluster, "DROP ROLE u53").await
}

async fn drop_database(cluster: &Cluster, shard: u16, name: &str) -> anyhow::Result<()> {
    let node = cluster.primary(shard).await?;
    node.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
        .await
        .context(name.to_owned())
}

/// `tls_verify` is libpq's `sslmode`: what the nodes show is checked as far as it says.
pub async fn nodes_are_reached_as_tls_verify_says(cluster: &Cluster) -> anyhow::Result<()> {
    let authority = Authority::new(&cluster.dir().join("nodes"))?;
    let strange = Authority::new(&cluster.dir().join("nodes-strange"))?;
    let file = |authority: &Authority| authority.path("ca.pem").display().to_string();
    let (ca, other) = (file(&authority), file(&strange));

    // Nodes without TLS first.
    for (verify, encrypted) in [
        ("\"prefer\"".to_owned(), Some("f")),
        ("\"require\"".to_owned(), None),
    ] {
        expect(cluster, &verify, encrypted).await?;
    }
    serve_tls(cluster, &authority, "127.0.0.1").await?;
    let with =
        |verify: &str, ca: &str| format!("\"{verify}\"\ntls_server_ca_certificate = \"{ca}\"");
    for (verify, encrypted) in [
        ("\"disabled\"".to_owned(), Some("f")),
        ("\"prefer\"".to_owned(), Some("t")),
        ("\"require\"".to_owned(), Some("t")),
        (with("verify_ca", &ca), Some("t")),
        (with("verify_ca", &other), None),
        (with("verify_full", &ca), Some("t")),
    ] {
        expect(cluster, &verify, encrypted).await?;
    }
    serve_tls(cluster, &authority, "elsewhere.example").await?;
    expect(cluster, &with("verify_ca", &ca), Some("t")).await?;
    expect(cluster, &with("verify_full", &ca), None).await?;
    everywhere(cluster, "ALTER SYSTEM RESET ssl").await?;
    everywhere(cluster, "SELECT pg_reload_conf()").await?;
    go_back(cluster).await?;
    reconnect(cluster).await
}

/// Whether a new server connection is encrypted; `None`: there is none.
async fn expect(cluster: &Cluster, verify: &str, encrypted: Option<&str>) -> anyhow::Result<()> {
    configure(cluster, &format!("tls_verify = {verify}"), "", "").await?;
    reconnect(cluster).await?;
    let mut session = log_in(cluster, &app(cluster))?;
    let Some(encrypted) = encrypted else {
        ensure!(session.code() == "08001", "{verify}: {:?}", session.refused);
        return Ok(());
    };
    ensure!(session.refused.is_none(), "{verify}: {:?}", session.refused);
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let answer = session.query(sql)?;
    ensure!(answer == Ok(encrypted.to_owned()), "{verify}: {answer:?}");
    Ok(())
}

async fn reconnect(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.admin(0).await?.batch_execute("RECONNECT").await?;
    Ok(())
}

/// Lets both servers show a certificate for that name.
async fn serve_tls(cluster: &Cluster, authority: &Authority, name: &str) -> anyhow::Result<()> {
    authority.sign("node", &[name])?;
    for shard in 0..2 {
        let server = &cluster.shard(shard)?.primary;
        let owner = std::fs::metadata(&server.data)?;
        for file in ["node.pem", "node.key"] {
            let target = server.data.join(file);
            std::fs::copy(authority.path(file), &target)?;
            std::os::unix::fs::chown(&target, Some(owner.uid()), Some(owner.gid()))?;
        }
        let node = cluster.primary(shard).await?;
        for sql in [
            "ALTER SYSTEM SET ssl_cert_file = 'node.pem'",
            "ALTER SYSTEM SET ssl_key_file = 'node.key'",
            "ALTER SYSTEM SET ssl = on",
            "SELECT pg_reload_conf()",
        ] {
            node.batch_execute(sql).await.context(sql)?;
        }
        drop(node);
        let login = direct(cluster, shard)?;
        // The reload is asynchronous: new connections show when it has come.
        wait_until("TLS on a node", Duration::from_secs(60), || async {
            let node = Client::connect(&login).await?;
            Ok((node.value("SHOW ssl").await? == "on").then_some(()))
        })
        .await?;
    }
    Ok(())
}

fn direct(cluster: &Cluster, shard: u16) -> anyhow::Result<Login> {
    pgdog_integration::fixture::direct(cluster, shard)
}

/// The nodes' rules of who may log in count, in their words, also when a connection of before is
/// idle in the pool.
pub async fn nodes_refuse_logins_in_their_own_words(cluster: &Cluster) -> anyhow::Result<()> {
    role(cluster, "guest", "right").await?;
    let database = cluster.description().database.clone();
    let denied = format!("permission denied for database \"{database}\"");
    let cases = [
        (
            "ALTER ROLE guest NOLOGIN",
            "ALTER ROLE guest LOGIN",
            ("28000", "role \"guest\" is not permitted to log in"),
        ),
        (
            &*format!("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC"),
            &*format!("GRANT CONNECT ON DATABASE {database} TO PUBLIC"),
            ("42501", &*denied),
        ),
    ];
    for pooled in [false, true] {
        for (bar, unbar, (code, message)) in &cases {
            reconnect(cluster).await?;
            if pooled {
                let before = log_in(cluster, &who(cluster, "guest", "right"))?;
                ensure!(before.refused.is_none(), "{:?}", before.refused);
            }
            everywhere(cluster, bar).await?;
            let told = log_in(cluster, &who(cluster, "guest", "right"))?.refused;
            let expected = ((*code).to_owned(), (*message).to_owned());
            ensure!(told == Some(expected), "{bar}, pooled {pooled}: {told:?}");
            let wrong = log_in(cluster, &who(cluster, "guest", "wrong"))?;
            ensure!(wrong.code() == "28P01", "{bar}: {:?}", wrong.refused);
            everywhere(cluster, unbar).await?;
        }
    }
    everywhere(cluster, "ALTER ROLE guest CONNECTION LIMIT 0").await?;
    reconnect(cluster).await?;
    let told = log_in(cluster, &who(cluster, "guest", "right"))?;
    ensure!(told.code() == "53300", "{:?}", told.refused);
    everywhere(
        cluster,
        "ALTER ROLE guest CONNECTION LIMIT -1 VALID UNTIL '2001-01-01'",
    )
    .await?;
    let told = log_in(cluster, &who(cluster, "guest", "right"))?;
    ensure!(told.code() == "28P01", "{:?}", told.refused);
    everywhere(cluster, "DROP ROLE guest").await
}
