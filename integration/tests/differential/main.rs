//! Statements made from a seed are answered by three shards as by one PostgreSQL that has all rows,
//! or are refused: never in another way.
//!
//! `SEED` and `STATEMENTS` choose others, and more of them. What differs is printed with the
//! number of its statement; the same seed and number make it again.

mod answer;
mod change;
mod from;
mod further;
mod make;
mod odd;
mod select;
mod values;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use answer::{Answer, Mode, Statement};
use anyhow::{Context as _, ensure};
use make::Maker;
use pgdog_integration::client::{Client, Login};
use pgdog_integration::wire::Wire;
use pgdog_integration::{Cluster, Shape, claims, fixture, suite};
use values::{FAMILIES, TABLES, Table};

/// How many statements there are in a run that names no number.
const STATEMENTS: u64 = 2500;

/// How many differences are looked at before it is over.
const DIFFERENCES: usize = 25;

/// After so many units the rows themselves are compared.
const COMPARED_EVERY: u64 = 400;

/// Statements that were answered in another way once.
const ONCE: [&[&str]; 2] = [
    &[
        "BEGIN",
        "SELECT 1 / (id - id) FROM big_a WHERE k = 1",
        "SELEC * FROM big_b",
        "SELECT * FROM big_b",
        "COMMIT",
    ],
    &[
        "BEGIN",
        "SELECT 1 / (id - id) FROM big_a",
        "SELECT * FROM (SELECT 1",
        "",
        "ROLLBACK",
    ],
];

fn main() -> ExitCode {
    suite::run_within(
        Duration::from_secs(6 * 3600),
        Shape::shards(3),
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![shards_answer_as_one_database_or_refuse],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let node = cluster.primary(0).await?;
    node.batch_execute("CREATE DATABASE one").await?;
    let one = Client::connect(&one(cluster)?).await?;
    for table in &TABLES {
        let sql = values::definition(table);
        client.batch_execute(&sql).await.context(sql.clone())?;
        one.batch_execute(&sql).await.context(sql)?;
        let sql = values::declaration(table);
        client.batch_execute(&sql).await.context(sql)?;
    }
    Ok(())
}

/// The login to the one database that has all rows.
fn one(cluster: &Cluster) -> anyhow::Result<Login> {
    Ok(Login {
        database: "one".to_owned(),
        ..fixture::direct(cluster, 0)?
    })
}

fn number(name: &str, otherwise: u64) -> anyhow::Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(otherwise),
    }
}

/// Both sides, and what came of it so far.
struct Bench {
    shards: Wire,
    one: Wire,
    seed: u64,
    /// Statements, refused ones among them, and those that fail on both sides, by kind.
    counts: BTreeMap<&'static str, [u64; 3]>,
    /// Why statements were refused.
    reasons: BTreeMap<String, u64>,
    differences: usize,
}

async fn shards_answer_as_one_database_or_refuse(cluster: &Cluster) -> anyhow::Result<()> {
    let mut bench = Bench {
        shards: fixture::wire(cluster, 0).await?,
        one: Wire::connect(&one(cluster)?).await?,
        seed: number("SEED", 1)?,
        counts: BTreeMap::new(),
        reasons: BTreeMap::new(),
        differences: 0,
    };
    let wanted = number("STATEMENTS", STATEMENTS)?;
    for first in first_rows() {
        bench.run(0, &first).await?;
    }
    for statements in ONCE {
        bench.again(statements).await?;
    }
    bench.counts.clear();
    bench.reasons.clear();
    let began = Instant::now();
    let mut unit = 0;
    while bench.total() < wanted && bench.differences < DIFFERENCES {
        unit += 1;
        bench.unit(unit).await?;
        if unit % COMPARED_EVERY == 0 {
            compare_rows(cluster)
                .await
                .with_context(|| bench.place(unit))?;
        }
    }
    compare_rows(cluster)
        .await
        .with_context(|| bench.place(unit))?;
    bench.report();
    println!("    {:.1} s", began.elapsed().as_secs_f64());
    ensure!(bench.differences == 0, "{} differences", bench.differences);
    Ok(())
}

/// Rows of every table.
fn first_rows() -> Vec<Statement> {
    let mut all = Vec::new();
    for table in &TABLES {
        let keys: &[&str] = match table.family {
            Some(family) => &FAMILIES[family].keys[1..],
            None => &[""],
        };
        for (at, key) in keys.iter().enumerate() {
            for id in 1..=4 {
                all.push(first_row(table, key, (at * 7 + id, id)));
            }
        }
    }
    all
}

fn first_row(table: &Table, key: &str, (salt, id): (usize, usize)) -> Statement {
    let key = table.family.map(|family| FAMILIES[family].key.literal(key));
    let mut maker = Maker::new(7, salt as u64);
    let cells = table.columns.iter().map(|(name, r#type)| match *name {
        "id" => id.to_string(),
        "code" => format!("'{}'", ["a", "B", "b", "x"][id - 1]),
        _ => maker.some_value(*r#type),
    });
    let cells: Vec<String> = key.into_iter().chain(cells).collect();
    Statement {
        sql: format!("INSERT INTO {} VALUES ({})", table.name, cells.join(", ")),
        params: Vec::new(),
        mode: Mode::Simple,
        alike: select::Alike::Rows,
        kind: "",
    }
}

fn statement(maker: &mut Maker) -> Statement {
    let binary = maker.chance(50);
    let mode = match maker.below(10) {
        0..5 => Mode::Simple,
        5..7 => Mode::Extended {
            binary,
            declared: binary || maker.chance(30),
        },
        7 if maker.chance(30) => Mode::Portions,
        7 => Mode::Prepared { binary: !binary },
        _ => Mode::Prepared { binary },
    };
    maker.params = (mode != Mode::Simple).then(Vec::new);
    let query = match maker.below(100) {
        0..62 => select::query(maker),
        62..94 => change::change(maker),
        _ => change::mistake(maker),
    };
    Statement {
        sql: query.sql,
        params: maker.params.take().unwrap_or_default(),
        mode,
        alike: query.alike,
        kind: query.kind,
    }
}

fn control(sql: &str) -> Statement {
    Statement {
        sql: sql.to_owned(),
        params: Vec::new(),
        mode: Mode::Simple,
        alike: select::Alike::Rows,
        kind: "transactions",
    }
}

/// Two statements in one text.
fn several(first: &Statement, second: &Statement) -> Statement {
    match second.mode {
        Mode::Simple => Statement {
            sql: format!("{}; {}", first.sql, second.sql),
            kind: "texts of two statements",
            alike: match (&first.alike, &second.alike) {
                (select::Alike::Count | select::Alike::Keys(_), _)
                | (_, select::Alike::Count | select::Alike::Keys(_)) => select::Alike::Count,
                _ => select::Alike::Rows,
            },
            ..first.clone()
        },
        Mode::Extended { .. } | Mode::Prepared { .. } | Mode::Portions => first.clone(),
    }
}

/// A statement by itself, or a transaction.
fn unit(maker: &mut Maker) -> Vec<Statement> {
    if maker.chance(88) {
        let first = statement(maker);
        if first.mode == Mode::Simple && maker.chance(6) {
            let second = statement(maker);
            return vec![several(&first, &second)];
        }
        return vec![first];
    }
    let begin = maker.pick(&["BEGIN", "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"]);
    let mut all = vec![control(begin)];
    for _ in 0..maker.below(4) + 1 {
        all.push(statement(maker));
    }
    if maker.chance(40) {
        all.push(control("SAVEPOINT a"));
        all.push(statement(maker));
        all.push(statement(maker));
        all.push(control("ROLLBACK TO a"));
        all.push(statement(maker));
    }
    all.push(control(
        maker.pick(&["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]),
    ));
    all
}

impl Bench {
    fn total(&self) -> u64 {
        self.counts.values().map(|[all, _, _]| all).sum()
    }

    fn place(&self, unit: u64) -> String {
        format!("SEED={}, unit {unit}", self.seed)
    }

    async fn unit(&mut self, number: u64) -> anyhow::Result<()> {
        let statements = unit(&mut Maker::new(self.seed, number));
        let mut saved = false;
        let mut at = 0;
        while let Some(statement) = statements.get(at) {
            at += 1;
            saved |= statement.sql.starts_with("SAVEPOINT");
            let went = self.run(number, statement).await;
            if went.with_context(|| self.place(number))? {
                continue;
            }
            // What is refused ends the transaction of the shards, but not the other one.
            let back = statements[at..]
                .iter()
                .position(|next| next.sql == "ROLLBACK TO a")
                .filter(|_| saved);
            match back {
                Some(ahead) => at += ahead,
                None => {
                    let end = control("ROLLBACK");
                    end.ask(&mut self.shards).await?;
                    end.ask(&mut self.one).await?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Runs statements in every mode.
    async fn again(&mut self, statements: &[&str]) -> anyhow::Result<()> {
        let binary = false;
        let extended = Mode::Extended {
            binary,
            declared: true,
        };
        for mode in [Mode::Simple, extended, Mode::Prepared { binary }] {
            for sql in statements {
                let statement = Statement {
                    mode,
                    ..control(sql)
                };
                self.run(0, &statement).await?;
            }
        }
        // One that the client declares, and that is nowhere in the text.
        let declared = Statement {
            params: vec![make::Param {
                r#type: values::Type::Big,
                value: Some("1".to_owned()),
            }],
            mode: extended,
            alike: select::Alike::Order,
            ..control("SELECT k, id FROM big_a ORDER BY k, id LIMIT 3")
        };
        self.run(0, &declared).await.map(drop)
    }

    /// Runs a statement on both sides; false when the two are not in step after it.
    async fn run(&mut self, number: u64, statement: &Statement) -> anyhow::Result<bool> {
        let context = || statement.describe();
        let found = statement
            .ask(&mut self.shards)
            .await
            .with_context(context)?;
        let counts = self.counts.entry(statement.kind).or_default();
        counts[0] += 1;
        if found.is_refused() {
            counts[1] += 1;
            *self.reasons.entry(reason(&found)).or_default() += 1;
            return Ok(false);
        }
        let right = statement.ask(&mut self.one).await.with_context(context)?;
        counts[2] += u64::from(right.error.is_some());
        if let Some(what) = found.difference(&right, &statement.alike) {
            self.differences += 1;
            println!(
                "DIFFERENT {what}: {} ({})\n    {}\n    shards: {}    one: {}",
                self.place(number),
                statement.kind,
                statement.describe(),
                found.describe(),
                right.describe()
            );
            return Ok(false);
        }
        Ok(true)
    }

    fn report(&self) {
        let mut sum = [0; 3];
        for (kind, counts) in &self.counts {
            (0..3).for_each(|at| sum[at] += counts[at]);
            line(kind, counts);
        }
        line("all", &sum);
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons {
            println!("    {count:5}  {reason}");
        }
    }
}

fn line(kind: &str, [all, refused, failed]: &[u64; 3]) {
    let share = *refused as f64 * 100.0 / (*all).max(1) as f64;
    println!("    {kind:28} {all:6} statements, {share:5.1} % refused, {failed} errors on both");
}

/// Why something was refused, without the names and the keys in it.
fn reason(answer: &Answer) -> String {
    let text = answer.text();
    let (text, _) = text.split_once("(key k in").unwrap_or((&text, ""));
    let parts = text.split('"').enumerate();
    let parts: Vec<&str> = parts
        .map(|(at, part)| if at % 2 == 0 { part } else { "_" })
        .collect();
    parts.concat()
}

/// The shards have the rows of the one database, each where it belongs.
async fn compare_rows(cluster: &Cluster) -> anyhow::Result<()> {
    let one = Client::connect(&one(cluster)?).await?;
    for table in &TABLES {
        let name = table.name;
        let sql = format!("SELECT * FROM {name}");
        let mut right = one.rows(&sql).await?;
        right.sort();
        let mut found = Vec::new();
        for shard in 0..3 {
            let node = cluster.primary(shard).await?;
            let mut rows = node.rows(&sql).await?;
            if table.family.is_some() {
                let sql = format!(
                    "SELECT k FROM {name} WHERE pgdog.shard_for('{name}', k::text) <> {shard}"
                );
                let strays = node.rows(&sql).await?;
                ensure!(strays.is_empty(), "{name}: {strays:?} on shard {shard}");
                found.append(&mut rows);
            } else {
                rows.sort();
                ensure!(
                    rows == right,
                    "{name} on shard {shard}: {rows:?}, not {right:?}"
                );
            }
        }
        if table.family.is_some() {
            found.sort();
            ensure!(found == right, "{name}: {found:?}, not {right:?}");
        }
    }
    Ok(())
}
