//! Random numbers from a seed: the same seed gives the same sequence, on every host and in every version.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Entropy;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): one addition of state, so it
/// needs no lock. Not for secrets.
#[derive(Debug)]
pub struct SeededEntropy {
    state: AtomicU64,
}

/// The odd number nearest 2^64 divided by the golden ratio: SplitMix64's step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SeededEntropy {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }
}

impl Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        let state = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_published_generator() {
        let entropy = SeededEntropy::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| entropy.next_u64()).collect();
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
