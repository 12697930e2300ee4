//! What functions, triggers and blocks leave behind, of which no statement's text tells.

use anyhow::ensure;
use futures_util::future::try_join_all;
use pgdog_integration::client::Client;
use pgdog_integration::fixture::{direct, wire};
use pgdog_integration::wire::{Batch, Wire, ask, expect, shape, value};
use pgdog_integration::{Cluster, wait_until};

use crate::{LIMIT, OTHER, TWO, done, pinned};

const CODE: [&str; 9] = [
    "CREATE FUNCTION takes() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_lock(56)'",
    "CREATE FUNCTION calls() RETURNS int LANGUAGE plpgsql AS \
     'BEGIN PERFORM takes(); RETURN 1; END'",
    "CREATE PROCEDURE leaves() LANGUAGE plpgsql AS \
     $$BEGIN CREATE TEMP TABLE of_procedure (a int); COMMIT; END$$",
    "CREATE FUNCTION sets(v text) RETURNS text LANGUAGE sql AS \
     $$SELECT set_config('app.left', v, false)$$",
    "CREATE VIEW reads AS SELECT sets('of a view') AS v",
    "CREATE TABLE triggers (a int)",
    "CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS \
     $$BEGIN EXECUTE 'SE' || 'T work_mem = 78848'; RETURN NEW; END$$",
    "CREATE TRIGGER fires BEFORE INSERT ON triggers FOR EACH ROW EXECUTE FUNCTION fires()",
    "CREATE FUNCTION becomes() RETURNS void LANGUAGE plpgsql AS \
     $$BEGIN SET search_path = elsewhere, public; END$$",
];

/// Reads what `sets` has set.
const LEFT: &str = "select coalesce(current_setting('app.left', true), '')";

/// Makes the functions that the claims share.
pub async fn define(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, TWO).await?;
    for sql in CODE {
        done(&mut client, sql).await?;
    }
    Ok(())
}

pub async fn code_that_leaves_something_pins(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, TWO).await?;
    let blocks = [
        ("/* pgdog_role: primary */ select calls()", "advisory lock"),
        ("CALL leaves()", "temporary table"),
        (
            "DO $$ BEGIN PERFORM pg_advisory_lock(55); END $$",
            "advisory lock",
        ),
        (
            "DO $$ BEGIN CREATE TEMP TABLE of_block (a int); END $$",
            "temporary table",
        ),
        ("DO $$ BEGIN LISTEN of_block; END $$", "LISTEN"),
        (
            "DO $$ BEGIN EXECUTE 'PREPARE of_block AS SELECT 1'; END $$",
            "PREPARE",
        ),
        (
            "DO $$ BEGIN EXECUTE 'DECLARE of_block CURSOR WITH HOLD FOR SELECT 1'; END $$",
            "cursor WITH HOLD",
        ),
    ];
    for (block, why) in blocks {
        done(&mut client, block).await?;
        let found = pinned(cluster).await?;
        ensure!(found == [why], "{block}: {found:?}");
        let batch = Batch::new().run("DISCARD ALL", &[]).sync();
        let discarded = shape(&client.ask(&batch).await?);
        ensure!(discarded == "1 2 C(DISCARD ALL) Z(I)", "{discarded}");
        ensure!(pinned(cluster).await?.is_empty(), "{block}");
    }
    // An error does not take a lock of the session back.
    let failed = client
        .query("DO $$ BEGIN PERFORM pg_advisory_lock(57); RAISE 'x'; END $$")
        .await?;
    ensure!(shape(&failed) == "E(P0001) Z(I)", "{}", shape(&failed));
    ensure!(pinned(cluster).await? == ["advisory lock"]);
    done(&mut client, "select pg_advisory_unlock(57)").await?;
    ensure!(pinned(cluster).await?.is_empty());
    let passing = "DO $$ BEGIN PERFORM pg_advisory_xact_lock(1); END $$";
    done(&mut client, passing).await?;
    ensure!(pinned(cluster).await?.is_empty(), "nothing was left");
    Ok(())
}

pub async fn whatever_code_sets_follows_its_client(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, TWO).await?;
    let mut others = [wire(cluster, TWO).await?, wire(cluster, TWO).await?];
    for (sql, shown, value) in [
        ("select sets('a')", LEFT, "a"),
        ("select v from reads", LEFT, "of a view"),
        ("BEGIN; select sets('b'); COMMIT", LEFT, "b"),
        ("insert into triggers values (1)", "show work_mem", "77MB"),
        ("select becomes()", "show search_path", "elsewhere, public"),
    ] {
        let before = ask(&mut others[0], shown).await?;
        done(&mut client, sql).await?;
        for _ in 0..3 {
            for other in &mut others {
                expect(other, shown, &before).await?;
            }
            expect(&mut client, shown, value).await?;
        }
        ensure!(pinned(cluster).await?.is_empty(), "{sql}");
    }
    done(&mut client, "BEGIN; select sets('c'); ROLLBACK").await?;
    expect(&mut client, LEFT, "b").await?;
    done(&mut client, "select set_config('app.left', 'd', true)").await?;
    expect(&mut client, LEFT, "b").await?;
    drop(client);
    for shim in [TWO, TWO, OTHER] {
        let mut next = wire(cluster, shim).await?;
        expect(&mut next, "show work_mem", "4MB").await?;
        expect(&mut next, LEFT, "").await?;
    }
    Ok(())
}

/// Whoever makes or replaces code, on whatever way: what it leaves is seen when it runs.
pub async fn code_replaced_behind_the_shim_is_noticed(cluster: &Cluster) -> anyhow::Result<()> {
    let node = Client::connect(&direct(cluster, 0)?).await?;
    let define = |body: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION turns() RETURNS text LANGUAGE plpgsql AS \
             $$BEGIN {body}; RETURN 'x'; END$$"
        )
    };
    node.batch_execute(&define("NULL")).await?;
    let (mut client, mut other) = (wire(cluster, TWO).await?, wire(cluster, TWO).await?);
    done(&mut client, "set pgdog.role = 'primary'").await?;
    let parse = Batch::new().parse("turns", "select turns()").sync();
    client.ask(&parse).await?;
    let run = Batch::new().bind("turns", &[]).execute(0).sync();
    let shown = "select coalesce(current_setting('app.turn', true), '')";
    for (turn, value) in [
        ("NULL", ""),
        ("SET app.turn = '1'", "1"),
        ("SET app.turn = '2'", "2"),
    ] {
        node.batch_execute(&define(turn)).await?;
        let ran = shape(&client.ask(&run).await?);
        ensure!(!ran.contains("E("), "{turn}: {ran}");
        expect(&mut other, shown, "").await?;
        expect(&mut client, shown, value).await?;
    }
    Ok(())
}

pub async fn a_lock_left_on_a_replica_is_refused_once(cluster: &Cluster) -> anyhow::Result<()> {
    let node = Client::connect(&direct(cluster, 0)?).await?;
    node.batch_execute(
        "CREATE FUNCTION locks() RETURNS bool LANGUAGE plpgsql AS \
         $$BEGIN PERFORM pg_advisory_lock(58); RETURN pg_is_in_recovery(); END$$",
    )
    .await?;
    let mut client = wire(cluster, TWO).await?;
    done(&mut client, "set pgdog.role = 'replica'").await?;
    let known = "select count(*) from pg_proc where proname = 'locks'";
    while ask(&mut client, known).await? != "1" {
        // Every look takes a round trip; the replica is a moment behind.
    }
    let refused = shape(&client.query("select locks()").await?);
    ensure!(refused.contains("E(40001)"), "{refused}");
    ensure!(pinned(cluster).await?.is_empty());
    done(&mut client, "reset pgdog.role").await?;
    expect(&mut client, "select locks()", "f").await?;
    ensure!(pinned(cluster).await? == ["advisory lock"]);
    let mut other = wire(cluster, OTHER).await?;
    expect(&mut other, "select pg_try_advisory_lock(58)", "f").await?;
    done(&mut client, "select pg_advisory_unlock(58)").await?;
    ensure!(pinned(cluster).await?.is_empty());
    Ok(())
}

/// Nobody may foretell another client's random numbers, and one's own go on.
pub async fn a_seed_is_kept_and_not_handed_on(cluster: &Cluster) -> anyhow::Result<()> {
    let node = Client::connect(&direct(cluster, 0)?).await?;
    node.batch_execute("SELECT setseed(0.25)").await?;
    let random = "select random()::text";
    let expected = [node.value(random).await?, node.value(random).await?];
    for seeds in [
        "select setseed(0.25)",
        "set seed = 0.25",
        "DO $$ BEGIN PERFORM setseed(0.25); END $$",
    ] {
        let mut client = wire(cluster, TWO).await?;
        done(&mut client, seeds).await?;
        ensure!(pinned(cluster).await? == ["seed of random()"], "{seeds}");
        expect(&mut client, random, &expected[0]).await?;
        let mut other = wire(cluster, TWO).await?;
        ensure!(ask(&mut other, random).await? != expected[1], "{seeds}");
        expect(&mut client, random, &expected[1]).await?;
        done(&mut client, seeds).await?;
        drop(client);
        wait_until("the client is gone", LIMIT, || async {
            Ok(pinned(cluster).await?.is_empty().then_some(()))
        })
        .await?;
        for _ in 0..4 {
            let mut next = wire(cluster, TWO).await?;
            ensure!(ask(&mut next, random).await? != expected[0], "{seeds}");
        }
    }
    Ok(())
}

/// `lastval` and `currval` tell a client's own values or fail, whoever had the connection before.
pub async fn values_of_sequences_are_ones_own(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = wire(cluster, TWO).await?;
    done(&mut client, "CREATE TABLE numbered (id serial, owner int)").await?;
    done(&mut client, "insert into numbered (owner) values (0)").await?;
    for bare in ["select lastval()", "select currval('numbered_id_seq')"] {
        let refused = shape(&client.query(bare).await?);
        ensure!(refused == "E(0A000) Z(I)", "{bare}: {refused}");
    }
    try_join_all((1..7).map(|owner| async move {
        let mut client = wire(cluster, TWO).await?;
        for _ in 0..20 {
            let taken = insert_and_ask(&mut client, owner).await?;
            let of =
                format!("/* pgdog_role: primary */ select owner from numbered where id = {taken}");
            expect(&mut client, &of, &owner.to_string()).await?;
            // One that has taken none learns of nobody's.
            let none = shape(&client.query("BEGIN; select lastval()").await?);
            ensure!(none.ends_with("E(55000) Z(E)"), "{none}");
            done(&mut client, "ROLLBACK").await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    let one = "insert into numbered (owner) values (9); select lastval()";
    let answers = client.query(one).await?;
    ensure!(shape(&answers) == "C(INSERT 0 1) T D C(SELECT 1) Z(I)");
    // While it is pinned, its values are there in later transactions.
    done(&mut client, "LISTEN numbered").await?;
    let taken = ask(
        &mut client,
        "insert into numbered (owner) values (8) returning id",
    )
    .await?;
    expect(&mut client, "select lastval()", &taken).await?;
    expect(&mut client, "select currval('numbered_id_seq')", &taken).await
}

/// Who asks for the first time in a database may have to begin anew.
async fn insert_and_ask(client: &mut Wire, owner: i32) -> anyhow::Result<String> {
    loop {
        done(client, "BEGIN").await?;
        let insert = format!("insert into numbered (owner) values ({owner})");
        done(client, &insert).await?;
        let answers = client.query("select lastval()").await?;
        done(client, "COMMIT").await?;
        match value(&answers) {
            Some(taken) => return Ok(taken),
            None => ensure!(shape(&answers) == "E(40001) Z(E)", "{}", shape(&answers)),
        }
    }
}
