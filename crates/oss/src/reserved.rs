//! The space that `fallocate` reserved in an object's host file: a few ranges of blocks, and the
//! number of blocks in them that hold no data. These count as space of the object in addition to
//! the blocks that hold data, so that a write into a reservation takes no more space.
//!
//! Invariants: the ranges are in order, not empty, and neither overlap nor touch; the blocks
//! without data are in them.
//!
//! Downside: beyond [`RANGES_MAX`] ranges the smallest is forgotten. The host file keeps its space,
//! which then counts only where it holds data.

use std::ops::Range;

use types::{
    limits::{BLOCK_BYTES, FILE_BYTES_MAX},
    record::{DecodeError, RecordReader},
};

/// Most ranges that are kept.
pub const RANGES_MAX: usize = 8;
/// Longest encoding.
pub const RESERVED_BYTES_MAX: usize = 1 + 8 + 16 * RANGES_MAX;
/// End of the last block that an object may have.
const BLOCKS_END: u64 = FILE_BYTES_MAX.div_ceil(BLOCK_BYTES);

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Start and end of each range; those not in use are zeros, at the end.
    ranges: [(u64, u64); RANGES_MAX],
    /// Blocks in them that hold no data.
    empty: u64,
}

/// The ranges after a change, and what it means for the blocks without data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    ranges: [(u64, u64); RANGES_MAX],
    /// Ranges that are new: their blocks without data are to be added.
    pub gained: Vec<Range<u64>>,
    /// A range that is forgotten: its blocks without data are to be taken away.
    pub forgotten: Option<Range<u64>>,
    /// Blocks without data that were given back.
    given_back: u64,
}

fn overlap(range: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    range.start.max(other.start)..range.end.min(other.end)
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// The ranges as they are kept, and the one that there is no room for. Adding adds one range and
/// giving back splits one, so it is one at most.
fn bounded(mut ranges: Vec<Range<u64>>) -> ([(u64, u64); RANGES_MAX], Option<Range<u64>>) {
    assert!(ranges.len() <= RANGES_MAX + 1, "a change adds one range at most");
    debug_assert!(ranges.is_sorted_by(|one, next| one.end < next.start), "ranges neither overlap nor touch");
    let smallest = (0..ranges.len()).min_by_key(|index| length(&ranges[*index]));
    let forgotten = smallest.filter(|_| ranges.len() > RANGES_MAX).map(|index| ranges.remove(index));
    let mut kept = [(0, 0); RANGES_MAX];
    for (kept, range) in kept.iter_mut().zip(&ranges) {
        *kept = (range.start, range.end);
    }
    (kept, forgotten)
}

impl Reserved {
    /// The ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().take_while(|(start, end)| start < end).map(|&(start, end)| start..end)
    }

    /// Reserved blocks that hold no data.
    pub fn empty(&self) -> u64 {
        self.empty
    }

    /// Whether a block is reserved.
    pub fn has(&self, block: u64) -> bool {
        self.ranges().any(|range| range.contains(&block))
    }

    /// Whether nothing is reserved at or after this block.
    pub fn ends_before(&self, block: u64) -> bool {
        self.ranges().all(|range| range.end <= block)
    }

    /// A block begins to hold data, or holds none any more.
    pub fn note(&mut self, block: u64, held: bool, holds: bool) {
        if held != holds && self.has(block) {
            // A record that says less than its chunks is damaged; the difference shows in `verify`,
            // not in a panic.
            self.empty = if holds { self.empty.saturating_sub(1) } else { self.empty + 1 };
        }
    }

    /// With these blocks, too.
    pub fn with(&self, blocks: &Range<u64>) -> Change {
        let mut all = blocks.clone();
        let mut ranges = Vec::with_capacity(RANGES_MAX + 1);
        let mut gained = Vec::new();
        let mut next = blocks.start;
        for range in self.ranges() {
            if range.end < blocks.start || range.start > blocks.end {
                ranges.push(range);
                continue;
            }
            gained.push(next..range.start);
            next = range.end;
            all = all.start.min(range.start)..all.end.max(range.end);
        }
        gained.push(next..blocks.end);
        gained.retain(|range| !range.is_empty());
        let position = ranges.partition_point(|range| range.start < all.start);
        ranges.insert(position, all);
        let (ranges, forgotten) = bounded(ranges);
        Change { ranges, gained, forgotten, given_back: 0 }
    }

    /// Without these blocks, none of which holds data.
    pub fn without(&self, blocks: &Range<u64>) -> Change {
        let around =
            |range: Range<u64>| [range.start..range.end.min(blocks.start), range.start.max(blocks.end)..range.end];
        let left = self.ranges().flat_map(around).filter(|range| !range.is_empty()).collect();
        let given_back = self.ranges().map(|range| length(&overlap(&range, blocks))).sum();
        let (ranges, forgotten) = bounded(left);
        Change { ranges, gained: Vec::new(), forgotten, given_back }
    }

    /// After a change, by which so many blocks without data are gained and forgotten.
    pub fn after(&self, change: &Change, gained: u64, forgotten: u64) -> Self {
        let empty = (self.empty + gained).saturating_sub(forgotten.saturating_add(change.given_back));
        Self { ranges: change.ranges, empty }
    }

    /// Appends the bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.ranges().count() as u8);
        bytes.extend(self.empty.to_le_bytes());
        for range in self.ranges() {
            bytes.extend(range.start.to_le_bytes());
            bytes.extend(range.end.to_le_bytes());
        }
    }

    /// Takes what [`Reserved::encode`] appended.
    pub fn decode(reader: &mut RecordReader<'_>) -> Result<Self, DecodeError> {
        let count = usize::from(reader.u8()?);
        if count == 0 || count > RANGES_MAX {
            return Err(reader.out_of_range("number of reserved ranges"));
        }
        let mut reserved = Self { empty: reader.u64()?, ..Self::default() };
        let (mut previous, mut sum) = (None, 0);
        for range in &mut reserved.ranges[..count] {
            let (start, end) = (reader.u64()?, reader.u64()?);
            if start >= end || end > BLOCKS_END || previous.is_some_and(|previous| start <= previous) {
                return Err(reader.out_of_range("a reserved range"));
            }
            (previous, sum) = (Some(end), sum + (end - start));
            *range = (start, end);
        }
        if reserved.empty > sum {
            return Err(reader.out_of_range("number of reserved blocks"));
        }
        Ok(reserved)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Reserve(Range<u64>),
        /// Holes come into being on a host file.
        GiveBack(Range<u64>),
        Hold(u64, bool),
    }

    fn any_range() -> impl Strategy<Value = Range<u64>> {
        (0..BLOCKS, 1..20u64).prop_map(|(start, blocks)| start..(start + blocks).min(BLOCKS))
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => any_range().prop_map(Step::Reserve),
            2 => any_range().prop_map(Step::GiveBack),
            3 => (0..BLOCKS, any::<bool>()).prop_map(|(block, holds)| Step::Hold(block, holds)),
        ]
    }

    /// A set of reserved blocks, and one of blocks that hold data.
    #[derive(Default)]
    struct Model {
        reserved: BTreeSet<u64>,
        held: BTreeSet<u64>,
    }

    impl Model {
        fn empty_in(&self, range: &Range<u64>) -> u64 {
            range.clone().filter(|block| !self.held.contains(block)).count() as u64
        }

        fn step(&mut self, reserved: &mut Reserved, step: Step) {
            let change = match step {
                Step::Hold(block, holds) => {
                    let held = if holds { !self.held.insert(block) } else { self.held.remove(&block) };
                    return reserved.note(block, held, holds);
                }
                Step::Reserve(range) => {
                    let change = reserved.with(&range);
                    self.reserved.extend(range);
                    change
                }
                Step::GiveBack(range) => {
                    range.clone().for_each(|block| self.step(reserved, Step::Hold(block, false)));
                    self.reserved.retain(|block| !range.contains(block));
                    reserved.without(&range)
                }
            };
            let gained = change.gained.iter().map(|range| self.empty_in(range)).sum();
            let forgotten = change.forgotten.as_ref().map_or(0, |range| self.empty_in(range));
            *reserved = reserved.after(&change, gained, forgotten);
            if let Some(range) = &change.forgotten {
                self.reserved.retain(|block| !range.contains(block));
                let smallest = reserved.ranges().map(|range| length(&range)).min();
                assert_eq!(reserved.ranges().count(), RANGES_MAX);
                assert!(smallest >= Some(length(range)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
        #[test]
        fn it_is_a_set_of_blocks(steps in prop::collection::vec(any_step(), 0..80)) {
            let (mut model, mut reserved) = (Model::default(), Reserved::default());
            for step in steps {
                model.step(&mut reserved, step);
                let blocks: Vec<u64> = reserved.ranges().flatten().collect();
                prop_assert!(blocks.iter().eq(&model.reserved), "{:?} {:?}", reserved, model.reserved);
                prop_assert_eq!(reserved.empty(), model.reserved.difference(&model.held).count() as u64);
                prop_assert_eq!(reserved.ends_before(30), model.reserved.range(30..).next().is_none());
                if reserved == Reserved::default() {
                    continue;
                }
                let mut bytes = vec![1];
                reserved.encode(&mut bytes);
                prop_assert!(bytes.len() <= 1 + RESERVED_BYTES_MAX);
                let mut reader = RecordReader::new("reserved ranges", &bytes, 1).unwrap();
                prop_assert_eq!(Reserved::decode(&mut reader), Ok(reserved));
                prop_assert_eq!(reader.finish(), Ok(()));
            }
        }
    }

    #[test]
    fn impossible_ranges_are_damage() {
        let decode = |count: u8, empty: u64, ranges: &[(u64, u64)]| {
            let mut bytes = vec![1, count];
            bytes.extend(empty.to_le_bytes());
            ranges.iter().for_each(|(start, end)| bytes.extend([start.to_le_bytes(), end.to_le_bytes()].concat()));
            Reserved::decode(&mut RecordReader::new("reserved ranges", &bytes, 1).unwrap())
        };
        assert!(decode(2, 3, &[(1, 2), (3, 5)]).is_ok());
        for (count, empty, ranges) in [
            (0, 0, &[][..]),
            (1, 0, &[]),
            (1, 0, &[(1, 1)]),
            (1, 0, &[(2, 1)]),
            (1, 0, &[(0, u64::MAX)]),
            (1, 2, &[(1, 2)]),
            (2, 0, &[(1, 2), (2, 3)]),
            (9, 0, &[(0, 1); 9]),
        ] {
            assert!(decode(count, empty, ranges).is_err(), "{count} {empty} {ranges:?}");
        }
    }
}
