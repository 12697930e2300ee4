//! COPY FROM STDIN into tables that live on several shards: every row goes to its own, or none.

mod reading;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::{BufMut as _, BytesMut};
use pgdog_integration::fixture::{count, create, full_size, none_left, peak_kb, plain, watch_peak};
use pgdog_integration::wire::{Batch, Fields, Message, Wire, shape};
use pgdog_integration::{Cluster, Shape, claims, suite, wait_until};
use reading::copied_rows_are_those_that_postgresql_reads;

/// What a COPY of any size may cost, in KB.
const BOUND_KB: u64 = 64 * 1024;

fn main() -> ExitCode {
    suite::run(
        Shape::shards(2),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r027_a_row_without_a_key_fails_the_whole_copy,
            r029_binary_rows_go_to_their_shards,
            r030_a_duplicate_on_one_shard_leaves_nothing_on_any,
            copied_rows_are_those_that_postgresql_reads,
            copied_rows_are_committed_with_their_transaction,
            a_key_that_nobody_knows_is_named,
            what_cannot_be_told_apart_is_refused_before_any_data,
            a_copy_that_is_given_up_leaves_nothing,
            a_copy_that_fails_on_a_shard_is_told_at_once,
            an_omnisharded_table_is_copied_to_every_shard,
            copied_rows_pass_in_flat_memory,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    create(cluster).await?;
    let client = cluster.connect().await?;
    for sql in [
        // The key is the third column, of which COPY sees the second only.
        "CREATE TABLE odd (v text, n int GENERATED ALWAYS AS (length(v)) STORED, \
         k text NOT NULL)",
        "SELECT pgdog.shard_table('odd', 'k', 'varchar')",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    Ok(())
}

/// How a client asks for a COPY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Query,
    Transaction,
    Batch,
}

const WAYS: [Way; 3] = [Way::Query, Way::Transaction, Way::Batch];

/// Copies, and returns what came behind CopyInResponse, or instead of it.
async fn copy(
    client: &mut Wire,
    sql: &str,
    (data, way): (&[u8], Way),
) -> anyhow::Result<Vec<Message>> {
    let begin = match way {
        Way::Query => Batch::new().query(sql),
        Way::Transaction => {
            client.query("BEGIN").await?;
            Batch::new().query(sql)
        }
        Way::Batch => Batch::new().run(sql, &[]).sync(),
    };
    client.send(&begin.bytes).await?;
    let mut seen = Vec::new();
    loop {
        let message = client.read().await?;
        match message.tag {
            'G' => break,
            'Z' => {
                seen.push(message);
                return Ok(seen);
            }
            'E' => seen.push(message),
            _ => {}
        }
    }
    let mut rest = Batch::new();
    for piece in data.chunks(7000) {
        rest = rest.copy_data(piece);
    }
    rest = rest.copy_done();
    if way == Way::Batch {
        rest = rest.sync();
    }
    client.ask(&rest).await
}

fn error(messages: &[Message]) -> anyhow::Result<Fields> {
    let error = messages.iter().find(|message| message.tag == 'E');
    Ok(Fields::of(error.context("no error")?))
}

async fn connect(cluster: &Cluster) -> anyhow::Result<Wire> {
    Wire::connect(&plain(cluster, 0)).await
}

/// Nothing of a COPY may be left, visible or prepared.
async fn nothing_left(cluster: &Cluster, table: &str) -> anyhow::Result<()> {
    for shard in 0..2 {
        let found = count(cluster, shard, table).await?;
        ensure!(found == 0, "{found} rows of {table} on shard {shard}");
        let limit = Duration::from_secs(60);
        wait_until("prepared transactions", limit, || async {
            let prepared = count(cluster, shard, "pg_prepared_xacts").await?;
            Ok((prepared == 0).then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn empty(cluster: &Cluster, table: &str) -> anyhow::Result<()> {
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        node.batch_execute(&format!("TRUNCATE {table}")).await?;
    }
    Ok(())
}

async fn r027_a_row_without_a_key_fails_the_whole_copy(cluster: &Cluster) -> anyhow::Result<()> {
    let line = |id: usize, null: &str, delimiter: &str| {
        let tenant = if id == 4 { null } else { ["11", "12"][id % 2] };
        format!("{tenant}{delimiter}{id}{delimiter}1{delimiter}memo\n")
    };
    let text: String = (1..=10).map(|id| line(id, "none", "\t")).collect();
    let csv: String = (1..=10).map(|id| line(id, "none", ",")).collect();
    let mut client = connect(cluster).await?;
    for (options, data) in [("NULL 'none'", &text), ("FORMAT csv, NULL 'none'", &csv)] {
        for way in WAYS {
            let sql = format!("COPY orders FROM STDIN ({options})");
            let answers = copy(&mut client, &sql, (data.as_bytes(), way)).await?;
            let state = if way == Way::Transaction { 'E' } else { 'I' };
            let expected = format!("E(23502) Z({state})");
            ensure!(shape(&answers) == expected, "{way:?}: {}", shape(&answers));
            let fields = error(&answers)?;
            ensure!(fields.get('M').contains("tenant_id"), "{fields:?}");
            let context = fields.get('W');
            ensure!(
                context == "COPY orders, line 4, column tenant_id",
                "{context}"
            );
            if way == Way::Transaction {
                client.query("ROLLBACK").await?;
            }
            nothing_left(cluster, "orders").await?;
        }
    }
    Ok(())
}

fn binary(rows: impl Iterator<Item = (i64, i64)>) -> BytesMut {
    let mut out = BytesMut::from(&b"PGCOPY\n\xff\r\n\0"[..]);
    out.put_u64(0); // flags, no extension
    for (tenant, id) in rows {
        out.put_u16(4);
        for number in [tenant, id] {
            out.put_u32(8);
            out.put_i64(number);
        }
        out.put_u32(4);
        out.put_i32(1);
        out.put_i32(-1);
    }
    out.put_i16(-1);
    out
}

async fn r029_binary_rows_go_to_their_shards(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    for way in WAYS {
        let data = binary((0..1000).map(|id| (11 + id % 2, id)));
        let sql = "COPY orders FROM STDIN (FORMAT binary)";
        let answers = copy(&mut client, sql, (&data, way)).await?;
        let state = if way == Way::Transaction { 'T' } else { 'I' };
        let expected = format!("C(COPY 1000) Z({state})");
        ensure!(shape(&answers) == expected, "{way:?}: {}", shape(&answers));
        if way == Way::Transaction {
            client.query("COMMIT").await?;
        }
        for (shard, tenant) in [(0, 11), (1, 12)] {
            ensure!(count(cluster, shard, "orders").await? == 500);
            let own = format!("orders WHERE tenant_id = {tenant}");
            ensure!(count(cluster, shard, &own).await? == 500);
        }
        empty(cluster, "orders").await?;
    }
    Ok(())
}

async fn r030_a_duplicate_on_one_shard_leaves_nothing_on_any(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut data: String = (0..1999)
        .map(|id| format!("{}\t{id}\t1\t\\N\n", 11 + id % 2))
        .collect();
    data.push_str("12\t1\t1\t\\N\n");
    let mut client = connect(cluster).await?;
    for way in WAYS {
        let answers = copy(
            &mut client,
            "COPY orders FROM STDIN",
            (data.as_bytes(), way),
        )
        .await?;
        let state = if way == Way::Transaction { 'E' } else { 'I' };
        let expected = format!("E(23505) Z({state})");
        ensure!(shape(&answers) == expected, "{way:?}: {}", shape(&answers));
        if way == Way::Transaction {
            let answers = client.query("COMMIT").await?;
            ensure!(shape(&answers) == "C(ROLLBACK) Z(I)");
        }
        nothing_left(cluster, "orders").await?;
    }
    Ok(())
}

async fn copied_rows_are_committed_with_their_transaction(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    client.query("BEGIN").await?;
    client
        .query("INSERT INTO orders VALUES (12, 7, 1, 'before')")
        .await?;
    let both = Batch::new().query(
        "COPY orders (id, tenant_id) FROM STDIN; SELECT memo FROM orders WHERE tenant_id = 12 \
         AND id = 7",
    );
    client.send(&both.bytes).await?;
    while client.read().await?.tag != 'G' {}
    let data = Batch::new().copy_data(b"1\t11\n2\t12\n3\t11\n").copy_done();
    let answers = client.ask(&data).await?;
    let found = shape(&answers);
    ensure!(found == "C(COPY 3) T D C(SELECT 1) Z(T)", "{found}");
    for shard in 0..2 {
        ensure!(count(cluster, shard, "orders").await? == 0);
    }
    let found = shape(&client.query("COMMIT").await?);
    ensure!(found == "C(COMMIT) Z(I)", "{found}");
    ensure!(count(cluster, 0, "orders").await? == 2);
    ensure!(count(cluster, 1, "orders").await? == 2);
    empty(cluster, "orders").await?;
    // And none of them with a transaction that is rolled back.
    let data = (&b"11\t1\t1\t\n12\t1\t1\t\n"[..], Way::Transaction);
    let answers = copy(&mut client, "COPY orders FROM STDIN", data).await?;
    ensure!(shape(&answers) == "C(COPY 2) Z(T)", "{}", shape(&answers));
    client.query("ROLLBACK").await?;
    nothing_left(cluster, "orders").await
}

async fn a_key_that_nobody_knows_is_named(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    for way in WAYS {
        let data = (&b"11\t1\t1\t\n12\t1\t1\t\n99\t1\t1\t\n"[..], way);
        let answers = copy(&mut client, "COPY orders FROM STDIN", data).await?;
        let fields = error(&answers)?;
        ensure!(fields.get('C') == "58000", "{fields:?}");
        ensure!(fields.get('M').contains("99"), "{fields:?}");
        ensure!(fields.get('W').contains("line 3"), "{fields:?}");
        if way == Way::Transaction {
            client.query("ROLLBACK").await?;
        }
        nothing_left(cluster, "orders").await?;
    }
    // A shard that the client names gets its own rows only.
    client.query("SET pgdog.shard = 1").await?;
    let data = (&b"12\t1\t1\t\n11\t1\t1\t\n"[..], Way::Query);
    let answers = copy(&mut client, "COPY orders FROM STDIN", data).await?;
    let fields = error(&answers)?;
    ensure!(fields.get('C') == "23514", "{fields:?}");
    ensure!(fields.get('W').contains("line 2"), "{fields:?}");
    nothing_left(cluster, "orders").await
}

async fn what_cannot_be_told_apart_is_refused_before_any_data(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    for (sql, code) in [
        ("COPY orders FROM STDIN (ON_ERROR ignore)", "0A000"),
        ("COPY orders FROM STDIN (ENCODING 'sjis')", "0A000"),
        ("COPY orders (id, qty) FROM STDIN", "23502"),
        (
            "COPY orders FROM STDIN (FORMAT csv, DELIMITER '\"')",
            "22023",
        ),
        ("COPY orders (tenant_id, nothing) FROM STDIN", "42703"),
    ] {
        for way in WAYS {
            let answers = copy(&mut client, sql, (b"", way)).await?;
            let state = if way == Way::Transaction { 'E' } else { 'I' };
            let expected = format!("E({code}) Z({state})");
            // PostgreSQL 15 says 0A000 where later versions say 22023.
            let found = shape(&answers).replace("0A000", code);
            ensure!(found == expected, "{sql}: {}", shape(&answers));
            if way == Way::Transaction {
                client.query("ROLLBACK").await?;
            }
        }
    }
    client.query("SET client_encoding = 'SJIS'").await?;
    let data = (&b"11\t1\t1\t\n"[..], Way::Query);
    let answers = copy(&mut client, "COPY orders FROM STDIN", data).await?;
    ensure!(shape(&answers) == "E(0A000) Z(I)", "{}", shape(&answers));
    // What was written before could have changed where rows belong.
    client.query("RESET client_encoding").await?;
    client.query("BEGIN").await?;
    client
        .query("UPDATE tenants SET shard_id = 0 WHERE id = 12")
        .await?;
    let answers = copy(&mut client, "COPY orders FROM STDIN", data).await?;
    ensure!(shape(&answers) == "E(0A000) Z(E)", "{}", shape(&answers));
    client.query("ROLLBACK").await?;
    nothing_left(cluster, "orders").await
}

async fn a_copy_that_is_given_up_leaves_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    let begin = Batch::new().query("COPY orders FROM STDIN");
    client.send(&begin.bytes).await?;
    while client.read().await?.tag != 'G' {}
    let fail = Batch::new()
        .copy_data(b"11\t1\t1\t\n12\t1\t1\t\n")
        .message(b'f', b"enough\0");
    let answers = client.ask(&fail).await?;
    ensure!(shape(&answers) == "E(57014) Z(I)", "{}", shape(&answers));
    let message = error(&answers)?.get('M').to_owned();
    ensure!(message == "COPY from stdin failed: enough", "{message}");
    nothing_left(cluster, "orders").await?;
    // And by going away in the middle.
    let half = begin.copy_data(b"11\t1\t1\t\n12\t1\t1\t\n");
    client.send(&half.bytes).await?;
    while client.read().await?.tag != 'G' {}
    drop(client);
    for shard in 0..2 {
        none_left(cluster, shard, "state <> 'idle'").await?;
    }
    nothing_left(cluster, "orders").await
}

async fn a_copy_that_fails_on_a_shard_is_told_at_once(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    for (sql, data) in [
        ("COPY orders FROM STDIN", &b"11\t1\t1\t\n12\tx\t1\t\n"[..]),
        ("COPY rates FROM STDIN", b"c\tx\n"),
    ] {
        let begin = Batch::new().query(sql);
        client.send(&begin.bytes).await?;
        while client.read().await?.tag != 'G' {}
        // Not the end of the data.
        client.send(&Batch::new().copy_data(data).bytes).await?;
        let answers = client.until_ready().await?;
        ensure!(shape(&answers) == "E(22P02) Z(I)", "{}", shape(&answers));
        // What was on its way is ignored.
        let late = Batch::new().copy_data(b"12\t1\t1\t\n").copy_done();
        client.send(&late.bytes).await?;
        let found = shape(&client.query("SELECT 1").await?);
        ensure!(found == "T D C(SELECT 1) Z(I)", "{found}");
    }
    nothing_left(cluster, "orders").await
}

async fn an_omnisharded_table_is_copied_to_every_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = connect(cluster).await?;
    for way in WAYS {
        let data = (&b"x,1\ny,2\nz,3\n"[..], way);
        let sql = "COPY rates FROM STDIN (FORMAT csv)";
        let answers = copy(&mut client, sql, data).await?;
        let state = if way == Way::Transaction { 'T' } else { 'I' };
        let expected = format!("C(COPY 3) Z({state})");
        ensure!(shape(&answers) == expected, "{way:?}: {}", shape(&answers));
        if way == Way::Transaction {
            client.query("COMMIT").await?;
        }
        for shard in 0..2 {
            ensure!(count(cluster, shard, "rates WHERE code > 'c'").await? == 3);
        }
        client.query("DELETE FROM rates WHERE code > 'c'").await?;
    }
    // A duplicate on one shard only: nothing on any.
    let node = cluster.primary(1).await?;
    node.batch_execute("INSERT INTO rates VALUES ('z', 0)")
        .await?;
    let answers = copy(
        &mut client,
        "COPY rates FROM STDIN",
        (b"y\t1\nz\t1\n", Way::Query),
    )
    .await?;
    ensure!(shape(&answers) == "E(23505) Z(I)", "{}", shape(&answers));
    node.batch_execute("DELETE FROM rates WHERE code > 'c'")
        .await?;
    nothing_left(cluster, "rates WHERE code > 'c'").await
}

async fn copied_rows_pass_in_flat_memory(cluster: &Cluster) -> anyhow::Result<()> {
    let megabytes = if full_size() { 1024 } else { 24 };
    let mut client = connect(cluster).await?;
    let before = watch_peak(cluster, 0)?;
    client.query("BEGIN").await?;
    let begin = Batch::new().query("COPY lines FROM STDIN");
    client.send(&begin.bytes).await?;
    while client.read().await?.tag != 'G' {}
    let sku = "y".repeat(1000);
    let piece: String = (0..64)
        .map(|id| format!("{}\t{id}\t{sku}\n", [11, 12, 13, 14][id % 4]))
        .collect();
    let piece = Batch::new().copy_data(piece.as_bytes());
    for _ in 0..megabytes * 16 {
        client.send(&piece.bytes).await?;
    }
    let found = shape(&client.ask(&Batch::new().copy_done()).await?);
    ensure!(
        found == format!("C(COPY {}) Z(T)", megabytes * 16 * 64),
        "{found}"
    );
    let peak = peak_kb(cluster, 0)?;
    eprintln!(
        "COPY of rows: peak {} KB above {before} KB",
        peak.saturating_sub(before)
    );
    ensure!(peak < before + BOUND_KB, "{before} KB became {peak} KB");
    client.query("ROLLBACK").await?;
    nothing_left(cluster, "lines").await
}
