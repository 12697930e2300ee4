//! Logins: versions of the protocol, TLS, passwords that only the nodes know.

use std::net::TcpStream;
use std::process::ExitCode;

use anyhow::Context as _;
use pgdog_integration::client::Client;
use pgdog_integration::{Cluster, Shape, claims, suite};

mod encrypted;
mod nodes;
mod passwords;
mod raw;
mod tls;
mod versions;

use raw::{Session, Who};

use encrypted::{
    a_certificate_that_comes_late_is_found, certificates_are_read_again_at_reload,
    clients_log_in_by_certificate, clients_without_tls_are_refused_where_it_is_required,
    libpq_binds_to_the_certificate, r048_direct_tls_needs_alpn,
    r050_clear_bytes_after_a_request_for_encryption_are_refused,
};
use nodes::{
    nodes_are_reached_as_tls_verify_says, nodes_refuse_logins_in_their_own_words,
    r053_two_servers_with_two_salts,
};
use passwords::{
    an_unknown_user_looks_like_a_wrong_password, every_way_to_prove_a_password_is_served,
    r051_a_verifier_is_enough_on_both_sides, r052_a_changed_password_counts_within_seconds,
    r054_many_logins_at_once_have_the_right_outcome,
};
use versions::{
    r046_newer_versions_and_unknown_options_are_negotiated,
    r047_secrets_are_as_long_as_the_version_wants, r049_an_unknown_database_is_told_every_time,
};

fn main() -> ExitCode {
    let shape = Shape::shards(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r046_newer_versions_and_unknown_options_are_negotiated,
            r047_secrets_are_as_long_as_the_version_wants,
            r048_direct_tls_needs_alpn,
            r049_an_unknown_database_is_told_every_time,
            r050_clear_bytes_after_a_request_for_encryption_are_refused,
            r051_a_verifier_is_enough_on_both_sides,
            r052_a_changed_password_counts_within_seconds,
            r053_two_servers_with_two_salts,
            r054_many_logins_at_once_have_the_right_outcome,
            an_unknown_user_looks_like_a_wrong_password,
            every_way_to_prove_a_password_is_served,
            libpq_binds_to_the_certificate,
            certificates_are_read_again_at_reload,
            a_certificate_that_comes_late_is_found,
            clients_without_tls_are_refused_where_it_is_required,
            clients_log_in_by_certificate,
            nodes_refuse_logins_in_their_own_words,
            nodes_are_reached_as_tls_verify_says,
        ],
    )
}

/// Keeps the files as `pgdog dev` wrote them: every claim changes them and goes back.
async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let d = cluster.description();
    for file in [&d.config, &d.users] {
        std::fs::copy(file, file.with_extension("first"))?;
    }
    Ok(())
}

/// Writes the files anew, `general` being added to `[general]` and the rest to the ends, and lets
/// the shim read them.
async fn configure(
    cluster: &Cluster,
    general: &str,
    databases: &str,
    users: &str,
) -> anyhow::Result<()> {
    let d = cluster.description();
    let first = std::fs::read_to_string(d.config.with_extension("first"))?;
    let mut text = first;
    for line in general.lines() {
        let key = line.split('=').next().unwrap_or_default();
        let kept = text.lines().filter(|old| !old.starts_with(key));
        text = kept.collect::<Vec<_>>().join("\n");
        text = text.replacen("[general]\n", &format!("[general]\n{line}\n"), 1);
        text.push('\n');
    }
    std::fs::write(&d.config, format!("{text}\n{databases}"))?;
    let first = std::fs::read_to_string(d.users.with_extension("first"))?;
    std::fs::write(&d.users, format!("{first}\n{users}"))?;
    reload(cluster).await
}

/// Lets the shim read its files.
async fn reload(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.admin(0).await?;
    admin.batch_execute("RELOAD").await.context("RELOAD")
}

/// Back to the files of the start.
async fn go_back(cluster: &Cluster) -> anyhow::Result<()> {
    configure(cluster, "", "", "").await
}

/// Runs a statement on every server.
async fn everywhere(cluster: &Cluster, sql: &str) -> anyhow::Result<()> {
    for shard in 0..2 {
        let node: Client = cluster.primary(shard).await?;
        node.batch_execute(sql).await.context(sql.to_owned())?;
    }
    Ok(())
}

/// A role with the same verifier on every server.
async fn role(cluster: &Cluster, name: &str, password: &str) -> anyhow::Result<String> {
    let verifier = postgres_protocol::password::scram_sha_256(password.as_bytes());
    let sql = format!("CREATE ROLE {name} LOGIN PASSWORD '{verifier}'");
    everywhere(cluster, &sql).await?;
    Ok(verifier)
}

fn who(cluster: &Cluster, user: &str, password: &str) -> Who {
    Who {
        user: user.to_owned(),
        password: password.to_owned(),
        database: cluster.description().database.clone(),
    }
}

/// The application's own login.
fn app(cluster: &Cluster) -> Who {
    let d = cluster.description();
    who(cluster, &d.user, &d.password)
}

/// A login in clear text, by protocol 3.0.
fn log_in(cluster: &Cluster, who: &Who) -> anyhow::Result<Session<TcpStream>> {
    let stream = raw::dial(cluster.description().port)?;
    Session::open(stream, 0, who, &[], None)
}
