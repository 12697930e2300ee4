//! Reads over several shards (R095, R104 to R106): one result of what all of
//! them find, the same as one database would give, or a refusal.
//!
//! Three shards. Beside them one plain database with the same rows, to compare with.

mod generated;
mod large;
mod meaning;

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use large::{a_cancelled_read_ends_on_every_shard, a_large_result_passes_through_in_order};
use meaning::*;
use pgdog_integration::client::{Client, Login};
use pgdog_integration::wire::{Batch, Wire, rows, shape};
use pgdog_integration::{Cluster, Shape, claims, fixture, suite};

fn main() -> ExitCode {
    suite::run(
        Shape::shards(3),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r095_rows_joined_with_an_omni_table_come_from_all_shards,
            r104_groups_are_those_of_all_shards,
            r105_order_and_limit_are_those_of_one_database,
            r106_empty_shards_count_for_nothing,
            generated_reads_give_what_one_database_gives,
            generated_reads_in_the_extended_protocol_too,
            the_extended_protocol_is_answered_message_by_message,
            what_cannot_be_merged_is_refused_with_its_reason,
            an_error_on_one_shard_ends_the_read_and_the_transaction,
            a_transaction_reads_what_it_wrote_on_all_shards,
            a_portal_runs_where_its_parameters_lead,
            a_name_in_group_by_means_what_postgresql_takes_it_for,
            a_statement_outlives_a_read_that_fails_behind_its_parse,
            an_executed_portal_does_not_give_its_rows_again,
            texts_in_another_encoding_are_ordered_by_the_database,
            a_floor_of_a_shard_that_is_not_there_is_refused,
            an_aggregate_of_a_user_is_not_taken_for_one_of_postgresql,
            a_large_result_passes_through_in_order,
            a_cancelled_read_ends_on_every_shard,
        ],
    )
}

/// Columns of the table that is compared.
const FACTS: &str = "(tenant_id bigint NOT NULL, id bigint, qty int, memo text, \
     icu text COLLATE \"en-x-icu\", amount numeric, f float8, at timestamptz, d date, iv interval, \
     u uuid, b bytea, ok bool, tags text[], PRIMARY KEY (tenant_id, id))";

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    fixture::create(cluster).await?;
    let client = cluster.connect().await?;
    let (facts, parts) = (
        format!("CREATE TABLE facts {FACTS}"),
        "CREATE TABLE parts (tenant_id bigint, id bigint, n int, sku text)",
    );
    for sql in [
        facts.as_str(),
        parts,
        "SELECT pgdog.shard_table('facts', 'tenant_id')",
        "SELECT pgdog.shard_table('parts', 'tenant_id')",
    ] {
        client.batch_execute(sql).await.context(sql.to_owned())?;
    }
    for sql in [
        "INSERT INTO orders VALUES (11, 1, 5, 'a')",
        "INSERT INTO orders VALUES (11, 2, NULL, 'b')",
        "INSERT INTO orders VALUES (13, 1, 7, 'a')",
        "INSERT INTO orders VALUES (12, 1, 5, 'a')",
        "INSERT INTO orders VALUES (12, 2, 1, 'c')",
        "INSERT INTO orders VALUES (14, 3, 9, NULL)",
    ] {
        client.batch_execute(sql).await.context(sql.to_owned())?;
    }
    let node = cluster.primary(0).await?;
    node.batch_execute("CREATE DATABASE one").await?;
    let one = Client::connect(&one(cluster)?).await?;
    for sql in [
        facts.as_str(),
        parts,
        "CREATE TABLE rates (code text PRIMARY KEY, pct numeric)",
        "INSERT INTO rates VALUES ('a', 1.5), ('b', 2.5)",
    ] {
        one.batch_execute(sql).await.context(sql.to_owned())?;
    }
    for sql in generated::inserts() {
        client.batch_execute(&sql).await.context(sql.clone())?;
        one.batch_execute(&sql).await.context(sql)?;
    }
    Ok(())
}

/// The login to the one database that has all rows.
fn one(cluster: &Cluster) -> anyhow::Result<Login> {
    Ok(Login {
        database: "one".to_owned(),
        ..fixture::direct(cluster, 0)?
    })
}

fn texts(rows: &[&[&str]]) -> Vec<Vec<String>> {
    let row = |row: &&[&str]| row.iter().map(|value| (*value).to_owned()).collect();
    rows.iter().map(row).collect()
}

async fn gives(client: &Client, sql: &str, expected: &[&[&str]]) -> anyhow::Result<()> {
    let found = client.rows(sql).await.with_context(|| sql.to_owned())?;
    ensure!(found == texts(expected), "{sql}: {found:?}");
    Ok(())
}

async fn r095_rows_joined_with_an_omni_table_come_from_all_shards(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = "SELECT o.tenant_id, o.id, r.pct FROM orders o LEFT JOIN rates r ON r.code = o.memo";
    let expected = texts(&[
        &["11", "1", "1.5"],
        &["11", "2", "2.5"],
        &["12", "1", "1.5"],
        &["12", "2", "NULL"],
        &["13", "1", "1.5"],
        &["14", "3", "NULL"],
    ]);
    for _ in 0..20 {
        let mut found = client.rows(sql).await?;
        found.sort();
        ensure!(found == expected, "{found:?}");
    }
    for (sql, shard) in [
        (
            "SELECT o.id FROM orders o JOIN rates r ON r.code = o.memo WHERE o.tenant_id = 11",
            "0",
        ),
        (
            "SELECT 1 FROM orders JOIN lines USING (tenant_id) WHERE tenant_id = 12",
            "1",
        ),
        (
            "SELECT 1 FROM orders o JOIN rates r ON o.tenant_id = 11 AND r.code = o.memo",
            "0",
        ),
    ] {
        client.rows(sql).await?;
        let route = client.value("SHOW pgdog.last_route").await?;
        ensure!(route.contains(&format!("shard={shard} ")), "{sql}: {route}");
    }
    client.rows(sql).await?;
    let route = client.value("SHOW pgdog.last_route").await?;
    ensure!(
        route.contains("node=all") && route.contains("shard=0..2"),
        "{route}"
    );
    let plan = client
        .rows(&format!("EXPLAIN (PGDOG) {sql} ORDER BY 1"))
        .await?;
    ensure!(
        plan[0][0] == "Target: all 3 shards, rows merged in their order",
        "{plan:?}"
    );
    Ok(())
}

async fn r104_groups_are_those_of_all_shards(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let mut found = client
        .rows("SELECT count(1), memo FROM orders GROUP BY memo")
        .await?;
    found.sort();
    let expected = texts(&[&["1", "NULL"], &["1", "b"], &["1", "c"], &["3", "a"]]);
    ensure!(found == expected, "{found:?}");
    let sql = "SELECT count(1), memo FROM orders GROUP BY 2 HAVING count(*) > 2";
    gives(&client, sql, &[&["3", "a"]]).await
}

async fn r105_order_and_limit_are_those_of_one_database(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = "SELECT qty, id FROM orders ORDER BY qty DESC NULLS LAST, id LIMIT 3 OFFSET 2";
    gives(&client, sql, &[&["5", "1"], &["5", "1"], &["1", "2"]]).await?;
    let sql = "SELECT tenant_id, id, qty FROM orders ORDER BY qty DESC NULLS LAST, id, tenant_id \
               LIMIT 3 OFFSET 2";
    let expected: &[&[&str]] = &[&["11", "1", "5"], &["12", "1", "5"], &["12", "2", "1"]];
    gives(&client, sql, expected).await?;
    let one = Client::connect(&one(cluster)?).await?;
    for order in [
        "SELECT qty AS x, tenant_id, id FROM facts ORDER BY x, tenant_id, id LIMIT 20",
        "SELECT tenant_id, id FROM facts ORDER BY qty * -2 NULLS FIRST, tenant_id, id LIMIT 20",
        "SELECT id FROM facts ORDER BY amount DESC, tenant_id, id OFFSET 5 LIMIT 20",
        "SELECT icu FROM facts ORDER BY icu, tenant_id, id",
        "SELECT id FROM facts ORDER BY memo COLLATE \"de-x-icu\" DESC, tenant_id, id LIMIT 50",
        "SELECT memo FROM facts ORDER BY memo COLLATE \"C\", tenant_id, id",
        "SELECT DISTINCT icu FROM facts ORDER BY icu DESC NULLS LAST LIMIT 4",
        "SELECT DISTINCT qty, ok FROM facts ORDER BY ok, qty",
        "SELECT icu, count(*) FROM facts GROUP BY icu ORDER BY icu",
        "SELECT max(icu), min(icu) FROM facts",
    ] {
        let found = client.rows(order).await.with_context(|| order.to_owned())?;
        let expected = one.rows(order).await?;
        ensure!(found == expected, "{order}: {found:?}, not {expected:?}");
    }
    let row = client
        .query("SELECT id FROM facts ORDER BY memo, qty LIMIT 1", &[])
        .await?;
    ensure!(row[0].len() == 1, "columns that nobody asked for");
    for (sql, code) in [
        ("SELECT id FROM orders ORDER BY id LIMIT -1", "2201W"),
        ("SELECT id FROM orders ORDER BY id OFFSET -1", "2201X"),
        ("SELECT DISTINCT id FROM orders ORDER BY qty", "42P10"),
        ("SELECT id FROM orders ORDER BY 2", "42P10"),
        ("SELECT nothing FROM orders", "42703"),
        ("SELECT id, count(*) FROM orders", "42803"),
    ] {
        if let Err(error) = client.refused(sql, code).await {
            ensure!(client.refused(sql, "0A000").await.is_ok(), "{error:#}");
        }
    }
    Ok(())
}

async fn r106_empty_shards_count_for_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let aggregates = "SELECT count(*), sum(qty), max(id), avg(qty) FROM orders";
    client.batch_execute("BEGIN").await?;
    for tenant in [12, 14] {
        let sql = format!("DELETE FROM orders WHERE tenant_id = {tenant}");
        client.batch_execute(&sql).await?;
    }
    // The values of the first shard: no other one has rows.
    let first: &[&[&str]] = &[&["3", "12", "2", "6.0000000000000000"]];
    gives(&client, aggregates, first).await?;
    for tenant in [11, 13] {
        let sql = format!("DELETE FROM orders WHERE tenant_id = {tenant}");
        client.batch_execute(&sql).await?;
    }
    gives(&client, aggregates, &[&["0", "NULL", "NULL", "NULL"]]).await?;
    client.batch_execute("ROLLBACK").await?;
    gives(
        &client,
        &format!("{aggregates} WHERE memo = 'b' OR tenant_id = 13"),
        &[&["2", "7", "2", "7.0000000000000000"]],
    )
    .await?;
    gives(
        &client,
        &format!("{aggregates} WHERE qty < 0"),
        &[&["0", "NULL", "NULL", "NULL"]],
    )
    .await?;
    gives(
        &client,
        "SELECT memo, count(*) FROM orders WHERE qty < 0 GROUP BY 1",
        &[],
    )
    .await?;
    gives(
        &client,
        "SELECT memo FROM orders WHERE qty < 0 ORDER BY id",
        &[],
    )
    .await
}

async fn generated_reads_give_what_one_database_gives(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let one = Client::connect(&one(cluster)?).await?;
    let queries = generated::queries(120);
    for query in &queries {
        let sql = &query.sql;
        let mut found = client.rows(sql).await.with_context(|| sql.clone())?;
        let mut expected = one.rows(sql).await.with_context(|| sql.clone())?;
        if !query.ordered {
            found.sort();
            expected.sort();
        }
        ensure!(found == expected, "{sql}: {found:?}, not {expected:?}");
    }
    println!("    {} reads, none refused", queries.len());
    Ok(())
}

async fn generated_reads_in_the_extended_protocol_too(cluster: &Cluster) -> anyhow::Result<()> {
    let mut ours = Wire::connect(&fixture::plain(cluster, 0)).await?;
    let mut theirs = Wire::connect(&one(cluster)?).await?;
    for query in generated::queries(60) {
        let binary = [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]; // no names, no parameters, all binary
        let batch = Batch::new()
            .parse("", &query.sql)
            .message(b'B', &binary)
            .message(b'D', b"P\0")
            .execute(0)
            .sync();
        let (ours, theirs) = (ours.ask(&batch).await?, theirs.ask(&batch).await?);
        let bodies = |messages: &[pgdog_integration::wire::Message]| {
            let rows = messages.iter().filter(|message| message.tag == 'D');
            let mut bodies: Vec<Vec<u8>> = rows.map(|row| row.body.to_vec()).collect();
            if !query.ordered {
                bodies.sort();
            }
            bodies
        };
        ensure!(bodies(&ours) == bodies(&theirs), "{}", query.sql);
        let end = |shape: String| shape.rsplit_once(" C(").map(|(_, end)| end.to_owned());
        ensure!(end(shape(&ours)) == end(shape(&theirs)), "{}", query.sql);
    }
    Ok(())
}

async fn the_extended_protocol_is_answered_message_by_message(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = Wire::connect(&fixture::plain(cluster, 0)).await?;
    let order = "SELECT id FROM orders WHERE qty > $1 ORDER BY qty DESC LIMIT $2 OFFSET $3";
    let batch = Batch::new()
        .parse("s", order)
        .describe("s")
        .bind("s", &["1", "2", "1"])
        .describe_portal()
        .execute(0)
        .close("s")
        .run("SELECT count(*) FROM orders WHERE qty > $1", &["4"])
        .run("SELECT 1 FROM orders WHERE tenant_id = 11", &[])
        .sync();
    let answers = client.ask(&batch).await?;
    let expected = "1 t T 2 T D D C(SELECT 2) 3 1 2 D C(SELECT 1) 1 2 D D C(SELECT 2) Z(I)";
    ensure!(shape(&answers) == expected, "{}", shape(&answers));
    let values = rows(&answers);
    ensure!(values[0][0].as_deref() == Some("1") && values[2][0].as_deref() == Some("4"));
    // Parameters of a LIMIT that is asked of nobody keep their types.
    let described = client
        .ask(&Batch::new().parse("", order).describe("").sync())
        .await?;
    ensure!(shape(&described) == "1 t T Z(I)", "{}", shape(&described));
    let portions = Batch::new()
        .parse("", "SELECT id FROM orders")
        .bind("", &[])
        .execute(2)
        .sync();
    let answers = client.ask(&portions).await?;
    ensure!(
        shape(&answers).ends_with("E(0A000) Z(I)"),
        "{}",
        shape(&answers)
    );
    let negative = Batch::new().run(order, &["1", "-2", "0"]).sync();
    let answers = client.ask(&negative).await?;
    ensure!(
        shape(&answers).ends_with("E(2201W) Z(I)"),
        "{}",
        shape(&answers)
    );
    let two = client
        .query("SELECT id FROM orders WHERE id = 3; SELECT count(*) FROM orders")
        .await?;
    ensure!(
        shape(&two) == "T D C(SELECT 1) T D C(SELECT 1) Z(I)",
        "{}",
        shape(&two)
    );
    Ok(())
}

async fn what_cannot_be_merged_is_refused_with_its_reason(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for (sql, why) in [
        ("SELECT * FROM orders o, lines l", "belong together"),
        ("SELECT rank() OVER (ORDER BY id) FROM orders", "rank"),
        ("SELECT sum(id) OVER () FROM orders", "window"),
        (
            "SELECT count(DISTINCT id) FROM orders",
            "all rows of a group",
        ),
        (
            "SELECT id FROM orders UNION SELECT id FROM lines",
            "set operation",
        ),
        (
            "SELECT * FROM rates LEFT JOIN orders ON code = memo",
            "outer join",
        ),
        ("EXPLAIN SELECT * FROM orders", "only the rows of a SELECT"),
        ("SELECT DISTINCT tags FROM facts", "array"),
    ] {
        let error = client.refused(sql, "0A000").await?;
        let error = error.as_db_error().context("no answer of a server")?;
        let said = format!("{} {}", error.message(), error.detail().unwrap_or_default());
        ensure!(said.contains(why), "{sql}: {said}");
    }
    // Nothing of it stays behind.
    gives(&client, "SELECT count(*) FROM orders", &[&["6"]]).await
}

async fn an_error_on_one_shard_ends_the_read_and_the_transaction(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    // Only tenant 14 divides by zero.
    let sql = "SELECT 1 / (id - 3) FROM orders";
    for _ in 0..5 {
        client.refused(sql, "22012").await?;
        gives(&client, "SELECT count(*) FROM orders", &[&["6"]]).await?;
    }
    for sql in [
        sql.to_owned(),
        format!("{sql} ORDER BY qty"),
        "SELECT sum(1/(id-3)) FROM orders".to_owned(),
    ] {
        client
            .batch_execute("BEGIN; SELECT count(*) FROM orders")
            .await?;
        client.refused(&sql, "22012").await?;
        client.refused("SELECT 1", "25P02").await?;
        let ended = client.rows("COMMIT").await;
        ensure!(ended.is_ok());
        gives(&client, "SELECT count(*) FROM orders", &[&["6"]]).await?;
    }
    Ok(())
}

async fn a_transaction_reads_what_it_wrote_on_all_shards(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let count = "SELECT count(*), sum(qty) FROM lines l JOIN orders o USING (tenant_id, id)";
    client.batch_execute("BEGIN").await?;
    for tenant in [11, 12] {
        let sql = format!("INSERT INTO lines VALUES ({tenant}, 1, 'x')");
        client.batch_execute(&sql).await?;
    }
    gives(&client, count, &[&["2", "10"]]).await?;
    client.batch_execute("SAVEPOINT s").await?;
    client
        .refused("SELECT 1 / (id - 3) FROM orders ORDER BY 1", "22012")
        .await?;
    client.batch_execute("ROLLBACK TO s").await?;
    gives(&client, count, &[&["2", "10"]]).await?;
    client.batch_execute("ROLLBACK").await?;
    gives(&client, count, &[&["0", "NULL"]]).await
}

async fn a_portal_runs_where_its_parameters_lead(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&fixture::plain(cluster, 0)).await?;
    for tenant in ["11", "12", "13", "14"] {
        let sql = "SELECT tenant_id FROM orders WHERE tenant_id = $1";
        client.query("BEGIN").await?;
        let bound = Batch::new()
            .parse("", sql)
            .bind_portal("p", "", &[tenant])
            .sync();
        let answers = client.ask(&bound).await?;
        ensure!(shape(&answers) == "1 2 Z(T)", "{}", shape(&answers));
        let answers = client
            .ask(&Batch::new().execute_portal("p", 0).sync())
            .await?;
        let found = rows(&answers);
        ensure!(
            !found.is_empty() && found[0][0].as_deref() == Some(tenant),
            "{found:?}"
        );
        client.query("COMMIT").await?;
    }
    client.query("BEGIN").await?;
    let all = Batch::new()
        .parse("", "SELECT id FROM orders")
        .bind_portal("p", "", &[])
        .sync();
    let answers = client.ask(&all).await?;
    ensure!(
        shape(&answers).ends_with("E(0A000) Z(E)"),
        "{}",
        shape(&answers)
    );
    client.query("ROLLBACK").await?;
    Ok(())
}
