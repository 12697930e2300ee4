//! Types, values of them, and the tables that statements are made for.

/// Types of columns and expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `integer`
    Int,
    /// `bigint`
    Big,
    /// `numeric`
    Num,
    /// `double precision`
    Float,
    /// `text` and `varchar`
    Text,
    /// `text COLLATE "en-x-icu"`
    Icu,
    /// `boolean`
    Bool,
    /// `date`
    Date,
    /// `timestamptz`
    Time,
    /// `interval`
    Span,
    /// `uuid`
    Uuid,
}

/// Every type.
pub const TYPES: [Type; 11] = [
    Type::Int,
    Type::Big,
    Type::Num,
    Type::Float,
    Type::Text,
    Type::Icu,
    Type::Bool,
    Type::Date,
    Type::Time,
    Type::Span,
    Type::Uuid,
];

impl Type {
    /// As SQL names it.
    pub fn name(self) -> &'static str {
        match self {
            Type::Int => "int",
            Type::Big => "bigint",
            Type::Num => "numeric",
            Type::Float => "float8",
            Type::Text | Type::Icu => "text",
            Type::Bool => "bool",
            Type::Date => "date",
            Type::Time => "timestamptz",
            Type::Span => "interval",
            Type::Uuid => "uuid",
        }
    }

    /// `pg_type.oid`
    pub fn oid(self) -> u32 {
        match self {
            Type::Int => 23,
            Type::Big => 20,
            Type::Num => 1700,
            Type::Float => 701,
            Type::Text | Type::Icu => 25,
            Type::Bool => 16,
            Type::Date => 1082,
            Type::Time => 1184,
            Type::Span => 1186,
            Type::Uuid => 2950,
        }
    }

    /// Values: of those that are equal there is only one spelling, as PostgreSQL may show either
    /// of two; sums of the floats are exact in any order.
    pub fn values(self) -> &'static [&'static str] {
        match self {
            Type::Int => &["0", "1", "2", "3", "5", "8", "-4", "100"],
            Type::Big => &["0", "1", "7", "-3", "4000000000", "123456789012"],
            Type::Num => &["0", "1.5", "-3.125", "1000000.001", "NaN", "7e-20", "12"],
            Type::Float => &["0", "1.5", "2.25", "-7", "64", "1e10"],
            Type::Text | Type::Icu => &["a", "B", "b", "ä", "Z z", "x", "", "it''s", "ab"],
            Type::Bool => &["true", "false"],
            Type::Date => &["2024-01-05", "2024-01-20", "2024-02-29", "1999-12-31"],
            Type::Time => &[
                "2024-01-05 10:00:00+00",
                "2024-01-20 23:59:59.5+00",
                "2024-03-01 00:00:00+00",
            ],
            Type::Span => &["1 day", "3 days", "40 days", "-2 days"],
            Type::Uuid => &[
                "0b0c1f7e-13a3-4c1d-8a55-1d7c4b6a9a01",
                "0b0c1f7e-13a3-4c1d-8a55-1d7c4b6a9a02",
                "ffffffff-ffff-4fff-8fff-ffffffffffff",
            ],
        }
    }

    /// A value as a literal of its type.
    pub fn literal(self, text: &str) -> String {
        match self {
            Type::Int | Type::Bool => text.to_owned(),
            Type::Text | Type::Icu => format!("'{text}'"),
            Type::Big | Type::Num | Type::Float => format!("'{text}'::{}", self.name()),
            Type::Date | Type::Time | Type::Span | Type::Uuid => {
                format!("{} '{text}'", self.name())
            }
        }
    }

    /// The bytes of a value in the binary format, for some of the types.
    pub fn binary(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Type::Int => Some(text.parse::<i32>().ok()?.to_be_bytes().to_vec()),
            Type::Big => Some(text.parse::<i64>().ok()?.to_be_bytes().to_vec()),
            Type::Float => Some(text.parse::<f64>().ok()?.to_be_bytes().to_vec()),
            Type::Text | Type::Icu => Some(text.as_bytes().to_vec()),
            Type::Bool => Some(vec![u8::from(text == "true")]),
            Type::Uuid => {
                let digits: String = text.chars().filter(|c| *c != '-').collect();
                let bytes = (0..digits.len()).step_by(2);
                let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
                bytes.map(byte).collect()
            }
            Type::Num | Type::Date | Type::Time | Type::Span => None,
        }
    }
}

/// Tables that are sharded on one kind of key, so that rows of one key are together.
#[derive(Debug)]
pub struct Family {
    /// Type of the key column `k`.
    pub key: Type,
    /// The column's type in the two tables.
    pub types: [&'static str; 2],
    /// How it is declared to be sharded.
    pub declared: &'static str,
    /// Keys.
    pub keys: &'static [&'static str],
}

/// All of them.
pub const FAMILIES: [Family; 4] = [
    Family {
        key: Type::Big,
        types: ["bigint", "bigint"],
        declared: "'bigint'",
        keys: &[
            "1",
            "2",
            "3",
            "5",
            "8",
            "-7",
            "0",
            "42",
            "99",
            "9223372036854775807",
        ],
    },
    Family {
        key: Type::Text,
        types: ["varchar(40)", "text"],
        declared: "'varchar'",
        keys: &[
            "acme", "ACME", "ä-shop", "", "it''s", "x y", "12", "Zed", "one", "two",
        ],
    },
    Family {
        key: Type::Uuid,
        types: ["uuid", "uuid"],
        declared: "'uuid'",
        keys: &[
            "11111111-2222-4333-8444-000000000001",
            "11111111-2222-4333-8444-000000000002",
            "11111111-2222-4333-8444-000000000003",
            "aaaaaaaa-2222-4333-8444-00000000000a",
            "aaaaaaaa-2222-4333-8444-00000000000b",
            "ffffffff-ffff-4fff-8fff-ffffffffffff",
            "00000000-0000-0000-0000-000000000000",
        ],
    },
    Family {
        key: Type::Big,
        types: ["bigint", "int"],
        declared: "'bigint', mapping => '[{\"kind\": \"list\", \"values\": [\"1\", \"2\", \"3\"], \
             \"shard\": 0}, {\"kind\": \"range\", \"start\": \"5\", \"end\": \"50\", \
             \"shard\": 1}, {\"kind\": \"default\", \"shard\": 2}]'",
        keys: &["1", "2", "3", "5", "8", "-7", "0", "42", "99"],
    },
];

/// A table as statements see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Name.
    pub name: &'static str,
    /// The family by its place, none for an omnisharded table.
    pub family: Option<usize>,
    /// Columns besides the key.
    pub columns: &'static [(&'static str, Type)],
    /// The columns that tell its rows apart.
    pub unique: &'static str,
}

const A: &[(&str, Type)] = &[
    ("id", Type::Int),
    ("n", Type::Int),
    ("m", Type::Big),
    ("amount", Type::Num),
    ("f", Type::Float),
    ("s", Type::Text),
    ("icu", Type::Icu),
    ("ok", Type::Bool),
    ("d", Type::Date),
    ("at", Type::Time),
    ("iv", Type::Span),
];

const B: &[(&str, Type)] = &[
    ("id", Type::Int),
    ("q", Type::Int),
    ("s", Type::Text),
    ("u", Type::Uuid),
];

/// Every table.
pub const TABLES: [Table; 10] = [
    sharded("big_a", 0, A),
    sharded("big_b", 0, B),
    sharded("txt_a", 1, A),
    sharded("txt_b", 1, B),
    sharded("uid_a", 2, A),
    sharded("uid_b", 2, B),
    sharded("map_a", 3, A),
    sharded("map_b", 3, B),
    omni(
        "codes",
        "code",
        &[("code", Type::Text), ("w", Type::Int), ("s", Type::Text)],
    ),
    omni(
        "units",
        "id",
        &[("id", Type::Int), ("v", Type::Num), ("s", Type::Text)],
    ),
];

const fn sharded(
    name: &'static str,
    family: usize,
    columns: &'static [(&'static str, Type)],
) -> Table {
    Table {
        name,
        family: Some(family),
        columns,
        unique: "k, id",
    }
}

const fn omni(
    name: &'static str,
    unique: &'static str,
    columns: &'static [(&'static str, Type)],
) -> Table {
    Table {
        name,
        family: None,
        columns,
        unique,
    }
}

/// What creates a table.
pub fn definition(table: &Table) -> String {
    let second = table.name.ends_with("_b");
    let columns = table.columns.iter().map(|(name, r#type)| {
        let rest = match (*name, r#type) {
            (_, Type::Icu) => " COLLATE \"en-x-icu\"",
            ("id" | "code", _) => " NOT NULL",
            ("n", _) => " CHECK (n < 1000)",
            ("q", _) => " DEFAULT 3",
            _ => "",
        };
        format!("{name} {}{rest}", r#type.name())
    });
    let key = table.family.map(|family| {
        let r#type = FAMILIES[family].types[usize::from(second)];
        format!("k {type} NOT NULL")
    });
    let columns: Vec<String> = key.into_iter().chain(columns).collect();
    format!(
        "CREATE TABLE {} ({}, PRIMARY KEY ({}))",
        table.name,
        columns.join(", "),
        table.unique
    )
}

/// What declares where its rows are.
pub fn declaration(table: &Table) -> String {
    match table.family {
        Some(family) => format!(
            "SELECT pgdog.shard_table('{}', 'k', {})",
            table.name, FAMILIES[family].declared
        ),
        None => format!("SELECT pgdog.omni_table('{}')", table.name),
    }
}
