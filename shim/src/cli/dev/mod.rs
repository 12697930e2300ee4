//! `pgdog dev`: a whole cluster on this machine.
//!
//! ```text
//!   start:  checks → [initdb → start → roles, database, extension] of every server at once
//!                  → [base backups → start → streaming] of every replica at once
//!                  → files → shims → dev.json
//!   stop:   whatever runs from that directory, found in /proc
//! ```
//!
//! | file | what |
//! |---|---|
//! | `layout` | names, ports and passwords of everything, decided before anything starts |
//! | `postgres` | one server: made, started, cloned |
//! | `files` | `pgdog.toml`, `users.toml`, `dev.json` |
//! | `shims` | the proxies: started, waited for |
//! | `stop` | everything of a directory ended |

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::future::try_join_all;

mod files;
mod layout;
mod postgres;
mod shims;
mod stop;

use layout::Layout;

/// How long anything that starts may take before it counts as failed.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Arguments of `pgdog dev`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory of the cluster; must be new, empty, or from an earlier `pgdog dev`.
    #[arg(long)]
    dir: PathBuf,
    /// Number of shards.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// Replicas of every shard.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=8))]
    replicas: u16,
    /// Empty servers, declared as the next shards.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=16))]
    spares: u16,
    /// Shims in front.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    shims: u16,
    /// Port of the first shim; the others and the servers follow. Chosen when absent.
    #[arg(long)]
    port: Option<u16>,
    /// The PostgreSQL to use.
    #[arg(long, default_value = "/usr/bin/pg_config")]
    pg_config: PathBuf,
    /// End everything that runs from the directory.
    #[arg(long)]
    stop: bool,
}

/// Starts or stops.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    if args.stop {
        return stop::run(&args.dir).await;
    }
    let installation = postgres::Installation::find(&args.pg_config)?;
    let dir = layout::prepare_directory(&args.dir, &installation)?;
    let layout = Layout::plan(dir, &args)?;
    match start(&layout, &installation).await {
        Ok(summary) => {
            println!("{summary}");
            Ok(())
        }
        Err(error) => {
            // Nothing half-started stays behind; its logs do.
            stop::end_all(&layout.dir).await?;
            Err(error.context(format!("logs are in {}", layout.dir.display())))
        }
    }
}

async fn start(layout: &Layout, installation: &postgres::Installation) -> anyhow::Result<String> {
    let began = Instant::now();
    try_join_all(layout.shards.iter().map(|shard| async {
        postgres::create_primary(installation, layout, &shard.primary).await?;
        try_join_all(
            shard
                .replicas
                .iter()
                .map(|replica| postgres::create_replica(installation, layout, shard, replica)),
        )
        .await?;
        postgres::wait_until_streaming(layout, shard).await?;
        let servers = std::iter::once(&shard.primary).chain(&shard.replicas);
        try_join_all(servers.map(|server| postgres::make_durable(layout, server))).await
    }))
    .await?;
    files::write_config(layout)?;
    let pids = shims::start_all(layout, installation).await?;
    let summary = files::write_summary(layout, &pids)?;
    eprintln!(
        "{} shards, {} replicas each, {} spares and {} shims in {:.1} s; stop with \
         `pgdog dev --stop --dir {}`",
        layout.serving().count(),
        layout
            .serving()
            .next()
            .map_or(0, |shard| shard.replicas.len()),
        layout.spares().count(),
        pids.len(),
        began.elapsed().as_secs_f64(),
        layout.dir.display(),
    );
    Ok(summary)
}

/// Tries until it succeeds; after the deadline the last reason is the error.
async fn wait_for<T, F>(what: &str, mut attempt: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("{what} takes too long"));
            }
            // A server that starts tells nobody when it is ready.
            Err(_) => tokio::time::sleep(Duration::from_millis(30)).await,
        }
    }
}

/// A connection as `user`, with its driver running in the background.
async fn connect(
    port: u16,
    user: &str,
    password: &str,
    database: &str,
) -> anyhow::Result<tokio_postgres::Client> {
    let mut login = tokio_postgres::Config::new();
    login
        .host("127.0.0.1")
        .port(port)
        .user(user)
        .password(password)
        .dbname(database);
    let connecting = login.connect(tokio_postgres::NoTls);
    let Ok(connected) = tokio::time::timeout(Duration::from_secs(10), connecting).await else {
        bail!("no answer to a login on port {port} within 10 s");
    };
    let (client, connection) = connected.with_context(|| format!("login on port {port}"))?;
    tokio::spawn(connection);
    Ok(client)
}
