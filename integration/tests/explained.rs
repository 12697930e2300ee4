//! EXPLAIN (PGDOG) and `pgdog route`: where any statement would go, and nothing runs.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use pgdog_integration::client::{Client, sqlstate};
use pgdog_integration::fixture::create;
use pgdog_integration::{Cluster, Shape, claims, suite};
use tokio_postgres::types::Type;

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2),
        ("prepare", |cluster| Box::pin(create(cluster))),
        claims![
            every_kind_of_statement_is_explained,
            what_state_decides_is_explained_by_it,
            parameters_lead_where_they_would,
            several_statements_are_not_prepared_as_one,
            what_would_be_refused_is_refused_in_the_same_words,
            nothing_that_is_explained_runs,
            rules_and_triggers_that_no_router_sees_are_refused,
        ],
    )
}

/// Where each goes.
const TARGETS: [(&str, &str); 41] = [
    ("BEGIN", "pgdog"),
    ("COMMIT", "pgdog; no server"),
    ("ROLLBACK", "pgdog; no server"),
    ("SAVEPOINT s", "pgdog; no server"),
    ("SET pgdog.shard = 1", "pgdog"),
    ("SET SERVER XACT TIMESTAMP '2026-01-01'", "pgdog"),
    ("SHOW pgdog.shard", "pgdog"),
    ("SELECT current_setting('pgdog.shard')", "pgdog"),
    ("DISCARD ALL", "pgdog"),
    ("EXPLAIN (PGDOG) SELECT 1", "pgdog"),
    ("DEALLOCATE ALL", "pgdog"),
    ("SET work_mem = '2MB'", "any shard"),
    ("RESET ALL", "any shard"),
    ("SHOW work_mem", "any shard"),
    ("SELECT 1", "any shard"),
    ("EXPLAIN SELECT 1", "any shard"),
    ("TABLE rates", "any shard"),
    ("COPY rates TO STDOUT", "any shard"),
    ("DECLARE c CURSOR FOR SELECT 1", "any shard"),
    ("FETCH ALL FROM c", "any shard"),
    ("CREATE TEMP TABLE scratch (a int)", "any shard"),
    ("LISTEN c", "shard 0"),
    ("DO $$ BEGIN RAISE NOTICE 'x'; END $$", "any shard"),
    ("CREATE TABLE x (a int)", "all 2 shards, shard 0 first"),
    (
        "CREATE TABLE x AS SELECT 1 AS a",
        "all 2 shards, shard 0 first",
    ),
    (
        "ALTER TABLE orders ADD x int",
        "all 2 shards, shard 0 first",
    ),
    (
        "GRANT SELECT ON rates TO PUBLIC",
        "all 2 shards, shard 0 first",
    ),
    ("VACUUM orders", "all 2 shards, one after the other"),
    (
        "CREATE INDEX CONCURRENTLY x ON orders (qty)",
        "all 2 shards, one after the other",
    ),
    (
        "COPY orders FROM STDIN",
        "all 2 shards, each row to the shard of its key",
    ),
    ("COPY rates FROM STDIN", "all 2 shards, shard 0 first"),
    ("TRUNCATE rates", "all 2 shards, shard 0 first"),
    ("DELETE FROM rates", "all 2 shards, shard 0 first"),
    (
        "SELECT pgdog.unshard_table('rates')",
        "all 2 shards, shard 0 first",
    ),
    (
        "SELECT * FROM orders",
        "all 2 shards, rows put side by side",
    ),
    (
        "SELECT * FROM orders ORDER BY qty",
        "all 2 shards, rows merged in their order",
    ),
    ("SELECT count(*) FROM orders", "all 2 shards, rows "),
    (
        "UPDATE orders SET qty = 1",
        "all 2 shards, one after the other",
    ),
    ("SELECT * FROM orders WHERE tenant_id = 12", "shard 1"),
    ("DELETE FROM orders WHERE tenant_id = 11", "shard 0"),
    ("INSERT INTO orders VALUES (12, 9, 9, 'x')", "shard 1"),
];

/// The first line of the answer, without its name.
async fn target(client: &Client, sql: &str) -> anyhow::Result<String> {
    let explain = format!("EXPLAIN (PGDOG) {sql}");
    let lines = client.rows(&explain).await.context(explain)?;
    let first = lines.into_iter().flatten().next().unwrap_or_default();
    let target = first.strip_prefix("Target: ");
    Ok(target
        .with_context(|| format!("{sql}: {first}"))?
        .to_owned())
}

async fn explained(client: &Client, sql: &str, expected: &str) -> anyhow::Result<()> {
    let found = target(client, sql).await?;
    ensure!(found.starts_with(expected), "{sql}: {found}");
    Ok(())
}

async fn every_kind_of_statement_is_explained(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for (sql, expected) in TARGETS {
        explained(&client, sql, expected).await?;
    }
    Ok(())
}

async fn what_state_decides_is_explained_by_it(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let prepare = "PREPARE p AS SELECT * FROM orders WHERE tenant_id = $1";
    explained(&client, prepare, "shard ").await?;
    client.batch_execute(prepare).await?;
    explained(&client, "EXECUTE p(12)", "shard 1").await?;
    explained(&client, "EXECUTE p(11)", "shard 0").await?;
    explained(&client, "DEALLOCATE p", "pgdog").await?;
    client.batch_execute("EXECUTE p(12)").await?;
    client.batch_execute("BEGIN").await?;
    let read = "SELECT count(*) FROM orders WHERE tenant_id = 12";
    client.batch_execute(read).await?;
    explained(&client, "COMMIT", "shard 1").await?;
    explained(&client, "SELECT 1", "any shard (home: 1)").await?;
    client
        .batch_execute("DECLARE c CURSOR FOR SELECT * FROM orders WHERE tenant_id = 12")
        .await?;
    explained(&client, "FETCH ALL FROM c", "shard 1").await?;
    let read = "SELECT count(*) FROM orders WHERE tenant_id = 11";
    client.batch_execute(read).await?;
    explained(&client, "ROLLBACK", "shards 0, 1").await?;
    client.batch_execute("ROLLBACK").await?;
    Ok(())
}

async fn parameters_lead_where_they_would(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = "EXPLAIN (PGDOG) DELETE FROM orders WHERE tenant_id = $1";
    let explain = client.prepare_typed(sql, &[Type::INT8]).await?;
    for (tenant, expected) in [(11_i64, "Target: shard 0"), (12, "Target: shard 1")] {
        let rows = client.query(&explain, &[&tenant]).await?;
        let first: &str = rows.first().context("no rows")?.get(0);
        ensure!(first == expected, "{tenant}: {first}");
    }
    // Types that nobody has named are not needed.
    let create = client
        .prepare("EXPLAIN (PGDOG) CREATE TABLE x (a int)")
        .await?;
    let rows = client.query(&create, &[]).await?;
    let first: &str = rows.first().context("no rows")?.get(0);
    ensure!(first == "Target: all 2 shards, shard 0 first", "{first}");
    Ok(())
}

async fn several_statements_are_not_prepared_as_one(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "EXPLAIN (PGDOG) SELECT 1; DELETE FROM orders",
        "SHOW pgdog.shard; SELECT 1",
        "BEGIN; SELECT 1",
        "SELECT 1; SELECT 2",
        "DELETE FROM rates; SELECT 1",
    ] {
        let error = client.prepare(sql).await.err();
        let error = error.with_context(|| format!("{sql} is not refused"))?;
        ensure!(sqlstate(&error) == "42601", "{sql}: {error}");
    }
    ensure!(client.value("SELECT 1").await? == "1");
    Ok(())
}

async fn what_would_be_refused_is_refused_in_the_same_words(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "INSERT INTO orders (id, qty) VALUES (1, 1)",
        "SELECT * FROM nowhere",
        "EXECUTE unknown",
        "COMMIT PREPARED 'x'",
        "SELECT count(*) OVER () FROM orders",
        "UPDATE orders SET tenant_id = 12 WHERE tenant_id = 11",
    ] {
        let mut errors = Vec::new();
        for sql in [sql.to_owned(), format!("EXPLAIN (PGDOG) {sql}")] {
            let error = client.batch_execute(&sql).await.err();
            let error = error.with_context(|| format!("{sql} is not refused"))?;
            let error = error.as_db_error().context("not an error of a server")?;
            errors.push((error.code().clone(), error.message().to_owned()));
        }
        ensure!(errors[0] == errors[1], "{sql}: {errors:?}");
    }
    Ok(())
}

async fn nothing_that_is_explained_runs(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO orders VALUES (11, 77, 1, 'x')")
        .await?;
    for sql in [
        "DELETE FROM orders WHERE tenant_id = 11",
        "SET pgdog.shard = 1",
        "BEGIN",
        "CREATE TABLE unmade (a int)",
    ] {
        target(&client, sql).await?;
    }
    ensure!(client.value("SHOW pgdog.shard").await? == "");
    let text = "DELETE FROM orders WHERE tenant_id = 11; \
                /* pgdog_shard: 1 */ SELECT 1; CREATE TABLE unmade (a int)";
    let d = cluster.description();
    let program = std::env::var("PGDOG_BIN").context("PGDOG_BIN is not set")?;
    let output = Command::new(program)
        .arg("--config")
        .arg(&d.config)
        .arg("--users")
        .arg(&d.users)
        .args(["route", "--sql", text])
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    let printed = String::from_utf8(output.stdout)?;
    let targets = printed.lines().filter(|line| line.starts_with("Target: "));
    let targets: Vec<_> = targets.collect();
    let expected = [
        "Target: shard 0",
        "Target: shard 1",
        "Target: all 2 shards, shard 0 first",
    ];
    ensure!(targets == expected, "{printed}");
    let count = "SELECT count(*) FROM orders WHERE tenant_id = 11 AND id = 77";
    ensure!(client.value(count).await? == "1");
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        let made = node.value("SELECT to_regclass('unmade') IS NULL").await?;
        ensure!(made == "t", "shard {shard}: {made}");
    }
    Ok(())
}

async fn rules_and_triggers_that_no_router_sees_are_refused(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE books (id bigint PRIMARY KEY, t text)",
        "CREATE TABLE audit (tenant_id bigint, t text)",
        "SELECT pgdog.omni_table('books')",
        "SELECT pgdog.shard_table('audit', 'tenant_id')",
        "CREATE RULE also AS ON INSERT TO books DO ALSO INSERT INTO audit VALUES (NEW.id, NEW.t)",
        "CREATE RULE other AS ON UPDATE TO audit DO INSTEAD UPDATE books SET t = NEW.t",
        "CREATE FUNCTION adds() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO audit VALUES (1, 'x'); RETURN NEW; END $$",
        "CREATE TRIGGER adds AFTER UPDATE ON books FOR EACH STATEMENT EXECUTE FUNCTION adds()",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    for sql in [
        "INSERT INTO books VALUES (1, 'x')",
        "UPDATE audit SET t = 'x' WHERE tenant_id = 1",
        "UPDATE books SET t = 'x'",
    ] {
        client.refused(sql, "0A000").await?;
    }
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        let rows = "SELECT (SELECT count(*) FROM books) + (SELECT count(*) FROM audit)";
        ensure!(node.value(rows).await? == "0", "shard {shard}");
    }
    client
        .batch_execute("DROP TABLE books, audit CASCADE")
        .await?;
    client.batch_execute("DROP FUNCTION adds()").await?;
    Ok(())
}
