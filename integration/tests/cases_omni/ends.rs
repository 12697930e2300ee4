//! What holds on the servers during transactions on several shards, and behind them.

use anyhow::ensure;
use futures_util::future::try_join_all;
use pgdog_integration::Cluster;
use pgdog_integration::fixture::{count, plain};
use pgdog_integration::wire::{Wire, expect, shape, value};

use crate::phases::none_prepared;
use crate::{equal, says};

/// More than a pool has connections that are free.
const CLIENTS: u32 = 8;

pub async fn reset_all_leaves_servers_in_the_picture(cluster: &Cluster) -> anyhow::Result<()> {
    let insert = |tenant: u32, id: u32| format!("INSERT INTO lines VALUES ({tenant}, {id}, 'r')");
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    // The first server has been told before RESET ALL, the second one joins behind it.
    for (sql, expected) in [
        ("BEGIN", "C(BEGIN) Z(T)"),
        (
            "SELECT sku FROM lines WHERE tenant_id = 11",
            "T C(SELECT 0) Z(T)",
        ),
        ("RESET ALL", "C(RESET) Z(T)"),
        (&insert(11, 501), "C(INSERT 0 1) Z(T)"),
        (&insert(12, 502), "C(INSERT 0 1) Z(T)"),
        ("SAVEPOINT a", "C(SAVEPOINT) Z(T)"),
        ("RESET ALL", "C(RESET) Z(T)"),
        ("ROLLBACK TO a", "C(ROLLBACK) Z(T)"),
        (&insert(11, 503), "C(INSERT 0 1) Z(T)"),
        ("COMMIT", "C(COMMIT) Z(I)"),
    ] {
        says(&mut wire, sql, expected).await?;
    }
    // Whoever gets those connections is known to the servers, too.
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let mut wire = Wire::connect(&plain(cluster, 0)).await?;
        says(&mut wire, "BEGIN", "C(BEGIN) Z(T)").await?;
        for tenant in [11, 12] {
            says(
                &mut wire,
                &insert(tenant, 510 + client),
                "C(INSERT 0 1) Z(T)",
            )
            .await?;
        }
        clients.push(wire);
    }
    for mut wire in clients {
        says(&mut wire, "ROLLBACK", "C(ROLLBACK) Z(I)").await?;
    }
    ensure!(count(cluster, 0, "lines").await? == 2);
    ensure!(count(cluster, 1, "lines").await? == 1);
    Ok(())
}

/// A client's names are looked for where the server looks, not where an older connection began.
pub async fn a_path_that_a_role_has_lost_is_looked_at_no_more(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let user = &cluster.description().user;
    for (change, path) in [
        ("SET search_path = elsewhere", "elsewhere"),
        ("RESET search_path", "\"$user\", public"),
    ] {
        for shard in 0..2 {
            let node = cluster.primary(shard).await?;
            let sql = format!("ALTER ROLE {user} {change}");
            node.batch_execute(&sql).await?;
        }
        let mut wire = Wire::connect(&plain(cluster, 0)).await?;
        expect(&mut wire, "SHOW search_path", path).await?;
    }
    for client in 0..CLIENTS {
        let mut wire = Wire::connect(&plain(cluster, 0)).await?;
        let insert = format!("INSERT INTO lines VALUES (12, {}, 'p')", 620 + client);
        says(&mut wire, &insert, "C(INSERT 0 1) Z(I)").await?;
    }
    let there = count(cluster, 1, "lines WHERE sku = 'p'").await?;
    ensure!(there == i64::from(CLIENTS), "{there} rows");
    Ok(())
}

/// As clients do that act for many users over one login.
pub async fn a_role_for_the_transaction_commits_on_every_shard(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    try_join_all((0..2).map(|shard| async move {
        let node = cluster.primary(shard).await?;
        let user = &cluster.description().user;
        let sql = format!(
            "CREATE ROLE reader; CREATE ROLE writer; GRANT writer, reader TO {user};
             GRANT ALL ON rates TO writer; GRANT SELECT ON rates TO reader"
        );
        anyhow::Ok(node.batch_execute(&sql).await?)
    }))
    .await?;
    let mut wire = Wire::connect(&plain(cluster, 0)).await?;
    let local = "SELECT set_config('role', 'writer', true)";
    let hidden = "DO $$ BEGIN SET LOCAL ROLE writer; END $$";
    for (pct, before, role) in [
        (1, "RESET ROLE", "SET LOCAL ROLE writer"),
        (2, "RESET ROLE", local),
        (3, "SET ROLE reader", "SET LOCAL ROLE writer"),
        (4, "SET ROLE writer", "SET LOCAL ROLE NONE"),
    ] {
        wire.query(before).await?;
        let user = value(&wire.query("SELECT current_user").await?);
        for sql in [
            "BEGIN",
            role,
            &format!("UPDATE rates SET pct = {pct} WHERE code = 'a'"),
        ] {
            let found = shape(&wire.query(sql).await?);
            ensure!(found.ends_with("Z(T)"), "{sql}: {found}");
        }
        says(&mut wire, "COMMIT", "C(COMMIT) Z(I)").await?;
        let rows = equal(cluster).await?;
        ensure!(rows[0][1] == pct.to_string(), "{role}: {rows:?}");
        let after = value(&wire.query("SELECT current_user").await?);
        ensure!(user == after, "{before}, {role}: {user:?}, then {after:?}");
    }
    wire.query("RESET ROLE").await?;
    // No text tells of this one.
    for sql in ["BEGIN", "SELECT pct FROM rates WHERE code = 'a'", hidden] {
        let found = shape(&wire.query(sql).await?);
        ensure!(found.ends_with("Z(T)"), "{sql}: {found}");
    }
    let update = "UPDATE rates SET pct = 5 WHERE code = 'a'";
    says(&mut wire, update, "C(UPDATE 1) Z(T)").await?;
    says(&mut wire, "COMMIT", "C(COMMIT) Z(I)").await?;
    ensure!(equal(cluster).await?[0][1] == "5");
    none_prepared(cluster).await?;
    fails_under_it(cluster, &mut wire, update).await?;
    try_join_all((0..2).map(|shard| async move {
        let node = cluster.primary(shard).await?;
        let sql = "REVOKE ALL ON rates FROM writer, reader; DROP ROLE writer; DROP ROLE reader";
        anyhow::Ok(node.batch_execute(sql).await?)
    }))
    .await?;
    Ok(())
}

/// What fails under a role of the transaction leaves nothing prepared.
async fn fails_under_it(cluster: &Cluster, wire: &mut Wire, update: &str) -> anyhow::Result<()> {
    let node = cluster.primary(1).await?;
    node.batch_execute(
        "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN RAISE EXCEPTION ''no''; END';
         CREATE CONSTRAINT TRIGGER fails AFTER UPDATE ON rates
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fail()",
    )
    .await?;
    says(wire, "BEGIN", "C(BEGIN) Z(T)").await?;
    wire.query("SET LOCAL ROLE writer").await?;
    says(wire, update, "C(UPDATE 1) Z(T)").await?;
    says(wire, "COMMIT", "E(P0001) Z(I)").await?;
    for shard in 0..2 {
        let left = count(cluster, shard, "pg_prepared_xacts").await?;
        ensure!(left == 0, "{left} left on shard {shard}");
    }
    node.batch_execute("DROP TRIGGER fails ON rates; DROP FUNCTION public.fail()")
        .await?;
    Ok(())
}
