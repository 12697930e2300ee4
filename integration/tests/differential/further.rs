//! Queries of further kinds.

use crate::from::{from_table, tables, where_};
use crate::make::Maker;
use crate::select::{Alike, Query};
use crate::values::{FAMILIES, TABLES};

/// Window functions.
pub fn window(maker: &mut Maker) -> Query {
    let table = maker.pick(&TABLES);
    let from = from_table(maker, &table);
    let filter = where_(maker, &from, 60);
    let own = &from.sources[0].alias;
    let unique: Vec<String> = table
        .unique
        .split(", ")
        .map(|c| format!("{own}.{c}"))
        .collect();
    let unique = unique.join(", ");
    let call = maker.pick(&["row_number()", "count(*)", "lag(id)", "max(s)"]);
    let call = call
        .replace("(id)", &format!("({own}.s)"))
        .replace("(s)", &format!("({own}.s)"));
    let part = maker.pick(&["", "PARTITION BY {}.s "]).replace("{}", own);
    let sql = format!(
        "SELECT {unique}, {call} OVER ({part}ORDER BY {unique}) FROM {}{filter}",
        from.text
    );
    Query {
        sql,
        alike: Alike::Rows,
        kind: "windows",
    }
}

/// Queries without tables.
pub fn values(maker: &mut Maker) -> Query {
    let kind = "no tables";
    let r#type = maker.some_type();
    let one = maker.expression(&[], r#type, 2);
    let sql = match maker.below(4) {
        0 => format!("SELECT {one}"),
        1 => format!("SELECT {one} AS a, x FROM generate_series(1, 3) x"),
        2 => format!("VALUES ({one}), ({})", maker.some_value(r#type)),
        _ => format!("SELECT {one} UNION SELECT {}", maker.some_value(r#type)),
    };
    Query {
        sql,
        alike: Alike::Rows,
        kind,
    }
}

/// What stands in statements less often.
pub fn further(maker: &mut Maker) -> Query {
    let family = maker.below(FAMILIES.len());
    let table = maker.pick(&tables(family));
    let from = from_table(maker, &table);
    let filter = where_(maker, &from, 50);
    let (own, text) = (&from.sources[0].alias, &from.text);
    let sql = match maker.below(12) {
        0 => format!("TABLE {}", table.name),
        1 => format!("COPY (SELECT {own}.id, {own}.s FROM {text}{filter}) TO STDOUT"),
        2 => format!("SELECT {own}.id FROM {text}{filter} FOR UPDATE"),
        3 => format!("SELECT {own}.s, count(*) FROM {text}{filter} GROUP BY ROLLUP ({own}.s)"),
        4 => format!("SELECT {own}.id, g FROM {text}, generate_series(1, {own}.id) g{filter}"),
        5 => format!(
            "SELECT {own}.id, l.* FROM {text}, LATERAL (SELECT max(c.w) FROM codes c \
             WHERE c.s = {own}.s) l{filter}"
        ),
        6 => format!("SELECT q.c FROM (SELECT count(*) AS c FROM {text}{filter}) q"),
        7 => format!(
            "SELECT row({own}.id, {own}.s)::text, {own}.s = ANY ('{{a,b}}') FROM {text}{filter}"
        ),
        8 => format!(
            "SELECT to_jsonb({own}.s), jsonb_build_object('a', {own}.id) FROM {text}{filter}"
        ),
        9 => format!("SELECT array_agg({own}.id ORDER BY {own}.k, {own}.id) FROM {text}{filter}"),
        10 => format!(
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 4) \
             SELECT {own}.id, r.n FROM {text} JOIN r ON r.n = {own}.id{filter}"
        ),
        _ => {
            format!("SELECT DISTINCT count(*), max({own}.s) FROM {text}{filter} GROUP BY {own}.id")
        }
    };
    Query {
        sql,
        alike: Alike::Rows,
        kind: "further",
    }
}

/// Subqueries that give a value.
pub fn scalar(maker: &mut Maker) -> Query {
    let family = maker.below(FAMILIES.len());
    let table = maker.pick(&tables(family));
    let from = from_table(maker, &table);
    let filter = where_(maker, &from, 50);
    let own = from.sources[0].alias.clone();
    let other = maker.pick(&tables(family));
    let inner = match maker.below(6) {
        0 => format!(
            "(SELECT count(*) FROM {} x WHERE x.k = {own}.k)",
            other.name
        ),
        1 => format!(
            "(SELECT max(x.s) FROM {} x WHERE x.k = {own}.k AND x.id < 3)",
            other.name
        ),
        2 => format!("(SELECT max(x.w) FROM codes x WHERE x.s = {own}.s)"),
        3 => format!(
            "ARRAY(SELECT x.id FROM {} x WHERE x.k = {own}.k ORDER BY x.id)",
            other.name
        ),
        4 => format!("(SELECT count(*) FROM {} x)", other.name),
        _ => {
            let key = maker.key(family);
            format!("(SELECT sum(x.id) FROM {} x WHERE x.k = {key})", other.name)
        }
    };
    let sql = format!(
        "SELECT {own}.k, {own}.id, {inner} FROM {}{filter}",
        from.text
    );
    Query {
        sql,
        alike: Alike::Rows,
        kind: "values of subqueries",
    }
}
