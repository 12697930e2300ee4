//! What a client gets through the shim is what it gets on a direct connection, message by message.

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::Client;
use pgdog_integration::fixture::{configure, direct, plain};
use pgdog_integration::wire::{Batch, Fields, Message, Wire, shape, value};
use pgdog_integration::{Cluster, Shape, claims, suite};

/// A shim in transaction mode.
const TRANSACTION: usize = 0;
/// A shim in session mode.
const SESSION: usize = 1;

fn main() -> ExitCode {
    let shape = Shape::shards(1).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            texts_are_passed_on_in_any_encoding,
            names_are_passed_on_in_any_encoding,
            a_setting_in_another_encoding_stays_with_its_client,
            own_notifications_carry_the_clients_number,
            session_mode_tells_the_servers_number,
            session_mode_leaves_names_of_statements_alone,
            session_mode_ends_as_its_server_does,
            a_pinned_client_ends_as_its_server_does,
            errors_point_into_the_clients_text,
            a_two_phase_prepare_that_fails_ends_its_transaction,
            an_empty_text_is_one_in_a_failed_transaction_too,
            values_of_sequences_are_ones_own_or_refused,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    configure(cluster, SESSION, &["pooler_mode = \"session\""]).await
}

/// A connection around the shims, and one through each.
async fn all(cluster: &Cluster) -> anyhow::Result<[(&'static str, Wire); 3]> {
    let mut node = direct(cluster, 0)?;
    let shim = plain(cluster, TRANSACTION);
    (node.user, node.password) = (shim.user.clone(), shim.password.clone());
    Ok([
        ("direct", Wire::connect(&node).await?),
        ("transaction", Wire::connect(&shim).await?),
        ("session", Wire::connect(&plain(cluster, SESSION)).await?),
    ])
}

/// Messages as they can be compared: without the lines of the server's source.
fn told(messages: &[Message]) -> Vec<String> {
    let text = |message: &Message| match message.tag {
        'E' | 'N' => {
            let mut fields = Fields::of(message);
            fields.0.retain(|code, _| !matches!(code, 'F' | 'L' | 'R'));
            format!("{} {:?}", message.tag, fields.0)
        }
        tag => format!("{tag} {}", message.body.escape_ascii()),
    };
    messages.iter().map(text).collect()
}

/// Asks all of them, one batch after the other, for the same answers.
async fn same(cluster: &Cluster, batches: &[Batch]) -> anyhow::Result<()> {
    let [(_, mut node), shims @ ..] = all(cluster).await?;
    let mut expected = Vec::new();
    for batch in batches {
        expected.push(told(&node.ask(batch).await?));
    }
    drop(node);
    for (mode, mut shim) in shims {
        for (number, batch) in batches.iter().enumerate() {
            let got = told(&shim.ask(batch).await.context(mode)?);
            let expected = &expected[number];
            ensure!(
                got == *expected,
                "{mode}, batch {number}: {got:#?}, not {expected:#?}"
            );
        }
    }
    Ok(())
}

fn query(sql: &str) -> Batch {
    Batch::new().query(sql)
}

fn query_in_bytes(sql: &[u8]) -> Batch {
    Batch::new().message(b'Q', &[sql, b"\0"].concat())
}

/// Parse, Bind without parameters, Describe, Execute, Sync.
fn extended_in_bytes(name: &[u8], sql: &[u8]) -> Batch {
    Batch::new()
        .message(b'P', &[name, b"\0", sql, b"\0\0\0"].concat())
        .message(b'B', &[b"\0", name, b"\0\0\0\0\0\0\0"].concat())
        .message(b'D', b"P\0")
        .message(b'E', b"\0\0\0\0\0")
        .sync()
}

async fn texts_are_passed_on_in_any_encoding(cluster: &Cluster) -> anyhow::Result<()> {
    let mut batches = vec![
        // No UTF-8: the server's own error, and the connection lives.
        query_in_bytes(b"SELECT '\xe9'"),
        extended_in_bytes(b"", b"SELECT '\xe9'"),
        query("SELECT 'é', length('é')"),
    ];
    let encodings: [(&str, &[u8]); 9] = [
        (
            "LATIN1",
            b"SELECT '\xe9', length('\xc3\xa9') AS \"n\xe9e\"; SELECT '\xa0;', 2",
        ),
        (
            "KOI8R",
            b"SELECT '\xd4\xcf\xde\xcb\xc1' AS \xd4\xcf\xde\xcb\xc1",
        ),
        ("WIN1252", b"SELECT '\x80', length('\x80') -- \xe9\n"),
        (
            "EUC_JP",
            b"SELECT '\xc6\xfc\xcb\xdc', length('\xc6\xfc\xcb\xdc')",
        ),
        // Second bytes that look like a backslash, a bar or a digit.
        (
            "SJIS",
            b"SELECT E'\x95\x5c', length('\x83\x7c'), '\xb1'; SELECT '\x83\x7b'",
        ),
        ("BIG5", b"SELECT E'\xa5\x5c', length('\xa5\x5c')"),
        ("GBK", b"SELECT E'\xd5\x5c', length('\x81\x7c')"),
        (
            "GB18030",
            b"SELECT '\x81\x30\x84\x36', length('\x81\x30\x84\x36')",
        ),
        ("UHC", b"SELECT '\x81\x41', length('\x81\x41')"),
    ];
    for (encoding, sql) in encodings {
        batches.push(query(&format!("SET client_encoding TO '{encoding}'")));
        batches.push(query_in_bytes(sql));
        let first = sql.split(|byte| *byte == b';').next().unwrap_or_default();
        batches.push(extended_in_bytes(b"", first));
        // Cut in the middle of a character.
        batches.push(query_in_bytes(b"SELECT '\x95"));
    }
    batches.push(query("RESET client_encoding"));
    batches.push(query("SELECT 'é'"));
    same(cluster, &batches).await
}

async fn names_are_passed_on_in_any_encoding(cluster: &Cluster) -> anyhow::Result<()> {
    same(
        cluster,
        &[
            query("SET client_encoding TO latin1"),
            query_in_bytes(b"BEGIN; SAVEPOINT \xe9; SELECT 1/0"),
            query_in_bytes(b"ROLLBACK TO \xe9; SELECT 1; COMMIT"),
            query_in_bytes(b"CREATE TEMP TABLE \xe9t\xe9 (\xe0 text)"),
            query_in_bytes(b"INSERT INTO \xe9t\xe9 VALUES ('\xfc') RETURNING \xe0 || ''"),
            query_in_bytes(b"SELECT \xe0 || '' FROM \xe9t\xe9 WHERE \xe0 = '\xfc'"),
            query_in_bytes(b"SELECT * FROM \xe8t\xe9"),
            query_in_bytes(b"DROP TABLE \xe9t\xe9"),
            query_in_bytes(b"PREPARE \xe9 AS SELECT '\xe9' AS \xe9"),
            query_in_bytes(b"EXECUTE \xe9"),
            query_in_bytes(b"DEALLOCATE \xe9"),
            query_in_bytes(b"EXECUTE \xe9"),
            extended_in_bytes(b"s\xe9", b"SELECT '\xe9\xe9'"),
            query_in_bytes(b"DO $$ BEGIN RAISE NOTICE 'd\xe9j\xe0'; END $$"),
            query_in_bytes(b"SELECT set_config('app.name', '\xe9', false)"),
            query("SELECT current_setting('app.name')"),
        ],
    )
    .await
}

/// Two clients of one pool whose equal bytes mean different texts.
async fn a_setting_in_another_encoding_stays_with_its_client(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut wires = Vec::new();
    for encoding in ["LATIN1", "KOI8R", "UTF8"] {
        let mut wire = Wire::connect(&plain(cluster, TRANSACTION)).await?;
        wire.query(&format!("SET client_encoding TO '{encoding}'"))
            .await?;
        wires.push(wire);
    }
    for wire in &mut wires[..2] {
        let set = wire.ask(&query_in_bytes(b"SET app.word TO '\xe9'")).await?;
        ensure!(shape(&set) == "C(SET) Z(I)", "{}", shape(&set));
        let parsed = wire
            .ask(&extended_in_bytes(b"same", b"SELECT ascii('\xe9')"))
            .await?;
        ensure!(shape(&parsed).starts_with("1 2 T D"), "{}", shape(&parsed));
    }
    let sql = "SELECT ascii(current_setting('app.word', true))";
    let bound = Batch::new().bind("same", &[]).execute(0).sync();
    for (wire, expected) in wires.iter_mut().zip(["233", "1048"]) {
        let set = value(&wire.query(sql).await?).context("a word")?;
        let asked = value(&wire.ask(&bound).await?).context("a row")?;
        ensure!(
            (set.as_str(), asked.as_str()) == (expected, expected),
            "{set}, {asked}"
        );
    }
    let other = value(
        &wires[2]
            .query("SELECT coalesce(current_setting('app.word', true), '')")
            .await?,
    );
    ensure!(other.as_deref().unwrap_or_default().is_empty(), "{other:?}");
    Ok(())
}

async fn own_notifications_carry_the_clients_number(cluster: &Cluster) -> anyhow::Result<()> {
    for shim in [TRANSACTION, SESSION] {
        let mut wire = Wire::connect(&plain(cluster, shim)).await?;
        wire.query("LISTEN own").await?;
        let told = wire.key.0.to_be_bytes();
        for sql in ["NOTIFY own, 'x'", "BEGIN; NOTIFY own, 'y'; COMMIT"] {
            let answers = wire.query(sql).await?;
            let own = answers.iter().find(|message| message.tag == 'A');
            let own = own.with_context(|| format!("{sql}: {}", shape(&answers)))?;
            ensure!(
                own.body.starts_with(&told),
                "{sql}: {:?}, not {told:?}",
                own.body
            );
        }
        // What others send carries the process that has sent it.
        let mut node = Wire::connect(&direct(cluster, 0)?).await?;
        node.query("NOTIFY own, 'z'").await?;
        let foreign = wire.read().await?;
        ensure!(foreign.tag == 'A' && foreign.body.starts_with(&node.key.0.to_be_bytes()));
    }
    Ok(())
}

async fn session_mode_tells_the_servers_number(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, SESSION)).await?;
    let pid = value(&wire.query("SELECT pg_backend_pid()").await?);
    ensure!(
        pid == Some(wire.key.0.to_string()),
        "{pid:?}, not {}",
        wire.key.0
    );
    Ok(())
}

async fn session_mode_leaves_names_of_statements_alone(cluster: &Cluster) -> anyhow::Result<()> {
    let names = "SELECT name, from_sql FROM pg_prepared_statements ORDER BY name";
    let batches = [
        query("PREPARE q1 (int) AS SELECT $1"),
        Batch::new().parse("q2", "SELECT $1::int").sync(),
        query(names),
        // One kind of name, whoever gave it.
        query("EXECUTE q2(2)"),
        Batch::new().bind("q1", &["1"]).execute(0).sync(),
        Batch::new().describe("q1").sync(),
        query("PREPARE q2 AS SELECT 3"),
        Batch::new().parse("q1", "SELECT 3").sync(),
        query("DO $$ BEGIN EXECUTE 'EXECUTE q1(4)'; EXECUTE 'DEALLOCATE q1'; END $$"),
        Batch::new().bind("q1", &["1"]).execute(0).sync(),
        Batch::new().close("q2").close("q9").sync(),
        query(names),
        Batch::new()
            .parse("q2", "SELECT 5")
            .bind("q2", &[])
            .execute(0)
            .close("q2")
            .sync(),
        Batch::new()
            .run("BEGIN", &[])
            .parse("q2", "SELECT 6")
            .close("q2")
            .sync(),
        query("SELECT 1/0"),
        Batch::new().close("q2").sync(),
        query("ROLLBACK"),
        query("PREPARE q3 AS SELECT nothing"),
        query("PREPARE q3 (int) AS SELECT $1; EXECUTE q3(1, 2)"),
        query("EXECUTE q3(1 + 1::text)"),
        query("DISCARD ALL"),
        query(names),
    ];
    let [(_, mut node), _, (_, mut shim)] = all(cluster).await?;
    for (number, batch) in batches.iter().enumerate() {
        let (expected, got) = (told(&node.ask(batch).await?), told(&shim.ask(batch).await?));
        ensure!(
            got == expected,
            "batch {number}: {got:#?}, not {expected:#?}"
        );
    }
    // More than a connection keeps of those that clients share.
    for number in 0..600 {
        shim.ask(
            &Batch::new()
                .parse(&format!("many{number}"), "SELECT 1")
                .sync(),
        )
        .await?;
    }
    let many = value(
        &shim
            .query("SELECT count(*) FROM pg_prepared_statements")
            .await?,
    );
    ensure!(many.as_deref() == Some("600"), "{many:?}");
    drop(shim);
    let mut next = Wire::connect(&plain(cluster, SESSION)).await?;
    let left = value(
        &next
            .query("SELECT count(*) FROM pg_prepared_statements")
            .await?,
    );
    ensure!(left.as_deref() == Some("0"), "{left:?}");
    Ok(())
}

/// The fields of the last message before the connection is closed.
async fn last_words(wire: &mut Wire) -> anyhow::Result<Fields> {
    let mut last = None;
    while let Ok(message) = wire.read().await {
        last = Some(message);
    }
    let last = last
        .filter(|message| message.tag == 'E')
        .context("no error came")?;
    let mut fields = Fields::of(&last);
    fields.0.retain(|code, _| !matches!(code, 'F' | 'L' | 'R'));
    Ok(fields)
}

async fn session_mode_ends_as_its_server_does(cluster: &Cluster) -> anyhow::Result<()> {
    let admin = Client::connect(&direct(cluster, 0)?).await?;
    for idle in [false, true] {
        let [(_, mut node), _, (_, mut shim)] = all(cluster).await?;
        let mut ends = Vec::new();
        for wire in [&mut node, &mut shim] {
            match idle {
                true => {
                    let sql = format!("SELECT pg_terminate_backend({})", wire.key.0);
                    ensure!(admin.value(&sql).await? == "t");
                }
                false => {
                    let itself = query("SELECT pg_terminate_backend(pg_backend_pid())");
                    wire.send(&itself.bytes).await?;
                }
            }
            ends.push(last_words(wire).await?);
        }
        ensure!(
            ends[0] == ends[1],
            "idle {idle}: {:?}, not {:?}",
            ends[1],
            ends[0]
        );
        ensure!(ends[1].get('C') == "57P01" && ends[1].get('S') == "FATAL");
    }
    Ok(())
}

async fn a_pinned_client_ends_as_its_server_does(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, TRANSACTION)).await?;
    wire.query("CREATE TEMP TABLE kept (a int)").await?;
    wire.send(&query("SELECT pg_terminate_backend(pg_backend_pid())").bytes)
        .await?;
    let end = last_words(&mut wire).await?;
    ensure!(
        end.text()
            .starts_with("57P01 terminating connection due to"),
        "{}",
        end.text()
    );
    // Who keeps nothing lives on.
    let mut wire = Wire::connect(&plain(cluster, TRANSACTION)).await?;
    let ended = wire
        .query("SELECT pg_terminate_backend(pg_backend_pid())")
        .await?;
    ensure!(
        shape(&ended).ends_with("E(57P01) Z(I)"),
        "{}",
        shape(&ended)
    );
    ensure!(value(&wire.query("SELECT 7").await?).as_deref() == Some("7"));
    Ok(())
}

async fn errors_point_into_the_clients_text(cluster: &Cluster) -> anyhow::Result<()> {
    let batches = [
        query("SELECT 'é'; SELECT nothing"),
        query("PREPARE q (int) AS SELECT 1"),
        query("SELECT 'é'; PREPARE é AS SELECT nothing"),
        query("/* é */ EXECUTE q(1 + nothing)"),
        query("SELECT 'é'; EXECUTE q(1 + nothing); SELECT 1"),
        query("PREPARE r (no_type) AS SELECT 1"),
    ];
    same(cluster, &batches).await
}

async fn a_two_phase_prepare_that_fails_ends_its_transaction(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let batches = [
        query("BEGIN; CREATE TEMP TABLE gone (a int)"),
        query("PREPARE TRANSACTION 'as_direct'"),
        query("SELECT 1"),
        query("BEGIN; SELECT 1"),
        query("PREPARE TRANSACTION 'as_direct'"),
        query("BEGIN; SELECT 1"),
        query("PREPARE TRANSACTION 'as_direct'"),
        query("SELECT 1; COMMIT"),
        query("BEGIN; SET app.word = 'x'; SELECT 1/0"),
        query("PREPARE TRANSACTION 'as_direct2'"),
        query("SELECT current_setting('app.word', true)"),
        query("ROLLBACK PREPARED 'as_direct'"),
        query("ROLLBACK PREPARED 'as_direct2'"),
    ];
    same(cluster, &batches).await
}

async fn an_empty_text_is_one_in_a_failed_transaction_too(cluster: &Cluster) -> anyhow::Result<()> {
    let empty = Batch::new()
        .parse("", "")
        .describe("")
        .bind("", &[])
        .execute(0);
    let batches = [
        query("BEGIN; SELECT 1/0"),
        empty.sync(),
        query(""),
        query("SELECT 1"),
        query("ROLLBACK"),
    ];
    same(cluster, &batches).await
}

/// The connection came to be kept in the transaction that took a value, so it was not cleared.
async fn values_of_sequences_are_ones_own_or_refused(cluster: &Cluster) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&plain(cluster, TRANSACTION)).await?;
    for sql in [
        "CREATE TABLE counted (a int GENERATED ALWAYS AS IDENTITY, b int)",
        "BEGIN; INSERT INTO counted (b) VALUES (1); CREATE TEMP TABLE kept (); COMMIT",
    ] {
        wire.query(sql).await?;
    }
    let found = wire.query("SELECT lastval()").await?;
    let own = value(&found).as_deref() == Some("1");
    ensure!(own || shape(&found) == "E(40001) Z(I)", "{}", shape(&found));
    wire.query("INSERT INTO counted (b) VALUES (1)").await?;
    let found = wire.query("SELECT lastval()").await?;
    ensure!(value(&found).as_deref() == Some("2"), "{}", shape(&found));
    Ok(())
}
