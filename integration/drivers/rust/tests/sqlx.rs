//! sqlx (binary, a cache of named statements, its own pool) through the shim.

use anyhow::{Context as _, ensure};
use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use pgdog_drivers::{Account, crowd, url, within_deadline};
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgListener, PgPoolOptions};
use sqlx::types::{Json, Uuid};
use sqlx::{AssertSqlSafe, Column as _, Connection as _, Executor as _, PgConnection, PgPool};
use sqlx::{Row as _, SqlStr, Statement as _};

async fn connect() -> anyhow::Result<PgConnection> {
    Ok(PgConnection::connect(&url(Account::App)?).await?)
}

/// A connection and an empty table of its own, `(id int primary key, name text)`.
async fn with_table(table: &str) -> anyhow::Result<PgConnection> {
    let mut connection = connect().await?;
    let statements = format!(
        "SET client_min_messages = warning; DROP TABLE IF EXISTS {table};
         CREATE TABLE {table} (id int PRIMARY KEY, name text)"
    );
    connection.execute(AssertSqlSafe(statements)).await?;
    Ok(connection)
}

fn refused<T>(answer: Result<T, sqlx::Error>, code: &str) -> anyhow::Result<sqlx::Error> {
    let error = answer.err().with_context(|| format!("no error {code}"))?;
    let got = error.as_database_error().and_then(|e| e.code());
    ensure!(got.as_deref() == Some(code), "{error}");
    Ok(error)
}

#[tokio::test]
async fn types_travel_in_binary() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = connect().await?;
        let key = Uuid::from_u128(1);
        let json = Json(vec![Some(1), None]);
        let row = sqlx::query(
            "SELECT $1::int2, $2::int8, $3::bool, $4::text, $5::text, $6::bytea, $7::int4[],
                    $8::uuid, $9::jsonb",
        )
        .bind(-3_i16)
        .bind(i64::MIN)
        .bind(true)
        .bind(None::<String>)
        .bind("ü\t'\\")
        .bind(vec![0_u8, 255])
        .bind(vec![Some(1), None, Some(3)])
        .bind(key)
        .bind(&json)
        .fetch_one(&mut connection)
        .await?;
        ensure!((row.get::<i16, _>(0), row.get::<i64, _>(1)) == (-3, i64::MIN));
        ensure!(row.get::<bool, _>(2) && row.get::<Option<String>, _>(3).is_none());
        ensure!(row.get::<&str, _>(4) == "ü\t'\\");
        ensure!(row.get::<Vec<u8>, _>(5) == [0, 255]);
        ensure!(row.get::<Vec<Option<i32>>, _>(6) == [Some(1), None, Some(3)]);
        ensure!(row.get::<Uuid, _>(7) == key);
        ensure!(row.get::<Json<Vec<Option<i32>>>, _>(8) == json);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn types_travel_in_text() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = connect().await?;
        let row = sqlx::raw_sql("SELECT 7, 1.5::float8, NULL, '{1,2}'::int[]")
            .fetch_one(&mut connection)
            .await?;
        ensure!((row.get::<i32, _>(0), row.get::<Vec<i32>, _>(3)) == (7, vec![1, 2]));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_cache_of_statements_drops_the_oldest() -> anyhow::Result<()> {
    within_deadline(async {
        let options: PgConnectOptions = url(Account::App)?.parse()?;
        let mut connection =
            PgConnection::connect_with(&options.statement_cache_capacity(4)).await?;
        for n in 0..60_i32 {
            let text = format!("SELECT $1 + {}", n % 9);
            let got: i32 = sqlx::query_scalar(AssertSqlSafe(text))
                .bind(n)
                .fetch_one(&mut connection)
                .await?;
            ensure!(got == n + n % 9);
        }
        connection.clear_cached_statements().await?;
        let got: i32 = sqlx::query_scalar("SELECT $1")
            .bind(5)
            .fetch_one(&mut connection)
            .await?;
        ensure!(got == 5);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn statements_are_described() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = with_table("sqlx_described").await?;
        let text = SqlStr::from_static("SELECT id, name FROM sqlx_described WHERE id = $1");
        let statement = connection.prepare(text).await?;
        let names: Vec<_> = statement.columns().iter().map(|c| c.name()).collect();
        ensure!(names == ["id", "name"]);
        connection.execute("DROP TABLE sqlx_described").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn transactions_nest_as_savepoints() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = with_table("sqlx_nest").await?;
        let insert = "INSERT INTO sqlx_nest VALUES ($1, 'x')";
        let mut outer = connection
            .begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE")
            .await?;
        sqlx::query(insert).bind(1).execute(&mut *outer).await?;
        let mut inner = outer.begin().await?;
        sqlx::query(insert).bind(2).execute(&mut *inner).await?;
        refused(
            sqlx::query(insert).bind(1).execute(&mut *inner).await,
            "23505",
        )?;
        refused(inner.execute("SELECT 1").await, "25P02")?;
        inner.rollback().await?;
        let mut inner = outer.begin().await?;
        sqlx::query(insert).bind(3).execute(&mut *inner).await?;
        inner.commit().await?;
        outer.commit().await?;
        // Dropped: rolled back before the next statement.
        let mut dropped = connection.begin().await?;
        sqlx::query(insert).bind(4).execute(&mut *dropped).await?;
        drop(dropped);
        let ids: Vec<i32> = sqlx::query_scalar("SELECT id FROM sqlx_nest ORDER BY id")
            .fetch_all(&mut connection)
            .await?;
        ensure!(ids == [1, 3]);
        connection.execute("DROP TABLE sqlx_nest").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn several_statements_in_one_query() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = with_table("sqlx_several").await?;
        let done = sqlx::raw_sql(
            "INSERT INTO sqlx_several VALUES (1, 'a'), (2, 'b'); DELETE FROM sqlx_several",
        )
        .execute_many(&mut connection)
        .map_ok(|done| done.rows_affected())
        .try_collect::<Vec<_>>()
        .await?;
        ensure!(done == [2, 2]);
        let answer = connection
            .execute("INSERT INTO sqlx_several VALUES (1, 'a'); SELECT 1/0")
            .await;
        refused(answer, "22012")?;
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlx_several")
            .fetch_one(&mut connection)
            .await?;
        ensure!(rows == 0);
        connection.execute("DROP TABLE sqlx_several").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn rows_are_streamed_and_the_rest_is_dropped() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = connect().await?;
        {
            let mut rows = sqlx::query_scalar::<_, i32>("SELECT generate_series(1, 100000)")
                .fetch(&mut connection);
            ensure!(rows.try_next().await? == Some(1));
        }
        let one: i32 = sqlx::query_scalar("SELECT 1")
            .fetch_one(&mut connection)
            .await?;
        ensure!(one == 1);
        let mut transaction = connection.begin().await?;
        transaction
            .execute("DECLARE c CURSOR FOR SELECT generate_series(1, 9)")
            .await?;
        ensure!(transaction.fetch_all("FETCH 4 FROM c").await?.len() == 4);
        transaction.commit().await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn copy_in_and_out() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = with_table("sqlx_copy").await?;
        let text: String = (0..10_000).map(|n| format!("{n}\tname {n}\n")).collect();
        let mut into = connection.copy_in_raw("COPY sqlx_copy FROM STDIN").await?;
        for part in text.as_bytes().chunks(1000) {
            into.send(part).await?;
        }
        ensure!(into.finish().await? == 10_000);
        let out = connection
            .copy_out_raw("COPY (SELECT * FROM sqlx_copy ORDER BY id) TO STDOUT")
            .await?
            .try_collect::<Vec<_>>()
            .await?;
        ensure!(out.concat() == text.as_bytes());
        connection.execute("DROP TABLE sqlx_copy").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_copy_aborted_by_either_side() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = with_table("sqlx_broken").await?;
        let mut into = connection
            .copy_in_raw("COPY sqlx_broken FROM STDIN")
            .await?;
        into.send(&b"1\ta\nx\tb\n"[..]).await?;
        refused(into.finish().await, "22P02")?;
        let mut into = connection
            .copy_in_raw("COPY sqlx_broken FROM STDIN")
            .await?;
        into.send(&b"1\ta\n"[..]).await?;
        into.abort("the file is gone").await?;
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlx_broken")
            .fetch_one(&mut connection)
            .await?;
        ensure!(rows == 0);
        connection.execute("DROP TABLE sqlx_broken").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn errors_have_all_their_fields() -> anyhow::Result<()> {
    within_deadline(async {
        let mut connection = with_table("sqlx_errors").await?;
        let insert = "INSERT INTO sqlx_errors VALUES ($1, 'a')";
        sqlx::query(insert).bind(1).execute(&mut connection).await?;
        let error = refused(
            sqlx::query(insert).bind(1).execute(&mut connection).await,
            "23505",
        )?;
        let fields = error
            .as_database_error()
            .and_then(|e| e.try_downcast_ref::<PgDatabaseError>())
            .context("not a server's error")?;
        ensure!(fields.detail() == Some("Key (id)=(1) already exists."));
        ensure!((fields.schema(), fields.table()) == (Some("public"), Some("sqlx_errors")));
        ensure!(fields.constraint() == Some("sqlx_errors_pkey"));
        ensure!(fields.routine() == Some("_bt_check_unique"));
        connection.execute("DROP TABLE sqlx_errors").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_cancelled_query_leaves_the_connection_usable() -> anyhow::Result<()> {
    within_deadline(async {
        // The driver has no cancel of its own; the function reaches the same backend in a
        // transaction, where the client has a server of its own.
        let (mut victim, mut other) = (connect().await?, connect().await?);
        let mut transaction = victim.begin().await?;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut *transaction)
            .await?;
        // Once, and not before it runs: a cancel too many would hit who has that server next.
        let cancelling = async {
            let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                WHERE pid = $1 AND state = 'active' AND query = 'SELECT pg_sleep(60)'";
            let mut sent = None::<bool>;
            while sent.is_none() {
                let asked = sqlx::query_scalar(cancel).bind(pid);
                sent = asked.fetch_optional(&mut other).await?;
            }
            anyhow::Ok(())
        };
        let (ended, cancelled) =
            tokio::join!(transaction.execute("SELECT pg_sleep(60)"), cancelling);
        cancelled?;
        refused(ended, "57014")?;
        transaction.rollback().await?;
        let one: i32 = sqlx::query_scalar("SELECT 1")
            .fetch_one(&mut victim)
            .await?;
        ensure!(one == 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn notifications_arrive_after_their_commit() -> anyhow::Result<()> {
    within_deadline(async {
        let mut listener = PgListener::connect(&url(Account::App)?).await?;
        listener.listen_all(["sqlx_news", "sqlx_more"]).await?;
        let mut speaker = connect().await?;
        sqlx::raw_sql("BEGIN; NOTIFY sqlx_news, 'rolled back'; ROLLBACK")
            .execute(&mut speaker)
            .await?;
        speaker.execute("NOTIFY sqlx_news, 'first'").await?;
        sqlx::query("SELECT pg_notify($1, $2)")
            .bind("sqlx_more")
            .bind("second")
            .execute(&mut speaker)
            .await?;
        for wanted in [("sqlx_news", "first"), ("sqlx_more", "second")] {
            let got = listener.recv().await?;
            ensure!((got.channel(), got.payload()) == wanted);
        }
        listener.unlisten_all().await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn settings_follow_their_client() -> anyhow::Result<()> {
    within_deadline(async {
        let options: PgConnectOptions = url(Account::App)?.parse()?;
        let mut first = PgConnection::connect_with(&options.options([("work_mem", "9MB")])).await?;
        let mut second = connect().await?;
        second.execute("SET work_mem = '7MB'").await?;
        for _ in 0..10 {
            for (connection, wanted) in [(&mut first, "9MB"), (&mut second, "7MB")] {
                let got: String = sqlx::query_scalar("SHOW work_mem")
                    .fetch_one(connection)
                    .await?;
                ensure!(got == wanted);
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn its_pool_keeps_more_clients_than_there_are_servers() -> anyhow::Result<()> {
    within_deadline(async {
        let clients = crowd().unsigned_abs();
        let pool: PgPool = PgPoolOptions::new()
            .min_connections(clients)
            .max_connections(clients)
            .connect(&url(Account::Small)?)
            .await?;
        try_join_all((0..crowd()).map(|number| {
            let pool = pool.clone();
            async move {
                for step in 0..10 {
                    let mut transaction = pool.begin().await?;
                    let got: i32 = sqlx::query_scalar("SELECT $1")
                        .bind(number * 1000 + step)
                        .fetch_one(&mut *transaction)
                        .await?;
                    ensure!(got == number * 1000 + step);
                    transaction.commit().await?;
                }
                Ok(())
            }
        }))
        .await?;
        pool.close().await;
        Ok(())
    })
    .await
}
