//! FROM and WHERE.

use crate::make::{Maker, Source};
use crate::values::{FAMILIES, TABLES, Table, Type};

/// FROM with what is known of it.
pub struct From {
    /// What stands behind the word.
    pub text: String,
    /// What it brings into scope.
    pub sources: Vec<Source>,
    /// What may be bound to one key: a name, and the family of its keys.
    pub keyed: Option<(String, usize)>,
}

/// The tables of a family.
pub fn tables(family: usize) -> Vec<Table> {
    let of_family = |table: &&Table| table.family == Some(family);
    TABLES.iter().filter(of_family).copied().collect()
}

fn omni(maker: &mut Maker) -> Table {
    let all: Vec<Table> = TABLES
        .iter()
        .filter(|t| t.family.is_none())
        .copied()
        .collect();
    maker.pick(&all)
}

/// One table.
pub fn from_table(maker: &mut Maker, table: &Table) -> From {
    let source = maker.source(table);
    let keyed = table.family.map(|family| (source.alias.clone(), family));
    From {
        text: format!("{} {}", table.name, source.alias),
        sources: vec![source],
        keyed,
    }
}

/// Two tables or three.
pub fn from_join(maker: &mut Maker) -> From {
    let family = maker.below(FAMILIES.len());
    let tables = tables(family);
    let which = maker.below(8);
    let table = match which {
        4 => tables[1],
        5 | 6 => omni(maker),
        _ => maker.pick(&tables),
    };
    let (one, other) = (maker.source(&tables[0]), maker.source(&table));
    let (first, second) = (tables[0].name, table.name);
    let (a, b) = (&one.alias, &other.alias);
    let kind = maker.pick(&[
        "JOIN",
        "JOIN",
        "JOIN",
        "LEFT JOIN",
        "RIGHT JOIN",
        "FULL JOIN",
    ]);
    let by = match which {
        0..4 => {
            let more = maker.pick(&["", " AND {a}.id = {b}.id", " AND {a}.id < {b}.id"]);
            let more = more.replace("{a}", a).replace("{b}", b);
            format!("ON {a}.k = {b}.k{more}")
        }
        4 => maker.pick(&["USING (k)", "USING (k, id)"]).to_owned(),
        5 => format!("ON {a}.s = {b}.s"),
        _ => format!("ON {a}.id = {b}.id"),
    };
    let mut text = match which {
        6 => format!("{first} {a}, {second} {b}"),
        _ => format!("{first} {a} {kind} {second} {b} {by}"),
    };
    let keyed = Some((a.clone(), family));
    let mut sources = vec![one, other];
    if maker.chance(20) {
        let table = omni(maker);
        let third = maker.source(&table);
        let (c, a) = (&third.alias, &sources[0].alias);
        text = format!("{text} LEFT JOIN {} {c} ON {c}.s = {a}.s", table.name);
        sources.push(third);
    }
    From {
        text,
        sources,
        keyed,
    }
}

/// Any FROM.
pub fn from(maker: &mut Maker) -> From {
    if maker.chance(35) {
        return from_join(maker);
    }
    let table = match maker.chance(12) {
        true => omni(maker),
        false => maker.pick(&TABLES[..8]),
    };
    let from = from_table(maker, &table);
    if maker.chance(15) {
        return nested(maker, from);
    }
    from
}

/// A subquery in FROM.
fn nested(maker: &mut Maker, from: From) -> From {
    let alias = maker.alias();
    let inner = &from.sources[0];
    let filter = where_(maker, &from, 30);
    let text = format!("(SELECT * FROM {}{filter}) {alias}", from.text);
    From {
        keyed: from.keyed.map(|(_, family)| (alias.clone(), family)),
        text,
        sources: vec![Source {
            alias,
            columns: inner.columns.clone(),
        }],
    }
}

/// WHERE, bound to a key in so many of a hundred cases.
pub fn where_(maker: &mut Maker, from: &From, keyed: usize) -> String {
    let mut parts = Vec::new();
    if let Some((alias, family)) = &from.keyed
        && maker.chance(keyed)
    {
        parts.push(maker.key_is(alias, *family));
    }
    for _ in 0..maker.below(3) {
        parts.push(maker.condition(&from.sources, 1));
    }
    if maker.chance(15) {
        parts.push(below(maker, &from.sources));
    }
    match parts.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", parts.join(" AND ")),
    }
}

/// A condition about rows of another table.
fn below(maker: &mut Maker, sources: &[Source]) -> String {
    let outer = &sources[0].alias;
    let key = sources[0]
        .columns
        .first()
        .map_or(Type::Int, |(_, r#type)| *r#type);
    let keyed = sources[0]
        .columns
        .first()
        .is_some_and(|(name, _)| name == "k");
    let families = FAMILIES.iter().enumerate();
    let alike: Vec<usize> = families
        .filter(|(_, f)| f.key == key)
        .map(|(at, _)| at)
        .collect();
    if !keyed || alike.is_empty() || maker.chance(30) {
        let table = omni(maker);
        let not = maker.pick(&["", "NOT "]);
        return match maker.below(2) {
            0 => format!(
                "{not}EXISTS (SELECT 1 FROM {} x WHERE x.s = {outer}.s)",
                table.name
            ),
            _ => format!("{outer}.s {not}IN (SELECT x.s FROM {} x)", table.name),
        };
    }
    let family = maker.pick(&alike);
    let table = maker.pick(&tables(family));
    let name = table.name;
    match maker.below(5) {
        0 => format!("EXISTS (SELECT 1 FROM {name} x WHERE x.k = {outer}.k AND x.id > 1)"),
        1 => format!("NOT EXISTS (SELECT FROM {name} x WHERE x.k = {outer}.k AND x.id = 2)"),
        2 => format!("{outer}.k IN (SELECT x.k FROM {name} x WHERE x.id = 1)"),
        3 => format!("{outer}.id >= (SELECT min(x.id) FROM {name} x WHERE x.k = {outer}.k)"),
        _ => format!("{outer}.id NOT IN (SELECT x.id FROM {name} x WHERE x.id > 2)"),
    }
}
