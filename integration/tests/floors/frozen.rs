//! A replica that is frozen: its connections look as well as ever.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pgdog_integration::cluster::Server;
use pgdog_integration::{Cluster, wait_until};

/// Far above what a read may wait, far below what a test may take.
const LIMIT: Duration = Duration::from_secs(20);

/// All processes of a server, stopped until this is dropped.
struct Frozen(Vec<Pid>);

impl Frozen {
    fn server(server: &Server) -> anyhow::Result<Self> {
        let path = server.data.join("postmaster.pid");
        let text = std::fs::read_to_string(&path)?;
        let first = text
            .lines()
            .next()
            .context("no process in postmaster.pid")?;
        let postmaster = Pid::from_raw(first.parse()?);
        // First of all, so that it makes no more of them.
        kill(postmaster, Signal::SIGSTOP)?;
        let mut all = Self(vec![postmaster]);
        let children = format!("/proc/{postmaster}/task/{postmaster}/children");
        for child in std::fs::read_to_string(children)?.split_whitespace() {
            let child = Pid::from_raw(child.parse()?);
            kill(child, Signal::SIGSTOP)?;
            all.0.push(child);
        }
        Ok(all)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for process in &self.0 {
            // One that has ended meanwhile need not go on.
            let _ = kill(*process, Signal::SIGCONT);
        }
    }
}

pub async fn a_frozen_replica_holds_no_read_up_for_long(cluster: &Cluster) -> anyhow::Result<()> {
    let (one, other) = (cluster.connect().await?, cluster.connect().await?);
    let token = one
        .write_for_token("INSERT INTO notes VALUES (700, 'before')")
        .await?;
    let read = "SELECT body FROM notes WHERE id = 700";
    for client in [&one, &other] {
        client
            .batch_execute(&format!("SET pgdog.min_lsn = '{token}'"))
            .await?;
        // Each pool has a connection that is about to be frozen.
        wait_until("the replica answers", LIMIT, || async {
            let rows = client.rows(read).await.ok();
            Ok(rows.filter(|rows| rows.concat() == ["before"]).map(drop))
        })
        .await?;
    }
    // A position that no sample has shown yet, so that the server itself must be asked.
    let writer = cluster.connect().await?;
    let frozen = Frozen::server(&cluster.shard(0)?.replicas[0])?;
    let token = writer
        .write_for_token("UPDATE notes SET body = 'after' WHERE id = 700")
        .await?;
    one.batch_execute(&format!("SET pgdog.min_lsn = '{token}'"))
        .await?;
    let began = Instant::now();
    let refused = one.rows(read).await;
    ensure!(refused.is_err(), "answered {refused:?}");
    let took = began.elapsed();
    ensure!(took < LIMIT, "the refusal took {took:?}");
    other
        .batch_execute(&format!(
            "SET pgdog.min_lsn = '{token}'; SET pgdog.min_lsn_primary_fallback = on"
        ))
        .await?;
    let began = Instant::now();
    let found = other.rows(read).await?.concat();
    ensure!(found == ["after"], "the primary answered {found:?}");
    let took = began.elapsed();
    ensure!(took < LIMIT, "the primary was asked after {took:?}");
    drop(frozen);
    wait_until("the replica is read again", LIMIT, || async {
        let rows = one.rows(read).await.ok();
        Ok(rows.filter(|rows| rows.concat() == ["after"]).map(drop))
    })
    .await
}
