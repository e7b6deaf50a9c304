//! Random numbers from a seed: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64.
//! Streams split off a parent stay the same however much other streams draw, so adding a fault does
//! not change the workload.

use parking_lot::Mutex;
use rt::Entropy;
use types::SplitMix64;

/// A stream of random numbers that is a pure function of its seed.
pub struct Random {
    state: Mutex<[u64; 4]>,
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64(seed);
        let state = std::array::from_fn(|_| seeds.next_u64());
        Self { state: Mutex::new(state) }
    }

    /// A stream of its own for `purpose` under `seed`. A purpose keeps its name when code is
    /// renamed: seeds mean what they meant.
    pub fn for_purpose(seed: u64, purpose: &str) -> Self {
        let mixed = purpose.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self::new(SplitMix64(mixed).next_u64())
    }

    /// True with this probability, given in parts per million.
    pub fn happens(&self, parts_per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// A number in `range`.
    pub fn within(&self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// One of the items.
    pub fn pick<'a, T>(&self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

impl Entropy for Random {
    fn next_u64(&self) -> u64 {
        let mut state = self.state.lock();
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let draw = |random: &Random| (0..8).map(|_| random.next_u64()).collect::<Vec<_>>();
        assert_eq!(draw(&Random::new(7)), draw(&Random::new(7)));
        assert_ne!(draw(&Random::new(7)), draw(&Random::new(8)));
        assert_ne!(draw(&Random::for_purpose(7, "network")), draw(&Random::for_purpose(7, "workload")));
    }

    #[test]
    fn ranges_are_kept() {
        let random = Random::new(1);
        assert!((0..1000).all(|_| (5..9).contains(&random.within(5..9))));
        assert!((0..1000).all(|_| !random.happens(0) && random.happens(1_000_000)));
    }
}
