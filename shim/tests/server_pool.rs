//! Pools against a real server: what is lent again and what never is.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use pgdog_core::fault::Fault;
use pgdog_core::ids::Epoch;
use pgdog_shim::proto::backend::tag;
use pgdog_shim::proto::{Frame, frontend};
use pgdog_shim::server::{Lease, Login, PoolSettings, Pools, ServerError, ServerState};

mod server_support;
use server_support::{LIMIT, connect, endpoint, lend, login, pools, scripted, until, wait_for};

fn query(sql: &str) -> BytesMut {
    let mut out = BytesMut::new();
    frontend::query(sql, &mut out);
    out
}

fn prepare(name: &str) -> BytesMut {
    let mut out = BytesMut::new();
    frontend::parse(name, "SELECT 1", &[], &mut out);
    frontend::sync(&mut out);
    out
}

async fn value(lease: &mut Lease, sql: &str) -> Option<String> {
    lease.simple(sql).await.unwrap()[0][0].clone()
}

#[tokio::test]
async fn a_connection_at_rest_is_lent_again() {
    let pools = pools(2);
    let first = lend(&pools).await;
    let pid = first.pid();
    drop(first);
    let again = lend(&pools).await;
    assert_eq!(again.pid(), pid);
    let stats = &pools.stats()[0];
    assert_eq!(
        (
            stats.sv_active,
            stats.sv_idle,
            stats.connects,
            stats.checkouts
        ),
        (1, 0, 1, 2)
    );
    assert_eq!(pools.servers()[0].state, ServerState::Active);
    drop(again);
    assert_eq!(pools.servers()[0].state, ServerState::Idle);
}

#[tokio::test]
async fn other_users_and_startup_parameters_get_other_connections() {
    let pools = pools(1);
    let ours = lend(&pools).await;
    let user = pools
        .checkout(&endpoint(), &login("scram"), LIMIT)
        .await
        .unwrap();
    let params = vec![("options".to_owned(), "-c work_mem=64kB".to_owned())];
    let login = Login {
        params,
        ..login("trusted")
    };
    let mut options = pools.checkout(&endpoint(), &login, LIMIT).await.unwrap();
    assert_eq!(
        value(&mut options, "SHOW work_mem").await.as_deref(),
        Some("64kB")
    );
    assert!(ours.pid() != user.pid() && user.pid() != options.pid());
    assert_eq!(pools.stats().len(), 3);
}

#[tokio::test]
async fn who_waits_first_is_served_first() {
    let pools = pools(1);
    let held = lend(&pools).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (waiting, served) = (pools.clone(), served.clone());
        tasks.push(tokio::spawn(async move {
            let _lease = lend(&waiting).await;
            served.lock().unwrap().push(number);
        }));
        let queued = number + 1;
        until(&pools, "queued", |pools| {
            pools.stats()[0].cl_waiting == queued
        })
        .await;
    }
    assert!(pools.stats()[0].maxwait > Duration::ZERO);
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..8).collect::<Vec<_>>());
    assert_eq!(pools.stats()[0].connects, 1);
}

#[tokio::test]
async fn a_full_pool_is_53300_and_a_client_that_gave_up_leaves_the_queue() {
    let pools = pools(1);
    let held = lend(&pools).await;
    let limit = Duration::from_millis(30);
    let fault = pools
        .checkout(&endpoint(), &login("trusted"), limit)
        .await
        .unwrap_err();
    assert!(matches!(fault, Fault::PoolTimeout { .. }) && fault.sqlstate() == "53300");
    let gave_up = tokio::time::timeout(limit, lend(&pools)).await;
    assert!(gave_up.is_err());
    assert_eq!(pools.stats()[0].cl_waiting, 0);
    drop(held);
    lend(&pools).await;
}

#[tokio::test]
async fn a_connection_in_a_transaction_is_rolled_back_and_lent_again() {
    let pools = pools(1);
    let mut lease = lend(&pools).await;
    lease
        .simple("CREATE TABLE IF NOT EXISTS undone (n int)")
        .await
        .unwrap();
    lease.simple("BEGIN").await.unwrap();
    lease.simple("INSERT INTO undone VALUES (1)").await.unwrap();
    let pid = lease.pid();
    drop(lease);
    let mut other = lend(&pools).await;
    assert_eq!(other.pid(), pid);
    assert_eq!(
        value(&mut other, "SELECT count(*) FROM undone")
            .await
            .as_deref(),
        Some("0")
    );
}

#[tokio::test]
async fn a_statement_whose_client_left_is_cancelled() {
    let pools = pools(1);
    let mut lease = lend(&pools).await;
    let pid = lease.pid();
    lease
        .send(&query("SELECT pg_sleep_for('600 s')"))
        .await
        .unwrap();
    let mut watcher = connect().await;
    let running = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND query LIKE '%''600 s''%'"
    );
    wait_for(&mut watcher, &running, "1").await;
    drop(lease);
    wait_for(&mut watcher, &running, "0").await;
    assert_eq!(lend(&pools).await.pid(), pid);
}

#[tokio::test]
async fn a_batch_without_sync_whose_client_left_is_cancelled() {
    let pools = pools(1);
    let mut lease = lend(&pools).await;
    let mut out = BytesMut::new();
    frontend::parse("", "SELECT pg_sleep_for('700 s')", &[], &mut out);
    frontend::bind("", "", &[], &mut out);
    frontend::execute("", 0, &mut out);
    frontend::flush(&mut out);
    lease.send(&out).await.unwrap();
    let mut watcher = connect().await;
    let running = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND query LIKE '%''700 s''%'",
        lease.pid()
    );
    wait_for(&mut watcher, &running, "1").await;
    drop(lease);
    wait_for(&mut watcher, &running, "0").await;
}

#[tokio::test]
async fn a_cancel_hits_the_statement_it_was_meant_for() {
    let pools = pools(1);
    let mut lease = lend(&pools).await;
    let token = lease.cancel_token();
    let mut watcher = connect().await;
    let running = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND query LIKE '%''500 s''%'",
        lease.pid()
    );
    let cancel = async {
        wait_for(&mut watcher, &running, "1").await;
        token.cancel(LIMIT).await.unwrap();
    };
    let (result, ()) = tokio::join!(lease.simple("SELECT pg_sleep_for('500 s')"), cancel);
    let Err(ServerError::Sql(error)) = result else {
        panic!("cancelled: {result:?}")
    };
    assert_eq!(error.code, "57014");
    assert_eq!(value(&mut lease, "SELECT 1").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn nothing_of_a_dirty_session_is_seen_by_the_next_client() {
    let pools = pools(1);
    let mut lease = lend(&pools).await;
    let pid = lease.pid();
    lease.simple("SET pgdog.epoch = '7'").await.unwrap();
    lease.epoch = Some(Epoch(7));
    lease.simple("SET work_mem = '123kB'").await.unwrap();
    lease
        .simple("CREATE TEMP TABLE mine (n int)")
        .await
        .unwrap();
    lease.send(&prepare("s")).await.unwrap();
    lease.drain(LIMIT).await.unwrap();
    assert!(lease.prepared_at("s").is_some());
    lease.mark_dirty();
    drop(lease);
    let mut lease = lend(&pools).await;
    assert_eq!(lease.pid(), pid, "reset, not closed");
    assert_ne!(
        value(&mut lease, "SHOW work_mem").await.as_deref(),
        Some("123kB")
    );
    assert_eq!(value(&mut lease, "SELECT to_regclass('mine')").await, None);
    assert_eq!(
        value(&mut lease, "SHOW pgdog.report_commit_lsn")
            .await
            .as_deref(),
        Some("on")
    );
    assert!(lease.prepared_at("s").is_none() && lease.epoch.is_none());
}

#[tokio::test]
async fn statements_beyond_the_limit_are_closed_on_the_server() {
    let pools = Pools::new(PoolSettings {
        prepared_statements_limit: 3,
        ..Default::default()
    });
    let mut lease = lend(&pools).await;
    for number in 0..10 {
        lease.send(&prepare(&format!("s{number}"))).await.unwrap();
        let mut tags = Vec::new();
        while !lease.in_sync() {
            tags.push(lease.recv().await.unwrap().tag());
        }
        assert_eq!(tags, b"1Z", "closing is not seen by the caller");
    }
    let names = "SELECT string_agg(name, ',' ORDER BY name) FROM pg_prepared_statements";
    assert_eq!(value(&mut lease, names).await.as_deref(), Some("s7,s8,s9"));
    assert!(lease.prepared_at("s9").is_some() && lease.prepared_at("s6").is_none());
}

#[tokio::test]
async fn idle_connections_are_closed_after_the_timeout() {
    let idle_timeout = Duration::from_millis(50);
    let pools = Pools::new(PoolSettings {
        idle_timeout,
        ..Default::default()
    });
    let lease = lend(&pools).await;
    let pid = lease.pid();
    drop(lease);
    until(&pools, "expired", |pools| pools.stats()[0].sv_idle == 0).await;
    let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    wait_for(&mut connect().await, &gone, "0").await;
    assert_eq!(pools.servers(), []);
}

#[tokio::test]
async fn pools_of_made_up_parameters_are_forgotten() {
    let idle_timeout = Duration::from_millis(50);
    let pools = Pools::new(PoolSettings {
        idle_timeout,
        ..Default::default()
    });
    drop(lend(&pools).await);
    let params = vec![("application_name".to_owned(), "made up".to_owned())];
    let login = Login {
        params,
        ..login("trusted")
    };
    let lease = pools.checkout(&endpoint(), &login, LIMIT).await.unwrap();
    until(&pools, "expired", |pools| {
        pools.stats().iter().all(|pool| pool.sv_idle == 0)
    })
    .await;
    assert_eq!(pools.stats().len(), 2, "one is lent");
    drop(lease);
    until(&pools, "forgotten", |pools| pools.stats().len() == 1).await;
    assert_eq!(pools.stats()[0].checkouts, 1, "the usual pool is kept");
}

#[tokio::test]
async fn a_connection_that_died_while_idle_is_not_lent() {
    let pools = pools(1);
    let lease = lend(&pools).await;
    let pid = lease.pid();
    drop(lease);
    let mut watcher = connect().await;
    watcher
        .simple(&format!("SELECT pg_terminate_backend({pid}, 10000)"))
        .await
        .unwrap();
    let mut lease = lend(&pools).await;
    assert_ne!(lease.pid(), pid);
    assert_eq!(value(&mut lease, "SELECT 1").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn connections_closed_on_request_do_not_come_back() {
    let pools = pools(2);
    let (lent, idle) = (lend(&pools).await, lend(&pools).await);
    let old = [lent.pid(), idle.pid()];
    drop(idle);
    pools.close_all(&endpoint());
    assert_eq!(pools.stats()[0].sv_idle, 0);
    drop(lent);
    assert_eq!(pools.stats()[0].sv_idle, 0);
    let fresh = [lend(&pools).await.pid(), lend(&pools).await.pid()];
    assert!(
        fresh.iter().all(|pid| !old.contains(pid)),
        "{fresh:?} {old:?}"
    );
}

#[tokio::test]
async fn a_server_that_breaks_the_protocol_is_not_lent_again() {
    let unasked = Frame::new(tag::READY, b"I");
    let impossible = Frame::new(tag::READY, b"?");
    for answer in [vec![unasked.clone(), unasked], vec![impossible]] {
        let endpoint = scripted(Vec::new(), vec![answer]).await;
        let pools = pools(1);
        let login = Login::default();
        let mut lease = pools.checkout(&endpoint, &login, LIMIT).await.unwrap();
        let _ = lease.simple("SELECT 1").await;
        drop(lease);
        drop(pools.checkout(&endpoint, &login, LIMIT).await.unwrap());
        assert_eq!(pools.stats()[0].connects, 2);
    }
}

#[tokio::test]
async fn a_lease_dropped_in_the_middle_of_anything_leaves_the_pool_whole() {
    let pools = pools(2);
    let mut tasks = Vec::new();
    for number in 0..60u64 {
        let pools = pools.clone();
        tasks.push(tokio::spawn(async move {
            let work = async {
                let mut lease = lend(&pools).await;
                let big = format!("SELECT '{}', generate_series(1, 500)", "x".repeat(50_000));
                lease.simple(&big).await.unwrap();
            };
            // Some end in the queue, some while writing or reading, some are done.
            let _ = tokio::time::timeout(Duration::from_micros(number * 997), work).await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let (mut one, mut two) = (lend(&pools).await, lend(&pools).await);
    for lease in [&mut one, &mut two] {
        assert_eq!(
            value(lease, "SELECT 'alive'").await.as_deref(),
            Some("alive")
        );
    }
    assert_eq!(pools.stats()[0].sv_active, 2);
}
