//! Temporary tables, cursors, advisory locks, LISTEN and large objects: what cannot travel keeps
//! its server connection for its client, says so, and lets it go when it is gone.

mod code;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use futures_util::future::try_join_all;
use pgdog_integration::client::Client;
use pgdog_integration::faults::kill_server;
use pgdog_integration::fixture::{configure, direct, wire};
use pgdog_integration::wire::{Message, Wire, ask, expect, shape};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};

use code::{
    a_lock_left_on_a_replica_is_refused_once, a_seed_is_kept_and_not_handed_on,
    code_replaced_behind_the_shim_is_noticed, code_that_leaves_something_pins,
    values_of_sequences_are_ones_own, whatever_code_sets_follows_its_client,
};

/// A shim with two server connections.
const TWO: usize = 0;
/// Another one.
const OTHER: usize = 1;

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let shape = Shape::shards(1).replicas(1).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r055_temporary_tables_belong_to_their_client,
            r056_a_cursor_with_hold_is_read_in_later_transactions,
            r057_an_advisory_lock_holds_across_instances,
            r058_discard_all_ends_listening_and_locks,
            r060_large_objects_are_kept_on_the_primary,
            what_a_rollback_takes_away_pins_nobody,
            code_that_leaves_something_pins,
            whatever_code_sets_follows_its_client,
            code_replaced_behind_the_shim_is_noticed,
            a_lock_left_on_a_replica_is_refused_once,
            a_seed_is_kept_and_not_handed_on,
            values_of_sequences_are_ones_own,
            // Last, as it restarts the server.
            r059_notifications_follow_commits_and_a_restart_is_noticed,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    for shim in [TWO, OTHER] {
        let lines = ["default_pool_size = 2", "checkout_timeout = 60000"];
        configure(cluster, shim, &lines).await?;
    }
    code::define(cluster).await
}

async fn done(client: &mut Wire, sql: &str) -> anyhow::Result<()> {
    let answers = shape(&client.query(sql).await?);
    ensure!(!answers.contains("E("), "{sql}: {answers}");
    Ok(())
}

/// Why clients are pinned, as `SHOW CLIENTS` says.
async fn pinned(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let admin = cluster.admin(TWO).await?;
    let rows = admin.rows("SHOW CLIENTS").await?;
    let reasons = rows.into_iter().filter_map(|row| row.last().cloned());
    Ok(reasons.filter(|why| !why.is_empty()).collect())
}

async fn r055_temporary_tables_belong_to_their_client(cluster: &Cluster) -> anyhow::Result<()> {
    try_join_all((0..4).map(|own| async move {
        let mut client = wire(cluster, TWO).await?;
        done(&mut client, "create temp table tt (x int)").await?;
        done(&mut client, &format!("insert into tt values ({own})")).await?;
        for _ in 0..20 {
            expect(&mut client, "select x from tt", &own.to_string()).await?;
        }
        done(&mut client, "DISCARD TEMP").await?;
        anyhow::Ok(())
    }))
    .await?;
    ensure!(pinned(cluster).await?.is_empty());
    let node = Client::connect(&direct(cluster, 0)?).await?;
    let left = "select count(*) from pg_class where relname = 'tt'";
    wait_until("no temporary table is left", LIMIT, || async {
        Ok((node.value(left).await? == "0").then_some(()))
    })
    .await?;
    // Dropped by name, and without a word.
    let mut client = wire(cluster, TWO).await?;
    done(&mut client, "create temp table tt (x int)").await?;
    ensure!(pinned(cluster).await? == ["temporary table"]);
    done(&mut client, "drop table tt").await?;
    ensure!(pinned(cluster).await?.is_empty());
    done(&mut client, "create temp table tt (x int)").await?;
    drop(client);
    wait_until("no temporary table is left", LIMIT, || async {
        Ok((node.value(left).await? == "0").then_some(()))
    })
    .await
}

async fn r056_a_cursor_with_hold_is_read_in_later_transactions(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = wire(cluster, TWO).await?;
    done(&mut client, "BEGIN").await?;
    let declare = "declare c cursor with hold for select generate_series(1, 3)";
    done(&mut client, declare).await?;
    done(&mut client, "COMMIT").await?;
    ensure!(pinned(cluster).await? == ["cursor WITH HOLD"]);
    let mut other = wire(cluster, TWO).await?;
    for expected in ["1", "2", "3"] {
        done(&mut other, "select 0").await?;
        expect(&mut client, "fetch 1 from c", expected).await?;
    }
    done(&mut client, "CLOSE c").await?;
    ensure!(pinned(cluster).await?.is_empty());
    ensure!(shape(&client.query("fetch 1 from c").await?) == "E(34000) Z(I)");
    Ok(())
}

async fn r057_an_advisory_lock_holds_across_instances(cluster: &Cluster) -> anyhow::Result<()> {
    let try_lock = "select pg_try_advisory_lock(77)";
    for free in [
        "select pg_advisory_unlock(77)",
        "select pg_advisory_unlock_all()",
    ] {
        let mut a = wire(cluster, TWO).await?;
        done(&mut a, "select pg_advisory_lock(77)").await?;
        ensure!(pinned(cluster).await? == ["advisory lock"]);
        let (mut b, mut c) = (wire(cluster, OTHER).await?, wire(cluster, TWO).await?);
        for _ in 0..50 {
            expect(&mut b, try_lock, "f").await?;
        }
        expect(&mut c, try_lock, "f").await?;
        done(&mut a, free).await?;
        ensure!(pinned(cluster).await?.is_empty());
        expect(&mut b, try_lock, "t").await?;
        done(&mut b, free).await?;
    }
    Ok(())
}

async fn r058_discard_all_ends_listening_and_locks(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, TWO).await?;
    done(&mut a, "LISTEN x").await?;
    ensure!(pinned(cluster).await? == ["LISTEN"]);
    done(&mut a, "select pg_advisory_lock(9)").await?;
    done(&mut a, "DISCARD ALL").await?;
    ensure!(pinned(cluster).await?.is_empty());
    let mut b = wire(cluster, OTHER).await?;
    expect(&mut b, "select pg_try_advisory_lock(9)", "t").await?;
    done(&mut b, "NOTIFY x").await?;
    done(&mut b, "select pg_advisory_unlock(9)").await?;
    // Whatever was on its way has come once this one, sent later, is here.
    done(&mut a, "LISTEN y").await?;
    done(&mut b, "NOTIFY y").await?;
    let heard = next_notification(&mut a).await?;
    ensure!(heard == "y", "{heard}");
    done(&mut a, "UNLISTEN *").await?;
    ensure!(pinned(cluster).await?.is_empty());
    Ok(())
}

/// The channel of the next notification, which comes without being asked for.
async fn next_notification(client: &mut Wire) -> anyhow::Result<String> {
    loop {
        let message: Message = client.read().await?;
        if message.tag == 'A' {
            let channel = message.body[4..].split(|byte| *byte == 0).next();
            return Ok(String::from_utf8_lossy(channel.unwrap_or_default()).into_owned());
        }
    }
}

async fn r059_notifications_follow_commits_and_a_restart_is_noticed(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut a = wire(cluster, TWO).await?;
    done(&mut a, "LISTEN news").await?;
    let mut b = wire(cluster, OTHER).await?;
    done(&mut b, "BEGIN; NOTIFY news, 'rolled back'; ROLLBACK").await?;
    done(&mut b, "BEGIN; NOTIFY news, 'committed'; COMMIT").await?;
    let notification = loop {
        let message = a.read().await?;
        if message.tag == 'A' {
            break message;
        }
    };
    let text = String::from_utf8_lossy(&notification.body).into_owned();
    ensure!(text.contains("committed"), "{text}");

    let primary = &cluster.shard(0)?.primary;
    kill_server(primary)?.restart(cluster, primary).await?;
    // It is told, and its connection closed: a driver listens anew.
    let told = loop {
        match a.read().await {
            Ok(message) if message.tag == 'E' => break shape(&[message]),
            Ok(_) => {}
            Err(_) => break "closed".to_owned(),
        }
    };
    ensure!(
        told == "closed" || told.starts_with("E(57P") || told == "E(08006)",
        "{told}"
    );
    wait_until("a new listener", LIMIT, || async {
        let Ok(mut again) = wire(cluster, TWO).await else {
            return Ok(None);
        };
        let listens = shape(&again.query("LISTEN news").await?);
        Ok((listens == "C(LISTEN) Z(I)").then_some(()))
    })
    .await
}

async fn r060_large_objects_are_kept_on_the_primary(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, TWO).await?;
    done(&mut client, "BEGIN").await?;
    let oid = ask(&mut client, "select lo_create(0)").await?;
    let fd = ask(&mut client, &format!("select lo_open({oid}, 131072)")).await?;
    for letter in ["a", "b", "c"] {
        let write =
            format!("select lowrite({fd}, convert_to(repeat('{letter}', 1048576), 'UTF8'))");
        expect(&mut client, &write, "1048576").await?;
    }
    expect(&mut client, &format!("select lo_close({fd})"), "0").await?;
    done(&mut client, "COMMIT").await?;
    done(&mut client, "BEGIN").await?;
    let fd = ask(&mut client, &format!("select lo_open({oid}, 262144)")).await?;
    let read = format!("select md5(loread({fd}, 4000000)), pg_is_in_recovery()");
    let expected = "select md5(convert_to(repeat('a', 1048576) || repeat('b', 1048576) || \
                    repeat('c', 1048576), 'UTF8'))";
    let read = ask(&mut client, &read).await?;
    expect(&mut client, expected, &read).await?;
    done(&mut client, "COMMIT").await?;
    let again = ask(&mut client, &format!("select md5(lo_get({oid}))")).await?;
    ensure!(again == read);
    done(&mut client, &format!("select lo_unlink({oid})")).await?;
    ensure!(pinned(cluster).await?.is_empty());
    Ok(())
}

async fn what_a_rollback_takes_away_pins_nobody(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, TWO).await?;
    for (made, why) in [
        ("create temp table gone (a int)", Some("temporary table")),
        ("create temp table gone (a int) on commit drop", None),
        ("LISTEN gone", Some("LISTEN")),
        (
            "declare gone cursor with hold for select 1",
            Some("cursor WITH HOLD"),
        ),
        ("select pg_advisory_xact_lock(3)", None),
    ] {
        done(&mut client, &format!("BEGIN; {made}")).await?;
        done(&mut client, "ROLLBACK").await?;
        ensure!(pinned(cluster).await?.is_empty(), "{made}");
        done(&mut client, &format!("BEGIN; {made}; COMMIT")).await?;
        let found = pinned(cluster).await?;
        ensure!(
            found.first().map(String::as_str) == why,
            "{made}: {found:?}"
        );
        done(&mut client, "DISCARD ALL").await?;
        ensure!(pinned(cluster).await?.is_empty(), "{made}");
    }
    let failed = shape(
        &client
            .query("create temp table gone (a no_such_type)")
            .await?,
    );
    ensure!(failed.starts_with("E("), "{failed}");
    ensure!(pinned(cluster).await?.is_empty(), "nothing came about");
    Ok(())
}
