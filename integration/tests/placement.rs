//! Placement by a lookup: which shard a key's rows are on, and what happens without an answer.
//!
//! Shown on two shards: rows are counted on the nodes directly.

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Client;
use pgdog_integration::fixture::plain;
use pgdog_integration::wire::{Batch, Wire, shape};
use pgdog_integration::{Cluster, Shape, claims, shop, suite};

fn main() -> ExitCode {
    let shape = Shape::shards(2);
    suite::run(
        shape,
        shop::SMALL,
        claims![
            tenants_live_where_the_map_says,
            prepared_statements_find_the_shard_from_their_parameter,
            a_tenant_without_a_row_is_refused_and_served_once_it_has_one,
            a_tenant_is_found_in_the_transaction_that_creates_it,
            a_null_key_is_refused,
            a_key_of_the_wrong_type_is_refused,
            a_statement_without_a_key_is_refused_not_guessed,
            a_transaction_on_two_shards_commits_on_both,
            what_code_wrote_on_a_lost_shard_is_missed,
            undeclared_tables_are_refused_with_a_hint,
            keys_of_every_type_are_placed_as_the_node_says,
            a_key_in_another_encoding_is_refused_not_guessed,
            node_refuses_direct_writes_of_ordinary_users,
        ],
    )
}

async fn on_shard(cluster: &Cluster, shard: u16, query: &str) -> anyhow::Result<String> {
    cluster.primary(shard).await?.value(query).await
}

async fn refused(client: &Client, sql: &str, code: &str) -> anyhow::Result<String> {
    let error = client.refused(sql, code).await?;
    client
        .batch_execute("SELECT 1")
        .await
        .context("the connection must live on")?;
    Ok(format!("{error:?}"))
}

async fn tenants_live_where_the_map_says(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for tenant in 1..=20 {
        let count = format!("SELECT count(*) FROM orders WHERE tenant_id = {tenant}");
        let home = u16::try_from(tenant % 2)?;
        ensure!(
            on_shard(cluster, home, &count).await? == "20",
            "tenant {tenant}"
        );
        ensure!(
            on_shard(cluster, 1 - home, &count).await? == "0",
            "tenant {tenant} is elsewhere"
        );
        ensure!(
            client.value(&count).await? == "20",
            "tenant {tenant} through the shim"
        );
        let port = client
            .value(&format!(
                "UPDATE orders SET memo = memo WHERE tenant_id = {tenant} AND id = 1 \
                 RETURNING current_setting('port')"
            ))
            .await?;
        ensure!(port == cluster.shard(home)?.primary.port.to_string());
    }
    Ok(())
}

async fn prepared_statements_find_the_shard_from_their_parameter(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = "SELECT count(*), max(current_setting('port')) FROM orders WHERE tenant_id = $1";
    let statement = client.prepare(sql).await?;
    for tenant in [1_i64, 2, 3, 4, 1, 2] {
        let row = client.query_one(&statement, &[&tenant]).await?;
        let home = u16::try_from(tenant % 2)?;
        ensure!(row.get::<_, i64>(0) == 20);
        let port: String = row.get(1);
        ensure!(
            port == cluster.shard(home)?.primary.port.to_string(),
            "tenant {tenant}: {port}"
        );
    }
    Ok(())
}

async fn a_tenant_without_a_row_is_refused_and_served_once_it_has_one(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let insert = "INSERT INTO orders (tenant_id, id, user_id, total_cents) VALUES (99, 1, 1, 5)";
    refused(&client, insert, "58000").await?;
    refused(
        &client,
        "SELECT * FROM orders WHERE tenant_id = 99",
        "58000",
    )
    .await?;
    client
        .batch_execute("INSERT INTO tenants VALUES (99, 'New', 'free', 1)")
        .await?;
    client.batch_execute(insert).await?;
    let count = "SELECT count(*) FROM orders WHERE tenant_id = 99";
    ensure!(on_shard(cluster, 1, count).await? == "1");
    ensure!(on_shard(cluster, 0, count).await? == "0");
    Ok(())
}

async fn a_tenant_is_found_in_the_transaction_that_creates_it(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("INSERT INTO tenants VALUES (98, 'Newer', 'free', 1)")
        .await?;
    client
        .batch_execute("INSERT INTO orders (tenant_id, id, user_id, total_cents) VALUES (98,1,1,5)")
        .await?;
    client.batch_execute("COMMIT").await?;
    let count = "SELECT count(*) FROM orders WHERE tenant_id = 98";
    ensure!(on_shard(cluster, 1, count).await? == "1");
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("INSERT INTO tenants VALUES (97, 'Never', 'free', 0)")
        .await?;
    client
        .batch_execute("INSERT INTO orders (tenant_id, id, user_id, total_cents) VALUES (97,1,1,5)")
        .await?;
    client.batch_execute("ROLLBACK").await?;
    refused(
        &client,
        "SELECT * FROM orders WHERE tenant_id = 97",
        "58000",
    )
    .await?;
    Ok(())
}

async fn a_null_key_is_refused(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = "INSERT INTO orders (tenant_id, id, user_id, total_cents) VALUES (NULL, 1, 1, 5)";
    ensure!(client.batch_execute(sql).await.is_err());
    let error = client
        .execute(
            "INSERT INTO orders (tenant_id, id, user_id, total_cents) VALUES ($1, 1, 1, 5)",
            &[&None::<i64>],
        )
        .await;
    ensure!(error.is_err(), "a NULL parameter was accepted");
    Ok(())
}

async fn a_key_of_the_wrong_type_is_refused(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    refused(
        &client,
        "SELECT * FROM orders WHERE tenant_id = 'abc'",
        "22P02",
    )
    .await?;
    let insert = "INSERT INTO orders (tenant_id, id, user_id, total_cents)";
    for key in ["99999999999999999999", "'1.5'", "true"] {
        let sql = format!("{insert} VALUES ({key}, 1, 1, 1)");
        ensure!(client.rows(&sql).await.is_err(), "{key} was accepted");
    }
    // No bigint equals it, so no row is the right answer, as PostgreSQL gives it.
    let rows = client
        .rows("SELECT * FROM orders WHERE tenant_id = 99999999999999999999")
        .await?;
    ensure!(rows.is_empty());
    Ok(())
}

async fn a_statement_without_a_key_is_refused_not_guessed(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    refused(&client, "SELECT string_agg(memo, ',') FROM orders", "0A000").await?;
    refused(&client, "UPDATE orders SET memo = now()::text", "0A000").await?;
    refused(
        &client,
        "DELETE FROM orders WHERE id = 1 RETURNING id",
        "0A000",
    )
    .await?;
    let two = "INSERT INTO orders (tenant_id, id, user_id, total_cents) \
               VALUES (1, 500, 1, 1), (2, 500, 1, 1)";
    refused(&client, two, "0A000").await?;
    for shard in 0..2 {
        let stray = "SELECT count(*) FROM orders WHERE id = 500 OR memo = 'all'";
        ensure!(on_shard(cluster, shard, stray).await? == "0");
    }
    Ok(())
}

async fn a_transaction_on_two_shards_commits_on_both(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    for tenant in [1, 2] {
        client
            .batch_execute(&format!(
                "UPDATE orders SET memo = 'both' WHERE tenant_id = {tenant} AND id = 2"
            ))
            .await?;
    }
    client.batch_execute("COMMIT").await?;
    for shard in 0..2 {
        let count = "SELECT count(*) FROM orders WHERE memo = 'both'";
        ensure!(
            on_shard(cluster, shard, count).await? == "1",
            "shard {shard}"
        );
    }
    Ok(())
}

/// No text shows that a function writes, less still when an operator calls it.
async fn what_code_wrote_on_a_lost_shard_is_missed(cluster: &Cluster) -> anyhow::Result<()> {
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        node.batch_execute(
            "CREATE TABLE seen (at int); GRANT ALL ON seen TO app;
             CREATE FUNCTION see(a bigint, b bigint) RETURNS int LANGUAGE sql VOLATILE
             AS 'INSERT INTO public.seen VALUES (1) RETURNING at';
             CREATE OPERATOR ### (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = see)",
        )
        .await?;
    }
    let client = cluster.connect().await?;
    let shards = "SELECT shard_id FROM tenants WHERE id = ";
    ensure!(
        client.value(&format!("{shards}1")).await? != client.value(&format!("{shards}2")).await?
    );
    let lost: u16 = client.value(&format!("{shards}1")).await?.parse()?;
    for read in [
        "SELECT see(id, id) FROM orders WHERE tenant_id = 1 AND id = 1",
        "SELECT id ### id FROM orders WHERE tenant_id = 1 AND id = 1",
    ] {
        client.batch_execute("BEGIN").await?;
        client.batch_execute(read).await?;
        let write = "UPDATE orders SET memo = 'lost' WHERE tenant_id = 2 AND id = 2";
        client.batch_execute(write).await?;
        let node = cluster.primary(lost).await?;
        let ended = "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity \
                     WHERE usename = 'app' AND state = 'idle in transaction'";
        ensure!(node.value(ended).await? == "1");
        ensure!(client.batch_execute("COMMIT").await.is_err(), "{read}");
        let left = on_shard(
            cluster,
            1 - lost,
            "SELECT count(*) FROM orders WHERE memo = 'lost'",
        );
        ensure!(left.await? == "0", "{read}");
    }
    Ok(())
}

async fn undeclared_tables_are_refused_with_a_hint(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("CREATE TABLE loose (id int)").await?;
    let said = refused(&client, "INSERT INTO loose VALUES (1)", "0A000").await?;
    ensure!(said.contains("omni_table"), "no hint: {said}");
    client
        .batch_execute("SELECT pgdog.omni_table('loose')")
        .await?;
    client.batch_execute("INSERT INTO loose VALUES (1)").await?;
    for shard in 0..2 {
        ensure!(on_shard(cluster, shard, "SELECT count(*) FROM loose").await? == "1");
    }
    Ok(())
}

async fn keys_of_every_type_are_placed_as_the_node_says(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let keys: [(&str, &str, Vec<String>); 3] = [
        (
            "by_number",
            "bigint",
            (-5..5)
                .map(|n| (n * 7_000_000_007_i64).to_string())
                .collect(),
        ),
        (
            "by_text",
            "varchar",
            (0..10).map(|n| format!("key-ü-{n}")).collect(),
        ),
        (
            "by_uuid",
            "uuid",
            (0..10)
                .map(|n| format!("00000000-0000-4000-8000-0000000000{n:02}"))
                .collect(),
        ),
    ];
    for (table, data_type, keys) in keys {
        client
            .batch_execute(&format!("CREATE TABLE {table} (k {data_type} PRIMARY KEY)"))
            .await?;
        client
            .batch_execute(&format!(
                "SELECT pgdog.shard_table('{table}', 'k', '{data_type}')"
            ))
            .await?;
        for key in &keys {
            client
                .batch_execute(&format!("INSERT INTO {table} VALUES ('{key}')"))
                .await?;
            let says = on_shard(
                cluster,
                0,
                &format!("SELECT pgdog.shard_for('{table}', '{key}')"),
            )
            .await?;
            let count = format!("SELECT count(*) FROM {table} WHERE k = '{key}'");
            let home: u16 = says.parse()?;
            ensure!(
                on_shard(cluster, home, &count).await? == "1",
                "{table} {key} not on {home}"
            );
            ensure!(
                on_shard(cluster, 1 - home, &count).await? == "0",
                "{table} {key}"
            );
            ensure!(
                client.value(&count).await? == "1",
                "{table} {key} through the shim"
            );
        }
        let on_first: usize = on_shard(cluster, 0, &format!("SELECT count(*) FROM {table}"))
            .await?
            .parse()?;
        ensure!(
            on_first > 0 && on_first < keys.len(),
            "{table}: {on_first} of {}",
            keys.len()
        );
    }
    Ok(())
}

/// Its hash would be that of other bytes than the server keeps.
async fn a_key_in_another_encoding_is_refused_not_guessed(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    for sql in [
        "CREATE TABLE words (word text PRIMARY KEY, note text)",
        "SELECT pgdog.shard_table('words', 'word', 'varchar')",
        "SET client_encoding TO 'LATIN1'",
    ] {
        let done = shape(&wire.query(sql).await?);
        ensure!(!done.contains("E("), "{sql}: {done}");
    }
    let refused: [(&[u8], &str); 4] = [
        (b"INSERT INTO words VALUES ('\xe9', '')", "0A000"),
        // By chance it is UTF-8, of another word.
        (b"INSERT INTO words VALUES ('\xc3\xa9', '')", "0A000"),
        (b"SET pgdog.sharding_key = '\xe9'", "22023"),
        (b"/* pgdog_sharding_key: \xe9 */ DELETE FROM words", "22023"),
    ];
    for (sql, code) in refused {
        let asked = Batch::new().message(b'Q', &[sql, b"\0"].concat());
        let answers = shape(&wire.ask(&asked).await?);
        let sql = sql.escape_ascii();
        ensure!(answers == format!("E({code}) Z(I)"), "{sql}: {answers}");
    }
    // Every shard looks for it by itself.
    let sql = b"UPDATE words SET note = 'x' WHERE word = '\xc3\xa9'\0";
    let done = shape(&wire.ask(&Batch::new().message(b'Q', sql)).await?);
    ensure!(done == "C(UPDATE 0) Z(I)", "{done}");
    let bound = Batch::new()
        .run("INSERT INTO words VALUES ($1, '')", &["é"])
        .sync();
    let answers = shape(&wire.ask(&bound).await?);
    ensure!(answers.contains("E(0A000)"), "{answers}");
    // What is no key may be anything.
    let sql = b"INSERT INTO words VALUES ('e', '\xe9')\0";
    let done = shape(&wire.ask(&Batch::new().message(b'Q', sql)).await?);
    ensure!(done == "C(INSERT 0 1) Z(I)", "{done}");
    let client = cluster.connect().await?;
    let note = client
        .value("SELECT note FROM words WHERE word = 'e'")
        .await?;
    ensure!(note == "é", "{note}");
    let mut words = 0;
    for shard in 0..2 {
        let count = on_shard(cluster, shard, "SELECT count(*) FROM words").await?;
        words += count.parse::<u32>()?;
    }
    ensure!(words == 1, "{words} words");
    Ok(())
}

async fn node_refuses_direct_writes_of_ordinary_users(cluster: &Cluster) -> anyhow::Result<()> {
    let mut login = cluster.login(0);
    login.port = cluster.shard(0)?.primary.port;
    let client = Client::connect(&login).await?;
    refused(
        &client,
        "UPDATE orders SET memo = 'x' WHERE tenant_id = 2",
        "55000",
    )
    .await?;
    refused(&client, "UPDATE plans SET title = 'x'", "55000").await?;
    ensure!(
        client.value("SELECT count(*) FROM plans").await? == "3",
        "reads are free"
    );
    Ok(())
}
