//! What the extension costs a server: TPC-B with it and without, in CPU time of the backends.
//!
//! Three servers of the same files and settings, two of them without the extension: the ratio of
//! these two is what the measurement makes of nothing. Each has a pgbench that is stopped but for
//! its short turn, so that nothing is started or logged in while it is measured; backends' CPU time
//! is read in nanoseconds, transactions are counted by their ids. Every round begins with the
//! same files, new servers and new processes, for where these lie in memory counts, too.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pgdog_integration::client::Client;

use super::server::{Kind, Server, hand_over};

/// Clients of each server.
const CLIENTS: &str = "2";
/// Longest wait for backends to come to rest.
const LIMIT: Duration = Duration::from_secs(30);

/// Prints both ratios.
///
/// # Errors
/// When a server does not start, or the measurement is disturbed.
pub async fn bench(rounds: usize, turns: usize, length: Duration) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new()
        .prefix("pgdog-fence-")
        .tempdir_in("/tmp")?;
    hand_over(dir.path())?;
    let mut servers = vec![
        Server::make(dir.path(), "plain", Kind::Plain).await?,
        Server::make(dir.path(), "other", Kind::Plain).await?,
        Server::make(dir.path(), "with", Kind::WithExtension).await?,
    ];
    let (mut of_nothing, mut of_extension) = (Ratios::default(), Ratios::default());
    for round in 0..rounds {
        let costs = measure(&mut servers, (round, turns), length).await?;
        of_nothing.add(&costs[0], &costs[1]);
        of_extension.add(&costs[0], &costs[2]);
        let [plain, other, with] = [0, 1, 2].map(|nth| median(costs[nth].clone()));
        eprintln!(
            "round {} of {rounds}: {plain:.1} and {other:.1} us per transaction, {with:.1} with \
             the extension",
            round + 1
        );
    }
    println!("TPC-B, prepared, backends' CPU per transaction, {rounds} rounds of {turns} turns:");
    println!("  plain / another plain server  {of_nothing}");
    println!("  plain / with the extension    {of_extension}");
    Ok(())
}

/// Ratios of costs that were measured one after the other.
#[derive(Debug, Default)]
struct Ratios {
    all: Vec<f64>,
    /// The median of each round.
    rounds: Vec<f64>,
}

impl Ratios {
    fn add(&mut self, costs: &[f64], others: &[f64]) {
        let ratios: Vec<f64> = costs.iter().zip(others).map(|(a, b)| a / b).collect();
        self.all.extend(&ratios);
        self.rounds.push(median(ratios));
    }
}

impl std::fmt::Display for Ratios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let least = self.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.rounds.iter().copied().fold(0.0, f64::max);
        let median = median(self.all.clone());
        write!(f, "{median:.3} (rounds {least:.3} to {most:.3})")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return f64::NAN;
    };
    f64::midpoint(values[last / 2], values[values.len() / 2])
}

/// One round: what a transaction cost on each server, turn by turn.
async fn measure(
    servers: &mut [Server],
    (round, turns): (usize, usize),
    length: Duration,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut runs = Vec::new();
    for server in servers.iter_mut() {
        server.start_anew()?;
        runs.push(Run::start(server).await?);
    }
    // The first turn of each is not measured: caches fill, statements are prepared and planned
    // for any parameter.
    for run in &runs {
        run.turn(length * 4).await?;
    }
    let mut costs = vec![Vec::new(); runs.len()];
    for turn in 0..turns {
        for nth in order(round + turn, runs.len()) {
            costs[nth].push(runs[nth].turn(length).await?);
        }
    }
    Ok(costs)
}

/// Another one first in every turn, and the other way round in every second.
fn order(turn: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|nth| (nth + turn / 2) % count).collect();
    if turn % 2 == 1 {
        order.reverse();
    }
    order
}

/// A pgbench that is stopped, and its backends.
struct Run {
    pgbench: Child,
    /// Connected to the same server.
    observer: Client,
    backends: Vec<i32>,
}

impl Run {
    async fn start(server: &Server) -> anyhow::Result<Self> {
        let observer = server.client().await?;
        let pgbench = server.load(CLIENTS)?;
        let mut run = Self {
            pgbench,
            observer,
            backends: Vec::new(),
        };
        let sql = "SELECT pid FROM pg_stat_activity \
                   WHERE application_name = 'pgbench' AND query LIKE 'UPDATE%'";
        let deadline = Instant::now() + LIMIT;
        while run.backends.len() < CLIENTS.parse()? {
            ensure!(Instant::now() < deadline, "pgbench does not begin");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let pids = run.observer.rows(sql).await?;
            let pids = pids.iter().flatten().map(|pid| pid.parse());
            run.backends = pids.collect::<Result<_, _>>()?;
        }
        run.signal(Signal::SIGSTOP)?;
        run.rest().await?;
        let loaded = run.observer.value("SHOW shared_preload_libraries").await?;
        let is_loaded = loaded.contains("pgdog");
        ensure!(is_loaded == (server.kind() == Kind::WithExtension));
        Ok(run)
    }

    /// Lets pgbench work for a while; microseconds of its backends per transaction.
    async fn turn(&self, length: Duration) -> anyhow::Result<f64> {
        let (ids, spent) = (self.ids().await?, self.spent()?);
        self.signal(Signal::SIGCONT)?;
        tokio::time::sleep(length).await;
        self.signal(Signal::SIGSTOP)?;
        self.rest().await?;
        let (ids, spent) = (self.ids().await? - ids, self.spent()? - spent);
        ensure!(ids > 0, "pgbench does nothing");
        Ok(spent as f64 / 1e3 / ids as f64)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pgbench.id())?);
        kill(pid, signal).context("pgbench has ended")
    }

    /// Until the backends have answered what they were asked, or wait for a row of one whose
    /// client is stopped.
    async fn rest(&self) -> anyhow::Result<()> {
        let pids: Vec<String> = self.backends.iter().map(ToString::to_string).collect();
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' \
             AND wait_event_type IS DISTINCT FROM 'Lock' AND pid IN ({})",
            pids.join(", ")
        );
        let deadline = Instant::now() + LIMIT;
        while self.observer.value(&sql).await? != "0" {
            if Instant::now() > deadline {
                bail!("the backends do not come to rest");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// How many transactions have begun to write.
    async fn ids(&self) -> anyhow::Result<u64> {
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())";
        Ok(self.observer.value(sql).await?.parse()?)
    }

    /// CPU time of the backends so far, in nanoseconds.
    fn spent(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for pid in &self.backends {
            let path = format!("/proc/{pid}/schedstat");
            let text = std::fs::read_to_string(&path).context(path)?;
            let first = text.split_whitespace().next().unwrap_or_default();
            sum += first.parse::<u64>()?;
        }
        Ok(sum)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Also one that is stopped.
        let _ = self.pgbench.kill();
        let _ = self.pgbench.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn everybody_is_first_and_last_equally_often() {
        let mut places: HashMap<(usize, usize), usize> = HashMap::new();
        for turn in 0..6 {
            for (place, nth) in order(turn, 3).into_iter().enumerate() {
                *places.entry((nth, place)).or_default() += 1;
            }
        }
        assert_eq!(places.len(), 9);
        assert!(places.values().all(|times| *times == 2), "{places:?}");
    }

    #[test]
    fn ratios_are_of_pairs() {
        let mut ratios = Ratios::default();
        ratios.add(&[10.0, 20.0, 30.0], &[10.0, 25.0, 30.0]);
        ratios.add(&[10.0, 10.0], &[10.0, 20.0]);
        assert_eq!(ratios.to_string(), "1.000 (rounds 0.750 to 1.000)");
    }
}
