//! Which of two values comes first, exactly as PostgreSQL orders them: values in their binary form.
//! Pure.

use std::cmp::Ordering;

/// How values of a column are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Signed integers of any width, and what is stored as such.
    Signed,
    /// Unsigned integers, and bytes.
    Bytes,
    /// `real`
    Float4,
    /// `double precision`
    Float8,
    /// `numeric`
    Numeric,
    /// `interval`
    Interval,
}

impl Kind {
    /// How values of a type are compared; none when only a server can tell, which holds for texts
    /// unless they are ordered by their bytes.
    pub fn of(type_oid: u32, bytewise: bool) -> Option<Self> {
        match type_oid {
            // int8, int2, int4, money, date, time, timestamp, timestamptz
            20 | 21 | 23 | 790 | 1082 | 1083 | 1114 | 1184 => Some(Kind::Signed),
            // bool, bytea, oid, macaddr, uuid, pg_lsn
            16 | 17 | 26 | 829 | 2950 | 3220 => Some(Kind::Bytes),
            // text, varchar
            25 | 1043 if bytewise => Some(Kind::Bytes),
            700 => Some(Kind::Float4),
            701 => Some(Kind::Float8),
            1700 => Some(Kind::Numeric),
            1186 => Some(Kind::Interval),
            _ => None,
        }
    }

    /// Compares two values; none for bytes that are no value of the type.
    pub fn compare(self, one: &[u8], other: &[u8]) -> Option<Ordering> {
        match self {
            Kind::Bytes => Some(one.cmp(other)),
            Kind::Signed => Some(signed(one)?.cmp(&signed(other)?)),
            Kind::Float4 => {
                let number = |bytes: &[u8]| bytes.try_into().ok().map(f32::from_be_bytes);
                Some(floats(number(one)?.into(), number(other)?.into()))
            }
            Kind::Float8 => {
                let number = |bytes: &[u8]| bytes.try_into().ok().map(f64::from_be_bytes);
                Some(floats(number(one)?, number(other)?))
            }
            Kind::Numeric => Some(Numeric::read(one)?.cmp(&Numeric::read(other)?)),
            Kind::Interval => Some(microseconds(one)?.cmp(&microseconds(other)?)),
        }
    }
}

fn signed(bytes: &[u8]) -> Option<i64> {
    match *bytes {
        [a, b] => Some(i16::from_be_bytes([a, b]).into()),
        [a, b, c, d] => Some(i32::from_be_bytes([a, b, c, d]).into()),
        [a, b, c, d, e, f, g, h] => Some(i64::from_be_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    }
}

/// NaN equals itself and is greater than everything else; both zeros are equal.
fn floats(one: f64, other: f64) -> Ordering {
    one.partial_cmp(&other)
        .unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()))
}

/// A month has 30 days and a day 24 hours.
fn microseconds(bytes: &[u8]) -> Option<i128> {
    const DAY: i128 = 86_400_000_000;
    let (time, rest) = bytes.split_first_chunk::<8>()?;
    let (days, months) = rest.split_first_chunk::<4>()?;
    let months: &[u8; 4] = months.try_into().ok()?;
    let days = i128::from(i32::from_be_bytes(*days));
    let months = i128::from(i32::from_be_bytes(*months));
    Some(i128::from(i64::from_be_bytes(*time)) + (months * 30 + days) * DAY)
}

/// A `numeric` in base 10000.
#[derive(Debug, PartialEq, Eq)]
struct Numeric<'a> {
    rank: Rank,
    /// The power of the first digit.
    weight: i16,
    digits: &'a [[u8; 2]],
}

/// In their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    MinusInfinity,
    Negative,
    Zero,
    Positive,
    Infinity,
    NotANumber,
}

impl<'a> Numeric<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<2>() else {
            return None;
        };
        let [count, weight, sign, _scale, digits @ ..] = words else {
            return None;
        };
        if usize::from(u16::from_be_bytes(*count)) != digits.len() {
            return None;
        }
        let zeros = digits.iter().take_while(|digit| **digit == [0, 0]).count();
        let digits = &digits[zeros..];
        let rank = match (u16::from_be_bytes(*sign), digits.is_empty()) {
            (0x0000 | 0x4000, true) => Rank::Zero,
            (0x0000, false) => Rank::Positive,
            (0x4000, false) => Rank::Negative,
            (0xC000, _) => Rank::NotANumber,
            (0xD000, _) => Rank::Infinity,
            (0xF000, _) => Rank::MinusInfinity,
            _ => return None,
        };
        let weight = i16::from_be_bytes(*weight).checked_sub(i16::try_from(zeros).ok()?)?;
        Some(Self {
            rank,
            weight,
            digits,
        })
    }

    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| match self.rank {
            Rank::Positive => self.cmp_size(other),
            Rank::Negative => other.cmp_size(self),
            Rank::MinusInfinity | Rank::Zero | Rank::Infinity | Rank::NotANumber => Ordering::Equal,
        })
    }

    fn cmp_size(&self, other: &Self) -> Ordering {
        let length = self.digits.len().max(other.digits.len());
        let padded = |digits: &'a [[u8; 2]]| {
            digits
                .iter()
                .copied()
                .chain(std::iter::repeat([0, 0]))
                .take(length)
        };
        self.weight
            .cmp(&other.weight)
            .then_with(|| padded(self.digits).cmp(padded(other.digits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numeric(weight: i16, sign: u16, digits: &[u16]) -> Vec<u8> {
        let head = [digits.len() as u16, weight as u16, sign, 9];
        head.iter()
            .chain(digits)
            .flat_map(|word| word.to_be_bytes())
            .collect()
    }

    fn in_order(kind: Kind, values: &[Vec<u8>]) {
        for (at, one) in values.iter().enumerate() {
            for (there, other) in values.iter().enumerate() {
                assert_eq!(
                    kind.compare(one, other),
                    Some(at.cmp(&there)),
                    "{at} {there}"
                );
            }
        }
    }

    #[test]
    fn numerics_are_ordered_by_value_whatever_their_digits() {
        in_order(
            Kind::Numeric,
            &[
                numeric(0, 0xF000, &[]),
                numeric(1, 0x4000, &[1]),
                numeric(0, 0x4000, &[2, 5000]),
                numeric(0, 0x4000, &[2]),
                numeric(0, 0, &[]),
                numeric(-1, 0, &[1]),
                numeric(0, 0, &[2]),
                numeric(0, 0, &[2, 1]),
                numeric(0, 0, &[3]),
                numeric(1, 0, &[1]),
                numeric(0, 0xD000, &[]),
                numeric(0, 0xC000, &[]),
            ],
        );
        let (short, long) = (numeric(0, 0, &[7]), numeric(1, 0, &[0, 7, 0]));
        assert_eq!(Kind::Numeric.compare(&short, &long), Some(Ordering::Equal));
        assert_eq!(Kind::Numeric.compare(&short, &[0, 1]), None);
    }

    #[test]
    fn nan_comes_behind_infinity_and_zeros_are_equal() {
        let numbers = [f64::NEG_INFINITY, -1.5, 0.0, 2.0, f64::INFINITY, f64::NAN];
        let bytes: Vec<_> = numbers.iter().map(|n| n.to_be_bytes().to_vec()).collect();
        in_order(Kind::Float8, &bytes);
        let (plus, minus) = (0_f32.to_be_bytes(), (-0_f32).to_be_bytes());
        assert_eq!(Kind::Float4.compare(&plus, &minus), Some(Ordering::Equal));
    }

    #[test]
    fn integers_and_intervals_are_ordered_by_value() {
        let values: Vec<_> = [i64::MIN, -1, 0, 5, i64::MAX]
            .iter()
            .map(|n| n.to_be_bytes().to_vec())
            .collect();
        in_order(Kind::Signed, &values);
        let interval = |time: i64, days: i32, months: i32| {
            let mut bytes = time.to_be_bytes().to_vec();
            bytes.extend(days.to_be_bytes());
            bytes.extend(months.to_be_bytes());
            bytes
        };
        in_order(
            Kind::Interval,
            &[
                interval(0, -1, 0),
                interval(5, 0, 0),
                interval(0, 29, 0),
                interval(1, 0, 1),
            ],
        );
        let (month, days) = (interval(0, 0, 1), interval(0, 30, 0));
        assert_eq!(Kind::Interval.compare(&month, &days), Some(Ordering::Equal));
    }

    #[test]
    fn texts_are_compared_here_only_by_their_bytes() {
        assert_eq!(Kind::of(25, false), None);
        assert_eq!(Kind::of(25, true), Some(Kind::Bytes));
        assert_eq!(Kind::of(1042, true), None, "blanks at its end do not count");
        assert_eq!(Kind::Bytes.compare(b"Z", b"a"), Some(Ordering::Less));
        assert_eq!(Kind::Bytes.compare(b"a", b"ab"), Some(Ordering::Less));
    }
}
