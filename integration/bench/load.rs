//! One run of pgbench, and what it cost the proxy.

use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use pgdog_integration::Cluster;
use pgdog_integration::pgbench::{number_after, pgbench};

use super::targets::Target;

/// Scale of pgbench's tables: a million rows, which fit in memory.
const SCALE: &str = "10";

/// Query modes of pgbench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Mode {
    /// One Query message.
    Simple,
    /// Parse, Bind, Describe, Execute, Sync.
    Extended,
    /// Parse once, then Bind, Describe, Execute, Sync.
    Prepared,
}

impl Mode {
    /// As pgbench calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Simple => "simple",
            Mode::Extended => "extended",
            Mode::Prepared => "prepared",
        }
    }
}

/// A way to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// In which mode.
    pub mode: Mode,
    /// By how many clients.
    pub clients: usize,
}

impl Case {
    /// A case.
    pub fn new(mode: Mode, clients: usize) -> Self {
        Self { mode, clients }
    }
}

/// What one run showed.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// CPU time of the proxy per query, in microseconds.
    pub cpu_us: f64,
    /// Queries per second.
    pub tps: f64,
}

impl Sample {
    /// The median of several, which one bad turn does not move.
    pub fn median(samples: &[Self]) -> Self {
        let median = |of: fn(&Self) -> f64| median(samples, of).unwrap_or(f64::NAN);
        Self {
            cpu_us: median(|sample| sample.cpu_us),
            tps: median(|sample| sample.tps),
        }
    }
}

/// The middle value of some samples; between the two middle ones if their number is even.
pub fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    Some((values[middle] + values[values.len() / 2]) / 2.0)
}

/// Makes pgbench's tables.
///
/// # Errors
/// When pgbench fails.
pub fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let port = cluster.shard(0)?.primary.port;
    pgbench(cluster, port, &["-i", "-q", "-s", SCALE]).map(drop)
}

/// Runs a case against a target.
///
/// # Errors
/// When pgbench fails, or any of its queries.
pub fn measure(
    cluster: &Cluster,
    target: &Target,
    case: Case,
    limit: Duration,
) -> anyhow::Result<Sample> {
    let endpoint = target.endpoint(case.mode);
    let (clients, seconds) = (case.clients.to_string(), limit.as_secs().to_string());
    let mode = case.mode.as_str();
    let arguments = [
        "-n", "-S", "-M", mode, "-c", &clients, "-j", "2", "-T", &seconds,
    ];
    let before = cpu_time(endpoint.pid)?;
    let output = pgbench(cluster, endpoint.port, &arguments)
        .with_context(|| format!("{} in mode {mode}", target.name))?;
    let spent = cpu_time(endpoint.pid)? - before;
    let queries = number_after(&output, "number of transactions actually processed:")?;
    Ok(Sample {
        cpu_us: spent.as_secs_f64() * 1e6 / queries,
        tps: number_after(&output, "tps =")?,
    })
}

/// User and system time of a process so far; nothing without one.
pub fn cpu_time(pid: Option<u32>) -> anyhow::Result<Duration> {
    /// What Linux counts in, whatever its own clock is (`USER_HZ`).
    const TICK: Duration = Duration::from_millis(10);
    let Some(pid) = pid else {
        return Ok(Duration::ZERO);
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} has ended"))?;
    // The name, in parentheses, may contain anything; utime and stime are fields 14 and 15.
    let (_, rest) = stat.rsplit_once(')').context("/proc/*/stat has changed")?;
    let fields = rest.split_whitespace().skip(11).take(2);
    let ticks = fields.map(str::parse::<u32>).sum::<Result<u32, _>>()?;
    Ok(TICK * ticks)
}
