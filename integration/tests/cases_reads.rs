//! Where statements go, case by case (R072 to R077): reads to replicas, and nothing that writes or
//! locks.
//!
//! One shard with one replica behind two shims; the second one pools by session.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::client::{Client, describe, sqlstate};
use pgdog_integration::{Cluster, Shape, claims, fixture, suite, wait_until};

/// For what happens within moments.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let shape = Shape::shards(1).replicas(1).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r072_locking_reads_go_to_the_primary,
            r073_functions_that_write_go_to_the_primary,
            r074_no_mix_of_statements_writes_on_a_replica,
            r074_neither_does_it_in_session_mode,
            r075_transactions_go_where_they_may_write,
            r076_a_hint_counts_for_its_statement_only,
            r077_whatever_writes_or_locks_goes_to_the_primary,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    fixture::create(cluster).await?;
    let client = cluster.connect().await?;
    for sql in [
        "INSERT INTO orders VALUES (11, 1, 5, 'm')",
        "CREATE SEQUENCE s",
        "CREATE PROCEDURE p() LANGUAGE sql AS 'UPDATE rates SET pct = pct'",
        "CREATE TABLE written (a int)",
        "SELECT pgdog.omni_table('written')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    // What is there is there on the replica too.
    let token = client.value("SHOW pgdog.commit_lsn").await?;
    let replica = cluster.replica(0, 0).await?;
    replica
        .batch_execute("SET pgdog.wait_lsn_timeout = '60s'")
        .await?;
    replica
        .batch_execute(&format!("SET pgdog.wait_lsn = '{token}'"))
        .await?;
    fixture::configure(
        cluster,
        1,
        &[
            "pooler_mode = \"session\"",
            "default_pool_size = 110",
            "checkout_timeout = 60000",
        ],
    )
    .await
}

async fn role_of_answer(client: &Client) -> anyhow::Result<String> {
    let route = client.value("SHOW pgdog.last_route").await?;
    let role = route.split(' ').find_map(|word| word.strip_prefix("role="));
    role.map(str::to_owned).context(route.clone())
}

/// Runs it; it must be answered by the primary, whatever else comes of it.
async fn on_primary(client: &Client, sql: &str) -> anyhow::Result<()> {
    if let Err(error) = client.rows(sql).await {
        bail!("{sql}: {}", describe(&error));
    }
    let role = role_of_answer(client).await?;
    ensure!(role == "primary", "{sql}: answered by a {role}");
    Ok(())
}

async fn r072_locking_reads_go_to_the_primary(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let of = "FROM orders WHERE tenant_id = 11 AND id = 1";
    let locking = [
        format!("SELECT pg_is_in_recovery()::text {of} FOR UPDATE"),
        format!("SELECT pg_is_in_recovery()::text {of} FOR SHARE"),
        format!("SELECT pg_is_in_recovery()::text {of} FOR NO KEY UPDATE"),
        format!("SELECT pg_is_in_recovery()::text FROM (SELECT * {of} FOR UPDATE) o"),
        format!("WITH o AS (SELECT * {of} FOR UPDATE) SELECT pg_is_in_recovery()::text FROM o"),
    ];
    for sql in &locking {
        for _ in 0..50 {
            let in_recovery = client.value(sql).await?;
            ensure!(in_recovery == "false", "{sql}: on a replica");
        }
    }
    Ok(())
}

async fn r073_functions_that_write_go_to_the_primary(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "SELECT nextval('s')",
        "SELECT setval('s', 5)",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_advisory_unlock(1)",
        "SELECT txid_current()",
        "SELECT pg_notify('c', 'x')",
    ] {
        on_primary(&client, sql).await?;
    }
    Ok(())
}

const CLIENTS: usize = 100;

/// Twenty statements, simple and extended; a replica that was asked to write would say 25006.
async fn mixed(cluster: &Cluster, shim: usize, number: usize) -> anyhow::Result<()> {
    let client = Client::connect(&cluster.login(shim)).await?;
    // Where statements go is asked, not whether they last.
    client.batch_execute("SET synchronous_commit = off").await?;
    for round in 0..5i32 {
        let schema = format!("CREATE SCHEMA IF NOT EXISTS mixed_{}", number % 7);
        match client.batch_execute(&schema).await {
            Ok(()) => {}
            // Several made it at once.
            Err(error) if ["23505", "42P06"].contains(&sqlstate(&error).as_str()) => {}
            Err(error) => bail!("{schema}: {}", describe(&error)),
        }
        let insert = "INSERT INTO written VALUES ($1)";
        client.execute(insert, &[&round]).await?;
        client
            .query("SELECT count(*) FROM written WHERE a = $1", &[&round])
            .await?;
        client.rows("SELECT a FROM written LIMIT 1").await?;
    }
    Ok(())
}

async fn r074_no_mix_of_statements_writes_on_a_replica(cluster: &Cluster) -> anyhow::Result<()> {
    try_join_all((0..CLIENTS).map(|number| mixed(cluster, 0, number))).await?;
    Ok(())
}

async fn r074_neither_does_it_in_session_mode(cluster: &Cluster) -> anyhow::Result<()> {
    try_join_all((0..CLIENTS).map(|number| mixed(cluster, 1, number))).await?;
    Ok(())
}

async fn r075_transactions_go_where_they_may_write(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let read = "SELECT pg_is_in_recovery()::text FROM orders WHERE tenant_id = 11";
    let update = "UPDATE orders SET qty = qty + 1 WHERE tenant_id = 11 AND id = 1";
    client.batch_execute("BEGIN").await?;
    ensure!(
        client.value(read).await? == "false",
        "a read before a write"
    );
    client.batch_execute(update).await?;
    client.batch_execute("COMMIT").await?;
    for (begin, then) in [
        ("BEGIN READ ONLY", None),
        ("BEGIN", Some("SET TRANSACTION READ ONLY")),
        ("/* first */ -- second\n START TRANSACTION READ ONLY", None),
        (
            "/* first */ START TRANSACTION",
            Some("SET TRANSACTION READ ONLY"),
        ),
    ] {
        client.batch_execute(begin).await?;
        if let Some(then) = then {
            client.batch_execute(then).await?;
        }
        client.value(read).await.context(begin)?;
        client.refused(update, "25006").await.context(begin)?;
        client.batch_execute("ROLLBACK").await?;
        // The next one is as any other.
        client.batch_execute("BEGIN").await?;
        client.batch_execute(update).await.context(begin)?;
        client.batch_execute("COMMIT").await?;
    }
    client.batch_execute("BEGIN READ ONLY").await?;
    let in_recovery = client.value(read).await?;
    ensure!(
        in_recovery == "true",
        "a read-only transaction may be read from a replica"
    );
    client.batch_execute("COMMIT").await.map_err(Into::into)
}

async fn r076_a_hint_counts_for_its_statement_only(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let plain = "SELECT pg_is_in_recovery()::text";
    let hinted = format!("/* pgdog_role: primary */ {plain}");
    ensure!(
        client.value(&hinted).await? == "false",
        "the hint was ignored"
    );
    let mut replicas = 0;
    for _ in 0..20 {
        replicas += usize::from(client.value(plain).await? == "true");
    }
    ensure!(replicas > 0, "no plain read reached the replica");
    // In a string it is a string.
    let quoted = format!("{plain}, '/* pgdog_role: primary */'");
    wait_until("a replica for a hint in a string", LIMIT, || async {
        Ok((client.value(&quoted).await? == "true").then_some(()))
    })
    .await
}

async fn r077_whatever_writes_or_locks_goes_to_the_primary(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("PREPARE q (int) AS INSERT INTO written VALUES ($1)")
        .await?;
    for sql in [
        "EXPLAIN ANALYZE INSERT INTO written VALUES (77)",
        "SELECT 1 AS a INTO t2",
        "CREATE TABLE t3 AS SELECT 1 AS a",
        "DO $$ BEGIN UPDATE rates SET pct = pct; END $$",
        "CALL p()",
        "EXECUTE q(1)",
    ] {
        on_primary(&client, sql).await?;
    }
    client.batch_execute("BEGIN").await?;
    on_primary(&client, "LOCK TABLE orders").await?;
    client.batch_execute("COMMIT").await?;
    // These may run anywhere, and run.
    let copied = client.copy_out("COPY (SELECT 1) TO STDOUT").await;
    ensure!(copied.is_ok(), "COPY TO");
    drop(copied);
    let other = cluster.connect().await?;
    for sql in ["VALUES (1)", "TABLE rates", "SHOW work_mem"] {
        other.rows(sql).await.context(sql)?;
    }
    Ok(())
}
