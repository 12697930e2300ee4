//! The process in numbers.

use std::sync::Arc;

use super::host::Process;
use crate::admin::Host as _;
use crate::nodes::{Address, Cluster, Doubt, Outcome, Position, Role, WAIT_BOUNDS_MS};
use crate::observe::LoginEnd;
use crate::observe::metrics::Kind::{Counter, Gauge};
use crate::observe::metrics::Metric;

/// Every metric, as of now.
pub fn all(process: &Process) -> Vec<Metric> {
    let mut all = clients(process);
    all.extend(traffic(process));
    all.extend(pools(process));
    all.extend(nodes(process));
    all.extend(floors(process));
    all.extend(two_phase(process));
    all
}

fn clients(process: &Process) -> Vec<Metric> {
    let services = process.services();
    let mut by_state = Metric::new("clients", Gauge, "Clients connected, by state.");
    let list = process.clients();
    for state in ["idle", "active", "waiting", "idle in transaction"] {
        let count = list.iter().filter(|client| client.state == state).count();
        by_state = by_state.with(&[("state", state)], count as f64);
    }
    let mut logins = Metric::new("logins", Counter, "Logins, by how they ended.");
    for end in LoginEnd::ALL {
        logins = logins.with(&[("outcome", end.as_str())], services.logins.of(end) as f64);
    }
    let seats = Metric::new("client_seats", Gauge, "Places that clients take.")
        .with(&[], services.seats.taken() as f64);
    let limit = Metric::new(
        "client_seats_limit",
        Gauge,
        "Places that there are for clients.",
    )
    .with(&[], services.settings.load().max_clients as f64);
    vec![by_state, logins, seats, limit]
}

fn traffic(process: &Process) -> Vec<Metric> {
    let mut metrics = [
        Metric::new("transactions", Counter, "Transactions finished."),
        Metric::new("queries", Counter, "Statements run."),
        Metric::new("errors", Counter, "Errors that clients were sent."),
        Metric::new("received_bytes", Counter, "Bytes from clients."),
        Metric::new("sent_bytes", Counter, "Bytes to clients."),
        Metric::new("query_seconds", Counter, "Time that messages took."),
        Metric::new(
            "transaction_seconds",
            Counter,
            "Time that transactions took.",
        ),
        Metric::new(
            "wait_seconds",
            Counter,
            "Time that clients waited for servers.",
        ),
    ];
    for stats in process.stats() {
        let labels = [
            ("database", stats.database.as_str()),
            ("user", stats.user.as_str()),
        ];
        let values = [
            stats.transactions as f64,
            stats.queries as f64,
            stats.errors as f64,
            stats.received_bytes as f64,
            stats.sent_bytes as f64,
            stats.query_us as f64 / 1e6,
            stats.transaction_us as f64 / 1e6,
            stats.wait_us as f64 / 1e6,
        ];
        for (metric, value) in metrics.iter_mut().zip(values) {
            *metric = metric.clone().with(&labels, value);
        }
    }
    metrics.to_vec()
}

fn pools(process: &Process) -> Vec<Metric> {
    let mut metrics = [
        Metric::new(
            "pool_clients_waiting",
            Gauge,
            "Clients that wait for a connection.",
        ),
        Metric::new(
            "pool_oldest_wait_seconds",
            Gauge,
            "Wait of the first in the queue, now.",
        ),
        Metric::new("pool_servers_idle", Gauge, "Connections that nobody uses."),
        Metric::new("pool_servers_active", Gauge, "Connections that are lent."),
        Metric::new("pool_size", Gauge, "Connections at most."),
        Metric::new(
            "pool_wait_seconds",
            Counter,
            "Time that clients waited in the queue.",
        ),
        Metric::new("pool_checkouts", Counter, "Connections lent."),
        Metric::new("pool_connects", Counter, "Connections opened."),
        Metric::new(
            "pool_errors",
            Counter,
            "Checkouts and connection attempts that failed.",
        ),
    ];
    for pool in process.pools() {
        let port = pool.port.to_string();
        let labels = [
            ("user", pool.user.as_str()),
            ("host", pool.host.as_str()),
            ("port", port.as_str()),
            ("database", pool.database.as_str()),
        ];
        let values = [
            pool.waiting as f64,
            pool.max_wait_us as f64 / 1e6,
            pool.idle as f64,
            pool.active as f64,
            pool.size as f64,
            pool.waited_us as f64 / 1e6,
            pool.checkouts as f64,
            pool.connects as f64,
            pool.errors as f64,
        ];
        for (metric, value) in metrics.iter_mut().zip(values) {
            *metric = metric.clone().with(&labels, value);
        }
    }
    metrics.to_vec()
}

/// A node of a shard, with what names it in metrics.
struct Node {
    cluster: Arc<Cluster>,
    position: Position,
    primary: Address,
    shard: String,
    port: String,
}

impl Node {
    fn labels(&self) -> [(&'static str, &str); 4] {
        [
            ("database", self.cluster.name()),
            ("shard", &self.shard),
            ("host", &self.position.address.host),
            ("port", &self.port),
        ]
    }
}

fn every_node(process: &Process) -> Vec<Node> {
    let mut all = Vec::new();
    for cluster in process.clusters() {
        for shard in &cluster.topology().shards {
            let positions = cluster.positions(shard.shard).into_iter();
            all.extend(positions.map(|position| Node {
                cluster: cluster.clone(),
                primary: shard.primary.clone(),
                shard: shard.shard.to_string(),
                port: position.address.port.to_string(),
                position,
            }));
        }
    }
    all
}

fn nodes(process: &Process) -> Vec<Metric> {
    let mut up = Metric::new(
        "node_up",
        Gauge,
        "Whether the last look at a node succeeded.",
    );
    let mut primary = Metric::new("node_primary", Gauge, "Whether a node takes the writes.");
    let mut bytes = Metric::new(
        "replica_lag_bytes",
        Gauge,
        "What a replica has not replayed of what its primary was seen to have written.",
    );
    let mut time = Metric::new(
        "replica_lag_seconds",
        Gauge,
        "For how long a replica had been behind when it was asked last, at least.",
    );
    let mut far = Metric::new(
        "replica_too_far_behind",
        Gauge,
        "Whether no read goes to a replica because of its lag.",
    );
    for node in every_node(process) {
        let (labels, address) = (node.labels(), &node.position.address);
        let is_up = node.cluster.error_of(address).is_none();
        let is_primary = node.position.role == Role::Primary;
        up = up.with(&labels, f64::from(u8::from(is_up)));
        primary = primary.with(&labels, f64::from(u8::from(is_primary)));
        if is_primary {
            continue;
        }
        if let Some(lag) = node.cluster.lag(&node.primary, address) {
            bytes = bytes.with(&labels, lag.bytes as f64);
            time = time.with(&labels, lag.time.as_secs_f64());
        }
        let is_far = node.cluster.lags(&node.primary, address);
        far = far.with(&labels, f64::from(u8::from(is_far)));
    }
    vec![up, primary, bytes, time, far]
}

fn floors(process: &Process) -> Vec<Metric> {
    let mut reads = Metric::new(
        "floor_reads",
        Counter,
        "Reads under a floor, by how they ended; refusals are those of the shard's primary.",
    );
    let mut waits = Metric::new(
        "floor_waits",
        Counter,
        "Reads under a floor that waited, by the upper bound of their class in ms.",
    );
    let mut waited = Metric::new(
        "floor_wait_seconds",
        Counter,
        "Time that reads waited for their floor.",
    );
    for node in every_node(process) {
        let labels = node.labels();
        let tallied = node.cluster.tallied(&node.position.address);
        for outcome in Outcome::ALL {
            let labels = [&labels[..], &[("outcome", outcome.as_str())]].concat();
            reads = reads.with(&labels, tallied.of(outcome) as f64);
        }
        let bounds = WAIT_BOUNDS_MS.iter().map(ToString::to_string);
        let bounds = bounds.chain(std::iter::once("+Inf".to_owned()));
        for (bound, count) in bounds.zip(tallied.waits) {
            let labels = [&labels[..], &[("up_to_ms", bound.as_str())]].concat();
            waits = waits.with(&labels, count as f64);
        }
        waited = waited.with(&labels, tallied.waited_ms as f64 / 1e3);
    }
    vec![reads, waits, waited]
}

/// As of the last round of recovery.
fn two_phase(process: &Process) -> Vec<Metric> {
    let mut count = Metric::new(
        "two_phase_transactions",
        Gauge,
        "Two-phase transactions that are not finished, by state.",
    );
    let mut oldest = Metric::new(
        "two_phase_oldest_seconds",
        Gauge,
        "Age of the eldest two-phase transaction that is not finished, by state.",
    );
    for cluster in process.clusters() {
        let all = cluster.unfinished();
        for doubt in Doubt::ALL {
            let ages = all.iter().filter(|one| one.doubt == doubt);
            let ages: Vec<u64> = ages.map(|one| one.age_s).collect();
            let labels = [("database", cluster.name()), ("state", doubt.as_str())];
            count = count.with(&labels, ages.len() as f64);
            let eldest = ages.iter().max().copied().unwrap_or_default();
            oldest = oldest.with(&labels, eldest as f64);
        }
    }
    vec![count, oldest]
}
