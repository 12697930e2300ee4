//! Prepared statements: names of the protocol and of SQL, shared by clients, bounded on servers,
//! and never older than the tables that they read.

mod stale;

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::future::{try_join, try_join_all};
use pgdog_integration::fixture::{configure, plain};
use pgdog_integration::wire::{Batch, Message, Wire, rows, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};

use stale::{
    r010_a_new_parse_sees_the_new_columns, r011_search_path_is_part_of_a_statement,
    r012_a_stale_plan_never_splits_a_transaction,
};

/// A shim as it comes.
const WIDE: usize = 0;
/// One server connection, which keeps one statement.
const ONE: usize = 1;
/// Two server connections, which keep five statements each.
const TWO: usize = 2;
/// Three server connections.
const THREE: usize = 3;

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let shape = Shape::shards(1).shims(4);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r001_all_names_are_forgotten_at_once,
            r002_sql_deallocates_a_name_of_the_protocol,
            r003_a_statement_is_described_on_another_backend,
            r004_closes_and_parses_of_one_text_stay_in_order,
            r005_pgbench_prepared_runs_without_an_error,
            r006_sql_prepares_for_all_backends,
            r007_backends_keep_no_more_than_the_limit,
            r008_begin_and_a_query_in_one_batch,
            r009_equal_names_of_many_clients_are_not_mixed_up,
            r010_a_new_parse_sees_the_new_columns,
            r011_search_path_is_part_of_a_statement,
            r012_a_stale_plan_never_splits_a_transaction,
            names_of_sql_and_protocol_are_one,
            a_prepare_that_fails_leaves_no_name,
            explain_and_create_table_as_run_an_execute,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let one = ["default_pool_size = 1", "prepared_statements_limit = 1"];
    configure(cluster, ONE, &one).await?;
    let two = ["default_pool_size = 2", "prepared_statements_limit = 5"];
    configure(cluster, TWO, &two).await?;
    configure(cluster, THREE, &["default_pool_size = 3"]).await
}

async fn wire(cluster: &Cluster, shim: usize) -> anyhow::Result<Wire> {
    Wire::connect(&plain(cluster, shim)).await
}

fn run(statement: &str, values: &[&str]) -> Batch {
    Batch::new().bind(statement, values).execute(0).sync()
}

fn first(messages: &[Message]) -> String {
    value(messages).unwrap_or_default()
}

async fn r001_all_names_are_forgotten_at_once(cluster: &Cluster) -> anyhow::Result<()> {
    for forget in ["DEALLOCATE ALL", "DISCARD ALL"] {
        let mut other = wire(cluster, ONE).await?;
        let theirs = Batch::new().parse("s0", "select 'theirs'").sync();
        other.ask(&theirs).await?;
        let mut a = wire(cluster, ONE).await?;
        let one = Batch::new().parse("s0", "select 1").bind("s0", &[]);
        ensure!(first(&a.ask(&one.execute(0).sync()).await?) == "1");

        let forgotten = shape(&a.query(forget).await?);
        ensure!(forgotten == format!("C({forget}) Z(I)"), "{forgotten}");
        let unknown = shape(&a.ask(&run("s0", &[])).await?);
        ensure!(unknown == "E(26000) Z(I)", "{unknown}");
        let two = Batch::new().parse("s0", "select 2").bind("s0", &[]);
        let again = a.ask(&two.execute(0).sync()).await?;
        ensure!(shape(&again) == "1 2 D C(SELECT 1) Z(I)" && first(&again) == "2");
        ensure!(first(&other.ask(&run("s0", &[])).await?) == "theirs");
    }
    Ok(())
}

async fn r002_sql_deallocates_a_name_of_the_protocol(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, WIDE).await?;
    let parse = Batch::new().parse("pd_1", "select $1::int").sync();
    a.ask(&parse).await?;
    ensure!(first(&a.ask(&run("pd_1", &["7"])).await?) == "7");
    let done = shape(&a.query("DEALLOCATE pd_1").await?);
    ensure!(done == "C(DEALLOCATE) Z(I)", "{done}");
    let unknown = shape(&a.ask(&run("pd_1", &["7"])).await?);
    ensure!(unknown == "E(26000) Z(I)", "{unknown}");
    let twice = shape(&a.query("DEALLOCATE pd_1").await?);
    ensure!(twice == "E(26000) Z(I)", "{twice}");
    ensure!(shape(&a.ask(&parse).await?) == "1 Z(I)");
    ensure!(first(&a.ask(&run("pd_1", &["8"])).await?) == "8");
    Ok(())
}

async fn r003_a_statement_is_described_on_another_backend(cluster: &Cluster) -> anyhow::Result<()> {
    let (mut a, mut b) = (wire(cluster, TWO).await?, wire(cluster, TWO).await?);
    let parse = Batch::new().parse("d1", "select $1::int as n").sync();
    a.ask(&parse).await?;
    // The connection used last is lent first: it is the one that knows the statement.
    b.query("BEGIN; SELECT 1").await?;
    let described = a.ask(&Batch::new().describe("d1").sync()).await?;
    ensure!(shape(&described) == "t T Z(I)", "{}", shape(&described));
    ensure!(described[0].body == [0, 1, 0, 0, 0, 23], "int4");
    ensure!(described[1].body[2..].starts_with(b"n\0"));
    b.query("ROLLBACK").await?;
    Ok(())
}

async fn r004_closes_and_parses_of_one_text_stay_in_order(cluster: &Cluster) -> anyhow::Result<()> {
    for shim in [WIDE, ONE] {
        let (mut a, mut b) = (wire(cluster, shim).await?, wire(cluster, shim).await?);
        let sql = "select 'known already'";
        b.ask(&Batch::new().parse("k", sql).sync()).await?;
        let batch = Batch::new().parse("a", sql).close("a").parse("b", sql);
        let batch = batch.bind("b", &[]).execute(0).close("b").sync();
        for _ in 0..3 {
            let answers = shape(&a.ask(&batch).await?);
            ensure!(answers == "1 3 1 2 D C(SELECT 1) 3 Z(I)", "{answers}");
            let next = a
                .ask(&Batch::new().run("select 'next'", &[]).sync())
                .await?;
            ensure!(shape(&next) == "1 2 D C(SELECT 1) Z(I)" && first(&next) == "next");
            let others = b.ask(&run("k", &[])).await?;
            ensure!(
                shape(&others) == "2 D C(SELECT 1) Z(I)",
                "{}",
                shape(&others)
            );
            ensure!(first(&others) == "known already");
        }
    }
    Ok(())
}

async fn r005_pgbench_prepared_runs_without_an_error(cluster: &Cluster) -> anyhow::Result<()> {
    let script = cluster.dir().join("three.sql");
    std::fs::write(
        &script,
        "select 1;\nselect 2 + :client_id;\nselect 'three';\n",
    )?;
    let login = plain(cluster, TWO);
    let mut pgbench = Command::new("pgbench");
    pgbench
        .args([
            "-M",
            "prepared",
            "-n",
            "-c",
            "4",
            "-t",
            "200",
            "-h",
            "127.0.0.1",
        ])
        .args(["-p", &login.port.to_string(), "-U", &login.user])
        .args(["-f", &script.to_string_lossy(), &login.database])
        .env("PGPASSWORD", &login.password);
    let output = tokio::task::spawn_blocking(move || pgbench.output()).await??;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(said.contains("actually processed: 800/800"), "{said}");
    ensure!(said.contains("failed transactions: 0 "), "{said}");
    let log = std::fs::read_to_string(cluster.dir().join("shard-0.log"))?;
    let broken = log.lines().find(|line| {
        ["protocol", "frontend message", "unexpected EOF"]
            .iter()
            .any(|word| line.contains(word))
    });
    ensure!(broken.is_none(), "{broken:?}");
    Ok(())
}

async fn r006_sql_prepares_for_all_backends(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, TWO).await?;
    let done = shape(&a.query("PREPARE q1 AS select $1::int + 1").await?);
    ensure!(done == "C(PREPARE) Z(I)", "{done}");
    let mut others = try_join_all((0..3).map(|_| wire(cluster, TWO))).await?;
    for round in 0..20 {
        let executed = a.query("EXECUTE q1(4)");
        let busy = try_join_all(others.iter_mut().map(|other| other.query("select 0")));
        let (executed, _) = try_join(executed, busy).await?;
        ensure!(
            first(&executed) == "5",
            "round {round}: {}",
            shape(&executed)
        );
    }
    let duplicate = Batch::new().parse("q1", "select 1").sync();
    let duplicate = shape(&a.ask(&duplicate).await?);
    ensure!(duplicate == "E(42P05) Z(I)", "{duplicate}");
    let twice = shape(&a.query("PREPARE q1 AS select 2").await?);
    ensure!(twice == "E(42P05) Z(I)", "{twice}");
    Ok(())
}

/// Statements on each of the two backends.
async fn kept(cluster: &Cluster) -> anyhow::Result<Vec<i64>> {
    let (mut a, mut b) = (wire(cluster, TWO).await?, wire(cluster, TWO).await?);
    let sql = "BEGIN; select count(*) from pg_prepared_statements";
    let counted = [a.query(sql).await?, b.query(sql).await?];
    let counted = counted
        .iter()
        .map(|answer| first(answer).parse().context("a count"));
    let counted = counted.collect();
    a.query("COMMIT").await?;
    b.query("COMMIT").await?;
    counted
}

async fn r007_backends_keep_no_more_than_the_limit(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = cluster.admin(TWO).await?;
    let listed = || async { anyhow::Ok(admin.rows("SHOW PREPARED").await?.len()) };
    let before = listed().await?;
    let mut one = wire(cluster, TWO).await?;
    prepare_many(&mut one, 0, 200).await?;
    ensure!(kept(cluster).await?.iter().all(|kept| *kept <= 6));
    ensure!(listed().await? >= before + 200);
    one.query("DISCARD ALL").await?;
    try_join_all((0..20).map(|nth| async move {
        // A tenth of the texts each: twenty clients at once are what matters here.
        let mut client = wire(cluster, TWO).await?;
        prepare_many(&mut client, nth, 20).await
    }))
    .await?;
    let counts = kept(cluster).await?;
    ensure!(counts.iter().all(|kept| *kept <= 6), "{counts:?}");
    wait_until("the list as before", LIMIT, || async {
        Ok((listed().await? == before).then_some(()))
    })
    .await
}

async fn prepare_many(client: &mut Wire, nth: usize, texts: usize) -> anyhow::Result<()> {
    for text in 0..texts {
        let name = format!("s{text}");
        let batch = Batch::new().parse(&name, &format!("select {nth}, {text}"));
        let answers = client
            .ask(&batch.bind(&name, &[]).execute(0).sync())
            .await?;
        ensure!(
            shape(&answers) == "1 2 D C(SELECT 1) Z(I)",
            "{}",
            shape(&answers)
        );
        ensure!(rows(&answers)[0][1].as_deref() == Some(text.to_string().as_str()));
    }
    // The first one is long gone from the backends.
    let again = client.ask(&run("s0", &[])).await?;
    ensure!(shape(&again) == "2 D C(SELECT 1) Z(I)", "{}", shape(&again));
    Ok(())
}

async fn r008_begin_and_a_query_in_one_batch(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, WIDE).await?;
    let batch = Batch::new().run("BEGIN", &[]).parse("", "select 5 as v");
    let batch = batch.bind("", &[]).describe_portal().execute(0).sync();
    let answers = shape(&a.ask(&batch).await?);
    ensure!(
        answers == "1 2 C(BEGIN) 1 2 T D C(SELECT 1) Z(T)",
        "{answers}"
    );
    Ok(())
}

async fn r009_equal_names_of_many_clients_are_not_mixed_up(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let answers = try_join_all((0..30).map(|id| async move {
        let mut client = wire(cluster, THREE).await?;
        let parse = Batch::new()
            .parse("s0", &format!("select {id}, $1::text"))
            .sync();
        ensure!(shape(&client.ask(&parse).await?) == "1 Z(I)");
        let own = id.to_string();
        let mut own_answers = 0;
        for nth in 0..100 {
            let inside = nth % 3 == 0;
            if inside {
                client.query("BEGIN").await?;
            }
            let text = format!("{id}-{nth}");
            let answer = rows(&client.ask(&run("s0", &[&text])).await?);
            let expected = [Some(own.clone()), Some(text)];
            ensure!(
                answer.first().is_some_and(|row| **row == expected),
                "{answer:?}"
            );
            own_answers += 1;
            if inside {
                client.query("COMMIT").await?;
            }
        }
        Ok(own_answers)
    }))
    .await?;
    ensure!(answers.iter().sum::<usize>() == 3000);
    Ok(())
}

async fn names_of_sql_and_protocol_are_one(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, TWO).await?;
    let mut b = wire(cluster, TWO).await?;
    a.query("PREPARE \"By Sql\" (int, text) AS select $1 * 2, $2")
        .await?;
    a.ask(
        &Batch::new()
            .parse("by_protocol", "select $1::int + 1")
            .sync(),
    )
    .await?;
    for _ in 0..3 {
        // Another client takes the backend that knows them.
        b.query("BEGIN; SELECT 1").await?;
        let bound = rows(&a.ask(&run("By Sql", &["4", "x"])).await?);
        ensure!(
            bound == [[Some("8".to_owned()), Some("x".to_owned())]],
            "{bound:?}"
        );
        let described = a.ask(&Batch::new().describe("By Sql").sync()).await?;
        ensure!(shape(&described) == "t T Z(I)", "{}", shape(&described));
        ensure!(first(&a.query("EXECUTE by_protocol(41)").await?) == "42");
        let both = a
            .query("EXECUTE by_protocol(1); EXECUTE \"By Sql\"(2, 'y')")
            .await?;
        ensure!(rows(&both).len() == 2, "{}", shape(&both));
        let extended = Batch::new().run("EXECUTE by_protocol(6)", &[]).sync();
        ensure!(first(&a.ask(&extended).await?) == "7");
        b.query("ROLLBACK").await?;
    }
    a.query("BEGIN").await?;
    let inside = Batch::new().run("PREPARE p3 AS select 3", &[]).sync();
    let prepared = shape(&a.ask(&inside).await?);
    ensure!(prepared == "1 2 C(PREPARE) Z(T)", "{prepared}");
    a.query("ROLLBACK").await?;
    // As in PostgreSQL, a rollback does not take it back.
    ensure!(first(&a.query("EXECUTE p3").await?) == "3");
    ensure!(shape(&a.ask(&Batch::new().close("p3").sync()).await?) == "3 Z(I)");
    ensure!(shape(&a.query("EXECUTE p3").await?) == "E(26000) Z(I)");
    a.query("DEALLOCATE PREPARE ALL").await?;
    ensure!(shape(&a.query("EXECUTE by_protocol(1)").await?) == "E(26000) Z(I)");
    Ok(())
}

async fn a_prepare_that_fails_leaves_no_name(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, WIDE).await?;
    let failed = shape(
        &a.query("PREPARE nope AS select * from no_such_table")
            .await?,
    );
    ensure!(failed == "E(42P01) Z(I)", "{failed}");
    ensure!(shape(&a.query("EXECUTE nope").await?) == "E(26000) Z(I)");
    a.query("BEGIN").await?;
    let failed = shape(
        &a.query("PREPARE nope AS select * from no_such_table")
            .await?,
    );
    ensure!(failed == "E(42P01) Z(E)", "{failed}");
    ensure!(shape(&a.query("SELECT 1").await?) == "E(25P02) Z(E)");
    a.query("ROLLBACK").await?;
    ensure!(shape(&a.query("PREPARE nope AS select 1").await?) == "C(PREPARE) Z(I)");
    Ok(())
}

async fn explain_and_create_table_as_run_an_execute(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, TWO).await?;
    a.query("PREPARE source (int) AS select generate_series(1, $1) AS n")
        .await?;
    for _ in 0..3 {
        let plan = a.query("EXPLAIN (COSTS OFF) EXECUTE source(3)").await?;
        ensure!(first(&plan).contains("ProjectSet"), "{}", first(&plan));
    }
    a.query("CREATE TABLE from_execute AS EXECUTE source(3)")
        .await?;
    ensure!(first(&a.query("SELECT count(*) FROM from_execute").await?) == "3");
    Ok(())
}
