//! Pipelines, Sync and Flush; several statements in one query; what becomes of a transaction.
//!
//! Spoken message by message, and where PostgreSQL's own answer is the measure, compared with it.

mod mixes;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::fixture::{
    configure, count, create, create_deferred, direct, none_left, plain, resident_kb,
};
use pgdog_integration::wire::{Batch, Message, Wire, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};

/// A shim with a pool of one.
const NARROW: usize = 1;

fn main() -> ExitCode {
    let shape = Shape::shards(2).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r013_an_error_skips_to_sync,
            r014_a_flush_answers_and_a_vanished_client_leaves_a_clean_session,
            r015_a_batch_is_one_transaction,
            r016_a_batch_goes_to_the_shard_of_its_key,
            r017_a_query_and_a_batch_in_one_write_stay_in_order,
            r018_many_executions_before_one_sync_do_not_stall,
            r019_several_statements_in_one_query,
            r020_commit_inside_a_query_keeps_what_came_before,
            r021_a_failure_on_one_shard_rolls_back_both,
            r022_a_deferred_check_fails_at_commit,
            a_query_behind_a_batch_without_sync_is_answered,
            an_error_before_a_query_without_sync_skips_the_query,
            batches_of_any_mix_are_answered_as_by_postgresql,
            a_portal_goes_on_where_it_stopped,
            a_function_call_runs_on_the_server_of_its_transaction,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    create_deferred(cluster).await?;
    configure(cluster, NARROW, &["default_pool_size = 1"]).await
}

async fn connect(cluster: &Cluster) -> anyhow::Result<Wire> {
    Wire::connect(&plain(cluster, 0)).await
}

fn expect(messages: &[Message], expected: &str) -> anyhow::Result<()> {
    let found = shape(messages);
    ensure!(found == expected, "answered {found}, not {expected}");
    Ok(())
}

async fn r013_an_error_skips_to_sync(cluster: &Cluster) -> anyhow::Result<()> {
    let batch = Batch::new()
        .run("SELECT 1/0", &[])
        .close("")
        .run("INSERT INTO orders VALUES (11, 1301, 1, 'x')", &[])
        .sync();
    let mut client = connect(cluster).await?;
    expect(&client.ask(&batch).await?, "1 E(22012) Z(I)")?;
    ensure!(count(cluster, 0, "orders WHERE id = 1301").await? == 0);
    expect(&client.query("SELECT 1").await?, "T D C(SELECT 1) Z(I)")
}

async fn r014_a_flush_answers_and_a_vanished_client_leaves_a_clean_session(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut first = Wire::connect(&plain(cluster, NARROW)).await?;
    let batch = Batch::new().parse("r14", "SELECT $1::int AS n");
    first.send(&batch.describe("r14").flush().bytes).await?;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(first.read().await?);
    }
    ensure!(shape(&answers) == "1 t T", "{}", shape(&answers));
    drop(first);
    let mut next = Wire::connect(&plain(cluster, NARROW)).await?;
    let probe = "/* pgdog_shard: 0 */ SELECT coalesce(pg_current_xact_id_if_assigned()::text, '') \
                 || state || (now() > xact_start - interval '1 ms')::text || now()::text \
                 FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let one = value(&next.query(probe).await?).context("no row")?;
    let two = value(&next.query(probe).await?).context("no row")?;
    ensure!(
        one.starts_with("activetrue") && two.starts_with("activetrue"),
        "{one}"
    );
    ensure!(one != two, "now() stands still: a transaction is open");
    none_left(cluster, 0, "state LIKE 'idle in transaction%'").await
}

async fn r015_a_batch_is_one_transaction(cluster: &Cluster) -> anyhow::Result<()> {
    let insert = |id: i64| format!("INSERT INTO orders VALUES (11, {id}, 1, 'x')");
    let batch = Batch::new()
        .run(&insert(1501), &[])
        .run(&insert(1501), &[])
        .run(&insert(1503), &[])
        .sync();
    let mut client = connect(cluster).await?;
    expect(
        &client.ask(&batch).await?,
        "1 2 C(INSERT 0 1) 1 2 E(23505) Z(I)",
    )?;
    ensure!(count(cluster, 0, "orders WHERE id IN (1501, 1503)").await? == 0);
    Ok(())
}

async fn r016_a_batch_goes_to_the_shard_of_its_key(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    client
        .query("INSERT INTO orders VALUES (12, 1, 7, 'on shard 1')")
        .await?;
    let sql = "SELECT qty, pg_backend_pid() FROM orders WHERE tenant_id = $1 AND id = 1";
    let batch = Batch::new()
        .run("BEGIN", &[])
        .parse("", sql)
        .bind("", &["12"])
        .describe_portal()
        .execute(0)
        .sync();
    let answers = client.ask(&batch).await?;
    expect(&answers, "1 2 C(BEGIN) 1 2 T D C(SELECT 1) Z(T)")?;
    ensure!(value(&answers).as_deref() == Some("7"));
    // Shard 0 has not seen the statement: there is no such session in a transaction.
    none_left(
        cluster,
        0,
        "state LIKE 'idle in transaction%' AND query LIKE '%orders%'",
    )
    .await?;
    expect(&client.query("COMMIT").await?, "C(COMMIT) Z(I)")?;
    client
        .query("DELETE FROM orders WHERE tenant_id = 12 AND id = 1")
        .await?;
    Ok(())
}

async fn r017_a_query_and_a_batch_in_one_write_stay_in_order(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    const CLIENTS: usize = 10;
    const ROUNDS: usize = 100;
    let clients = (0..CLIENTS).map(|nth| async move {
        let mut client = connect(cluster).await?;
        let id = (1700 + nth).to_string();
        client
            .query(&format!("INSERT INTO orders VALUES (11, {id}, 0, '')"))
            .await?;
        let memo = "m".repeat(6000);
        let update = "WITH u AS (UPDATE orders SET qty = qty + 1, memo = $1 WHERE tenant_id = 11 \
                      AND id = $2 RETURNING qty, length(memo)) SELECT * FROM u";
        for round in 1..=ROUNDS {
            let batch = Batch::new()
                .query("DISCARD ALL")
                .parse("", update)
                .bind("", &[&memo, &id])
                .describe_portal()
                .execute(0)
                .sync();
            client.send(&batch.bytes).await?;
            expect(&client.until_ready().await?, "C(DISCARD ALL) Z(I)")?;
            let answers = client.until_ready().await?;
            expect(&answers, "1 2 T D C(SELECT 1) Z(I)")?;
            let qty = value(&answers);
            ensure!(qty == Some(round.to_string()), "{qty:?} in round {round}");
        }
        anyhow::Ok(())
    });
    try_join_all(clients).await?;
    let client = cluster.connect().await?;
    client
        .batch_execute("DELETE FROM orders WHERE tenant_id = 11 AND id BETWEEN 1700 AND 1799")
        .await?;
    Ok(())
}

async fn r018_many_executions_before_one_sync_do_not_stall(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    const PAIRS: usize = 5000;
    let mut batch = Batch::new().parse("r18", "SELECT repeat('x', 8192)");
    for _ in 0..PAIRS {
        batch = batch.bind("r18", &[]).execute(0);
    }
    let batch = batch.close("r18").sync();
    let mut taken = Vec::new();
    let before = resident_kb(cluster, 0)?;
    let mut peak = before;
    for login in [direct(cluster, 0)?, plain(cluster, 0)] {
        let client = Wire::connect(&login).await?;
        let began = Instant::now();
        let (mut reader, mut writer) = client.stream.into_split();
        let bytes = batch.bytes.clone().freeze();
        let writing = tokio::spawn(async move {
            tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes)
                .await
                .map(|()| writer)
        });
        let expected = 5 + PAIRS * (5 + (5 + 6 + 8192) + 5 + 9) + 5 + 6;
        let mut seen = 0;
        let mut buffer = vec![0; 1 << 16];
        while seen < expected {
            let read = tokio::io::AsyncReadExt::read(&mut reader, &mut buffer);
            let count = tokio::time::timeout(Duration::from_secs(30), read)
                .await
                .with_context(|| format!("stalled after {seen} of {expected} bytes"))??;
            ensure!(count > 0, "closed after {seen} of {expected} bytes");
            seen += count;
            peak = peak.max(resident_kb(cluster, 0)?);
        }
        ensure!(seen == expected, "{seen} bytes instead of {expected}");
        writing.await??;
        taken.push(began.elapsed());
    }
    ensure!(
        peak < before + 64 * 1024,
        "grew from {before} to {peak} KB for 40 MB of answers"
    );
    // Three times as long as a direct connection, on a machine that is busy otherwise.
    let bound = taken[0] * 3 + Duration::from_secs(10);
    ensure!(taken[1] < bound, "{:?} instead of {:?}", taken[1], taken[0]);
    Ok(())
}

async fn r019_several_statements_in_one_query(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let sql = "BEGIN; INSERT INTO orders VALUES (12, 1901, 5, 'm'); COMMIT";
    expect(
        &client.query(sql).await?,
        "C(BEGIN) C(INSERT 0 1) C(COMMIT) Z(I)",
    )?;
    ensure!(count(cluster, 1, "orders WHERE id = 1901").await? == 1);
    ensure!(count(cluster, 0, "orders WHERE id = 1901").await? == 0);
    expect(
        &client.query("SELECT 1; SELECT 2").await?,
        "T D C(SELECT 1) T D C(SELECT 1) Z(I)",
    )
}

async fn r020_commit_inside_a_query_keeps_what_came_before(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let sql = "INSERT INTO orders VALUES (11, 2001, 1, ''); COMMIT; \
               INSERT INTO orders VALUES (11, 2002, 1, ''); SELECT 1/0";
    let found = shape(&client.query(sql).await?);
    let without_warning = found.replace("N(25P01) ", "");
    ensure!(
        without_warning == "C(INSERT 0 1) C(COMMIT) C(INSERT 0 1) E(22012) Z(I)",
        "{found}"
    );
    ensure!(count(cluster, 0, "orders WHERE id = 2001").await? == 1);
    ensure!(count(cluster, 0, "orders WHERE id = 2002").await? == 0);
    let vacuum = client
        .query("/* pgdog_shard: 0 */ VACUUM orders; SELECT 1")
        .await?;
    expect(&vacuum, "E(25001) Z(I)")
}

async fn r021_a_failure_on_one_shard_rolls_back_both(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    client.query("BEGIN").await?;
    let one = client
        .query("INSERT INTO orders VALUES (11, 2101, 1, '')")
        .await?;
    expect(&one, "C(INSERT 0 1) Z(T)")?;
    let two = client
        .query("INSERT INTO orders VALUES (12, NULL, 1, '')")
        .await?;
    expect(&two, "E(23502) Z(E)")?;
    expect(&client.query("COMMIT").await?, "C(ROLLBACK) Z(I)")?;
    for shard in 0..2 {
        ensure!(count(cluster, shard, "orders WHERE id = 2101").await? == 0);
    }
    Ok(())
}

async fn r022_a_deferred_check_fails_at_commit(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    client.query("BEGIN").await?;
    let orphan = client.query("INSERT INTO children VALUES (11, 1)").await?;
    expect(&orphan, "C(INSERT 0 1) Z(T)")?;
    expect(&client.query("COMMIT").await?, "E(23503) Z(I)")?;
    let next = client
        .query("SELECT count(*) FROM children WHERE tenant_id = 11")
        .await?;
    expect(&next, "T D C(SELECT 1) Z(I)")?;
    ensure!(value(&next).as_deref() == Some("0"));
    // The same, where the transaction is that of the batch.
    let batch = Batch::new()
        .run("INSERT INTO children VALUES (11, 1)", &[])
        .sync();
    expect(
        &client.ask(&batch).await?,
        "1 2 C(INSERT 0 1) E(23503) Z(I)",
    )
}

async fn a_query_behind_a_batch_without_sync_is_answered(cluster: &Cluster) -> anyhow::Result<()> {
    let batch = Batch::new().run("SELECT $1::text", &["7"]);
    for batch in [
        batch.clone().query("SELECT 2"),
        batch.query("INSERT INTO orders VALUES (11, 9001, 1, ''); SELECT 1/0"),
    ] {
        let mut client = connect(cluster).await?;
        let mut reference = Wire::connect(&direct(cluster, 0)?).await?;
        let answers = shape(&client.ask(&batch).await?);
        let expected = shape(&reference.ask(&batch).await?);
        ensure!(answers == expected, "answered {answers}, not {expected}");
        expect(&client.query("SELECT 3").await?, "T D C(SELECT 1) Z(I)")?;
    }
    ensure!(count(cluster, 0, "orders WHERE id = 9001").await? == 0);
    Ok(())
}

async fn an_error_before_a_query_without_sync_skips_the_query(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let batch = Batch::new()
        .run("SELECT 1/0", &[])
        .query("INSERT INTO orders VALUES (11, 9002, 1, '')")
        .sync();
    let mut client = connect(cluster).await?;
    expect(&client.ask(&batch).await?, "1 E(22012) Z(I)")?;
    ensure!(count(cluster, 0, "orders WHERE id = 9002").await? == 0);
    Ok(())
}

async fn batches_of_any_mix_are_answered_as_by_postgresql(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let mut reference = Wire::connect(&direct(cluster, 0)?).await?;
    for (nth, batch) in mixes::all().iter().enumerate() {
        let ends = mixes::ends(batch);
        let mut found = Vec::new();
        let mut expected = Vec::new();
        client.send(&batch.bytes).await?;
        reference.send(&batch.bytes).await?;
        for _ in 0..ends {
            expected.extend(reference.until_ready().await?);
            let context = || format!("batch {nth}: expected {}", shape(&expected));
            found.extend(client.until_ready().await.with_context(context)?);
        }
        let (found, expected) = (shape(&found), shape(&expected));
        ensure!(
            found == expected,
            "batch {nth}: answered\n {found}, not\n {expected}"
        );
    }
    Ok(())
}

async fn a_portal_goes_on_where_it_stopped(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    for id in 0..5 {
        let sql = format!("INSERT INTO lines VALUES (12, {id}, 'x')");
        client.query(&sql).await?;
    }
    let sql = "SELECT id FROM lines WHERE tenant_id = $1 ORDER BY id";
    let open = Batch::new()
        .run("BEGIN", &[])
        .parse("", sql)
        .bind_portal("c", "", &["12"])
        .execute_portal("c", 2)
        .execute_portal("c", 1)
        .sync();
    expect(&client.ask(&open).await?, "1 2 C(BEGIN) 1 2 D D s D s Z(T)")?;
    let more = Batch::new().execute_portal("c", 0).sync();
    expect(&client.ask(&more).await?, "D D C(SELECT 2) Z(T)")?;
    expect(&client.query("COMMIT").await?, "C(COMMIT) Z(I)")?;
    // Portals end with their transaction.
    expect(&client.ask(&more).await?, "E(34000) Z(I)")
}

async fn a_function_call_runs_on_the_server_of_its_transaction(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    const PG_BACKEND_PID: u32 = 2026;
    const INT4_DIV: u32 = 154;
    let call = |oid: u32, arguments: &[i32]| {
        let mut body = oid.to_be_bytes().to_vec();
        body.extend([0, 1, 0, 1]); // one format code: binary
        body.extend((arguments.len() as u16).to_be_bytes());
        for argument in arguments {
            body.extend(4_u32.to_be_bytes());
            body.extend(argument.to_be_bytes());
        }
        body.extend([0, 1]); // result in binary
        Batch::new().message(b'F', &body)
    };
    let mut client = connect(cluster).await?;
    let alone = client.ask(&call(INT4_DIV, &[42, 6])).await?;
    expect(&alone, "V Z(I)")?;
    ensure!(alone[0].body[4..] == 7_i32.to_be_bytes());
    expect(
        &client.ask(&call(INT4_DIV, &[1, 0])).await?,
        "E(22012) Z(I)",
    )?;

    client.query("BEGIN").await?;
    let sql = "INSERT INTO orders VALUES (12, 9101, 1, '') RETURNING pg_backend_pid()";
    let pid: i32 = value(&client.query(sql).await?)
        .context("no pid")?
        .parse()?;
    let inside = client.ask(&call(PG_BACKEND_PID, &[])).await?;
    expect(&inside, "V Z(T)")?;
    ensure!(inside[0].body[4..] == pid.to_be_bytes());
    expect(
        &client.ask(&call(INT4_DIV, &[1, 0])).await?,
        "E(22012) Z(E)",
    )?;
    expect(
        &client.ask(&call(INT4_DIV, &[1, 1])).await?,
        "E(25P02) Z(E)",
    )?;
    expect(&client.query("ROLLBACK").await?, "C(ROLLBACK) Z(I)")?;
    wait_until("the row's end", Duration::from_secs(30), || async {
        let left = count(cluster, 1, "orders WHERE id = 9101").await?;
        Ok((left == 0).then_some(()))
    })
    .await
}
