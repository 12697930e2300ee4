//! `make bench`: what a query costs in a proxy, in CPU time, beside its peers; `make floors`:
//! what floors cost; `make fence`: what the extension costs a server.
//!
//! `pgbench -S` runs against PostgreSQL directly, through a plain TCP relay, through PgBouncer and
//! through pgdog, in turns of a second whose order changes, so that what the machine does
//! besides meets all of them. Each proxy has one thread. CPU time hardly depends on what
//! else the machine does; throughput does, so it is only shown as a part of the direct
//! connection's.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use pgdog_integration::{Cluster, Shape};

mod fence;
mod floors;
mod load;
mod relay;
mod server;
mod table;
mod targets;

use load::{Case, Mode, Sample};
use table::Table;
use targets::Targets;

/// Measures CPU per query of pgdog and its peers.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// Rounds; medians over them are printed.
    #[arg(long, env = "ROUNDS", default_value_t = 3)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, env = "SECONDS_EACH", default_value_t = 1)]
    seconds: u64,
    /// Measurements of each target in a round, in turns; their median counts. Many short ones
    /// meet the same weather.
    #[arg(long, env = "TURNS", default_value_t = 10)]
    turns: usize,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "8,32")]
    clients: Vec<usize>,
    /// Query modes of pgbench.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "simple,extended,prepared"
    )]
    modes: Vec<Mode>,
    /// Leave out all targets but these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// What floors and tokens cost: TPC-B with and without them, reads behind replicas that lag.
    Floors,
    /// What the extension costs: TPC-B on a server with and without it.
    Fence {
        /// Rounds, each with new servers.
        #[arg(long, env = "FENCE_ROUNDS", default_value_t = 10)]
        rounds: usize,
        /// Turns of each server in a round.
        #[arg(long, env = "FENCE_TURNS", default_value_t = 18)]
        turns: usize,
        /// Milliseconds of a turn.
        #[arg(long, default_value_t = 250)]
        length_ms: u64,
    },
    /// Copies bytes between clients and a server: the least that a proxy can do.
    Relay {
        /// Port to listen on.
        listen: u16,
        /// Port of the server.
        to: u16,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.part {
        Some(Part::Relay { listen, to }) => relay::run(listen, to),
        Some(Part::Floors) => {
            let pairs = args.rounds * args.turns;
            floors::bench(pairs, Duration::from_secs(args.seconds))
        }
        Some(Part::Fence {
            rounds,
            turns,
            length_ms,
        }) => tokio::runtime::Runtime::new()
            .map_err(Into::into)
            .and_then(|runtime| {
                let length = Duration::from_millis(length_ms);
                runtime.block_on(fence::bench(rounds, turns, length))
            }),
        None => bench(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let cluster = Cluster::start(Shape::shards(1))?;
    let most_clients = args.clients.iter().copied().max().unwrap_or(1);
    let mut targets = runtime.block_on(Targets::start(&cluster, most_clients))?;
    targets.keep_only(&args.only);
    load::prepare(&cluster)?;

    let cases: Vec<Case> = args
        .modes
        .iter()
        .flat_map(|mode| {
            args.clients
                .iter()
                .map(|clients| Case::new(*mode, *clients))
        })
        .collect();
    let mut table = Table::default();
    let limit = Duration::from_secs(args.seconds);
    for round in 0..args.rounds {
        for (number, case) in cases.iter().enumerate() {
            let mut totals = BTreeMap::<_, Vec<_>>::new();
            for turn in 0..args.turns {
                for target in targets.in_turn(round + number + turn) {
                    let sample = load::measure(&cluster, target, *case, limit)?;
                    totals.entry(target.name).or_default().push(sample);
                }
            }
            for (name, samples) in totals {
                table.add(*case, name, Sample::median(&samples));
            }
        }
        eprintln!("round {} of {} done", round + 1, args.rounds);
    }
    println!("{table}");
    Ok(())
}
