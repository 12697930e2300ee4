//! COPY in and out, in every format, failed from either side, in flat memory.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::{BufMut as _, BytesMut};
use pgdog_integration::fixture::{
    configure, count, full_size, none_left, peak_kb, plain, watch_peak,
};
use pgdog_integration::wire::{Batch, Fields, Wire, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite};

/// A shim with a pool of one.
const NARROW: usize = 1;

const LIMIT: Duration = Duration::from_secs(60);

/// What a COPY of any size may cost, in KB.
const BOUND_KB: u64 = 64 * 1024;

const MB: usize = 1 << 20;

fn main() -> ExitCode {
    let shape = Shape::shards(1).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r023_a_binary_copy_that_fails_early_frees_its_server,
            r024_a_text_copy_that_fails_is_repeated_on_one_connection,
            r025_pgbench_fills_its_tables,
            r026_what_is_copied_out_comes_back_the_same,
            r028_copy_is_one_of_several_statements,
            r031_copy_reads_dates_as_the_client_set_it,
            a_copy_in_a_batch_is_answered_as_by_postgresql,
            a_copy_is_given_up_by_its_client,
            a_copy_that_fails_is_told_at_once,
            gigabytes_pass_in_flat_memory,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE numbers (id int PRIMARY KEY, body text)",
        "CREATE TABLE days (day date)",
        "CREATE TABLE bulk (body text)",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    configure(cluster, NARROW, &["default_pool_size = 1"]).await
}

async fn connect(cluster: &Cluster) -> anyhow::Result<Wire> {
    Wire::connect(&plain(cluster, 0)).await
}

async fn expect(client: &mut Wire, sql: &str, expected: &str) -> anyhow::Result<()> {
    let found = shape(&client.query(sql).await?);
    ensure!(found == expected, "{sql}: {found}");
    Ok(())
}

/// The messages up to CopyInResponse.
async fn until_copy_in(client: &mut Wire) -> anyhow::Result<String> {
    let mut seen = Vec::new();
    loop {
        let message = client.read().await?;
        let last = matches!(message.tag, 'G' | 'Z');
        if message.tag != 'S' {
            seen.push(message);
        }
        if last {
            return Ok(shape(&seen));
        }
    }
}

async fn r023_a_binary_copy_that_fails_early_frees_its_server(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    // Fifty megabytes, twenty times, at full size.
    let (rows, rounds) = if full_size() { (50, 20) } else { (4, 3) };
    let mut client = Wire::connect(&plain(cluster, NARROW)).await?;
    client
        .query("INSERT INTO numbers VALUES (1, 'first')")
        .await?;
    for _ in 0..rounds {
        expect(&mut client, "BEGIN", "C(BEGIN) Z(T)").await?;
        let copy = Batch::new().query("COPY numbers FROM STDIN (FORMAT binary)");
        client.send(&copy.bytes).await?;
        let begun = until_copy_in(&mut client).await?;
        ensure!(begun == "G", "{begun}");
        let mut head = BytesMut::from(&b"PGCOPY\n\xff\r\n\0"[..]);
        head.put_u64(0); // flags, no extension
        client.send(&Batch::new().copy_data(&head).bytes).await?;
        for id in 1..=rows {
            let mut row = BytesMut::new();
            row.put_u16(2);
            row.put_u32(4);
            row.put_u32(id);
            row.put_u32(MB as u32);
            row.put_bytes(b'x', MB);
            client.send(&Batch::new().copy_data(&row).bytes).await?;
        }
        let end = Batch::new().copy_data(&[0xff, 0xff]).copy_done();
        let found = shape(&client.ask(&end).await?);
        ensure!(found == "E(23505) Z(E)", "{found}");
        expect(&mut client, "ROLLBACK", "C(ROLLBACK) Z(I)").await?;
        let mut other = Wire::connect(&plain(cluster, NARROW)).await?;
        expect(&mut other, "SELECT 1", "T D C(SELECT 1) Z(I)").await?;
    }
    client.query("TRUNCATE numbers").await?;
    Ok(())
}

async fn r024_a_text_copy_that_fails_is_repeated_on_one_connection(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut lines = String::new();
    for line in 1..=10_000 {
        let more = if line == 5000 { "\ttoo much" } else { "" };
        lines.push_str(&format!("{line}\tbody{more}\n"));
    }
    let mut client = connect(cluster).await?;
    for _ in 0..50 {
        client.query("BEGIN").await?;
        client
            .send(&Batch::new().query("COPY numbers FROM STDIN").bytes)
            .await?;
        until_copy_in(&mut client).await?;
        let mut batch = Batch::new();
        for piece in lines.as_bytes().chunks(8000) {
            batch = batch.copy_data(piece);
        }
        let found = shape(&client.ask(&batch.copy_done()).await?);
        ensure!(found == "E(22P04) Z(E)", "{found}");
        expect(&mut client, "ROLLBACK", "C(ROLLBACK) Z(I)").await?;
    }
    none_left(cluster, 0, "state LIKE 'idle in transaction%'").await
}

async fn r025_pgbench_fills_its_tables(cluster: &Cluster) -> anyhow::Result<()> {
    let scale = if full_size() { 5 } else { 1 };
    let login = plain(cluster, 0);
    let output = tokio::process::Command::new("pgbench")
        .args(["-i", "-q", "-s", &scale.to_string(), "-h", "127.0.0.1"])
        .args(["-p", &login.port.to_string(), "-U", &login.user])
        .arg(&login.database)
        .env("PGPASSWORD", &login.password)
        .output()
        .await
        .context("pgbench")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    ensure!(count(cluster, 0, "pgbench_accounts").await? == scale * 100_000);
    Ok(())
}

async fn r026_what_is_copied_out_comes_back_the_same(cluster: &Cluster) -> anyhow::Result<()> {
    let rows = if full_size() { 100_000 } else { 10_000 };
    let mut client = connect(cluster).await?;
    let fill = format!(
        "CREATE TABLE source AS SELECT g AS id, CASE g % 5 WHEN 0 THEN NULL ELSE \
         E'tab\\t new\\nline \\\\ back, \"quote\" \\\\N ' || g END AS body, \
         decode(md5(g::text), 'hex') AS data FROM generate_series(1, {rows}) g"
    );
    client.query(&fill).await?;
    let md5 = "md5(string_agg(id || coalesce(body, '<null>') || encode(data, 'hex'), '' \
               ORDER BY id))";
    let expected = value(&client.query(&format!("SELECT {md5} FROM source")).await?);
    for format in ["text", "csv", "binary"] {
        let table = format!("copied_{format}");
        client
            .query(&format!("CREATE TABLE {table} (LIKE source)"))
            .await?;
        let out = format!("COPY source TO STDOUT (FORMAT {format})");
        let data = client.query(&out).await?;
        let pieces: Vec<_> = data.iter().filter(|message| message.tag == 'd').collect();
        ensure!(pieces.len() >= rows, "{} pieces", pieces.len());
        let into = format!("COPY {table} FROM STDIN (FORMAT {format})");
        client.send(&Batch::new().query(&into).bytes).await?;
        until_copy_in(&mut client).await?;
        let mut batch = Batch::new();
        for piece in pieces {
            batch = batch.copy_data(&piece.body);
        }
        let found = shape(&client.ask(&batch.copy_done()).await?);
        ensure!(found == format!("C(COPY {rows}) Z(I)"), "{format}: {found}");
        let copied = value(&client.query(&format!("SELECT {md5} FROM {table}")).await?);
        ensure!(copied == expected, "{format}: {copied:?}, not {expected:?}");
    }
    Ok(())
}

async fn r028_copy_is_one_of_several_statements(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let both = Batch::new().query("COPY numbers FROM STDIN; SELECT count(*) FROM numbers");
    client.send(&both.bytes).await?;
    let begun = until_copy_in(&mut client).await?;
    ensure!(begun == "G", "{begun}");
    let data = Batch::new().copy_data(b"1\ta\n2\tb\n3\tc\n").copy_done();
    let answers = client.ask(&data).await?;
    let found = shape(&answers);
    ensure!(found == "C(COPY 3) T D C(SELECT 1) Z(I)", "{found}");
    ensure!(value(&answers).as_deref() == Some("3"));
    client.query("BEGIN").await?;
    let copy = Batch::new().query("COPY numbers FROM STDIN");
    client.send(&copy.bytes).await?;
    until_copy_in(&mut client).await?;
    let data = Batch::new().copy_data(b"4\ta\n").copy_done();
    let found = shape(&client.ask(&data).await?);
    ensure!(found == "C(COPY 1) Z(T)", "{found}");
    expect(&mut client, "ROLLBACK", "C(ROLLBACK) Z(I)").await?;
    ensure!(count(cluster, 0, "numbers").await? == 3);
    client.query("TRUNCATE numbers").await?;
    Ok(())
}

async fn r031_copy_reads_dates_as_the_client_set_it(cluster: &Cluster) -> anyhow::Result<()> {
    let mut first = Wire::connect(&plain(cluster, NARROW)).await?;
    let mut second = Wire::connect(&plain(cluster, NARROW)).await?;
    first.query("SET datestyle = 'SQL, DMY'").await?;
    for (client, expected) in [(&mut first, "2024-04-03"), (&mut second, "2024-03-04")] {
        let copy = Batch::new().query("COPY days FROM STDIN");
        client.send(&copy.bytes).await?;
        until_copy_in(client).await?;
        let data = Batch::new().copy_data(b"03/04/2024\n").copy_done();
        let found = shape(&client.ask(&data).await?);
        ensure!(found == "C(COPY 1) Z(I)", "{found}");
        let sql = "SELECT to_char(day, 'YYYY-MM-DD') FROM days";
        let stored = value(&client.query(sql).await?);
        ensure!(stored.as_deref() == Some(expected), "{stored:?}");
        client.query("TRUNCATE days").await?;
    }
    Ok(())
}

async fn a_copy_in_a_batch_is_answered_as_by_postgresql(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let copy = Batch::new().run("COPY numbers FROM STDIN", &[]);
    let good = Batch::new().copy_data(b"1\ta\n").copy_done().sync();
    let bad = Batch::new().copy_data(b"x\ta\n").copy_done().sync();
    // With a Sync behind the Execute, which the server ignores, and with a Flush.
    for begin in [copy.clone().sync(), copy.flush()] {
        for (data, expected) in [(&good, "C(COPY 1) Z(I)"), (&bad, "E(22P02) Z(I)")] {
            client.send(&begin.bytes).await?;
            let begun = until_copy_in(&mut client).await?;
            ensure!(begun == "1 2 G", "{begun}");
            let found = shape(&client.ask(data).await?);
            ensure!(found == expected, "{found}");
            expect(&mut client, "TRUNCATE numbers", "C(TRUNCATE TABLE) Z(I)").await?;
        }
    }
    Ok(())
}

async fn a_copy_is_given_up_by_its_client(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let copy = Batch::new().query("COPY numbers FROM STDIN");
    client.send(&copy.bytes).await?;
    until_copy_in(&mut client).await?;
    let fail = Batch::new().copy_data(b"1\ta\n").message(b'f', b"enough\0");
    let answers = client.ask(&fail).await?;
    ensure!(shape(&answers) == "E(57014) Z(I)", "{}", shape(&answers));
    let message = Fields::of(&answers[0]).get('M').to_owned();
    ensure!(message == "COPY from stdin failed: enough", "{message}");
    // And by going away in the middle.
    client.send(&copy.copy_data(b"2\tb\n").bytes).await?;
    until_copy_in(&mut client).await?;
    drop(client);
    none_left(cluster, 0, "state <> 'idle'").await?;
    ensure!(count(cluster, 0, "numbers").await? == 0);
    Ok(())
}

async fn a_copy_that_fails_is_told_at_once(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let copy = Batch::new().query("COPY numbers FROM STDIN");
    client.send(&copy.bytes).await?;
    until_copy_in(&mut client).await?;
    // Not all of the data, and not its end.
    client
        .send(&Batch::new().copy_data(b"x\ta\n").bytes)
        .await?;
    let found = shape(&client.until_ready().await?);
    ensure!(found == "E(22P02) Z(I)", "{found}");
    // What was on its way is ignored.
    let late = Batch::new().copy_data(b"1\ta\n").copy_done();
    client.send(&late.bytes).await?;
    expect(&mut client, "SELECT 1", "T D C(SELECT 1) Z(I)").await?;
    ensure!(count(cluster, 0, "numbers").await? == 0);
    Ok(())
}

async fn gigabytes_pass_in_flat_memory(cluster: &Cluster) -> anyhow::Result<()> {
    let megabytes = if full_size() { 1024 } else { 64 };
    let mut client = connect(cluster).await?;
    client
        .query("ALTER TABLE bulk ALTER body SET STORAGE PLAIN")
        .await?;
    let line = "y".repeat(1023) + "\n";
    let piece = Batch::new().copy_data(line.repeat(64).as_bytes());
    // Messages of usual length, then one of many megabytes; the table is emptied at once.
    for pieces in [16 * megabytes, 0] {
        client.query("BEGIN").await?;
        client.query("TRUNCATE bulk").await?;
        let before = watch_peak(cluster, 0)?;
        let copy = Batch::new().query("COPY bulk FROM STDIN");
        client.send(&copy.bytes).await?;
        until_copy_in(&mut client).await?;
        for _ in 0..pieces {
            client.send(&piece.bytes).await?;
        }
        if pieces == 0 {
            let one = Batch::new().copy_data(line.repeat(1024 * megabytes.min(256)).as_bytes());
            client.send(&one.bytes).await?;
        }
        let found = shape(&client.ask(&Batch::new().copy_done()).await?);
        ensure!(found.starts_with("C(COPY "), "{found}");
        flat(cluster, before, "in")?;
        let before = watch_peak(cluster, 0)?;
        let copy = Batch::new().query("COPY bulk TO STDOUT");
        client.send(&copy.bytes).await?;
        let mut bytes = 0;
        loop {
            let message = tokio::time::timeout(LIMIT, client.read()).await??;
            match message.tag {
                'd' => bytes += message.body.len(),
                'Z' => break,
                _ => {}
            }
        }
        let expected = match pieces {
            0 => 1024 * 1024 * megabytes.min(256),
            pieces => pieces * 64 * 1024,
        };
        ensure!(bytes == expected, "{bytes} bytes instead of {expected}");
        flat(cluster, before, "out")?;
        expect(&mut client, "ROLLBACK", "C(ROLLBACK) Z(I)").await?;
    }
    Ok(())
}

fn flat(cluster: &Cluster, before: u64, way: &str) -> anyhow::Result<()> {
    let peak = peak_kb(cluster, 0)?;
    eprintln!(
        "COPY {way}: peak {} KB above {before} KB",
        peak.saturating_sub(before)
    );
    ensure!(peak < before + BOUND_KB, "{before} KB became {peak} KB");
    Ok(())
}
