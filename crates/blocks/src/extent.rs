//! Where the blocks of an object are: runs of the device, in the order of the object.

use std::ops::Range;

/// Runs of an object; those that follow each other on the device are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<Range<u64>>);

impl Extents {
    /// Adds the next blocks of the object.
    pub fn push(&mut self, device: Range<u64>) {
        match self.0.last_mut() {
            _ if device.is_empty() => {}
            Some(last) if last.end == device.start => last.end = device.end,
            _ => self.0.push(device),
        }
    }

    /// The runs.
    pub fn runs(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Blocks of all of them.
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    /// Dynamic layout score ([`layout_score`]).
    pub fn score(&self) -> f64 {
        layout_score(self.blocks(), self.0.len() as u64)
    }
}

/// The layout score of Smith and Seltzer ("File System Aging", 1997): the part of the blocks,
/// except the first one, that follow their predecessor on the device. 1: in one run; 0: no two
/// blocks are together. An object of one block, or of none, has 1.
pub fn layout_score(blocks: u64, runs: u64) -> f64 {
    if blocks <= 1 { 1.0 } else { 1.0 - runs.saturating_sub(1) as f64 / (blocks - 1) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run_and_the_score_counts_the_breaks() {
        let mut extents = Extents::default();
        for device in [0..5, 5..8, 20..22, 8..9, 9..9] {
            extents.push(device);
        }
        assert_eq!(extents.runs(), [0..8, 20..22, 8..9]);
        assert_eq!((extents.blocks(), extents.score()), (11, 0.8));
        assert_eq!((layout_score(0, 0), layout_score(1, 1), layout_score(9, 9)), (1.0, 1.0, 0.0));
    }
}
