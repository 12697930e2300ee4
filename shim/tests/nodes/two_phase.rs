//! What a shim concludes about parts of two-phase transactions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pgdog_core::ids::Epoch;
use pgdog_shim::nodes::{Cluster, Part};

use crate::cluster::{ONE, ZERO, declared, prepare, two_shards};
use crate::support::{Server, eventually};

const PREPARED: &str = "SELECT count(*)::text FROM pg_prepared_xacts";

/// Waits until recovery has looked once more.
async fn next_look(cluster: &Cluster) {
    let last = cluster.unfinished();
    eventually("the next look", async || {
        !Arc::ptr_eq(&last, &cluster.unfinished())
    })
    .await;
}

/// A standby does not show what is prepared: it is not taken for undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_in_the_place_of_a_primary_decides_nothing() {
    let (zero, one) = two_shards().await;
    let cluster = declared(&zero, &one).await;
    let gid = cluster.new_gid((ZERO, &[ONE]), Epoch(1)).await;
    let gid = gid.expect("the lock is free");
    prepare(&zero, &gid, 1, true).await;
    prepare(&one, &gid, 1, true).await;
    zero.restart_as_standby();
    eventually("the standby answers", async || {
        cluster.error_of(&zero.address()).is_none()
    })
    .await;
    assert_eq!(cluster.topology().shards[0].primary, zero.address());
    // Nobody is to finish it but recovery.
    drop(gid);
    next_look(&cluster).await;
    next_look(&cluster).await;
    assert_eq!(one.value(PREPARED).await, "1");
    zero.promote();
    eventually("it is rolled back", async || {
        zero.value(PREPARED).await == "0" && one.value(PREPARED).await == "0"
    })
    .await;
    let rows = "SELECT count(*)::text FROM tenants";
    assert_eq!([zero.value(rows).await, one.value(rows).await], ["0", "0"]);
    cluster.stop().await;
}

/// A part whose own connection is lost is committed by another one, or is told of as it is.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_known_what_became_of_a_part() {
    let (zero, one) = two_shards().await;
    let cluster = declared(&zero, &one).await;
    let record = async |server: &Server, gid: &str| {
        let sql = format!("SELECT pgdog.two_phase_record('{gid}')");
        server.sql("app", &sql).await;
    };
    let new = async || {
        let gid = cluster.new_gid((ZERO, &[ONE]), Epoch(1)).await;
        gid.expect("the lock is free")
    };
    let asked = Instant::now();

    let gid = new().await;
    prepare(&one, &gid, 1, true).await;
    let before = one.value("SELECT pg_current_wal_lsn()::text").await;
    let before: pgdog_core::lsn::Lsn = before.parse().expect("a position");
    // The second time somebody else has done it.
    for _ in 0..2 {
        match cluster.finish_part(&gid, ONE, (ZERO, asked)).await {
            Part::Committed(end) => assert!(end > before, "{end} and {before}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(one.value("SELECT count(*)::text FROM tenants").await, "1");
    assert!(!cluster.undo_part(&gid, ONE).await, "it is committed");

    let gid = new().await;
    record(&zero, &gid).await;
    let lost = cluster.finish_part(&gid, ONE, (ZERO, asked)).await;
    assert_eq!(lost, Part::Lost);
    record(&zero, &format!("{}:settled", &*gid)).await;
    let purged = cluster.finish_part(&gid, ONE, (ZERO, asked)).await;
    assert!(matches!(purged, Part::Committed(_)), "{purged:?}");

    let gid = new().await;
    let gone = cluster.finish_part(&gid, ONE, (ZERO, Instant::now())).await;
    assert_eq!(gone, Part::Gone);
    if let Some(long_ago) = asked.checked_sub(Duration::from_secs(60)) {
        // Its rows may have been purged meanwhile.
        let unknown = cluster.finish_part(&gid, ONE, (ZERO, long_ago)).await;
        assert_eq!(unknown, Part::Unknown);
    }
    prepare(&one, &gid, 2, true).await;
    assert!(cluster.undo_part(&gid, ONE).await);
    assert!(cluster.undo_part(&gid, ONE).await, "it is gone");
    assert_eq!(one.value(PREPARED).await, "0");
    cluster.stop().await;
}
