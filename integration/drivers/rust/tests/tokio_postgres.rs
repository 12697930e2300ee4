//! tokio-postgres (binary, pipelined, named statements) through the shim.

use std::future::poll_fn;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use futures_util::{SinkExt as _, StreamExt as _, TryStreamExt as _, pin_mut};
use pgdog_drivers::{Account, crowd, url, within_deadline};
use tokio::sync::mpsc;
use tokio_postgres::binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream};
use tokio_postgres::error::{ErrorPosition, SqlState};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, IsolationLevel, NoTls, SimpleQueryMessage};

async fn connect(account: Account) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(&url(account)?, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A client whose notices and notifications come by a channel.
async fn connect_listening() -> anyhow::Result<(Client, mpsc::UnboundedReceiver<AsyncMessage>)> {
    let (client, mut connection) = tokio_postgres::connect(&url(Account::App)?, NoTls).await?;
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if sender.send(message).is_err() {
                break;
            }
        }
    });
    Ok((client, receiver))
}

/// A client and an empty table of its own, `(id int primary key, name text)`.
async fn with_table(table: &str) -> anyhow::Result<Client> {
    let client = connect(Account::App).await?;
    client
        .batch_execute(&format!(
            "SET client_min_messages = warning; DROP TABLE IF EXISTS {table};
             CREATE TABLE {table} (id int PRIMARY KEY, name text)"
        ))
        .await?;
    Ok(client)
}

async fn count(client: &Client, table: &str) -> anyhow::Result<i64> {
    let row = client
        .query_one(&format!("SELECT count(*) FROM {table}"), &[])
        .await?;
    Ok(row.get(0))
}

fn code(error: &tokio_postgres::Error) -> String {
    error.code().map_or("", SqlState::code).to_owned()
}

#[tokio::test]
async fn types_travel_in_binary() -> anyhow::Result<()> {
    within_deadline(async {
        let client = connect(Account::App).await?;
        let row = client
            .query_one(
                "SELECT $1::int2, $2::int4, $3::int8, $4::float8, $5::bool, $6::text, $7::text,
                        $8::bytea, $9::int4[]",
                &[
                    &-3_i16,
                    &i32::MIN,
                    &i64::MAX,
                    &1e300_f64,
                    &true,
                    &None::<&str>,
                    &"ü\t'\\",
                    &&[0_u8, 255][..],
                    &vec![Some(1), None, Some(3)],
                ],
            )
            .await?;
        ensure!((row.get::<_, i16>(0), row.get::<_, i32>(1)) == (-3, i32::MIN));
        ensure!((row.get::<_, i64>(2), row.get::<_, bool>(4)) == (i64::MAX, true));
        ensure!(row.get::<_, f64>(3).to_bits() == 1e300_f64.to_bits());
        ensure!(row.get::<_, Option<&str>>(5).is_none());
        ensure!(row.get::<_, &str>(6) == "ü\t'\\");
        ensure!(row.get::<_, &[u8]>(7) == [0, 255]);
        ensure!(row.get::<_, Vec<Option<i32>>>(8) == [Some(1), None, Some(3)]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn types_travel_in_text() -> anyhow::Result<()> {
    within_deadline(async {
        let client = connect(Account::App).await?;
        let messages = client
            .simple_query("SELECT 1.50::numeric, NULL, 'x'")
            .await?;
        let row = messages
            .iter()
            .find_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            })
            .context("no row")?;
        ensure!((row.get(0), row.get(1), row.get(2)) == (Some("1.50"), None, Some("x")));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_type_of_the_user_is_looked_up() -> anyhow::Result<()> {
    within_deadline(async {
        let client = connect(Account::App).await?;
        client
            .batch_execute(
                "DROP TYPE IF EXISTS tokio_mood; CREATE TYPE tokio_mood AS ENUM ('good', 'bad')",
            )
            .await?;
        let statement = client.prepare("SELECT 'bad'::tokio_mood").await?;
        ensure!(statement.columns()[0].type_().name() == "tokio_mood");
        client.batch_execute("DROP TYPE tokio_mood").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn statements_are_prepared_described_and_closed() -> anyhow::Result<()> {
    within_deadline(async {
        let client = connect(Account::App).await?;
        for round in 0..20_i32 {
            let statement = client
                .prepare_typed(&format!("SELECT $1 + {}", round % 5), &[Type::INT4])
                .await?;
            ensure!(statement.params() == [Type::INT4]);
            for n in 0..5_i32 {
                let row = client.query_one(&statement, &[&n]).await?;
                ensure!(row.get::<_, i32>(0) == n + round % 5);
            }
        }
        let refused = client
            .prepare("SELECT nothing")
            .await
            .err()
            .context("prepared")?;
        ensure!(code(&refused) == "42703");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn queries_in_flight_at_once_are_answered_in_order() -> anyhow::Result<()> {
    within_deadline(async {
        let client = connect(Account::App).await?;
        let statement = client.prepare("SELECT 10 / $1::int").await?;
        let numbers: Vec<i32> = (0..200).map(|n| n % 10).collect();
        let answers = join_all(numbers.iter().map(|n| {
            let (client, statement) = (&client, &statement);
            async move { client.query_one(statement, &[n]).await }
        }))
        .await;
        for (n, answer) in numbers.iter().zip(answers) {
            match (n, answer) {
                (0, Err(error)) => ensure!(code(&error) == "22012"),
                (n, answer) => ensure!(answer?.get::<_, i32>(0) == 10 / n),
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn transactions_nest_as_savepoints() -> anyhow::Result<()> {
    within_deadline(async {
        let mut client = with_table("tokio_nest").await?;
        let insert = "INSERT INTO tokio_nest VALUES ($1, 'x')";
        let mut outer = client
            .build_transaction()
            .isolation_level(IsolationLevel::Serializable)
            .start()
            .await?;
        outer.execute(insert, &[&1]).await?;
        let inner = outer.transaction().await?;
        inner.execute(insert, &[&2]).await?;
        let refused = inner.execute(insert, &[&1]).await.err().context("twice")?;
        ensure!(code(&refused) == "23505");
        let refused = inner
            .query("SELECT 1", &[])
            .await
            .err()
            .context("went on")?;
        ensure!(code(&refused) == "25P02");
        inner.rollback().await?;
        let named = outer.savepoint("named").await?;
        named.execute(insert, &[&3]).await?;
        named.commit().await?;
        outer.commit().await?;
        // Dropped: rolled back.
        client.transaction().await?.execute(insert, &[&4]).await?;
        let row = client
            .query_one("SELECT array_agg(id ORDER BY id) FROM tokio_nest", &[])
            .await?;
        ensure!(row.get::<_, Vec<i32>>(0) == [1, 3]);
        client.batch_execute("DROP TABLE tokio_nest").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn portals_have_row_limits() -> anyhow::Result<()> {
    within_deadline(async {
        let mut client = connect(Account::App).await?;
        let transaction = client.transaction().await?;
        let portal = transaction
            .bind("SELECT generate_series(1, $1::int)", &[&100])
            .await?;
        let mut seen = Vec::new();
        loop {
            let rows = transaction.query_portal(&portal, 7).await?;
            transaction.query_one("SELECT 1", &[]).await?;
            seen.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
            if rows.len() < 7 {
                break;
            }
        }
        ensure!(seen == (1..=100).collect::<Vec<_>>());
        transaction
            .batch_execute("DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT generate_series(1, 9)")
            .await?;
        transaction.commit().await?;
        let rows = client.query("FETCH 4 FROM c", &[]).await?;
        ensure!(rows.len() == 4);
        client.batch_execute("CLOSE c").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn copy_in_and_out_in_text() -> anyhow::Result<()> {
    within_deadline(async {
        let client = with_table("tokio_copy").await?;
        let text: String = (0..10_000).map(|n| format!("{n}\tname {n}\n")).collect();
        let sink = client.copy_in("COPY tokio_copy FROM STDIN").await?;
        pin_mut!(sink);
        for part in text.as_bytes().chunks(1000) {
            sink.send(Bytes::copy_from_slice(part)).await?;
        }
        ensure!(sink.finish().await? == 10_000);
        let out = client
            .copy_out("COPY (SELECT * FROM tokio_copy ORDER BY id) TO STDOUT")
            .await?;
        let chunks: Vec<Bytes> = out.try_collect().await?;
        ensure!(chunks.concat() == text.as_bytes());
        client.batch_execute("DROP TABLE tokio_copy").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn copy_in_and_out_in_binary() -> anyhow::Result<()> {
    within_deadline(async {
        let client = with_table("tokio_binary").await?;
        let types = [Type::INT4, Type::TEXT];
        let sink = client
            .copy_in("COPY tokio_binary FROM STDIN (FORMAT binary)")
            .await?;
        let writer = BinaryCopyInWriter::new(sink, &types);
        pin_mut!(writer);
        for n in 0..1000_i32 {
            writer.as_mut().write(&[&n, &"b".repeat(500)]).await?;
        }
        ensure!(writer.finish().await? == 1000);
        let out = client
            .copy_out("COPY tokio_binary TO STDOUT (FORMAT binary)")
            .await?;
        let rows: Vec<_> = BinaryCopyOutStream::new(out, &types).try_collect().await?;
        ensure!(rows.len() == 1000 && rows[999].get::<i32>(0) == 999);
        client.batch_execute("DROP TABLE tokio_binary").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_copy_aborted_by_either_side() -> anyhow::Result<()> {
    within_deadline(async {
        let client = with_table("tokio_broken").await?;
        {
            let sink = client.copy_in("COPY tokio_broken FROM STDIN").await?;
            pin_mut!(sink);
            sink.send(Bytes::from_static(b"1\ta\nx\tb\n")).await?;
            let refused = sink.finish().await.err().context("copied")?;
            ensure!(code(&refused) == "22P02");
        }
        {
            // Dropped before its end: the driver sends CopyFail.
            let sink = client.copy_in("COPY tokio_broken FROM STDIN").await?;
            pin_mut!(sink);
            sink.send(Bytes::from_static(b"1\ta\n")).await?;
        }
        ensure!(count(&client, "tokio_broken").await? == 0);
        client.batch_execute("DROP TABLE tokio_broken").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn several_statements_in_one_query() -> anyhow::Result<()> {
    within_deadline(async {
        let client = with_table("tokio_several").await?;
        let refused = client
            .batch_execute("INSERT INTO tokio_several VALUES (1, 'a'); SELECT 1/0")
            .await
            .err()
            .context("no error")?;
        ensure!(code(&refused) == "22012");
        ensure!(count(&client, "tokio_several").await? == 0);
        let messages = client
            .simple_query(
                "INSERT INTO tokio_several VALUES (1, 'a'); TABLE tokio_several; SELECT 2",
            )
            .await?;
        let completed = messages
            .iter()
            .filter(|message| matches!(message, SimpleQueryMessage::CommandComplete(1)));
        ensure!(completed.count() == 3);
        client.batch_execute("DROP TABLE tokio_several").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn errors_have_all_their_fields() -> anyhow::Result<()> {
    within_deadline(async {
        let client = with_table("tokio_errors").await?;
        let insert = "INSERT INTO tokio_errors VALUES (1, 'a')";
        client.execute(insert, &[]).await?;
        let refused = client.execute(insert, &[]).await.err().context("twice")?;
        let fields = refused.as_db_error().context("not a server's error")?;
        ensure!((fields.severity(), fields.code()) == ("ERROR", &SqlState::UNIQUE_VIOLATION));
        ensure!(fields.detail() == Some("Key (id)=(1) already exists."));
        ensure!((fields.schema(), fields.table()) == (Some("public"), Some("tokio_errors")));
        ensure!(fields.constraint() == Some("tokio_errors_pkey"));
        ensure!(fields.routine() == Some("_bt_check_unique"));
        let refused = client
            .query("SELECT nam FROM tokio_errors", &[])
            .await
            .err()
            .context("no error")?;
        let fields = refused.as_db_error().context("not a server's error")?;
        ensure!(fields.position() == Some(&ErrorPosition::Original(8)));
        ensure!(
            fields
                .hint()
                .is_some_and(|hint| hint.contains("tokio_errors.name"))
        );
        client.batch_execute("DROP TABLE tokio_errors").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn cancel_ends_only_its_own_query() -> anyhow::Result<()> {
    within_deadline(async {
        let (victim, other) = (connect(Account::App).await?, connect(Account::App).await?);
        let token = victim.cancel_token();
        let cancelling = async {
            // A cancel that comes before the query is void, as it is without the shim.
            loop {
                token.cancel_query(NoTls).await?;
                tokio::task::yield_now().await;
            }
            #[allow(unreachable_code)]
            anyhow::Ok(())
        };
        let bystander = other.query_one("SELECT 7 FROM pg_sleep(2)", &[]);
        let sleeping = async {
            tokio::select! {
                ended = victim.batch_execute("SELECT pg_sleep(60)") => anyhow::Ok(ended.err()),
                Err(problem) = cancelling => Err(problem),
            }
        };
        let (ended, bystander) = tokio::join!(sleeping, bystander);
        ensure!(code(&ended?.context("slept on")?) == "57014");
        ensure!(bystander?.get::<_, i32>(0) == 7);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn notifications_arrive_after_their_commit() -> anyhow::Result<()> {
    within_deadline(async {
        let (listener, mut news) = connect_listening().await?;
        let speaker = connect(Account::App).await?;
        listener.batch_execute("LISTEN tokio_news").await?;
        speaker
            .batch_execute("BEGIN; NOTIFY tokio_news, 'rolled back'; ROLLBACK")
            .await?;
        speaker.batch_execute("NOTIFY tokio_news, 'first'").await?;
        speaker
            .execute("SELECT pg_notify($1, $2)", &[&"tokio_news", &"second"])
            .await?;
        for wanted in ["first", "second"] {
            let Some(AsyncMessage::Notification(got)) = news.recv().await else {
                anyhow::bail!("something else than a notification");
            };
            ensure!((got.channel(), got.payload()) == ("tokio_news", wanted));
        }
        ensure!(listener.query_one("SELECT 1", &[]).await?.get::<_, i32>(0) == 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn notices_arrive_in_order() -> anyhow::Result<()> {
    within_deadline(async {
        let (client, mut news) = connect_listening().await?;
        client
            .batch_execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
            .await?;
        for wanted in ["one", "two"] {
            let Some(AsyncMessage::Notice(got)) = news.recv().await else {
                anyhow::bail!("something else than a notice");
            };
            ensure!(got.message() == wanted);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn rows_are_streamed() -> anyhow::Result<()> {
    within_deadline(async {
        let client = connect(Account::App).await?;
        let rows = client
            .query_raw("SELECT generate_series(1, $1::int)", [10_000_i32])
            .await?;
        pin_mut!(rows);
        let mut sum = 0_i64;
        while let Some(row) = rows.next().await {
            sum += i64::from(row?.get::<_, i32>(0));
        }
        ensure!(sum == 50_005_000);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn many_connections_on_a_small_pool() -> anyhow::Result<()> {
    within_deadline(async {
        try_join_all((0..crowd()).map(|number| async move {
            let mut client = connect(Account::Small).await?;
            let statement = client.prepare("SELECT $1::int").await?;
            for step in 0..10 {
                let transaction = client.transaction().await?;
                let row = transaction
                    .query_one(&statement, &[&(number * 1000 + step)])
                    .await?;
                ensure!(row.get::<_, i32>(0) == number * 1000 + step);
                transaction.commit().await?;
            }
            Ok(())
        }))
        .await?;
        Ok(())
    })
    .await
}
