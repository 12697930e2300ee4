//! Generated queries against rows in memory: what a route leaves out must not matter.
//!
//! Two sharded tables and an omnisharded one are joined in every way, with nested conditions and
//! subqueries. The query is evaluated here over all rows, and over the rows of the chosen shard
//! only; both must give the same result.

use proptest::prelude::*;

use super::{AllReason, Outcome, PLACES, Route, Target, outcome};

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

/// A table, or a subquery for the rows of one key.
#[derive(Debug, Clone, Copy)]
struct Item {
    table: usize,
    only: Option<i64>,
}

#[derive(Debug, Clone)]
struct Query {
    /// Joins are `USING (tenant_id)` instead of their conditions.
    using: bool,
    first: Item,
    joins: Vec<(Join, Item, Condition)>,
    filter: Condition,
}

/// The relation of a subquery in a condition.
const INNER: usize = 9;
/// The column that USING merges, written without a relation.
const MERGED: usize = 8;

/// Where a condition stands: relations in scope, in a subquery or not, with a merged column or not.
#[derive(Debug, Clone, Copy)]
struct Place {
    relations: usize,
    inner: bool,
    using: bool,
}

fn column(place: Place) -> impl Strategy<Value = Column> {
    let outer = 0..place.relations;
    let relation = match (place.inner, place.using) {
        (true, _) => prop_oneof![2 => Just(INNER), 1 => outer].boxed(),
        (false, true) => prop_oneof![1 => Just(MERGED), 1 => outer].boxed(),
        (false, false) => outer.boxed(),
    };
    (relation, prop::bool::weighted(0.8)).prop_map(|(relation, key)| Column {
        relation,
        key: key || relation == MERGED,
    })
}

fn constant() -> impl Strategy<Value = i64> {
    prop::sample::select(&KEYS[..4])
}

fn leaf(place: Place) -> BoxedStrategy<Condition> {
    let column = move || column(place);
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

fn condition(place: Place) -> BoxedStrategy<Condition> {
    let inside = Place {
        inner: true,
        ..place
    };
    leaf(place)
        .prop_recursive(3, 12, 3, move |part| {
            let table = 0..TABLES.len();
            let below = move || {
                if place.inner {
                    leaf(inside)
                } else {
                    prop::collection::vec(condition(inside), 1..3)
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
            if !place.inner {
                let exists =
                    (table.clone(), below()).prop_map(|(t, c)| Condition::Exists(t, Box::new(c)));
                let among = (column(place), table, below())
                    .prop_map(|(c, t, inner)| Condition::Among(c, t, Box::new(inner)));
                choices.push((2, exists.boxed()));
                choices.push((2, among.boxed()));
            }
            prop::strategy::Union::new_weighted(choices)
        })
        .boxed()
}

fn item() -> impl Strategy<Value = Item> {
    (0..TABLES.len(), prop::option::weighted(0.3, constant()))
        .prop_map(|(table, only)| Item { table, only })
}

fn query() -> impl Strategy<Value = Query> {
    let join = || prop::sample::select(vec![Join::Inner, Join::Left, Join::Right, Join::Full]);
    (0usize..3, prop::bool::ANY).prop_flat_map(move |(joins, using)| {
        let using = using && joins > 0;
        let on = |relations| {
            condition(Place {
                relations,
                inner: false,
                using: false,
            })
        };
        let list: Vec<_> = (0..joins)
            .map(|n| (join(), item(), on(n + 2)).boxed())
            .collect();
        let place = Place {
            relations: joins + 1,
            inner: false,
            using,
        };
        let filter = prop::collection::vec(condition(place), 1..4);
        (item(), list, filter).prop_map(move |(first, joins, filter)| Query {
            using,
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
        if self.relation == MERGED {
            return "tenant_id".to_owned();
        }
        format!(
            "t{}.{}",
            self.relation,
            if self.key { "tenant_id" } else { "x" }
        )
    }

    fn of(self, scope: &Scope<'_>) -> Option<i64> {
        if self.relation == MERGED {
            return scope.merged;
        }
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
    merged: Option<i64>,
}

impl<'a> Scope<'a> {
    fn with(&self, inner: &'a Row) -> Scope<'a> {
        Scope {
            inner: Some(inner),
            ..*self
        }
    }
}

impl Item {
    fn sql(self) -> String {
        let table = TABLES[self.table];
        match self.only {
            None => table.to_owned(),
            Some(key) => format!("(SELECT * FROM {table} WHERE tenant_id = {key})"),
        }
    }

    fn rows(self, rows: &Rows) -> Vec<&Row> {
        let all = rows[self.table].iter();
        all.filter(|row| self.only.is_none() || row[0] == self.only)
            .collect()
    }
}

impl Query {
    fn sql(&self) -> String {
        let mut sql = format!("SELECT * FROM {} t0", self.first.sql());
        for (n, (join, item, on)) in self.joins.iter().enumerate() {
            let word = match join {
                Join::Inner => "JOIN",
                Join::Left => "LEFT JOIN",
                Join::Right => "RIGHT JOIN",
                Join::Full => "FULL JOIN",
            };
            let on = match self.using {
                true => "USING (tenant_id)".to_owned(),
                false => format!("ON {}", on.sql()),
            };
            sql.push_str(&format!(" {word} {} t{} {on}", item.sql(), n + 1));
        }
        format!("{sql} WHERE {}", self.filter.sql())
    }

    fn run(&self, rows: &Rows) -> Vec<Vec<Option<Row>>> {
        let first = self.first.rows(rows).into_iter();
        let mut joined: Vec<Joined<'_>> = first
            .map(|row| Joined {
                cells: vec![Some(row)],
                merged: row[0],
            })
            .collect();
        for (n, (join, item, on)) in self.joins.iter().enumerate() {
            let on = (!self.using).then_some(on);
            joined = step(&joined, n + 1, (*join, &item.rows(rows), on), rows);
        }
        let passes = |row: &Joined<'_>| self.filter.holds(&row.scope(rows)) == Some(true);
        let rows = joined.into_iter().filter(passes);
        let mut result: Vec<Vec<Option<Row>>> = rows
            .map(|row| row.cells.into_iter().map(Option::<&Row>::copied).collect())
            .collect();
        result.sort();
        result
    }
}

/// A row of a join, with the value of the merged column.
#[derive(Clone)]
struct Joined<'a> {
    cells: Vec<Option<&'a Row>>,
    merged: Option<i64>,
}

impl<'a> Joined<'a> {
    fn scope<'s>(&'s self, rows: &'s Rows) -> Scope<'s> {
        Scope {
            rows,
            outer: &self.cells,
            inner: None,
            merged: self.merged,
        }
    }

    fn and(&self, other: Option<&'a Row>, merged: Option<i64>) -> Self {
        let mut cells = self.cells.clone();
        cells.push(other);
        Self { cells, merged }
    }
}

fn step<'a>(
    left: &[Joined<'a>],
    width: usize,
    (join, right, on): (Join, &[&'a Row], Option<&Condition>),
    rows: &Rows,
) -> Vec<Joined<'a>> {
    let mut result = Vec::new();
    let mut matched = vec![false; right.len()];
    for row in left {
        let mut found = false;
        for (n, &other) in right.iter().enumerate() {
            let both = row.and(
                Some(other),
                if join == Join::Right {
                    other[0]
                } else {
                    row.merged
                },
            );
            let matches = match on {
                Some(on) => on.holds(&both.scope(rows)) == Some(true),
                None => row.merged.is_some() && row.merged == other[0],
            };
            if matches {
                found = true;
                matched[n] = true;
                result.push(both);
            }
        }
        if !found && matches!(join, Join::Left | Join::Full) {
            result.push(row.and(None, row.merged));
        }
    }
    if matches!(join, Join::Right | Join::Full) {
        let alone = Joined {
            cells: vec![None; width],
            merged: None,
        };
        for (&other, matched) in right.iter().zip(matched) {
            if !matched {
                result.push(alone.and(Some(other), other[0]));
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
            Outcome::Ready(Route { target: Target::All(AllReason::Read), .. }) => {
                let parts = (0..3).flat_map(|shard| query.run(&on_shard(&rows, shard)));
                let mut together: Vec<_> = parts.collect();
                together.sort();
                prop_assert_eq!(query.run(&rows), together, "all shards of {}", sql);
                return Ok(());
            }
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
        let mut items = query
            .joins
            .iter()
            .map(|(_, item, _)| item)
            .chain([&query.first]);
        let with_sharded = items.any(|item| item.table < 2);
        let all = Target::All(AllReason::Read);
        with_sharded && matches!(outcome(&query.sql()), Outcome::Ready(r) if r.target != all)
    });
    let served = served.count();
    assert!(served > 50, "only {served} of 500");
}
