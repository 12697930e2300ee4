//! One connection against a real server: logins, batches, what travels ahead, COPY, losses.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_shim::proto::backend::tag;
use pgdog_shim::proto::frame::Message as _;
use pgdog_shim::proto::frontend::{self, Subject};
use pgdog_shim::proto::{ErrorFields, Frame, TxStatus, answer};
use pgdog_shim::server::{Ahead, Conn, Copying, Guard, Guarded, Head, Login, Secret, ServerError};

mod server_support;
use server_support::{LIMIT, connect, endpoint, login, scripted};

fn batch(write: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    write(&mut out);
    out
}

/// Unnamed Parse, Bind, Execute, Sync.
fn extended(sql: &str) -> BytesMut {
    batch(|out| {
        frontend::parse("", sql, &[], out);
        frontend::bind("", "", &[], out);
        frontend::execute("", 0, out);
        frontend::sync(out);
    })
}

fn simple(sql: &str) -> BytesMut {
    batch(|out| frontend::query(sql, out))
}

/// Tags up to ReadyForQuery, without settings and notices.
async fn tags(conn: &mut Conn) -> String {
    let mut tags = String::new();
    loop {
        let frame = conn.recv().await.unwrap();
        if matches!(frame.tag(), tag::PARAMETER_STATUS | tag::NOTICE) {
            continue;
        }
        tags.push(frame.tag().into());
        if frame.tag() == tag::READY {
            return tags;
        }
    }
}

async fn value(conn: &mut Conn, sql: &str) -> String {
    conn.simple(sql).await.unwrap()[0][0].clone().unwrap()
}

/// A guard that any server lets pass.
fn passing() -> Guard {
    Guard::statements(vec![
        "SET my.floor = 1".to_owned(),
        "SET my.other = 2".to_owned(),
    ])
}

/// One that any server refuses with 22023.
fn failing() -> Guard {
    Guard::statements(vec![
        "SET my.floor = 1".to_owned(),
        "SET work_mem = 1".to_owned(),
    ])
}

#[tokio::test]
async fn every_password_method_lets_the_right_password_in_and_no_other() {
    for user in ["trusted", "scram", "md5", "clear"] {
        let mut conn = Conn::connect(&endpoint(), &login(user), LIMIT)
            .await
            .unwrap();
        assert_eq!(value(&mut conn, "SELECT current_user").await, user);
    }
    for user in ["scram", "md5", "clear", "nobody"] {
        let wrong = Login {
            secret: Secret::password("wrong"),
            ..login(user)
        };
        let fault = Conn::connect(&endpoint(), &wrong, LIMIT).await.unwrap_err();
        assert_eq!(fault.sqlstate(), "28P01", "{user}: {fault:?}");
    }
    let without = Login {
        secret: Secret::None,
        ..login("scram")
    };
    let fault = Conn::connect(&endpoint(), &without, LIMIT)
        .await
        .unwrap_err();
    assert!(matches!(fault, Fault::CannotConnect { .. }), "{fault:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_or_silent_is_08001_within_the_limit() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut silent = endpoint();
    silent.port = listener.local_addr().unwrap().port();
    let limit = Duration::from_millis(100);
    let fault = Conn::connect(&silent, &login("trusted"), limit)
        .await
        .unwrap_err();
    assert_eq!(fault.sqlstate(), "08001");
    drop(listener);
    let fault = Conn::connect(&silent, &login("trusted"), LIMIT)
        .await
        .unwrap_err();
    assert_eq!(fault.sqlstate(), "08001");
}

#[tokio::test]
async fn startup_parameters_hold_and_settings_are_followed() {
    let params = vec![("application_name".to_owned(), "me".to_owned())];
    let login = Login {
        params,
        ..login("trusted")
    };
    let mut conn = Conn::connect(&endpoint(), &login, LIMIT).await.unwrap();
    assert_eq!(conn.parameters()["application_name"], "me");
    assert_eq!(value(&mut conn, "SHOW pgdog.report_commit_lsn").await, "on");
    assert_eq!(
        value(&mut conn, "SELECT pg_backend_pid()").await,
        conn.pid().to_string()
    );
    conn.simple("SET application_name = 'you'").await.unwrap();
    assert_eq!(conn.parameters()["application_name"], "you");
    assert_eq!(conn.incarnation(), None, "no extension here");
}

#[tokio::test]
async fn a_pushed_commit_position_is_kept_until_it_is_forgotten() {
    let pushed = batch(|out| {
        pgdog_shim::proto::backend::parameter_status("pgdog.commit_lsn", "0/1A2B", out);
        pgdog_shim::proto::backend::command_complete("COMMIT", out);
        pgdog_shim::proto::backend::ready_for_query(TxStatus::Idle, out);
    });
    let mut pushed = pushed;
    let mut frames = Vec::new();
    while let Some(frame) = pgdog_shim::proto::frame::take(&mut pushed).unwrap() {
        frames.push(frame);
    }
    let settings = vec![("pgdog.incarnation", "abc".to_owned())];
    let endpoint = scripted(settings, vec![frames]).await;
    let mut conn = Conn::connect(&endpoint, &login("trusted"), LIMIT)
        .await
        .unwrap();
    assert_eq!(conn.incarnation().unwrap().0, "abc");
    conn.simple("COMMIT").await.unwrap();
    assert_eq!(conn.commit_lsn(), Some("0/1A2B".parse().unwrap()));
    conn.forget_commit_lsn();
    assert_eq!(conn.commit_lsn(), None);
}

#[tokio::test]
async fn queries_ahead_share_the_write_and_leave_the_clients_answers_alone() {
    let mut conn = connect().await;
    let mut ahead = Ahead::new();
    ahead
        .query("SET pgdog.epoch = '7'")
        .query("BEGIN")
        .query("SELECT 1, NULL");
    conn.send_ahead(&ahead, &extended("SHOW pgdog.epoch"))
        .await
        .unwrap();
    let settled = conn.settle_ahead(&ahead).await.unwrap();
    assert_eq!(settled.error(), None);
    assert_eq!(settled.answers[1].command, "BEGIN");
    assert_eq!(settled.answers[2].rows, [[Some("1".to_owned()), None]]);
    assert_eq!(settled.guard, Guarded::None);
    assert_eq!(tags(&mut conn).await, "12DCZ");
    assert_eq!(conn.tx_status(), TxStatus::InTransaction);
    assert!(conn.in_sync());
}

#[tokio::test]
async fn a_failed_query_ahead_is_reported_and_the_rest_can_be_drained() {
    let mut conn = connect().await;
    let mut ahead = Ahead::new();
    ahead.query("BEGIN").query("SELECT 1/0").query("SELECT 1");
    conn.send_ahead(&ahead, &extended("SELECT 2"))
        .await
        .unwrap();
    let settled = conn.settle_ahead(&ahead).await.unwrap();
    assert_eq!(settled.error().unwrap().code, "22012");
    assert_eq!(settled.answers[2].error.as_ref().unwrap().code, "25P02");
    assert!(!conn.in_sync());
    conn.drain(LIMIT).await.unwrap();
    assert!(conn.in_sync());
    assert_eq!(conn.tx_status(), TxStatus::Failed);
    conn.simple("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_guard_that_holds_is_invisible_to_simple_and_extended_batches() {
    let mut conn = connect().await;
    let mut ahead = Ahead::new();
    ahead.guard(passing());
    // Twice, and inside a transaction: its statement and portal must not collide.
    for sql in [
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1",
        "SELECT 2",
        "SELECT 3",
    ] {
        conn.send_ahead(&ahead, &simple(sql)).await.unwrap();
        assert_eq!(
            conn.settle_ahead(&ahead).await.unwrap().guard,
            Guarded::Passed
        );
        assert!(tags(&mut conn).await.ends_with("TDCZ"));
    }
    assert_eq!(conn.tx_status(), TxStatus::InTransaction);
    conn.send_ahead(&ahead, &extended("SELECT 4"))
        .await
        .unwrap();
    assert_eq!(
        conn.settle_ahead(&ahead).await.unwrap().guard,
        Guarded::Passed
    );
    assert_eq!(tags(&mut conn).await, "12DCZ");
}

#[tokio::test]
async fn a_guard_leaves_the_clients_unnamed_statement_alone() {
    let mut conn = connect().await;
    let parse = batch(|out| {
        frontend::parse("", "SELECT 'mine'", &[], out);
        frontend::sync(out);
    });
    conn.send(&parse).await.unwrap();
    assert_eq!(tags(&mut conn).await, "1Z");
    let mut ahead = Ahead::new();
    ahead.guard(passing());
    let run = batch(|out| {
        frontend::bind("", "", &[], out);
        frontend::execute("", 0, out);
        frontend::sync(out);
    });
    conn.send_ahead(&ahead, &run).await.unwrap();
    conn.settle_ahead(&ahead).await.unwrap();
    assert_eq!(conn.recv().await.unwrap().tag(), tag::BIND_COMPLETE);
    let row = conn.recv().await.unwrap();
    assert_eq!(
        answer::text_row(row.body()).unwrap(),
        [Some("mine".to_owned())]
    );
    assert_eq!(tags(&mut conn).await, "CZ");
}

#[tokio::test]
async fn a_batch_behind_a_failed_guard_is_not_run() {
    let mut conn = connect().await;
    conn.simple("CREATE TEMP TABLE t (n int)").await.unwrap();
    let insert = "INSERT INTO t VALUES (1)";
    let unfinished = batch(|out| {
        frontend::parse("", insert, &[], out);
        frontend::bind("", "", &[], out);
        frontend::execute("", 0, out);
        frontend::flush(out);
    });
    let mut ahead = Ahead::new();
    ahead.query("SELECT 5").guard(failing());
    for batch in [simple(insert), extended(insert), unfinished] {
        conn.send_ahead(&ahead, &batch).await.unwrap();
        let settled = conn.settle_ahead(&ahead).await.unwrap();
        assert_eq!(settled.answers[0].rows, [[Some("5".to_owned())]]);
        let Guarded::Failed(error) = settled.guard else {
            panic!("the guard fails")
        };
        assert_eq!(error.code, "22023");
        assert!(conn.in_sync(), "{conn:?}");
        assert_eq!(value(&mut conn, "SELECT count(*) FROM t").await, "0");
    }
    let mut ahead = Ahead::new();
    ahead.query("BEGIN").guard(failing());
    conn.send_ahead(&ahead, &simple(insert)).await.unwrap();
    conn.settle_ahead(&ahead).await.unwrap();
    assert_eq!(
        conn.tx_status(),
        TxStatus::Failed,
        "a transaction is aborted by it"
    );
}

#[tokio::test]
async fn a_batch_that_a_guard_cannot_cover_is_not_sent() {
    let mut conn = connect().await;
    let mut two = extended("SELECT 1");
    two.extend_from_slice(&extended("SELECT 2"));
    let mut ahead = Ahead::new();
    ahead.guard(passing());
    let fault = conn.send_ahead(&ahead, &two).await.unwrap_err();
    assert!(matches!(fault, Fault::Internal { .. }));
    assert!(conn.in_sync() && !conn.is_broken());
    assert!(conn.send(b"Q\0\0\0\x10half").await.is_err());
    assert!(conn.in_sync() && !conn.is_broken(), "nothing was sent");
}

#[tokio::test]
async fn a_batch_and_answers_larger_than_all_buffers_do_not_block_each_other() {
    let mut conn = connect().await;
    let mut out = BytesMut::new();
    for _ in 0..24 {
        frontend::query(&format!("SELECT '{}'", "x".repeat(1 << 20)), &mut out);
    }
    tokio::time::timeout(LIMIT, conn.send(&out))
        .await
        .expect("no deadlock")
        .unwrap();
    for _ in 0..24 {
        assert_eq!(tags(&mut conn).await, "TDCZ");
    }
    assert!(conn.in_sync());
}

#[tokio::test]
async fn rows_come_in_runs_and_none_is_lost() {
    let mut conn = connect().await;
    conn.send(&simple(
        "SELECT g, repeat('x', 50) FROM generate_series(1, 50000) g",
    ))
    .await
    .unwrap();
    let (mut rows, mut runs, mut others) = (0, 0, String::new());
    while !conn.in_sync() {
        let passed = conn.pass(|head| match head {
            Head::Rows(bytes) => {
                rows += pgdog_shim::proto::frame::frames(bytes).count();
                runs += 1;
            }
            Head::Message(message) => others.push(message.tag().into()),
        });
        if passed.unwrap().is_none() {
            conn.more().await.unwrap();
        }
    }
    assert_eq!((rows, others.as_str()), (50_000, "TCZ"));
    assert!(runs < 5_000, "{runs} runs");
}

#[tokio::test]
async fn a_receive_that_is_dropped_loses_nothing() {
    let mut conn = connect().await;
    conn.send(&simple("SELECT 1; SELECT pg_sleep_for('200 ms'); SELECT 2"))
        .await
        .unwrap();
    let mut tags = Vec::new();
    while !conn.in_sync() {
        let tick = Duration::from_micros(500);
        if let Ok(frame) = tokio::time::timeout(tick, conn.recv()).await {
            tags.push(frame.unwrap().tag());
        }
    }
    assert_eq!(tags, b"TDCTDCTDCZ");
}

#[tokio::test]
async fn copy_in_both_protocols_ends_at_rest() {
    let mut conn = connect().await;
    conn.simple("CREATE TEMP TABLE t (n int)").await.unwrap();
    conn.send(&extended("COPY t FROM STDIN")).await.unwrap();
    while conn.copying() != Copying::In {
        conn.recv().await.unwrap();
    }
    let rows = batch(|out| {
        frontend::copy_data(b"1\n2\n", out);
        frontend::copy_done(out);
        frontend::sync(out);
    });
    conn.send(&rows).await.unwrap();
    assert_eq!(tags(&mut conn).await, "CZ");
    assert!(conn.in_sync());

    conn.send(&simple("COPY t TO STDOUT")).await.unwrap();
    assert_eq!(tags(&mut conn).await, "HddcCZ");

    for copy in [simple("COPY t FROM STDIN"), extended("COPY t FROM STDIN")] {
        conn.send(&copy).await.unwrap();
        conn.drain(LIMIT).await.unwrap();
        assert!(conn.in_sync());
        conn.send(&copy).await.unwrap();
        while conn.copying() != Copying::In {
            conn.recv().await.unwrap();
        }
        conn.drain(LIMIT).await.unwrap();
        assert!(conn.in_sync(), "given up half way");
    }
    assert_eq!(value(&mut conn, "SELECT count(*) FROM t").await, "2");
}

#[tokio::test]
async fn an_unfinished_batch_is_drained_by_a_sync() {
    let mut conn = connect().await;
    let unfinished = batch(|out| {
        frontend::parse("s", "SELECT 1", &[], out);
        frontend::describe(Subject::Statement("s"), out);
    });
    conn.send(&unfinished).await.unwrap();
    assert!(!conn.in_sync());
    conn.drain(LIMIT).await.unwrap();
    assert!(conn.in_sync() && conn.prepared_at("s").is_some());
}

#[tokio::test]
async fn errors_of_statements_leave_the_connection_alive() {
    let mut conn = connect().await;
    let Err(ServerError::Sql(error)) = conn.simple("SELECT * FROM no_such").await else {
        panic!("an error of the server")
    };
    assert_eq!(
        (error.code.as_str(), error.severity.as_str()),
        ("42P01", "ERROR")
    );
    assert_eq!(value(&mut conn, "SELECT 1").await, "1");
}

#[tokio::test]
async fn a_terminated_backend_says_why_and_is_broken() {
    let mut conn = connect().await;
    let pid = conn.pid();
    conn.send(&simple("SELECT pg_sleep_for('60 s')"))
        .await
        .unwrap();
    connect()
        .await
        .simple(&format!("SELECT pg_terminate_backend({pid})"))
        .await
        .unwrap();
    let mut last: Option<Frame> = None;
    let fault = loop {
        match conn.recv().await {
            Ok(frame) => last = Some(frame),
            Err(fault) => break fault,
        }
    };
    let error = ErrorFields::parse(last.unwrap().body()).unwrap();
    assert_eq!((error.code.as_str(), fault.sqlstate()), ("57P01", "08006"));
    assert!(conn.is_broken() && conn.simple("SELECT 1").await.is_err());
}
