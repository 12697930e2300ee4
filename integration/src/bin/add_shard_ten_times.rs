//! `ADD SHARD app 2 AUTO` under load, over and over on new clusters, as a table.
//!
//! The first argument is the number of runs (10 without one). Exit status 0 only if every run had
//! no client error, nothing lost or doubled, and identical omnisharded tables on three shards.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pgdog_integration::load::{Load, Pressure};
use pgdog_integration::tasks::{self, Serves};
use pgdog_integration::{Cluster, Shape, shop, wait_until};

const LIMIT: Duration = Duration::from_secs(90);
const PRESSURE: Pressure = Pressure {
    omni_writers: 6,
    sharded_writers: 3,
    readers: 3,
    tenants: 20,
};

fn main() -> ExitCode {
    let runs = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(10_u32);
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    else {
        return ExitCode::FAILURE;
    };
    println!(
        "{:>3} {:>10} {:>8} {:>8} {:>9} {:>9} {:>9}  result",
        "run", "omni", "orders", "reads", "gate ms", "p99 ms", "total s"
    );
    let mut failed = 0;
    for run in 1..=runs {
        match runtime.block_on(once()) {
            Ok(line) => println!("{run:>3} {line}  ok"),
            Err(error) => {
                failed += 1;
                println!("{run:>3} FAILED: {error:#}");
            }
        }
    }
    println!("{} of {runs} runs are right", runs - failed);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn once() -> anyhow::Result<String> {
    let began = Instant::now();
    let cluster = Cluster::start(Shape::shards(2).replicas(1).spares(1))?;
    shop::create(&cluster, shop::Size::SMALL).await?;
    let load = Load::start(&cluster, PRESSURE);
    advance(&load).await?;
    let grown = async {
        let task = tasks::order(&cluster, "ADD SHARD app 2 AUTO").await?;
        tasks::wait_for(&cluster, task.id, "done", LIMIT).await
    }
    .await;
    advance(&load).await?;
    let account = load.finish().await?;
    let task = grown?;
    account.expect_no_errors()?;
    account.verify(&cluster, 3).await?;
    tasks::omni_tables_agree(&cluster, 3).await?;
    tasks::shards_serve(&cluster, 3).await?;
    tasks::nothing_is_left(&cluster, 2, Serves::Yes).await?;
    let (from, to) = tasks::flip_window(&cluster.primary(0).await?, task.id).await?;
    let during = account
        .omni_latency(from, to)
        .context("no omni write during the flip")?;
    Ok(format!(
        "{:>10} {:>8} {:>8} {:>9.0} {:>9.0} {:>9.1}",
        account.omni.len(),
        account.orders.len(),
        account.reads,
        task.pause_ms.context("the task measured no pause")?,
        during.p99_ms,
        began.elapsed().as_secs_f64()
    ))
}

async fn advance(load: &Load) -> anyhow::Result<()> {
    let from = load.done();
    wait_until("load", LIMIT, || async {
        Ok((load.done() > from + 500).then_some(()))
    })
    .await
}
