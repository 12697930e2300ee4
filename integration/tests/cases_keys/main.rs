//! Which shard a statement goes to by the sharding key that it names.
//!
//! PostgreSQL itself is the measure: what it answers on the shard's own server, or refuses there,
//! the shim answers or refuses.

mod catalog;
mod changes;
mod functions;
mod listed;

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use pgdog_integration::fixture::{count, create, direct};
use pgdog_integration::wire::{Batch, Wire, rows, shape};
use pgdog_integration::{Cluster, Shape, claims, suite};

use catalog::{
    copied_rows_follow_a_table_that_changed, definitions_that_are_no_news_disturb_nobody,
    functions_elsewhere_are_no_hindrance, functions_of_users_need_a_shard,
    keys_of_a_domain_are_keys_of_its_type, r124_keys_are_equal_exactly_when_postgresql_says_so,
};
use changes::{
    a_change_on_every_shard_is_whole_or_not_at_all, a_key_may_become_another_of_its_shard,
    changes_without_a_key_are_made_on_every_shard,
    r094_a_refused_change_of_a_key_leaves_no_stale_route,
    r099_rows_of_several_keys_are_all_stored_or_none,
    r100_columns_are_found_in_the_order_of_the_table,
    r101_a_change_of_a_key_is_refused_before_anything_is_changed,
    r102_a_key_may_be_set_to_what_it_is, r103_rows_of_a_query_are_on_their_own_shards_or_refused,
};
use functions::{
    calls_by_number_need_a_shard, functions_are_looked_for_where_a_server_does,
    rows_that_code_writes_are_of_its_shard,
};
use listed::r089_keys_of_two_shards_are_both_answered_every_time;

/// Types of parameters (pg_type).
const INT8: u32 = 20;
const TEXT: u32 = 25;
const NUMERIC: u32 = 1700;

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r089_keys_of_two_shards_are_both_answered_every_time,
            r090_a_key_is_found_in_any_spelling,
            r091_keys_at_the_borders_are_mapped_by_value,
            r092_names_are_folded_as_by_postgresql,
            r093_a_comment_names_the_shard_in_both_protocols,
            r094_a_refused_change_of_a_key_leaves_no_stale_route,
            r095_a_key_is_found_through_joins,
            r096_a_null_key_has_no_row,
            r097_a_schema_decides_which_table_it_is,
            r098_a_name_of_a_with_query_hides_the_table,
            r099_rows_of_several_keys_are_all_stored_or_none,
            r100_columns_are_found_in_the_order_of_the_table,
            r101_a_change_of_a_key_is_refused_before_anything_is_changed,
            r102_a_key_may_be_set_to_what_it_is,
            changes_without_a_key_are_made_on_every_shard,
            a_change_on_every_shard_is_whole_or_not_at_all,
            a_key_may_become_another_of_its_shard,
            r103_rows_of_a_query_are_on_their_own_shards_or_refused,
            r124_keys_are_equal_exactly_when_postgresql_says_so,
            functions_of_users_need_a_shard,
            functions_elsewhere_are_no_hindrance,
            functions_are_looked_for_where_a_server_does,
            calls_by_number_need_a_shard,
            rows_that_code_writes_are_of_its_shard,
            keys_of_a_domain_are_keys_of_its_type,
            definitions_that_are_no_news_disturb_nobody,
            copied_rows_follow_a_table_that_changed,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    let client = cluster.connect().await?;
    for sql in [
        "INSERT INTO tenants VALUES (-9223372036854775808, 0)",
        "INSERT INTO tenants VALUES (9223372036854775807, 0)",
        "INSERT INTO orders VALUES (11, 1, 1, 'a')",
        "INSERT INTO orders VALUES (12, 1, 1, 'b')",
        "INSERT INTO lines VALUES (11, 1, 'first')",
        "INSERT INTO lines VALUES (12, 1, 'second')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    Ok(())
}

/// The shim and the servers of both shards, each spoken to in the same way.
struct Three {
    shim: Wire,
    shards: [Wire; 2],
}

impl Three {
    async fn connect(cluster: &Cluster) -> anyhow::Result<Self> {
        Ok(Self {
            shim: Wire::connect(&cluster.login(0)).await?,
            shards: [
                Wire::connect(&direct(cluster, 0)?).await?,
                Wire::connect(&direct(cluster, 1)?).await?,
            ],
        })
    }

    /// Asks the shim and a shard's server, which must answer the same.
    async fn same(&mut self, shard: usize, batch: &Batch, what: &str) -> anyhow::Result<()> {
        let expected = self.shards[shard].ask(batch).await?;
        let found = self.shim.ask(batch).await?;
        let both = (shape(&found), rows(&found));
        ensure!(
            both == (shape(&expected), rows(&expected)),
            "{what}: {both:?} instead of {:?}",
            (shape(&expected), rows(&expected))
        );
        Ok(())
    }
}

async fn r090_a_key_is_found_in_any_spelling(cluster: &Cluster) -> anyhow::Result<()> {
    let mut three = Three::connect(cluster).await?;
    let read = "SELECT memo FROM orders WHERE tenant_id =";
    for key in [
        "12",
        "+12",
        "(12)",
        "'12'",
        "'12'::bigint",
        "12::int",
        "12::smallint",
        "CAST(12 AS bigint)",
        "12.0",
        "12.0::numeric",
        "1.2e1",
        "'12'::text::bigint",
        "12.5",
        "'12'::text",
        "'twelve'",
        "0xC",
    ] {
        let sql = format!("{read} {key}");
        three.same(1, &Batch::new().query(&sql), key).await?;
        three
            .same(1, &Batch::new().run(&sql, &[]).sync(), key)
            .await?;
        let turned = format!("SELECT memo FROM orders WHERE {key} = tenant_id");
        three.same(1, &Batch::new().query(&turned), key).await?;
    }
    let sql = format!("{read} $1");
    for (oid, value) in [
        (0, "12"),
        (INT8, "12"),
        (NUMERIC, "12"),
        (NUMERIC, "12.0"),
        (TEXT, "12"),
    ] {
        let batch = Batch::new()
            .parse_typed("", &sql, &[oid])
            .bind("", &[value]);
        let what = format!("$1 of type {oid}");
        three.same(1, &batch.execute(0).sync(), &what).await?;
    }
    for cast in ["$1::text::bigint", "$1::bigint", "$1::numeric", "$1::int"] {
        let batch = Batch::new().run(&format!("{read} {cast}"), &["12"]).sync();
        three.same(1, &batch, cast).await?;
    }
    let twelve = 12i64.to_be_bytes();
    let batch = Batch::new()
        .parse("", &sql)
        .bind_binary("", &[Some(&twelve)]);
    three.same(1, &batch.execute(0).sync(), "binary").await
}

async fn r091_keys_at_the_borders_are_mapped_by_value(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    let cases = [
        (-5, 1, &["-5", "- 5", "-(5)", "'-5'"][..]),
        (0, 0, &["0", "+0", "-0", "'0'"][..]),
        (
            i64::MIN,
            0,
            &["-9223372036854775808", "'-9223372036854775808'"][..],
        ),
        (
            i64::MAX,
            0,
            &["9223372036854775807", "+9223372036854775807"][..],
        ),
    ];
    for (tenant, shard, spellings) in cases {
        let texts = spellings.iter();
        for (id, spelling) in texts.clone().enumerate() {
            let insert = format!("INSERT INTO orders VALUES ({spelling}, {id}, 1, 'text')");
            let found = shape(&wire.query(&insert).await?);
            ensure!(found == "C(INSERT 0 1) Z(I)", "{insert}: {found}");
        }
        let insert = "INSERT INTO orders VALUES ($1, 100, 1, 'parameter')";
        let batch = Batch::new().run(insert, &[&tenant.to_string()]).sync();
        let found = shape(&wire.ask(&batch).await?);
        ensure!(found == "1 2 C(INSERT 0 1) Z(I)", "{found}");
        let insert = "INSERT INTO orders VALUES ($1, 101, 1, 'binary')";
        let binary = tenant.to_be_bytes();
        let batch = Batch::new()
            .parse("", insert)
            .bind_binary("", &[Some(&binary)]);
        let found = shape(&wire.ask(&batch.execute(0).sync()).await?);
        ensure!(found == "1 2 C(INSERT 0 1) Z(I)", "{found}");
        let all = spellings.len() as i64 + 2;
        for node in 0..2 {
            let there = count(
                cluster,
                node,
                &format!("orders WHERE tenant_id = '{tenant}'"),
            )
            .await?;
            let due = if node == shard { all } else { 0 };
            ensure!(there == due, "tenant {tenant}, shard {node}: {there} rows");
        }
        for spelling in texts {
            let read = format!("SELECT count(*) FROM orders WHERE tenant_id = {spelling}");
            let found = rows(&wire.query(&read).await?);
            ensure!(found == [[Some(all.to_string())]], "{read}: {found:?}");
        }
    }
    Ok(())
}

async fn r092_names_are_folded_as_by_postgresql(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE \"Order Lines\" (\"TenantId\" bigint, v int)",
        "SELECT pgdog.shard_table('\"Order Lines\"', 'TenantId', lookup_query => \
         'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    for (sql, expected) in [
        (
            "INSERT INTO \"Order Lines\" (\"TenantId\", v) VALUES (12, 1)",
            "C(INSERT 0 1) Z(I)",
        ),
        (
            "INSERT INTO \"Order Lines\" (v, U&\"Tenant\\0049d\") VALUES (2, 12)",
            "C(INSERT 0 1) Z(I)",
        ),
        (
            "INSERT INTO public.\"Order Lines\" VALUES (12, 3)",
            "C(INSERT 0 1) Z(I)",
        ),
        (
            "INSERT INTO \"order lines\" VALUES (12, 4)",
            "E(42P01) Z(I)",
        ),
        (
            "SELECT v FROM \"Order Lines\" WHERE \"TenantId\" = 12",
            "T D D D C(SELECT 3) Z(I)",
        ),
        (
            "SELECT v FROM \"Order Lines\" WHERE U&\"Tenant!0049d\" UESCAPE '!' = 12",
            "T D D D C(SELECT 3) Z(I)",
        ),
        (
            "SELECT v FROM \"Order Lines\" WHERE TenantId = 12",
            "E(42703) Z(I)",
        ),
        (
            "SELECT memo FROM ORDERS WHERE TENANT_ID = 12 AND id = 1",
            "T D C(SELECT 1) Z(I)",
        ),
        (
            "SELECT memo FROM Orders o WHERE O.Tenant_Id = 12 AND id = 1",
            "T D C(SELECT 1) Z(I)",
        ),
        (
            "SELECT memo FROM \"orders\" WHERE \"tenant_id\" = 12 AND id = 1",
            "T D C(SELECT 1) Z(I)",
        ),
        (
            "SELECT memo FROM \"Orders\" WHERE tenant_id = 12",
            "E(42P01) Z(I)",
        ),
        (
            "SELECT memo FROM orders WHERE \"Tenant_Id\" = 12",
            "E(42703) Z(I)",
        ),
    ] {
        let found = shape(&wire.query(sql).await?);
        ensure!(found == expected, "{sql}: {found}");
    }
    ensure!(count(cluster, 1, "\"Order Lines\"").await? == 3);
    ensure!(count(cluster, 0, "\"Order Lines\"").await? == 0);
    Ok(())
}

async fn r093_a_comment_names_the_shard_in_both_protocols(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    let port = cluster.shard(1)?.primary.port.to_string();
    let asked = "SELECT current_setting('port')";
    for sql in [
        format!("/* pgdog_shard: 1 */ {asked}"),
        format!("{asked} /* pgdog_shard: 1 */"),
        format!("-- pgdog_shard: 1\n{asked}"),
        format!("/* pgdog_shard: 1 */ {asked} /* pgdog_shard: 1 */"),
    ] {
        for batch in [Batch::new().query(&sql), Batch::new().run(&sql, &[]).sync()] {
            // The shard must not be the one that a session goes to anyway.
            let found = rows(&wire.ask(&batch).await?);
            ensure!(found == [[Some(port.clone())]], "{sql}: {found:?}");
            wire = Wire::connect(&cluster.login(0)).await?;
        }
    }
    let literal = "SELECT '/* pgdog_shard: 1 */' FROM orders WHERE tenant_id = 11 AND id = 1";
    let found = shape(&wire.query(literal).await?);
    ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
    let contradiction = format!("/* pgdog_shard: 0 */ {asked} /* pgdog_shard: 1 */");
    for batch in [
        Batch::new().query(&contradiction),
        Batch::new().run(&contradiction, &[]).sync(),
    ] {
        let found = shape(&wire.ask(&batch).await?);
        ensure!(
            found.starts_with("E(") && found.ends_with("Z(I)"),
            "{found}"
        );
    }
    Ok(())
}

async fn r095_a_key_is_found_through_joins(cluster: &Cluster) -> anyhow::Result<()> {
    let mut three = Three::connect(cluster).await?;
    for (shard, sql) in [
        (
            0,
            "SELECT o.id, r.pct FROM orders o JOIN rates r ON r.code = o.memo \
             WHERE o.tenant_id = 11 AND o.id = 1",
        ),
        (
            1,
            "SELECT sku FROM orders JOIN lines USING (tenant_id) WHERE tenant_id = 12",
        ),
        (
            0,
            "SELECT sku FROM orders o JOIN lines l ON o.tenant_id = 11 \
             AND l.tenant_id = o.tenant_id AND o.id = 1",
        ),
    ] {
        three.same(shard, &Batch::new().query(sql), sql).await?;
    }
    // Without a key the rows of both shards are due, or a refusal.
    let all = "SELECT r.code, o.tenant_id FROM rates r LEFT JOIN orders o ON o.memo = r.code \
               AND o.id = 1 ORDER BY 1";
    for _ in 0..5 {
        let found = three.shim.query(all).await?;
        let refused = shape(&found).starts_with("E(0A000)");
        let values = [["a", "11"], ["b", "12"]].map(|row| row.map(|v| Some(v.to_owned())));
        ensure!(refused || rows(&found) == values, "{}", shape(&found));
    }
    Ok(())
}

async fn r096_a_null_key_has_no_row(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        "SELECT memo FROM orders WHERE tenant_id IS NULL",
        "SELECT memo FROM orders WHERE tenant_id = NULL",
        "SELECT memo FROM orders WHERE tenant_id = NULL::bigint",
    ] {
        let found = shape(&wire.query(sql).await?);
        ensure!(found == "T C(SELECT 0) Z(I)", "{sql}: {found}");
    }
    let null = |sql: &str| {
        Batch::new()
            .parse("", sql)
            .bind_binary("", &[None])
            .execute(0)
            .sync()
    };
    let read = "SELECT memo FROM orders WHERE tenant_id = $1";
    let found = shape(&wire.ask(&null(read)).await?);
    ensure!(found == "1 2 C(SELECT 0) Z(I)", "{found}");
    let before = (
        count(cluster, 0, "orders").await?,
        count(cluster, 1, "orders").await?,
    );
    for batch in [
        Batch::new().query("INSERT INTO orders VALUES (NULL, 9600, 1, '')"),
        null("INSERT INTO orders VALUES ($1, 9600, 1, '')"),
    ] {
        let found = shape(&wire.ask(&batch).await?);
        ensure!(
            found.contains("E(23502)") || found.contains("E(22004)"),
            "{found}"
        );
    }
    let after = (
        count(cluster, 0, "orders").await?,
        count(cluster, 1, "orders").await?,
    );
    ensure!(after == before, "{after:?} rows instead of {before:?}");
    Ok(())
}

async fn r097_a_schema_decides_which_table_it_is(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE SCHEMA arch",
        "CREATE TABLE arch.orders (tenant_id bigint, memo text)",
        "SELECT pgdog.omni_table('arch.orders')",
        "INSERT INTO arch.orders VALUES (12, 'archived')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    let memo =
        |table: &str| format!("SELECT memo FROM {table} WHERE tenant_id = 12 ORDER BY 1 LIMIT 1");
    for _ in 0..3 {
        // Each session has another shard for what is the same everywhere.
        let client = cluster.connect().await?;
        ensure!(client.value(&memo("arch.orders")).await? == "archived");
        ensure!(client.value(&memo("public.orders")).await? == "b");
        ensure!(client.value(&memo("orders")).await? == "b");
        client
            .batch_execute("SET search_path = arch, public")
            .await?;
        ensure!(client.value(&memo("orders")).await? == "archived");
        client
            .batch_execute("INSERT INTO orders VALUES (11, 'through the path')")
            .await?;
        client.batch_execute("RESET search_path").await?;
        ensure!(client.value(&memo("orders")).await? == "b");
    }
    for shard in 0..2 {
        ensure!(
            count(cluster, shard, "arch.orders").await? == 4,
            "shard {shard}"
        );
    }
    Ok(())
}

async fn r098_a_name_of_a_with_query_hides_the_table(cluster: &Cluster) -> anyhow::Result<()> {
    for _ in 0..2 {
        let mut wire = Wire::connect(&cluster.login(0)).await?;
        let hidden = "WITH orders AS (SELECT 1 AS tenant_id) SELECT * FROM orders";
        let found = shape(&wire.query(hidden).await?);
        ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
        let both = "WITH rates AS (SELECT 'a' AS code) \
                    SELECT pct FROM rates JOIN public.rates AS r USING (code)";
        let found = rows(&wire.query(both).await?);
        ensure!(found == [[Some("1.5".to_owned())]], "{found:?}");
    }
    Ok(())
}
