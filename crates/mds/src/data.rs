//! Data on this MDT as requests carry them: split into blocks and verified before the namespace is
//! locked, assembled and verified after it is released.

use std::ops::Range;

use bytes::Bytes;
use rpc::{
    checksum::{ZERO_BLOCK, crc32c, pieces, verify},
    message::ost::ReadDone,
};
use types::{
    FsError, FsResult, MdtIndex, ObjectId,
    limits::{BLOCK_BYTES, BULK_BYTES_MAX, SMALL_FILE_BYTES_MAX},
};

use crate::tables::data::{self, BLOCK, blocks_of};

/// What a write does to one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NewBlock {
    /// All of it: the value to store.
    Whole { block: u64, value: Bytes },
    /// Some bytes from `start` on; the others stay.
    Part { block: u64, start: usize, bytes: Bytes },
}

/// Data to be written, verified.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewData {
    offset: u64,
    bytes: u64,
    blocks: Vec<NewBlock>,
}

impl NewData {
    /// Verifies what arrived with its checksums and cuts it into blocks.
    pub fn verified(offset: u64, data: &Bytes, checksums: &[u32]) -> FsResult<Self> {
        if data.len() > BULK_BYTES_MAX || offset.checked_add(data.len() as u64).is_none() {
            return Err(FsError::Invalid);
        }
        verify(offset, data, checksums)?;
        let cut = |(piece, checksum): (Range<usize>, &u32)| {
            let at = offset + piece.start as u64;
            let (block, start) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            if piece.len() == BLOCK {
                NewBlock::Whole { block, value: data::encode_block(*checksum, &data[piece]).into() }
            } else {
                NewBlock::Part { block, start, bytes: data.slice(piece) }
            }
        };
        let blocks = pieces(offset, data.len()).zip(checksums).map(cut).collect();
        Ok(Self { offset, bytes: data.len() as u64, blocks })
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// After the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Blocks written to.
    pub fn range(&self) -> Range<u64> {
        blocks_of(self.offset, self.bytes)
    }

    /// What becomes of each.
    pub fn blocks(&self) -> &[NewBlock] {
        &self.blocks
    }
}

/// What a read took from the tables: not verified yet.
#[derive(Clone, Debug)]
pub(crate) struct StoredData {
    /// The object.
    pub object: ObjectId,
    /// Its size.
    pub size: u64,
    /// The range, within the object.
    pub offset: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Blocks that the object holds there, with their values.
    pub blocks: Vec<(u64, Vec<u8>)>,
}

impl StoredData {
    /// Whether these are all bytes of the object, and few.
    pub fn is_small_file(&self) -> bool {
        self.offset == 0 && self.bytes == self.size && self.size <= u64::from(SMALL_FILE_BYTES_MAX)
    }

    /// The bytes in order, and the answer that goes with them; an error if a block is damaged.
    pub fn verified(&self, mdt: MdtIndex) -> FsResult<(ReadDone, Bytes)> {
        let range = blocks_of(self.offset, self.bytes);
        let mut buffer = vec![0; (range.end - range.start) as usize * BLOCK];
        let mut sums = vec![ZERO_BLOCK; (range.end - range.start) as usize];
        for (block, value) in &self.blocks {
            let index = (block - range.start) as usize;
            let corrupt = || FsError::CorruptOnMdt { object: self.object, mdt, offset: block * BLOCK_BYTES };
            let target = &mut buffer[index * BLOCK..(index + 1) * BLOCK];
            sums[index] = data::load_block(value, target)?.ok_or_else(corrupt)?;
        }
        let skip = (self.offset - range.start * BLOCK_BYTES) as usize;
        let data = Bytes::from(buffer).slice(skip..skip + self.bytes as usize);
        // Those of whole blocks are passed on as stored.
        let sum = |(piece, stored): (Range<usize>, &u32)| {
            if piece.len() == BLOCK { *stored } else { crc32c(&data[piece]) }
        };
        let checksums = pieces(self.offset, data.len()).zip(&sums).map(sum).collect();
        Ok((ReadDone { checksums, size: self.size }, data))
    }
}

#[cfg(test)]
mod tests {
    use rpc::checksum::checksums;

    use super::*;

    #[test]
    fn a_write_is_cut_at_blocks() {
        let data = Bytes::from(vec![7; 2 * BLOCK]);
        let new = NewData::verified(100, &data, &checksums(100, &data)).unwrap();
        assert_eq!((new.range(), new.end()), (0..3, 100 + 2 * BLOCK as u64));
        let [NewBlock::Part { start: 100, .. }, NewBlock::Whole { block: 1, .. }, NewBlock::Part { start: 0, .. }] =
            new.blocks()
        else {
            panic!("{:?}", new.blocks());
        };
    }

    #[test]
    fn what_arrives_damaged_is_refused() {
        let data = Bytes::from(vec![7; 100]);
        assert_eq!(NewData::verified(0, &data, &[1]).err(), Some(FsError::Transfer));
        assert!(matches!(NewData::verified(0, &data, &[]), Err(FsError::Protocol(_))));
        assert_eq!(NewData::verified(u64::MAX, &data, &checksums(u64::MAX, &data)).err(), Some(FsError::Invalid));
    }
}
