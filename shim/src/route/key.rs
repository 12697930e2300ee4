//! Values of a statement and its bind parameters as sharding keys.
//!
//! A parameter is read only when its type on the wire is certain: named by the client, by a cast,
//! or inferred by PostgreSQL from the key's own column.

use pgdog_core::fault::Fault;
use pgdog_core::placement::{DataType, Key};

use crate::plan::array::split_array;
use crate::plan::{ParamType, Value};

use super::{Bind, Params};

/// One value as a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Read {
    /// This key.
    Key(Key),
    /// NULL: equals nothing.
    Null,
    /// A number that no key of this type can equal.
    Nowhere,
    /// Cannot be known here.
    Unknown,
}

/// Reads a value; an array parameter yields all of its members.
///
/// # Errors
/// 22P02 for a text that is no key of this type.
pub(super) fn read(
    value: &Value,
    data_type: DataType,
    params: &dyn Params,
) -> Result<Vec<Read>, Fault> {
    match value {
        Value::Text(text) => Ok(vec![from_text(text, data_type)?]),
        Value::Null => Ok(vec![Read::Null]),
        Value::Default | Value::Unknown => Ok(vec![Read::Unknown]),
        Value::Param(number) => Ok(vec![from_param(params.param(*number), None, data_type)?]),
        Value::TypedParam(number, cast) => Ok(vec![from_param(
            params.param(*number),
            Some(*cast),
            data_type,
        )?]),
        Value::ArrayParam(number) => from_array(params.param(*number), data_type),
    }
}

fn from_text(text: &str, data_type: DataType) -> Result<Read, Fault> {
    let whole = match (data_type, text.split_once('.')) {
        (DataType::Bigint, Some((whole, fraction))) => {
            let fraction = fraction.trim_end();
            if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
                text
            } else if fraction.bytes().all(|digit| digit == b'0') {
                whole
            } else {
                return Ok(Read::Nowhere);
            }
        }
        _ => text,
    };
    match Key::parse(data_type, whole) {
        Ok(key) => Ok(Read::Key(key)),
        Err(Fault::KeyTypeMismatch {
            out_of_range: true, ..
        }) => Ok(Read::Nowhere),
        Err(fault) => Err(fault),
    }
}

/// The type of a parameter on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Integer,
    UnsignedInteger,
    Numeric,
    Text,
    /// A text that is cast to a number or uuid: what it says is known, but not how it will be
    /// spelled.
    Spelling,
    /// Blank-padded: trailing spaces do not count, so only texts without them are certain.
    Padded,
    Uuid,
    /// PostgreSQL takes the type of the column.
    Inferred,
    Other,
}

fn wire(type_oid: u32, cast: Option<ParamType>) -> Wire {
    match (type_oid, cast) {
        (20 | 21 | 23, _) => Wire::Integer,
        (26, None) => Wire::UnsignedInteger,
        (1700, _) => Wire::Numeric,
        (25 | 1043, None | Some(ParamType::Text)) => Wire::Text,
        (1042, None | Some(ParamType::Text)) => Wire::Padded,
        (25 | 1043 | 1042, Some(_)) => Wire::Spelling,
        (2950, _) => Wire::Uuid,
        (0 | 705, Some(ParamType::Integer)) => Wire::Integer,
        (0 | 705, Some(ParamType::Numeric)) => Wire::Numeric,
        (0 | 705, Some(ParamType::Text)) => Wire::Text,
        (0 | 705, Some(ParamType::Spelling)) => Wire::Spelling,
        (0 | 705, Some(ParamType::Uuid)) => Wire::Uuid,
        (0 | 705, None) => Wire::Inferred,
        _ => Wire::Other,
    }
}

fn from_param(
    bind: Option<Bind<'_>>,
    cast: Option<ParamType>,
    data_type: DataType,
) -> Result<Read, Fault> {
    let Some(bind) = bind else {
        return Ok(Read::Unknown);
    };
    let Some(bytes) = bind.value else {
        return Ok(Read::Null);
    };
    let wire = wire(bind.type_oid, cast);
    let read = match bind.binary {
        true => from_binary(bytes, wire, data_type)?,
        false => from_spelling(bytes, wire, data_type)?,
    };
    Ok(match (read, wire, cast) {
        // The cast rounds it, to a number that a key may well equal.
        (Read::Nowhere, Wire::Numeric, Some(ParamType::Integer)) => Read::Unknown,
        (read, _, _) => read,
    })
}

fn from_spelling(bytes: &[u8], wire: Wire, data_type: DataType) -> Result<Read, Fault> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Ok(Read::Unknown);
    };
    match (wire, data_type) {
        (Wire::Other, _) | (Wire::Spelling, DataType::Varchar) => Ok(Read::Unknown),
        (Wire::Padded, _) if text.ends_with(' ') => Ok(Read::Unknown),
        (Wire::Integer | Wire::UnsignedInteger, DataType::Varchar) => through_integer(text),
        (Wire::Uuid, DataType::Varchar) => Ok(Read::Key(Key::Varchar(
            Key::parse(DataType::Uuid, text)?.to_string(),
        ))),
        (Wire::Numeric, DataType::Varchar) => Ok(Read::Unknown),
        (Wire::Inferred, DataType::Bigint) if text.contains('.') => {
            // PostgreSQL's bigint takes no fraction, so this is an error there too.
            Key::parse(data_type, text).map(Read::Key)
        }
        _ => from_text(text, data_type),
    }
}

/// An integer that is stored as text: `0012` becomes `12`.
fn through_integer(text: &str) -> Result<Read, Fault> {
    let number = Key::parse(DataType::Bigint, text)?;
    Ok(Read::Key(Key::Varchar(number.to_string())))
}

fn from_binary(bytes: &[u8], wire: Wire, data_type: DataType) -> Result<Read, Fault> {
    let text = || std::str::from_utf8(bytes).ok();
    match (wire, data_type) {
        (Wire::Inferred, _) => Key::from_binary(data_type, bytes).map(Read::Key),
        (Wire::Integer, DataType::Bigint) | (Wire::Uuid, DataType::Uuid) => {
            Key::from_binary(data_type, bytes).map(Read::Key)
        }
        (Wire::Integer, DataType::Varchar) => {
            let number = Key::from_binary(DataType::Bigint, bytes)?;
            Ok(Read::Key(Key::Varchar(number.to_string())))
        }
        (Wire::UnsignedInteger, DataType::Bigint) => {
            Ok(bytes.try_into().map_or(Read::Unknown, |b| {
                Read::Key(Key::Bigint(u32::from_be_bytes(b).into()))
            }))
        }
        (Wire::Uuid, DataType::Varchar) => {
            let uuid = Key::from_binary(DataType::Uuid, bytes)?;
            Ok(Read::Key(Key::Varchar(uuid.to_string())))
        }
        (Wire::Numeric, DataType::Bigint) => Ok(integral_numeric(bytes)),
        (Wire::Spelling, DataType::Varchar) => Ok(Read::Unknown),
        (Wire::Text | Wire::Spelling, _) => {
            text().map_or(Ok(Read::Unknown), |text| from_text(text, data_type))
        }
        (Wire::Padded, _) => match text() {
            Some(text) if !text.ends_with(' ') => from_text(text, data_type),
            _ => Ok(Read::Unknown),
        },
        (Wire::Integer | Wire::UnsignedInteger | Wire::Numeric | Wire::Uuid | Wire::Other, _) => {
            Ok(Read::Unknown)
        }
    }
}

/// `numeric` in binary: counts and sign, then digits of base 10000 from `weight` downwards.
fn integral_numeric(bytes: &[u8]) -> Read {
    let words: Vec<u16> = bytes
        .chunks(2)
        .filter_map(|pair| pair.try_into().ok().map(u16::from_be_bytes))
        .collect();
    let [count, weight, sign, _scale, digits @ ..] = words.as_slice() else {
        return Read::Unknown;
    };
    if digits.len() != usize::from(*count) || digits.iter().any(|digit| *digit > 9_999) {
        return Read::Unknown;
    }
    let weight = i32::from(weight.cast_signed());
    let mut value: i128 = 0;
    for (position, digit) in (0i32..).zip(digits) {
        let power = weight - position;
        if *digit == 0 {
            continue;
        }
        if !(0..=4).contains(&power) {
            // A fraction, or beyond 20 digits: no bigint equals it.
            return Read::Nowhere;
        }
        value += i128::from(*digit) * 10_000_i128.pow(power.unsigned_abs());
    }
    let value = match *sign {
        0x0000 => value,
        0x4000 => -value,
        _ => return Read::Nowhere,
    };
    i64::try_from(value).map_or(Read::Nowhere, |value| Read::Key(Key::Bigint(value)))
}

fn from_array(bind: Option<Bind<'_>>, data_type: DataType) -> Result<Vec<Read>, Fault> {
    let Some(bind) = bind else {
        return Ok(vec![Read::Unknown]);
    };
    let Some(bytes) = bind.value else {
        return Ok(vec![Read::Null]);
    };
    if bind.binary {
        return binary_array(bytes, data_type);
    }
    let members = std::str::from_utf8(bytes).ok().and_then(split_array);
    let Some(members) = members else {
        return Ok(vec![Read::Unknown]);
    };
    let read = |member: Option<String>| {
        let bytes = member.as_deref().map(str::as_bytes);
        let type_oid = element_type(bind.type_oid);
        from_param(
            Some(Bind {
                value: bytes,
                binary: false,
                type_oid,
            }),
            None,
            data_type,
        )
    };
    members.into_iter().map(read).collect()
}

/// The element type of PostgreSQL's own array types that can hold keys.
fn element_type(array_oid: u32) -> u32 {
    match array_oid {
        0 | 705 => 0,
        1005 => 21,
        1007 => 23,
        1016 => 20,
        1231 => 1700,
        1009 => 25,
        1015 => 1043,
        1014 => 1042,
        2951 => 2950,
        other => other,
    }
}

/// Dimensions, flags, element type; length and lower bound per dimension; then the members.
fn binary_array(bytes: &[u8], data_type: DataType) -> Result<Vec<Read>, Fault> {
    let unknown = || Ok(vec![Read::Unknown]);
    let mut rest = bytes;
    let (Some(dimensions), Some(_flags), Some(type_oid)) =
        (word(&mut rest), word(&mut rest), word(&mut rest))
    else {
        return unknown();
    };
    if dimensions > 6 || rest.len() < 8 * dimensions as usize {
        return unknown();
    }
    rest = &rest[8 * dimensions as usize..];
    let mut members = Vec::new();
    while !rest.is_empty() {
        let Some(len) = word(&mut rest) else {
            return unknown();
        };
        let value = match usize::try_from(len.cast_signed()) {
            Err(_) => None,
            Ok(len) if len <= rest.len() => {
                let (value, after) = rest.split_at(len);
                rest = after;
                Some(value)
            }
            Ok(_) => return unknown(),
        };
        let bind = Bind {
            value,
            binary: true,
            type_oid,
        };
        members.push(from_param(Some(bind), None, data_type)?);
    }
    Ok(members)
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    let (head, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_be_bytes(*head))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(Vec<u8>, bool, u32);

    impl Params for One {
        fn param(&self, number: usize) -> Option<Bind<'_>> {
            let bind = Bind {
                value: Some(&self.0),
                binary: self.1,
                type_oid: self.2,
            };
            (number == 1).then_some(bind)
        }
    }

    fn bigint(value: &Value, bytes: &[u8], binary: bool, oid: u32) -> Vec<Read> {
        read(value, DataType::Bigint, &One(bytes.to_vec(), binary, oid)).unwrap()
    }

    fn number(value: i64) -> Vec<Read> {
        vec![Read::Key(Key::Bigint(value))]
    }

    #[test]
    fn parameters_are_read_in_both_formats() {
        let param = Value::Param(1);
        assert_eq!(bigint(&param, b"0012", false, 0), number(12));
        assert_eq!(bigint(&param, b"-5", false, 20), number(-5));
        assert_eq!(bigint(&param, &12i64.to_be_bytes(), true, 0), number(12));
        assert_eq!(bigint(&param, &(-5i32).to_be_bytes(), true, 23), number(-5));
        assert_eq!(bigint(&param, &7i16.to_be_bytes(), true, 21), number(7));
        assert_eq!(bigint(&param, b"12.0", false, 1700), number(12));
        assert_eq!(bigint(&param, b"12.5", false, 1700), vec![Read::Nowhere]);
        assert_eq!(bigint(&param, b"12", true, 701), vec![Read::Unknown]);
        assert_eq!(
            bigint(&Value::Param(2), b"12", false, 0),
            vec![Read::Unknown]
        );
    }

    #[test]
    fn a_cast_tells_the_type_on_the_wire() {
        let as_text = Value::TypedParam(1, ParamType::Spelling);
        // Eight bytes that are a text, not a bigint.
        assert_eq!(bigint(&as_text, b"12345678", true, 0), number(12_345_678));
        let as_integer = Value::TypedParam(1, ParamType::Integer);
        assert_eq!(
            bigint(&as_integer, &12i64.to_be_bytes(), true, 0),
            number(12)
        );
    }

    #[test]
    fn a_text_that_is_cast_on_is_no_varchar_key() {
        let (integer, uuid) = (ParamType::Integer, ParamType::Uuid);
        let upper = b"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11";
        let texts: [(&[u8], u32, ParamType); 5] = [
            (b"007", 1043, integer),
            (b"007", 25, integer),
            (b"007", 0, ParamType::Spelling),
            (upper, 1043, uuid),
            (upper, 0, ParamType::Spelling),
        ];
        for (bytes, oid, cast) in texts {
            for binary in [false, true] {
                let params = One(bytes.to_vec(), binary, oid);
                let value = Value::TypedParam(1, cast);
                let read = read(&value, DataType::Varchar, &params);
                assert_eq!(read, Ok(vec![Read::Unknown]), "{oid} {cast:?}");
            }
        }
        let value = Value::TypedParam(1, integer);
        assert_eq!(bigint(&value, b"007", false, 1043), number(7));
        assert_eq!(bigint(&value, b"007", true, 25), number(7));
        let plain = Value::TypedParam(1, ParamType::Text);
        let params = One(b"007".to_vec(), false, 1043);
        let same = vec![Read::Key(Key::Varchar("007".into()))];
        assert_eq!(read(&plain, DataType::Varchar, &params), Ok(same));
    }

    #[test]
    fn a_cast_may_round_a_number_to_a_key() {
        let value = Value::TypedParam(1, ParamType::Integer);
        assert_eq!(bigint(&value, b"12.5", false, 1700), vec![Read::Unknown]);
        assert_eq!(bigint(&value, b"12.0", false, 1700), number(12));
        // An oid that is beyond int4 becomes a negative one.
        let oid = b"4294967295";
        assert_eq!(bigint(&value, oid, false, 26), vec![Read::Unknown]);
    }

    #[test]
    fn numeric_in_binary_is_read_exactly() {
        let numeric = |count: u16, weight: i16, sign: u16, digits: &[u16]| {
            let mut bytes = Vec::new();
            for word in [count, weight.cast_unsigned(), sign, 0]
                .iter()
                .chain(digits)
            {
                bytes.extend(word.to_be_bytes());
            }
            bigint(&Value::Param(1), &bytes, true, 1700)
        };
        assert_eq!(numeric(1, 0, 0, &[12]), number(12));
        assert_eq!(numeric(1, 1, 0, &[12]), number(120_000));
        assert_eq!(numeric(2, 1, 0x4000, &[1, 2]), number(-10_002));
        assert_eq!(numeric(0, 0, 0, &[]), number(0));
        assert_eq!(numeric(2, 0, 0, &[12, 5_000]), vec![Read::Nowhere]);
        assert_eq!(
            numeric(5, 4, 0, &[922, 3_372, 368, 5_477, 5_807]),
            number(i64::MAX)
        );
        assert_eq!(numeric(1, 0, 0xC000, &[0]), vec![Read::Nowhere]);
    }

    #[test]
    fn arrays_are_read_in_both_formats() {
        let array = Value::ArrayParam(1);
        let both: Vec<Read> = [number(1), number(2)].concat();
        assert_eq!(bigint(&array, b"{1,2}", false, 1016), both);
        assert_eq!(bigint(&array, b"{1,NULL}", false, 0)[1], Read::Null);
        let mut bytes = Vec::new();
        for word in [1u32, 0, 20, 2, 1] {
            bytes.extend(word.to_be_bytes());
        }
        for value in [1i64, 2] {
            bytes.extend(8u32.to_be_bytes());
            bytes.extend(value.to_be_bytes());
        }
        assert_eq!(bigint(&array, &bytes, true, 1016), both);
        assert_eq!(
            bigint(&array, &bytes[..bytes.len() - 1], true, 1016),
            vec![Read::Unknown]
        );
        assert_eq!(
            bigint(&array, b"[0:1]={1,2}", false, 1016),
            vec![Read::Unknown]
        );
    }

    #[test]
    fn a_text_that_is_no_key_is_an_error() {
        let fault = read(
            &Value::Text("abc".into()),
            DataType::Bigint,
            &One(vec![], false, 0),
        );
        assert_eq!(fault.unwrap_err().sqlstate(), "22P02");
        let beyond = Value::Text("9223372036854775808".into());
        assert_eq!(bigint(&beyond, b"", false, 0), vec![Read::Nowhere]);
    }
}
