//! How an operation continues when objects refuse its layout as too old
//! ([`FsError::LayoutChanged`]): with a newer layout each time, for a limited number of times.
//!
//! A client that fences an object changes the layout next, or dies in between. So the first renewal
//! is enough, or a few if others keep changing the layout. If an object still refuses, a broken or
//! hostile client has fenced it beyond all layouts. Then the MDT is asked for generations further
//! and further ahead, which passes every possible fence ([`FENCE_GENERATION_MAX`]) in a few steps.
//! If that does not help either, the operation fails.

use types::{Damage, FsResult, Generation, InodeNumber, limits::FENCE_GENERATION_MAX};

/// Renewals that take the layout's own next generation.
const PATIENT: u32 = 8;
/// Each of the others asks for a generation so many bits farther ahead.
const STEP_BITS: u32 = 8;
/// All renewals of one operation.
const RENEWALS_MAX: u32 = PATIENT + u64::BITS / STEP_BITS;

const _: () =
    assert!(FENCE_GENERATION_MAX < 1 << (STEP_BITS * (u64::BITS / STEP_BITS) - 1), "the last step reaches it");

/// Renewals of one operation so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Renewals(u32);

impl Renewals {
    /// The layout of this generation was refused once more: the generation that the next one must
    /// be beyond.
    pub fn next(&mut self, inode: InodeNumber, refused: Generation) -> FsResult<Generation> {
        let number = self.0;
        self.0 += 1;
        if number >= RENEWALS_MAX {
            tracing::error!(%inode, "the objects of the file refuse every layout");
            return Err(Damage::LayoutsRefused(inode).into());
        }
        let Some(step) = number.checked_sub(PATIENT) else { return Ok(refused) };
        let ahead = 1u64.checked_shl((step + 1) * STEP_BITS).unwrap_or(FENCE_GENERATION_MAX);
        Ok(refused.max(Generation(refused.0.saturating_add(ahead).min(FENCE_GENERATION_MAX))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(5);

    /// The MDT gives the generation after the one asked for.
    fn renewals_until(fence: u64) -> Option<u32> {
        let (mut renewals, mut generation) = (Renewals::default(), Generation(3));
        while generation.0 < fence {
            generation = renewals.next(FILE, generation).ok()?.next();
        }
        Some(renewals.0)
    }

    #[test]
    fn every_fence_is_passed_in_a_few_steps() {
        assert_eq!(renewals_until(4), Some(1));
        assert_eq!(renewals_until(3 + u64::from(PATIENT)), Some(PATIENT));
        assert_eq!(renewals_until(FENCE_GENERATION_MAX), Some(RENEWALS_MAX));
    }

    #[test]
    fn who_is_refused_for_ever_is_told_in_the_end() {
        assert_eq!(renewals_until(u64::MAX), None);
    }
}
