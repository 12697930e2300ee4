//! Read floors, case by case (R078 to R085): tokens and commit timestamps, scopes, replicas that
//! lag, a failover that loses a write.
//!
//! One shard with two replicas behind two shims. The claim that promotes a replica comes last.

mod balance;
mod failover;
mod stamps;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::client::{Client, describe, sqlstate};
use pgdog_integration::faults::while_paused;
use pgdog_integration::{Cluster, Shape, claims, faults, fixture, suite, wait_until};

use balance::*;
use failover::*;
use stamps::*;

/// For what happens within moments.
const LIMIT: Duration = Duration::from_secs(60);

const REPLICAS: usize = 2;

fn main() -> ExitCode {
    let shape = Shape::shards(1).replicas(2).shims(2);
    let limit = match fixture::full_size() {
        true => Duration::from_secs(3600),
        false => suite::LIMIT,
    };
    suite::run_within(
        limit,
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r078_a_read_below_its_floor_waits_is_refused_or_falls_back,
            r079_a_floor_lasts_as_long_as_its_scope,
            r079_bad_values_leave_the_old_floor_and_the_highest_never_hangs,
            r080_no_read_misses_the_write_that_it_asks_for,
            r081_a_commit_timestamp_is_a_floor,
            r081_the_spelling_of_a_timestamp_does_not_matter,
            r082_an_old_commit_is_served_by_a_replica_and_now_by_somebody,
            min_commit_timestamp_is_set_and_taken_back_as_a_guc,
            every_commit_is_seen_under_its_own_timestamp,
            r083_a_token_counts_on_every_instance,
            r085_positions_are_compared_as_numbers,
            show_floors_tells_what_became_of_reads,
            reads_are_shared_out_as_the_strategy_says,
            a_transaction_goes_where_its_strategy_says,
            a_replica_too_far_behind_takes_no_reads,
            a_change_of_segments_is_no_lag,
            tokens_name_the_timeline,
            r084_a_write_lost_in_a_failover_is_said_to_be_lost,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    keep_stamps(cluster).await
}

/// Lets the primary tell the stamp of every commit, and makes the table.
async fn keep_stamps(cluster: &Cluster) -> anyhow::Result<()> {
    let node = cluster.primary(0).await?;
    node.batch_execute("ALTER SYSTEM SET track_commit_timestamp = on")
        .await?;
    let server = &cluster.shard(0)?.primary;
    let stopped = faults::stop_server(server).await?;
    stopped.restart(cluster, server).await?;
    wait_until("the restarted primary", LIMIT, || async {
        let Ok(client) = cluster.connect().await else {
            return Ok(None);
        };
        let sql = "CREATE TABLE IF NOT EXISTS notes (id bigint PRIMARY KEY, body text)";
        Ok(client.rows(sql).await.ok())
    })
    .await
    .map(drop)
}

/// `primary` or `replica`: who answered the statement before.
async fn role_of_answer(client: &Client) -> anyhow::Result<String> {
    let route = client.value("SHOW pgdog.last_route").await?;
    let role = route.split(' ').find_map(|word| word.strip_prefix("role="));
    role.map(str::to_owned).context(route.clone())
}

async fn body_of(client: &Client, id: i64) -> anyhow::Result<String> {
    client
        .value(&format!("SELECT body FROM notes WHERE id = {id}"))
        .await
}

/// The read is answered by a replica, sooner or later: until then it may be refused.
async fn read_from_a_replica(client: &Client, id: i64) -> anyhow::Result<String> {
    let sql = format!("SELECT body FROM notes WHERE id = {id}");
    wait_until("a read from a replica", LIMIT, || async {
        match client.rows(&sql).await {
            Ok(rows) => {
                ensure!(role_of_answer(client).await? == "replica", "not a replica");
                Ok(rows.into_iter().flatten().next())
            }
            Err(error) if sqlstate(&error) == "58000" => Ok(None),
            Err(error) => bail!("{}", describe(&error)),
        }
    })
    .await
}

async fn r078_a_read_below_its_floor_waits_is_refused_or_falls_back(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    while_paused(cluster, 0, async {
        client
            .write_then_floor("INSERT INTO notes VALUES (78, 'new')")
            .await?;
        let error = client
            .refused("SELECT body FROM notes WHERE id = 78", "58000")
            .await?;
        let said = error.as_db_error().context("not said by a server")?;
        let detail = said.detail().unwrap_or_default();
        ensure!(detail.contains("eta_ms="), "no estimate in {detail:?}");
        ensure!(said.hint().is_some(), "no HINT");
        // It is recoverable: the same connection goes on.
        client
            .batch_execute("SET pgdog.min_lsn_primary_fallback = on")
            .await?;
        ensure!(body_of(&client, 78).await? == "new");
        ensure!(role_of_answer(&client).await? == "primary");
        client
            .batch_execute("RESET pgdog.min_lsn_primary_fallback")
            .await?;
        Ok(())
    })
    .await?;
    ensure!(read_from_a_replica(&client, 78).await? == "new");
    Ok(())
}

async fn floor(client: &Client) -> anyhow::Result<String> {
    client.value("SHOW pgdog.min_lsn").await
}

async fn r079_a_floor_lasts_as_long_as_its_scope(cluster: &Cluster) -> anyhow::Result<()> {
    let mut login = cluster.login(0);
    login.options.push_str(" -c pgdog.min_lsn=0/10");
    let client = Client::connect(&login).await?;
    ensure!(floor(&client).await? == "0/10", "startup option");
    client.batch_execute("SET pgdog.min_lsn = '0/20'").await?;
    ensure!(floor(&client).await? == "0/20", "SET");
    client
        .batch_execute("BEGIN; SET LOCAL pgdog.min_lsn = '0/30'")
        .await?;
    ensure!(floor(&client).await? == "0/30", "SET LOCAL");
    client
        .batch_execute("SAVEPOINT a; SET pgdog.min_lsn = '0/40'; ROLLBACK TO a")
        .await?;
    ensure!(floor(&client).await? == "0/30", "ROLLBACK TO");
    client.batch_execute("COMMIT").await?;
    ensure!(floor(&client).await? == "0/20", "end of SET LOCAL");
    client
        .batch_execute("BEGIN; SET pgdog.min_lsn = '0/50'; ROLLBACK")
        .await?;
    ensure!(floor(&client).await? == "0/20", "ROLLBACK");
    client
        .rows("SELECT set_config('pgdog.min_lsn', '0/60', false)")
        .await?;
    ensure!(floor(&client).await? == "0/60", "set_config");
    client.batch_execute("SET pgdog.min_lsn = ''").await?;
    ensure!(floor(&client).await?.is_empty(), "no floor");
    client.batch_execute("RESET pgdog.min_lsn").await?;
    ensure!(floor(&client).await? == "0/10", "RESET");
    client.batch_execute("SET pgdog.min_lsn = '0/70'").await?;
    client.batch_execute("DISCARD ALL").await?;
    ensure!(floor(&client).await? == "0/10", "DISCARD ALL");
    // Nobody else is touched by any of it.
    ensure!(floor(&cluster.connect().await?).await?.is_empty(), "leaked");
    Ok(())
}

async fn r079_bad_values_leave_the_old_floor_and_the_highest_never_hangs(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client.batch_execute("SET pgdog.min_lsn = '0/10'").await?;
    for bad in ["zz", "1/2/3", "0/", "-1/0", "0/10 ", "0/10@", "0=0/1,0/2"] {
        client
            .refused(&format!("SET pgdog.min_lsn = '{bad}'"), "22023")
            .await?;
        ensure!(floor(&client).await? == "0/10", "{bad} took the floor away");
    }
    for good in ["0/0", "", "FFFFFFFF/FFFFFFFF"] {
        client
            .batch_execute(&format!("SET pgdog.min_lsn = '{good}'"))
            .await?;
        ensure!(floor(&client).await? == good);
    }
    // Nobody will ever have that: neither a replica nor the primary.
    client.refused("SELECT 1", "58000").await?;
    client
        .batch_execute("SET pgdog.min_lsn_primary_fallback = on")
        .await?;
    client.refused("SELECT 1", "58000").await?;
    client.batch_execute("SET pgdog.role = 'primary'").await?;
    client.refused("SELECT 1", "58000").await?;
    client.batch_execute("RESET ALL").await?;
    ensure!(client.value("SELECT 1").await? == "1");
    Ok(())
}

const WRITERS: i64 = 20;
const ROUNDS: i64 = 50;

/// How many of the reads came from a replica.
async fn writes_and_reads(cluster: &Cluster, writer: i64) -> anyhow::Result<i64> {
    let (one, other) = (cluster.connect().await?, cluster.connect().await?);
    other.batch_execute("SET pgdog.min_lsn_wait = '1s'").await?;
    let mut from_replica = 0;
    for round in 0..ROUNDS {
        let id = 80_000 + writer * ROUNDS + round;
        let token = one
            .write_for_token(&format!(
                "INSERT INTO notes VALUES ({id}, 'n{id}') RETURNING id"
            ))
            .await?;
        other
            .batch_execute(&format!("SET pgdog.min_lsn = '{token}'"))
            .await?;
        let sql = format!("SELECT body, pg_is_in_recovery()::text FROM notes WHERE id = {id}");
        let began = Instant::now();
        let row = loop {
            match other.rows(&sql).await {
                Ok(rows) => break rows.concat(),
                Err(error) if sqlstate(&error) == "58000" && began.elapsed() < LIMIT => {}
                Err(error) => bail!("{}", describe(&error)),
            }
        };
        ensure!(
            row.first() == Some(&format!("n{id}")),
            "missed {id}: {row:?}"
        );
        from_replica += i64::from(row[1] == "true" && began.elapsed() < LIMIT / 6);
    }
    Ok(from_replica)
}

async fn r080_no_read_misses_the_write_that_it_asks_for(cluster: &Cluster) -> anyhow::Result<()> {
    delay_replay(cluster, "200ms").await?;
    let readers = (0..WRITERS).map(|writer| writes_and_reads(cluster, writer));
    let outcome = try_join_all(readers).await;
    delay_replay(cluster, "0").await?;
    let from_replica: i64 = outcome?.iter().sum();
    let all = WRITERS * ROUNDS;
    println!("    {from_replica} of {all} reads from a replica");
    ensure!(
        from_replica * 10 >= all * 8,
        "only {from_replica} of {all} reads from a replica"
    );
    Ok(())
}

async fn delay_replay(cluster: &Cluster, delay: &str) -> anyhow::Result<()> {
    for replica in 0..REPLICAS {
        let node = cluster.replica(0, replica).await?;
        node.batch_execute(&format!(
            "ALTER SYSTEM SET recovery_min_apply_delay = '{delay}'"
        ))
        .await?;
        node.batch_execute("SELECT pg_reload_conf()").await?;
    }
    Ok(())
}

async fn r083_a_token_counts_on_every_instance(cluster: &Cluster) -> anyhow::Result<()> {
    let one = cluster.connect().await?;
    let other = Client::connect(&cluster.login(1)).await?;
    for id in 8300..8330 {
        let token = one
            .write_for_token(&format!("INSERT INTO notes VALUES ({id}, 'there')"))
            .await?;
        // Without the token either is right, but nothing fails.
        other
            .rows(&format!("SELECT body FROM notes WHERE id = {id}"))
            .await?;
        let floor = format!("SET pgdog.min_lsn = '{token}'");
        other.batch_execute(&floor).await?;
        ensure!(read_from_a_replica(&other, id).await? == "there");
        other.batch_execute("RESET pgdog.min_lsn").await?;
    }
    Ok(())
}

/// Every spelling of a position that is there is served; the next one up is not.
async fn r085_positions_are_compared_as_numbers(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let token = client
        .write_for_token("INSERT INTO notes VALUES (85, 'x')")
        .await?;
    let lsn = token.split('@').next().unwrap_or_default();
    let (high, low) = lsn.split_once('/').context("no position")?;
    let (wide, narrow) = (format!("{high:0>8}/{low:0>8}"), lsn.to_lowercase());
    let node = cluster.primary(0).await?;
    for same in [lsn, &wide, &narrow, "0/9", "0/10", "00000000/00000010"] {
        client
            .batch_execute(&format!("SET pgdog.min_lsn = '{same}'"))
            .await?;
        client
            .batch_execute("SET pgdog.min_lsn_wait = '30s'")
            .await?;
        ensure!(body_of(&client, 85).await? == "x", "{same}");
        ensure!(role_of_answer(&client).await? == "replica", "{same}");
        node.batch_execute(&format!("SET pgdog.wait_lsn = '{same}'"))
            .await?;
    }
    client.batch_execute("SET pgdog.min_lsn_wait = 0").await?;
    node.batch_execute("SET pgdog.wait_lsn_timeout = 0").await?;
    let high = u32::from_str_radix(high, 16)?;
    for above in [
        format!("{:x}/0", high + 1),
        format!("{high:X}/FFFFFFFF"),
        format!("{:X}/0", u64::from(high) * 16 + 16),
    ] {
        client
            .batch_execute(&format!("SET pgdog.min_lsn = '{above}'"))
            .await?;
        client.refused("SELECT 1", "58000").await?;
        node.refused(&format!("SET pgdog.wait_lsn = '{above}'"), "58000")
            .await?;
    }
    Ok(())
}

/// Of all nodes together: proved or guarded, fell back, refused, waits.
async fn counted(cluster: &Cluster) -> anyhow::Result<[u64; 4]> {
    let admin = cluster.admin(0).await?;
    let mut sums = [0; 4];
    for row in admin.named_rows("SHOW FLOORS").await? {
        let of = |column: &str| -> anyhow::Result<u64> {
            let cell = row.get(column).with_context(|| format!("no {column}"))?;
            Ok(cell.parse()?)
        };
        let now = [
            of("proved")? + of("guarded")?,
            of("fell_back")?,
            of("refused")?,
            of("waited")?,
        ];
        for (sum, now) in sums.iter_mut().zip(now) {
            *sum += now;
        }
    }
    Ok(sums)
}

async fn show_floors_tells_what_became_of_reads(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let [kept, fell_back, refused, _] = counted(cluster).await?;
    while_paused(cluster, 0, async {
        client
            .write_then_floor("INSERT INTO notes VALUES (86, 'counted')")
            .await?;
        client
            .refused("SELECT body FROM notes WHERE id = 86", "58000")
            .await?;
        client
            .batch_execute("SET pgdog.min_lsn_primary_fallback = on")
            .await?;
        body_of(&client, 86).await?;
        Ok(())
    })
    .await?;
    client
        .batch_execute("SET pgdog.min_lsn_wait = '30s'")
        .await?;
    body_of(&client, 86).await?;
    let now = counted(cluster).await?;
    ensure!(now[0] == kept + 1, "kept: {kept}, then {now:?}");
    ensure!(
        now[1] == fell_back + 1,
        "fell back: {fell_back}, then {now:?}"
    );
    ensure!(now[2] == refused + 1, "refused: {refused}, then {now:?}");
    ensure!(now[3] > 0, "nobody waited: {now:?}");
    Ok(())
}
