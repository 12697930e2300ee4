//! Several claims checked on one cluster, one after the other, reported as `cargo test` does.
//!
//! The tests of a file share a cluster, which must be stopped when the last one has ended: that is
//! more than the standard harness can do, so these files have a `main` of their own.

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::cluster::{Cluster, Logs, Shape};

/// How long a single claim may take.
pub const LIMIT: Duration = Duration::from_secs(180);

/// A claim: its name and how it is checked.
pub type Claim = (
    &'static str,
    for<'a> fn(&'a Cluster) -> BoxFuture<'a, anyhow::Result<()>>,
);

/// Lists claims by the names of their functions.
#[macro_export]
macro_rules! claims {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), |cluster| Box::pin($name(cluster)))),+]
    };
}

/// Runs those claims whose name contains the first argument (all without one).
///
/// `prepare` lays the data that all of them need.
pub fn run(shape: Shape, prepare: Claim, claims: &[Claim]) -> ExitCode {
    run_within(LIMIT, shape, prepare, claims)
}

/// As [`run`], where a single claim may take so long.
pub fn run_within(limit: Duration, shape: Shape, prepare: Claim, claims: &[Claim]) -> ExitCode {
    let filter = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    let chosen: Vec<&Claim> = claims
        .iter()
        .filter(|(name, _)| name.contains(&filter))
        .collect();
    println!("\nrunning {} tests", chosen.len());
    let failed = match chosen.is_empty() {
        true => 0,
        false => run_on_cluster(limit, shape, prepare, &chosen),
    };
    let passed = chosen.len() - failed;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_on_cluster(limit: Duration, shape: Shape, prepare: Claim, chosen: &[&Claim]) -> usize {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            println!("no runtime: {error}");
            return chosen.len();
        }
    };
    let started = Cluster::start(shape).and_then(|cluster| {
        runtime.block_on(check(limit, &prepare, &cluster))?;
        Ok(cluster)
    });
    let cluster = match started {
        Ok(cluster) => cluster,
        Err(error) => {
            println!("the cluster could not be prepared: {error:#}");
            return chosen.len();
        }
    };
    let mut failed = 0;
    for claim in chosen {
        let began = Instant::now();
        match runtime.block_on(check(limit, claim, &cluster)) {
            Ok(()) => println!(
                "test {} ... ok ({:.1} s)",
                claim.0,
                began.elapsed().as_secs_f64()
            ),
            Err(error) => {
                failed += 1;
                println!("test {} ... FAILED\n    {error:#}", claim.0);
            }
        }
    }
    let logs = if failed == 0 {
        Logs::Removed
    } else {
        Logs::Kept
    };
    if let Err(error) = cluster.stop(logs) {
        println!("test cluster_stops_and_leaves_nothing ... FAILED\n    {error:#}");
        failed = failed.max(1);
    }
    failed
}

async fn check(limit: Duration, (name, body): &Claim, cluster: &Cluster) -> anyhow::Result<()> {
    let body = AssertUnwindSafe(body(cluster)).catch_unwind();
    match tokio::time::timeout(limit, body).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(anyhow!("panicked: {}", text.unwrap_or_default()))
        }
        Err(_) => Err(anyhow!("not done after {} s", limit.as_secs())).context(*name),
    }
}
