//! Reads that only one server is concerned with go there and back in one piece. Nobody must be able
//! to tell, but by the clock.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{configure, direct, plain};
use pgdog_integration::wire::{Batch, Message, Wire, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};

/// A shim as it comes.
const WIDE: usize = 0;
/// A shim with a pool of one.
const NARROW: usize = 1;

const LIMIT: Duration = Duration::from_secs(60);

/// Rows of `numbers`.
const ROWS: u32 = 5000;

fn main() -> ExitCode {
    let shape = Shape::shards(1).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            answers_are_the_servers_own,
            settings_stay_with_their_client,
            an_older_statement_is_prepared_anew,
            a_cancel_reaches_the_read,
            a_lost_server_is_told_and_another_one_found,
            a_new_epoch_is_carried_by_the_next_read,
            what_ran_is_shown,
            a_floor_is_kept_where_there_is_one_node_only,
            a_guard_ahead_of_a_long_message_is_answered,
            what_was_prepared_keeps_its_settings_to_itself,
            a_seed_does_not_outlive_its_client,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = format!(
        "CREATE TABLE numbers (a int, b text);
         INSERT INTO numbers SELECT n, 'text ' || n FROM generate_series(1, {ROWS}) n;
         CREATE TABLE long (a text); INSERT INTO long SELECT repeat('x', 200000);
         CREATE TABLE nothing (a int); INSERT INTO nothing VALUES (0);
         CREATE TABLE changing (a int); INSERT INTO changing VALUES (1)"
    );
    for one in sql.split(';') {
        client.batch_execute(one).await.context(one.to_owned())?;
    }
    configure(cluster, NARROW, &["default_pool_size = 1"]).await
}

/// Right after a failover there is no replica, and not all that was acknowledged.
async fn a_floor_is_kept_where_there_is_one_node_only(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, WIDE)).await?;
    let sql = "SELECT b FROM numbers WHERE a = 7";
    wire.ask(&Batch::new().parse("named", sql).sync()).await?;
    let batches = [
        Batch::new().query(sql),
        unnamed(sql, &[]),
        run("named", &[]),
    ];
    for floor in [
        "SET pgdog.min_lsn = 'FFFFFFF/0'",
        "SET pgdog.min_lsn = '1/0@9'",
    ] {
        for batch in &batches {
            let found = shape(&wire.ask(batch).await?);
            ensure!(found.ends_with("C(SELECT 1) Z(I)"), "{found}");
        }
        wire.query(floor).await?;
        for batch in &batches {
            let found = shape(&wire.ask(batch).await?);
            ensure!(found.ends_with("E(58000) Z(I)"), "{floor}: {found}");
        }
        wire.query("RESET pgdog.min_lsn").await?;
    }
    Ok(())
}

/// What goes ahead of a message that is only begun is sent by itself, without its Sync.
async fn a_guard_ahead_of_a_long_message_is_answered(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, WIDE)).await?;
    let long = "x".repeat(3 << 20);
    let batch = Batch::new()
        .run("SELECT b FROM numbers WHERE a = 7", &[])
        .run("SELECT length($1)", &[&long])
        .sync();
    for (floor, expected) in [("FFFFFFF/0", "E(58000) Z(E)"), ("0/1", "C(SELECT 1) Z(T)")] {
        wire.query(&format!("SET pgdog.min_lsn = '{floor}'"))
            .await?;
        wire.query("BEGIN READ ONLY").await?;
        let found = shape(&wire.ask(&batch).await?);
        ensure!(found.ends_with(expected), "{floor}: {found}");
        wire.query("ROLLBACK").await?;
    }
    Ok(())
}

async fn what_was_prepared_keeps_its_settings_to_itself(cluster: &Cluster) -> anyhow::Result<()> {
    let mut one = Wire::connect(&plain(cluster, NARROW)).await?;
    for sql in [
        "BEGIN",
        "SET app.tenant = 'one'",
        "INSERT INTO nothing VALUES (2)",
    ] {
        one.query(sql).await?;
    }
    let found = shape(&one.query("PREPARE TRANSACTION 'short_way'").await?);
    ensure!(found == "C(PREPARE TRANSACTION) Z(I)", "{found}");
    let mut other = Wire::connect(&plain(cluster, NARROW)).await?;
    let asked = "SELECT coalesce(current_setting('app.tenant', true), '')";
    let found = value(&other.query(asked).await?);
    ensure!(found.as_deref() == Some(""), "{found:?}");
    let found = value(&one.query(asked).await?);
    ensure!(found.as_deref() == Some("one"), "{found:?}");
    let found = value(&other.query(asked).await?);
    ensure!(found.as_deref() == Some(""), "{found:?}");
    one.query("ROLLBACK PREPARED 'short_way'").await?;
    Ok(())
}

/// No reset takes it away, so the connection goes with its client.
async fn a_seed_does_not_outlive_its_client(cluster: &Cluster) -> anyhow::Result<()> {
    for last in ["SELECT 1", "BEGIN; SELECT 1"] {
        let mut one = Wire::connect(&plain(cluster, NARROW)).await?;
        one.query("SELECT setseed(0.5)").await?;
        let pid = value(&one.query("SELECT pg_backend_pid()").await?).context("no pid")?;
        one.query(last).await?;
        one.reset()?;
        let mut other = Wire::connect(&plain(cluster, NARROW)).await?;
        let next = value(&other.query("SELECT pg_backend_pid()").await?).context("no pid")?;
        ensure!(
            next != pid,
            "behind {last} the next client has the same server"
        );
    }
    Ok(())
}

/// A statement, described and run.
fn run(statement: &str, values: &[&str]) -> Batch {
    Batch::new()
        .bind(statement, values)
        .describe_portal()
        .execute(0)
        .sync()
}

/// As drivers send it that do not keep statements.
fn unnamed(sql: &str, values: &[&str]) -> Batch {
    let batch = Batch::new().parse("", sql).bind("", values);
    batch.describe_portal().execute(0).sync()
}

/// How many messages of a batch are answered with ReadyForQuery.
fn messages_of(batch: &Batch) -> usize {
    let mut rest = &batch.bytes[..];
    let mut count = 0;
    while let [tag, a, b, c, d, ..] = *rest {
        count += usize::from(matches!(tag, b'Q' | b'S'));
        rest = &rest[1 + u32::from_be_bytes([a, b, c, d]) as usize..];
    }
    count
}

/// Where an error was found in the server's source is not what it says.
fn same(one: &[Message], other: &[Message]) -> bool {
    let without_errors = |messages: &[Message]| {
        let said = messages.iter().filter(|message| message.tag != 'E');
        said.cloned().collect::<Vec<_>>()
    };
    shape(one) == shape(other) && without_errors(one) == without_errors(other)
}

async fn answers_are_the_servers_own(cluster: &Cluster) -> anyhow::Result<()> {
    let (few, all) = (
        "SELECT a, b FROM numbers WHERE a < 4",
        "SELECT a, b FROM numbers",
    );
    let (by_key, fails) = (
        "SELECT b FROM numbers WHERE a = $1",
        "SELECT 1 / a FROM nothing",
    );
    let batches = [
        Batch::new().query(few),
        Batch::new().query("SELECT a FROM numbers WHERE a < 0"),
        Batch::new().query(all),
        Batch::new().query("SELECT a FROM long"),
        Batch::new().query(fails),
        Batch::new().query("SELECT 1 / a, b FROM numbers, nothing"),
        Batch::new().query("SELECT 100 / (a - 400) FROM numbers"),
        Batch::new().query("SELECT nobody FROM numbers"),
        Batch::new().query("SELECT"),
        Batch::new().query("SELEC 1"),
        Batch::new().query(few).query("SELECT 2").query("SELECT 3"),
        unnamed(by_key, &["7"]),
        unnamed(by_key, &["8"]),
        unnamed(few, &[]),
        unnamed(by_key, &["9"]),
        run("", &["10"]),
        unnamed("SELECT nobody FROM numbers", &[]),
        run("", &["11"]),
        unnamed(by_key, &["no number"]),
        unnamed(by_key, &[]),
        unnamed(all, &[]),
        unnamed(fails, &[]),
        unnamed("SELECT a FROM long", &[]),
        Batch::new().run(by_key, &["12"]).sync(),
        Batch::new().parse("s", by_key).sync(),
        run("s", &["13"]),
        run("s", &["no number"]),
        run("s", &["14"]),
        Batch::new().bind("s", &["15"]).execute(0).sync(),
        Batch::new().bind("s", &["15"]).execute(1).sync(),
        run("t", &["16"]),
        Batch::new().close("s").sync(),
        run("s", &["17"]),
        Batch::new().query("BEGIN"),
        Batch::new().query(few),
        unnamed(fails, &[]),
        unnamed(few, &[]),
        Batch::new().query("ROLLBACK"),
        unnamed(few, &[]),
    ];
    let mut through = Wire::connect(&plain(cluster, WIDE)).await?;
    let mut around = Wire::connect(&direct(cluster, 0)?).await?;
    for (nth, batch) in batches.iter().enumerate() {
        through.send(&batch.bytes).await?;
        around.send(&batch.bytes).await?;
        for _ in 0..messages_of(batch) {
            let (answer, wanted) = (through.until_ready().await?, around.until_ready().await?);
            ensure!(
                same(&answer, &wanted),
                "batch {nth}: {} instead of {}",
                shape(&answer),
                shape(&wanted)
            );
        }
    }
    Ok(())
}

/// A read of what a setting is.
const WORK_MEM: &str = "SELECT setting FROM pg_settings WHERE name = 'work_mem'";

async fn settings_stay_with_their_client(cluster: &Cluster) -> anyhow::Result<()> {
    let mut one = Wire::connect(&plain(cluster, NARROW)).await?;
    let mut other = Wire::connect(&plain(cluster, NARROW)).await?;
    let before = value(&other.query(WORK_MEM).await?);
    one.query("SET work_mem = '7654kB'").await?;
    for _ in 0..3 {
        // Twice each: the second read finds the connection as it wants it.
        for _ in 0..2 {
            let own = value(&one.query(WORK_MEM).await?);
            ensure!(own.as_deref() == Some("7654"), "{own:?}");
        }
        for _ in 0..2 {
            let others = value(&other.ask(&unnamed(WORK_MEM, &[])).await?);
            ensure!(others == before, "{others:?} instead of {before:?}");
        }
    }
    Ok(())
}

async fn an_older_statement_is_prepared_anew(cluster: &Cluster) -> anyhow::Result<()> {
    let all = Batch::new().parse("all", "SELECT * FROM changing").sync();
    let mut one = Wire::connect(&plain(cluster, NARROW)).await?;
    one.ask(&all).await?;
    for _ in 0..2 {
        let answer = shape(&one.ask(&run("all", &[])).await?);
        ensure!(answer == "2 T D C(SELECT 1) Z(I)", "{answer}");
    }
    one.query("ALTER TABLE changing ADD b text").await?;
    let mut other = Wire::connect(&plain(cluster, NARROW)).await?;
    other.ask(&all).await?;
    for _ in 0..2 {
        let answer = other.ask(&run("all", &[])).await?;
        let columns = answer.get(1).map(|message| message.body[1]);
        ensure!(columns == Some(2), "{}", shape(&answer));
    }
    Ok(())
}

async fn a_cancel_reaches_the_read(cluster: &Cluster) -> anyhow::Result<()> {
    // It calls nothing, so it goes the short way, and takes longer than anybody waits.
    let endless = "SELECT 1 FROM numbers a, numbers b, numbers c, numbers d \
                   WHERE a.a + b.a + c.a + d.a = -1";
    let mut client = Wire::connect(&plain(cluster, WIDE)).await?;
    let node = cluster.primary(0).await?;
    for batch in [Batch::new().query(endless), unnamed(endless, &[])] {
        client.send(&batch.bytes).await?;
        let running = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = '{endless}'"
        );
        wait_until("the read runs", LIMIT, || async {
            Ok((node.value(&running).await? == "1").then_some(()))
        })
        .await?;
        let port = cluster.description().shims[WIDE].port;
        Wire::cancel(port, client.key, LIMIT).await?;
        let answer = shape(&client.until_ready().await?);
        ensure!(answer.ends_with("E(57014) Z(I)"), "{answer}");
    }
    let answer = shape(&client.query("SELECT a FROM nothing").await?);
    ensure!(answer == "T D C(SELECT 1) Z(I)", "{answer}");
    Ok(())
}

async fn a_lost_server_is_told_and_another_one_found(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, NARROW)).await?;
    let node = cluster.primary(0).await?;
    for batch in [Batch::new().query(WORK_MEM), unnamed(WORK_MEM, &[])] {
        client.ask(&batch).await?;
        // Whether it is noticed before the next read or by it: that one fails or not, and the one
        // behind it is served.
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                     WHERE usename = 'app'";
        node.value(ended).await?;
        let answer = shape(&client.ask(&batch).await?);
        ensure!(answer.ends_with("Z(I)"), "{answer}");
        let answer = shape(&client.ask(&batch).await?);
        ensure!(answer.ends_with("D C(SELECT 1) Z(I)"), "{answer}");
    }
    Ok(())
}

async fn a_new_epoch_is_carried_by_the_next_read(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, WIDE)).await?;
    let mut other = Wire::connect(&plain(cluster, NARROW)).await?;
    let read = "SELECT a FROM nothing WHERE a = 0";
    client.ask(&Batch::new().parse("s", read).sync()).await?;
    // Through another shim, so that this one cannot know.
    for declaration in [
        "SELECT pgdog.shard_table('nothing', 'a')",
        "SELECT pgdog.unshard_table('nothing')",
    ] {
        for batch in [Batch::new().query(read), unnamed(read, &[]), run("s", &[])] {
            let told = shape(&other.query(declaration).await?);
            let answer = shape(&client.ask(&batch).await?);
            ensure!(answer.ends_with("T D C(SELECT 1) Z(I)"), "{told}: {answer}");
        }
    }
    // With one shard every read is of all rows: it is held to the epoch of growth as well.
    let asked = "SELECT setting FROM pg_settings WHERE name = 'pgdog.fan_out'";
    let found = value(&client.query(asked).await?);
    ensure!(found.as_deref() == Some("on"), "{found:?}");
    Ok(())
}

async fn what_ran_is_shown(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&plain(cluster, WIDE)).await?;
    client.query("SELECT a FROM nothing").await?;
    let route = value(&client.query("SHOW pgdog.last_route").await?).unwrap_or_default();
    ensure!(
        route.contains("role=primary shard=0 reason=single shard"),
        "{route}"
    );
    let admin = cluster.admin(WIDE).await?;
    let totals = || async {
        let stats = admin.named_rows("SHOW STATS").await?;
        let of_all = |name: &str| {
            let values = stats
                .iter()
                .filter_map(|row| row.get(name)?.parse::<u64>().ok());
            values.sum::<u64>()
        };
        anyhow::Ok((of_all("total_query_count"), of_all("total_xact_count")))
    };
    let before = totals().await?;
    for _ in 0..10 {
        client.query("SELECT a FROM nothing").await?;
        client.ask(&unnamed("SELECT a FROM nothing", &[])).await?;
    }
    let after = totals().await?;
    ensure!(
        after.0 >= before.0 + 20 && after.1 >= before.1 + 20,
        "{before:?}, then {after:?}"
    );
    Ok(())
}
