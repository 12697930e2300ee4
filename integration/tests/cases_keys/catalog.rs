//! What no text tells and the catalog does: types that make keys equal, functions, moved columns.

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{count, direct};
use pgdog_integration::wire::{Batch, Fields, Wire, rows, shape};
use pgdog_integration::{Cluster, wait_until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const UUID: &str = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";

/// Runs what must go well.
pub async fn done(client: &mut Wire, sql: &str) -> anyhow::Result<()> {
    let answers = client.query(sql).await?;
    ensure!(!shape(&answers).contains("E("), "{sql}: {}", told(&answers));
    Ok(())
}

/// What is told of what must be refused so.
pub async fn refused(client: &mut Wire, sql: &str, code: &str) -> anyhow::Result<String> {
    let answers = client.query(sql).await?;
    let found = shape(&answers);
    ensure!(
        found.ends_with(&format!("E({code}) Z(I)")),
        "{sql}: {found}"
    );
    Ok(told(&answers))
}

fn told(answers: &[pgdog_integration::wire::Message]) -> String {
    let error = answers.iter().find(|message| message.tag == 'E');
    error.map_or_else(String::new, |error| Fields::of(error).text())
}

/// Each spelling is stored, and found by all others exactly where PostgreSQL calls them equal.
pub async fn r124_keys_are_equal_exactly_when_postgresql_says_so(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = Wire::connect(&cluster.login(0)).await?;
    let mut node = Wire::connect(&direct(cluster, 0)?).await?;
    let upper = UUID.to_uppercase();
    let braced = format!("{{{UUID}}}");
    for (table, declared, data_type, spellings) in [
        (
            "numbers",
            "bigint",
            "bigint",
            &["0012", "12", "+12", "13"][..],
        ),
        ("names", "varchar", "varchar", &["ab", "AB", "ab "]),
        ("codes", "varchar(5)", "varchar", &["ab", "AB", "ab "]),
        ("ids", "uuid", "uuid", &[UUID, &upper, &braced]),
    ] {
        done(
            &mut client,
            &format!("CREATE TABLE {table} (k {declared}, v text)"),
        )
        .await?;
        let declare = format!("SELECT pgdog.shard_table('{table}', 'k', '{data_type}')");
        done(&mut client, &declare).await?;
        for spelling in spellings {
            let insert = format!("INSERT INTO {table} VALUES ('{spelling}', '{spelling}')");
            done(&mut client, &insert).await?;
        }
        for asked in spellings {
            let mut due = Vec::new();
            for stored in spellings {
                let equal = format!("SELECT '{stored}'::{declared} = '{asked}'::{declared}");
                if rows(&node.query(&equal).await?) == [[Some("t".to_owned())]] {
                    due.push(vec![Some((*stored).to_owned())]);
                }
            }
            due.sort();
            let read =
                format!("SELECT v FROM {table} WHERE k = '{asked}' ORDER BY v COLLATE \"C\"");
            let found = rows(&client.query(&read).await?);
            ensure!(found == due, "{read}: {found:?} instead of {due:?}");
            let read = read.replace(&format!("'{asked}'"), "$1");
            let batch = Batch::new().run(&read, &[asked]).sync();
            let found = rows(&client.ask(&batch).await?);
            ensure!(found == due, "{read} {asked}: {found:?} instead of {due:?}");
        }
    }
    let twelve = 12i64.to_be_bytes();
    let read = Batch::new()
        .parse("", "SELECT count(*) FROM numbers WHERE k = $1")
        .bind_binary("", &[Some(&twelve)])
        .execute(0)
        .sync();
    ensure!(rows(&client.ask(&read).await?) == [[Some("3".to_owned())]]);
    // What PostgreSQL would cut, or calls equal though the bytes differ, is no key.
    refused(
        &mut client,
        "INSERT INTO codes VALUES ('abc    ', 'x')",
        "22001",
    )
    .await?;
    done(&mut client, "CREATE TABLE padded (k char(5), v text)").await?;
    let declare = "SELECT pgdog.shard_table('padded', 'k', 'varchar')";
    let why = refused(&mut client, declare, "42804").await?;
    ensure!(why.contains("is not of type varchar"), "{why}");
    Ok(())
}

/// A function says nothing about the tables that it touches: it needs a shard.
pub async fn functions_of_users_need_a_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        "CREATE FUNCTION new_order(t bigint) RETURNS bigint LANGUAGE plpgsql AS \
         'BEGIN INSERT INTO orders VALUES (t, 124, 1, ''f''); RETURN t; END'",
        "CREATE FUNCTION orders_of(t bigint) RETURNS SETOF orders LANGUAGE sql STABLE AS \
         'SELECT * FROM orders WHERE tenant_id = t AND id = 124'",
        "CREATE FUNCTION add_rate(c text) RETURNS void LANGUAGE sql AS \
         'INSERT INTO rates VALUES (c, 1)'",
        "CREATE FUNCTION plus(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + 1'",
    ] {
        done(&mut client, sql).await.context(sql)?;
    }
    for sql in [
        "SELECT new_order(12)",
        "SELECT * FROM orders_of(12)",
        "SELECT add_rate('f')",
    ] {
        let why = refused(&mut client, sql, "0A000").await?;
        ensure!(why.contains("function"), "{sql}: {why}");
    }
    done(
        &mut client,
        "/* pgdog_sharding_key: 12 */ SELECT 1 FROM orders",
    )
    .await?;
    done(&mut client, "/* pgdog_shard: 1 */ SELECT new_order(12)").await?;
    let there = [
        count(cluster, 0, "orders WHERE id = 124").await?,
        count(cluster, 1, "orders WHERE id = 124").await?,
    ];
    ensure!(there == [0, 1], "{there:?}");
    let read = "/* pgdog_shard: 1 */ SELECT memo FROM orders_of(12)";
    ensure!(rows(&client.query(read).await?) == [[Some("f".to_owned())]]);
    let keyed = "SELECT plus(1), add_rate('f') FROM orders WHERE tenant_id = 12 AND id = 124";
    let why = refused(&mut client, keyed, "0A000").await?;
    ensure!(why.contains("omnisharded table \"rates\""), "{why}");
    for shard in 0..2 {
        ensure!(count(cluster, shard, "rates WHERE code = 'f'").await? == 0);
    }
    ensure!(rows(&client.query("SELECT plus(1), lower('A')").await?).len() == 1);
    done(
        &mut client,
        "DELETE FROM orders WHERE tenant_id = 12 AND id = 124",
    )
    .await
}

/// What one role makes in a schema of its own changes nothing for those who do not look there.
pub async fn functions_elsewhere_are_no_hindrance(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        "CREATE SCHEMA mine",
        "CREATE FUNCTION mine.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
         'SELECT clock_timestamp()'",
        "CREATE FUNCTION mine.count(text) RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 1::int8'",
    ] {
        done(&mut client, sql).await.context(sql)?;
    }
    refused(&mut client, "SELECT mine.now()", "0A000").await?;
    let mut other = Wire::connect(&cluster.login(0)).await?;
    for sql in ["SELECT now()", "SELECT count('a'), pg_catalog.now()"] {
        done(&mut other, sql).await?;
    }
    // Each shard would call it for itself, whichever is named.
    let write = "/* pgdog_shard: 0 */ INSERT INTO rates VALUES ('m', mine.count('a'))";
    let why = refused(&mut other, write, "0A000").await?;
    ensure!(why.contains("in a write to omnisharded table"), "{why}");
    for shard in 0..2 {
        ensure!(count(cluster, shard, "rates WHERE code = 'm'").await? == 0);
    }
    done(&mut client, "DROP FUNCTION mine.now(), mine.count(text)").await?;
    done(&mut client, "DROP SCHEMA mine").await
}

/// A key may be of a domain: what that is made of decides.
pub async fn keys_of_a_domain_are_keys_of_its_type(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        "CREATE DOMAIN whole AS bigint CHECK (VALUE > 0)",
        "CREATE DOMAIN short AS varchar(5)",
        "CREATE DOMAIN shorter AS short",
        "SELECT pgdog.shard_table('', 'whole_key')",
        "SELECT pgdog.shard_table('', 'short_key', 'varchar')",
        "CREATE TABLE wholes (whole_key whole, v text)",
        "CREATE TABLE shorts (short_key shorter, v text)",
        "INSERT INTO wholes VALUES (12, 'x')",
        "INSERT INTO shorts VALUES ('ab', 'x')",
    ] {
        done(&mut client, sql).await.context(sql)?;
    }
    let x = [[Some("x".to_owned())]];
    for read in [
        "SELECT v FROM wholes WHERE whole_key = 12",
        "SELECT v FROM shorts WHERE short_key = 'ab'",
    ] {
        ensure!(rows(&client.query(read).await?) == x, "{read}");
    }
    // It would be cut, and then be on another shard than the key that is given.
    let cut = "INSERT INTO shorts VALUES ('abc    ', 'x')";
    refused(&mut client, cut, "22001").await?;
    done(&mut client, "DROP TABLE wholes, shorts").await
}

/// Who is in a transaction loses it to a change of what the router knows, and to nothing else.
pub async fn definitions_that_are_no_news_disturb_nobody(cluster: &Cluster) -> anyhow::Result<()> {
    let mut changes = Wire::connect(&cluster.login(0)).await?;
    let body = "AS 'SELECT id FROM orders WHERE tenant_id = t'";
    let function = "FUNCTION ids_of(t bigint) RETURNS SETOF bigint LANGUAGE sql STABLE";
    for sql in [
        "CREATE TABLE others (tenant_id bigint, n int)",
        "ALTER TABLE others ADD CONSTRAINT small CHECK (n < 9) NOT VALID",
        "SELECT pgdog.shard_table('others', 'tenant_id')",
        &format!("CREATE {function} {body}"),
    ] {
        done(&mut changes, sql).await?;
    }
    let mut client = Wire::connect(&cluster.login(0)).await?;
    done(&mut client, "BEGIN").await?;
    let insert = "INSERT INTO orders VALUES (12, 140, 1, 'open')";
    ensure!(shape(&client.query(insert).await?).ends_with("Z(T)"));
    for sql in [
        &format!("CREATE OR REPLACE {function} {body}"),
        "ALTER TABLE others SET (fillfactor = 90)",
        "ALTER TABLE others VALIDATE CONSTRAINT small",
        "ALTER TABLE others ENABLE ROW LEVEL SECURITY",
    ] {
        done(&mut changes, sql).await?;
    }
    let update = "UPDATE orders SET memo = 'closed' WHERE tenant_id = 12 AND id = 140";
    ensure!(shape(&client.query(update).await?).ends_with("Z(T)"));
    done(&mut client, "COMMIT").await?;
    let read = "SELECT memo FROM orders WHERE tenant_id = 12 AND id = 140";
    ensure!(rows(&client.query(read).await?) == [[Some("closed".to_owned())]]);
    for sql in [
        "DELETE FROM orders WHERE tenant_id = 12 AND id = 140",
        "DROP FUNCTION ids_of(bigint)",
        "DROP TABLE others",
    ] {
        done(&mut changes, sql).await?;
    }
    Ok(())
}

/// The columns that COPY takes change behind the shim's back.
pub async fn copied_rows_follow_a_table_that_changed(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        "CREATE TABLE moved (a bigint, b bigint GENERATED ALWAYS AS (a + 1) STORED, k bigint)",
        "SELECT pgdog.shard_table('moved', 'k')",
        "INSERT INTO moved (a, k) VALUES (1, 1)",
    ] {
        done(&mut client, sql).await.context(sql)?;
    }
    for shard in 0..2 {
        let mut node = Wire::connect(&direct(cluster, shard)?).await?;
        done(
            &mut node,
            "ALTER TABLE moved ALTER COLUMN b DROP EXPRESSION",
        )
        .await?;
    }
    let data: String = (1..40)
        .map(|n| format!("{n}\t{}\t{}\n", n + 1, n * 7))
        .collect();
    let batch = Batch::new().query("COPY moved FROM STDIN");
    let batch = batch.copy_data(data.as_bytes()).copy_done();
    wait_until("the rows are copied", LIMIT, || async {
        let mut client = Wire::connect(&cluster.login(0)).await?;
        let found = shape(&client.ask(&batch).await?);
        // Until the shim knows of the change nothing is copied.
        Ok((found.contains("COPY 39")).then_some(()))
    })
    .await?;
    let mut all = 0;
    for shard in 0..2 {
        let strays = format!("moved WHERE pgdog.shard_for('moved', k::text) <> {shard}");
        ensure!(count(cluster, shard, &strays).await? == 0, "shard {shard}");
        all += count(cluster, shard, "moved").await?;
    }
    ensure!(all == 40, "{all} rows");
    Ok(())
}
