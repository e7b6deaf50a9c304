//! Free space by the length of its runs, in the classes of `e2freefrag`, which study E4 used.

use types::limits::BLOCK_BYTES;

/// Classes: 4K-8K, 8K-16K, ... 1G-2G, and what is longer.
const CLASSES: usize = 20;

/// Of the blocks of a group.
const GROUP_LOGARITHM: f64 = crate::GROUP_BLOCKS.ilog2() as f64;

/// Runs of free blocks by length. Runs that touch each other across the end of a group are one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    runs: [u64; CLASSES],
    blocks: [u64; CLASSES],
    longest: u64,
    /// Sum over all blocks of the binary logarithms of their runs' lengths, at most that of a
    /// group.
    logarithms: f64,
    /// The run that may go on: its end, and its blocks.
    open: (u64, u64),
}

impl Histogram {
    /// Adds a run: the next one in the order of the device.
    pub fn add(&mut self, start: u64, blocks: u32) {
        assert!(start >= self.open.0, "runs are added in order");
        if self.open.1 > 0 && self.open.0 == start {
            self.open.1 += u64::from(blocks);
        } else {
            self.close();
            self.open.1 = u64::from(blocks);
        }
        self.open.0 = start + u64::from(blocks);
    }

    /// There are no more runs.
    pub fn finish(mut self) -> Self {
        self.close();
        self
    }

    fn close(&mut self) {
        let blocks = std::mem::take(&mut self.open.1);
        if blocks > 0 {
            let class = (blocks.ilog2() as usize).min(CLASSES - 1);
            self.runs[class] += 1;
            self.blocks[class] += blocks;
            self.longest = self.longest.max(blocks);
            self.logarithms += blocks as f64 * (blocks as f64).log2().min(GROUP_LOGARITHM);
        }
    }

    /// The classes: name, runs, and blocks in them.
    pub fn classes(&self) -> impl Iterator<Item = (String, u64, u64)> {
        (0..CLASSES).map(|class| (class_name(class), self.runs[class], self.blocks[class]))
    }

    /// Runs.
    pub fn runs(&self) -> u64 {
        self.runs.iter().sum()
    }

    /// Free blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// Blocks of the longest run.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// How fragmented the free space is, from 0 to 100: 0 if all of it is in runs of a group (128
    /// MiB) or more, 100 if no two free blocks are neighbours. In between, each halving of the
    /// length of the runs counts the same; it is the mean over all free blocks. 0 if nothing is
    /// free.
    pub fn score(&self) -> f64 {
        let blocks = self.blocks();
        if blocks == 0 {
            return 0.0;
        }
        100.0 * (1.0 - self.logarithms / (blocks as f64 * GROUP_LOGARITHM))
    }
}

/// As `e2freefrag` writes it: `1M-2M`.
fn class_name(class: usize) -> String {
    let bytes = |class: usize| {
        let bytes = BLOCK_BYTES << class;
        match bytes.ilog2() {
            ..20 => format!("{}K", bytes >> 10),
            20..30 => format!("{}M", bytes >> 20),
            _ => format!("{}G", bytes >> 30),
        }
    };
    if class + 1 < CLASSES { format!("{}-{}", bytes(class), bytes(class + 1)) } else { format!("{}-", bytes(class)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(runs: &[(u64, u32)]) -> Histogram {
        let mut histogram = Histogram::default();
        runs.iter().for_each(|(start, blocks)| histogram.add(*start, *blocks));
        histogram.finish()
    }

    #[test]
    fn classes_are_those_of_e2freefrag() {
        assert_eq!([0, 8, 17, 18, 19].map(class_name), ["4K-8K", "1M-2M", "512M-1G", "1G-2G", "2G-"]);
        let histogram = of(&[(0, 1), (10, 256), (300, 511), (900, 512)]);
        let classes: Vec<_> = histogram.classes().filter(|(_, runs, _)| *runs > 0).collect();
        let wanted = [("4K-8K", 1, 1), ("1M-2M", 2, 767), ("2M-4M", 1, 512)];
        assert_eq!(classes, wanted.map(|(name, runs, blocks)| (name.to_owned(), runs, blocks)));
        assert_eq!((histogram.runs(), histogram.blocks(), histogram.longest()), (4, 1280, 512));
    }

    #[test]
    fn runs_go_on_across_groups() {
        let histogram = of(&[(0, 32_768), (32_768, 32_768), (70_000, 5)]);
        assert_eq!((histogram.runs(), histogram.longest()), (2, 65_536));
    }

    #[test]
    fn the_score_goes_from_groups_to_single_blocks() {
        let single: Vec<(u64, u32)> = (0..100).map(|block| (2 * block, 1)).collect();
        assert_eq!((of(&[]).score(), of(&[(0, 32_768)]).score(), of(&single).score()), (0.0, 0.0, 100.0));
        let megabytes: Vec<(u64, u32)> = (0..100).map(|run| (512 * run, 256)).collect();
        assert!((of(&megabytes).score() - 100.0 * (1.0 - 8.0 / 15.0)).abs() < 1e-9);
        let half = of(&[(0, 32_768), (40_000, 181), (50_000, 32_768)]);
        assert!(half.score() < 0.2, "a short run beside long ones counts as much as it has blocks: {}", half.score());
    }
}
