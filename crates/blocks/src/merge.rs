//! Which pieces of an object are worth being merged: a pure function of where they are.
//!
//! Reading on in another piece costs a positioning, and a positioning takes as long as the transfer
//! of [`POSITIONING_BLOCKS`]. So merging pieces that follow each other gains that much for each
//! positioning that a reading does not need any more, and costs the blocks that are moved. The
//! pieces with the greatest gain are merged. This leaves long pieces alone, also where short ones
//! are next to them, and it is never worth it to merge pieces of more than a positioning's worth
//! each.
//!
//! Linear in the pieces: gains are differences of a sum over the pieces, and the least sums from
//! which an end may be reached are in a queue whose values ascend.

use std::{collections::VecDeque, ops::Range};

/// Blocks that are transferred in the time of one positioning: 1 MiB. A rotating drive needs 8 ms
/// for either.
pub const POSITIONING_BLOCKS: u64 = 256;

/// Blocks of an object that follow each other on the device, in the order of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Blocks of the object, from the first to the last; there may be holes between them.
    pub logical: Range<u64>,
    /// Blocks of the device.
    pub device: Range<u64>,
}

impl Piece {
    fn blocks(&self) -> u64 {
        self.device.end - self.device.start
    }
}

/// Pieces of an object, in its order. Those that follow each other on the device are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(Vec<Piece>);

impl Pieces {
    /// Adds the next block of the object.
    pub fn push(&mut self, logical: u64, address: u64) {
        match self.0.last_mut() {
            Some(last) if last.device.end == address => {
                last.logical.end = logical + 1;
                last.device.end = address + 1;
            }
            _ => self.0.push(Piece { logical: logical..logical + 1, device: address..address + 1 }),
        }
    }

    /// The pieces.
    pub fn as_slice(&self) -> &[Piece] {
        &self.0
    }

    /// Positionings between them.
    pub fn breaks(&self) -> u64 {
        (self.0.len() as u64).saturating_sub(1)
    }
}

/// Pieces that are to become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Numbers of the pieces, at least two.
    pub pieces: Range<usize>,
    /// Blocks of all of them.
    pub blocks: u64,
}

impl Merge {
    /// Positionings that readings must have lost for the merge to be paid for: it reads and writes
    /// all its blocks.
    pub fn price(&self) -> u64 {
        (2 * self.blocks).div_ceil(POSITIONING_BLOCKS)
    }
}

/// The pieces with the greatest gain that have at most so many blocks together; `None` if there is
/// no gain. Of several with the same gain, those that end first.
pub fn choose_merge(pieces: &[Piece], blocks_max: u64) -> Option<Merge> {
    // Before a piece: POSITIONING_BLOCKS for each piece, less all blocks, up to there. The gain of
    // a sequence is the difference between its ends, less one positioning, which remains.
    let mut sum = 0i64;
    let (mut blocks, mut before): (u64, VecDeque<(usize, i64, u64)>) = (0, VecDeque::new());
    let mut best: Option<(i64, Merge)> = None;
    for (number, piece) in pieces.iter().enumerate() {
        while before.back().is_some_and(|(_, least, _)| *least > sum) {
            before.pop_back();
        }
        before.push_back((number, sum, blocks));
        sum += POSITIONING_BLOCKS as i64 - piece.blocks() as i64;
        blocks += piece.blocks();
        while before.front().is_some_and(|(_, _, blocks_before)| blocks - blocks_before > blocks_max) {
            before.pop_front();
        }
        let Some((start, least, blocks_before)) = before.front().copied() else { continue };
        let gain = sum - least - POSITIONING_BLOCKS as i64;
        if gain > best.as_ref().map_or(0, |(gain, _)| *gain) {
            best = Some((gain, Merge { pieces: start..number + 1, blocks: blocks - blocks_before }));
        }
    }
    best.map(|(_, merge)| merge)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pieces of these lengths, none after the other on the device.
    fn apart(lengths: &[u64]) -> Vec<Piece> {
        let mut logical = 0;
        let piece = |(number, blocks): (u64, &u64)| {
            logical += blocks;
            let start = 1 << 20 << (number % 8);
            Piece { logical: logical - blocks..logical, device: start..start + blocks }
        };
        (0..).zip(lengths).map(piece).collect()
    }

    fn gain(pieces: &[Piece]) -> i64 {
        let blocks: u64 = pieces.iter().map(Piece::blocks).sum();
        (pieces.len() as i64 - 1) * POSITIONING_BLOCKS as i64 - blocks as i64
    }

    /// The greatest gain of all sequences.
    fn greatest_gain(pieces: &[Piece], blocks_max: u64) -> i64 {
        let sequences = (0..pieces.len()).flat_map(|start| (start + 1..=pieces.len()).map(move |end| start..end));
        let fits = |range: &Range<usize>| pieces[range.clone()].iter().map(Piece::blocks).sum::<u64>() <= blocks_max;
        sequences.filter(fits).map(|range| gain(&pieces[range])).max().unwrap_or(0).max(0)
    }

    #[test]
    fn long_pieces_are_left_alone_and_short_ones_between_them_become_one() {
        let choose =
            |lengths: &[u64], max| choose_merge(&apart(lengths), max).map(|merge| (merge.pieces, merge.blocks));
        assert_eq!(choose(&[], 2048), None);
        assert_eq!(choose(&[16], 2048), None, "there is nothing to merge it with");
        assert_eq!(choose(&[256, 256, 256], 2048), None, "one extent for each MiB is enough");
        assert_eq!(choose(&[16, 16, 16], 2048), Some((0..3, 48)));
        assert_eq!(choose(&[1000, 16, 16, 16, 900], 2048), Some((1..4, 48)));
        assert_eq!(choose(&[16, 16, 100, 16, 16], 2048), Some((0..5, 164)), "across one that is not long");
        assert_eq!(choose(&[16, 16, 1500, 16, 16, 16], 2048), Some((3..6, 48)), "the better side");
        assert_eq!(choose(&[100, 100, 100, 100], 250), Some((0..2, 200)), "no run is longer");
        assert_eq!(choose(&[100, 100, 100, 100], 150), None);
        let merge = choose_merge(&apart(&[16; 128]), 2048).unwrap();
        assert_eq!((merge.blocks, merge.price()), (2048, 16), "paid for by one reading, which loses 127");
    }

    #[test]
    fn pieces_go_on_across_holes() {
        let mut pieces = Pieces::default();
        for (logical, address) in [(0, 100), (1, 101), (5, 102), (6, 200), (7, 300), (8, 301)] {
            pieces.push(logical, address);
        }
        let expected = [(0..6, 100..103), (6..7, 200..201), (7..9, 300..302)];
        let expected = expected.map(|(logical, device)| Piece { logical, device });
        assert_eq!((pieces.as_slice(), pieces.breaks()), (&expected[..], 2));
        assert_eq!(Pieces::default().breaks(), 0);
    }

    proptest! {
        #[test]
        fn no_sequence_gains_more(
            lengths in prop::collection::vec(prop_oneof![1u64..20, 1u64..700], 0..40),
            blocks_max in prop_oneof![1u64..400, Just(2048)],
        ) {
            let pieces = apart(&lengths);
            let greatest = greatest_gain(&pieces, blocks_max);
            match choose_merge(&pieces, blocks_max) {
                None => prop_assert_eq!(greatest, 0),
                Some(merge) => {
                    let chosen = &pieces[merge.pieces.clone()];
                    prop_assert!(chosen.len() >= 2 && merge.blocks <= blocks_max);
                    prop_assert_eq!(merge.blocks, chosen.iter().map(Piece::blocks).sum::<u64>());
                    prop_assert_eq!(gain(chosen), greatest);
                }
            }
        }
    }
}
