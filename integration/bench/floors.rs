//! What floors cost: commits that report their tokens, and reads behind replicas that lag.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::future::try_join_all;
use pgdog_integration::client::{Client, describe, sqlstate};
use pgdog_integration::pgbench::{number_after, pgbench_as};
use pgdog_integration::{Cluster, Shape, wait_until};

use super::load;

/// How far replicas are behind.
const DELAY: Duration = Duration::from_millis(20);
/// Writers with a reader each.
const PAIRS: usize = 4;
/// Clients of TPC-B.
const CLIENTS: &str = "8";

const LIMIT: Duration = Duration::from_secs(60);

/// Prints both figures: of so many pairs of measurements of that length, and of reads that take as
/// long as half of all of them.
///
/// # Errors
/// When a cluster does not start, or anything fails that must not.
pub fn bench(pairs: usize, length: Duration) -> anyhow::Result<()> {
    commits(pairs, length)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(reads(length * u32::try_from(pairs)?))
}

/// TPC-B through the shim, with tokens and without in turns.
fn commits(pairs: usize, length: Duration) -> anyhow::Result<()> {
    const WITH: &str = "-c pgdog.report_commit_lsn=on -c pgdog.read_your_writes=session";
    let cluster = Cluster::start(Shape::shards(1))?;
    load::prepare(&cluster)?;
    let port = cluster.login(0).port;
    let pid = cluster.shim_pid(0).context("the shim has ended")?;
    let pid = Some(u32::try_from(pid)?);
    let seconds = length.as_secs().to_string();
    let arguments = ["-n", "-c", CLIENTS, "-j", "2", "-T", &seconds];
    // Transactions per second, and microseconds of the shim's CPU per transaction.
    let measure = |options: &str| -> anyhow::Result<(f64, f64)> {
        let before = load::cpu_time(pid)?;
        let output = pgbench_as(&cluster, (port, options), &arguments)?;
        let spent = load::cpu_time(pid)? - before;
        let count = number_after(&output, "number of transactions actually processed:")?;
        Ok((
            number_after(&output, "tps =")?,
            spent.as_secs_f64() * 1e6 / count,
        ))
    };
    measure("")?;
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (with, without) = match pair % 2 {
            0 => {
                let with = measure(WITH)?;
                (with, measure("")?)
            }
            _ => {
                let without = measure("")?;
                (measure(WITH)?, without)
            }
        };
        rates.push(with.0 / without.0);
        costs.push(with.1 / without.1);
    }
    for (what, ratios) in [
        ("rate", &mut rates),
        ("shim's CPU per transaction", &mut costs),
    ] {
        println!(
            "TPC-B with tokens / without, {pairs} pairs in turns, {what}: median {:.3} \
             (quartiles {:.3}, {:.3})",
            percentile(ratios, 0.5),
            percentile(ratios, 0.25),
            percentile(ratios, 0.75)
        );
    }
    Ok(())
}

/// Times of reads, in milliseconds.
#[derive(Debug, Default)]
struct Times {
    free: Vec<f64>,
    floored: Vec<f64>,
    refused: usize,
}

/// Reads right behind the commit that they ask for, from replicas that are late.
async fn reads(length: Duration) -> anyhow::Result<()> {
    let cluster = Cluster::start(Shape::shards(1).replicas(2))?;
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE notes (id bigint PRIMARY KEY, version bigint)")
        .await?;
    let rows = format!("INSERT INTO notes SELECT id, 0 FROM generate_series(0, {PAIRS}) id");
    client.batch_execute(&rows).await?;
    for replica in 0..2 {
        let node = cluster.replica(0, replica).await?;
        let delay = DELAY.as_millis();
        for sql in [
            &format!("ALTER SYSTEM SET recovery_min_apply_delay = '{delay}ms'"),
            "SELECT pg_reload_conf()",
        ] {
            node.batch_execute(sql).await?;
        }
        wait_until("the delay", LIMIT, || async {
            let delay = node.value("SHOW recovery_min_apply_delay").await?;
            Ok((delay != "0").then_some(()))
        })
        .await?;
    }
    let all = try_join_all((0..PAIRS).map(|pair| pairs_reads(&cluster, pair, length))).await?;
    let mut times = Times::default();
    for one in all {
        times.free.extend(one.free);
        times.floored.extend(one.floored);
        times.refused += one.refused;
    }
    println!(
        "Replicas {} ms behind: {} reads under the token of a commit just made, {} refused",
        DELAY.as_millis(),
        times.floored.len(),
        times.refused
    );
    for part in [0.5, 0.9, 0.99] {
        let (free, floored) = (
            percentile(&mut times.free, part),
            percentile(&mut times.floored, part),
        );
        println!(
            "  p{:.0}: {free:.1} ms without a floor, {floored:.1} ms under it, {:.1} ms added",
            part * 100.0,
            floored - free
        );
    }
    Ok(())
}

/// One writer and one reader, in turns.
async fn pairs_reads(cluster: &Cluster, pair: usize, length: Duration) -> anyhow::Result<Times> {
    let (writer, reader) = (cluster.connect().await?, cluster.connect().await?);
    let sql = format!("SELECT version FROM notes WHERE id = {pair}");
    let mut times = Times::default();
    let began = Instant::now();
    for version in 1.. {
        if began.elapsed() > length {
            break;
        }
        let asked = Instant::now();
        reader.batch_execute("RESET pgdog.min_lsn").await?;
        reader.value(&sql).await?;
        times.free.push(asked.elapsed().as_secs_f64() * 1e3);
        let write = format!("UPDATE notes SET version = {version} WHERE id = {pair}");
        writer.batch_execute(&write).await?;
        let token = writer.value("SHOW pgdog.commit_lsn").await?;
        let asked = Instant::now();
        let seen = under(&reader, &token, &sql).await?;
        let took = asked.elapsed().as_secs_f64() * 1e3;
        match seen {
            Some(seen) if seen == version.to_string() => times.floored.push(took),
            Some(seen) => bail!("{seen} is read after {version} was written"),
            None => times.refused += 1,
        }
    }
    Ok(times)
}

/// A read under a floor; None: it was refused.
async fn under(client: &Client, token: &str, sql: &str) -> anyhow::Result<Option<String>> {
    client
        .batch_execute(&format!("SET pgdog.min_lsn = '{token}'"))
        .await?;
    match client.rows(sql).await {
        Ok(rows) => Ok(rows.into_iter().flatten().next()),
        Err(error) if sqlstate(&error) == "58000" => Ok(None),
        Err(error) => bail!("{}", describe(&error)),
    }
}

fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * part) as usize;
    values
        .get(at.min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}
