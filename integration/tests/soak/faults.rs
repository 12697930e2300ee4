//! What happens to the servers meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use pgdog_integration::cluster::Server;
use pgdog_integration::wait::pause;
use pgdog_integration::{Cluster, faults, wait_until};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::LIMIT;

/// One shard, fault after fault.
pub struct Scene<'a> {
    cluster: &'a Cluster,
    rng: StdRng,
    primary: Server,
    standbys: Vec<Server>,
    counts: BTreeMap<&'static str, usize>,
}

impl<'a> Scene<'a> {
    pub fn new(cluster: &'a Cluster, seed: u64) -> anyhow::Result<Self> {
        let shard = cluster.shard(0)?;
        Ok(Self {
            cluster,
            rng: StdRng::seed_from_u64(seed),
            primary: shard.primary.clone(),
            standbys: shard.replicas.clone(),
            counts: BTreeMap::new(),
        })
    }

    /// Random faults all the time; a standby is cloned anew and the primary lost on the way.
    pub async fn play(&mut self, length: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        let (mut cloned, mut promoted) = (false, false);
        while began.elapsed() < length || !promoted {
            let part = began.elapsed().as_secs_f64() / length.as_secs_f64();
            if part > 0.25 && !cloned {
                cloned = true;
                self.clone_standby().await.context("a new clone")?;
            } else if part > 0.5 && !promoted {
                promoted = true;
                self.promote().await.context("the promotion")?;
            } else {
                self.small_fault().await?;
            }
            let gap = self.rng.random_range(50..800);
            pause(Duration::from_millis(gap)).await;
        }
        Ok(())
    }

    /// How often what happened.
    pub fn told(&self) -> String {
        let told = self
            .counts
            .iter()
            .map(|(what, count)| format!("{count} {what}"));
        told.collect::<Vec<_>>().join(", ")
    }

    /// Waits until all standbys follow and have what the primary has.
    pub async fn settle(&self) -> anyhow::Result<()> {
        let primary = self.cluster.node(&self.primary).await?;
        let written = primary.value("SELECT pg_current_wal_insert_lsn()").await?;
        for standby in &self.standbys {
            let what = format!("the standby on port {} follows", standby.port);
            wait_until(&what, LIMIT, || async {
                let Ok(node) = self.cluster.node(standby).await else {
                    return Ok(None);
                };
                let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
                Ok((node.value(&sql).await? == "t").then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn some_standby(&mut self) -> Server {
        let at = self.rng.random_range(0..self.standbys.len());
        self.standbys[at].clone()
    }

    async fn small_fault(&mut self) -> anyhow::Result<()> {
        let standby = self.some_standby();
        let kind = self.rng.random_range(0..10);
        let length = Duration::from_millis(self.rng.random_range(50..600));
        match kind {
            0..6 => {
                self.note("pauses of replay");
                self.pause_replay(&standby, length).await
            }
            6 | 7 => {
                self.note("restarts");
                let stopped = faults::quit_server(&standby).await?;
                stopped.restart(self.cluster, &standby).await
            }
            8 => {
                self.note("killed walreceivers");
                self.kill(&standby, "backend_type = 'walreceiver'").await
            }
            _ => {
                self.note("killed backends");
                self.kill(&standby, "usename = 'app'").await
            }
        }
    }

    async fn pause_replay(&self, standby: &Server, length: Duration) -> anyhow::Result<()> {
        let node = self.answering(standby).await?;
        node.batch_execute("SELECT pg_wal_replay_pause()").await?;
        pause(length).await;
        node.batch_execute("SELECT pg_wal_replay_resume()").await?;
        Ok(())
    }

    /// The server starts anew by itself; it is waited for, so that the next fault finds it.
    async fn kill(&self, standby: &Server, condition: &str) -> anyhow::Result<()> {
        self.answering(standby).await?;
        faults::kill_process(self.cluster, standby, condition).await?;
        Ok(())
    }

    async fn answering(&self, server: &Server) -> anyhow::Result<pgdog_integration::Client> {
        let what = format!("the server on port {} answers", server.port);
        wait_until(&what, LIMIT, || async {
            let Ok(node) = self.cluster.node(server).await else {
                return Ok(None);
            };
            // One that is about to go down lets people in for a moment.
            Ok(node.value("SELECT 1").await.is_ok().then_some(node))
        })
        .await
    }

    async fn clone_standby(&mut self) -> anyhow::Result<()> {
        let standby = self.some_standby();
        self.note("clones behind the same port");
        self.answering(&standby).await?;
        faults::clone_server(self.cluster, &self.primary, &standby).await
    }

    /// The primary is killed, the standby that has most is promoted, the others follow it, and the
    /// old primary's place is taken by a clone.
    async fn promote(&mut self) -> anyhow::Result<()> {
        self.note("promotions");
        let killed = faults::kill_server(&self.primary)?;
        let mut most = (-1.0, 0);
        for (at, standby) in self.standbys.iter().enumerate() {
            let node = self.answering(standby).await?;
            let sql =
                "SELECT GREATEST(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'";
            let received: f64 = node.value(sql).await?.parse()?;
            if received > most.0 {
                most = (received, at);
            }
        }
        let promoted = self.standbys.remove(most.1);
        let node = self.answering(&promoted).await?;
        ensure!(
            node.value("SELECT pg_promote()").await? == "t",
            "not promoted"
        );
        let old = std::mem::replace(&mut self.primary, promoted);
        let followers: Vec<&Server> = self.standbys.iter().collect();
        faults::follow(self.cluster, &followers, (&old, &self.primary)).await?;
        faults::clone_stopped(self.cluster, &self.primary, (&old, &killed)).await?;
        self.standbys.push(old);
        Ok(())
    }
}
