//! What writes keys: rows of several shards, and changes of a key.

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::Cluster;
use pgdog_integration::fixture::count;
use pgdog_integration::wire::{Batch, Wire, rows, shape};

/// Rows of a tenant on both shards.
async fn rows_of(cluster: &Cluster, condition: &str) -> anyhow::Result<(i64, i64)> {
    let what = format!("orders WHERE {condition}");
    Ok((
        count(cluster, 0, &what).await?,
        count(cluster, 1, &what).await?,
    ))
}

/// A refusal that names its reason, outside of a transaction.
fn is_refused(answer: &str) -> bool {
    answer == "E(0A000) Z(I)"
}

pub async fn r094_a_refused_change_of_a_key_leaves_no_stale_route(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    let change = "UPDATE orders SET tenant_id = 12 WHERE tenant_id = 11";
    for round in 0..100 {
        if round % 10 == 0 {
            let found = shape(&wire.query(change).await?);
            ensure!(is_refused(&found), "{found}");
        }
        let (tenant, memo) = [(12, "b"), (11, "a")][round % 2];
        let read = format!("SELECT memo FROM orders WHERE tenant_id = {tenant} AND id = 1");
        let found = rows(&wire.query(&read).await?);
        ensure!(
            found == [[Some(memo.to_owned())]],
            "round {round}: {found:?}"
        );
    }
    Ok(())
}

pub async fn r099_rows_of_several_keys_are_all_stored_or_none(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    let insert =
        "INSERT INTO orders VALUES (11, 9901, 1, 'a'), (12, 9901, 1, 'b'), (11, 9902, 1, 'c')";
    for batch in [
        Batch::new().query(insert),
        Batch::new().run(insert, &[]).sync(),
    ] {
        let found = shape(&wire.ask(&batch).await?);
        let stored = rows_of(cluster, "id IN (9901, 9902)").await?;
        let whole = found.ends_with("C(INSERT 0 3) Z(I)") && stored == (2, 1);
        ensure!(
            whole || (is_refused(&found) && stored == (0, 0)),
            "{found}: {stored:?}"
        );
        for tenant in [11, 12] {
            let clear = format!("DELETE FROM orders WHERE tenant_id = {tenant} AND id > 9900");
            wire.query(&clear).await?;
        }
    }
    Ok(())
}

pub async fn r100_columns_are_found_in_the_order_of_the_table(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE wide (memo text, tenant_id bigint NOT NULL, id bigint)",
        "SELECT pgdog.shard_table('wide', 'tenant_id', lookup_query => \
         'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    let insert = Batch::new()
        .run("INSERT INTO wide VALUES ($1, $2, $3)", &["m", "12", "1"])
        .sync();
    for id in 0..2 {
        let found = shape(&wire.ask(&insert).await?);
        ensure!(found == "1 2 C(INSERT 0 1) Z(I)", "{found}");
        let there = count(cluster, 1, "wide WHERE tenant_id = 12").await?;
        ensure!(there == id + 1, "{there} rows");
        client
            .batch_execute("ALTER TABLE wide ADD COLUMN IF NOT EXISTS x int DEFAULT 0")
            .await?;
    }
    ensure!(count(cluster, 0, "wide").await? == 0);
    let found = wire.query("INSERT INTO wide DEFAULT VALUES").await?;
    let found = shape(&found);
    ensure!(found == "E(23502) Z(I)" || is_refused(&found), "{found}");
    ensure!(count(cluster, 0, "wide").await? + count(cluster, 1, "wide").await? == 2);
    Ok(())
}

pub async fn r101_a_change_of_a_key_is_refused_before_anything_is_changed(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let change = "UPDATE orders SET tenant_id = 12 WHERE tenant_id = 11 AND id = 10101";
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    wire.query("INSERT INTO orders VALUES (11, 10101, 1, 'one')")
        .await?;
    let both = (0..2).map(|_| async {
        let mut wire = Wire::connect(&cluster.login(0)).await?;
        for _ in 0..10 {
            wire.query("BEGIN").await?;
            let found = shape(&wire.query(change).await?);
            ensure!(found == "E(0A000) Z(E)", "{found}");
            wire.query("COMMIT").await?;
        }
        anyhow::Ok(())
    });
    try_join_all(both).await?;
    ensure!(rows_of(cluster, "id = 10101").await? == (1, 0));
    Ok(())
}

pub async fn r102_a_key_may_be_set_to_what_it_is(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    wire.query("INSERT INTO orders VALUES (11, 10201, 1, 'one')")
        .await?;
    let own = "tenant_id = 11 AND id = 10201";
    let set = format!("UPDATE orders SET tenant_id = 11, qty = 2 WHERE {own}");
    let found = shape(&wire.query(&set).await?);
    ensure!(found == "C(UPDATE 1) Z(I)", "{found}");
    let set = "UPDATE orders SET tenant_id = $1, qty = 3 WHERE tenant_id = $1 AND id = 10201";
    let found = shape(&wire.ask(&Batch::new().run(set, &["11"]).sync()).await?);
    ensure!(found == "1 2 C(UPDATE 1) Z(I)", "{found}");
    let set = format!("UPDATE orders SET tenant_id = tenant_id WHERE {own}");
    let found = shape(&wire.query(&set).await?);
    ensure!(found == "C(UPDATE 1) Z(I)", "{found}");
    for change in ["tenant_id = tenant_id + 1", "(tenant_id, qty) = (12, 3)"] {
        let found = shape(
            &wire
                .query(&format!("UPDATE orders SET {change} WHERE {own}"))
                .await?,
        );
        ensure!(is_refused(&found), "{change}: {found}");
    }
    ensure!(rows_of(cluster, "id = 10201").await? == (1, 0));
    ensure!(count(cluster, 0, "orders WHERE tenant_id = 12").await? == 0);
    Ok(())
}

pub async fn changes_without_a_key_are_made_on_every_shard(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    for tenant in [11, 12, 13] {
        let insert = format!("INSERT INTO orders VALUES ({tenant}, 10400, 1, 'z')");
        wire.query(&insert).await?;
    }
    let own = "id = 10400";
    let found = shape(
        &wire
            .query(&format!("UPDATE orders SET qty = 2 WHERE {own}"))
            .await?,
    );
    ensure!(found == "C(UPDATE 3) Z(I)", "{found}");
    ensure!(rows_of(cluster, "id = 10400 AND qty = 2").await? == (2, 1));
    let update = "UPDATE orders SET qty = $1 WHERE id = $2 AND tenant_id IN (11, 12)";
    let batch = Batch::new().run(update, &["3", "10400"]).sync();
    for _ in 0..2 {
        let found = shape(&wire.ask(&batch).await?);
        ensure!(found == "1 2 C(UPDATE 2) Z(I)", "{found}");
    }
    ensure!(rows_of(cluster, "id = 10400 AND qty = 3").await? == (1, 1));
    let route = rows(&wire.query("SHOW pgdog.last_route").await?);
    let route = route[0][0].clone().unwrap_or_default();
    ensure!(route.contains("reason=Change"), "{route}");
    let two = format!("UPDATE orders SET qty = 4 WHERE {own}; DELETE FROM orders WHERE {own}");
    let found = shape(&wire.query(&two).await?);
    ensure!(found == "C(UPDATE 3) C(DELETE 3) Z(I)", "{found}");
    ensure!(rows_of(cluster, own).await? == (0, 0));
    for set in ["memo = now()::text", "qty = DEFAULT"] {
        let found = shape(&wire.query(&format!("UPDATE orders SET {set}")).await?);
        ensure!(is_refused(&found), "{set}: {found}");
    }
    let route = "EXPLAIN (PGDOG) DELETE FROM lines USING rates WHERE sku = code";
    let found = rows(&wire.query(route).await?);
    ensure!(
        found[0][0].as_deref() == Some("Target: all 2 shards, one after the other"),
        "{found:?}"
    );
    Ok(())
}

pub async fn a_change_on_every_shard_is_whole_or_not_at_all(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        "CREATE TABLE marks (tenant_id bigint, id bigint CHECK (id < 100))",
        "SELECT pgdog.shard_table('marks', 'tenant_id', lookup_query => \
         'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard')",
        "INSERT INTO marks VALUES (11, 1)",
        "INSERT INTO marks VALUES (12, 50)",
    ] {
        let found = shape(&wire.query(sql).await?);
        ensure!(!found.starts_with('E'), "{sql}: {found}");
    }
    let sums = || async {
        let sum = |shard| count_of(cluster, shard);
        anyhow::Ok((sum(0).await?, sum(1).await?))
    };
    // Fails on shard 1, after shard 0 has done it.
    let found = shape(&wire.query("UPDATE marks SET id = id + 50").await?);
    ensure!(found == "E(23514) Z(I)", "{found}");
    ensure!(sums().await? == (1, 50));
    for (end, expected) in [("ROLLBACK", (1, 50)), ("COMMIT", (2, 53))] {
        for (sql, answer) in [
            ("BEGIN", "C(BEGIN) Z(T)"),
            ("UPDATE marks SET id = id + 1", "C(UPDATE 2) Z(T)"),
            ("SAVEPOINT s", "C(SAVEPOINT) Z(T)"),
            ("DELETE FROM marks", "C(DELETE 2) Z(T)"),
            ("ROLLBACK TO s", "C(ROLLBACK) Z(T)"),
            (
                "UPDATE marks SET id = id + 2 WHERE tenant_id = 12",
                "C(UPDATE 1) Z(T)",
            ),
        ] {
            let found = shape(&wire.query(sql).await?);
            ensure!(found == answer, "{sql}: {found}");
        }
        wire.query(end).await?;
        ensure!(sums().await? == expected, "{end}: {:?}", sums().await?);
    }
    let found = shape(&wire.query("TRUNCATE marks").await?);
    ensure!(found == "C(TRUNCATE TABLE) Z(I)", "{found}");
    ensure!(count(cluster, 0, "marks").await? + count(cluster, 1, "marks").await? == 0);
    Ok(())
}

/// The sum of the marks on a shard.
async fn count_of(cluster: &Cluster, shard: u16) -> anyhow::Result<i64> {
    count(
        cluster,
        shard,
        "generate_series(1, (SELECT sum(id) FROM marks)::int)",
    )
    .await
}

pub async fn a_key_may_become_another_of_its_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    wire.query("INSERT INTO orders VALUES (11, 10500, 1, 'z')")
        .await?;
    for (from, to, answer) in [
        (11, 13, "C(UPDATE 1) Z(I)"),
        (13, 14, "E(0A000) Z(I)"),
        (13, 99, "E(58000) Z(I)"),
        (13, 0, "C(UPDATE 1) Z(I)"),
    ] {
        let update =
            format!("UPDATE orders SET tenant_id = {to} WHERE tenant_id = {from} AND id = 10500");
        let found = shape(&wire.query(&update).await?);
        ensure!(found == answer, "{update}: {found}");
    }
    let update = "UPDATE orders SET tenant_id = $1 WHERE tenant_id = $2 AND id = 10500";
    for (to, from, answer) in [("13", "0", "C(UPDATE 1)"), ("12", "13", "E(0A000)")] {
        let found = shape(
            &wire
                .ask(&Batch::new().run(update, &[to, from]).sync())
                .await?,
        );
        ensure!(found.contains(answer), "{to}: {found}");
    }
    ensure!(rows_of(cluster, "id = 10500 AND tenant_id = 13").await? == (1, 0));
    let found = shape(
        &wire
            .query("DELETE FROM orders WHERE tenant_id = 13 AND id = 10500")
            .await?,
    );
    ensure!(found == "C(DELETE 1) Z(I)", "{found}");
    Ok(())
}

pub async fn r103_rows_of_a_query_are_on_their_own_shards_or_refused(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    for key in ["tenant_id", "tenant_id + 1"] {
        let insert = format!("INSERT INTO orders SELECT {key}, id + 10300, 1, 'x' FROM lines");
        let found = shape(&wire.query(&insert).await?);
        let stored = rows_of(cluster, "id > 10300 AND memo = 'x'").await?;
        let placed = rows_of(
            cluster,
            "id > 10300 AND tenant_id IN (SELECT id FROM tenants WHERE shard_id::text = \
             (SELECT shard::text FROM pgdog.topology))",
        );
        match is_refused(&found) {
            true => ensure!(stored == (0, 0), "{stored:?}"),
            false => ensure!(
                found == "C(INSERT 0 2) Z(I)" && stored == placed.await?,
                "{found}: {stored:?}"
            ),
        }
    }
    Ok(())
}
