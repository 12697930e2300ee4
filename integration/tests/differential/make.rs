//! Choices made by a seed, and the expressions that they make.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::odd;
use crate::values::{FAMILIES, TYPES, Table, Type};

/// A parameter of a statement.
#[derive(Debug, Clone)]
pub struct Param {
    /// Its type.
    pub r#type: Type,
    /// Its value; none for NULL.
    pub value: Option<String>,
}

/// What is in FROM.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name in the statement.
    pub alias: String,
    /// Columns.
    pub columns: Vec<(String, Type)>,
}

/// Makes one statement.
pub struct Maker {
    rng: StdRng,
    /// The parameters so far; none where the protocol has no parameters.
    pub params: Option<Vec<Param>>,
    names: usize,
}

impl Maker {
    /// Statement `number` of a seed.
    pub fn new(seed: u64, number: u64) -> Self {
        let mixed = seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self {
            rng: StdRng::seed_from_u64(mixed),
            params: None,
            names: 0,
        }
    }

    /// One of several.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// A number below another.
    pub fn below(&mut self, most: usize) -> usize {
        self.rng.random_range(0..most)
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A name that no other source has.
    pub fn alias(&mut self) -> String {
        self.names += 1;
        format!("t{}", self.names)
    }

    /// A table's columns under a name.
    pub fn source(&mut self, table: &Table) -> Source {
        let key = table
            .family
            .map(|family| ("k".to_owned(), FAMILIES[family].key));
        let own = table.columns.iter();
        let own = own.map(|(name, r#type)| ((*name).to_owned(), *r#type));
        Source {
            alias: self.alias(),
            columns: key.into_iter().chain(own).collect(),
        }
    }

    /// A value as a literal, or as a parameter.
    pub fn value(&mut self, r#type: Type, text: Option<&str>) -> String {
        let as_param = self.params.is_some() && self.chance(50);
        let cast = self.chance(60);
        match (&mut self.params, text) {
            (Some(params), _) if as_param => {
                params.push(Param {
                    r#type,
                    value: text.map(|text| text.replace("''", "'")),
                });
                let number = params.len();
                match cast {
                    true => format!("${number}::{}", r#type.name()),
                    false => format!("${number}"),
                }
            }
            (_, Some(text)) => r#type.literal(text),
            (_, None) if cast => format!("NULL::{}", r#type.name()),
            (_, None) => "NULL".to_owned(),
        }
    }

    /// Some value of a type, seldom NULL.
    pub fn some_value(&mut self, r#type: Type) -> String {
        let text = self.pick(r#type.values());
        let null = self.chance(6);
        self.value(r#type, (!null).then_some(text))
    }

    /// A key of a family.
    pub fn key(&mut self, family: usize) -> String {
        let text = self.pick(FAMILIES[family].keys);
        self.value(FAMILIES[family].key, Some(text))
    }

    /// A column of this type, if there is one.
    pub fn column(&mut self, sources: &[Source], wanted: Type) -> Option<String> {
        let mut all = Vec::new();
        for source in sources {
            for (name, r#type) in &source.columns {
                if *r#type == wanted {
                    all.push(format!("{}.{name}", source.alias));
                }
            }
        }
        (!all.is_empty()).then(|| self.pick(&all))
    }

    /// Any column.
    pub fn any_column(&mut self, sources: &[Source]) -> (String, Type) {
        let source = self.below(sources.len());
        let source = &sources[source];
        let (name, r#type) = self.pick(&source.columns);
        (format!("{}.{name}", source.alias), r#type)
    }

    /// Any type.
    pub fn some_type(&mut self) -> Type {
        self.pick(&TYPES)
    }

    /// An expression of a type.
    pub fn expression(&mut self, sources: &[Source], r#type: Type, depth: usize) -> String {
        if depth == 0 || self.chance(45) {
            let column = self.column(sources, r#type);
            return match column {
                Some(column) if self.chance(85) => column,
                _ => self.some_value(r#type),
            };
        }
        if self.chance(15) {
            return self.of_any_type(sources, r#type, depth);
        }
        let of = |maker: &mut Self, r#type| maker.expression(sources, r#type, depth - 1);
        match r#type {
            Type::Int => match self.below(8) {
                0 => format!("({} + {})", of(self, Type::Int), of(self, Type::Int)),
                1 => format!("({} - {})", of(self, Type::Int), of(self, Type::Int)),
                2 => format!("{} * 2", of(self, Type::Int)),
                3 => format!(
                    "{} / nullif({}, 0)",
                    of(self, Type::Int),
                    of(self, Type::Int)
                ),
                4 => format!("length({})", of(self, Type::Text)),
                5 => format!("abs({})", of(self, Type::Int)),
                6 => format!("extract(day FROM {})::int", of(self, Type::Date)),
                _ => format!("{} % 3", of(self, Type::Int)),
            },
            Type::Big => match self.below(3) {
                0 => format!("({} + {})", of(self, Type::Big), of(self, Type::Int)),
                1 => format!("{}::bigint", of(self, Type::Int)),
                _ => format!("mod({}, 5::bigint)", of(self, Type::Big)),
            },
            Type::Num => match self.below(4) {
                0 => format!("({} + {})", of(self, Type::Num), of(self, Type::Num)),
                1 => format!("round({}, 2)", of(self, Type::Num)),
                2 => format!("{}::numeric * 0.5", of(self, Type::Int)),
                _ => format!("abs({})", of(self, Type::Num)),
            },
            Type::Float => match self.below(3) {
                0 => format!("({} * 0.5::float8)", of(self, Type::Float)),
                1 => format!("floor({})", of(self, Type::Float)),
                _ => format!("{}::float8", of(self, Type::Int)),
            },
            Type::Text | Type::Icu => match self.below(6) {
                0 => format!("upper({})", of(self, r#type)),
                1 => format!("({} || {})", of(self, r#type), self.some_value(Type::Text)),
                2 => format!("left({}, 1)", of(self, r#type)),
                3 => format!(
                    "concat({}, '-', {})",
                    of(self, Type::Text),
                    of(self, Type::Int)
                ),
                4 => format!("{}::text", of(self, Type::Int)),
                _ => format!("replace({}, 'a', 'zz')", of(self, r#type)),
            },
            Type::Bool => self.condition(sources, depth - 1),
            Type::Date => match self.below(2) {
                0 => format!("({} + 1)", of(self, Type::Date)),
                _ => format!("({})::date", of(self, Type::Date)),
            },
            Type::Time => format!("({} + {})", of(self, Type::Time), of(self, Type::Span)),
            Type::Span => format!("({} * 2)", of(self, Type::Span)),
            Type::Uuid => self.some_value(Type::Uuid),
        }
    }

    fn of_any_type(&mut self, sources: &[Source], r#type: Type, depth: usize) -> String {
        let one = self.expression(sources, r#type, depth - 1);
        let other = self.expression(sources, r#type, depth - 1);
        match self.below(5) {
            0 => format!("coalesce({one}, {other})"),
            1 => format!("nullif({one}, {other})"),
            2 => format!("greatest({one}, {other})"),
            3 => format!("({one})"),
            _ => {
                let when = self.condition(sources, depth - 1);
                format!("CASE WHEN {when} THEN {one} ELSE {other} END")
            }
        }
    }

    /// A condition about some columns.
    pub fn condition(&mut self, sources: &[Source], depth: usize) -> String {
        if sources.is_empty() {
            return "true".to_owned();
        }
        if depth > 0 && self.chance(40) {
            let one = self.condition(sources, depth - 1);
            let other = self.condition(sources, depth - 1);
            return match self.below(4) {
                0 => format!("({one} OR {other})"),
                1 => format!("NOT ({one})"),
                _ => format!("({one} AND {other})"),
            };
        }
        let (column, r#type) = self.any_column(sources);
        match self.below(11) {
            0 => format!("{column} IS NULL"),
            1 => format!("{column} IS NOT NULL"),
            2 => format!(
                "{column} IN ({}, {})",
                self.some_value(r#type),
                self.some_value(r#type)
            ),
            3 => format!(
                "{column} BETWEEN {} AND {}",
                self.some_value(r#type),
                self.some_value(r#type)
            ),
            4 => format!("{column} IS DISTINCT FROM {}", self.some_value(r#type)),
            5 if matches!(r#type, Type::Text | Type::Icu) => format!("{column} LIKE '%a%'"),
            5 | 6 if r#type == Type::Bool => column,
            7 => {
                let other = self.expression(sources, r#type, depth.min(1));
                format!("{column} <= {other}")
            }
            8 => format!("{column} <> {}", self.some_value(r#type)),
            _ => {
                let operator = self.pick(&["=", "<", ">", ">=", "="]);
                format!("{column} {operator} {}", self.some_value(r#type))
            }
        }
    }

    /// That rows are of one key; now and then said in another way.
    pub fn key_is(&mut self, alias: &str, family: usize) -> String {
        if self.chance(20) {
            return odd::condition(self, alias, family);
        }
        let key = self.key(family);
        match self.below(8) {
            0 => format!("{key} = {alias}.k"),
            1 => format!("{alias}.k IN ({key})"),
            2 => {
                let name = FAMILIES[family].key.name();
                format!("{alias}.k = ANY (ARRAY[{key}]::{name}[])")
            }
            3 => format!("({alias}.k = {key} AND {alias}.id > 0)"),
            4 => format!("({alias}.k, {alias}.id) = ({key}, {})", self.below(4) + 1),
            _ => format!("{alias}.k = {key}"),
        }
    }
}
