//! A map that is changed on the nodes themselves, while shims serve.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::client::describe;
use pgdog_integration::{Client, Cluster, wait_until};

use crate::LIMIT;

const ROUNDS: u64 = 8;
/// Writers of each shim.
const WRITERS: usize = 3;
/// Statements between two moves.
const STATEMENTS: u64 = 30;

/// What writers and the mover tell each other.
#[derive(Default)]
struct Stage {
    /// Even: the map stands still, and has been changed half as often. Odd: it is being changed.
    phase: AtomicU64,
    done: AtomicU64,
    over: AtomicBool,
}

/// A row that was written, with the phases before and after its statement.
struct Written {
    id: u64,
    phases: (u64, u64),
}

/// One two-phase transaction on every node, without a shim. What starts once it is committed goes
/// by the new map, whichever node committed first, and nobody is told of an error.
pub async fn a_map_changed_behind_the_shims_moves_every_statement(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO tenants VALUES (61, 0)")
        .await?;
    let stage = Stage::default();
    let writers = (0..2 * WRITERS).map(|nth| write(cluster, &stage, nth));
    let moving = async {
        let moved = moves(cluster, &stage).await;
        stage.over.store(true, Ordering::SeqCst);
        moved
    };
    let (moved, written) = tokio::join!(moving, try_join_all(writers));
    let written: Vec<Written> = written?.into_iter().flatten().collect();
    moved?;
    let mut sure = 0;
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        let rows = node
            .rows("SELECT id FROM lines WHERE tenant_id = 61")
            .await?;
        for row in rows {
            let id: u64 = row[0].parse()?;
            let known = written.iter().find(|one| one.id == id);
            let (before, after) = known.context("a row that nobody wrote")?.phases;
            if before == after && before % 2 == 0 {
                sure += 1;
                ensure!(
                    before / 2 % 2 == u64::from(shard),
                    "row {id} was written in phase {before} and is on shard {shard}"
                );
            }
        }
    }
    ensure!(
        sure >= ROUNDS * STATEMENTS / 2,
        "only {sure} rows tell anything"
    );
    Ok(())
}

async fn write(cluster: &Cluster, stage: &Stage, nth: usize) -> anyhow::Result<Vec<Written>> {
    let client = Client::connect(&cluster.login(nth % 2)).await?;
    let mut written = Vec::new();
    while !stage.over.load(Ordering::SeqCst) {
        let id = (nth * 1_000_000 + written.len()) as u64;
        let before = stage.phase.load(Ordering::SeqCst);
        let insert = format!("INSERT INTO lines VALUES (61, {id}, 'moved')");
        client
            .batch_execute(&insert)
            .await
            .map_err(|error| anyhow::anyhow!("in phase {before}: {}", describe(&error)))?;
        let phases = (before, stage.phase.load(Ordering::SeqCst));
        written.push(Written { id, phases });
        stage.done.fetch_add(1, Ordering::SeqCst);
    }
    Ok(written)
}

async fn moves(cluster: &Cluster, stage: &Stage) -> anyhow::Result<()> {
    let nodes = [cluster.primary(0).await?, cluster.primary(1).await?];
    for round in 1..=ROUNDS {
        let enough = stage.done.load(Ordering::SeqCst) + STATEMENTS;
        wait_until("statements of the writers", LIMIT, || async {
            Ok((stage.done.load(Ordering::SeqCst) >= enough).then_some(()))
        })
        .await?;
        stage.phase.fetch_add(1, Ordering::SeqCst);
        let gid = format!("by_hand_{round}");
        for node in &nodes {
            let change = format!(
                "BEGIN; UPDATE tenants SET shard_id = {} WHERE id = 61; \
                 PREPARE TRANSACTION '{gid}'",
                round % 2
            );
            node.batch_execute(&change).await.context(change)?;
        }
        // Either node may be the first one.
        let first = (round / 2 % 2) as usize;
        for node in [&nodes[first], &nodes[1 - first]] {
            node.batch_execute(&format!("COMMIT PREPARED '{gid}'"))
                .await?;
        }
        stage.phase.fetch_add(1, Ordering::SeqCst);
    }
    let enough = stage.done.load(Ordering::SeqCst) + STATEMENTS;
    wait_until("the last statements", LIMIT, || async {
        Ok((stage.done.load(Ordering::SeqCst) >= enough).then_some(()))
    })
    .await
}
