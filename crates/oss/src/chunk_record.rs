//! The record of a chunk: the states of 256 consecutive blocks, 1 MiB of an object, as runs of
//! equal kind.
//!
//! ```text
//! offset bytes
//!  0     1     version, 1
//!  then runs, in order of blocks, up to the last block that is not absent:
//!        1-2   variable-length number: (blocks of the run - 1) << 2 | kind
//!        1-10  kind 3 only: epoch as a variable-length number, not 0
//!        4 n   kinds 1, 2, 3: CRC-32C of each block, little endian
//!
//! kind 0 absent: reads as zeros
//!      1 in place: the bytes are in the host file, and were flushed
//!      2 inline: the bytes are in table INLINE
//!      3 in place since `epoch`: the bytes are in the host file, flushed only if that epoch is
//! ```
//!
//! A checksum covers the block's 4096 bytes; those beyond the object's size are zeros.
//! A chunk without a block that holds data has no record. 1 MiB in one piece costs 1027 bytes.

use types::{
    limits::{BLOCK_BYTES, FILE_BYTES_MAX},
    record::{DecodeError, RecordReader, RecordWriter},
};

const VERSION: u8 = 1;
const WHAT: &str = "chunk record";

/// Blocks of a chunk.
pub const CHUNK_BLOCKS: u64 = 256;

/// Number of the last chunk an object may have.
pub const CHUNK_MAX: u64 = FILE_BYTES_MAX / BLOCK_BYTES / CHUNK_BLOCKS;

/// Longest record: every block a run of its own, with the longest epoch.
pub const CHUNK_RECORD_BYTES_MAX: usize = 1 + CHUNK_BLOCKS as usize * (1 + 10 + 4);

const _: () = assert!(CHUNK_BLOCKS * BLOCK_BYTES == 1 << 20, "the format says 1 MiB");

/// Where the bytes of a block are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockState {
    /// Nowhere: the block reads as zeros.
    #[default]
    Absent,
    /// In the host file, at the same offset.
    InPlace {
        /// CRC-32C of the block.
        checksum: u32,
        /// Epoch in which they were written; 0: flushed.
        epoch: u64,
    },
    /// In table INLINE.
    Inline {
        /// CRC-32C of the block.
        checksum: u32,
    },
}

impl BlockState {
    /// CRC-32C of a block that holds data.
    pub fn checksum(&self) -> Option<u32> {
        match *self {
            BlockState::Absent => None,
            BlockState::InPlace { checksum, .. } | BlockState::Inline { checksum } => Some(checksum),
        }
    }

    /// Whether the bytes are in the host file.
    pub fn is_in_place(&self) -> bool {
        matches!(self, BlockState::InPlace { .. })
    }

    /// Whether the bytes are in table INLINE.
    pub fn is_inline(&self) -> bool {
        matches!(self, BlockState::Inline { .. })
    }

    fn run(&self) -> (u64, u64) {
        match *self {
            BlockState::Absent => (0, 0),
            BlockState::InPlace { epoch: 0, .. } => (1, 0),
            BlockState::Inline { .. } => (2, 0),
            BlockState::InPlace { epoch, .. } => (3, epoch),
        }
    }
}

/// States of the blocks of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// One per block; always 256.
    states: Box<[BlockState; CHUNK_BLOCKS as usize]>,
}

impl Default for ChunkRecord {
    fn default() -> Self {
        Self { states: Box::new([BlockState::Absent; CHUNK_BLOCKS as usize]) }
    }
}

impl ChunkRecord {
    /// The chunk that holds a block of an object.
    pub fn of_block(block: u64) -> u64 {
        block / CHUNK_BLOCKS
    }

    /// State of a block, numbered within the object.
    pub fn state(&self, block: u64) -> BlockState {
        self.states[(block % CHUNK_BLOCKS) as usize]
    }

    /// Changes the state of a block, numbered within the object; returns the old one.
    pub fn set(&mut self, block: u64, state: BlockState) -> BlockState {
        std::mem::replace(&mut self.states[(block % CHUNK_BLOCKS) as usize], state)
    }

    /// States in order.
    pub fn states(&self) -> &[BlockState] {
        self.states.as_slice()
    }

    /// Whether no block holds data: then there is no record.
    pub fn is_absent(&self) -> bool {
        self.states.iter().all(|state| *state == BlockState::Absent)
    }

    /// Forgets epochs up to `epoch`, which were flushed.
    pub fn forget_flushed(&mut self, flushed: u64) {
        for state in self.states.iter_mut() {
            if let BlockState::InPlace { epoch, .. } = state
                && *epoch <= flushed
            {
                *epoch = 0;
            }
        }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let held = self.states.iter().rposition(|state| *state != BlockState::Absent).map_or(0, |last| last + 1);
        let mut writer = RecordWriter::with_capacity(VERSION, 8 + 4 * held);
        for run in self.states[..held].chunk_by(|a, b| a.run() == b.run()) {
            let (kind, epoch) = run[0].run();
            writer.varint((run.len() as u64 - 1) << 2 | kind);
            if kind == 3 {
                writer.varint(epoch);
            }
            for checksum in run.iter().filter_map(BlockState::checksum) {
                writer.u32(checksum);
            }
        }
        let bytes = writer.finish();
        assert!(bytes.len() <= CHUNK_RECORD_BYTES_MAX, "no record is longer than the longest");
        bytes
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = RecordReader::new(WHAT, bytes, VERSION)?;
        let mut record = Self::default();
        let mut next = 0usize;
        while !reader.is_empty() {
            let head = reader.varint()?;
            let blocks = (head >> 2).saturating_add(1);
            if blocks > CHUNK_BLOCKS - next as u64 {
                return Err(reader.out_of_range("length of a run"));
            }
            let end = next + blocks as usize;
            decode_run(&mut reader, head & 3, &mut record.states[next..end])?;
            next = end;
        }
        reader.finish()?;
        Ok(record)
    }
}

fn decode_run(reader: &mut RecordReader<'_>, kind: u64, states: &mut [BlockState]) -> Result<(), DecodeError> {
    if kind == 0 {
        return Ok(());
    }
    let epoch = if kind == 3 { reader.varint()? } else { 0 };
    if kind == 3 && epoch == 0 {
        return Err(reader.out_of_range("epoch"));
    }
    let (sums, _) = reader.take(4 * states.len())?.as_chunks::<4>();
    for (state, sum) in states.iter_mut().zip(sums) {
        let checksum = u32::from_le_bytes(*sum);
        *state = if kind == 2 { BlockState::Inline { checksum } } else { BlockState::InPlace { checksum, epoch } };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_state() -> impl Strategy<Value = BlockState> {
        prop_oneof![
            Just(BlockState::Absent),
            (any::<u32>(), prop_oneof![Just(0), any::<u64>(), 1u64..4])
                .prop_map(|(checksum, epoch)| BlockState::InPlace { checksum, epoch }),
            any::<u32>().prop_map(|checksum| BlockState::Inline { checksum }),
        ]
    }

    proptest! {
        #[test]
        fn round_trips(runs in prop::collection::vec((0u64..CHUNK_BLOCKS, 1u64..CHUNK_BLOCKS, any_state()), 0..12)) {
            let mut record = ChunkRecord::default();
            for (start, length, state) in runs {
                for block in start..(start + length).min(CHUNK_BLOCKS) {
                    record.set(block, state);
                }
            }
            let bytes = record.encode();
            prop_assert_eq!(ChunkRecord::decode(&bytes), Ok(record));
        }

        #[test]
        fn garbage_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..1200)) {
            bytes[0] = VERSION;
            let _ = ChunkRecord::decode(&bytes);
        }
    }

    #[test]
    fn no_record_is_longer_than_the_longest() {
        let mut record = ChunkRecord::default();
        for block in 0..CHUNK_BLOCKS {
            record.set(block, BlockState::InPlace { checksum: 1, epoch: u64::MAX - block });
        }
        assert_eq!(record.encode().len(), CHUNK_RECORD_BYTES_MAX);
    }

    #[test]
    fn one_piece_is_compact_and_absent_is_empty() {
        let mut record = ChunkRecord::default();
        assert_eq!(record.encode(), [VERSION]);
        assert!(record.is_absent());
        for block in 0..CHUNK_BLOCKS {
            record.set(block, BlockState::InPlace { checksum: 7, epoch: 0 });
        }
        assert_eq!(record.encode().len(), 1027);
    }

    /// Version 1 as it was first released: these bytes must stay readable.
    #[test]
    fn golden_bytes() {
        let mut record = ChunkRecord::default();
        record.set(1, BlockState::Inline { checksum: 0x0403_0201 });
        record.set(2, BlockState::InPlace { checksum: 5, epoch: 300 });
        record.set(CHUNK_BLOCKS + 3, BlockState::InPlace { checksum: 6, epoch: 0 });
        assert_eq!(record.encode(), [1, 0, 2, 1, 2, 3, 4, 3, 0xac, 2, 5, 0, 0, 0, 1, 6, 0, 0, 0]);
    }

    #[test]
    fn only_flushed_epochs_are_forgotten() {
        let mut record = ChunkRecord::default();
        record.set(0, BlockState::InPlace { checksum: 1, epoch: 4 });
        record.set(1, BlockState::InPlace { checksum: 2, epoch: 5 });
        record.forget_flushed(4);
        assert_eq!(record.state(0), BlockState::InPlace { checksum: 1, epoch: 0 });
        assert_eq!(record.state(1), BlockState::InPlace { checksum: 2, epoch: 5 });
    }

    #[test]
    fn runs_longer_than_the_chunk_are_refused() {
        let mut writer = RecordWriter::new(VERSION);
        let bytes = writer.varint(CHUNK_BLOCKS << 2).finish();
        let damage = ChunkRecord::decode(&bytes).unwrap_err().damage;
        assert_eq!(damage, types::RecordDamage::OutOfRange("length of a run"));
        let bytes = RecordWriter::new(VERSION).varint(CHUNK_BLOCKS << 2).varint(u64::MAX).finish();
        assert!(ChunkRecord::decode(&bytes).is_err());
    }
}
