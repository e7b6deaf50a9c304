//! The record of a chunk: the states of 256 consecutive blocks, 1 MiB of an object, as runs of
//! equal kind.
//!
//! ```text
//! offset bytes
//!  0     1     version, 1; 2 if blocks are on a device
//!  then runs, in order of blocks, up to the last block that is not absent:
//!        1-2   variable-length number: (blocks of the run - 1) << 2 | kind
//!        1-10  kind 3 only: epoch as a variable-length number, not 0
//!        4 n   kinds 1, 2, 3: CRC-32C of each block, little endian
//!
//! kind 0 absent: reads as zeros
//!      1 in place: the bytes are in the host file, and were flushed
//!      2 inline: the bytes are in table INLINE
//!      3 in place since `epoch`: the bytes are in the host file, flushed only if that epoch is
//!
//! version 2:
//!        1-2   variable-length number: (blocks of the run - 1) << 3 | kind
//!        1-10  kinds 3 and 4 only: epoch as a variable-length number, not 0
//!        1-10  kinds 1, 3, 4: block of the device that has the first block; the others follow it
//!        1-10  kind 4 only: the same of the former blocks
//!        4 n   kinds 1 to 4: CRC-32C of each block, little endian
//!        4 n   kind 4 only: the same of the former blocks
//!
//! kind 0 absent, 2 inline: as above
//!      1 on the device, flushed
//!      3 on the device since `epoch`: flushed only if that epoch is; absent before
//!      4 on the device since `epoch`; before, where the former blocks are, if that is needed
//! ```
//!
//! A checksum covers the block's 4096 bytes; those beyond the object's size are zeros.
//! A chunk without a block that holds data has no record. 1 MiB in one piece costs 1027 bytes, and
//! a few more on a device.
//!
//! Downside: an object whose blocks are scattered over a device has a record of one run per block.

use std::{collections::BTreeMap, ops::Range};

use types::{
    limits::{BLOCK_BYTES, FILE_BYTES_MAX},
    record::{DecodeError, RecordReader, RecordWriter},
};

const VERSION: u8 = 1;
/// Of records with blocks on a device.
const VERSION_DEVICE: u8 = 2;
const WHAT: &str = "chunk record";

/// Blocks of a chunk.
pub const CHUNK_BLOCKS: u64 = 256;

/// Number of the last chunk an object may have.
pub const CHUNK_MAX: u64 = FILE_BYTES_MAX / BLOCK_BYTES / CHUNK_BLOCKS;

/// Longest record of host files: every block a run of its own, with the longest epoch.
pub const CHUNK_RECORD_BYTES_MAX: usize = 1 + CHUNK_BLOCKS as usize * (1 + 10 + 4);
/// Longest record of a device: every block a run of its own, with the longest numbers.
pub const DEVICE_CHUNK_RECORD_BYTES_MAX: usize = 1 + CHUNK_BLOCKS as usize * (1 + 3 * 10 + 2 * 4);

/// Longest record of a device whose blocks are apart, but flushed, as nearly all are.
const DEVICE_RECORD_BYTES: usize = 1 + CHUNK_BLOCKS as usize * (1 + 4 + 4);

/// End of the addresses that a device's blocks may have: bytes of a device are numbered by `i64`.
const ADDRESS_END: u64 = i64::MAX as u64 / BLOCK_BYTES;

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
    /// On the target's device.
    OnDevice {
        /// CRC-32C of the block.
        checksum: u32,
        /// Epoch in which they were written; 0: flushed.
        epoch: u64,
        /// Block of the device.
        address: u64,
    },
}

/// Where the bytes of a block on a device were before they were overwritten: there they are still,
/// until the new ones are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Former {
    /// CRC-32C of the block.
    pub checksum: u32,
    /// Block of the device.
    pub address: u64,
}

impl BlockState {
    /// CRC-32C of a block that holds data.
    pub fn checksum(&self) -> Option<u32> {
        match *self {
            BlockState::Absent => None,
            BlockState::InPlace { checksum, .. }
            | BlockState::Inline { checksum }
            | BlockState::OnDevice { checksum, .. } => Some(checksum),
        }
    }

    /// Epoch in which the bytes were written outside of the tables; 0 if they are flushed, or are
    /// not there.
    pub fn epoch(&self) -> u64 {
        match *self {
            BlockState::Absent | BlockState::Inline { .. } => 0,
            BlockState::InPlace { epoch, .. } | BlockState::OnDevice { epoch, .. } => epoch,
        }
    }

    /// Block of the device that has the bytes.
    pub fn address(&self) -> Option<u64> {
        match *self {
            BlockState::OnDevice { address, .. } => Some(address),
            BlockState::Absent | BlockState::InPlace { .. } | BlockState::Inline { .. } => None,
        }
    }

    /// Whether the bytes of the object's next block follow those of this one, in the same place.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        match (*self, *next) {
            (BlockState::OnDevice { address, .. }, BlockState::OnDevice { address: next, .. }) => address + 1 == next,
            _ => std::mem::discriminant(self) == std::mem::discriminant(next),
        }
    }

    /// Whether the bytes are in the host file.
    pub fn is_in_place(&self) -> bool {
        matches!(self, BlockState::InPlace { .. })
    }

    /// Whether the bytes are in the host file or on the device.
    pub fn is_outside_tables(&self) -> bool {
        matches!(self, BlockState::InPlace { .. } | BlockState::OnDevice { .. })
    }

    /// Whether the bytes are in table INLINE.
    pub fn is_inline(&self) -> bool {
        matches!(self, BlockState::Inline { .. })
    }

    /// Kind of a run of it, and its epoch.
    fn run(&self) -> (u64, u64) {
        match *self {
            BlockState::Absent => (0, 0),
            BlockState::InPlace { epoch: 0, .. } | BlockState::OnDevice { epoch: 0, .. } => (1, 0),
            BlockState::Inline { .. } => (2, 0),
            BlockState::InPlace { epoch, .. } | BlockState::OnDevice { epoch, .. } => (3, epoch),
        }
    }
}

/// States of the blocks of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// One per block; always 256.
    states: Box<[BlockState; CHUNK_BLOCKS as usize]>,
    /// Of blocks that are on a device since an epoch, by their numbers within the chunk.
    formers: BTreeMap<u8, Former>,
}

impl Default for ChunkRecord {
    fn default() -> Self {
        Self { states: Box::new([BlockState::Absent; CHUNK_BLOCKS as usize]), formers: BTreeMap::new() }
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

    /// Changes the state of a block, numbered within the object; returns the old one. It has no
    /// former place then.
    pub fn set(&mut self, block: u64, state: BlockState) -> BlockState {
        self.formers.remove(&((block % CHUNK_BLOCKS) as u8));
        std::mem::replace(&mut self.states[(block % CHUNK_BLOCKS) as usize], state)
    }

    /// Where a block, numbered within the object, was before the epoch since when it is where it
    /// is.
    pub fn former(&self, block: u64) -> Option<Former> {
        self.formers.get(&((block % CHUNK_BLOCKS) as u8)).copied()
    }

    /// Remembers where a block was that is on a device since an epoch.
    pub fn set_former(&mut self, block: u64, former: Former) {
        let is_unflushed = matches!(self.state(block), BlockState::OnDevice { epoch, .. } if epoch > 0);
        assert!(is_unflushed, "only unflushed blocks on a device have a former place");
        self.formers.insert((block % CHUNK_BLOCKS) as u8, former);
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
            if let BlockState::InPlace { epoch, .. } | BlockState::OnDevice { epoch, .. } = state
                && *epoch <= flushed
            {
                *epoch = 0;
            }
        }
        let states = &self.states;
        self.formers.retain(|block, _| states[usize::from(*block)].epoch() > 0);
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let held = self.states.iter().rposition(|state| *state != BlockState::Absent).map_or(0, |last| last + 1);
        let held = &self.states[..held];
        if held.iter().any(|state| state.address().is_some()) {
            return self.encode_device(held);
        }
        let mut writer = RecordWriter::with_capacity(VERSION, 8 + 4 * held.len());
        for run in held.chunk_by(|a, b| a.run() == b.run()) {
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

    /// A chunk whose blocks are overwritten at random has up to 256 runs, and its record is written
    /// with each of these writes: so states are looked at where they are, and former places only of
    /// blocks that may have one.
    fn encode_device(&self, held: &[BlockState]) -> Vec<u8> {
        let mut writer = RecordWriter::with_capacity(VERSION_DEVICE, DEVICE_RECORD_BYTES);
        let (mut start, mut sums) = (0, Vec::with_capacity(4 * held.len()));
        while let Some(state) = held.get(start) {
            let (kind, epoch) = state.run();
            let former = self.former_of(start, epoch);
            let follows = |next: &usize| {
                let (one, next_state) = (&held[next - 1], &held[*next]);
                one.is_followed_by(next_state)
                    && next_state.run() == (kind, epoch)
                    && (epoch == 0 || self.formers_follow(*next, epoch))
            };
            let end = (start + 1..held.len()).find(|next| !follows(next)).unwrap_or(held.len());
            let kind = if former.is_some() { FORMER_KIND } else { kind };
            writer.varint(((end - start) as u64 - 1) << 3 | kind);
            if epoch > 0 {
                writer.varint(epoch);
            }
            for address in [state.address(), former.map(|former| former.address)].into_iter().flatten() {
                writer.varint(address);
            }
            sums.clear();
            for checksum in held[start..end].iter().filter_map(BlockState::checksum) {
                sums.extend_from_slice(&checksum.to_le_bytes());
            }
            if former.is_some() {
                for Former { checksum, .. } in (start..end).filter_map(|block| self.former_of(block, epoch)) {
                    sums.extend_from_slice(&checksum.to_le_bytes());
                }
            }
            writer.rest(&sums);
            start = end;
        }
        let bytes = writer.finish();
        assert!(bytes.len() <= DEVICE_CHUNK_RECORD_BYTES_MAX, "no record is longer than the longest");
        bytes
    }

    /// The former place of a block, numbered within the chunk, whose state has this epoch.
    fn former_of(&self, block: usize, epoch: u64) -> Option<Former> {
        if epoch == 0 { None } else { self.formers.get(&(block as u8)).copied() }
    }

    /// Whether a block, whose state has this epoch, may continue the run of the one before it
    /// because of their former places.
    fn formers_follow(&self, block: usize, epoch: u64) -> bool {
        match (self.former_of(block - 1, epoch), self.former_of(block, epoch)) {
            (None, None) => true,
            (Some(one), Some(next)) => one.address + 1 == next.address,
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let is_of_device = bytes.first() == Some(&VERSION_DEVICE);
        let (version, kind_bits) = if is_of_device { (VERSION_DEVICE, 3) } else { (VERSION, 2) };
        let mut reader = RecordReader::new(WHAT, bytes, version)?;
        let mut record = Self::default();
        let mut next = 0usize;
        while !reader.is_empty() {
            let head = reader.varint()?;
            let blocks = (head >> kind_bits).saturating_add(1);
            if blocks > CHUNK_BLOCKS - next as u64 {
                return Err(reader.out_of_range("length of a run"));
            }
            let (end, kind) = (next + blocks as usize, head & ((1 << kind_bits) - 1));
            if is_of_device {
                record.decode_device_run(&mut reader, kind, next..end)?;
            } else {
                decode_run(&mut reader, kind, &mut record.states[next..end])?;
            }
            next = end;
        }
        reader.finish()?;
        Ok(record)
    }

    fn decode_device_run(
        &mut self,
        reader: &mut RecordReader<'_>,
        kind: u64,
        blocks: Range<usize>,
    ) -> Result<(), DecodeError> {
        if matches!(kind, 0 | 2) {
            return decode_run(reader, kind, &mut self.states[blocks]);
        }
        let epoch = match kind {
            1 => 0,
            3 | FORMER_KIND => reader.varint()?,
            _ => return Err(reader.out_of_range("kind of a run")),
        };
        if (epoch == 0) != (kind == 1) {
            return Err(reader.out_of_range("epoch"));
        }
        let count = blocks.len() as u64;
        let address = decode_address(reader, count)?;
        let former = if kind == FORMER_KIND { Some(decode_address(reader, count)?) } else { None };
        let (sums, _) = reader.take(4 * blocks.len())?.as_chunks::<4>();
        for ((block, sum), address) in blocks.clone().zip(sums).zip(address..) {
            self.states[block] = BlockState::OnDevice { checksum: u32::from_le_bytes(*sum), epoch, address };
        }
        let Some(former) = former else { return Ok(()) };
        let (sums, _) = reader.take(4 * blocks.len())?.as_chunks::<4>();
        for ((block, sum), address) in blocks.zip(sums).zip(former..) {
            self.formers.insert(block as u8, Former { checksum: u32::from_le_bytes(*sum), address });
        }
        Ok(())
    }
}

/// Kind of a run of blocks with former places.
const FORMER_KIND: u64 = 4;

/// Address of the first of some blocks that a device can have.
fn decode_address(reader: &mut RecordReader<'_>, blocks: u64) -> Result<u64, DecodeError> {
    let address = reader.varint()?;
    let fits = address.checked_add(blocks).is_some_and(|end| end <= ADDRESS_END);
    // The first block of every device has its label.
    if fits && address > 0 { Ok(address) } else { Err(reader.out_of_range("address of a block")) }
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

    /// A state, and a former place if it may have one; the addresses of a run follow each other.
    fn any_device_state() -> impl Strategy<Value = (BlockState, Option<Former>)> {
        let former = prop::option::of((any::<u32>(), 1u64..1 << 40));
        let on_device = (any::<u32>(), prop_oneof![Just(0), 1u64..4], 1u64..1 << 40, former);
        prop_oneof![
            any_state().prop_filter_map("of a device", |state| (!state.is_in_place()).then_some((state, None))),
            on_device.prop_map(|(checksum, epoch, address, former)| {
                let former = former.filter(|_| epoch > 0).map(|(checksum, address)| Former { checksum, address });
                (BlockState::OnDevice { checksum, epoch, address }, former)
            }),
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
        fn records_of_devices_round_trip(
            runs in prop::collection::vec((0u64..CHUNK_BLOCKS, 1u64..CHUNK_BLOCKS, any_device_state()), 0..12),
        ) {
            let mut record = ChunkRecord::default();
            for (start, length, (state, former)) in runs {
                for (number, block) in (0..).zip(start..(start + length).min(CHUNK_BLOCKS)) {
                    let state = match state {
                        BlockState::OnDevice { checksum, epoch, address } => {
                            BlockState::OnDevice { checksum, epoch, address: address + number }
                        }
                        state => state,
                    };
                    record.set(block, state);
                    if let Some(former) = former {
                        record.set_former(block, Former { address: former.address + number, ..former });
                    }
                }
            }
            let bytes = record.encode();
            prop_assert_eq!(ChunkRecord::decode(&bytes), Ok(record.clone()));
            record.forget_flushed(2);
            prop_assert_eq!(ChunkRecord::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn garbage_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..1200), device: bool) {
            bytes[0] = if device { VERSION_DEVICE } else { VERSION };
            if let Ok(record) = ChunkRecord::decode(&bytes) {
                prop_assert_eq!(ChunkRecord::decode(&record.encode()), Ok(record));
            }
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

    /// Version 2 as it was first released.
    #[test]
    fn golden_bytes_of_a_device() {
        let mut record = ChunkRecord::default();
        record.set(1, BlockState::OnDevice { checksum: 0x0403_0201, epoch: 0, address: 300 });
        record.set(2, BlockState::OnDevice { checksum: 5, epoch: 0, address: 301 });
        record.set(3, BlockState::OnDevice { checksum: 6, epoch: 0, address: 9 });
        record.set(4, BlockState::Inline { checksum: 7 });
        record.set(5, BlockState::OnDevice { checksum: 8, epoch: 2, address: 10 });
        record.set(6, BlockState::OnDevice { checksum: 9, epoch: 2, address: 11 });
        record.set_former(6, Former { checksum: 10, address: 7 });
        let mut bytes = vec![2, 0, 1 << 3 | 1, 0xac, 2, 1, 2, 3, 4, 5, 0, 0, 0, 1, 9, 6, 0, 0, 0, 2, 7, 0, 0, 0];
        bytes.extend([3, 2, 10, 8, 0, 0, 0, 4, 2, 11, 7, 9, 0, 0, 0, 10, 0, 0, 0]);
        assert_eq!(record.encode(), bytes);
        assert_eq!(ChunkRecord::decode(&bytes), Ok(record));
    }

    #[test]
    fn no_record_of_a_device_is_longer_than_the_longest() {
        let mut record = ChunkRecord::default();
        for block in 0..CHUNK_BLOCKS {
            let address = ADDRESS_END - 1 - 2 * block;
            record.set(block, BlockState::OnDevice { checksum: 1, epoch: u64::MAX - block, address });
            record.set_former(block, Former { checksum: 2, address });
        }
        let bytes = record.encode();
        assert!(bytes.len() <= DEVICE_CHUNK_RECORD_BYTES_MAX);
        assert_eq!(ChunkRecord::decode(&bytes), Ok(record));
    }

    #[test]
    fn a_former_place_ends_with_the_epoch_and_with_the_state() {
        let mut record = ChunkRecord::default();
        let former = Former { checksum: 3, address: 4 };
        for block in 0..3 {
            record.set(block, BlockState::OnDevice { checksum: 1, epoch: 5 + block, address: 10 + block });
            record.set_former(block, former);
        }
        record.forget_flushed(5);
        record.set(2, BlockState::Inline { checksum: 1 });
        assert_eq!([record.former(0), record.former(1), record.former(2)], [None, Some(former), None]);
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
