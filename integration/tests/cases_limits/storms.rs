//! Pools, clients and memory have bounds, whatever clients do.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, TryStreamExt as _};
use pgdog_integration::client::{Client, Login, describe, sqlstate};
use pgdog_integration::fixture::{configure, full_size, plain, resident_kb};
use pgdog_integration::wire::{Batch, Wire};
use pgdog_integration::{Cluster, wait_until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Notify};

use pgdog_integration::http::{free_port, get};

const LIMIT: Duration = Duration::from_secs(60);

/// Transactions of four statements by so many clients for a while; returns how many were done.
async fn throughput(cluster: &Cluster, clients: usize, time: Duration) -> anyhow::Result<usize> {
    let connected = try_join_all((0..clients).map(|_| cluster.connect())).await?;
    let done = AtomicUsize::new(0);
    let deadline = Instant::now() + time;
    let work = connected.iter().enumerate().map(|(nth, client)| {
        let done = &done;
        async move {
            let mut round = nth;
            while Instant::now() < deadline {
                // Every fourth one has a part on each shard.
                let (first, second) = match round % 4 {
                    0 => (11, 12),
                    1 => (12, 12),
                    _ => (11, 11),
                };
                // The servers are slow, so that it is the pool that decides, not the processors.
                for sql in [
                    "BEGIN".to_owned(),
                    format!(
                        "SELECT pg_sleep(0.005) FROM (SELECT count(*) FROM orders \
                             WHERE tenant_id = {first}) AS c"
                    ),
                    format!(
                        "SELECT pg_sleep(0.005) FROM (SELECT count(*) FROM orders \
                             WHERE tenant_id = {second}) AS c"
                    ),
                    "COMMIT".to_owned(),
                ] {
                    client.batch_execute(&sql).await.context(sql)?;
                }
                done.fetch_add(1, Ordering::SeqCst);
                round += 1;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(work).await?;
    Ok(done.load(Ordering::SeqCst))
}

/// Pool of 5; 12 clients run transactions without pause. 30 s at full size.
pub async fn r147_a_small_pool_serves_many_clients(cluster: &Cluster) -> anyhow::Result<()> {
    // Nobody may wait longer than 5 s: an error would end the test. A machine that is shared with
    // others may stand still for longer, so the small size is patient.
    let patience = if full_size() { 5_000 } else { 30_000 };
    let patience = format!("checkout_timeout = {patience}");
    configure(cluster, 0, &["default_pool_size = 5", &patience]).await?;
    let slice = Duration::from_millis(if full_size() { 10_000 } else { 1_000 });
    let (mut few, mut many) = (0, 0);
    for round in 0.. {
        few += throughput(cluster, 5, slice).await?;
        many += throughput(cluster, 12, slice).await?;
        if round >= 2 && many * 100 >= few * 80 {
            break;
        }
        // Slices differ on a busy machine; the sum of many does not.
        ensure!(round < 9, "{many} transactions of 12 clients, {few} of 5");
    }
    for row in cluster.admin(0).await?.named_rows("SHOW POOLS").await? {
        let total: usize = row["sv_total"].parse()?;
        ensure!(row["user"] != "app" || total <= 5, "{row:?}");
    }
    configure(cluster, 0, &["default_pool_size = 20"]).await
}

/// Limit 50; 80 clients connect and retry in a loop.
pub async fn r148_clients_beyond_the_limit_are_told_at_once(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    configure(cluster, 0, &["max_client_conn = 50"]).await?;
    let login = plain(cluster, 0);
    let (inside, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (may_leave, leave) = (AtomicUsize::new(0), Notify::new());
    let client = |_| async {
        let mut attempts = tokio::time::interval(Duration::from_millis(200));
        let client = loop {
            attempts.tick().await;
            let asked = Instant::now();
            match Client::connect(&login).await {
                Ok(client) => break client,
                Err(error) => {
                    let error = error.downcast::<tokio_postgres::Error>()?;
                    ensure!(sqlstate(&error) == "53300", "{error}");
                    // At once is within what a busy machine needs for 50 logins at a time.
                    ensure!(asked.elapsed() < LIMIT / 2, "told late");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
        ensure!(now <= 50, "{now} clients are in");
        loop {
            let answer = client.rows("SELECT 1").await;
            answer.map_err(|error| anyhow!("inside: {}", describe(&error)))?;
            let left =
                may_leave.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if left.is_ok() {
                // Before the seat is free, or one too many would be counted.
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(client);
                return Ok(());
            }
            leave.notified().await;
        }
    };
    let conduct = async {
        wait_until("50 clients", LIMIT, || async {
            let full = inside.load(Ordering::SeqCst) == 50;
            Ok((full && refused.load(Ordering::SeqCst) >= 100).then_some(()))
        })
        .await?;
        // The operator is let in nevertheless.
        let admin = cluster.admin(0).await?;
        let clients = admin.named_rows("SHOW CLIENTS").await?;
        let states: Vec<_> = clients.iter().map(|row| row["state"].clone()).collect();
        ensure!(
            clients.len() == 50,
            "{} clients are shown: {states:?}",
            clients.len()
        );
        may_leave.fetch_add(30, Ordering::SeqCst);
        leave.notify_waiters();
        wait_until("30 more clients", LIMIT, || async {
            leave.notify_waiters();
            let gone = may_leave.load(Ordering::SeqCst) == 0;
            Ok((gone && inside.load(Ordering::SeqCst) == 50).then_some(()))
        })
        .await?;
        may_leave.fetch_add(50, Ordering::SeqCst);
        wait_until("the end", LIMIT, || async {
            leave.notify_waiters();
            Ok((inside.load(Ordering::SeqCst) == 0).then_some(()))
        })
        .await
    };
    // The first error on either side ends both.
    let clients = (0..80).map(client).collect::<FuturesUnordered<_>>();
    tokio::try_join!(clients.try_collect::<()>(), conduct)?;
    configure(cluster, 0, &["max_client_conn = 5000"]).await
}

/// What a shim has open but for connections to the nodes, of which a pool opens more when more
/// clients come at a time.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Connections that it has accepted on its port.
    clients: usize,
    /// Everything else.
    others: usize,
}

fn open(cluster: &Cluster, shim: usize) -> anyhow::Result<Open> {
    let pid = cluster.shim_pid(shim).context("this shim does not run")?;
    let d = cluster.description();
    let nodes = d.shards.iter().chain(&d.spares);
    let nodes: HashSet<u16> = nodes.map(|shard| shard.primary.port).collect();
    let (mut total, mut sockets) = (0, HashSet::new());
    for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        total += 1;
        // It may be closed by now.
        if let Ok(target) = std::fs::read_link(descriptor?.path()) {
            sockets.insert(target.to_string_lossy().into_owned());
        }
    }
    let (mut clients, mut servers) = (0, 0);
    // See proc_pid_net(5): addresses of both ends, state, and at last the inode.
    for line in std::fs::read_to_string(format!("/proc/{pid}/net/tcp"))?.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, local, remote, state, _, _, _, _, _, inode, ..] = words[..] else {
            continue;
        };
        let port = |end: &str| u16::from_str_radix(end.rsplit(':').next()?, 16).ok();
        const LISTENS: &str = "0A";
        if state == LISTENS || !sockets.contains(&format!("socket:[{inode}]")) {
            continue;
        }
        if port(local) == Some(d.shims[shim].port) {
            clients += 1;
        } else if port(remote).is_some_and(|port| nodes.contains(&port)) {
            servers += 1;
        }
    }
    Ok(Open {
        clients,
        others: total - clients - servers,
    })
}

/// Clients that leave properly, half, with a reset, and in the middle of a login; 2000 of them at
/// full size.
pub async fn r149_clients_that_leave_in_any_way_leave_nothing(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let login = plain(cluster, 1);
    let wrong = Login {
        password: "wrong".to_owned(),
        ..login.clone()
    };
    let admin = cluster.admin(1).await?;
    let (login, wrong, admin) = (&login, &wrong, &admin);
    // Nobody is here but the operator, and no server connection is lent.
    let is_quiet = move || async move {
        let mut lent = 0;
        for row in admin.named_rows("SHOW POOLS").await? {
            lent += row["sv_active"].parse::<usize>()?;
        }
        let shown = admin.rows("SHOW CLIENTS").await?.len();
        let open = open(cluster, 1)?;
        anyhow::Ok((shown == 0 && lent == 0 && open.clients == 1).then_some(open))
    };
    // Servers' connections are opened by the first ones.
    try_join_all((0..20).map(|_| Wire::connect(login))).await?;
    let before = wait_until("a quiet shim", LIMIT, is_quiet).await?;
    let rounds = if full_size() { 100 } else { 4 };
    for _ in 0..rounds {
        let leave = (0..20).map(|nth| async move {
            match nth % 5 {
                0 => drop(Wire::connect(login).await?),
                1 => Wire::connect(login).await?.reset()?,
                2 => {
                    // Says that nothing more comes, and does not listen any more.
                    let mut wire = Wire::connect(login).await?;
                    wire.stream.shutdown().await?;
                }
                3 => ensure!(Wire::connect(wrong).await.is_err(), "a wrong password"),
                _ => {
                    let mut half = TcpStream::connect(("127.0.0.1", login.port)).await?;
                    half.write_all(&[0, 0, 0, 50, 0, 3]).await?;
                }
            }
            anyhow::Ok(())
        });
        try_join_all(leave).await?;
    }
    wait_until("a quiet shim again", LIMIT, || async {
        Ok(is_quiet()
            .await?
            .filter(|after| after.others <= before.others))
    })
    .await
    .with_context(|| format!("{before:?} before, {:?} after", open(cluster, 1)))?;
    Ok(())
}

/// Logins by many workers, with one thread and with four; those that fail are counted.
///
/// The clients, who also compute, share the machine with the shim. So at full size it is not the
/// clock that shows whether the rate grows with the threads, but that no thread does most of the
/// work: with processors to spare four of them are as fast as the busiest one allows.
pub async fn r150_logins_are_served_by_one_thread_and_by_four(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (cycles, workers) = if full_size() { (2_000, 100) } else { (60, 20) };
    let metrics = free_port()?;
    let mut busiest = Vec::new();
    for threads in [1, 4] {
        let lines = [
            format!("workers = {threads}"),
            format!("openmetrics_port = {metrics}"),
        ];
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        configure(cluster, 1, &lines).await?;
        let login = plain(cluster, 1);
        let left = AtomicUsize::new(cycles);
        let began = Instant::now();
        try_join_all((0..workers).map(|_| async {
            let next = |n: usize| n.checked_sub(1);
            while left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
                .is_ok()
            {
                drop(Wire::connect(&login).await?);
            }
            anyhow::Ok(())
        }))
        .await?;
        let rate = cycles as f64 / began.elapsed().as_secs_f64();
        let share = busiest_thread(cluster, 1)?;
        eprintln!("{threads} threads: {rate:.0} logins per second, {share:.2} by the busiest");
        busiest.push(share);
        let wrong = Login {
            password: "wrong".to_owned(),
            ..login
        };
        ensure!(Wire::connect(&wrong).await.is_err(), "a wrong password");
        wait_until("the logins in the metrics", LIMIT, || async {
            let text = get(metrics, "/metrics").await?;
            let counted = |outcome: &str, least: usize| {
                let label = format!("outcome=\"{outcome}\"");
                let mut lines = text.lines().filter(|line| line.contains(&label));
                let count = lines.find_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
                count.is_some_and(|count| count >= least as f64)
            };
            Ok((counted("accepted", cycles) && counted("refused", 1)).then_some(()))
        })
        .await?;
    }
    ensure!(
        !full_size() || busiest[1] < 0.6,
        "the busiest thread did {busiest:?} of the work"
    );
    Ok(())
}

/// Which part of a shim's processor time its busiest thread had.
fn busiest_thread(cluster: &Cluster, shim: usize) -> anyhow::Result<f64> {
    let pid = cluster.shim_pid(shim).context("this shim does not run")?;
    let mut times = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let spent = text.split(' ').next().unwrap_or_default();
        times.push(spent.parse::<f64>()?);
    }
    let most = times.iter().copied().fold(0.0, f64::max);
    Ok(most / times.iter().sum::<f64>())
}

/// Unnamed statements and named ones with Close, all different. A million and 200 000 over 50
/// clients at full size; the bounds are reached with far fewer.
pub async fn r151_texts_without_end_do_not_fill_the_memory(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (clients, unnamed, named) = match full_size() {
        true => (50, 20_000, 4_000),
        false => (8, 600, 120),
    };
    let login = plain(cluster, 1);
    let barrier = Barrier::new(clients);
    let level = AtomicUsize::new(0);
    let work = (0..clients).map(|client| {
        let (login, barrier, level) = (&login, &barrier, &level);
        async move {
            let mut wire = Wire::connect(login).await?;
            for nth in 0..unnamed.max(named) {
                let mut batch = Batch::new();
                if nth < unnamed {
                    batch = batch.run(&format!("SELECT {nth} AS c{client}, 'unnamed'"), &[]);
                }
                if nth < named {
                    let name = format!("s{nth}");
                    let sql = format!("SELECT {nth} AS c{client}, 'named'");
                    batch = batch
                        .parse(&name, &sql)
                        .bind(&name, &[])
                        .execute(0)
                        .close(&name);
                }
                wire.ask(&batch.sync()).await?;
                if nth == unnamed / 20 && barrier.wait().await.is_leader() {
                    level.store(resident_kb(cluster, 1)? as usize, Ordering::SeqCst);
                }
            }
            anyhow::Ok(())
        }
    });
    try_join_all(work).await?;
    let (before, after) = (
        level.load(Ordering::SeqCst),
        resident_kb(cluster, 1)? as usize,
    );
    ensure!(
        after < before + 100 * 1024,
        "{before} kB after 5 %, {after} kB at the end"
    );
    Ok(())
}

/// Outside and inside of transactions.
pub async fn idle_clients_are_sent_away(cluster: &Cluster) -> anyhow::Result<()> {
    let limits = [
        "client_idle_timeout = 700",
        "client_idle_in_transaction_timeout = 300",
    ];
    configure(cluster, 1, &limits).await?;
    let idle = Wire::connect(&plain(cluster, 1)).await?;
    let mut inside = Wire::connect(&plain(cluster, 1)).await?;
    inside
        .query("BEGIN; INSERT INTO orders VALUES (11, 148, 1, 'idle')")
        .await?;
    for (mut wire, code) in [(inside, "25P03"), (idle, "57P05")] {
        let last = wire.read().await?;
        let fields = pgdog_integration::wire::Fields::of(&last);
        ensure!(fields.get('C') == code, "{}", fields.text());
    }
    pgdog_integration::fixture::none_left(cluster, 0, "state LIKE 'idle in transaction%'").await?;
    configure(
        cluster,
        1,
        &[
            "client_idle_timeout = 0",
            "client_idle_in_transaction_timeout = 0",
        ],
    )
    .await
}

/// 10 000 at full size; nobody proves a password, which would cost this process minutes.
pub async fn many_idle_clients_hold(cluster: &Cluster) -> anyhow::Result<()> {
    let count = if full_size() { 10_000 } else { 100 };
    configure(cluster, 1, &["auth_type = \"trust\""]).await?;
    let login = plain(cluster, 1);
    let before = resident_kb(cluster, 1)?;
    let failed = AtomicBool::new(false);
    let mut clients = Vec::new();
    while clients.len() < count {
        clients.extend(try_join_all((0..50).map(|_| Wire::connect(&login))).await?);
    }
    let per_client = resident_kb(cluster, 1)?.saturating_sub(before) as f64 / count as f64;
    eprintln!("{count} idle clients: {per_client:.1} KB each");
    ensure!(per_client < 64.0, "{per_client:.1} kB for each idle client");
    for wire in clients.iter_mut().step_by(97) {
        if pgdog_integration::wire::value(&wire.query("SELECT 1").await?).is_none() {
            failed.store(true, Ordering::SeqCst);
        }
    }
    if failed.load(Ordering::SeqCst) {
        bail!("an idle client got no answer");
    }
    drop(clients);
    configure(cluster, 1, &["auth_type = \"scram\""]).await
}
