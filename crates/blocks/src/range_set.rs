//! A set of blocks as disjoint ranges that do not touch each other.

use std::{collections::BTreeMap, ops::Range};

/// Blocks, each at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// End by start.
    ranges: BTreeMap<u64, u64>,
    blocks: u64,
}

impl RangeSet {
    /// How many blocks it has.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether it has all of these.
    pub(crate) fn contains(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.range(..=range.start).next_back();
        range.is_empty() || before.is_some_and(|(_, end)| *end >= range.end)
    }

    /// Whether it has any of these.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.within(range).next().is_some()
    }

    /// Its ranges in `range`, cut to it, in order.
    pub(crate) fn within<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'a> {
        let (first, end) = (range.start, range.end.max(range.start));
        let reaching = self.ranges.range(..first).next_back().filter(|(_, end)| **end > first);
        let inside = self.ranges.range(first..end);
        let cut = move |(start, stop): (&u64, &u64)| (*start).max(first)..(*stop).min(end);
        reaching.into_iter().chain(inside).map(cut).filter(|part| !part.is_empty())
    }

    /// Adds blocks, none of which it has.
    pub(crate) fn insert(&mut self, range: &Range<u64>) {
        assert!(!self.overlaps(range), "the blocks are not in the set");
        if range.is_empty() {
            return;
        }
        self.blocks += range.end - range.start;
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &touches)) = self.ranges.range(..start).next_back()
            && touches == start
        {
            start = before;
        }
        if let Some(after) = self.ranges.remove(&end) {
            end = after;
        }
        self.ranges.insert(start, end);
    }

    /// Takes out blocks, all of which it has.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        assert!(self.contains(range), "the blocks are in the set");
        if range.is_empty() {
            return;
        }
        self.blocks -= range.end - range.start;
        let (&start, &end) = self.ranges.range(..=range.start).next_back().expect("the set contains the range");
        self.ranges.remove(&start);
        if start < range.start {
            self.ranges.insert(start, range.start);
        }
        if range.end < end {
            self.ranges.insert(range.end, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_become_one_range() {
        let mut set = RangeSet::default();
        for range in [10..20, 30..40, 20..30] {
            set.insert(&range);
        }
        assert!(set.within(&(0..100)).eq(std::iter::once(10..40)));
        set.remove(&(15..18));
        assert_eq!(set.within(&(12..30)).collect::<Vec<_>>(), [12..15, 18..30]);
        assert_eq!(set.within(&(15..18)).count(), 0);
        assert_eq!(set.within(&(18..18)).count(), 0);
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_blocks(steps in prop::collection::vec((0u64..60, 0u64..12), 0..60)) {
            let (mut set, mut naive) = (RangeSet::default(), BTreeSet::new());
            for (start, blocks) in steps {
                let range = start..start + blocks;
                prop_assert_eq!(set.contains(&range), range.clone().all(|block| naive.contains(&block)));
                let overlaps = range.clone().any(|block| naive.contains(&block));
                prop_assert_eq!(set.overlaps(&range), overlaps);
                if set.contains(&range) {
                    set.remove(&range);
                    naive.retain(|block| !range.contains(block));
                } else if !overlaps {
                    set.insert(&range);
                    naive.extend(range);
                }
                prop_assert_eq!(set.blocks(), naive.len() as u64);
                prop_assert!(set.within(&(3..50)).flatten().eq(naive.range(3..50).copied()));
            }
        }
    }
}
