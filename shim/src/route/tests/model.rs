//! Generated queries against rows in memory: what a route leaves out must not matter.
//!
//! Two sharded tables and an omnisharded one are joined in every way, with nested conditions and
//! subqueries. The query is evaluated here over all rows, and over the rows of the chosen shard
//! only; both must give the same result.

use proptest::prelude::*;

use super::{Outcome, PLACES, Route, Target, outcome};

const TABLES: [&str; 3] = ["orders", "lines", "rates"];
const KEYS: [i64; 6] = [11, 13, 12, 14, 21, 22];

type Row = [Option<i64>; 2];
type Rows = [Vec<Row>; 3];

/// A column: which relation of the scope (inner ones first), and whether it is the key.
#[derive(Debug, Clone, Copy)]
struct Column {
    relation: usize,
    key: bool,
}

#[derive(Debug, Clone)]
enum Condition {
    Equal(Column, Column),
    Is(Column, i64),
    In(Column, Vec<i64>),
    Below(Column, i64),
    Null(Column),
    And(Vec<Condition>),
    Or(Vec<Condition>),
    Not(Box<Condition>),
    /// A row of the table fulfils the condition; its relation is number 9.
    Exists(usize, Box<Condition>),
    /// The column is among the keys of such rows.
    Among(Column, usize, Box<Condition>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Join {
    Inner,
    Left,
    Right,
    Full,
}

#[derive(Debug, Clone)]
struct Query {
    first: usize,
    joins: Vec<(Join, usize, Condition)>,
    filter: Condition,
}

const INNER: usize = 9;

fn column(relations: usize, inner: bool) -> impl Strategy<Value = Column> {
    let relation = if inner {
        prop_oneof![2 => Just(INNER), 1 => 0..relations].boxed()
    } else {
        (0..relations).boxed()
    };
    (relation, prop::bool::weighted(0.8)).prop_map(|(relation, key)| Column { relation, key })
}

fn constant() -> impl Strategy<Value = i64> {
    prop::sample::select(&KEYS[..4])
}

fn leaf(relations: usize, inner: bool) -> BoxedStrategy<Condition> {
    let column = move || column(relations, inner);
    prop_oneof![
        4 => (column(), constant()).prop_map(|(c, v)| Condition::Is(c, v)),
        3 => (column(), column()).prop_map(|(a, b)| Condition::Equal(a, b)),
        2 => (column(), prop::collection::vec(constant(), 1..3))
            .prop_map(|(c, v)| Condition::In(c, v)),
        1 => (column(), constant()).prop_map(|(c, v)| Condition::Below(c, v)),
        1 => column().prop_map(Condition::Null),
    ]
    .boxed()
}

fn condition(relations: usize, inner: bool) -> BoxedStrategy<Condition> {
    leaf(relations, inner)
        .prop_recursive(3, 12, 3, move |part| {
            let table = 0..TABLES.len();
            let below = move || {
                if inner {
                    leaf(relations, true)
                } else {
                    prop::collection::vec(condition(relations, true), 1..3)
                        .prop_map(Condition::And)
                        .boxed()
                }
            };
            let list = prop::collection::vec(part.clone(), 1..4);
            let mut choices = vec![
                (4, list.clone().prop_map(Condition::And).boxed()),
                (1, list.prop_map(Condition::Or).boxed()),
                (1, part.prop_map(|c| Condition::Not(Box::new(c))).boxed()),
            ];
            if !inner {
                let exists =
                    (table.clone(), below()).prop_map(|(t, c)| Condition::Exists(t, Box::new(c)));
                let among = (column(relations, false), table, below())
                    .prop_map(|(c, t, inner)| Condition::Among(c, t, Box::new(inner)));
                choices.push((2, exists.boxed()));
                choices.push((2, among.boxed()));
            }
            prop::strategy::Union::new_weighted(choices)
        })
        .boxed()
}

fn query() -> impl Strategy<Value = Query> {
    let join = || prop::sample::select(vec![Join::Inner, Join::Left, Join::Right, Join::Full]);
    let table = || 0..TABLES.len();
    (0usize..3).prop_flat_map(move |joins| {
        let list: Vec<_> = (0..joins)
            .map(|n| (join(), table(), condition(n + 2, false)).boxed())
            .collect();
        let filter = prop::collection::vec(condition(joins + 1, false), 1..4);
        (table(), list, filter).prop_map(|(first, joins, filter)| Query {
            first,
            joins,
            filter: Condition::And(filter),
        })
    })
}

fn rows() -> impl Strategy<Value = Rows> {
    let row = |keys: BoxedStrategy<Option<i64>>| {
        prop::collection::vec((keys, prop::option::weighted(0.8, constant())), 0..5)
            .prop_map(|rows| rows.into_iter().map(|(k, x)| [k, x]).collect::<Vec<Row>>())
    };
    let key = || prop::sample::select(&KEYS[..]).prop_map(Some).boxed();
    (
        row(key()),
        row(key()),
        row(prop::option::of(prop::sample::select(&KEYS[..])).boxed()),
    )
        .prop_map(|(a, b, c)| [a, b, c])
}

impl Column {
    fn sql(self) -> String {
        format!(
            "t{}.{}",
            self.relation,
            if self.key { "tenant_id" } else { "x" }
        )
    }

    fn of(self, scope: &Scope<'_>) -> Option<i64> {
        let row = if self.relation == INNER {
            scope.inner
        } else {
            scope.outer[self.relation]
        };
        row.and_then(|row| row[usize::from(!self.key)])
    }
}

impl Condition {
    fn sql(&self) -> String {
        let joined = |parts: &[Condition], word: &str| {
            let parts: Vec<String> = parts
                .iter()
                .map(|part| format!("({})", part.sql()))
                .collect();
            parts.join(word)
        };
        match self {
            Self::Equal(a, b) => format!("{} = {}", a.sql(), b.sql()),
            Self::Is(c, v) => format!("{} = {v}", c.sql()),
            Self::In(c, v) => {
                let list: Vec<String> = v.iter().map(i64::to_string).collect();
                format!("{} IN ({})", c.sql(), list.join(", "))
            }
            Self::Below(c, v) => format!("{} < {v}", c.sql()),
            Self::Null(c) => format!("{} IS NULL", c.sql()),
            Self::And(parts) => joined(parts, " AND "),
            Self::Or(parts) => joined(parts, " OR "),
            Self::Not(part) => format!("NOT ({})", part.sql()),
            Self::Exists(table, part) => {
                format!(
                    "EXISTS (SELECT 1 FROM {} t9 WHERE {})",
                    TABLES[*table],
                    part.sql()
                )
            }
            Self::Among(c, table, part) => format!(
                "{} IN (SELECT t9.tenant_id FROM {} t9 WHERE {})",
                c.sql(),
                TABLES[*table],
                part.sql()
            ),
        }
    }

    /// Three-valued logic.
    fn holds(&self, scope: &Scope<'_>) -> Option<bool> {
        match self {
            Self::Equal(a, b) => Some(a.of(scope)? == b.of(scope)?),
            Self::Is(c, v) => Some(c.of(scope)? == *v),
            Self::In(c, v) => Some(v.contains(&c.of(scope)?)),
            Self::Below(c, v) => Some(c.of(scope)? < *v),
            Self::Null(c) => Some(c.of(scope).is_none()),
            Self::And(parts) => all(parts.iter().map(|part| part.holds(scope))),
            Self::Or(parts) => {
                all(parts.iter().map(|part| part.holds(scope).map(|b| !b))).map(|b| !b)
            }
            Self::Not(part) => part.holds(scope).map(|b| !b),
            Self::Exists(table, part) => {
                let mut rows = scope.rows[*table].iter();
                Some(rows.any(|row| part.holds(&scope.with(row)) == Some(true)))
            }
            Self::Among(c, table, part) => {
                let value = c.of(scope);
                let rows = scope.rows[*table].iter();
                let found: Vec<Option<i64>> = rows
                    .filter(|row| part.holds(&scope.with(row)) == Some(true))
                    .map(|row| row[0])
                    .collect();
                let differs = found.iter().map(|key| Some(value? != (*key)?));
                all(differs).map(|none| !none)
            }
        }
    }
}

fn all(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut known = Some(true);
    for part in parts {
        match part {
            Some(false) => return Some(false),
            Some(true) => {}
            None => known = None,
        }
    }
    known
}

#[derive(Clone, Copy)]
struct Scope<'a> {
    rows: &'a Rows,
    outer: &'a [Option<&'a Row>],
    inner: Option<&'a Row>,
}

impl<'a> Scope<'a> {
    fn with(&self, inner: &'a Row) -> Scope<'a> {
        Scope {
            inner: Some(inner),
            ..*self
        }
    }
}

impl Query {
    fn sql(&self) -> String {
        let mut sql = format!("SELECT * FROM {} t0", TABLES[self.first]);
        for (n, (join, table, on)) in self.joins.iter().enumerate() {
            let word = match join {
                Join::Inner => "JOIN",
                Join::Left => "LEFT JOIN",
                Join::Right => "RIGHT JOIN",
                Join::Full => "FULL JOIN",
            };
            let number = n + 1;
            sql.push_str(&format!(
                " {word} {} t{number} ON {}",
                TABLES[*table],
                on.sql()
            ));
        }
        format!("{sql} WHERE {}", self.filter.sql())
    }

    fn run(&self, rows: &Rows) -> Vec<Vec<Option<Row>>> {
        let mut joined: Vec<Vec<Option<&Row>>> =
            rows[self.first].iter().map(|row| vec![Some(row)]).collect();
        for (n, (join, table, on)) in self.joins.iter().enumerate() {
            joined = step(&joined, n + 1, (*join, &rows[*table], on), rows);
        }
        let passes = |row: &Vec<Option<&Row>>| {
            self.filter.holds(&Scope {
                rows,
                outer: row,
                inner: None,
            }) == Some(true)
        };
        let mut result: Vec<Vec<Option<Row>>> = joined
            .into_iter()
            .filter(passes)
            .map(|row| row.into_iter().map(Option::<&Row>::copied).collect())
            .collect();
        result.sort();
        result
    }
}

fn step<'a>(
    left: &[Vec<Option<&'a Row>>],
    width: usize,
    (join, right, on): (Join, &'a [Row], &Condition),
    rows: &Rows,
) -> Vec<Vec<Option<&'a Row>>> {
    let mut result = Vec::new();
    let mut matched = vec![false; right.len()];
    for row in left {
        let mut found = false;
        for (n, other) in right.iter().enumerate() {
            let mut both = row.clone();
            both.push(Some(other));
            if on.holds(&Scope {
                rows,
                outer: &both,
                inner: None,
            }) == Some(true)
            {
                found = true;
                matched[n] = true;
                result.push(both);
            }
        }
        if !found && matches!(join, Join::Left | Join::Full) {
            let mut alone = row.clone();
            alone.push(None);
            result.push(alone);
        }
    }
    if matches!(join, Join::Right | Join::Full) {
        for (other, matched) in right.iter().zip(matched) {
            if !matched {
                let mut alone = vec![None; width];
                alone.push(Some(other));
                result.push(alone);
            }
        }
    }
    result
}

fn on_shard(rows: &Rows, shard: usize) -> Rows {
    let mine = |rows: &Vec<Row>| {
        let here = |row: &&Row| row[0].is_some_and(|key| PLACES[shard].contains(&key));
        rows.iter().filter(here).copied().collect()
    };
    [mine(&rows[0]), mine(&rows[1]), rows[2].clone()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_chosen_shard_gives_the_whole_result(query in query(), rows in rows()) {
        let sql = query.sql();
        let shards = match outcome(&sql) {
            Outcome::Ready(Route { target: Target::Shard(shard), .. }) => {
                usize::from(shard.0)..usize::from(shard.0) + 1
            }
            Outcome::Ready(Route { target: Target::Any, .. }) => 0..3,
            Outcome::Ready(other) => panic!("{sql}: {other:?}"),
            Outcome::Refused(_) => return Ok(()),
            Outcome::NeedLookup(_) => panic!("{sql}: no lookup is declared"),
        };
        let whole = query.run(&rows);
        for shard in shards {
            let part = query.run(&on_shard(&rows, shard));
            prop_assert_eq!(&whole, &part, "shard {} of {}", shard, sql);
        }
    }
}

/// The property above would hold for a router that refuses everything.
#[test]
fn many_generated_queries_are_served() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let served = (0..500).filter(|_| {
        let query = query().new_tree(&mut runner).unwrap().current();
        let with_sharded = query.first < 2 || query.joins.iter().any(|(_, table, _)| *table < 2);
        with_sharded && matches!(outcome(&query.sql()), Outcome::Ready(_))
    });
    let served = served.count();
    assert!(served > 50, "only {served} of 500");
}
