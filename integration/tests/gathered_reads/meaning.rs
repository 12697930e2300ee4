//! Names, portals and encodings mean what they mean to one database.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Client;
use pgdog_integration::wire::{Batch, Wire, rows, shape};
use pgdog_integration::{Cluster, fixture, wait_until};

use super::{gives, one};

pub async fn a_name_in_group_by_means_what_postgresql_takes_it_for(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let one = Client::connect(&one(cluster)?).await?;
    for sql in [
        "SELECT date_trunc('day', at) AS day, count(*) FROM facts GROUP BY day ORDER BY day",
        "SELECT 'all' AS \"a name\", count(*) FROM facts GROUP BY \"a name\"",
        "SELECT upper(memo) AS x, count(*) FROM facts GROUP BY tenant_id, x ORDER BY 1, 2",
        "SELECT upper(memo) AS memo, id FROM facts o ORDER BY o.tenant_id, o.memo, memo, id",
        "SELECT DISTINCT ON (o.qty) o.qty FROM facts o ORDER BY qty",
        "SELECT bool_or(memo = 'location: 1'), bool_or(memo <> 'location: 2') FROM facts",
    ] {
        let found = client.rows(sql).await.with_context(|| sql.to_owned())?;
        let expected = one.rows(sql).await?;
        ensure!(found == expected, "{sql}: {found:?}, not {expected:?}");
    }
    for sql in [
        "SELECT 'all' AS memo, count(*) FROM orders GROUP BY memo",
        "SELECT count(*) AS memo FROM orders GROUP BY memo",
        "SELECT upper(memo) AS id, count(*) FROM facts GROUP BY tenant_id, id",
    ] {
        client.batch_execute("BEGIN").await?;
        let error = client.refused(sql, "0A000").await?;
        let detail = error.as_db_error().and_then(|error| error.detail());
        let detail = detail.context("no detail")?;
        ensure!(
            detail.contains("means a column of a table"),
            "{sql}: {detail}"
        );
        client.batch_execute("ROLLBACK").await?;
    }
    Ok(())
}

pub async fn a_statement_outlives_a_read_that_fails_behind_its_parse(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = Wire::connect(&fixture::plain(cluster, 0)).await?;
    let batch = Batch::new()
        .parse("s", "SELECT 1 / (id - $1) FROM orders")
        .bind("s", &["3"])
        .execute(0)
        .sync();
    let failed = shape(&client.ask(&batch).await?);
    ensure!(
        failed.starts_with("1 2 ") && failed.ends_with("E(22012) Z(I)"),
        "{failed}"
    );
    let again = Batch::new().bind("s", &["7"]).execute(0).sync();
    let answers = shape(&client.ask(&again).await?);
    ensure!(answers.ends_with("C(SELECT 6) Z(I)"), "{answers}");
    Ok(())
}

pub async fn an_executed_portal_does_not_give_its_rows_again(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = Wire::connect(&fixture::plain(cluster, 0)).await?;
    let twice = Batch::new()
        .parse("", "SELECT id FROM orders")
        .bind_portal("p", "", &[])
        .execute_portal("p", 0)
        .execute_portal("p", 0)
        .sync();
    let answers = client.ask(&twice).await?;
    let said = shape(&answers);
    ensure!(said.ends_with("C(SELECT 6) E(0A000) Z(I)"), "{said}");
    ensure!(rows(&answers).len() == 6, "{said}");
    let two = Batch::new()
        .parse("", "SELECT count(*) FROM orders WHERE id > $1")
        .bind_portal("p", "", &["0"])
        .bind_portal("q", "", &["2"])
        .execute_portal("p", 0)
        .execute_portal("q", 0)
        .sync();
    let answers = client.ask(&two).await?;
    let found = rows(&answers);
    ensure!(
        found.len() == 2 && found[0][0].as_deref() == Some("6"),
        "{}",
        shape(&answers)
    );
    Ok(())
}

pub async fn texts_in_another_encoding_are_ordered_by_the_database(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    // Behind each other in UTF-8, the other way round in KOI8-R.
    let client = cluster.connect().await?;
    for (tenant, letter) in [(11, "\u{44e}"), (12, "\u{430}"), (14, "\u{446}")] {
        let sql = format!("INSERT INTO parts VALUES ({tenant}, 900, 0, '{letter}')");
        client.batch_execute(&sql).await?;
    }
    let mut foreign = Wire::connect(&fixture::plain(cluster, 0)).await?;
    foreign.query("SET client_encoding = 'KOI8R'").await?;
    let sql = "SELECT tenant_id FROM parts WHERE id = 900 ORDER BY sku COLLATE \"C\"";
    let answers = foreign.query(sql).await?;
    let found: Vec<Option<String>> = rows(&answers).concat();
    let found: Vec<&str> = found.iter().flatten().map(String::as_str).collect();
    ensure!(found == ["12", "14", "11"], "{found:?} {}", shape(&answers));
    gives(&client, sql, &[&["12"], &["14"], &["11"]]).await?;
    for tenant in [11, 12, 14] {
        let sql = format!("DELETE FROM parts WHERE tenant_id = {tenant} AND id = 900");
        client.batch_execute(&sql).await?;
    }
    Ok(())
}

pub async fn an_aggregate_of_a_user_is_not_taken_for_one_of_postgresql(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let sql = "SELECT count(concat(memo)) FROM orders";
    gives(&client, sql, &[&["6"]]).await?;
    client
        .batch_execute("CREATE AGGREGATE concat(text) (SFUNC = textcat, STYPE = text)")
        .await?;
    wait_until("the shim knows it", Duration::from_secs(30), || async {
        let Err(error) = client.rows(sql).await else {
            return Ok(None);
        };
        let known = format!("{error:?}").contains("besides PostgreSQL's own");
        ensure!(known, "{error:?}");
        Ok(Some(()))
    })
    .await?;
    let own = "SELECT count(pg_catalog.concat(memo)) FROM orders";
    gives(&client, own, &[&["6"]]).await?;
    client.batch_execute("DROP AGGREGATE concat(text)").await?;
    wait_until("the shim forgets it", Duration::from_secs(30), || async {
        Ok(client.rows(sql).await.is_ok().then_some(()))
    })
    .await
}

pub async fn a_floor_of_a_shard_that_is_not_there_is_refused(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("SET pgdog.min_lsn = '0=0/1,7=0/1'")
        .await?;
    let error = client
        .refused("SELECT count(*) FROM orders", "22023")
        .await?;
    ensure!(format!("{error:?}").contains("shard 7"), "{error:?}");
    let one = "SELECT count(*) FROM orders WHERE tenant_id = 11";
    gives(&client, one, &[&["2"]]).await?;
    client
        .batch_execute("SET pgdog.min_lsn = '0=0/1,2=0/1'")
        .await?;
    gives(&client, "SELECT count(*) FROM orders", &[&["6"]]).await
}
