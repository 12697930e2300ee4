//! Omnisharded writes and two-phase commits: the same on every shard, or nowhere, and said so.

mod doubt;
mod ends;
mod killed;
mod phases;

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::client::{describe, sqlstate};
use pgdog_integration::faults::stop_server;
use pgdog_integration::fixture::{create, full_size, plain};
use pgdog_integration::wire::{Batch, Wire, rows, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite};

use doubt::{
    r114_a_decision_by_hand_is_carried_out,
    r114_a_part_that_was_rolled_back_by_hand_is_told_and_listed,
    r115_a_copy_that_loses_a_shard_at_its_end_is_whole_or_not_at_all,
    r116_what_is_in_doubt_is_shown_and_silences_nobody,
};
use ends::{
    a_path_that_a_role_has_lost_is_looked_at_no_more,
    a_role_for_the_transaction_commits_on_every_shard, reset_all_leaves_servers_in_the_picture,
};
use killed::killed_at_every_point_of_a_commit_all_shards_agree;
use phases::{
    r113_a_constraint_that_fails_at_the_end_undoes_both,
    r117_one_shard_and_reads_need_no_two_phases,
};

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2).shims(2),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            reset_all_leaves_servers_in_the_picture,
            a_path_that_a_role_has_lost_is_looked_at_no_more,
            a_role_for_the_transaction_commits_on_every_shard,
            r107_rows_are_counted_once_and_equal,
            r108_a_value_is_computed_once_or_refused,
            r109_writers_in_opposite_order_leave_equal_shards,
            r110_own_changes_are_seen_and_nothing_is_doubled,
            r112_every_kind_of_write_leaves_equal_shards,
            r113_a_constraint_that_fails_at_the_end_undoes_both,
            r117_one_shard_and_reads_need_no_two_phases,
            r114_a_part_that_was_rolled_back_by_hand_is_told_and_listed,
            r114_a_decision_by_hand_is_carried_out,
            r115_a_copy_that_loses_a_shard_at_its_end_is_whole_or_not_at_all,
            r116_what_is_in_doubt_is_shown_and_silences_nobody,
            killed_at_every_point_of_a_commit_all_shards_agree,
            r111_a_write_without_one_shard_is_on_none,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await
}

/// The rows of `rates` on each shard, which must be the same; returns them.
pub async fn equal(cluster: &Cluster) -> anyhow::Result<Vec<Vec<String>>> {
    let sql = "SELECT code, pct FROM rates ORDER BY code";
    let first = cluster.primary(0).await?.rows(sql).await?;
    let second = cluster.primary(1).await?.rows(sql).await?;
    ensure!(first == second, "{first:?} and {second:?}");
    Ok(first)
}

async fn says(wire: &mut Wire, sql: &str, expected: &str) -> anyhow::Result<()> {
    let found = shape(&wire.query(sql).await?);
    ensure!(found == expected, "{sql}: {found}");
    Ok(())
}

async fn r107_rows_are_counted_once_and_equal(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    says(
        &mut wire,
        "INSERT INTO rates VALUES ('c', 1), ('d', 2)",
        "C(INSERT 0 2) Z(I)",
    )
    .await?;
    says(
        &mut wire,
        "UPDATE rates SET pct = 3 WHERE code = 'c'",
        "C(UPDATE 1) Z(I)",
    )
    .await?;
    equal(cluster).await?;
    let deleted = wire
        .query("DELETE FROM rates WHERE code IN ('c', 'd') RETURNING code, pct")
        .await?;
    ensure!(
        shape(&deleted) == "T D D C(DELETE 2) Z(I)",
        "{}",
        shape(&deleted)
    );
    let codes: Vec<_> = rows(&deleted)
        .into_iter()
        .map(|row| row[0].clone())
        .collect();
    ensure!(
        codes == [Some("c".to_owned()), Some("d".to_owned())],
        "{codes:?}"
    );
    ensure!(equal(cluster).await?.len() == 2);
    Ok(())
}

/// What each server would compute for itself is refused; what was asked first is equal.
async fn r108_a_value_is_computed_once_or_refused(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE stamped (id serial PRIMARY KEY, at timestamptz DEFAULT now(), \
         mark uuid DEFAULT gen_random_uuid(), r float8 DEFAULT random(), note text)",
        "SELECT pgdog.omni_table('stamped')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    let mut refused = 0;
    for n in 0..20 {
        for sql in [
            format!("INSERT INTO stamped (note) VALUES ('{n}')"),
            format!("INSERT INTO stamped VALUES ({n}, now(), gen_random_uuid(), random(), 'x')"),
            "INSERT INTO stamped (note) SELECT code FROM rates".to_owned(),
        ] {
            if let Err(error) = client.batch_execute(&sql).await {
                ensure!(sqlstate(&error) == "0A000", "{sql}: {}", describe(&error));
                refused += 1;
            }
        }
        let id = client.value("SELECT nextval('stamped_id_seq')").await?;
        let values = client
            .rows("SELECT now(), gen_random_uuid(), random()")
            .await?
            .into_iter()
            .next()
            .context("no values")?;
        let sql = format!(
            "INSERT INTO stamped VALUES ({id}, '{}', '{}', {}, 'asked')",
            values[0], values[1], values[2]
        );
        client.batch_execute(&sql).await.context(sql)?;
    }
    let all = "SELECT * FROM stamped ORDER BY id";
    let first = cluster.primary(0).await?.rows(all).await?;
    let second = cluster.primary(1).await?.rows(all).await?;
    ensure!(first == second, "{first:?} and {second:?}");
    ensure!(
        first.len() + refused == 20 + 60,
        "{} rows, {refused} refused",
        first.len()
    );
    Ok(())
}

/// Transactions that wait for each other are told apart by the servers; statements alone never do.
async fn r109_writers_in_opposite_order_leave_equal_shards(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let before = sum(cluster).await?;
    let alone = (0..8).map(|writer| add_alone(cluster, writer));
    let alone: i64 = try_join_all(alone).await?.into_iter().sum();
    // Every wait for each other ends after deadlock_timeout, 1 s.
    let writers = if full_size() { 8 } else { 4 };
    let together = (0..writers).map(|writer| add_together(cluster, writer));
    let together: i64 = try_join_all(together).await?.into_iter().sum();
    let (done, after) = (alone + together, sum(cluster).await?);
    ensure!(
        after - before == done as f64,
        "{done} additions: {before} to {after}"
    );
    Ok(())
}

/// Rounds of one writer; some minutes at full size.
fn rounds() -> i64 {
    if full_size() { 200 } else { 2 }
}

fn codes(writer: usize) -> [&'static str; 2] {
    [["a", "b"], ["b", "a"]][writer / 2 % 2]
}

fn add(code: &str) -> String {
    format!("UPDATE rates SET pct = pct + 1 WHERE code = '{code}'")
}

async fn add_alone(cluster: &Cluster, writer: usize) -> anyhow::Result<i64> {
    let mut wire = Wire::connect(&plain(cluster, writer % 2)).await?;
    for _ in 0..rounds() {
        for code in codes(writer) {
            says(&mut wire, &add(code), "C(UPDATE 1) Z(I)").await?;
        }
    }
    Ok(2 * rounds())
}

async fn add_together(cluster: &Cluster, writer: usize) -> anyhow::Result<i64> {
    let mut wire = Wire::connect(&plain(cluster, writer % 2)).await?;
    let mut done = 0;
    while done < 2 * rounds() {
        let mut all = String::new();
        for sql in [
            "BEGIN",
            &add(codes(writer)[0]),
            &add(codes(writer)[1]),
            "COMMIT",
        ] {
            all = format!("{all} {}", shape(&wire.query(sql).await?));
        }
        match all.ends_with("C(COMMIT) Z(I)") {
            true => done += 2,
            false => ensure!(
                ["E(40P01)", "E(55P03)", "E(40001)"]
                    .iter()
                    .any(|code| all.contains(code)),
                "{all}"
            ),
        }
    }
    Ok(done)
}

async fn sum(cluster: &Cluster) -> anyhow::Result<f64> {
    let rows = equal(cluster).await?;
    let values = rows.iter().map(|row| row[1].parse::<f64>());
    Ok(values.sum::<Result<f64, _>>()?)
}

async fn r110_own_changes_are_seen_and_nothing_is_doubled(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    wire.query("BEGIN").await?;
    says(
        &mut wire,
        "UPDATE rates SET pct = 77 WHERE code = 'a'",
        "C(UPDATE 1) Z(T)",
    )
    .await?;
    for _ in 0..20 {
        let found = value(&wire.query("SELECT pct FROM rates WHERE code = 'a'").await?);
        ensure!(found.as_deref() == Some("77"), "{found:?}");
    }
    wire.query("COMMIT").await?;
    let mut oids = Vec::new();
    for _ in 0..20 {
        let found = value(&wire.query("SELECT count(*) FROM rates").await?);
        ensure!(found.as_deref() == Some("2"), "{found:?}");
        oids.push(value(&wire.query("SELECT 'rates'::regclass::oid").await?));
    }
    oids.dedup();
    ensure!(oids.len() == 1, "{oids:?}");
    equal(cluster).await?;
    Ok(())
}

async fn r112_every_kind_of_write_leaves_equal_shards(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    wire.send(&Batch::new().query("COPY rates FROM STDIN").bytes)
        .await?;
    ensure!(wire.read().await?.tag == 'G');
    let data = Batch::new().copy_data(b"x\t1\ny\t2\nz\t3\n").copy_done();
    let found = shape(&wire.ask(&data).await?);
    ensure!(found == "C(COPY 3) Z(I)", "{found}");
    ensure!(equal(cluster).await?.len() == 5);
    let merge = "MERGE INTO rates r USING (VALUES ('x', 9), ('new', 1)) AS v(code, pct) \
                 ON r.code = v.code WHEN MATCHED THEN UPDATE SET pct = v.pct \
                 WHEN NOT MATCHED THEN INSERT VALUES (v.code, v.pct)";
    says(&mut wire, merge, "C(MERGE 2) Z(I)").await?;
    ensure!(equal(cluster).await?.len() == 6);
    let prepared = Batch::new()
        .parse("set", "UPDATE rates SET pct = $1 WHERE code = $2")
        .bind("set", &["5", "x"])
        .execute(0)
        .bind("set", &["6", "y"])
        .execute(0)
        .sync();
    let found = shape(&wire.ask(&prepared).await?);
    ensure!(found == "1 2 C(UPDATE 1) 2 C(UPDATE 1) Z(I)", "{found}");
    equal(cluster).await?;
    let scattered = "INSERT INTO rates SELECT 's' || tenant_id, 1 FROM orders";
    let found = shape(&wire.query(scattered).await?);
    ensure!(found == "E(0A000) Z(I)", "{found}");
    ensure!(equal(cluster).await?.len() == 6);
    says(&mut wire, "TRUNCATE rates", "C(TRUNCATE TABLE) Z(I)").await?;
    ensure!(equal(cluster).await?.is_empty());
    says(
        &mut wire,
        "INSERT INTO rates VALUES ('a', 1), ('b', 2)",
        "C(INSERT 0 2) Z(I)",
    )
    .await
}

async fn r111_a_write_without_one_shard_is_on_none(cluster: &Cluster) -> anyhow::Result<()> {
    let server = &cluster.shard(1)?.primary;
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    let stopped = stop_server(server).await?;
    let found = shape(&wire.query("INSERT INTO rates VALUES ('d', 5)").await?);
    // What lives elsewhere is served, whichever shard is the new client's own.
    let served = try_join_all((0..2).map(|_| async {
        let mut wire = Wire::connect(&plain(cluster, 0)).await?;
        let read = "SELECT count(*) FROM orders WHERE tenant_id = 11";
        anyhow::Ok(shape(&wire.query(read).await?))
    }))
    .await;
    stopped.restart(cluster, server).await?;
    let served = served?;
    ensure!(
        served.iter().all(|found| found == "T D C(SELECT 1) Z(I)"),
        "{served:?}"
    );
    ensure!(
        found.starts_with("E(08") || found.starts_with("E(57P"),
        "{found}"
    );
    let rows = equal(cluster).await.context("after the restart")?;
    ensure!(rows.iter().all(|row| row[0] != "d"), "{rows:?}");
    Ok(())
}
