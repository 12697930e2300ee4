//! Queries.

use crate::from::{from, from_join, from_table, tables, where_};
use crate::further::{further, scalar, values, window};
use crate::make::{Maker, Source};
use crate::values::{FAMILIES, TABLES, Type};

/// What must be the same in two answers to a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alike {
    /// The rows, in any order.
    Rows,
    /// The rows, in this order.
    Order,
    /// The rows, in any order of those that are alike in these columns.
    Sorted(Vec<usize>),
    /// These columns, in this order: there is a choice among rows that are alike in them.
    Keys(Vec<usize>),
    /// How many rows.
    Count,
}

/// A query.
#[derive(Debug, Clone)]
pub struct Query {
    /// Text.
    pub sql: String,
    /// See there.
    pub alike: Alike,
    /// What it is.
    pub kind: &'static str,
}

/// How an item of ORDER BY is ordered.
fn direction(maker: &mut Maker) -> &'static str {
    maker.pick(&[
        "",
        "",
        " DESC",
        " NULLS FIRST",
        " DESC NULLS LAST",
        " ASC NULLS LAST",
    ])
}

/// ORDER BY and LIMIT for these outputs.
fn tail(maker: &mut Maker, outputs: &[(String, Type)]) -> (String, Alike) {
    if maker.chance(30) {
        let limited = maker.chance(20);
        return match limited {
            true => (format!(" LIMIT {}", maker.below(5)), Alike::Count),
            false => (String::new(), Alike::Rows),
        };
    }
    let count = maker.below(outputs.len().min(3)) + 1;
    let mut places = Vec::new();
    let mut items = Vec::new();
    for _ in 0..count {
        let place = maker.below(outputs.len());
        let item = match maker.below(3) {
            0 => (place + 1).to_string(),
            1 => format!("o{}", place + 1),
            _ if outputs[place].0.contains('$') => (place + 1).to_string(),
            // A number or a text alone is no expression there.
            _ if outputs[place].0.contains('.') => outputs[place].0.clone(),
            _ => (place + 1).to_string(),
        };
        items.push(format!("{item}{}", direction(maker)));
        places.push(place);
    }
    let order = format!(" ORDER BY {}", items.join(", "));
    match maker.below(6) {
        0 => {
            let rows = maker.below(8).to_string();
            let rows = maker.value(Type::Big, Some(&rows));
            (format!("{order} LIMIT {rows}"), Alike::Keys(places))
        }
        1 => (
            format!("{order} OFFSET {}", maker.below(4)),
            Alike::Keys(places),
        ),
        2 => {
            let rows = maker.below(4) + 1;
            let text = format!("{order} FETCH FIRST {rows} ROWS WITH TIES");
            (text, Alike::Sorted(places))
        }
        _ => (order, Alike::Sorted(places)),
    }
}

fn outputs(maker: &mut Maker, sources: &[Source], most: usize) -> Vec<(String, Type)> {
    let count = maker.below(most) + 1;
    (0..count)
        .map(|_| match maker.chance(55) {
            true => maker.any_column(sources),
            false => {
                let r#type = maker.some_type();
                (maker.expression(sources, r#type, 2), r#type)
            }
        })
        .collect()
}

fn listed(outputs: &[(String, Type)]) -> String {
    let named = outputs.iter().enumerate();
    let named: Vec<String> = named
        .map(|(at, (text, _))| format!("{text} AS o{}", at + 1))
        .collect();
    named.join(", ")
}

/// Any query.
pub fn query(maker: &mut Maker) -> Query {
    match maker.below(100) {
        0..22 => rows(maker, 100, "rows of a key"),
        22..40 => rows(maker, 5, "rows"),
        40..56 => groups(maker),
        56..62 => distinct(maker),
        62..69 => joined(maker),
        69..75 => with(maker),
        75..82 => set_operation(maker),
        82..85 => window(maker),
        85..89 => values(maker),
        89..92 => whole_order(maker),
        92..95 => further(maker),
        _ => scalar(maker),
    }
}

fn rows(maker: &mut Maker, keyed: usize, kind: &'static str) -> Query {
    let from = from(maker);
    let filter = where_(maker, &from, keyed);
    if maker.chance(10) {
        let sql = format!("SELECT * FROM {}{filter}", from.text);
        return Query {
            sql,
            alike: Alike::Rows,
            kind,
        };
    }
    let outputs = outputs(maker, &from.sources, 4);
    let (tail, alike) = tail(maker, &outputs);
    let sql = format!(
        "SELECT {} FROM {}{filter}{tail}",
        listed(&outputs),
        from.text
    );
    Query { sql, alike, kind }
}

/// Ordered by columns that are not shown, to the last row.
fn whole_order(maker: &mut Maker) -> Query {
    let table = maker.pick(&TABLES);
    let from = from_table(maker, &table);
    let filter = where_(maker, &from, 40);
    let outputs = outputs(maker, &from.sources, 3);
    let (column, _) = maker.any_column(&from.sources);
    let r#type = maker.some_type();
    let first = match maker.below(3) {
        0 => column,
        1 => format!("coalesce({column}, {column})"),
        _ => maker.expression(&from.sources, r#type, 1),
    };
    let first = match first.contains('.') {
        true => first,
        false => format!("{}.s", from.sources[0].alias),
    };
    let own = &from.sources[0].alias;
    let unique: Vec<String> = table
        .unique
        .split(", ")
        .map(|c| format!("{own}.{c}"))
        .collect();
    let how = direction(maker);
    let limit = match maker.below(4) {
        0 => format!(" LIMIT {}", maker.below(9)),
        1 => format!(" LIMIT {} OFFSET {}", maker.below(9), maker.below(5)),
        _ => String::new(),
    };
    let sql = format!(
        "SELECT {} FROM {}{filter} ORDER BY {first}{how}, {}{limit}",
        listed(&outputs),
        from.text,
        unique.join(", ")
    );
    Query {
        sql,
        alike: Alike::Order,
        kind: "order by what is not shown",
    }
}

fn aggregate(maker: &mut Maker, sources: &[Source]) -> (String, Type) {
    let numbers = [Type::Int, Type::Big, Type::Num, Type::Float, Type::Span];
    let (text, r#type) = match maker.below(14) {
        0 | 1 => ("count(*)".to_owned(), Type::Big),
        2 => (format!("count({})", maker.any_column(sources).0), Type::Big),
        3..6 => {
            let r#type = maker.pick(&numbers);
            let of = maker.expression(sources, r#type, 1);
            (format!("sum({of})"), Type::Num)
        }
        6 | 7 => {
            let r#type = maker.pick(&numbers);
            let of = maker.expression(sources, r#type, 1);
            (format!("avg({of})"), Type::Num)
        }
        8 | 9 => {
            let (column, r#type) = maker.any_column(sources);
            let name = maker.pick(&["min", "max"]);
            (format!("{name}({column})"), r#type)
        }
        10 => {
            let name = maker.pick(&["bool_and", "bool_or", "every"]);
            (
                format!("{name}({})", maker.condition(sources, 0)),
                Type::Bool,
            )
        }
        11 => {
            let name = maker.pick(&["bit_and", "bit_or", "bit_xor"]);
            let of = maker.expression(sources, Type::Int, 1);
            (format!("{name}({of})"), Type::Int)
        }
        12 => {
            let (column, _) = maker.any_column(sources);
            (format!("count(DISTINCT {column})"), Type::Big)
        }
        _ => {
            let of = maker.expression(sources, Type::Text, 1);
            (format!("string_agg({of}, ',' ORDER BY {of})"), Type::Text)
        }
    };
    match maker.below(8) {
        0 => (
            format!("{text} FILTER (WHERE {})", maker.condition(sources, 0)),
            r#type,
        ),
        1 if r#type == Type::Big => (format!("{text} * 10"), r#type),
        2 if r#type == Type::Num => (format!("coalesce({text}, NULL)"), r#type),
        _ => (text, r#type),
    }
}

fn groups(maker: &mut Maker) -> Query {
    let kind = "groups";
    let from = match maker.chance(30) {
        true => from_join(maker),
        false => from(maker),
    };
    let filter = where_(maker, &from, 25);
    let mut shown = Vec::new();
    let mut by = Vec::new();
    for _ in 0..maker.below(3) {
        let (text, r#type) = match maker.chance(70) {
            true => maker.any_column(&from.sources),
            false => {
                let r#type = maker.pick(&[Type::Int, Type::Text, Type::Bool]);
                (maker.expression(&from.sources, r#type, 1), r#type)
            }
        };
        if !text.contains('.') || text.contains('$') {
            continue;
        }
        by.push(match maker.below(3) {
            0 => (shown.len() + 1).to_string(),
            1 => format!("o{}", shown.len() + 1),
            _ => text.clone(),
        });
        shown.push((text, r#type));
    }
    let groups = shown.len();
    for _ in 0..maker.below(3) + usize::from(groups == 0) {
        shown.push(aggregate(maker, &from.sources));
    }
    let group = match by.is_empty() {
        true => String::new(),
        false => format!(" GROUP BY {}", by.join(", ")),
    };
    let having = match maker.below(6) {
        0 => " HAVING count(*) > 1".to_owned(),
        1 => format!(" HAVING {} IS NOT NULL", aggregate(maker, &from.sources).0),
        _ => String::new(),
    };
    let (tail, alike) = tail(maker, &shown);
    let list = listed(&shown);
    let sql = format!(
        "SELECT {list} FROM {}{filter}{group}{having}{tail}",
        from.text
    );
    Query { sql, alike, kind }
}

fn distinct(maker: &mut Maker) -> Query {
    let kind = "distinct";
    let from = from(maker);
    let filter = where_(maker, &from, 25);
    let outputs = outputs(maker, &from.sources, 3);
    if maker.chance(30) {
        let list = listed(&outputs);
        let sql = format!(
            "SELECT DISTINCT ON (o1) {list} FROM {}{filter} ORDER BY o1{}",
            from.text,
            direction(maker)
        );
        return Query {
            sql,
            alike: Alike::Keys(vec![0]),
            kind,
        };
    }
    let (tail, alike) = tail(maker, &outputs);
    let list = listed(&outputs);
    let sql = format!("SELECT DISTINCT {list} FROM {}{filter}{tail}", from.text);
    Query { sql, alike, kind }
}

fn joined(maker: &mut Maker) -> Query {
    let from = from_join(maker);
    let filter = where_(maker, &from, 20);
    let outputs = outputs(maker, &from.sources, 4);
    let (tail, alike) = tail(maker, &outputs);
    let sql = format!(
        "SELECT {} FROM {}{filter}{tail}",
        listed(&outputs),
        from.text
    );
    Query {
        sql,
        alike,
        kind: "joins",
    }
}

fn with(maker: &mut Maker) -> Query {
    let kind = "with";
    let inner = from(maker);
    let filter = where_(maker, &inner, 60);
    let outputs = outputs(maker, &inner.sources, 3);
    let how = maker.pick(&["", "", "MATERIALIZED ", "NOT MATERIALIZED "]);
    let named = outputs.iter().enumerate();
    let source = Source {
        alias: "w".to_owned(),
        columns: named
            .map(|(at, (_, t))| (format!("o{}", at + 1), *t))
            .collect(),
    };
    let first = format!(
        "WITH w AS {how}(SELECT {} FROM {}{filter})",
        listed(&outputs),
        inner.text
    );
    if maker.chance(30) {
        let sql = format!("{first} SELECT count(*), count(DISTINCT w.o1) FROM w");
        return Query {
            sql,
            alike: Alike::Rows,
            kind,
        };
    }
    let condition = maker.condition(std::slice::from_ref(&source), 1);
    let sql = format!("{first} SELECT * FROM w WHERE {condition}");
    Query {
        sql,
        alike: Alike::Rows,
        kind,
    }
}

fn set_operation(maker: &mut Maker) -> Query {
    let kind = "set operations";
    let types: Vec<Type> = (0..maker.below(2) + 1).map(|_| maker.some_type()).collect();
    let family = maker.below(FAMILIES.len());
    let key = maker.chance(50).then(|| maker.key(family));
    let mut arms = Vec::new();
    for _ in 0..2 {
        let table = maker.pick(&tables(family));
        let from = from_table(maker, &table);
        let filter = match &key {
            Some(key) => format!(" WHERE {}.k = {key}", from.sources[0].alias),
            None => where_(maker, &from, 0),
        };
        let list = types
            .iter()
            .map(|r#type| maker.expression(&from.sources, *r#type, 1));
        let list: Vec<String> = list.collect();
        arms.push(format!(
            "SELECT {} FROM {}{filter}",
            list.join(", "),
            from.text
        ));
    }
    let operation = maker.pick(&["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL"]);
    let sql = format!("{} {operation} {}", arms[0], arms[1]);
    match maker.below(3) {
        0 => Query {
            sql: format!("{sql} ORDER BY 1"),
            alike: Alike::Sorted(vec![0]),
            kind,
        },
        1 => {
            let sql = format!("SELECT count(*) FROM ({sql}) u");
            Query {
                sql,
                alike: Alike::Rows,
                kind,
            }
        }
        _ => Query {
            sql,
            alike: Alike::Rows,
            kind,
        },
    }
}
