//! Session and statement mode.

use anyhow::{Context as _, ensure};
use pgdog_integration::Cluster;
use pgdog_integration::client::{Client, sqlstate};
use pgdog_integration::fixture::{plain, wire};
use pgdog_integration::wire::{Batch, ask, expect, shape};

use crate::{SESSION, STATEMENT};

pub async fn session_mode_keeps_everything_and_leaves_nothing(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut a = wire(cluster, SESSION).await?;
    let pid = ask(&mut a, "select pg_backend_pid()").await?;
    for sql in [
        "create temp table mine as select 7 as n",
        "PREPARE q AS select 8",
        "select pg_advisory_lock(31)",
        "LISTEN news",
        "create sequence kept; select nextval('kept')",
        "DO $$ BEGIN PERFORM set_config('app.made', '21', false); END $$",
        "set role low",
        "reset role",
        "BEGIN; declare c cursor with hold for select 9; COMMIT",
    ] {
        let done = shape(&a.query(sql).await?);
        ensure!(!done.contains("E("), "{sql}: {done}");
        expect(&mut a, "select pg_backend_pid()", &pid).await?;
    }
    expect(&mut a, "select n from mine", "7").await?;
    expect(&mut a, "EXECUTE q", "8").await?;
    expect(&mut a, "fetch c", "9").await?;
    expect(&mut a, "select lastval()", "1").await?;
    expect(&mut a, "select current_setting('app.made')", "21").await?;
    let locks =
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    expect(&mut a, locks, "1").await?;
    drop(a);
    let mut b = wire(cluster, SESSION).await?;
    expect(
        &mut b,
        "select count(*) from pg_class where relname = 'mine'",
        "0",
    )
    .await?;
    expect(&mut b, locks, "0").await?;
    expect(
        &mut b,
        "select coalesce(current_setting('app.made', true), '')",
        "",
    )
    .await?;
    ensure!(shape(&b.query("EXECUTE q").await?) == "E(26000) Z(I)");
    ensure!(shape(&b.query("select lastval()").await?) == "T E(55000) Z(I)");
    ensure!(shape(&b.query("fetch c").await?) == "E(34000) Z(I)");
    expect(&mut b, "select count(*) from pg_listening_channels()", "0").await
}

pub async fn statement_mode_refuses_transactions(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, STATEMENT).await?;
    let refused = a.query("BEGIN").await?;
    ensure!(shape(&refused) == "E(0A000) Z(I)", "{}", shape(&refused));
    let refused = Batch::new().run("START TRANSACTION", &[]).sync();
    ensure!(shape(&a.ask(&refused).await?).ends_with("E(0A000) Z(I)"));
    expect(&mut a, "select 1", "1").await?;
    a.query("set app.tenant = '3'").await?;
    let mut b = wire(cluster, STATEMENT).await?;
    expect(
        &mut b,
        "select coalesce(current_setting('app.tenant', true), '')",
        "",
    )
    .await?;
    expect(&mut a, "select current_setting('app.tenant')", "3").await?;
    // What one message holds is one transaction as ever.
    let half = a.query("insert into t values (2); select 1/0").await?;
    ensure!(shape(&half).contains("E(22012)"), "{}", shape(&half));
    expect(&mut b, "select count(*) from t", "1").await?;
    let client = Client::connect(&plain(cluster, STATEMENT)).await?;
    let error = client.batch_execute("BEGIN").await.err().context("begun")?;
    ensure!(sqlstate(&error) == "0A000" && format!("{error:?}").contains("pooler_mode"));
    Ok(())
}
