//! Records that contradict each other.

use std::ops::Range;

/// The records of a device contradict each other: blocks that are freed were not used, or the like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("blocks {first} to {last} are {found}: the records of the device contradict each other")]
pub struct Inconsistent {
    /// First block.
    pub first: u64,
    /// Last block.
    pub last: u64,
    /// What they are, which they should not be.
    pub found: &'static str,
}

impl Inconsistent {
    pub(crate) fn new(blocks: &Range<u64>, found: &'static str) -> Self {
        Self { first: blocks.start, last: blocks.end.saturating_sub(1), found }
    }
}
