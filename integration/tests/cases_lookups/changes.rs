//! Changes of lookup tables that go through a shim.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use pgdog_integration::Cluster;
use pgdog_integration::fixture::{configure, wire};
use pgdog_integration::wait_until;
use pgdog_integration::wire::{Batch, Wire, shape};

use crate::{LIMIT, done, line_on, refused};

/// Writes a row of a tenant through a shim and tells on which shard it is.
async fn written_on(wire: &mut Wire, cluster: &Cluster, tenant: i64) -> anyhow::Result<u16> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let sku = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let sku = format!("row-{sku}");
    done(
        wire,
        &format!("INSERT INTO lines VALUES ({tenant}, 1, '{sku}')"),
    )
    .await?;
    let found = line_on(cluster, &sku).await?;
    ensure!(found.len() == 1, "tenant {tenant}: {found:?}");
    Ok(found[0])
}

pub async fn r122_every_kind_of_change_counts_at_once(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, 0).await?;
    for sql in [
        "INSERT INTO tenants VALUES (31, 0)",
        "CREATE FUNCTION move_tenant(tenant bigint, shard int) RETURNS void LANGUAGE sql AS \
         'UPDATE tenants SET shard_id = shard WHERE id = tenant'",
        "PREPARE moving AS UPDATE tenants SET shard_id = $2 WHERE id = $1",
    ] {
        done(&mut client, sql).await?;
    }
    let mut place = written_on(&mut client, cluster, 31).await?;
    ensure!(place == 0);
    let forms = [
        "UPDATE tenants SET shard_id = SHARD WHERE id = 31",
        "WITH moved AS (UPDATE tenants SET shard_id = SHARD WHERE id = 31 RETURNING id) \
         SELECT id FROM moved",
        "MERGE INTO tenants t USING (VALUES (31, SHARD)) AS v(id, shard) ON t.id = v.id \
         WHEN MATCHED THEN UPDATE SET shard_id = v.shard",
        "EXECUTE moving(31, SHARD)",
        "INSERT INTO tenants VALUES (31, SHARD) ON CONFLICT (id) DO UPDATE SET shard_id = SHARD",
        "BEGIN; DELETE FROM tenants WHERE id = 31; INSERT INTO tenants VALUES (31, SHARD); COMMIT",
    ];
    for form in forms {
        let sql = form.replace("SHARD", &(1 - place).to_string());
        done(&mut client, &sql).await?;
        place = 1 - place;
        let found = written_on(&mut client, cluster, 31).await?;
        ensure!(found == place, "{sql}: written on shard {found}");
    }
    // Code that no router can look into is refused, and changes nothing.
    for form in [
        "SELECT move_tenant(31, SHARD)",
        "DO $$ BEGIN UPDATE tenants SET shard_id = SHARD WHERE id = 31; END $$",
    ] {
        let sql = form.replace("SHARD", &(1 - place).to_string());
        refused(&mut client, &sql, "0A000").await?;
        let found = written_on(&mut client, cluster, 31).await?;
        ensure!(found == place, "{sql}: written on shard {found}");
    }
    place = by_one_who_leaves(cluster, place).await?;
    ensure!(written_on(&mut client, cluster, 31).await? == place);
    by_cascade(cluster, &mut client).await?;
    by_copy_and_truncate(&mut client, cluster).await
}

/// A client that is gone before it is told.
async fn by_one_who_leaves(cluster: &Cluster, place: u16) -> anyhow::Result<u16> {
    let mut leaving = wire(cluster, 0).await?;
    let place = 1 - place;
    done(&mut leaving, "BEGIN").await?;
    let update = format!("UPDATE tenants SET shard_id = {place} WHERE id = 31");
    done(&mut leaving, &update).await?;
    leaving.send(&Batch::new().query("COMMIT").bytes).await?;
    drop(leaving);
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        wait_until("the end of the transaction", LIMIT, || async {
            let sql = "SELECT shard_id FROM tenants WHERE id = 31";
            Ok((node.value(sql).await? == place.to_string()).then_some(()))
        })
        .await
        .context("a COMMIT that was sent was not carried out")?;
    }
    Ok(place)
}

async fn by_cascade(cluster: &Cluster, client: &mut Wire) -> anyhow::Result<()> {
    for sql in [
        "CREATE TABLE regions (code text PRIMARY KEY)",
        "CREATE TABLE places (id bigint PRIMARY KEY, shard_id int, \
         region text REFERENCES regions ON DELETE CASCADE)",
        "SELECT pgdog.omni_table('regions')",
        "SELECT pgdog.omni_table('places')",
        "CREATE TABLE spots (place bigint, id bigint)",
        "SELECT pgdog.shard_table('spots', 'place', lookup_result => 'shard', \
         lookup_query => 'SELECT shard_id FROM places WHERE id = $1')",
        "INSERT INTO regions VALUES ('north'), ('south')",
        "INSERT INTO places VALUES (1, 0, 'north'), (2, 1, 'north'), (3, 1, 'south')",
        "INSERT INTO spots VALUES (1, 1)",
        "INSERT INTO spots VALUES (2, 1)",
        "INSERT INTO spots VALUES (3, 1)",
        "DELETE FROM regions WHERE code = 'north'",
    ] {
        done(client, sql).await?;
    }
    for place in [1, 2] {
        let insert = format!("INSERT INTO spots VALUES ({place}, 2)");
        for shim in 0..2 {
            refused(&mut wire(cluster, shim).await?, &insert, "58000").await?;
        }
    }
    done(client, "INSERT INTO spots VALUES (3, 2)").await
}

async fn by_copy_and_truncate(client: &mut Wire, cluster: &Cluster) -> anyhow::Result<()> {
    let copy = |rows: &str| {
        Batch::new()
            .query("COPY tenants FROM STDIN")
            .copy_data(rows.as_bytes())
            .copy_done()
    };
    let found = shape(&client.ask(&copy("32\t1\n33\t0\n")).await?);
    ensure!(found.ends_with("C(COPY 2) Z(I)"), "{found}");
    ensure!(written_on(client, cluster, 32).await? == 1);
    let kept = cluster.primary(0).await?;
    let kept = kept.rows("SELECT id, shard_id FROM tenants").await?;
    done(client, "TRUNCATE tenants").await?;
    for tenant in [31, 32, 11, 12] {
        let insert = format!("INSERT INTO lines VALUES ({tenant}, 1, 'r122-gone')");
        refused(client, &insert, "58000").await?;
    }
    ensure!(line_on(cluster, "r122-gone").await?.is_empty());
    // The rows come back, two of them on the other shard.
    let rows = kept.iter().map(|row| match row[0].as_str() {
        "32" => "32\t0\n".to_owned(),
        "33" => "33\t1\n".to_owned(),
        id => format!("{id}\t{}\n", row[1].replace("NULL", "\\N")),
    });
    let found = shape(&client.ask(&copy(&rows.collect::<String>())).await?);
    ensure!(found.contains("C(COPY "), "{found}");
    ensure!(written_on(client, cluster, 32).await? == 0);
    ensure!(written_on(client, cluster, 33).await? == 1);
    Ok(())
}

pub async fn r126_a_changed_row_counts_for_every_shim(cluster: &Cluster) -> anyhow::Result<()> {
    let mut one = wire(cluster, 0).await?;
    let mut other = wire(cluster, 1).await?;
    done(
        &mut one,
        "INSERT INTO tenants VALUES (41, 0), (42, 1), (43, 0)",
    )
    .await?;
    for wire in [&mut one, &mut other] {
        for (tenant, shard) in [(41, 0), (42, 1), (43, 0)] {
            ensure!(written_on(wire, cluster, tenant).await? == shard);
        }
    }
    done(&mut one, "UPDATE tenants SET shard_id = 1 WHERE id = 41").await?;
    ensure!(written_on(&mut other, cluster, 41).await? == 1);
    done(&mut one, "UPDATE tenants SET shard_id = 0 WHERE id = 42").await?;
    ensure!(written_on(&mut other, cluster, 42).await? == 0);
    done(&mut one, "DELETE FROM tenants WHERE id = 43").await?;
    let insert = "INSERT INTO lines VALUES (43, 1, 'r126')";
    refused(&mut other, insert, "58000").await?;
    refused(&mut one, insert, "58000").await?;
    ensure!(line_on(cluster, "r126").await?.is_empty());
    ensure!(written_on(&mut one, cluster, 41).await? == 1);
    Ok(())
}

/// `pgdog.pause_lookup_writes`: for whoever needs a map to stay as it is.
pub async fn writes_of_a_map_can_be_paused(cluster: &Cluster) -> anyhow::Result<()> {
    let mut one = wire(cluster, 0).await?;
    let mut other = wire(cluster, 1).await?;
    done(&mut one, "SELECT pgdog.pause_lookup_writes('tenants')").await?;
    for sql in [
        "INSERT INTO tenants VALUES (71, 0)",
        "UPDATE tenants SET shard_id = 1 WHERE id = 11",
        "DELETE FROM tenants WHERE id = 11",
        "TRUNCATE tenants",
    ] {
        let text = refused(&mut other, sql, "55P03").await?;
        ensure!(text.contains("paused"), "{text}");
    }
    // Nothing else is held up.
    ensure!(written_on(&mut other, cluster, 11).await? == 0);
    done(&mut one, "SELECT pgdog.resume_lookup_writes('tenants')").await?;
    done(&mut other, "INSERT INTO tenants VALUES (71, 0)").await?;
    ensure!(written_on(&mut other, cluster, 71).await? == 0);
    Ok(())
}

pub async fn r123_a_locked_map_holds_up_new_keys_only(cluster: &Cluster) -> anyhow::Result<()> {
    configure(cluster, 0, &["sharding_lookup_timeout = 3000"]).await?;
    let mut first = wire(cluster, 0).await?;
    let keys: Vec<String> = (81..91).map(|id| format!("({id}, {})", id % 2)).collect();
    done(
        &mut first,
        &format!("INSERT INTO tenants VALUES {}", keys.join(", ")),
    )
    .await?;
    for tenant in [11, 12] {
        written_on(&mut first, cluster, tenant).await?;
    }
    let locks = [cluster.primary(0).await?, cluster.primary(1).await?];
    for node in &locks {
        node.batch_execute("BEGIN; LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE")
            .await?;
    }
    let known = (0..50).map(|nth| async move {
        let mut wire = wire(cluster, 0).await?;
        let tenant = 11 + nth % 2;
        for _ in 0..3 {
            let read = format!("SELECT count(*) FROM lines WHERE tenant_id = {tenant}");
            done(&mut wire, &read).await?;
        }
        anyhow::Ok(())
    });
    // Each of these holds a connection of the pool while it waits.
    let new = (81..91).map(|tenant| async move {
        let mut wire = wire(cluster, 0).await?;
        done(&mut wire, "BEGIN").await?;
        done(&mut wire, "SELECT count(*) FROM lines WHERE tenant_id = 11").await?;
        let began = Instant::now();
        let read = format!("SELECT count(*) FROM lines WHERE tenant_id = {tenant}");
        refused(&mut wire, &read, "58000").await?;
        let waited = began.elapsed();
        ensure!(
            waited >= Duration::from_millis(2900) && waited < Duration::from_secs(30),
            "after {waited:?}"
        );
        done(&mut wire, "ROLLBACK").await
    });
    let both = tokio::time::timeout(LIMIT, async {
        tokio::try_join!(try_join_all(known), try_join_all(new))
    });
    let both = both.await.context("somebody waits and waits");
    for node in &locks {
        node.batch_execute("ROLLBACK").await?;
    }
    both??;
    for tenant in 81..91 {
        let found = written_on(&mut first, cluster, tenant).await?;
        ensure!(i64::from(found) == tenant % 2, "{tenant} is on {found}");
    }
    Ok(())
}
