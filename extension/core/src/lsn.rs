//! Positions in the write-ahead log, and the tokens that clients carry.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::ids::{ShardNumber, Timeline};

/// A position in one shard's WAL, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// What there is to replay where a primary would insert its next record here: that may be
    /// behind the header of a page without anything after it, as after a change of segments. A
    /// replica gets to the beginning of that page and no further (`XLogBytePosToRecPtr` and
    /// `XLogBytePosToEndRecPtr` in PostgreSQL's `xlog.c`).
    #[must_use]
    pub fn to_replay(self) -> Self {
        /// Bytes of a page of WAL, and of the header that begins one.
        const PAGE: (u64, u64) = (8192, 24);
        /// The same of a segment: the size of the smallest one divides that of all others.
        const SEGMENT: (u64, u64) = (1 << 20, 40);
        let empty = |(size, header): (u64, u64)| (self.0 % size == header).then_some(header);
        Self(self.0 - empty(PAGE).or(empty(SEGMENT)).unwrap_or(0))
    }
}

/// A text that is no position or no token, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseLsnError {
    why: &'static str,
}

/// A position and, if it is known, the timeline that it lies on.
pub type Position = (Lsn, Option<Timeline>);

/// Positions of several shards: what a commit returns and what a read may ask for.
///
/// Empty means no floor. `bare` is a position whose shard was not named: `X/Y`.
///
/// ```
/// use pgdog_core::{ids::ShardNumber, lsn::{Lsn, Token}};
/// let token: Token = "0=0/5A2,1=2/FF@3".parse().unwrap();
/// assert_eq!(token.at(ShardNumber(0)), Some((Lsn(0x5A2), None)));
/// assert_eq!(token.to_string(), "0=0/5A2,1=2/FF@3");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Token {
    /// Positions by shard.
    pub parts: BTreeMap<ShardNumber, Position>,
    /// A position without a shard; never together with `parts`.
    pub bare: Option<Position>,
}

impl Token {
    /// True if it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.bare.is_none()
    }

    /// The floor of one shard. A bare position counts for whichever shard is asked for: callers
    /// with more than one shard use it only for a statement that is routed to exactly one.
    #[must_use]
    pub fn at(&self, shard: ShardNumber) -> Option<Position> {
        self.parts.get(&shard).copied().or(self.bare)
    }

    /// Raises one shard's floor; never lowers it on the same timeline. A later timeline wins,
    /// since its positions are the ones that still exist.
    pub fn raise(&mut self, shard: ShardNumber, position: Position) {
        let floor = self.parts.entry(shard).or_insert(position);
        let later = position.1 > floor.1 && position.1.is_some() && floor.1.is_some();
        let earlier = position.1 < floor.1 && position.1.is_some() && floor.1.is_some();
        if later || (!earlier && position.0 > floor.0) {
            *floor = (position.0, position.1.or(floor.1));
        }
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// As strict as `pg_lsn`: two groups of 1 to 8 hexadecimal digits, no sign, nothing around them.
impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let (high, low) = text.split_once('/').ok_or(ParseLsnError { why: FORM })?;
        Ok(Lsn((u64::from(half(high)?) << 32) | u64::from(half(low)?)))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = self.bare {
            return write_position(f, position);
        }
        for (nth, (shard, position)) in self.parts.iter().enumerate() {
            if nth > 0 {
                f.write_str(",")?;
            }
            write!(f, "{shard}=")?;
            write_position(f, *position)?;
        }
        Ok(())
    }
}

impl FromStr for Token {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        if text.is_empty() {
            return Ok(Token::default());
        }
        if !text.contains('=') {
            return Ok(Token {
                parts: BTreeMap::new(),
                bare: Some(position(text)?),
            });
        }
        let mut parts = BTreeMap::new();
        for part in text.split(',') {
            let (shard, rest) = part.split_once('=').ok_or(ParseLsnError { why: MIXED })?;
            if shard.is_empty() || !shard.bytes().all(|b| b.is_ascii_digit()) {
                return Err(ParseLsnError { why: SHARD });
            }
            let shard = shard.parse().map_err(|_| ParseLsnError { why: SHARD })?;
            if parts.insert(shard, position(rest)?).is_some() {
                return Err(ParseLsnError {
                    why: "a shard is named twice",
                });
            }
        }
        Ok(Token { parts, bare: None })
    }
}

impl fmt::Display for ParseLsnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)
    }
}

impl std::error::Error for ParseLsnError {}

const FORM: &str = "expected X/Y with 1 to 8 hexadecimal digits each";
const MIXED: &str = "expected SHARD=X/Y in every part";
const SHARD: &str = "a shard is a number from 0 to 65535";
const TIMELINE: &str = "a timeline is a decimal number from 1 to 4294967295";

fn half(digits: &str) -> Result<u32, ParseLsnError> {
    let fits = (1..=8).contains(&digits.len());
    if !fits || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(ParseLsnError { why: FORM });
    }
    u32::from_str_radix(digits, 16).map_err(|_| ParseLsnError { why: FORM })
}

fn position(text: &str) -> Result<Position, ParseLsnError> {
    let Some((lsn, timeline)) = text.split_once('@') else {
        return Ok((text.parse()?, None));
    };
    if timeline.is_empty() || !timeline.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseLsnError { why: TIMELINE });
    }
    match timeline.parse() {
        Ok(0) | Err(_) => Err(ParseLsnError { why: TIMELINE }),
        Ok(number) => Ok((lsn.parse()?, Some(Timeline(number)))),
    }
}

fn write_position(f: &mut fmt::Formatter<'_>, (lsn, timeline): Position) -> fmt::Result {
    match timeline {
        Some(timeline) => write!(f, "{lsn}@{timeline}"),
        None => write!(f, "{lsn}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_print_as_postgres_prints_them() {
        assert_eq!(Lsn(0x1_0000_00AB).to_string(), "1/AB");
        assert_eq!("ffffffff/FFFFFFFF".parse(), Ok(Lsn(u64::MAX)));
        assert_eq!("0/0".parse(), Ok(Lsn(0)));
    }

    #[test]
    fn an_empty_page_is_nothing_to_replay() {
        for (inserted, replayed) in [
            // Behind a segment's header, and a page's.
            (0x500_0028, 0x500_0000),
            (0x500_2018, 0x500_2000),
            // Something was written there.
            (0x500_0060, 0x500_0060),
            (0x500_2028, 0x500_2028),
            (0, 0),
        ] {
            assert_eq!(Lsn(inserted).to_replay(), Lsn(replayed), "{inserted:x}");
        }
    }

    #[test]
    fn what_pg_lsn_refuses_is_refused() {
        for text in [
            "",
            "/",
            "0/",
            "/0",
            "0",
            "0/0/0",
            " 0/0",
            "0/0 ",
            "+1/0",
            "-1/0",
            "0x1/0",
            "g/0",
            "123456789/0",
            "0/123456789",
            "1 /0",
            "０/0",
        ] {
            assert!(text.parse::<Lsn>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn malformed_tokens_are_refused() {
        for text in [
            "0=",
            "=0/1",
            "0=0/1,",
            ",0=0/1",
            "0=0/1,0/2",
            "0=0/1,0=0/2",
            "0=0/1@",
            "0/1@0",
            "0/1@x",
            "65536=0/1",
            "+1=0/1",
            "0/1,0/2",
            "0=0/1, 1=0/2",
            "0/1@4294967296",
        ] {
            assert!(text.parse::<Token>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_bare_position_counts_for_any_shard_and_nothing_is_no_floor() {
        let bare: Token = "0/10@2".parse().unwrap();
        assert_eq!(bare.at(ShardNumber(3)), Some((Lsn(16), Some(Timeline(2)))));
        let none: Token = "".parse().unwrap();
        assert!(none.is_empty());
        assert_eq!(none.at(ShardNumber(0)), None);
    }

    #[test]
    fn a_raise_never_lowers_but_follows_a_failover() {
        let mut token = Token::default();
        let shard = ShardNumber(0);
        token.raise(shard, (Lsn(100), Some(Timeline(1))));
        token.raise(shard, (Lsn(50), Some(Timeline(1))));
        token.raise(shard, (Lsn(60), None));
        assert_eq!(token.at(shard), Some((Lsn(100), Some(Timeline(1)))));
        token.raise(shard, (Lsn(80), Some(Timeline(2))));
        assert_eq!(token.at(shard), Some((Lsn(80), Some(Timeline(2)))));
        token.raise(shard, (Lsn(500), Some(Timeline(1))));
        assert_eq!(token.at(shard), Some((Lsn(80), Some(Timeline(2)))));
    }

    proptest! {
        #[test]
        fn tokens_survive_the_text_form(
            parts in prop::collection::btree_map(
                any::<u16>(),
                (any::<u64>(), prop::option::of(1u32..)),
                0..5,
            ),
        ) {
            let parts = parts.into_iter().map(|(shard, (lsn, timeline))| {
                (ShardNumber(shard), (Lsn(lsn), timeline.map(Timeline)))
            });
            let token = Token { parts: parts.collect(), bare: None };
            prop_assert_eq!(token.to_string().parse(), Ok(token));
        }

        #[test]
        fn no_text_panics(text in ".{0,30}") {
            let _ = text.parse::<Token>();
        }
    }
}
