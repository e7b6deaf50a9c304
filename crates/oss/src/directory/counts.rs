//! What the chunk records of an object add up to: the counts that its record must have. For checks,
//! which walk over all chunks; changes keep the counts as they go.

use std::ops::Range;

use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS, ChunkRecord},
    object_record::ObjectRecord,
};

/// Sums over the chunks seen so far.
#[derive(Debug)]
pub(super) struct Counts {
    /// Blocks that hold data.
    pub blocks: u64,
    /// Of these, the ones that are inline.
    pub inline: u64,
    /// Ranges of blocks that the object's record calls reserved.
    reserved: Vec<Range<u64>>,
    /// Blocks in them that hold data.
    filled: u64,
}

impl Counts {
    /// Before the first chunk.
    pub fn of(record: &ObjectRecord) -> Self {
        Self { blocks: 0, inline: 0, reserved: record.reserved.ranges().collect(), filled: 0 }
    }

    /// Adds a chunk; each is added once.
    pub fn add(&mut self, number: u64, chunk: &ChunkRecord) {
        let holds_data = |(_, state): &(u64, &BlockState)| **state != BlockState::Absent;
        for (block, state) in (number * CHUNK_BLOCKS..).zip(chunk.states()).filter(holds_data) {
            self.blocks += 1;
            self.inline += u64::from(state.is_inline());
            self.filled += u64::from(self.reserved.iter().any(|range| range.contains(&block)));
        }
    }

    /// Reserved blocks that hold no data.
    pub fn reserved_empty(&self) -> u64 {
        let reserved: u64 = self.reserved.iter().map(|range| range.end - range.start).sum();
        assert!(self.filled <= reserved, "at most the reserved blocks hold data in the reserved ranges");
        reserved - self.filled
    }
}
