//! Freed blocks that are to be discarded before they may be used again.
//!
//! They are in progress for the allocator while they wait, so they are not given out; if free
//! blocks are short, they are released without a discard. The queue is bounded: what it has no room
//! for is released at once, and counted.
//!
//! Pure: the caller tells the allocator, and the device.

use std::ops::Range;

use rangemap::RangeSet;

/// Ranges that wait, at most: a few megabytes.
const RANGES_MAX: usize = 65_536;

/// Blocks, as they were freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiscardCounts {
    /// Waiting.
    pub waiting: u64,
    /// Discarded since the opening.
    pub discarded: u64,
    /// Released without a discard: the queue was full, blocks were short, or the device refused.
    pub skipped: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct DiscardQueue {
    waiting: RangeSet<u64>,
    blocks: u64,
    /// Where the last discard ended: the next one is after it, so that none waits for ever.
    hand: u64,
    ranges_max: usize,
    discarded: u64,
    skipped: u64,
}

impl Default for DiscardQueue {
    fn default() -> Self {
        Self::with_room(RANGES_MAX)
    }
}

impl DiscardQueue {
    fn with_room(ranges_max: usize) -> Self {
        Self { waiting: RangeSet::new(), blocks: 0, hand: 0, ranges_max, discarded: 0, skipped: 0 }
    }

    /// Adds blocks, none of which is waiting; false if there is no room: they are released.
    pub fn push(&mut self, blocks: &Range<u64>) -> bool {
        let count = blocks.end - blocks.start;
        if self.waiting.len() >= self.ranges_max {
            self.skipped += count;
            return false;
        }
        self.waiting.insert(blocks.clone());
        self.blocks += count;
        true
    }

    /// Takes blocks that follow each other, at most so many, for a discard.
    pub fn next(&mut self, blocks_max: u64) -> Option<Range<u64>> {
        let after = self.waiting.overlapping(self.hand..u64::MAX).next().cloned();
        let range = after.or_else(|| self.waiting.first().cloned())?;
        let range = range.start..range.end.min(range.start.saturating_add(blocks_max));
        self.waiting.remove(range.clone());
        self.blocks -= range.end - range.start;
        self.hand = range.end;
        Some(range)
    }

    /// What was taken is discarded, or could not be.
    pub fn ended(&mut self, blocks: u64, is_discarded: bool) {
        *if is_discarded { &mut self.discarded } else { &mut self.skipped } += blocks;
    }

    /// Its blocks in numbers.
    pub fn counts(&self) -> DiscardCounts {
        DiscardCounts { waiting: self.blocks, discarded: self.discarded, skipped: self.skipped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_discarded_together_and_none_waits_for_ever() {
        let mut queue = DiscardQueue::default();
        for blocks in [10..20, 40..50, 20..30, 100..200] {
            assert!(queue.push(&blocks));
        }
        assert_eq!(queue.next(1000), Some(10..30));
        assert!(queue.push(&(5..8)));
        assert_eq!(queue.next(1000), Some(40..50), "after the last one");
        assert_eq!(queue.next(30), Some(100..130));
        queue.ended(30, true);
        assert_eq!((queue.next(1000), queue.next(1000)), (Some(130..200), Some(5..8)));
        queue.ended(73, false);
        assert_eq!(queue.next(1), None);
        assert_eq!(queue.counts(), DiscardCounts { waiting: 0, discarded: 30, skipped: 73 });
    }

    #[test]
    fn what_has_no_room_is_released_and_counted() {
        let mut queue = DiscardQueue::with_room(2);
        assert!(queue.push(&(0..10)) && queue.push(&(20..30)));
        assert!(!queue.push(&(40..45)));
        assert_eq!(queue.counts(), DiscardCounts { waiting: 20, discarded: 0, skipped: 5 });
        assert_eq!(queue.next(u64::MAX), Some(0..10));
        assert!(queue.push(&(40..45)));
    }
}
