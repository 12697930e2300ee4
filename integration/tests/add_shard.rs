//! Growing under load: no error, nothing lost, nothing doubled, all shards identical.
//!
//! The claims follow one another on one cluster with two shims and two spares: first one that is
//! stopped, then a cutover by hand, then one by itself.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::load::{Load, Pressure};
use pgdog_integration::tasks::{self, Serves};
use pgdog_integration::{Cluster, Shape, claims, shop, suite, wait_until};

const TENANTS: i64 = 20;
const PRESSURE: Pressure = Pressure {
    omni_writers: 6,
    sharded_writers: 3,
    readers: 3,
    tenants: TENANTS,
};
const LIMIT: Duration = Duration::from_secs(90);

fn main() -> ExitCode {
    let shape = Shape::shards(2).spares(2).shims(2);
    suite::run(
        shape,
        shop::SMALL,
        claims![
            a_wrong_number_is_refused,
            a_stopped_task_leaves_nothing,
            a_task_waits_for_its_cutover_and_a_second_one_is_refused,
            definitions_are_frozen_until_the_task_is_over,
            cutover_makes_it_serve_without_a_client_error,
            a_new_tenant_lives_on_the_new_shard,
            auto_adds_the_next_one_under_load,
            a_hash_routed_table_is_refused_by_name,
        ],
    )
}

async fn a_wrong_number_is_refused(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.admin(0).await?;
    for command in [
        "ADD SHARD app 7",
        "ADD SHARD app 1",
        "ADD SHARD nope 2",
        "CUTOVER SHARD app 2",
    ] {
        ensure!(admin.rows(command).await.is_err(), "{command} was accepted");
    }
    Ok(())
}

/// Load before, during and after; verified on all shards.
async fn under_load<F>(cluster: &Cluster, shards_after: u16, change: F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let before = cluster
        .primary(0)
        .await?
        .value("SELECT count(*) FROM ledger")
        .await?;
    if before != "0" {
        // Each round has its own account of what is in the tables.
        let client = cluster.connect().await?;
        client.batch_execute("DELETE FROM ledger").await?;
        client
            .batch_execute("UPDATE counters SET value = 0")
            .await?;
    }
    let load = Load::start(cluster, PRESSURE);
    let more = async |what| {
        let from = load.done();
        wait_until(what, LIMIT, || async {
            Ok((load.done() > from + 200).then_some(()))
        })
        .await
    };
    more("load before the change").await?;
    let changed = change.await;
    more("load after the change").await?;
    let account = load.finish().await?;
    changed?;
    account.expect_no_errors()?;
    account.verify(cluster, shards_after).await?;
    tasks::omni_tables_agree(cluster, shards_after).await?;
    tasks::shards_serve(cluster, shards_after).await
}

async fn a_stopped_task_leaves_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    under_load(cluster, 2, async {
        let task = tasks::order(cluster, "ADD SHARD app 2").await?;
        tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
        cluster
            .admin(0)
            .await?
            .rows(&format!("STOP_TASK {}", task.id))
            .await?;
        tasks::wait_for(cluster, task.id, "aborted", LIMIT).await?;
        Ok(())
    })
    .await?;
    tasks::nothing_is_left(cluster, 2, Serves::No).await
}

async fn a_task_waits_for_its_cutover_and_a_second_one_is_refused(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let task = tasks::order(cluster, "ADD SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    let second = cluster.admin(1).await?.rows("ADD SHARD app 3").await;
    let error = second.err().context("a second task was accepted")?;
    let said = format!("{error:?}");
    ensure!(
        said.contains(&task.id.to_string()),
        "the running task is not named: {said}"
    );
    tasks::shards_serve(cluster, 2).await
}

async fn definitions_are_frozen_until_the_task_is_over(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let error = client
        .batch_execute("ALTER TABLE plans ADD COLUMN late text")
        .await
        .err()
        .context("a definition was accepted during the task")?;
    ensure!(format!("{error:?}").contains("frozen"), "{error:?}");
    Ok(())
}

async fn cutover_makes_it_serve_without_a_client_error(cluster: &Cluster) -> anyhow::Result<()> {
    let task = tasks::latest(cluster)
        .await?
        .context("the task of the claim before")?;
    under_load(cluster, 3, async {
        cluster.admin(1).await?.rows("CUTOVER SHARD app 2").await?;
        let done = tasks::wait_for(cluster, task.id, "done", LIMIT).await?;
        ensure!(
            done.pause_ms.is_some_and(|ms| ms > 0.0),
            "no pause was measured"
        );
        Ok(())
    })
    .await?;
    tasks::nothing_is_left(cluster, 2, Serves::Yes).await
}

async fn a_new_tenant_lives_on_the_new_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO tenants VALUES (1002, 'Newcomer', 'team', 2)")
        .await?;
    client
        .batch_execute(
            "INSERT INTO orders (tenant_id, id, user_id, total_cents) VALUES (1002, 1, 1, 77)",
        )
        .await?;
    // Maps are followed there as well: a change of one is seen by statements on the new shard.
    let watched = "SELECT string_agg(format('%s %s %s', tgrelid::regclass, tgname, tgenabled), \
                   ', ' ORDER BY tgrelid::regclass::text, tgname) \
                   FROM pg_trigger WHERE tgfoid = 'pgdog.lookup_changed'::regproc";
    let sources = "SELECT string_agg(source::regclass || ' ' || coalesce(columns::text, '*'), ', ' \
                   ORDER BY table_name, source::regclass::text) FROM pgdog.lookup_sources";
    for sql in [watched, sources] {
        let old = cluster.primary(0).await?.value(sql).await?;
        let new = cluster.primary(2).await?.value(sql).await?;
        ensure!(old == new && old.contains("tenants"), "{old}, but {new}");
    }
    let count = "SELECT count(*) FROM orders WHERE tenant_id = 1002";
    ensure!(cluster.primary(2).await?.value(count).await? == "1");
    ensure!(client.value(count).await? == "1");
    Ok(())
}

async fn auto_adds_the_next_one_under_load(cluster: &Cluster) -> anyhow::Result<()> {
    under_load(cluster, 4, async {
        let task = tasks::order(cluster, "ADD SHARD app 3 AUTO").await?;
        tasks::wait_for(cluster, task.id, "done", LIMIT).await?;
        Ok(())
    })
    .await?;
    tasks::nothing_is_left(cluster, 3, Serves::Yes).await
}

async fn a_hash_routed_table_is_refused_by_name(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE hashed (k bigint PRIMARY KEY)")
        .await?;
    client
        .batch_execute("SELECT pgdog.shard_table('hashed', 'k')")
        .await?;
    let admin = cluster.admin(0).await?;
    let said = match admin.rows("ADD SHARD app 4 AUTO").await {
        Err(error) => format!("{error:?}"),
        Ok(_) => {
            let task = tasks::latest(cluster)
                .await?
                .context("neither an error nor a task")?;
            let ended = tasks::wait_for_end(cluster, task.id, LIMIT).await?;
            ensure!(ended.status == "aborted", "{ended:?}");
            ended.error.unwrap_or_default()
        }
    };
    // No spare is declared as shard 4 either; both reasons are right.
    ensure!(
        said.contains("hashed") || said.contains("shard 4"),
        "the reason is {said:?}"
    );
    Ok(())
}
