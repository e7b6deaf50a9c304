//! Random numbers from a seed: the same seed gives the same sequence, on every host and in every
//! version.

use std::sync::atomic::{AtomicU64, Ordering};

use types::split_mix::{STEP, mix};

use crate::Entropy;

/// [`types::SplitMix64`] for several threads: one addition of state, so it needs no lock. Not for
/// secrets.
#[derive(Debug)]
pub struct SeededEntropy {
    state: AtomicU64,
}

impl SeededEntropy {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }
}

impl Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        mix(self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
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
