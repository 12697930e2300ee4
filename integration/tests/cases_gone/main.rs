//! Clients and servers that go; errors and notices as PostgreSQL sends them.

mod storm;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::fixture::{configure, count, create, direct, full_size, none_left, plain};
use pgdog_integration::wire::{Batch, Fields, Message, Wire, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};
use storm::{Leave, clients_that_vanish_at_random_points_leave_nothing};

/// A shim with a pool of one.
const NARROW: usize = 1;
/// A shim with a pool of five.
const FIVE: usize = 2;

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let shape = Shape::shards(2).shims(3);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r066_a_client_that_goes_in_a_transaction_frees_its_server,
            r067_clients_that_close_in_the_middle_disturb_nobody,
            r068_half_a_transaction_is_never_committed,
            r069_a_client_that_is_silent_in_a_transaction_is_sent_away,
            r070_errors_have_the_fields_of_a_direct_connection,
            r071_notices_come_before_their_completion_and_to_their_client_only,
            a_server_that_dies_in_a_statement_is_one_error,
            a_client_that_leaves_while_it_waits_leaves_the_queue,
            clients_that_vanish_at_random_points_leave_nothing,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    let client = cluster.connect().await?;
    for sql in [
        "ALTER TABLE orders ADD CONSTRAINT few CHECK (qty < 1000000)",
        "INSERT INTO orders VALUES (11, 1, 10, 'old')",
        "CREATE FUNCTION complain() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION \
         'no %', 'way' USING DETAIL = 'some detail', HINT = 'some hint', ERRCODE = 'P0777', \
         COLUMN = 'c', CONSTRAINT = 'k', DATATYPE = 'd', TABLE = 't', SCHEMA = 's'; END $$",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    configure(cluster, NARROW, &["default_pool_size = 1"]).await?;
    // Many clients for five connections: none of them is to be sent away for its patience.
    let five = [
        "default_pool_size = 5",
        "checkout_timeout = 120000",
        "connect_timeout = 120000",
        "client_idle_in_transaction_timeout = 1000",
    ];
    configure(cluster, FIVE, &five).await?;
    // Proofs of passwords take most of the time where nothing is optimised.
    configure(
        cluster,
        0,
        &[
            "auth_type = \"trust\"",
            "checkout_timeout = 120000",
            "connect_timeout = 120000",
        ],
    )
    .await
}

async fn r066_a_client_that_goes_in_a_transaction_frees_its_server(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    for leave in [Leave::Terminate, Leave::Close, Leave::Reset] {
        let mut first = Wire::connect(&plain(cluster, NARROW)).await?;
        first.query("BEGIN").await?;
        let update = "UPDATE orders SET memo = 'new' WHERE tenant_id = 11 AND id = 1";
        let found = shape(&first.query(update).await?);
        ensure!(found == "C(UPDATE 1) Z(T)", "{found}");
        leave.now(first).await?;
        let mut next = Wire::connect(&plain(cluster, NARROW)).await?;
        let select = "SELECT memo FROM orders WHERE tenant_id = 11 AND id = 1";
        let answers = next.query(select).await?;
        let memo = value(&answers).with_context(|| shape(&answers))?;
        ensure!(memo == "old", "{leave:?}: {memo}");
        let found = shape(&next.query("COMMIT").await?);
        ensure!(found == "N(25P01) C(COMMIT) Z(I)", "{found}");
        none_left(cluster, 0, "state LIKE 'idle in transaction%'").await?;
    }
    Ok(())
}

async fn r067_clients_that_close_in_the_middle_disturb_nobody(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    // At full size logging in takes most of the time.
    let leavers = if full_size() { 200 } else { 20 };
    let ended = Arc::new(AtomicBool::new(false));
    let others = (0..5).map(|nth| {
        let login = plain(cluster, FIVE);
        let ended = ended.clone();
        tokio::spawn(async move {
            let mut client = Wire::connect(&login).await?;
            let mut after = Vec::new();
            while after.len() < 100 {
                let done = ended.load(Ordering::Relaxed);
                let began = Instant::now();
                let sql = format!("/* pgdog_shard: 0 */ SELECT {nth}");
                let answers = client.query(&sql).await?;
                ensure!(
                    value(&answers) == Some(nth.to_string()),
                    "{}",
                    shape(&answers)
                );
                if done {
                    after.push(began.elapsed());
                }
            }
            after.sort();
            anyhow::Ok(after[98])
        })
    });
    let others: Vec<_> = others.collect();
    let leaving = (0..leavers).map(|_| async {
        let mut client = Wire::connect(&plain(cluster, FIVE)).await?;
        let sql = "/* pgdog_shard: 0 */ SELECT repeat('x', 1000000) FROM generate_series(1, 1000)";
        client.send(&Batch::new().query(sql).bytes).await?;
        let mut seen = 0;
        while seen < 1_000_000 {
            seen += client.read().await?.body.len();
        }
        anyhow::Ok(())
    });
    try_join_all(leaving).await?;
    ended.store(true, Ordering::Relaxed);
    for other in others {
        let p99 = other.await??;
        ensure!(p99 < Duration::from_secs(5), "a short query took {p99:?}");
    }
    none_left(cluster, 0, "state = 'active'").await?;
    let log = std::fs::read_to_string(cluster.dir().join(format!("shim-{FIVE}.log")))?;
    let errors = log.lines().filter(|line| line.contains("ERROR")).count();
    ensure!(errors == 0, "{errors} errors in the log");
    Ok(())
}

async fn r068_half_a_transaction_is_never_committed(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, 0)).await?;
    client.query("BEGIN").await?;
    let sql = "INSERT INTO orders VALUES (11, 6801, 1, '') RETURNING pg_backend_pid()";
    let pid = value(&client.query(sql).await?).context("no pid")?;
    end_backend(cluster, &pid).await?;
    let second = client
        .query("INSERT INTO orders VALUES (11, 6802, 1, '')")
        .await?;
    let error = second.iter().find(|m| m.tag == 'E').context("no error")?;
    let code = Fields::of(error).get('C').to_owned();
    ensure!(code.starts_with("57P") || code.starts_with("08"), "{code}");
    ensure!(shape(&second).ends_with("Z(E)"), "{}", shape(&second));
    let found = shape(&client.query("COMMIT").await?);
    ensure!(found == "E(40001) Z(I)", "{found}");
    ensure!(count(cluster, 0, "orders WHERE id IN (6801, 6802)").await? == 0);
    Ok(())
}

async fn r069_a_client_that_is_silent_in_a_transaction_is_sent_away(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, FIVE)).await?;
    client.query("BEGIN").await?;
    for _ in 0..2 {
        let answers = client
            .query("/* pgdog_shard: 0 */ SELECT pg_sleep(2)")
            .await?;
        let found = shape(&answers);
        ensure!(found == "T D C(SELECT 1) Z(T)", "{found}");
    }
    let found = shape(&client.query("COMMIT").await?);
    ensure!(found == "C(COMMIT) Z(I)", "{found}");
    client.query("BEGIN").await?;
    client
        .query("INSERT INTO orders VALUES (11, 6960, 1, '')")
        .await?;
    let error = client.read().await?;
    let fields = Fields::of(&error);
    ensure!(
        (error.tag, fields.get('C'), fields.get('V')) == ('E', "25P03", "FATAL"),
        "{}",
        fields.text()
    );
    ensure!(client.read().await.is_err(), "the connection stays open");
    none_left(cluster, 0, "state LIKE 'idle in transaction%'").await?;
    ensure!(count(cluster, 0, "orders WHERE id = 6960").await? == 0);
    Ok(())
}

async fn end_backend(cluster: &Cluster, pid: &str) -> anyhow::Result<()> {
    let node = cluster.primary(0).await?;
    node.value(&format!("SELECT pg_terminate_backend({pid}, 30000)"))
        .await?;
    Ok(())
}

async fn a_server_that_dies_in_a_statement_is_one_error(cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.primary(0).await?;
    for (id, sql) in [
        (
            6901,
            "INSERT INTO orders SELECT 11, 6901, 1, pg_sleep(600)::text",
        ),
        (6902, "/* pgdog_shard: 0 */ SELECT pg_sleep(600), 6902"),
    ] {
        let mut client = Wire::connect(&plain(cluster, 0)).await?;
        let asked = tokio::spawn(async move {
            let answers = client.query(sql).await?;
            anyhow::Ok((client, answers))
        });
        let find = format!(
            "SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE state = 'active' \
             AND pid <> pg_backend_pid() AND query LIKE '%{id}%'"
        );
        let pid = wait_until("the statement", LIMIT, || async {
            Ok(Some(node.value(&find).await?).filter(|pid| pid != "0"))
        })
        .await?;
        end_backend(cluster, &pid).await?;
        let (mut client, answers) = asked.await??;
        let found = shape(&answers);
        ensure!(found.ends_with("E(57P01) Z(I)"), "{found}");
        ensure!(found.matches('E').count() == 1, "{found}");
        let error = answers.iter().find(|m| m.tag == 'E').context("no error")?;
        ensure!(
            Fields::of(error).get('V') == "ERROR",
            "it is the server that ends"
        );
        // Not tried again on another connection.
        let still = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' \
             AND pid <> pg_backend_pid() AND query LIKE '%{id}%'"
        );
        ensure!(node.value(&still).await? == "0", "it runs again");
        let found = shape(&client.query("SELECT 1").await?);
        ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
    }
    ensure!(count(cluster, 0, "orders WHERE id = 6901").await? == 0);
    Ok(())
}

async fn a_client_that_leaves_while_it_waits_leaves_the_queue(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut holder = Wire::connect(&plain(cluster, NARROW)).await?;
    holder.query("BEGIN").await?;
    holder
        .query("SELECT * FROM orders WHERE tenant_id = 11")
        .await?;
    let mut client = Wire::connect(&plain(cluster, NARROW)).await?;
    let insert = Batch::new().query("INSERT INTO orders VALUES (11, 6950, 1, '')");
    client.send(&insert.bytes).await?;
    let admin = cluster.admin(NARROW).await?;
    let waiting = |wanted: bool| {
        let admin = &admin;
        move || async move {
            let clients = admin.rows("SHOW CLIENTS").await?;
            let waits = |row: &Vec<String>| row.iter().any(|value| value == "waiting");
            Ok((clients.iter().any(waits) == wanted).then_some(()))
        }
    };
    wait_until("a waiting client", LIMIT, waiting(true)).await?;
    drop(client);
    wait_until("its end", LIMIT, waiting(false)).await?;
    holder.query("COMMIT").await?;
    ensure!(count(cluster, 0, "orders WHERE id = 6950").await? == 0);
    Ok(())
}

/// The fields that say what happened; where in the source it was raised is no part of it.
fn fields_of(messages: &[Message], tag: char) -> Vec<Fields> {
    let chosen = messages.iter().filter(|message| message.tag == tag);
    chosen
        .map(|message| {
            let mut fields = Fields::of(message);
            fields.0.retain(|code, _| !"FLR".contains(*code));
            fields
        })
        .collect()
}

async fn r070_errors_have_the_fields_of_a_direct_connection(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, 0)).await?;
    let mut reference = Wire::connect(&direct(cluster, 0)?).await?;
    let queries = [
        "SELECT bool 'zz'",
        "INSERT INTO orders VALUES (11, 7001, 1000000, '')",
        "/* pgdog_shard: 0 */ SELECT complain()",
        "INSERT INTO orders VALUES (11, 1, 1, '')",
        "INSERT INTO rates VALUES ('new', 1), ('a', 1)",
        "BEGIN; SELECT 'ä', nowhere FROM orders WHERE tenant_id = 11",
        "ROLLBACK",
        "/* ä */ SELECT 1; SELECT nowhere",
        "SELECT 1 FROM",
    ];
    for sql in queries {
        let simple = client.query(sql).await?;
        let expected = reference.query(sql).await?;
        let (found, wanted) = (fields_of(&simple, 'E'), fields_of(&expected, 'E'));
        ensure!(found == wanted, "{sql}: {found:?} instead of {wanted:?}");
        reference.query("ROLLBACK").await?;
        client.query("ROLLBACK").await?;
        if sql.contains(';') || sql == "ROLLBACK" {
            continue;
        }
        let batch = Batch::new().run(sql, &[]).sync();
        let found = fields_of(&client.ask(&batch).await?, 'E');
        let wanted = fields_of(&reference.ask(&batch).await?, 'E');
        ensure!(found == wanted, "{sql}: {found:?} instead of {wanted:?}");
    }
    Ok(())
}

async fn r071_notices_come_before_their_completion_and_to_their_client_only(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, NARROW)).await?;
    let mut other = Wire::connect(&plain(cluster, NARROW)).await?;
    let mut reference = Wire::connect(&direct(cluster, 0)?).await?;
    let raise = "/* pgdog_shard: 0 */ DO $$ BEGIN RAISE NOTICE 'one' USING HINT = 'h'; \
                 RAISE WARNING 'two' USING DETAIL = 'd'; END $$";
    for sql in ["DROP TABLE IF EXISTS no_such", raise] {
        for batch in [
            Batch::new().query(sql),
            Batch::new().run(sql, &[]).sync(),
            Batch::new().run(sql, &[]).run("SELECT 1", &[]).sync(),
        ] {
            let found = client.ask(&batch).await?;
            let expected = reference.ask(&batch).await?;
            ensure!(
                shape(&found) == shape(&expected),
                "{sql}: {} instead of {}",
                shape(&found),
                shape(&expected)
            );
            ensure!(fields_of(&found, 'N') == fields_of(&expected, 'N'), "{sql}");
            let quiet = shape(&other.query("/* pgdog_shard: 0 */ SELECT 1").await?);
            ensure!(quiet == "T D C(SELECT 1) Z(I)", "{quiet}");
        }
    }
    Ok(())
}
