//! What a client of PostgreSQL does, through the shim: transactions, savepoints, prepared
//! statements, COPY, types, cancel, settings.
//!
//! Shown on one shard with a replica, with more clients than server connections.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use futures_util::{SinkExt as _, StreamExt as _, pin_mut};
use pgdog_integration::client::{Client, Login, describe, sqlstate};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};
use tokio_postgres::NoTls;

fn main() -> ExitCode {
    let shape = Shape::shards(1).replicas(1);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            a_wrong_password_is_28p01_and_an_unknown_database_3d000,
            a_transaction_is_atomic_and_visible_after_commit,
            an_error_in_a_transaction_needs_a_rollback,
            savepoints_nest,
            several_statements_in_one_message_are_one_transaction,
            prepared_statements_survive_a_change_of_server_connection,
            errors_keep_their_fields,
            types_travel_in_binary,
            copy_goes_both_ways,
            a_failed_copy_leaves_a_usable_connection,
            a_setting_belongs_to_its_client,
            cancel_ends_the_running_statement_only,
            many_clients_share_few_connections,
            a_client_that_vanishes_in_a_transaction_leaves_nothing,
            empty_queries_and_row_limits_work,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE items (id bigint PRIMARY KEY, body text, data bytea)")
        .await?;
    client
        .batch_execute("CREATE TABLE copies (id bigint PRIMARY KEY, body text)")
        .await?;
    Ok(())
}

async fn count(cluster: &Cluster, condition: &str) -> anyhow::Result<String> {
    let node = cluster.primary(0).await?;
    node.value(&format!("SELECT count(*) FROM items WHERE {condition}"))
        .await
}

async fn a_wrong_password_is_28p01_and_an_unknown_database_3d000(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let wrong = Login {
        password: "wrong".to_owned(),
        ..cluster.login(0)
    };
    refused_login(&wrong, "28P01").await?;
    let unknown = Login {
        database: "nope".to_owned(),
        ..cluster.login(0)
    };
    refused_login(&unknown, "3D000").await
}

async fn refused_login(login: &Login, code: &str) -> anyhow::Result<()> {
    let error = Client::connect(login).await.err().context("let in")?;
    let error = error
        .downcast_ref::<tokio_postgres::Error>()
        .context("not a server's error")?;
    ensure!(sqlstate(error) == code, "{}", describe(error));
    Ok(())
}

async fn a_transaction_is_atomic_and_visible_after_commit(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = tokio_client(cluster).await?;
    let transaction = client.transaction().await?;
    transaction
        .execute("INSERT INTO items (id) VALUES (1), (2)", &[])
        .await?;
    ensure!(
        count(cluster, "id IN (1, 2)").await? == "0",
        "seen before the commit"
    );
    transaction.commit().await?;
    ensure!(count(cluster, "id IN (1, 2)").await? == "2");
    let transaction = client.transaction().await?;
    transaction.execute("DELETE FROM items", &[]).await?;
    transaction.rollback().await?;
    ensure!(count(cluster, "id IN (1, 2)").await? == "2");
    Ok(())
}

async fn tokio_client(cluster: &Cluster) -> anyhow::Result<tokio_postgres::Client> {
    let login = cluster.login(0);
    let (client, connection) = tokio_postgres::Config::new()
        .host("127.0.0.1")
        .port(login.port)
        .user(&login.user)
        .password(&login.password)
        .dbname(&login.database)
        .connect(NoTls)
        .await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn an_error_in_a_transaction_needs_a_rollback(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    client.refused("SELECT 1/0", "22012").await?;
    client.refused("SELECT 1", "25P02").await?;
    client.batch_execute("ROLLBACK").await?;
    ensure!(client.value("SELECT 1").await? == "1");
    Ok(())
}

async fn savepoints_nest(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = tokio_client(cluster).await?;
    let mut outer = client.transaction().await?;
    outer
        .execute("INSERT INTO items (id) VALUES (10)", &[])
        .await?;
    let mut middle = outer.savepoint("middle").await?;
    middle
        .execute("INSERT INTO items (id) VALUES (11)", &[])
        .await?;
    let inner = middle.savepoint("innermost").await?;
    ensure!(
        inner
            .execute("INSERT INTO items (id) VALUES (10)", &[])
            .await
            .is_err()
    );
    inner.rollback().await?;
    middle
        .execute("INSERT INTO items (id) VALUES (12)", &[])
        .await?;
    middle.commit().await?;
    outer.commit().await?;
    ensure!(count(cluster, "id BETWEEN 10 AND 12").await? == "3");
    Ok(())
}

async fn several_statements_in_one_message_are_one_transaction(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let failed = client
        .batch_execute("INSERT INTO items (id) VALUES (20); INSERT INTO items (id) VALUES (20)")
        .await;
    ensure!(failed.is_err());
    ensure!(
        count(cluster, "id = 20").await? == "0",
        "half of the message was committed"
    );
    client
        .batch_execute("BEGIN; INSERT INTO items (id) VALUES (21); COMMIT; SELECT 1; SELECT 2")
        .await?;
    ensure!(count(cluster, "id = 21").await? == "1");
    Ok(())
}

async fn prepared_statements_survive_a_change_of_server_connection(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let clients = try_join_all((0..30).map(|_| cluster.connect())).await?;
    try_join_all(clients.iter().enumerate().map(|(n, client)| async move {
        let n = n as i64;
        let read = client.prepare("SELECT $1::bigint * 2").await?;
        let write = client
            .prepare("INSERT INTO items (id, body) VALUES ($1, $2)")
            .await?;
        for i in 0..10 {
            let row = client.query_one(&read, &[&(n * 100 + i)]).await?;
            ensure!(row.get::<_, i64>(0) == 2 * (n * 100 + i));
            client
                .execute(&write, &[&(100_000 + n * 100 + i), &"prepared"])
                .await?;
        }
        Ok(())
    }))
    .await?;
    ensure!(count(cluster, "body = 'prepared'").await? == "300");
    Ok(())
}

async fn errors_keep_their_fields(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("INSERT INTO items (id) VALUES (30)")
        .await?;
    let error = client
        .execute("INSERT INTO items (id) VALUES (30)", &[])
        .await
        .err()
        .context("a duplicate was accepted")?;
    let db = error.as_db_error().context("not from the server")?;
    ensure!(
        db.code().code() == "23505" && db.constraint() == Some("items_pkey"),
        "{db:?}"
    );
    ensure!(
        db.detail().is_some_and(|detail| detail.contains("30")),
        "{db:?}"
    );
    client
        .refused(
            "DO $$ BEGIN RAISE EXCEPTION 'own' USING ERRCODE = 'AB123'; END $$",
            "AB123",
        )
        .await?;
    Ok(())
}

async fn types_travel_in_binary(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let row = client
        .query_one(
            "SELECT $1::bigint, $2::text, $3::bytea, $4::float8, $5::bool, $6::int[], NULL::int",
            &[
                &i64::MIN,
                &"ü\t\\ 'x'",
                &vec![0_u8, 255, 10],
                &1.5_f64,
                &true,
                &vec![Some(1_i32), None, Some(3)],
            ],
        )
        .await?;
    ensure!(row.get::<_, i64>(0) == i64::MIN);
    ensure!(row.get::<_, String>(1) == "ü\t\\ 'x'");
    ensure!(row.get::<_, Vec<u8>>(2) == [0, 255, 10]);
    ensure!(row.get::<_, f64>(3) == 1.5 && row.get::<_, bool>(4));
    ensure!(row.get::<_, Vec<Option<i32>>>(5) == [Some(1), None, Some(3)]);
    ensure!(row.get::<_, Option<i32>>(6).is_none());
    Ok(())
}

async fn copy_goes_both_ways(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sink = client.copy_in("COPY copies FROM STDIN").await?;
    pin_mut!(sink);
    for id in 0..20_000 {
        sink.send(bytes_of(format!("{id}\tbody\\t{id}\n"))).await?;
    }
    ensure!(sink.finish().await? == 20_000);
    let node = cluster.primary(0).await?;
    ensure!(
        node.value("SELECT count(*) FROM copies WHERE body LIKE E'body\\t%'")
            .await?
            == "20000"
    );
    client.batch_execute("BEGIN").await?;
    let stream = client
        .copy_out("COPY (SELECT id FROM copies ORDER BY id) TO STDOUT")
        .await?;
    pin_mut!(stream);
    let mut lines = 0;
    while let Some(chunk) = stream.next().await {
        lines += chunk?.iter().filter(|byte| **byte == b'\n').count();
    }
    client.batch_execute("COMMIT").await?;
    ensure!(lines == 20_000, "{lines} lines came out");
    Ok(())
}

fn bytes_of(text: String) -> std::io::Cursor<Vec<u8>> {
    std::io::Cursor::new(text.into_bytes())
}

async fn a_failed_copy_leaves_a_usable_connection(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for _ in 0..5 {
        let sink = client.copy_in("COPY copies FROM STDIN").await?;
        pin_mut!(sink);
        sink.send(bytes_of("not a number\tx\n".to_owned())).await?;
        let error = sink.finish().await.err().context("it was accepted")?;
        ensure!(sqlstate(&error) == "22P02", "{error:?}");
        ensure!(client.value("SELECT 1").await? == "1");
    }
    Ok(())
}

async fn a_setting_belongs_to_its_client(cluster: &Cluster) -> anyhow::Result<()> {
    let clients = try_join_all((0..40).map(|_| cluster.connect())).await?;
    for (n, client) in clients.iter().enumerate() {
        client
            .batch_execute(&format!("SET work_mem = '{}MB'", 10 + n))
            .await?;
    }
    for _ in 0..3 {
        try_join_all(clients.iter().enumerate().map(|(n, client)| async move {
            let value = client.value("SHOW work_mem").await?;
            ensure!(value == format!("{}MB", 10 + n), "client {n} has {value}");
            Ok(())
        }))
        .await?;
    }
    let fresh = cluster.connect().await?;
    ensure!(
        fresh.value("SHOW work_mem").await? == "4MB",
        "a new client sees another's setting"
    );
    Ok(())
}

async fn cancel_ends_the_running_statement_only(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let token = client.cancel_token();
    let sleep = client.rows("SELECT pg_sleep(30)");
    let cancel = async {
        let nodes = [cluster.primary(0).await?, cluster.replica(0, 0).await?];
        wait_until(
            "the statement on a node",
            Duration::from_secs(30),
            || async {
                for node in &nodes {
                    let query = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' \
                             AND query LIKE '%pg_sleep(30)%' AND pid <> pg_backend_pid()";
                    if node.value(query).await? != "0" {
                        return Ok(Some(()));
                    }
                }
                Ok(None)
            },
        )
        .await?;
        token.cancel_query(NoTls).await?;
        anyhow::Ok(())
    };
    let (slept, cancelled) = tokio::join!(sleep, cancel);
    cancelled?;
    let error = slept.err().context("it was not cancelled")?;
    ensure!(sqlstate(&error) == "57014", "{error:?}");
    ensure!(client.value("SELECT 1").await? == "1");
    Ok(())
}

async fn many_clients_share_few_connections(cluster: &Cluster) -> anyhow::Result<()> {
    let clients = try_join_all((0..100).map(|_| cluster.connect())).await?;
    try_join_all(clients.iter().map(|client| async move {
        for n in 0..10 {
            ensure!(client.value(&format!("SELECT {n}")).await? == n.to_string());
        }
        Ok(())
    }))
    .await?;
    for node in [cluster.primary(0).await?, cluster.replica(0, 0).await?] {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'";
        let servers: usize = node.value(query).await?.parse()?;
        ensure!(servers <= 20, "{servers} connections for a pool of 20");
    }
    Ok(())
}

async fn a_client_that_vanishes_in_a_transaction_leaves_nothing(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("BEGIN").await?;
    client
        .batch_execute("INSERT INTO items (id) VALUES (40)")
        .await?;
    drop(client);
    let next = cluster.connect().await?;
    next.batch_execute("SET lock_timeout = '5s'").await?;
    next.batch_execute("INSERT INTO items (id) VALUES (40)")
        .await?;
    ensure!(count(cluster, "id = 40").await? == "1");
    Ok(())
}

async fn empty_queries_and_row_limits_work(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("").await?;
    client.batch_execute(" ; ").await?;
    let mut client = tokio_client(cluster).await?;
    let transaction = client.transaction().await?;
    let portal = transaction
        .bind("SELECT generate_series(1, 10)", &[])
        .await?;
    ensure!(transaction.query_portal(&portal, 4).await?.len() == 4);
    ensure!(transaction.query_portal(&portal, 4).await?.len() == 4);
    ensure!(transaction.query_portal(&portal, 4).await?.len() == 2);
    transaction.commit().await?;
    Ok(())
}
