//! Keys said in ways that a reader of statements may take for something else.

use crate::make::Maker;
use crate::values::{FAMILIES, Type};

/// Conditions: `K` is the key column, `T` the text of a key.
const NUMBERS: &[&str] = &[
    "K = 'T'",
    "K = ' T '",
    "K = '000T'",
    "K = T::numeric",
    "K = T.0",
    "K = T.5",
    "K = +(T)",
    "K = -(-(T))",
    "K = T::smallint",
    "K = T::float8",
    "K = 'T'::text::bigint",
    "K = greatest(T, T)",
    "K = ANY ('{T}')",
    "K = ANY ('{T,NULL}'::bigint[])",
    "K = ALL (ARRAY[T]::bigint[])",
    "K = SOME (ARRAY[T, 5])",
    "K IS NOT DISTINCT FROM T",
    "K <= T AND K >= T",
    "K # T = 0",
    "K::text = 'T'",
    "K = T::oid",
];

const TEXTS: &[&str] = &[
    "K = 'T'",
    "K = E'T'",
    "K = U&'T'",
    "K = 'T '",
    "K = 'T'::text",
    "K = 'T'::varchar",
    "K = 'T'::varchar(2)",
    "K = 'T'::char(40)",
    "K = 'T'::name",
    "K = 'T' COLLATE \"C\"",
    "K COLLATE \"C\" = 'T'",
    "K = upper('T')",
    "K = 'T' || ''",
    "K LIKE 'T'",
    "lower(K) = lower('T')",
    "K = ANY (ARRAY['T', NULL])",
    "K IS NOT DISTINCT FROM 'T'",
    "K::bytea = 'T'",
];

const UUIDS: &[&str] = &[
    "K = 'T'",
    "K = '{T}'",
    "K = upper('T')::uuid",
    "K = 'T'::text::uuid",
    "K = ANY ('{T}')",
    "K = ANY ('{T,NULL}'::uuid[])",
    "K::text = 'T'",
    "K IS NOT DISTINCT FROM 'T'",
    "K >= 'T' AND K <= 'T'",
];

/// For any type; `L` is the key as a value of its type.
const ALL: &[&str] = &[
    "K IN (L, L)",
    "(K, 1) = (L, 1)",
    "(K) = (L)",
    "K IN (SELECT L)",
    "K = (SELECT L)",
    "K IN (VALUES (L))",
    "K = L AND K = L",
    "K = L AND K IS NOT NULL",
    "(K = L) IS TRUE",
    "(K = L AND true)",
    "(K = L OR false)",
    "NOT (K <> L)",
    "NOT K <> L",
    "K = coalesce(NULL, L)",
    "coalesce(K, L) = L",
    "nullif(K, L) IS NULL",
    "K = CASE WHEN true THEN L END",
    "K = NULL",
    "K IS NULL",
    "K = L AND K = NULL",
    "K BETWEEN L AND L",
    "K IN (L, NULL)",
    "K NOT IN (L)",
    "K <> L",
    "K OPERATOR(pg_catalog.=) L",
];

/// Values for a new row, of another type or in another form than the column's.
const ASSIGNED: [(Type, &[&str]); 3] = [
    (
        Type::Big,
        &[
            "'T'",
            "' T'",
            "T.0",
            "T.4",
            "T::float8",
            "+(T)",
            "-(-(T))",
            "(SELECT T)",
            "T + 0",
        ],
    ),
    (
        Type::Text,
        &[
            "'T '",
            "'T'::char(40)",
            "E'T'",
            "'T'::name",
            "upper('T')",
            "17",
            "'T' || ''",
        ],
    ),
    (
        Type::Uuid,
        &["'T'", "'{T}'", "upper('T')::uuid", "'T'::text::uuid"],
    ),
];

fn filled(pattern: &str, column: &str, text: &str, key: Type) -> String {
    // One pass: a key may have these letters itself.
    let mut out = String::new();
    let mut word = ' ';
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        let next = rest.peek().copied().unwrap_or(' ');
        let alone = !word.is_ascii_alphabetic() && !next.is_ascii_alphabetic();
        match c {
            'K' if alone => out.push_str(column),
            'T' if alone => out.push_str(text),
            'L' if alone => out.push_str(&key.literal(text)),
            c => out.push(c),
        }
        word = c;
    }
    out
}

/// A condition about the key.
pub fn condition(maker: &mut Maker, alias: &str, family: usize) -> String {
    let key = FAMILIES[family].key;
    let text = maker.pick(FAMILIES[family].keys);
    let own = match key {
        Type::Big => NUMBERS,
        Type::Text => TEXTS,
        _ => UUIDS,
    };
    let pattern = match maker.chance(50) {
        true => maker.pick(own),
        false => maker.pick(ALL),
    };
    let condition = filled(pattern, &format!("{alias}.k"), text, key);
    format!("({condition})")
}

/// The key of a new row.
pub fn assigned(maker: &mut Maker, family: usize) -> String {
    let key = FAMILIES[family].key;
    let text = maker.pick(FAMILIES[family].keys);
    let of_type = ASSIGNED.iter().find(|(of, _)| *of == key);
    let patterns = of_type.map_or(&[][..], |(_, patterns)| patterns);
    let pattern = maker.pick(patterns);
    filled(pattern, "", text, key)
}
