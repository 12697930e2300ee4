//! Pools against a real server: their bounds, and how those change.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use pgdog_shim::server::{Claim, Leader, PoolSettings, Pools};

mod server_support;
use server_support::{LIMIT, connect, endpoint, lend, login, pools, until, wait_for};

#[tokio::test]
async fn a_used_pool_keeps_its_minimum_open() {
    let pools = Pools::new(PoolSettings {
        size: 5,
        min: 3,
        idle_timeout: Duration::from_millis(50),
        ..Default::default()
    });
    let held = [lend(&pools).await, lend(&pools).await];
    until(&pools, "filled", |pools| pools.servers().len() == 3).await;
    let kept = pools.servers();
    drop(held);
    let more: Vec<_> = [lend(&pools).await, lend(&pools).await].into();
    drop(more);
    until(&pools, "three", |pools| pools.servers().len() == 3).await;
    let known = |pid| kept.iter().any(|server| server.pid == pid);
    assert!(pools.servers().iter().all(|server| known(server.pid)));
}

#[tokio::test]
async fn a_connection_is_replaced_at_the_end_of_its_life() {
    let pools = Pools::new(PoolSettings {
        size: 1,
        lifetime: Duration::ZERO,
        ..Default::default()
    });
    let first = lend(&pools).await;
    let pid = first.pid();
    drop(first);
    assert_ne!(lend(&pools).await.pid(), pid);
}

#[tokio::test]
async fn other_settings_change_the_size_and_leave_what_fits() {
    let pools = pools(3);
    let held = [lend(&pools).await, lend(&pools).await, lend(&pools).await];
    let pids = held.each_ref().map(|lease| lease.pid());
    drop(held);
    pools.configure(PoolSettings::clone(&pools.settings()));
    let mut again: Vec<_> = Vec::new();
    for _ in 0..3 {
        again.push(lend(&pools).await);
    }
    assert!(again.iter().all(|lease| pids.contains(&lease.pid())));
    let smaller = PoolSettings {
        size: 1,
        ..PoolSettings::default()
    };
    pools.configure(smaller.clone());
    assert_eq!(pools.stats()[0].size, 1);
    drop(again);
    until(&pools, "one is left", |pools| pools.servers().len() <= 1).await;
    let _one = lend(&pools).await;
    let limit = Duration::from_millis(30);
    let full = pools.checkout(&endpoint(), &login("trusted"), limit).await;
    assert!(full.is_err());
    pools.configure(PoolSettings { size: 2, ..smaller });
    lend(&pools).await;
}

#[tokio::test]
async fn a_paused_pool_lends_to_nobody_new() {
    let pools = pools(2);
    let mut leader = Leader::default();
    pools.pause(&[endpoint()]);
    let pool = pools.pool(&endpoint(), &login("trusted"));
    let waits = tokio::time::timeout(Duration::from_millis(30), lend(&pools)).await;
    assert!(
        waits.is_err() && pools.stats()[0].paused,
        "made while paused, paused"
    );
    let claim = Claim::Several {
        leader: &mut leader,
        holds: true,
    };
    pool.checkout_for(claim, LIMIT).await.unwrap();
    let (lease, ()) = tokio::join!(lend(&pools), async {
        pools.resume(&[endpoint()]);
    });
    drop(lease);
}

/// The short way looks at another note of the pause than everybody else.
#[tokio::test]
async fn two_operators_leave_a_pool_of_one_mind() {
    let pools = pools(2);
    drop(lend(&pools).await);
    let pool = pools.pool(&endpoint(), &login("trusted"));
    let round = std::sync::Barrier::new(3);
    let mut differed = false;
    std::thread::scope(|scope| {
        for pauses in [true, false] {
            let (round, pools) = (&round, &pools);
            scope.spawn(move || {
                for _ in 0..2000 {
                    round.wait();
                    match pauses {
                        true => pools.pause(&[endpoint()]),
                        false => pools.resume(&[endpoint()]),
                    }
                    round.wait();
                }
            });
        }
        for _ in 0..2000 {
            round.wait();
            round.wait();
            let lends = pool.checkout_now(std::time::Instant::now()).is_some();
            // A panic here would leave the others waiting for the next round.
            differed |= pools.stats()[0].paused == lends;
        }
    });
    assert!(!differed);
}

#[tokio::test]
async fn pools_of_endpoints_that_are_not_served_any_more_are_given_up() {
    let pools = pools(2);
    let (lent, idle) = (lend(&pools).await, lend(&pools).await);
    drop(idle);
    pools.keep_only(|_| false);
    assert!(pools.stats().is_empty());
    let pid = lent.pid();
    drop(lent);
    let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    wait_for(&mut connect().await, &gone, "0").await;
}
