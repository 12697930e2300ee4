//! Keys whose shard the database knows: what is not known, what is wrong, and what changes.
//!
//! Both servers log every statement, so that what reached them can be seen.

mod changes;
mod moves;
mod snapshots;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{configure, count, create, wire};
use pgdog_integration::wire::{Batch, Fields, Wire, shape};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};

use changes::{
    r122_every_kind_of_change_counts_at_once, r123_a_locked_map_holds_up_new_keys_only,
    r126_a_changed_row_counts_for_every_shim, writes_of_a_map_can_be_paused,
};
use moves::a_map_changed_behind_the_shims_moves_every_statement;
use snapshots::{
    a_copy_by_an_old_snapshot_is_refused, a_known_key_costs_no_message,
    an_old_snapshot_places_no_row, maps_that_differ_are_told, rows_of_an_old_map_are_not_committed,
};

/// For what happens within moments.
pub const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2).shims(2),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            a_known_key_costs_no_message,
            r118_a_key_that_nobody_knows_is_named_and_reaches_no_shard,
            r119_a_key_added_through_another_shim_works_at_once,
            r120_a_transaction_sees_its_own_keys_and_nobody_keeps_them,
            r121_an_answer_that_is_no_shard_is_named,
            r122_every_kind_of_change_counts_at_once,
            r125_a_key_is_data_whatever_it_looks_like,
            r126_a_changed_row_counts_for_every_shim,
            writes_of_a_map_can_be_paused,
            a_map_changed_behind_the_shims_moves_every_statement,
            an_old_snapshot_places_no_row,
            rows_of_an_old_map_are_not_committed,
            a_copy_by_an_old_snapshot_is_refused,
            maps_that_differ_are_told,
            r123_a_locked_map_holds_up_new_keys_only,
        ],
    )
}

/// A table by a whole map, which only the configuration can declare.
const WHOLE_MAP: &str = r#"
[[sharded_tables]]
database = "app"
name = "notes"
column = "account_id"
data_type = "varchar"
lookup = "accounts"
query = "SELECT id, COALESCE(parent_id, id) FROM accounts"
"#;

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE accounts (id text PRIMARY KEY, parent_id text)",
        "SELECT pgdog.omni_table('accounts')",
        "CREATE TABLE notes (account_id text, id bigint)",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    for shim in 0..2 {
        let path = &cluster.description().shims[shim].config;
        let text = std::fs::read_to_string(path)? + WHOLE_MAP;
        std::fs::write(path, text)?;
        configure(cluster, shim, &["sharding_lookup_cache_size = 1000000"]).await?;
    }
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        node.batch_execute("ALTER SYSTEM SET log_statement = 'all'")
            .await?;
        node.batch_execute("SELECT pg_reload_conf()").await?;
        wait_until("the setting", LIMIT, || async {
            Ok((node.value("SHOW log_statement").await? == "all").then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// The text of the error that a statement is answered with.
///
/// # Errors
/// When it is answered otherwise.
pub async fn refused(wire: &mut Wire, sql: &str, code: &str) -> anyhow::Result<String> {
    let answer = wire.query(sql).await?;
    let found = shape(&answer);
    ensure!(
        found.starts_with(&format!("E({code}) Z(")),
        "{sql}: {found}"
    );
    let fields = Fields::of(&answer[0]);
    Ok(format!("{} {}", fields.text(), fields.get('D')))
}

/// A statement that must not fail.
///
/// # Errors
/// When it does.
pub async fn done(wire: &mut Wire, sql: &str) -> anyhow::Result<()> {
    let found = shape(&wire.query(sql).await?);
    ensure!(!found.contains("E("), "{sql}: {found}");
    Ok(())
}

/// On which shards a row of `lines` is.
///
/// # Errors
/// When they cannot be asked.
pub async fn line_on(cluster: &Cluster, sku: &str) -> anyhow::Result<Vec<u16>> {
    let mut found = Vec::new();
    for shard in 0..2 {
        if count(cluster, shard, &format!("lines WHERE sku = '{sku}'")).await? > 0 {
            found.push(shard);
        }
    }
    Ok(found)
}

/// What a server has logged so far.
fn log(cluster: &Cluster, shard: u16) -> anyhow::Result<String> {
    let bytes = std::fs::read(cluster.dir().join(format!("shard-{shard}.log")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn r118_a_key_that_nobody_knows_is_named_and_reaches_no_shard(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let asked = |key: &str| -> anyhow::Result<usize> {
        Ok(log(cluster, 0)?.matches(&format!("$1 = '{key}'")).count())
    };
    for (key, statements) in [
        (
            "99",
            [
                "INSERT INTO orders VALUES (99, 1, 1, 'r118')",
                "SELECT 'r118' FROM orders WHERE tenant_id = 99",
                "UPDATE orders SET memo = 'r118' WHERE tenant_id = 99",
                "DELETE FROM orders WHERE tenant_id = 99 AND memo = 'r118'",
            ],
        ),
        (
            "ninety",
            [
                "INSERT INTO notes VALUES ('ninety', 118)",
                "SELECT 118 FROM notes WHERE account_id = 'ninety'",
                "UPDATE notes SET id = 118 WHERE account_id = 'ninety'",
                "DELETE FROM notes WHERE account_id = 'ninety' AND id = 118",
            ],
        ),
    ] {
        let mut wire = wire(cluster, 0).await?;
        for sql in statements {
            let before = asked(key)?;
            let text = refused(&mut wire, sql, "58000").await?;
            ensure!(text.contains(key), "{text}");
            wait_until("the lookup in the log", LIMIT, || async {
                Ok((asked(key)? > before).then_some(()))
            })
            .await?;
        }
        // It is an error of the statement, not of the connection.
        done(&mut wire, "SELECT memo FROM orders WHERE tenant_id = 11").await?;
    }
    // What ran meanwhile is in the logs by now.
    for shard in 0..2 {
        cluster.primary(shard).await?.value("SELECT 1").await?;
        let log = log(cluster, shard)?;
        for written in [
            "r118",
            "118)",
            "FROM notes WHERE",
            "UPDATE notes",
            "INTO notes",
        ] {
            ensure!(!log.contains(written), "{written} on shard {shard}");
        }
    }
    let mut wire = wire(cluster, 1).await?;
    done(&mut wire, "INSERT INTO accounts VALUES ('ninety', NULL)").await?;
    done(&mut wire, "INSERT INTO notes VALUES ('ninety', 1180)").await
}

async fn r119_a_key_added_through_another_shim_works_at_once(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut one = wire(cluster, 0).await?;
    let mut other = wire(cluster, 1).await?;
    for (tenant, shard) in [(16, 1), (17, 0)] {
        let insert = format!("INSERT INTO lines VALUES ({tenant}, 1, 'r119-{tenant}')");
        refused(&mut one, &insert, "58000").await?;
        let map = format!("INSERT INTO tenants VALUES ({tenant}, {shard})");
        done(&mut other, &map).await?;
        done(&mut one, &insert).await?;
        let found = line_on(cluster, &format!("r119-{tenant}")).await?;
        ensure!(found == [shard], "tenant {tenant} is on {found:?}");
    }
    Ok(())
}

async fn r120_a_transaction_sees_its_own_keys_and_nobody_keeps_them(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut one = wire(cluster, 0).await?;
    for (tenant, shard, end) in [(18, 0, "COMMIT"), (19, 1, "COMMIT"), (20, 1, "ROLLBACK")] {
        for sql in [
            "BEGIN",
            &format!("INSERT INTO tenants VALUES ({tenant}, {shard})"),
            &format!("INSERT INTO lines VALUES ({tenant}, 1, 'r120-{tenant}')"),
            end,
        ] {
            done(&mut one, sql).await?;
        }
        let found = line_on(cluster, &format!("r120-{tenant}")).await?;
        match end {
            "COMMIT" => ensure!(found == [shard], "tenant {tenant} is on {found:?}"),
            _ => ensure!(found.is_empty(), "tenant {tenant} is on {found:?}"),
        }
    }
    for shim in 0..2 {
        let mut wire = wire(cluster, shim).await?;
        let read = "SELECT sku FROM lines WHERE tenant_id = 20";
        refused(&mut wire, read, "58000").await?;
    }
    // A change that is not committed is seen by its transaction alone.
    done(&mut one, "BEGIN").await?;
    done(&mut one, "UPDATE tenants SET shard_id = 1 WHERE id = 18").await?;
    done(&mut one, "INSERT INTO lines VALUES (18, 2, 'r120-moved')").await?;
    done(&mut one, "ROLLBACK").await?;
    done(&mut one, "INSERT INTO lines VALUES (18, 3, 'r120-stays')").await?;
    let found = line_on(cluster, "r120-stays").await?;
    ensure!(found == [0], "{found:?}");
    Ok(())
}

async fn r121_an_answer_that_is_no_shard_is_named(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = wire(cluster, 0).await?;
    for sql in [
        "INSERT INTO tenants VALUES (21, 7), (22, -1), (23, NULL)",
        "CREATE TABLE strange (id bigint, place text)",
        "SELECT pgdog.omni_table('strange')",
        "CREATE TABLE odd (id bigint, note text)",
        "SELECT pgdog.shard_table('odd', 'id', lookup_result => 'shard', \
         lookup_query => 'SELECT place FROM strange WHERE id = $1')",
        "INSERT INTO strange VALUES (1, 'abc'), (2, '0'), (2, '1'), (3, '1')",
    ] {
        done(&mut wire, sql).await?;
    }
    for (table, key, value) in [
        ("lines", "21", "7"),
        ("lines", "22", "-1"),
        ("lines", "23", "NULL"),
        ("odd", "1", "abc"),
        ("odd", "2", "2"),
    ] {
        let columns = if table == "odd" { "" } else { ", 1" };
        let insert = format!("INSERT INTO {table} VALUES ({key}{columns}, 'r121')");
        let text = refused(&mut wire, &insert, "58000").await?;
        ensure!(text.contains(&format!("key {key} of")), "{text}");
        ensure!(text.contains(value), "{text}");
        // Other keys go on working.
        done(&mut wire, "INSERT INTO odd VALUES (3, 'r121')").await?;
    }
    let columns = "SELECT pgdog.shard_table('rates', 'code', 'varchar', \
                   lookup_query => 'SELECT id, place FROM strange WHERE id::text = $1')";
    refused(&mut wire, columns, "22023").await?;
    ensure!(line_on(cluster, "r121").await?.is_empty());
    ensure!(count(cluster, 0, "odd").await? == 0);
    ensure!(count(cluster, 1, "odd WHERE id <> 3").await? == 0);
    Ok(())
}

async fn r125_a_key_is_data_whatever_it_looks_like(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = wire(cluster, 0).await?;
    for sql in [
        "CREATE TABLE codes (code text PRIMARY KEY, shard_id int)",
        "SELECT pgdog.omni_table('codes')",
        "CREATE TABLE things (code text, id bigint)",
        "SELECT pgdog.shard_table('things', 'code', 'varchar', lookup_result => 'shard', \
         lookup_query => 'SELECT shard_id FROM codes WHERE code = $1')",
    ] {
        done(&mut wire, sql).await?;
    }
    let long = "k".repeat(10_000);
    let keys = [
        "x' or '1'='1",
        "$1",
        r"a\b",
        &long,
        "\u{1f600}",
        "",
        "--",
        "/*",
        ";",
    ];
    for (nth, key) in keys.iter().enumerate() {
        let shard = (nth % 2) as u16;
        let (id, place) = (nth.to_string(), shard.to_string());
        let quoted = format!("'{}'", key.replace('\'', "''"));
        let insert = Batch::new().run("INSERT INTO things VALUES ($1, $2)", &[key, &id]);
        let simple = Batch::new().query(&format!("SELECT id FROM things WHERE code = {quoted}"));
        for batch in [insert.clone().sync(), simple.clone()] {
            let found = shape(&wire.ask(&batch).await?);
            ensure!(found.contains("E(58000) Z(I)"), "{key}: {found}");
        }
        let map = Batch::new().run("INSERT INTO codes VALUES ($1, $2)", &[key, &place]);
        for batch in [map.sync(), insert.sync(), simple] {
            let found = shape(&wire.ask(&batch).await?);
            ensure!(!found.contains("E("), "{key}: {found}");
        }
        let stored = count(cluster, shard, &format!("things WHERE id = {nth}")).await?;
        ensure!(stored == 1, "{key} is not on shard {shard}");
    }
    let nul = Batch::new().run("INSERT INTO things VALUES ($1, 100)", &["a\0b"]);
    let found = shape(&wire.ask(&nul.sync()).await?);
    // Refused by the server, of which the lookup tells.
    ensure!(
        ["E(22021) Z(I)", "E(58000) Z(I)"]
            .iter()
            .any(|end| found.contains(end)),
        "{found}"
    );
    Ok(())
}
