//! Floors under faults: writers hand tokens to readers on other connections while replicas pause,
//! crash and are replaced and the primary is lost, and no read may be older than its token.
//!
//!   SOAK_SECONDS   how long (30; `make soak` takes 300)
//!   SOAK_SEED      which faults, and when; printed by every run
//!
//! The last part of the run is without faults: lag is below what readers wait for, so none of them
//! may be refused.

mod clients;
mod faults;
mod tally;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::{Cluster, Shape, claims, suite};
use tokio::sync::mpsc;

use clients::{Clients, Patience};
use faults::Scene;
use tally::Tally;

/// For what happens within moments.
const LIMIT: Duration = Duration::from_secs(60);

/// Written by one writer each, two rows at a time.
const PAIRS: i64 = 8;
const WRITERS: i64 = 3;
const READERS: usize = 5;
/// Sessions that read what they wrote themselves.
const LONERS: i64 = 2;
/// Tokens on their way from writers to readers.
const IN_FLIGHT: usize = 64;

fn main() -> ExitCode {
    let shape = Shape::shards(1).replicas(3).shims(2);
    suite::run_within(
        seconds() * 2 + Duration::from_secs(300),
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![no_read_is_older_than_its_token],
    )
}

fn seconds() -> Duration {
    let given = std::env::var("SOAK_SECONDS").ok();
    Duration::from_secs(given.and_then(|text| text.parse().ok()).unwrap_or(30))
}

fn seed() -> u64 {
    let given = std::env::var("SOAK_SEED").ok();
    let given = given.and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| rand::random::<u32>().into())
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    for (number, shim) in cluster.description().shims.iter().enumerate() {
        let text = std::fs::read_to_string(&shim.config)?;
        let text = text.replace("role = \"primary\"", "role = \"auto\"");
        let text = text.replace("role = \"replica\"", "role = \"auto\"");
        std::fs::write(&shim.config, text)?;
        cluster.kill_shim(number)?;
        cluster.restart_shim(number).await?;
    }
    let client = cluster.connect().await?;
    let rows = (WRITERS + LONERS) * PAIRS * 2;
    for sql in [
        "CREATE TABLE notes (id bigint PRIMARY KEY, version bigint NOT NULL)",
        &format!("INSERT INTO notes SELECT id, 0 FROM generate_series(0, {rows} - 1) id"),
    ] {
        client.batch_execute(sql).await.context(sql.to_owned())?;
    }
    Ok(())
}

async fn no_read_is_older_than_its_token(cluster: &Cluster) -> anyhow::Result<()> {
    let (seed, length) = (seed(), seconds());
    println!("    SOAK_SEED={seed} SOAK_SECONDS={}", length.as_secs());
    let mut scene = Scene::new(cluster, seed)?;
    let troubled = Tally::default();
    let done = run(
        cluster,
        &troubled,
        Patience::Usual,
        scene.play(length.mul_f64(0.75)),
    )
    .await;
    println!("    with faults: {troubled}");
    println!("    faults: {}", scene.told());
    troubled.check()?;
    done?;
    scene.settle().await?;
    let quiet = Tally::default();
    let rest = pgdog_integration::wait::pause(length.mul_f64(0.25));
    run(cluster, &quiet, Patience::Long, async {
        rest.await;
        Ok(())
    })
    .await?;
    println!("    without faults: {quiet}");
    quiet.check()?;
    quiet.check_undisturbed()
}

/// Writers and readers for as long as the scene lasts.
async fn run(
    cluster: &Cluster,
    tally: &Tally,
    patience: Patience,
    scene: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let (hand_out, take) = mpsc::channel(IN_FLIGHT);
    let clients = Clients::new(cluster, tally, patience);
    let take = Arc::new(tokio::sync::Mutex::new(take));
    let writers = try_join_all((0..WRITERS).map(|one| clients.write(one, hand_out.clone())));
    let readers = try_join_all((0..READERS).map(|one| clients.read(one, &take)));
    let loners = try_join_all((0..LONERS).map(|one| clients.read_own(WRITERS + one)));
    drop(hand_out);
    let scene = async {
        let played = scene.await;
        clients.stop();
        played
    };
    tokio::try_join!(scene, writers, readers, loners)?;
    ensure!(tally.reads() > 0, "nothing was read");
    Ok(())
}
