//! Values as the text has them: constants, parameters, and casts that keep the value.
//!
//! A cast is followed only when the value that PostgreSQL would compare is known exactly;
//! everything else is `Unknown`, which never narrows a route.

use pg_query::NodeEnum;
use pg_query::protobuf::{AConst, Node, TypeCast, TypeName, a_const};

use super::array::split_array;
use super::{ParamType, Value, is_unread};

/// What `node` is worth, as far as the text alone tells.
pub(super) fn value(node: &Node) -> Value {
    if let Some(NodeEnum::SetToDefault(_)) = node.node {
        return Value::Default;
    }
    match typed(node) {
        Typed::Constant(constant) => constant.value(),
        Typed::Null => Value::Null,
        Typed::Param(param) => param.value(),
        Typed::Unknown => Value::Unknown,
    }
}

/// The members of the array on the right of `= ANY (...)`.
pub(super) fn members(node: &Node) -> Vec<Value> {
    array(node, None).unwrap_or_else(|| vec![Value::Unknown])
}

/// Families of types between which a cast is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// A string constant without a type yet.
    Untyped,
    Integer,
    Numeric,
    Text,
    Uuid,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Constant {
    text: String,
    family: Family,
}

impl Constant {
    /// What is not readable is not known.
    fn value(self) -> Value {
        match is_unread(&self.text) {
            true => Value::Unknown,
            false => Value::Text(self.text),
        }
    }
}

/// A parameter with the casts around it.
#[derive(Debug, Clone, Copy)]
struct Param {
    number: usize,
    /// The innermost cast: the type that it has on the wire.
    first: Family,
    last: Family,
}

impl Param {
    fn cast(self, to: Family) -> Typed {
        if !param_cast_keeps(self.last, to) {
            return Typed::Unknown;
        }
        let first = if self.first == Family::Untyped {
            to
        } else {
            self.first
        };
        Typed::Param(Param {
            first,
            last: to,
            ..self
        })
    }

    fn value(self) -> Value {
        let param_type = match self.first {
            Family::Untyped => return Value::Param(self.number),
            Family::Integer => ParamType::Integer,
            Family::Numeric => ParamType::Numeric,
            Family::Text if self.last != Family::Text => ParamType::Spelling,
            Family::Text => ParamType::Text,
            Family::Uuid => ParamType::Uuid,
        };
        Value::TypedParam(self.number, param_type)
    }
}

enum Typed {
    Constant(Constant),
    Null,
    Param(Param),
    Unknown,
}

fn typed(node: &Node) -> Typed {
    match &node.node {
        Some(NodeEnum::AConst(constant)) => literal(constant),
        Some(NodeEnum::ParamRef(param)) => match usize::try_from(param.number) {
            Ok(number) if number > 0 => Typed::Param(Param {
                number,
                first: Family::Untyped,
                last: Family::Untyped,
            }),
            _ => Typed::Unknown,
        },
        Some(NodeEnum::TypeCast(cast)) => cast_value(cast),
        Some(NodeEnum::AExpr(expr)) if expr.lexpr.is_none() => {
            let (Some(operand), [operator]) = (&expr.rexpr, expr.name.as_slice()) else {
                return Typed::Unknown;
            };
            signed(string(operator), typed(operand))
        }
        _ => Typed::Unknown,
    }
}

fn signed(operator: Option<&str>, operand: Typed) -> Typed {
    let Typed::Constant(mut constant) = operand else {
        return Typed::Unknown;
    };
    if !matches!(constant.family, Family::Integer | Family::Numeric) {
        return Typed::Unknown;
    }
    match operator {
        Some("+") => Typed::Constant(constant),
        Some("-") => {
            constant.text = match constant.text.strip_prefix('-') {
                Some(positive) => positive.to_owned(),
                None if constant.text.bytes().any(|b| (b'1'..=b'9').contains(&b)) => {
                    format!("-{}", constant.text)
                }
                None => constant.text,
            };
            Typed::Constant(constant)
        }
        _ => Typed::Unknown,
    }
}

fn literal(constant: &AConst) -> Typed {
    if constant.isnull {
        return Typed::Null;
    }
    let known = match &constant.val {
        Some(a_const::Val::Ival(number)) => Some(Constant {
            text: number.ival.to_string(),
            family: Family::Integer,
        }),
        Some(a_const::Val::Fval(number)) => decimal(&number.fval),
        Some(a_const::Val::Sval(text)) => Some(Constant {
            text: text.sval.clone(),
            family: Family::Untyped,
        }),
        Some(a_const::Val::Boolval(_) | a_const::Val::Bsval(_)) | None => None,
    };
    known.map_or(Typed::Unknown, Typed::Constant)
}

/// A number in plain decimal notation, without needless zeros in front.
fn decimal(text: &str) -> Option<Constant> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("", &text[1..]),
        _ => ("", text),
    };
    let shifted = match digits.split_once(['e', 'E']) {
        Some((digits, exponent)) => Some(shifted(digits, exponent.parse().ok()?)?),
        None => None,
    };
    let is_integer = shifted.is_none();
    let digits = shifted.as_deref().unwrap_or(digits);
    let (whole, fraction) = match digits.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (digits, None),
    };
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !fraction.is_none_or(all_digits) {
        return None;
    }
    if whole.is_empty() && fraction.is_none_or(str::is_empty) {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let fraction = fraction.filter(|fraction| !fraction.is_empty());
    let zero = whole == "0" && fraction.is_none_or(|f| f.bytes().all(|b| b == b'0'));
    let sign = if zero { "" } else { sign };
    let text = match fraction {
        Some(fraction) => format!("{sign}{whole}.{fraction}"),
        None => format!("{sign}{whole}"),
    };
    let family = if is_integer && fraction.is_none() && text.parse::<i64>().is_ok() {
        Family::Integer
    } else {
        Family::Numeric
    };
    Some(Constant { text, family })
}

/// Digits with the point moved to the right by `exponent`, which PostgreSQL allows up to 16383
/// digits for; a key has fewer.
fn shifted(digits: &str, exponent: i32) -> Option<String> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    let is_number = !all.is_empty() && all.bytes().all(|b| b.is_ascii_digit());
    if !is_number || exponent.unsigned_abs() > 100 {
        return None;
    }
    let point = i32::try_from(whole.len()).ok()? + exponent;
    let Ok(point) = usize::try_from(point) else {
        return Some(format!(
            "0.{}{all}",
            "0".repeat(point.unsigned_abs() as usize)
        ));
    };
    Some(match all.split_at_checked(point) {
        Some((whole, "")) => whole.to_owned(),
        Some((whole, fraction)) => format!("{whole}.{fraction}"),
        None => format!("{all}{}", "0".repeat(point - all.len())),
    })
}

fn cast_value(cast: &TypeCast) -> Typed {
    let (Some(arg), Some(type_name)) = (&cast.arg, &cast.type_name) else {
        return Typed::Unknown;
    };
    if !type_name.array_bounds.is_empty() {
        return Typed::Unknown;
    }
    match typed(arg) {
        // A NULL stays NULL in every type.
        Typed::Null => Typed::Null,
        Typed::Unknown => Typed::Unknown,
        Typed::Constant(constant) => {
            cast_constant(constant, type_name).map_or(Typed::Unknown, Typed::Constant)
        }
        Typed::Param(param) => match target_type(type_name) {
            Some((to, _)) => param.cast(to),
            None => Typed::Unknown,
        },
    }
}

/// Whether the text or binary form of a parameter still tells the value after this cast.
/// `integer::text` does not: the parameter `0012` becomes the text `12`.
fn param_cast_keeps(from: Family, to: Family) -> bool {
    match (from, to) {
        (Family::Untyped, _)
        | (Family::Text, _)
        | (Family::Integer, Family::Integer | Family::Numeric)
        | (Family::Numeric, Family::Numeric)
        | (Family::Uuid, Family::Uuid) => true,
        (Family::Integer | Family::Numeric | Family::Uuid, _) => false,
    }
}

fn cast_constant(constant: Constant, type_name: &TypeName) -> Option<Constant> {
    let (family, range) = target_type(type_name)?;
    let text = match family {
        Family::Integer => integer(&constant, range)?,
        Family::Numeric => decimal(constant.text.trim())?.text,
        Family::Text | Family::Untyped => constant.text,
        Family::Uuid => uuid(&constant.text)?,
    };
    Some(Constant { text, family })
}

fn integer(constant: &Constant, bits: u32) -> Option<String> {
    let number = decimal(constant.text.trim())?;
    let whole = match number.text.split_once('.') {
        // A string with a fraction is no integer at all; a numeric would be rounded.
        Some((whole, fraction))
            if constant.family == Family::Numeric && fraction.bytes().all(|b| b == b'0') =>
        {
            whole
        }
        Some(_) => return None,
        None => &number.text,
    };
    let parsed: i64 = whole.parse().ok()?;
    let limit = 1i128 << (bits - 1);
    (-limit..limit)
        .contains(&i128::from(parsed))
        .then(|| parsed.to_string())
}

/// Canonical form: lower case, with hyphens. PostgreSQL also reads braces and hyphens after
/// any group of four digits.
pub(crate) fn uuid(text: &str) -> Option<String> {
    let bare = match text.strip_prefix('{') {
        Some(inner) => inner.strip_suffix('}')?,
        None => text,
    };
    let mut digits = String::with_capacity(32);
    let mut after_hyphen = true;
    for c in bare.chars() {
        if c.is_ascii_hexdigit() {
            digits.push(c.to_ascii_lowercase());
            after_hyphen = false;
        } else if c == '-' && !after_hyphen && digits.len().is_multiple_of(4) && digits.len() < 32 {
            after_hyphen = true;
        } else {
            return None;
        }
    }
    if digits.len() != 32 || after_hyphen {
        return None;
    }
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    Some(parts.join("-"))
}

/// The family of a type and the width of an integer; `None` for types that change a value.
fn target_type(type_name: &TypeName) -> Option<(Family, u32)> {
    let names: Vec<&str> = type_name.names.iter().filter_map(string).collect();
    let name = match names.as_slice() {
        [name] | ["pg_catalog", name] => *name,
        _ => return None,
    };
    if type_name.setof || type_name.pct_type || !type_name.typmods.is_empty() {
        return None;
    }
    match name {
        "int8" | "bigint" => Some((Family::Integer, 64)),
        "int4" | "integer" | "int" => Some((Family::Integer, 32)),
        "int2" | "smallint" => Some((Family::Integer, 16)),
        "numeric" | "decimal" => Some((Family::Numeric, 0)),
        "text" | "varchar" => Some((Family::Text, 0)),
        "uuid" => Some((Family::Uuid, 0)),
        _ => None,
    }
}

fn array(node: &Node, element: Option<&TypeName>) -> Option<Vec<Value>> {
    match node.node.as_ref()? {
        NodeEnum::AArrayExpr(list) => {
            let members = list.elements.iter();
            Some(
                members
                    .map(|member| cast_member(typed(member), element))
                    .collect(),
            )
        }
        NodeEnum::ParamRef(param) => {
            let number = usize::try_from(param.number)
                .ok()
                .filter(|number| *number > 0)?;
            Some(vec![Value::ArrayParam(number)])
        }
        NodeEnum::AConst(constant) => match &constant.val {
            Some(a_const::Val::Sval(text)) => {
                let members = split_array(&text.sval)?.into_iter();
                let untyped = |text| Constant {
                    text,
                    family: Family::Untyped,
                };
                let typed = |member: Option<String>| {
                    member.map_or(Typed::Null, |text| Typed::Constant(untyped(text)))
                };
                Some(
                    members
                        .map(|member| cast_member(typed(member), element))
                        .collect(),
                )
            }
            _ => None,
        },
        NodeEnum::TypeCast(cast) if element.is_none() => {
            let type_name = cast.type_name.as_ref()?;
            if type_name.array_bounds.len() != 1 {
                return None;
            }
            target_type(type_name)?;
            array(cast.arg.as_ref()?, Some(type_name))
        }
        _ => None,
    }
}

fn cast_member(member: Typed, element: Option<&TypeName>) -> Value {
    match (member, element) {
        (Typed::Null, _) => Value::Null,
        (Typed::Unknown, _) => Value::Unknown,
        (Typed::Constant(constant), None) => constant.value(),
        (Typed::Constant(constant), Some(type_name)) => {
            cast_constant(constant, type_name).map_or(Value::Unknown, Constant::value)
        }
        (Typed::Param(param), None) => param.value(),
        (Typed::Param(param), Some(type_name)) => match target_type(type_name) {
            Some((to, _)) => match param.cast(to) {
                Typed::Param(param) => param.value(),
                Typed::Constant(_) | Typed::Null | Typed::Unknown => Value::Unknown,
            },
            None => Value::Unknown,
        },
    }
}

/// The text of a `String` node.
pub(super) fn string(node: &Node) -> Option<&str> {
    match &node.node {
        Some(NodeEnum::String(text)) => Some(&text.sval),
        _ => None,
    }
}
