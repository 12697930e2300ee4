//! What must not grow is refused by name and leaves nothing behind; what goes past the shims during
//! a cutover is refused or included.

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Login;
use pgdog_integration::faults::{Probe, calm};
use pgdog_integration::tasks::{self, Serves};
use pgdog_integration::{Client, Cluster, Shape, claims, shop, suite, wait_until};

const LIMIT: Duration = Duration::from_secs(90);

fn main() -> ExitCode {
    let shape = Shape::shards(2).spares(3).shims(2);
    suite::run(
        shape,
        shop::SMALL,
        claims![
            a_target_that_is_not_empty_is_refused_and_left_alone,
            an_orphaned_prepared_transaction_is_named_before_the_copy,
            a_paused_map_is_refused_by_name,
            a_publication_must_send_all_of_the_omni_tables_and_nothing_else,
            a_publication_does_not_change_under_a_task_and_slots_of_others_stay,
            one_of_two_orders_at_once_is_refused,
            a_task_can_be_stopped_in_every_state,
            an_orphan_that_holds_the_gate_is_named_and_does_not_stop_writers,
            writers_past_the_shims_are_included,
            a_shim_that_does_not_know_the_new_shard_is_named_and_follows,
            a_hash_routed_table_is_refused_by_name,
        ],
    )
}

/// Runs `ADD SHARD app 2 AUTO`, which must be refused at once or aborted, and returns the reason.
async fn refusal(cluster: &Cluster, shard: u16) -> anyhow::Result<String> {
    let command = format!("ADD SHARD app {shard} AUTO");
    let admin = cluster.admin(0).await?;
    if let Err(error) = admin.rows(&command).await {
        return Ok(format!("{error:?}"));
    }
    let task = tasks::latest(cluster).await?.context("no task")?;
    let ended = tasks::wait_for_end(cluster, task.id, LIMIT).await?;
    ensure!(ended.status == "aborted", "{ended:?}");
    Ok(ended.error.unwrap_or_default())
}

async fn a_target_that_is_not_empty_is_refused_and_left_alone(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let spare = cluster.primary(2).await?;
    spare
        .batch_execute("CREATE TABLE precious AS SELECT 7 AS n")
        .await?;
    let said = refusal(cluster, 2).await?;
    ensure!(said.contains("precious"), "the reason is {said:?}");
    ensure!(spare.value("SELECT n FROM precious").await? == "7");
    spare.batch_execute("DROP TABLE precious").await?;
    tasks::nothing_is_left(cluster, 1, Serves::Yes).await
}

async fn an_orphaned_prepared_transaction_is_named_before_the_copy(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let node = cluster.primary(0).await?;
    node.batch_execute(
        "BEGIN; UPDATE orders SET memo = memo WHERE id = 1; PREPARE TRANSACTION 'orphan'",
    )
    .await?;
    let said = refusal(cluster, 2).await;
    node.batch_execute("ROLLBACK PREPARED 'orphan'").await?;
    let said = said?;
    ensure!(said.contains("orphan"), "the reason is {said:?}");
    tasks::nothing_is_left(cluster, 1, Serves::Yes).await
}

/// Nobody could end the pause while definitions are frozen.
async fn a_paused_map_is_refused_by_name(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("SELECT pgdog.pause_lookup_writes('tenants')")
        .await?;
    let said = refusal(cluster, 2).await;
    client
        .batch_execute("SELECT pgdog.resume_lookup_writes('tenants')")
        .await?;
    let said = said?;
    ensure!(
        said.contains("tenants") && said.contains("resume_lookup_writes"),
        "the reason is {said:?}"
    );
    tasks::nothing_is_left(cluster, 1, Serves::Yes).await
}

/// The omni tables of this cluster, as CREATE PUBLICATION takes them.
async fn omni_tables(node: &Client) -> anyhow::Result<Vec<String>> {
    let sql = "SELECT format('%I.%I', schema_name, table_name) FROM pgdog.omnisharded_tables";
    let rows = node.rows(sql).await?;
    Ok(rows.iter().map(|row| row[0].clone()).collect())
}

async fn a_publication_must_send_all_of_the_omni_tables_and_nothing_else(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    calm(cluster).await?;
    let node = cluster.primary(0).await?;
    let all = omni_tables(&node).await?;
    let others: Vec<&String> = all.iter().filter(|name| !name.contains("plans")).collect();
    let others = others.iter().map(|name| name.as_str()).collect::<Vec<_>>();
    ensure!(others.len() + 1 == all.len(), "{all:?}");
    let (all, others) = (all.join(", "), others.join(", "));
    for (what, says) in [
        (format!("{others}, plans WHERE (code > '')"), "whole tables"),
        (format!("{others}, plans (code)"), "whole tables"),
        (others.clone(), "public.plans"),
        (format!("{all}, orders"), "public.orders"),
        (format!("{all} WITH (publish = 'insert')"), "leaves out"),
    ] {
        node.batch_execute(&format!("CREATE PUBLICATION theirs FOR TABLE {what}"))
            .await
            .with_context(|| what.clone())?;
        let admin = cluster.admin(0).await?;
        let order = "ADD SHARD app 2 AUTO PUBLICATION theirs";
        let said = match admin.rows(order).await {
            Err(error) => format!("{error:?}"),
            Ok(_) => {
                let task = tasks::latest(cluster).await?.context("no task")?;
                let ended = tasks::wait_for_end(cluster, task.id, LIMIT).await?;
                ensure!(ended.status == "aborted", "{what}: {ended:?}");
                ended.error.unwrap_or_default()
            }
        };
        node.batch_execute("DROP PUBLICATION theirs").await?;
        ensure!(said.contains(says), "{what}: the reason is {said:?}");
    }
    tasks::nothing_is_left(cluster, 1, Serves::Yes).await
}

/// What leaves a publication is copied no further, and the walsender says nothing.
async fn a_publication_does_not_change_under_a_task_and_slots_of_others_stay(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    calm(cluster).await?;
    let node = cluster.primary(0).await?;
    let all = omni_tables(&node).await?.join(", ");
    node.batch_execute(&format!("CREATE PUBLICATION mine FOR TABLE {all}"))
        .await?;
    // As the copy of a table for a subscription of somebody else on the new shard's server has it.
    let sysid = "SELECT system_identifier FROM pg_control_system()";
    let sysid = cluster.primary(2).await?.value(sysid).await?;
    let slot = format!("pg_99999_sync_16384_{sysid}");
    node.batch_execute(&format!(
        "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    ))
    .await?;
    let task = tasks::order(cluster, "ADD SHARD app 2 PUBLICATION mine").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    for change in [
        "ALTER PUBLICATION mine DROP TABLE plans".to_owned(),
        format!(
            "ALTER PUBLICATION pgdog_{} DROP TABLE pgdog.marker",
            task.id
        ),
        "ALTER PUBLICATION mine SET (publish = 'insert')".to_owned(),
        "DROP PUBLICATION mine".to_owned(),
        "ALTER PUBLICATION mine RENAME TO yours".to_owned(),
    ] {
        let error = node.batch_execute(&change).await.err();
        let error = error.with_context(|| format!("accepted: {change}"))?;
        ensure!(
            format!("{error:?}").contains("55000"),
            "{change}: {error:?}"
        );
    }
    stop(cluster, task.id).await?;
    let left = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'");
    let left = node.value(&left).await?;
    ensure!(left == "1", "the slot of somebody else is gone");
    node.batch_execute(&format!(
        "SELECT pg_drop_replication_slot('{slot}'); DROP PUBLICATION mine"
    ))
    .await?;
    tasks::nothing_is_left(cluster, 2, Serves::No).await
}

async fn one_of_two_orders_at_once_is_refused(cluster: &Cluster) -> anyhow::Result<()> {
    calm(cluster).await?;
    let (one, two) = tokio::try_join!(cluster.admin(0), cluster.admin(1))?;
    let orders = tokio::join!(one.rows("ADD SHARD app 2"), two.rows("ADD SHARD app 2"));
    ensure!(
        orders.0.is_ok() != orders.1.is_ok(),
        "both or none were accepted: {orders:?}"
    );
    let task = tasks::latest(cluster).await?.context("no task")?;
    stop(cluster, task.id).await?;
    tasks::nothing_is_left(cluster, 2, Serves::No).await
}

async fn stop(cluster: &Cluster, task: i64) -> anyhow::Result<()> {
    let admin = cluster.admin(1).await?;
    admin.rows(&format!("STOP_TASK {task}")).await?;
    let ended = tasks::wait_for_end(cluster, task, LIMIT).await?;
    ensure!(ended.status == "aborted", "{ended:?}");
    Ok(())
}

async fn a_task_can_be_stopped_in_every_state(cluster: &Cluster) -> anyhow::Result<()> {
    calm(cluster).await?;
    for status in [
        "validating",
        "syncing schema",
        "syncing data",
        "indexing",
        "replicating",
        "awaiting cutover",
    ] {
        let probe = Probe::start(cluster, 0);
        let task = tasks::order(cluster, "ADD SHARD app 2").await?;
        let node = cluster.primary(0).await?;
        wait_until(status, LIMIT, || async {
            let sql = format!(
                "SELECT count(*) FROM pgdog.task_events \
                 WHERE task_id = {} AND to_status = '{status}'",
                task.id
            );
            let seen = status == "validating" || node.value(&sql).await? != "0";
            Ok(seen.then_some(()))
        })
        .await?;
        stop(cluster, task.id).await.context(status)?;
        probe.finish().await?;
        tasks::nothing_is_left(cluster, 2, Serves::No)
            .await
            .context(status)?;
    }
    Ok(())
}

async fn an_orphan_that_holds_the_gate_is_named_and_does_not_stop_writers(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    calm(cluster).await?;
    let task = tasks::order(cluster, "ADD SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    let node = cluster.primary(1).await?;
    node.batch_execute(
        "BEGIN; INSERT INTO tenants VALUES (5000, 'x', 'free', 0); PREPARE TRANSACTION 'orphan'",
    )
    .await?;
    let probe = Probe::start(cluster, 0);
    let admin = cluster.admin(0).await?;
    admin.rows("CUTOVER SHARD app 2").await?;
    let lead = cluster.primary(0).await?;
    // Named while it is waited for, and when the cutover is given up.
    let named = async {
        for status in ["fencing", "awaiting cutover"] {
            wait_until(&format!("the orphan is named: {status}"), LIMIT, || async {
                let now = tasks::get(&lead, task.id).await?;
                let named = now.error.is_some_and(|error| error.contains("orphan"));
                Ok((now.status == status && named).then_some(()))
            })
            .await?;
        }
        anyhow::Ok(())
    }
    .await;
    node.batch_execute("ROLLBACK PREPARED 'orphan'").await?;
    let longest = probe.finish().await?;
    named?;
    ensure!(
        longest < Duration::from_secs(10),
        "a write took {longest:?}"
    );
    stop(cluster, task.id).await?;
    tasks::nothing_is_left(cluster, 2, Serves::No).await
}

/// The superuser writes to shard 0 alone; what he committed before the flip is on the new shard.
async fn writers_past_the_shims_are_included(cluster: &Cluster) -> anyhow::Result<()> {
    calm(cluster).await?;
    let task = tasks::order(cluster, "ADD SHARD app 2").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    let node = cluster.primary(0).await?;
    let admin = cluster.admin(0).await?;
    admin.rows("CUTOVER SHARD app 2").await?;
    let (mut before, mut after) = (0, 0);
    while after < 20 {
        let n = before + after;
        node.batch_execute("BEGIN").await?;
        node.execute("INSERT INTO ledger VALUES (-1, $1::int)", &[&n])
            .await?;
        // The gate is held: which side of the flip this is on does not change any more.
        let shards = node.value("SELECT shards FROM pgdog.topology").await?;
        node.batch_execute("COMMIT").await?;
        match shards.as_str() {
            "2" => before += 1,
            _ => after += 1,
        }
    }
    tasks::wait_for(cluster, task.id, "done", LIMIT).await?;
    ensure!(before > 0, "the flip was over before the first write");
    let new = cluster.primary(2).await?;
    let mine = "SELECT count(*) FROM ledger WHERE writer = -1";
    ensure!(
        new.value(mine).await? == before.to_string(),
        "{before} rows were committed before the flip"
    );
    ensure!(node.value(mine).await? == (before + after).to_string());
    for shard in [0, 2] {
        let node = cluster.primary(shard).await?;
        node.batch_execute("DELETE FROM ledger WHERE writer = -1")
            .await?;
    }
    tasks::omni_tables_agree(cluster, 3).await?;
    tasks::nothing_is_left(cluster, 2, Serves::Yes).await
}

async fn a_shim_that_does_not_know_the_new_shard_is_named_and_follows(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    calm(cluster).await?;
    let old = OldShim::start(cluster).await?;
    let task = tasks::order(cluster, "ADD SHARD app 3").await?;
    tasks::wait_for(cluster, task.id, "awaiting cutover", LIMIT).await?;
    let admin = cluster.admin(0).await?;
    let error = admin
        .rows("CUTOVER SHARD app 3")
        .await
        .err()
        .context("a cutover was accepted that an instance cannot follow")?;
    let said = format!("{error:?}");
    ensure!(said.contains(&format!(":{}", old.login.port)), "{said}");

    let client = Client::connect(&old.login).await?;
    admin.rows("CUTOVER SHARD app 3 FORCE").await?;
    let lead = cluster.primary(0).await?;
    let mut rows = 0;
    let mut after = 0;
    while after < 20 {
        let over = tasks::get(&lead, task.id).await?.status == "done";
        let written = client
            .batch_execute(&format!("INSERT INTO ledger VALUES (-2, {rows})"))
            .await;
        rows += i32::from(written.is_ok());
        after += i32::from(over);
    }
    let mine = "SELECT count(*) FROM ledger WHERE writer = -2";
    for shard in 0..4 {
        let found = cluster.primary(shard).await?.value(mine).await?;
        ensure!(
            found == rows.to_string(),
            "{found} of {rows} rows are on shard {shard}"
        );
    }
    ensure!(client.value(mine).await? == rows.to_string());
    tasks::omni_tables_agree(cluster, 4).await?;
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
    let said = refusal(cluster, 4).await?;
    ensure!(said.contains("hashed"), "the reason is {said:?}");
    tasks::nothing_is_left(cluster, 3, Serves::Yes).await
}

/// A shim whose configuration was written before the spares were bought.
struct OldShim {
    child: Child,
    login: Login,
}

impl OldShim {
    async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let shims = &cluster.description().shims;
        let used = shims.iter().map(|shim| shim.port).max().unwrap_or_default();
        let taken = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_err();
        let port = (used + 50..used + 90)
            .find(|port| !taken(*port))
            .context("no free port")?;
        let text = std::fs::read_to_string(&shims[0].config)?;
        let entries: Vec<&str> = text.split("[[databases]]").collect();
        let known: Vec<&str> = entries
            .into_iter()
            .filter(|entry| !entry.contains("provisioning = true"))
            .collect();
        let text = known.join("[[databases]]").replace(
            &format!("port = {}", shims[0].port),
            &format!("port = {port}"),
        );
        let config = cluster.dir().join("old.toml");
        std::fs::write(&config, text)?;
        let program = std::fs::read_link(format!("/proc/{}/exe", shims[0].pid))?;
        let child = Command::new(program)
            .arg("run")
            .arg("--config")
            .arg(&config)
            .arg("--users")
            .arg(&cluster.description().users)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(cluster.dir().join("old.log"))?)
            .spawn()?;
        let old = Self {
            child,
            login: Login {
                port,
                ..cluster.login(0)
            },
        };
        let lead = cluster.primary(0).await?;
        wait_until("the old shim is registered", LIMIT, || async {
            let sql = format!("SELECT count(*) FROM pgdog.instances WHERE addr LIKE '%:{port}'");
            Ok((lead.value(&sql).await? != "0").then_some(()))
        })
        .await?;
        Ok(old)
    }
}

impl Drop for OldShim {
    fn drop(&mut self) {
        // It is not part of the cluster: nobody else ends it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
