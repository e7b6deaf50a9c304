//! Blocks of the device in 8 bytes: a full device has 22 million runs.

use std::ops::Range;

/// Bits of the length of a [`Run`].
pub(super) const LENGTH_BITS: u32 = 24;

/// Blocks of the device that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run(u64);

impl Run {
    /// These blocks, one at least.
    pub(super) fn new(blocks: &Range<u64>) -> Self {
        let length = blocks.end - blocks.start;
        assert!(length < 1 << LENGTH_BITS && blocks.start < 1 << (64 - LENGTH_BITS), "a run fits its bits");
        Self(blocks.start << LENGTH_BITS | length)
    }

    /// The blocks.
    pub(super) fn range(self) -> Range<u64> {
        let start = self.0 >> LENGTH_BITS;
        start..start + (self.0 & ((1 << LENGTH_BITS) - 1))
    }
}
