//! Rows and queries, made from a seed.

use anyhow::Context as _;
use futures_util::StreamExt as _;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

/// A query, and whether its order is fixed to the last row.
pub struct Query {
    /// The text.
    pub sql: String,
    /// Rows have one possible order.
    pub ordered: bool,
}

fn pick<'a>(rng: &mut StdRng, choices: &[&'a str]) -> &'a str {
    choices[rng.random_range(0..choices.len())]
}

/// Rows of `facts` and `parts`.
pub fn inserts() -> Vec<String> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut all = Vec::new();
    for tenant in 1..=20 {
        for id in 1..=7 {
            let qty = pick(&mut rng, &["NULL", "0", "1", "2", "3", "5", "8"]);
            let memo = pick(
                &mut rng,
                &["'a'", "'B'", "'b'", "'ä'", "'Z z'", "NULL", "'x'", "''"],
            );
            let amount = pick(
                &mut rng,
                &[
                    "NULL",
                    "1.5",
                    "1.50",
                    "-3.125",
                    "0",
                    "'NaN'",
                    "1000000.001",
                    "7e-20",
                ],
            );
            let f = pick(&mut rng, &["NULL", "1.5", "'-0'", "0", "2.25", "-7", "64"]);
            let ok = pick(&mut rng, &["true", "false", "NULL"]);
            let minutes = rng.random_range(0..9999);
            let days = rng.random_range(0..40);
            let months = rng.random_range(0..3);
            all.push(format!(
                "INSERT INTO facts VALUES ({tenant}, {id}, {qty}, {memo}, {memo}, {amount}, {f}, \
                 timestamptz '2024-01-01 00:00+00' + interval '{minutes} minutes', \
                 date '2024-01-01' + {days}, interval '{days} days {months} months', \
                 md5('{tenant}-{id}')::uuid, decode(md5('{id}'), 'hex'), {ok}, '{{a,b}}')"
            ));
        }
        for id in 1..=3 {
            let n = rng.random_range(0..50);
            let sku = rng.random_range(0..6);
            all.push(format!(
                "INSERT INTO parts VALUES ({tenant}, {id}, {n}, 's{sku}')"
            ));
        }
    }
    all
}

const COLUMNS: [&str; 13] = [
    "tenant_id",
    "id",
    "qty",
    "memo",
    "icu",
    "amount",
    "f",
    "at",
    "d",
    "iv",
    "u",
    "b",
    "ok",
];

const AGGREGATES: [&str; 25] = [
    "count(*)",
    "count(qty)",
    "sum(qty)",
    "avg(qty)",
    "sum(tenant_id)",
    "avg(tenant_id)",
    "sum(amount)",
    "avg(amount)",
    "min(icu)",
    "max(memo)",
    "min(at)",
    "max(iv)",
    "sum(iv)",
    "avg(iv)",
    "bool_and(ok)",
    "bool_or(ok)",
    "bit_and(qty)",
    "bit_or(id)",
    "sum(f)",
    "avg(f)",
    "sum(qty) FILTER (WHERE ok)",
    "coalesce(sum(amount), 0)::numeric(20, 4)",
    "sum(qty) * 2.5",
    "round(avg(qty), 2)",
    "max(d) - min(d)",
];

fn some<'a>(rng: &mut StdRng, choices: &[&'a str], most: usize) -> Vec<&'a str> {
    let mut left = choices.to_vec();
    let count = rng.random_range(1..=most.min(left.len()));
    (0..count)
        .map(|_| left.swap_remove(rng.random_range(0..left.len())))
        .collect()
}

fn filter(rng: &mut StdRng) -> &'static str {
    pick(
        rng,
        &[
            "",
            "",
            "WHERE qty > 3",
            "WHERE memo IS NOT NULL",
            "WHERE memo IN ('a', 'b', 'B')",
            "WHERE tenant_id BETWEEN 5 AND 9",
            "WHERE amount IS NULL",
            "WHERE false",
            "WHERE d > '2024-01-20'",
            "WHERE tenant_id IN (1, 2, 3)",
            "WHERE ok",
        ],
    )
}

fn order(rng: &mut StdRng, columns: &[&str]) -> String {
    let columns = some(rng, columns, 3);
    let items = columns.iter().map(|column| {
        let how = [
            "",
            " DESC",
            " NULLS FIRST",
            " DESC NULLS LAST",
            " ASC NULLS LAST",
        ];
        format!("{column}{}", pick(rng, &how))
    });
    items.collect::<Vec<_>>().join(", ")
}

/// So many queries.
pub fn queries(count: usize) -> Vec<Query> {
    let mut rng = StdRng::seed_from_u64(count as u64);
    (0..count).map(|_| query(&mut rng)).collect()
}

fn query(rng: &mut StdRng) -> Query {
    match rng.next_u32() % 20 {
        0..6 => {
            let columns = some(rng, &COLUMNS, 4).join(", ");
            let (filter, order) = (filter(rng), order(rng, &COLUMNS));
            let limits = [
                "",
                "",
                "LIMIT 7",
                "LIMIT 3 OFFSET 4",
                "OFFSET 100",
                "LIMIT 0",
                "LIMIT ALL",
            ];
            let limit = pick(rng, &limits);
            Query {
                sql: format!(
                    "SELECT {columns} FROM facts {filter} ORDER BY {order}, tenant_id, id {limit}"
                ),
                ordered: true,
            }
        }
        6..8 => {
            let columns = pick(rng, &["*", "qty, memo", "tenant_id + id AS s"]);
            Query {
                sql: format!("SELECT {columns} FROM facts {}", filter(rng)),
                ordered: false,
            }
        }
        8..10 => {
            let column = pick(rng, &["qty", "memo", "icu", "ok"]);
            let rows = rng.random_range(1..9);
            Query {
                sql: format!(
                    "SELECT {column} FROM facts {} ORDER BY 1 FETCH FIRST {rows} ROWS WITH TIES",
                    filter(rng)
                ),
                ordered: true,
            }
        }
        10..12 => {
            let columns = some(rng, &["qty", "memo", "icu", "d", "ok"], 2);
            let order = if columns.len() == 1 { "1" } else { "1, 2" };
            Query {
                sql: format!(
                    "SELECT DISTINCT {} FROM facts {} ORDER BY {order}",
                    columns.join(", "),
                    filter(rng)
                ),
                ordered: true,
            }
        }
        12 => Query {
            sql: format!(
                "SELECT DISTINCT ON (icu) icu, tenant_id, id FROM facts {} \
                 ORDER BY icu, {}, tenant_id, id",
                filter(rng),
                order(rng, &["qty", "d"])
            ),
            ordered: true,
        },
        13..18 => groups(rng),
        _ => joins(rng),
    }
}

fn joins(rng: &mut StdRng) -> Query {
    let from = pick(
        rng,
        &[
            "facts o JOIN parts p USING (tenant_id)",
            "facts o LEFT JOIN parts p ON p.tenant_id = o.tenant_id AND p.id = o.id",
            "parts p RIGHT JOIN facts o ON p.tenant_id = o.tenant_id AND p.id = o.id",
            "facts o JOIN parts p ON p.tenant_id = o.tenant_id LEFT JOIN rates r \
             ON r.code = o.memo",
            "facts o, rates r",
        ],
    );
    let columns = pick(
        rng,
        &[
            "count(*)",
            "o.memo",
            "sum(o.qty)",
            "o.id, (SELECT count(*) FROM parts x WHERE x.tenant_id = o.tenant_id AND x.n > 9)",
        ],
    );
    Query {
        sql: format!("SELECT {columns} FROM {from} WHERE o.qty IS NOT NULL"),
        ordered: false,
    }
}

fn groups(rng: &mut StdRng) -> Query {
    let choices = [
        "",
        "",
        "memo",
        "icu",
        "qty",
        "memo, qty",
        "ok",
        "date_trunc('month', d)",
        "lower(icu)",
        "qty % 2",
        "tenant_id",
    ];
    let by = pick(rng, &choices);
    let width = by
        .split(", ")
        .filter(|by| !by.is_empty() && !by.starts_with('\''))
        .count();
    let width = if by.starts_with("date_trunc") {
        1
    } else {
        width
    };
    let places: Vec<String> = (1..=width).map(|place| place.to_string()).collect();
    let places = places.join(", ");
    let aggregates = some(rng, &AGGREGATES, 4).join(", ");
    let having = pick(
        rng,
        &["", "", "HAVING count(*) > 5", "HAVING sum(qty) > 10"],
    );
    let filter = filter(rng);
    let sql = match (width, rng.random_range(0..10)) {
        (0, _) => format!("SELECT {aggregates} FROM facts {filter} {having}"),
        (_, 0..3) => format!(
            "SELECT {by}, {aggregates} FROM facts {filter} GROUP BY {places} {having} \
             ORDER BY count(*) DESC, {places} LIMIT 3"
        ),
        _ => format!(
            "SELECT {by}, {aggregates} FROM facts {filter} GROUP BY {by} {having} \
             ORDER BY {places}"
        ),
    };
    Query { sql, ordered: true }
}

/// What came of a large read.
pub struct Counted {
    /// How many rows.
    pub rows: usize,
    /// Whether the first three columns never went down.
    pub in_order: bool,
}

/// Counts the rows of a result as they come.
pub async fn count(stream: tokio_postgres::RowStream) -> anyhow::Result<Counted> {
    let mut counted = Counted {
        rows: 0,
        in_order: true,
    };
    let mut last = (0_i32, 0_i64, 0_i64);
    tokio::pin!(stream);
    while let Some(row) = stream.next().await {
        let row = row.context("a row")?;
        let now = (row.get(0), row.get(1), row.get(2));
        counted.in_order &= last <= now;
        counted.rows += 1;
        last = now;
    }
    Ok(counted)
}
