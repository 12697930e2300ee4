//! Statements whose tables have changed since they were prepared.

use anyhow::{Context as _, bail, ensure};
use pgdog_integration::fixture::direct;
use pgdog_integration::wire::{Batch, Wire, rows, shape};
use pgdog_integration::{Client, Cluster};

use crate::{ONE, TWO, first, run, wire};

async fn columns(client: &mut Wire, batch: &Batch) -> anyhow::Result<usize> {
    let answers = client.ask(batch).await?;
    let row = rows(&answers).into_iter().next();
    Ok(row
        .with_context(|| format!("no row: {}", shape(&answers)))?
        .len())
}

pub async fn r010_a_new_parse_sees_the_new_columns(cluster: &Cluster) -> anyhow::Result<()> {
    for (nth, (shim, through_shim)) in [(ONE, true), (ONE, false), (TWO, true), (TWO, false)]
        .into_iter()
        .enumerate()
    {
        let admin = cluster.connect().await?;
        let table = format!("r010_{nth}");
        let create = format!("CREATE TABLE {table} (a int); INSERT INTO {table} VALUES (1)");
        admin.batch_execute(&create).await?;
        let select = format!("select * from {table}");
        let parse = || Batch::new().parse("s", &select);
        let (mut a, mut b) = (wire(cluster, shim).await?, wire(cluster, shim).await?);
        for client in [&mut a, &mut b] {
            let batch = parse().bind("s", &[]).execute(0).sync();
            ensure!(columns(client, &batch).await? == 1);
        }
        let alter = format!("alter table {table} add column x int default 8");
        match through_shim {
            true => admin.batch_execute(&alter).await?,
            false => {
                Client::connect(&direct(cluster, 0)?)
                    .await?
                    .batch_execute(&alter)
                    .await?
            }
        }

        let mut d = wire(cluster, shim).await?;
        // As drivers do it: each step in a batch of its own, and on whatever backend is free.
        ensure!(shape(&d.ask(&parse().describe("s").sync()).await?) == "1 t T Z(I)");
        let mut busy = wire(cluster, shim).await?;
        if shim == TWO {
            busy.query("BEGIN; SELECT 1").await?;
        }
        ensure!(columns(&mut d, &run("s", &[])).await? == 2);
        d.query("BEGIN").await?;
        ensure!(columns(&mut d, &run("s", &[])).await? == 2);
        d.query("COMMIT").await?;
        b.ask(&Batch::new().close("s").sync()).await?;
        b.query("BEGIN").await?;
        let again = parse().bind("s", &[]).execute(0).sync();
        ensure!(columns(&mut b, &again).await? == 2);
        b.query("COMMIT").await?;

        let old = a.ask(&run("s", &[])).await?;
        match shape(&old).as_str() {
            "2 D C(SELECT 1) Z(I)" => ensure!(rows(&old)[0].len() == 2),
            "E(0A000) Z(I)" => {
                a.ask(&Batch::new().close("s").sync()).await?;
                ensure!(columns(&mut a, &again).await? == 2);
            }
            other => bail!("{other}"),
        }
        busy.query("ROLLBACK").await?;
    }
    Ok(())
}

pub async fn r011_search_path_is_part_of_a_statement(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.connect().await?;
    for sql in [
        "CREATE SCHEMA sa; CREATE TABLE sa.cfg (v int); INSERT INTO sa.cfg VALUES (1)",
        "CREATE SCHEMA sb; CREATE TABLE sb.cfg (v text); INSERT INTO sb.cfg VALUES ('b')",
    ] {
        admin.batch_execute(sql).await?;
    }
    let mut clients = Vec::new();
    for (schema, expected, oid) in [("sa", "1", 23), ("sb", "b", 25)] {
        let mut client = wire(cluster, ONE).await?;
        client.query(&format!("set search_path = {schema}")).await?;
        let parse = Batch::new().parse("s", "select v from cfg").sync();
        ensure!(shape(&client.ask(&parse).await?) == "1 Z(I)");
        clients.push((client, expected, oid));
    }
    for _ in 0..50 {
        for (client, expected, oid) in &mut clients {
            let batch = Batch::new()
                .bind("s", &[])
                .describe_portal()
                .execute(0)
                .sync();
            let answers = client.ask(&batch).await?;
            ensure!(
                shape(&answers) == "2 T D C(SELECT 1) Z(I)",
                "{}",
                shape(&answers)
            );
            ensure!(
                first(&answers) == *expected,
                "{expected}: {}",
                first(&answers)
            );
            // Name, table and column number come before the type.
            let described = &answers[1].body[2 + 2 + 6..];
            ensure!(
                described.starts_with(&u32::to_be_bytes(*oid)),
                "{described:?}"
            );
        }
    }
    Ok(())
}

pub async fn r012_a_stale_plan_never_splits_a_transaction(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.connect().await?;
    let node = Client::connect(&direct(cluster, 0)?).await?;
    for in_one_batch in [false, true] {
        let table = format!("r012_{in_one_batch}");
        let create = format!("CREATE TABLE {table} (a int); INSERT INTO {table} VALUES (1)");
        admin.batch_execute(&create).await?;
        let mut a = wire(cluster, ONE).await?;
        let parse = Batch::new()
            .parse("s", &format!("select * from {table}"))
            .sync();
        a.ask(&parse).await?;
        a.query("BEGIN").await?;
        ensure!(columns(&mut a, &run("s", &[])).await? == 1);
        a.query("COMMIT").await?;
        node.batch_execute(&format!("alter table {table} add column x int default 8"))
            .await?;

        let insert = format!("insert into {table} values (2)");
        let inserted = match in_one_batch {
            true => {
                let batch = Batch::new()
                    .run(&insert, &[])
                    .bind("s", &[])
                    .execute(0)
                    .sync();
                let answers = shape(&a.ask(&batch).await?);
                match answers.as_str() {
                    "1 2 C(INSERT 0 1) 2 D D C(SELECT 2) Z(I)" => true,
                    "1 2 C(INSERT 0 1) E(0A000) Z(I)" => false,
                    other => bail!("{other}"),
                }
            }
            false => {
                a.query("BEGIN").await?;
                a.query(&insert).await?;
                let answers = shape(&a.ask(&run("s", &[])).await?);
                a.query("COMMIT").await?;
                match answers.as_str() {
                    "2 D D C(SELECT 2) Z(T)" => true,
                    "E(0A000) Z(E)" => false,
                    other => bail!("{other}"),
                }
            }
        };
        let count = node.value(&format!("select count(*) from {table}")).await?;
        ensure!(count == if inserted { "2" } else { "1" }, "{count} rows");
    }
    Ok(())
}
