//! Random numbers from the system, or from a seed.

/// The seam for random numbers.
pub trait Entropy: Send + Sync {
    /// 64 uniformly distributed bits.
    fn next_u64(&self) -> u64;

    /// A number in `0..bound`, nearly uniform. `bound` must not be 0.
    fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random member");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
