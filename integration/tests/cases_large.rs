//! Large messages pass through without being held.
//!
//! What is measured is the peak of the shim's resident memory (`VmHWM`) above what it takes before.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::{BufMut as _, BytesMut};
use futures_util::future::try_join_all;
use pgdog_integration::fixture::{full_size, peak_kb, plain, resident_kb, watch_peak};
use pgdog_integration::wait::pause;
use pgdog_integration::wire::{Batch, Wire, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// What a message of any size may cost, in KB.
const BOUND_KB: u64 = 64 * 1024;

/// How long anything may take on a machine that is slow and busy.
const LIMIT: Duration = Duration::from_secs(60);

const MB: usize = 1 << 20;

fn main() -> ExitCode {
    let shape = Shape::shards(1);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r061_more_parameters_than_fit_into_a_signed_count,
            r062_a_slow_reader_holds_the_server_back,
            r063_a_long_query_and_a_long_parameter_pass_through,
            r064_many_different_texts_stay_within_bounds,
            r065_long_inserts_are_not_slow,
            a_long_row_passes_through,
            a_long_query_of_several_statements_is_refused_whole,
            a_long_parameter_is_part_of_its_batch,
            a_server_that_dies_in_a_long_row_ends_the_client,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE big (id int, body text)")
        .await?;
    client
        .batch_execute("CREATE TABLE orders (tenant_id bigint, id bigint)")
        .await?;
    Ok(())
}

async fn connect(cluster: &Cluster) -> anyhow::Result<Wire> {
    Wire::connect(&plain(cluster, 0)).await
}

/// Checks what anything since [`watch_peak`] has cost.
fn cheap(cluster: &Cluster, before: u64) -> anyhow::Result<()> {
    let peak = peak_kb(cluster, 0)?;
    eprintln!("peak {} KB above {before} KB", peak.saturating_sub(before));
    ensure!(peak < before + BOUND_KB, "{before} KB became {peak} KB");
    Ok(())
}

async fn r061_more_parameters_than_fit_into_a_signed_count(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    const COUNT: usize = 40_000;
    let numbers: Vec<_> = (1..=COUNT).map(|n| format!("${n}")).collect();
    let sql = format!(
        "SELECT count(DISTINCT x) FROM unnest(ARRAY[{}]::text[]) AS x",
        numbers.join(",")
    );
    let values: Vec<_> = (0..COUNT).map(|n| format!("{n:060}")).collect();
    let values: Vec<_> = values.iter().map(String::as_str).collect();
    let mut client = connect(cluster).await?;
    let parsed = shape(&client.ask(&Batch::new().parse("wide", &sql).sync()).await?);
    ensure!(parsed == "1 Z(I)", "{parsed}");
    for _ in 0..20 {
        let began = Instant::now();
        let batch = Batch::new().bind("wide", &values).execute(0).sync();
        let answers = client.ask(&batch).await?;
        ensure!(
            shape(&answers) == "2 D C(SELECT 1) Z(I)",
            "{}",
            shape(&answers)
        );
        ensure!(value(&answers) == Some(COUNT.to_string()));
        ensure!(began.elapsed() < LIMIT, "took {:?}", began.elapsed());
    }
    Ok(())
}

async fn r062_a_slow_reader_holds_the_server_back(cluster: &Cluster) -> anyhow::Result<()> {
    // A gigabyte at full size.
    let rows = if full_size() { 1_000_000 } else { 60_000 };
    for bytes_per_second in [usize::MAX, 20 * MB] {
        let mut client = connect(cluster).await?;
        let before = watch_peak(cluster, 0)?;
        let sql = format!("SELECT g, repeat('x', 1000) FROM generate_series(1, {rows}) g");
        client.send(&Batch::new().query(&sql).bytes).await?;
        let began = Instant::now();
        let (mut seen, mut tail) = (0, Vec::new());
        let mut buffer = vec![0; 1 << 16];
        while !tail.ends_with(b"Z\0\0\0\x05I") {
            let read = client.stream.read(&mut buffer);
            let count = tokio::time::timeout(LIMIT, read).await??;
            ensure!(count > 0, "closed after {seen} bytes");
            seen += count;
            tail.extend_from_slice(&buffer[..count]);
            tail.drain(..tail.len().saturating_sub(64));
            let due = Duration::from_secs_f64(seen as f64 / bytes_per_second as f64);
            pause(due.saturating_sub(began.elapsed())).await;
        }
        ensure!(seen > rows * 1000, "{seen} bytes are too few");
        let tag = format!("SELECT {rows}\0");
        ensure!(
            tail.windows(tag.len())
                .any(|window| window == tag.as_bytes()),
            "not all rows"
        );
        cheap(cluster, before)?;
    }
    Ok(())
}

/// A multi-row INSERT of about so many bytes, and how many rows it has.
fn long_insert(bytes: usize) -> (String, usize) {
    let mut sql = String::from("INSERT INTO big VALUES ");
    let mut rows = 0;
    while sql.len() < bytes {
        let comma = if rows == 0 { "" } else { ", " };
        sql.push_str(&format!("{comma}({rows}, '{}')", "it''s;".repeat(160)));
        rows += 1;
    }
    (sql, rows)
}

async fn r063_a_long_query_and_a_long_parameter_pass_through(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut other = connect(cluster).await?;
    let mut client = connect(cluster).await?;
    let (sql, rows) = long_insert(20 * MB);
    let before = watch_peak(cluster, 0)?;
    let found = shape(&client.query(&sql).await?);
    ensure!(found == format!("C(INSERT 0 {rows}) Z(I)"), "{found}");
    cheap(cluster, before)?;

    for statement in ["", "long"] {
        let before = watch_peak(cluster, 0)?;
        let length = 100 * MB;
        let head = Batch::new().parse(statement, "SELECT length($1::bytea)");
        client.send(&head.bytes).await?;
        send_bind(&mut client, statement, length).await?;
        let answers = client.ask(&Batch::new().execute(0).sync()).await?;
        let found = shape(&answers);
        ensure!(found == "1 2 D C(SELECT 1) Z(I)", "{found}");
        ensure!(value(&answers) == Some(length.to_string()));
        cheap(cluster, before)?;
    }
    client.query("TRUNCATE big").await?;
    let found = shape(&other.query("SELECT 1").await?);
    ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
    Ok(())
}

/// Bind of one binary value of so many bytes, sent in pieces.
async fn send_bind(client: &mut Wire, statement: &str, length: usize) -> anyhow::Result<()> {
    let mut body = BytesMut::new();
    body.put_u8(0); // the unnamed portal
    body.put_slice(statement.as_bytes());
    body.put_u8(0);
    body.put_u16(1);
    body.put_u16(1); // all values in binary
    body.put_u16(1);
    body.put_u32(length as u32);
    let mut head = BytesMut::new();
    head.put_u8(b'B');
    head.put_u32((4 + body.len() + length + 2) as u32);
    head.put_slice(&body);
    client.send(&head).await?;
    let piece = vec![7; MB];
    let mut left = length;
    while left > 0 {
        let count = left.min(piece.len());
        client.send(&piece[..count]).await?;
        left -= count;
    }
    client.send(&[0, 0]).await // results as text
}

async fn r064_many_different_texts_stay_within_bounds(cluster: &Cluster) -> anyhow::Result<()> {
    const CLIENTS: usize = 50;
    // What is held is bounded by bytes; 6 KB each, fewer show it as well.
    let texts = if full_size() { 20_000 } else { 250 };
    let before = watch_peak(cluster, 0)?;
    let clients = (0..CLIENTS).map(|nth| async move {
        let mut client = connect(cluster).await?;
        for text in (nth..texts).step_by(CLIENTS) {
            let tuples: Vec<_> = (0..600).map(|n| format!("({text},{n})")).collect();
            let sql = format!(
                "SELECT {text} FROM (VALUES (1)) AS one WHERE (1, 2) NOT IN ({})",
                tuples.join(",")
            );
            let answers = client.ask(&Batch::new().run(&sql, &[]).sync()).await?;
            // Text 1 has the tuple (1, 2).
            let expected = Some(text.to_string()).filter(|_| text != 1);
            ensure!(value(&answers) == expected, "{}", shape(&answers));
        }
        anyhow::Ok(())
    });
    try_join_all(clients).await?;
    let peak = peak_kb(cluster, 0)?;
    eprintln!("{texts} texts: {before} KB before, peak {peak} KB");
    ensure!(peak < 512 * 1024, "{before} KB became {peak} KB");
    Ok(())
}

async fn r065_long_inserts_are_not_slow(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let (sql, rows) = long_insert(8 * MB);
    // Twenty at full size; two seconds each, on a machine that does nothing else.
    for _ in 0..if full_size() { 20 } else { 4 } {
        let began = Instant::now();
        let found = shape(&client.query(&sql).await?);
        ensure!(found == format!("C(INSERT 0 {rows}) Z(I)"), "{found}");
        ensure!(began.elapsed() < LIMIT, "took {:?}", began.elapsed());
    }
    client.query("TRUNCATE big").await?;
    Ok(())
}

async fn a_long_row_passes_through(cluster: &Cluster) -> anyhow::Result<()> {
    let length = if full_size() { 500 } else { 100 } * 1_000_000;
    let mut client = connect(cluster).await?;
    let before = watch_peak(cluster, 0)?;
    let sql = format!("SELECT repeat('x', {length}), 'end'");
    client.send(&Batch::new().query(&sql).bytes).await?;
    let (mut seen, mut tail) = (0, Vec::new());
    let mut buffer = vec![0; 1 << 16];
    while !tail.ends_with(b"Z\0\0\0\x05I") {
        let read = client.stream.read(&mut buffer);
        let count = tokio::time::timeout(LIMIT, read).await??;
        ensure!(count > 0, "closed after {seen} bytes");
        seen += count;
        tail.extend_from_slice(&buffer[..count]);
        tail.drain(..tail.len().saturating_sub(64));
    }
    ensure!(seen > length, "{seen} bytes are too few");
    ensure!(tail.windows(3).any(|window| window == b"end"));
    cheap(cluster, before)?;
    let found = shape(&client.query("SELECT 1").await?);
    ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
    Ok(())
}

async fn a_long_query_of_several_statements_is_refused_whole(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let (sql, _) = long_insert(2 * MB);
    for end in ["; SELECT 1", "; COMMIT"] {
        let found = shape(&client.query(&format!("{sql}{end}")).await?);
        ensure!(found == "E(54000) Z(I)", "{found}");
    }
    let answers = client.query("SELECT count(*) FROM big").await?;
    ensure!(
        value(&answers).as_deref() == Some("0"),
        "{}",
        shape(&answers)
    );
    // Inside of a transaction it is one of its errors.
    client.query("BEGIN").await?;
    client.query("INSERT INTO big VALUES (1, 'x')").await?;
    let found = shape(&client.query(&format!("{sql}; SELECT 1")).await?);
    ensure!(found == "E(54000) Z(E)", "{found}");
    let found = shape(&client.query("COMMIT").await?);
    // Its server connection was given up in the middle of the text.
    ensure!(found == "E(40001) Z(I)", "{found}");
    let answers = client.query("SELECT count(*) FROM big").await?;
    ensure!(
        value(&answers).as_deref() == Some("0"),
        "{}",
        shape(&answers)
    );
    Ok(())
}

async fn a_long_parameter_is_part_of_its_batch(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    // An error behind it takes back what came before it.
    let insert = Batch::new()
        .run("INSERT INTO big VALUES (1, 'before')", &[])
        .parse("", "INSERT INTO big SELECT 2, length($1::bytea)::text");
    client.send(&insert.bytes).await?;
    send_bind(&mut client, "", 3 * MB).await?;
    let rest = Batch::new().execute(0).run("SELECT 1/0", &[]).sync();
    let found = shape(&client.ask(&rest).await?);
    let expected = "1 2 C(INSERT 0 1) 1 2 C(INSERT 0 1) 1 E(22012) Z(I)";
    ensure!(found == expected, "{found}");
    // An error before it lets it pass by.
    client
        .send(&Batch::new().run("SELECT 1/0", &[]).bytes)
        .await?;
    send_bind(&mut client, "", 3 * MB).await?;
    let found = shape(&client.ask(&Batch::new().execute(0).sync()).await?);
    ensure!(found == "1 E(22012) Z(I)", "{found}");
    let answers = client.query("SELECT count(*) FROM big").await?;
    ensure!(
        value(&answers).as_deref() == Some("0"),
        "{}",
        shape(&answers)
    );
    Ok(())
}

async fn a_server_that_dies_in_a_long_row_ends_the_client(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let pid = value(&client.query("BEGIN; SELECT pg_backend_pid()").await?).context("no pid")?;
    let sql = "SELECT repeat('x', 100000000)";
    client.send(&Batch::new().query(sql).bytes).await?;
    let mut buffer = vec![0; MB];
    client.stream.read_exact(&mut buffer).await?;
    let node = cluster.primary(0).await?;
    // The backend waits for a reader and does not look at its signals: it is killed.
    let killed = format!("SELECT pg_terminate_backend({pid})");
    node.value(&killed).await?;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(LIMIT, client.stream.read_to_end(&mut rest)).await?;
    let total = buffer.len() + rest.len();
    ensure!(
        read.is_err() || total < 100_000_000 || rest.ends_with(b"Z\0\0\0\x05E"),
        "{total} bytes"
    );
    let _ = client.stream.shutdown().await;
    let mut next = connect(cluster).await?;
    let found = shape(&next.query("SELECT 1").await?);
    ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
    ensure!(resident_kb(cluster, 0)? > 0);
    Ok(())
}
