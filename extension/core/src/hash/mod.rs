//! PostgreSQL's hash partitioning for one key: which remainder a value has.
//!
//! Ported from `src/common/hashfn.c` (Bob Jenkins' lookup3), `hashfunc.c`, `uuid.c` and
//! `partbounds.c`; equal to `satisfies_hash_partition` of PostgreSQL 15 to 18 on little-endian
//! machines.

use crate::ids::ShardNumber;

/// `HASH_PARTITION_SEED`.
const SEED: u64 = 0x7A5B_2236_7996_DCFD;

/// `hashint8extended`: for values that fit into 4 bytes the same as `hashint4extended`.
#[must_use]
pub fn bigint(value: i64) -> u64 {
    // The halves of the two's complement are what is hashed; truncation is meant.
    let low = value as u32;
    let high = (value >> 32) as u32;
    let folded = low ^ if value >= 0 { high } else { !high };
    let mut state = State::new(4);
    state.a = state.a.wrapping_add(folded);
    state.finish()
}

/// `uuid_hash_extended`.
#[must_use]
pub fn uuid(value: &[u8; 16]) -> u64 {
    bytes(value)
}

/// `hashtextextended` with a deterministic collation; `varchar` hashes the same way.
#[must_use]
pub fn text(value: &str) -> u64 {
    bytes(value.as_bytes())
}

/// `compute_partition_hash_value` of one key column: `hash_combine64(0, hash)`.
#[must_use]
pub fn combined(hash: u64) -> u64 {
    hash.wrapping_add(0x49A0_F4DD_15E5_A8E3)
}

/// The remainder for a modulus of `shards`.
///
/// # Panics
/// If there are no shards.
#[must_use]
pub fn shard_of(combined: u64, shards: u16) -> ShardNumber {
    assert!(shards > 0, "a database has at least one shard");
    let remainder = combined % u64::from(shards);
    ShardNumber(u16::try_from(remainder).expect("a remainder is less than its modulus"))
}

/// `hash_bytes_extended` with the partition seed.
fn bytes(value: &[u8]) -> u64 {
    let mut state = State::new(value.len());
    let mut words = value.chunks_exact(12);
    for chunk in &mut words {
        state.add(chunk);
        state.mix();
    }
    let mut tail = [0; 12];
    let rest = words.remainder();
    // The lowest byte of the third word stays free: the length is in it already.
    let (front, back) = rest.split_at(rest.len().min(8));
    tail[..front.len()].copy_from_slice(front);
    tail[9..9 + back.len()].copy_from_slice(back);
    state.add(&tail);
    state.finish()
}

/// Three words that are stirred.
struct State {
    a: u32,
    b: u32,
    c: u32,
}

impl State {
    fn new(length: usize) -> State {
        // PostgreSQL adds an int: lengths wrap at 32 bits.
        let start = 0x9E37_79B9u32
            .wrapping_add(length as u32)
            .wrapping_add(3_923_095);
        let mut state = State {
            a: start,
            b: start,
            c: start,
        };
        state.a = state.a.wrapping_add((SEED >> 32) as u32);
        state.b = state.b.wrapping_add(SEED as u32);
        state.mix();
        state
    }

    fn add(&mut self, twelve: &[u8]) {
        let word = |at: usize| {
            u32::from_le_bytes([twelve[at], twelve[at + 1], twelve[at + 2], twelve[at + 3]])
        };
        self.a = self.a.wrapping_add(word(0));
        self.b = self.b.wrapping_add(word(4));
        self.c = self.c.wrapping_add(word(8));
    }

    fn mix(&mut self) {
        let State {
            mut a,
            mut b,
            mut c,
        } = *self;
        for (first, second, third) in [(4, 6, 8), (16, 19, 4)] {
            a = a.wrapping_sub(c) ^ c.rotate_left(first);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(second);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(third);
            b = b.wrapping_add(a);
        }
        *self = State { a, b, c };
    }

    fn finish(self) -> u64 {
        let State {
            mut a,
            mut b,
            mut c,
        } = self;
        c = (c ^ b).wrapping_sub(b.rotate_left(14));
        a = (a ^ c).wrapping_sub(c.rotate_left(11));
        b = (b ^ a).wrapping_sub(a.rotate_left(25));
        c = (c ^ b).wrapping_sub(b.rotate_left(16));
        a = (a ^ c).wrapping_sub(c.rotate_left(4));
        b = (b ^ a).wrapping_sub(a.rotate_left(14));
        c = (c ^ b).wrapping_sub(b.rotate_left(24));
        (u64::from(b) << 32) | u64::from(c)
    }
}

#[cfg(test)]
mod tests {
    use crate::ids::ShardNumber;
    use crate::placement::{DataType, Key};

    /// Columns: type, key, remainders for modulus 7 and 1000 by `satisfies_hash_partition`, and the
    /// extended hash function with the partition seed. Printed by PostgreSQL 15 over partitioned
    /// tables with one key column of that type: extreme numbers, random ones, and texts of every
    /// length around the 12-byte blocks of the hash.
    const GOLDEN: &str = include_str!("golden.tsv");

    #[test]
    fn keys_hash_as_postgres_hashes_them() {
        let mut seen = 0;
        for line in GOLDEN.lines() {
            let [data_type, text, of_7, of_1000, hash] = line
                .split('\t')
                .collect::<Vec<_>>()
                .try_into()
                .expect("five columns");
            let data_type: DataType = data_type.parse().unwrap();
            let key = Key::parse(data_type, text).unwrap();
            let extended = super::combined(hash.parse::<i64>().unwrap().cast_unsigned());
            assert_eq!(key.hash(), extended, "{line}");
            assert_eq!(
                super::shard_of(key.hash(), 7),
                ShardNumber(of_7.parse().unwrap())
            );
            assert_eq!(
                super::shard_of(key.hash(), 1000),
                ShardNumber(of_1000.parse().unwrap())
            );
            seen += 1;
        }
        assert!(seen >= 100, "{seen} rows");
    }

    #[test]
    fn one_shard_holds_everything() {
        assert_eq!(super::shard_of(u64::MAX, 1), ShardNumber(0));
    }
}
