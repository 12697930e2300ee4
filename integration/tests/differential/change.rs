//! Statements that change rows, and statements with mistakes.

use crate::make::{Maker, Source};
use crate::odd;
use crate::select::{Alike, Query};
use crate::values::{FAMILIES, TABLES, Table, Type};

fn rows(sql: String, kind: &'static str) -> Query {
    Query {
        sql,
        alike: Alike::Rows,
        kind,
    }
}

fn sharded(maker: &mut Maker) -> (Table, usize) {
    let at = maker.below(8);
    (TABLES[at], at / 2)
}

/// RETURNING, now and then.
fn returning(maker: &mut Maker, source: &Source) -> String {
    match maker.below(5) {
        0 => " RETURNING *".to_owned(),
        1 => {
            let (column, _) = maker.any_column(std::slice::from_ref(source));
            format!(" RETURNING {column} AS x, {}.s", source.alias)
        }
        _ => String::new(),
    }
}

/// A table under its own name.
fn named(maker: &mut Maker, table: &Table) -> Source {
    let mut source = maker.source(table);
    source.alias = table.name.to_owned();
    source
}

/// Any change.
pub fn change(maker: &mut Maker) -> Query {
    match maker.below(100) {
        0..22 => insert(maker),
        22..30 => insert_rows(maker),
        30..37 => insert_select(maker),
        37..55 => update(maker),
        55..60 => update_key(maker),
        60..72 => delete(maker),
        72..77 => merge(maker),
        _ => omni(maker),
    }
}

fn row(maker: &mut Maker, table: &Table, columns: &[(&str, Type)], key: &str) -> String {
    let mut cells = vec![key.to_owned()];
    for (name, r#type) in columns {
        cells.push(match *name {
            "id" => {
                let id = (maker.below(7) + 1).to_string();
                maker.value(Type::Int, Some(&id))
            }
            _ if maker.chance(8) && table.family.is_some() => "DEFAULT".to_owned(),
            _ => maker.some_value(*r#type),
        });
    }
    format!("({})", cells.join(", "))
}

fn some_columns(maker: &mut Maker, table: &Table) -> Vec<(&'static str, Type)> {
    let all = table.columns.iter();
    all.filter(|(name, _)| *name == "id" || maker.chance(70))
        .copied()
        .collect()
}

fn names(columns: &[(&str, Type)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

fn conflict(maker: &mut Maker, table: &Table) -> String {
    let unique = table.unique;
    let name = table.name;
    match maker.below(6) {
        0 => " ON CONFLICT DO NOTHING".to_owned(),
        1 => format!(" ON CONFLICT ({unique}) DO NOTHING"),
        2 | 3 => format!(" ON CONFLICT ({unique}) DO UPDATE SET s = excluded.s"),
        4 => format!(
            " ON CONFLICT ({unique}) DO UPDATE SET s = {name}.s || 'x' WHERE {name}.s IS NOT NULL"
        ),
        _ => String::new(),
    }
}

fn insert(maker: &mut Maker) -> Query {
    let (table, family) = sharded(maker);
    let key = match maker.chance(10) {
        true => odd::assigned(maker, family),
        false => maker.key(family),
    };
    let source = named(maker, &table);
    let list = maker.chance(75);
    let columns = match list {
        true => some_columns(maker, &table),
        false => table.columns.to_vec(),
    };
    let mut sql = format!("INSERT INTO {}", table.name);
    if list {
        sql += &format!(" (k, {})", names(&columns));
    }
    sql += &format!(" VALUES {}", row(maker, &table, &columns, &key));
    sql += &conflict(maker, &table);
    sql += &returning(maker, &source);
    rows(sql, "insert")
}

fn insert_rows(maker: &mut Maker) -> Query {
    let (table, family) = sharded(maker);
    let one = maker.key(family);
    let source = named(maker, &table);
    let several = maker.chance(60);
    let columns = some_columns(maker, &table);
    let count = maker.below(4) + 2;
    let mut lines = Vec::new();
    for _ in 0..count {
        let key = match several {
            true => maker.key(family),
            false => one.clone(),
        };
        lines.push(row(maker, &table, &columns, &key));
    }
    let sql = format!(
        "INSERT INTO {} (k, {}) VALUES {}{}{}",
        table.name,
        names(&columns),
        lines.join(", "),
        conflict(maker, &table),
        returning(maker, &source)
    );
    match several {
        true => rows(sql, "insert of several keys"),
        false => rows(sql, "insert of several rows"),
    }
}

fn insert_select(maker: &mut Maker) -> Query {
    let family = maker.below(FAMILIES.len());
    let (to, from) = (TABLES[family * 2 + 1], TABLES[family * 2]);
    let source = named(maker, &to);
    let alias = maker.alias();
    let filter = match maker.chance(60) {
        true => format!(" WHERE {}", maker.key_is(&alias, family)),
        false => String::new(),
    };
    let key = match maker.below(4) {
        0 => maker.key(family),
        _ => format!("{alias}.k"),
    };
    let sql = format!(
        "INSERT INTO {} (k, id, q, s) SELECT {key}, {alias}.id + 10, {alias}.n, {alias}.s \
         FROM {} {alias}{filter} ON CONFLICT DO NOTHING{}",
        to.name,
        from.name,
        returning(maker, &source)
    );
    rows(sql, "insert select")
}

/// Assignments to columns that are in no unique key.
fn assignments(maker: &mut Maker, table: &Table, source: &Source) -> String {
    let mut columns: Vec<(&str, Type)> = table.columns.to_vec();
    columns.retain(|(name, _)| !table.unique.contains(name));
    let count = maker.below(2) + 1;
    let mut list = Vec::new();
    for _ in 0..count {
        let at = maker.below(columns.len());
        let (name, r#type) = columns.swap_remove(at);
        let value = match maker.below(4) {
            0 => "DEFAULT".to_owned(),
            // One scale only: of equal numbers PostgreSQL may show either.
            _ if r#type == Type::Num => maker.some_value(r#type),
            1 => maker.some_value(r#type),
            _ => maker.expression(std::slice::from_ref(source), r#type, 1),
        };
        list.push(format!("{name} = {value}"));
    }
    list.join(", ")
}

fn keyed_filter(maker: &mut Maker, source: &Source, family: usize, keyed: usize) -> String {
    let mut parts = Vec::new();
    if maker.chance(keyed) {
        parts.push(maker.key_is(&source.alias, family));
    }
    for _ in 0..maker.below(3) {
        parts.push(maker.condition(std::slice::from_ref(source), 1));
    }
    match parts.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", parts.join(" AND ")),
    }
}

/// The other table with the same keys, and a filter that joins its rows, as `o`, by key.
fn beside(maker: &mut Maker, source: &Source, family: usize, name: &str) -> (&'static str, String) {
    let other = TABLES[family * 2 + 1 - usize::from(name.ends_with("_b"))];
    let filter = keyed_filter(maker, source, family, 100);
    let join = format!("{filter} AND o.k = {name}.k AND o.id = {name}.id");
    (other.name, join)
}

fn update(maker: &mut Maker) -> Query {
    let (table, family) = sharded(maker);
    let source = named(maker, &table);
    let set = assignments(maker, &table, &source);
    let keyed = maker.chance(75);
    let kind = if keyed { "update of a key" } else { "update" };
    let name = table.name;
    if maker.chance(20) {
        let (other, filter) = beside(maker, &source, family, name);
        let sql = format!("UPDATE {name} SET {set} FROM {other} o{filter}");
        return rows(sql, "update from");
    }
    let filter = keyed_filter(maker, &source, family, if keyed { 100 } else { 0 });
    let sql = format!(
        "UPDATE {name} SET {set}{filter}{}",
        returning(maker, &source)
    );
    rows(sql, kind)
}

fn update_key(maker: &mut Maker) -> Query {
    let (table, family) = sharded(maker);
    let source = named(maker, &table);
    let filter = keyed_filter(maker, &source, family, 100);
    let key = match maker.below(3) {
        0 => "k".to_owned(),
        _ => maker.key(family),
    };
    let id = maker.below(4) + 1;
    let sql = format!(
        "UPDATE {} SET k = {key}{filter} AND {}.id = {id}",
        table.name, table.name
    );
    rows(sql, "update of the key")
}

fn delete(maker: &mut Maker) -> Query {
    let (table, family) = sharded(maker);
    let source = named(maker, &table);
    let name = table.name;
    if maker.chance(20) {
        let (other, filter) = beside(maker, &source, family, name);
        let sql = format!("DELETE FROM {name} USING {other} o{filter}");
        return rows(sql, "delete using");
    }
    let keyed = maker.chance(80);
    let kind = if keyed { "delete of a key" } else { "delete" };
    let filter = keyed_filter(maker, &source, family, if keyed { 100 } else { 0 });
    let few = maker.below(7) + 1;
    let filter = match filter.is_empty() {
        true => format!(" WHERE id = {few}"),
        false => format!("{filter} AND id = {few}"),
    };
    rows(
        format!("DELETE FROM {name}{filter}{}", returning(maker, &source)),
        kind,
    )
}

fn merge(maker: &mut Maker) -> Query {
    let family = maker.below(FAMILIES.len());
    let (to, from) = (TABLES[family * 2 + 1].name, TABLES[family * 2].name);
    let key = maker.key(family);
    let matched = maker.pick(&["UPDATE SET q = s.n", "DELETE", "DO NOTHING"]);
    let sql = match maker.below(2) {
        0 => format!(
            "MERGE INTO {to} t USING (SELECT * FROM {from} WHERE k = {key}) s \
             ON t.k = {key} AND t.k = s.k AND t.id = s.id WHEN MATCHED THEN {matched}"
        ),
        _ => format!(
            "MERGE INTO {to} t USING {from} s ON t.k = s.k AND t.id = s.id AND s.k = {key} \
             WHEN MATCHED AND s.n > 1 THEN {matched}"
        ),
    };
    rows(sql, "merge")
}

fn omni(maker: &mut Maker) -> Query {
    let kind = "omnisharded";
    let table = maker.pick(&TABLES[8..]);
    let source = named(maker, &table);
    let name = table.name;
    let unique = table.columns[0];
    let few: Vec<&str> = match unique.1 {
        Type::Int => vec!["1", "2", "3", "4", "5"],
        _ => vec!["a", "B", "b", "x", "it''s"],
    };
    let own = maker.pick(&few);
    let which = maker.value(unique.1, Some(own));
    let sql = match maker.below(5) {
        0 | 1 => {
            let cells: Vec<String> = table.columns[1..]
                .iter()
                .map(|(_, t)| maker.some_value(*t))
                .collect();
            format!(
                "INSERT INTO {name} VALUES ({which}, {}){}{}",
                cells.join(", "),
                conflict(maker, &table),
                returning(maker, &source)
            )
        }
        2 | 3 => {
            let set = assignments(maker, &table, &source);
            let filter = match maker.chance(70) {
                true => format!(" WHERE {} = {which}", unique.0),
                false => format!(
                    " WHERE {}",
                    maker.condition(std::slice::from_ref(&source), 1)
                ),
            };
            format!(
                "UPDATE {name} SET {set}{filter}{}",
                returning(maker, &source)
            )
        }
        _ => format!(
            "DELETE FROM {name} WHERE {} = {which}{}",
            unique.0,
            returning(maker, &source)
        ),
    };
    rows(sql, kind)
}

/// A statement that PostgreSQL refuses, or may refuse.
pub fn mistake(maker: &mut Maker) -> Query {
    let (table, family) = sharded(maker);
    let (name, a) = (table.name, TABLES[family * 2].name);
    // One mistake in each: a parameter that is nowhere would be another.
    let which = maker.below(20);
    let key = match which {
        1 | 2 | 4..=6 | 8 | 10..=13 | 15 | 18 => String::new(),
        _ => maker.key(family),
    };
    let sql = match which {
        0 => format!("SELECT nothing FROM {name} WHERE k = {key}"),
        1 => format!("SELECT nothing FROM {name}"),
        2 => "SELECT * FROM not_there".to_owned(),
        3 => format!("SELECT 1 / (id - id) FROM {name} WHERE k = {key}"),
        4 => format!("SELECT 1 / (id - id) FROM {name}"),
        5 => format!("INSERT INTO {name} (id) VALUES (1)"),
        6 => format!("INSERT INTO {name} (k, id) VALUES (NULL, 1)"),
        7 => format!("INSERT INTO {name} (k, id) VALUES ({key}, NULL)"),
        8 => format!("SELEC * FROM {name}"),
        9 => format!("INSERT INTO {a} (k, id, n) VALUES ({key}, 9, 5000)"),
        10 => format!("SELECT sum(s) FROM {name}"),
        11 => format!("SELECT s, count(*) FROM {name}"),
        12 => format!("SELECT id FROM {name} ORDER BY 99"),
        13 => format!("SELECT id FROM {name} ORDER BY id LIMIT -1"),
        14 => format!("SELECT s::int FROM {name} WHERE k = {key}"),
        15 => format!("SELECT s::int + 1 FROM {name}"),
        16 => format!("UPDATE {a} SET n = 5000 WHERE k = {key}"),
        17 => format!("SELECT * FROM {name} WHERE k = {key} AND id = 'x'"),
        18 => format!("SELECT * FROM {name} WHERE id = 'x'"),
        _ => format!("INSERT INTO {name} (k, id) VALUES ({key}, 1), ({key}, 1)"),
    };
    rows(sql, "mistakes")
}
