//! Sharding keys: every spelling that PostgreSQL takes for one value is one key.

use std::fmt;

use super::DataType;
use crate::fault::Fault;
use crate::hash;

/// The value of a sharding key. `Display` is its canonical text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `bigint`; `0012` is `12`.
    Bigint(i64),
    /// `varchar`, byte for byte. Ordered by bytes, as collation "C" does.
    Varchar(String),
    /// `uuid`; braces, dashes and case don't matter.
    Uuid([u8; 16]),
}

impl Key {
    /// Reads the text form as the type's input function does.
    ///
    /// # Errors
    /// 22P02 for a text that is no such value, 22003 for a number that does not fit.
    pub fn parse(data_type: DataType, text: &str) -> Result<Key, Fault> {
        match data_type {
            DataType::Bigint => bigint(text).map(Key::Bigint),
            DataType::Varchar => Ok(Key::Varchar(text.to_owned())),
            DataType::Uuid => uuid(text).map(Key::Uuid),
        }
    }

    /// Reads a bind parameter in binary format: 2, 4 or 8 bytes for `bigint`, 16 for `uuid`.
    ///
    /// # Errors
    /// 22P02 for another length, or bytes that are no UTF-8.
    pub fn from_binary(data_type: DataType, bytes: &[u8]) -> Result<Key, Fault> {
        let key = match data_type {
            DataType::Bigint => match *bytes {
                [a, b] => Some(Key::Bigint(i16::from_be_bytes([a, b]).into())),
                [a, b, c, d] => Some(Key::Bigint(i32::from_be_bytes([a, b, c, d]).into())),
                _ => bytes
                    .try_into()
                    .ok()
                    .map(i64::from_be_bytes)
                    .map(Key::Bigint),
            },
            DataType::Varchar => std::str::from_utf8(bytes)
                .ok()
                .map(|text| Key::Varchar(text.to_owned())),
            DataType::Uuid => bytes.try_into().ok().map(Key::Uuid),
        };
        key.ok_or_else(|| Fault::KeyTypeMismatch {
            data_type: data_type.name(),
            value: format!("{} binary bytes", bytes.len()),
            out_of_range: false,
        })
    }

    /// The type of this key.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        match self {
            Key::Bigint(_) => DataType::Bigint,
            Key::Varchar(_) => DataType::Varchar,
            Key::Uuid(_) => DataType::Uuid,
        }
    }

    /// PostgreSQL's row hash for hash partitioning by this key alone.
    #[must_use]
    pub fn hash(&self) -> u64 {
        hash::combined(match self {
            Key::Bigint(value) => hash::bigint(*value),
            Key::Varchar(text) => hash::text(text),
            Key::Uuid(bytes) => hash::uuid(bytes),
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Bigint(value) => value.fmt(f),
            Key::Varchar(text) => f.write_str(text),
            Key::Uuid(bytes) => {
                for (nth, byte) in bytes.iter().enumerate() {
                    if matches!(nth, 4 | 6 | 8 | 10) {
                        f.write_str("-")?;
                    }
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

/// `int8in`: white space around, a sign, digits; since PostgreSQL 16 also `0x1F`, `0o17`, `0b11`
/// and `1_000`. An older server refuses those itself, so to take them is never wrong.
fn bigint(text: &str) -> Result<i64, Fault> {
    let mismatch = |out_of_range| Fault::KeyTypeMismatch {
        data_type: DataType::Bigint.name(),
        value: text.to_owned(),
        out_of_range,
    };
    let trimmed = text.trim_matches(is_c_space);
    let (negative, digits) = match trimmed.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let prefix = digits.get(..2).unwrap_or_default();
    let (radix, digits) = match prefix {
        "0x" | "0X" => (16, &digits[2..]),
        "0o" | "0O" => (8, &digits[2..]),
        "0b" | "0B" => (2, &digits[2..]),
        _ => (10, digits),
    };
    let mut value: i128 = 0;
    let mut last = if radix == 10 { '_' } else { '0' };
    for character in digits.chars() {
        if character != '_' {
            let digit = character.to_digit(radix).ok_or_else(|| mismatch(false))?;
            // Saturates far beyond any bigint, so that a long text is still judged as a whole.
            value = value
                .saturating_mul(radix.into())
                .saturating_add(digit.into());
        } else if last == '_' {
            return Err(mismatch(false));
        }
        last = character;
    }
    if last == '_' || digits.is_empty() {
        return Err(mismatch(false));
    }
    let value = if negative {
        value.saturating_neg()
    } else {
        value
    };
    i64::try_from(value).map_err(|_| mismatch(true))
}

/// `isspace` of the C locale.
fn is_c_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// `uuid_in`: 32 hexadecimal digits, a dash allowed after every fourth, braces around the whole.
fn uuid(text: &str) -> Result<[u8; 16], Fault> {
    let mismatch = || Fault::KeyTypeMismatch {
        data_type: DataType::Uuid.name(),
        value: text.to_owned(),
        out_of_range: false,
    };
    let mut rest = text.as_bytes();
    if let Some(inner) = rest.strip_prefix(b"{") {
        rest = inner.strip_suffix(b"}").ok_or_else(mismatch)?;
    }
    let mut bytes = [0; 16];
    for (nth, byte) in bytes.iter_mut().enumerate() {
        let [high, low, tail @ ..] = rest else {
            return Err(mismatch());
        };
        let digit = |d: u8| char::from(d).to_digit(16).ok_or_else(mismatch);
        *byte = u8::try_from(digit(*high)? * 16 + digit(*low)?)
            .expect("two hexadecimal digits fit into a byte");
        let dash_may_follow = nth % 2 == 1 && nth < 15;
        rest = if dash_may_follow {
            tail.strip_prefix(b"-").unwrap_or(tail)
        } else {
            tail
        };
    }
    if rest.is_empty() {
        Ok(bytes)
    } else {
        Err(mismatch())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(data_type: DataType, text: &str) -> Result<String, String> {
        Key::parse(data_type, text)
            .map(|key| key.to_string())
            .map_err(|fault| fault.sqlstate().to_owned())
    }

    #[test]
    fn a_bigint_has_one_key_for_all_its_spellings() {
        for text in [
            "12",
            "0012",
            "+12",
            " 12",
            "12\t\n",
            "\x0b12\r\x0c",
            "0xC",
            "0b1100",
            "1_2",
        ] {
            assert_eq!(parse(DataType::Bigint, text), Ok("12".into()), "{text:?}");
        }
        assert_eq!(parse(DataType::Bigint, "-0"), Ok("0".into()));
        assert_eq!(
            parse(DataType::Bigint, "-9223372036854775808"),
            Ok(i64::MIN.to_string())
        );
    }

    #[test]
    fn what_int8in_refuses_is_refused() {
        for text in [
            "", " ", "+", "-", "--1", "+-1", "1 2", "1.0", "1e3", "a", "١", "\u{a0}1", "0x", "0b2",
            "1_", "_1", "1__2", "1,000", "- 1",
        ] {
            assert_eq!(
                parse(DataType::Bigint, text),
                Err("22P02".into()),
                "{text:?}"
            );
        }
        for text in [
            "9223372036854775808",
            "-9223372036854775809",
            &"9".repeat(60),
        ] {
            assert_eq!(
                parse(DataType::Bigint, text),
                Err("22003".into()),
                "{text:?}"
            );
        }
        assert_eq!(
            parse(DataType::Bigint, &format!("{}x", "9".repeat(60))),
            Err("22P02".into())
        );
    }

    #[test]
    fn a_uuid_has_one_key_for_all_its_spellings() {
        let canonical = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        for text in [
            canonical,
            "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
            "a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
            "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}",
        ] {
            assert_eq!(
                parse(DataType::Uuid, text),
                Ok(canonical.into()),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_uuid_in_refuses_is_refused() {
        for text in [
            "",
            "{}",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a111",
            "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
            " a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "g0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "a0-eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "a0eebc99--9c0b-4ef8-bb6d-6bb9bd380a11",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11-",
        ] {
            assert_eq!(parse(DataType::Uuid, text), Err("22P02".into()), "{text:?}");
        }
    }

    #[test]
    fn binary_parameters_give_the_same_keys() {
        let binary = |data_type, bytes: &[u8]| Key::from_binary(data_type, bytes);
        assert_eq!(
            binary(DataType::Bigint, &7i64.to_be_bytes()),
            Ok(Key::Bigint(7))
        );
        assert_eq!(
            binary(DataType::Bigint, &(-7i32).to_be_bytes()),
            Ok(Key::Bigint(-7))
        );
        assert_eq!(
            binary(DataType::Bigint, &7i16.to_be_bytes()),
            Ok(Key::Bigint(7))
        );
        assert_eq!(
            binary(DataType::Varchar, b" x"),
            Ok(Key::Varchar(" x".into()))
        );
        assert_eq!(binary(DataType::Uuid, &[9; 16]), Ok(Key::Uuid([9; 16])));
        assert!(binary(DataType::Bigint, &[1; 3]).is_err());
        assert!(binary(DataType::Uuid, &[1; 15]).is_err());
        assert!(binary(DataType::Varchar, &[0xFF]).is_err());
    }

    proptest! {
        #[test]
        fn canonical_text_is_read_back(value: i64, bytes: [u8; 16]) {
            for key in [Key::Bigint(value), Key::Uuid(bytes)] {
                prop_assert_eq!(Key::parse(key.data_type(), &key.to_string()), Ok(key));
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = Key::parse(DataType::Bigint, &text);
            let _ = Key::parse(DataType::Uuid, &text);
        }
    }
}
