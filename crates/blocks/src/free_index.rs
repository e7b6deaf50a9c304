//! Finds groups by their longest free run, and knows how many groups have runs of which length.
//!
//! A tree of maxima over the groups: each inner node has the longest run of the groups below it.
//! The next group with a run of at least n blocks is found in 2 log2(groups) steps, 35 for 23 TB,
//! whatever the device looks like; 8 bytes per group.
//!
//! ```text
//!                 9                    next group from 1 on with 6 blocks:
//!          5             9             up from leaf 1 until a right neighbour has 6,
//!       5     2       9     3          down to the left-most leaf that has them
//!     5   1  2  0   4   9  3   1
//! ```
//!
//! And bitmaps: which groups have a longest run of which binary order. The next group from one on
//! whose longest run is as short as possible, and long enough, is found by looking at a bit of each
//! group at most, 64 at a time; 2 bytes per group.

use crate::geometry::GROUP_BLOCKS;

/// Binary orders of runs: 1 block, 2 to 3, ... a group.
pub(crate) const ORDERS: usize = GROUP_BLOCKS.ilog2() as usize + 1;

/// The longest free run of each group.
#[derive(Clone, Debug)]
pub struct FreeIndex {
    /// Node 1 is the root, nodes `leaves..` are the groups; node n has the children 2n and 2n + 1.
    longest: Vec<u32>,
    leaves: usize,
    groups: u32,
    /// Of each order, a bit for each group.
    by_order: Vec<Vec<u64>>,
    /// Groups of each order.
    of_order: [u32; ORDERS],
}

impl FreeIndex {
    /// An index of the groups whose longest runs these are, in order.
    pub fn new(longest_of_groups: &[u32]) -> Self {
        let groups = u32::try_from(longest_of_groups.len()).expect("groups are numbered with 32 bits");
        let leaves = longest_of_groups.len().next_power_of_two();
        let mut longest = vec![0; leaves];
        longest.extend_from_slice(longest_of_groups);
        longest.resize(2 * leaves, 0);
        for node in (1..leaves).rev() {
            longest[node] = longest[2 * node].max(longest[2 * node + 1]);
        }
        let words = longest_of_groups.len().div_ceil(64);
        let by_order = vec![vec![0; words]; ORDERS];
        let mut index = Self { longest, leaves, groups, by_order, of_order: [0; ORDERS] };
        (0..).zip(longest_of_groups).for_each(|(group, longest)| index.mark(group, *longest, true));
        index
    }

    /// The longest run of all groups.
    pub fn longest(&self) -> u32 {
        self.longest[1]
    }

    /// The longest run of a group.
    pub fn longest_of(&self, group: u32) -> u32 {
        self.longest[self.leaves + group as usize]
    }

    /// A group's longest run changed.
    pub fn set(&mut self, group: u32, longest: u32) {
        assert!(group < self.groups, "the group is on the device");
        let mut node = self.leaves + group as usize;
        let before = std::mem::replace(&mut self.longest[node], longest);
        self.mark(group, before, false);
        self.mark(group, longest, true);
        while node > 1 {
            node /= 2;
            let of_children = self.longest[2 * node].max(self.longest[2 * node + 1]);
            if self.longest[node] == of_children {
                break;
            }
            self.longest[node] = of_children;
        }
    }

    /// The next group, from this one on and then from the first one on, that has a run of at least
    /// so many blocks.
    pub fn next(&self, from: u32, blocks: u32) -> Option<u32> {
        assert!(blocks > 0 && from < self.groups, "a group of the device is asked for some blocks");
        self.at_or_after(from, blocks).or_else(|| self.at_or_after(0, blocks))
    }

    /// Notes that a group has such a longest run, or has it no more.
    fn mark(&mut self, group: u32, longest: u32, has: bool) {
        let Some(order) = longest.checked_ilog2() else { return };
        let (order, bit) = (order as usize, 1 << (group % 64));
        let word = &mut self.by_order[order][group as usize / 64];
        if has {
            (*word, self.of_order[order]) = (*word | bit, self.of_order[order] + 1);
        } else {
            (*word, self.of_order[order]) = (*word & !bit, self.of_order[order] - 1);
        }
    }

    /// A group whose longest run has at least so many blocks, rounded up to a power of two, and is
    /// of the lowest order: the next such group from this one on, and then from the first one on.
    pub fn next_shortest(&self, from: u32, blocks: u32) -> Option<u32> {
        assert!(blocks > 0 && from < self.groups, "a group of the device is asked for some blocks");
        let lowest = blocks.next_power_of_two().ilog2() as usize;
        let order = (lowest..ORDERS).find(|order| self.of_order[*order] > 0)?;
        let words = &self.by_order[order];
        let (first, bit) = (from as usize / 64, from % 64);
        let at = |(word, bits): (usize, u64)| (bits != 0).then(|| (word * 64) as u32 + bits.trailing_zeros());
        let after = words.iter().copied().enumerate().skip(first + 1);
        let before = words.iter().copied().enumerate().take(first + 1);
        at((first, words[first] & (u64::MAX << bit))).or_else(|| after.chain(before).find_map(at))
    }

    fn at_or_after(&self, from: u32, blocks: u32) -> Option<u32> {
        let mut node = self.leaves + from as usize;
        // Up, until this node or one on its right has such a run.
        while self.longest[node] < blocks {
            while node % 2 == 1 {
                if node == 1 {
                    return None;
                }
                node /= 2;
            }
            node += 1;
        }
        while node < self.leaves {
            node = if self.longest[2 * node] >= blocks { 2 * node } else { 2 * node + 1 };
        }
        Some((node - self.leaves) as u32)
    }

    /// Bytes of memory.
    pub(crate) fn heap_bytes(&self) -> usize {
        let bitmaps: usize = self.by_order.iter().map(|words| words.capacity() * size_of::<u64>()).sum();
        self.longest.capacity() * size_of::<u32>() + bitmaps
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_device_of_one_group_has_an_index() {
        let mut index = FreeIndex::new(&[7]);
        assert_eq!((index.next(0, 7), index.next(0, 8), index.longest()), (Some(0), None, 7));
        index.set(0, 0);
        assert_eq!((index.next(0, 1), index.longest()), (None, 0));
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_finds(
            longest in prop::collection::vec(0u32..20, 1..70),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..20), 0..20),
            from in any::<prop::sample::Index>(),
            blocks in 1u32..22,
        ) {
            let mut longest = longest;
            let mut index = FreeIndex::new(&longest);
            for (group, changed) in changes {
                let group = group.index(longest.len());
                longest[group] = changed;
                index.set(group as u32, changed);
            }
            let from = from.index(longest.len());
            let scan = (from..longest.len()).chain(0..from).find(|group| longest[*group] >= blocks);
            prop_assert_eq!(index.next(from as u32, blocks), scan.map(|group| group as u32));
            prop_assert_eq!(Some(index.longest()), longest.iter().max().copied());
            let all = || (from..longest.len()).chain(0..from);
            let fits = |group: &usize| longest[*group] >= blocks.next_power_of_two();
            let shortest = all().filter(fits).map(|group| longest[group].ilog2()).min();
            let found = all().find(|group| fits(group) && Some(longest[*group].ilog2()) == shortest);
            prop_assert_eq!(index.next_shortest(from as u32, blocks), found.map(|group| group as u32));
        }
    }
}
