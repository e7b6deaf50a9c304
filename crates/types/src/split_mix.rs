//! Pseudo-random numbers from a seed: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
//! number generators", 2014).
//!
//! The same seed gives the same sequence, on every host and in every version. Downside: not for
//! secrets; the next number can be computed from one number.

/// The odd number nearest 2^64 divided by the golden ratio: from one state to the next.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function: a bijection that spreads every bit.
pub const fn mix(value: u64) -> u64 {
    let mixed = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A sequence: its state, which begins as the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_published_generator() {
        let mut sequence = SplitMix64(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| sequence.next_u64()).collect();
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
