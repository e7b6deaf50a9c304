//! The free blocks of one group, as runs: ranges of free blocks that do not touch each other.
//!
//! Runs instead of a bitmap, because most groups have few: a group of a device with 23 TB whose
//! files lie in pieces of 1 MiB has 64 runs at most, 256 bytes instead of 4096. Downside: in the
//! worst case, every other block free, it takes 64 KiB, and each change moves half of that.
//!
//! On disk a group is a bitmap, in pieces of 64 bytes: [`FreeRuns::used_piece`].

use std::{cmp::Ordering, ops::Range};

use crate::{geometry::GROUP_BLOCKS, inconsistent::Inconsistent};

/// Bytes of a group's bitmap: a bit per block, the lowest bit of a byte first; set: used.
pub const BITMAP_BYTES: usize = GROUP_BLOCKS as usize / 8;

/// Runs of a group, at most: every other block is free.
pub const GROUP_RUNS_MAX: u32 = GROUP_BLOCKS / 2;

/// What is known of a group without its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Free blocks.
    pub free: u32,
    /// Blocks of the longest run.
    pub longest: u32,
    /// Runs.
    pub runs: u32,
}

impl Summary {
    /// Whether a group of so many blocks can have it.
    pub fn is_possible(self, blocks: u32) -> bool {
        let Self { free, longest, runs } = self;
        // Between two runs is a block that is not free, and no run is longer than the longest.
        let gaps = u64::from(runs.saturating_sub(1));
        u64::from(free) + gaps <= u64::from(blocks)
            && u64::from(longest) + gaps <= u64::from(free)
            && u64::from(free) <= u64::from(runs) * u64::from(longest)
            && (free == 0) == (runs == 0)
    }
}

/// First and last block, both inclusive so that they fit 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u16,
    last: u16,
}

impl Run {
    fn new(blocks: &Range<u32>) -> Self {
        debug_assert!(blocks.start < blocks.end && blocks.end <= GROUP_BLOCKS, "a run has blocks of the group");
        Self { first: blocks.start as u16, last: (blocks.end - 1) as u16 }
    }

    fn range(self) -> Range<u32> {
        u32::from(self.first)..u32::from(self.last) + 1
    }

    fn blocks(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }
}

/// Free blocks of a group. Blocks are numbered within the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeRuns {
    /// In order; a block that is not free is between two of them.
    runs: Vec<Run>,
    free: u32,
    longest: u32,
    /// How many runs are as long as the longest: while one is left, none is looked for.
    longest_runs: u32,
}

impl FreeRuns {
    /// A group of so many blocks, all of them free.
    pub fn all(blocks: u32) -> Self {
        Self::from_ranges(std::iter::once(0..blocks))
    }

    /// Ranges in order, which may touch each other.
    pub(crate) fn from_ranges(ranges: impl Iterator<Item = Range<u32>>) -> Self {
        let mut made = Self::default();
        for range in ranges.filter(|range| !range.is_empty()) {
            assert!(range.end <= GROUP_BLOCKS, "blocks are in the group");
            made.free += range.end - range.start;
            match made.runs.last_mut() {
                Some(last) if u32::from(last.last) + 1 == range.start => last.last = (range.end - 1) as u16,
                Some(last) => {
                    assert!(u32::from(last.last) < range.start, "ranges are in order");
                    made.runs.push(Run::new(&range));
                }
                None => made.runs.push(Run::new(&range)),
            }
        }
        made.find_longest();
        made
    }

    /// The runs of a bitmap, for a group of so many blocks. Blocks after the end of the group count
    /// as used, whatever their bits say.
    pub fn from_bitmap(bitmap: &[u8; BITMAP_BYTES], blocks: u32) -> Self {
        assert!(blocks <= GROUP_BLOCKS, "a group has no more blocks");
        let (words, _) = bitmap.as_chunks::<8>();
        let free_of_word = |(word, bits): (u32, &[u8; 8])| free_ranges(!u64::from_le_bytes(*bits), word * 64);
        let ranges = (0..).zip(words).flat_map(free_of_word);
        Self::from_ranges(ranges.map(|range| range.start.min(blocks)..range.end.min(blocks)))
    }

    /// 64 bytes of the bitmap: the piece with this number, 512 blocks. Blocks after the end of the
    /// group are shown as used.
    pub fn used_piece(&self, piece: u32) -> [u8; 64] {
        const PIECE_BLOCKS: u32 = 512;
        let blocks = piece * PIECE_BLOCKS..(piece + 1) * PIECE_BLOCKS;
        assert!(blocks.end <= GROUP_BLOCKS, "the piece is in the group");
        let mut words = [u64::MAX; 8];
        for run in self.within(&blocks) {
            let (mut next, end) = (run.start - blocks.start, run.end - blocks.start);
            while next < end {
                let stop = end.min((next / 64 + 1) * 64);
                let free = (u64::MAX >> (64 - (stop - next))) << (next % 64);
                words[next as usize / 64] &= !free;
                next = stop;
            }
        }
        let mut bytes = [0; 64];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// What is kept of it when it is not loaded.
    pub fn summary(&self) -> Summary {
        Summary { free: self.free, longest: self.longest, runs: self.runs.len() as u32 }
    }

    /// Its runs, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u32>> + ExactSizeIterator {
        self.runs.iter().map(|run| run.range())
    }

    /// The run that has a block.
    pub fn run_at(&self, block: u32) -> Option<Range<u32>> {
        let next = self.runs.partition_point(|run| u32::from(run.last) < block);
        self.runs.get(next).map(|run| run.range()).filter(|run| run.contains(&block))
    }

    /// Runs that end after a block, in order.
    pub fn runs_from(&self, block: u32) -> impl Iterator<Item = Range<u32>> {
        let next = self.runs.partition_point(|run| u32::from(run.last) < block);
        self.runs[next..].iter().map(|run| run.range())
    }

    /// Free parts of these blocks, in order.
    pub fn within(&self, blocks: &Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let (start, end) = (blocks.start, blocks.end);
        let inside = self.runs_from(start).take_while(move |run| run.start < end);
        inside.map(move |run| run.start.max(start)..run.end.min(end))
    }

    /// Takes blocks, all of which are free.
    pub fn take(&mut self, blocks: &Range<u32>) -> Result<(), Inconsistent> {
        if blocks.is_empty() {
            return Ok(());
        }
        let at = self.runs.partition_point(|run| u32::from(run.last) < blocks.start);
        let run = self.runs.get(at).copied().filter(|run| {
            let range = run.range();
            range.start <= blocks.start && blocks.end <= range.end
        });
        let Some(run) = run else {
            return Err(Inconsistent::new(&(u64::from(blocks.start)..u64::from(blocks.end)), "not free"));
        };
        let (before, after) = (u32::from(run.first)..blocks.start, blocks.end..u32::from(run.last) + 1);
        match (before.is_empty(), after.is_empty()) {
            (true, true) => drop(self.runs.remove(at)),
            (false, true) => self.runs[at] = Run::new(&before),
            (true, false) => self.runs[at] = Run::new(&after),
            (false, false) => {
                self.runs[at] = Run::new(&before);
                self.runs.insert(at + 1, Run::new(&after));
            }
        }
        self.free -= blocks.end - blocks.start;
        if run.blocks() == self.longest {
            // What is left of it is shorter.
            self.longest_runs -= 1;
            if self.longest_runs == 0 {
                self.find_longest();
            }
        }
        Ok(())
    }

    /// Gives blocks back, none of which is free.
    pub fn give(&mut self, blocks: &Range<u32>) -> Result<(), Inconsistent> {
        if blocks.is_empty() {
            return Ok(());
        }
        let next = self.runs.partition_point(|run| u32::from(run.last) < blocks.start);
        if self.runs.get(next).is_some_and(|run| u32::from(run.first) < blocks.end) {
            return Err(Inconsistent::new(&(u64::from(blocks.start)..u64::from(blocks.end)), "free already"));
        }
        self.free += blocks.end - blocks.start;
        let touches_before = next > 0 && u32::from(self.runs[next - 1].last) + 1 == blocks.start;
        let touches_after = self.runs.get(next).is_some_and(|run| u32::from(run.first) == blocks.end);
        let grown = match (touches_before, touches_after) {
            (true, true) => {
                self.runs[next - 1].last = self.runs.remove(next).last;
                self.runs[next - 1]
            }
            (true, false) => {
                self.runs[next - 1].last = (blocks.end - 1) as u16;
                self.runs[next - 1]
            }
            (false, true) => {
                self.runs[next].first = blocks.start as u16;
                self.runs[next]
            }
            (false, false) => {
                self.runs.insert(next, Run::new(blocks));
                self.runs[next]
            }
        };
        // What became one run was shorter.
        match grown.blocks().cmp(&self.longest) {
            Ordering::Greater => (self.longest, self.longest_runs) = (grown.blocks(), 1),
            Ordering::Equal => self.longest_runs += 1,
            Ordering::Less => {}
        }
        Ok(())
    }

    /// Bytes of memory it takes beside its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }

    fn find_longest(&mut self) {
        self.longest = self.runs.iter().map(|run| run.blocks()).max().unwrap_or(0);
        self.longest_runs = self.runs.iter().filter(|run| run.blocks() == self.longest).count() as u32;
    }
}

/// Runs of set bits of a word whose first bit is for block `first`.
fn free_ranges(mut free: u64, first: u32) -> impl Iterator<Item = Range<u32>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        if free == 0 {
            return None;
        }
        let skipped = free.trailing_zeros();
        let length = (free >> skipped).trailing_ones();
        let start = next + skipped;
        free = free.checked_shr(skipped + length).unwrap_or(0);
        next = start + length;
        Some(first + start..first + next)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bitmap_of(runs: &FreeRuns) -> [u8; BITMAP_BYTES] {
        let pieces: Vec<u8> = (0..64).flat_map(|piece| runs.used_piece(piece)).collect();
        pieces.try_into().unwrap()
    }

    #[test]
    fn a_bitmap_has_a_bit_for_each_used_block() {
        let mut runs = FreeRuns::all(GROUP_BLOCKS);
        runs.take(&(9..11)).unwrap();
        let bitmap = bitmap_of(&runs);
        assert_eq!((bitmap[0], bitmap[1], bitmap[2]), (0, 0b110, 0));
        assert_eq!(runs.summary(), Summary { free: 32_766, longest: 32_757, runs: 2 });
        assert_eq!(FreeRuns::from_bitmap(&[0; BITMAP_BYTES], 1000), FreeRuns::all(1000));
        assert_eq!(FreeRuns::from_bitmap(&[0xff; BITMAP_BYTES], GROUP_BLOCKS), FreeRuns::default());
        assert_eq!(bitmap_of(&FreeRuns::all(1000))[124..127], [0, 0xff, 0xff]);
    }

    #[test]
    fn what_contradicts_is_an_error_and_changes_nothing() {
        let mut runs = FreeRuns::all(100);
        runs.take(&(10..20)).unwrap();
        let before = runs.clone();
        for wrong in [5..15, 10..12, 19..21, 0..100, 99..101] {
            assert!(runs.take(&wrong).is_err(), "{wrong:?}");
        }
        for wrong in [5..15, 0..5, 19..21, 9..20, 30..31] {
            assert!(runs.give(&wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(runs, before);
    }

    proptest! {
        #[test]
        fn behaves_as_a_bitmap(steps in prop::collection::vec((0u32..2000, 1u32..300), 0..80)) {
            let mut runs = FreeRuns::all(1900);
            let mut naive = vec![true; 1900];
            for (start, blocks) in steps {
                let range = start.min(1899)..(start + blocks).min(1900);
                let within = range.start as usize..range.end as usize;
                if naive[within.clone()].iter().all(|free| *free) {
                    runs.take(&range).unwrap();
                    naive[within].fill(false);
                } else if naive[within.clone()].iter().all(|free| !*free) {
                    runs.give(&range).unwrap();
                    naive[within].fill(true);
                }
                let found: Vec<u32> = runs.iter().flatten().collect();
                let wanted: Vec<u32> = (0..1900).filter(|block| naive[*block as usize]).collect();
                prop_assert_eq!(&found, &wanted);
                let longest = naive.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).max();
                let count = naive.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
                let summary = runs.summary();
                prop_assert_eq!(summary.free as usize, wanted.len());
                prop_assert_eq!(summary.longest as usize, longest.unwrap_or(0));
                prop_assert_eq!(summary.runs as usize, count);
                prop_assert_eq!(FreeRuns::from_bitmap(&bitmap_of(&runs), 1900), runs.clone());
                for block in [0, 7, 500, 1899] {
                    prop_assert_eq!(runs.run_at(block).is_some(), naive[block as usize]);
                }
            }
        }
    }
}
