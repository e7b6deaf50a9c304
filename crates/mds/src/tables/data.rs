//! DATA: objects that are stored on this MDT (data on MDT), and their bytes.
//!
//! | key | value |
//! |---|---|
//! | inode (8), slot (4), mirror (1) | the object: version (1) = 3, size in bytes (8), time of the last change (12), blocks held (8), changes so far (8) |
//! | inode (8), slot (4), mirror (1), block (8) | a block of 4096 bytes: version (1) = 2, CRC-32C of the whole block (4), its bytes; zeros at its end are left out |
//!
//! Invariants: a block has its object; the object counts its blocks; bytes of a block beyond the
//! object's size are zeros. A block that is absent reads as zeros.

use std::ops::Range;

use rpc::{checksum::crc32c, message::ost::ObjectAttributes};
use types::{
    Damage, FsResult, InodeNumber, ObjectId, Timestamp,
    limits::BLOCK_BYTES,
    record::{RecordReader, RecordWriter},
};

use super::codec::split_number;

const BLOCK_VERSION: u8 = 2;
const OBJECT_VERSION: u8 = 3;
const WHAT_OBJECT: &str = "object";
const WHAT_BLOCK: &str = "block";

/// Bytes of a block, for slices.
pub const BLOCK: usize = BLOCK_BYTES as usize;

/// What a key of DATA names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKey {
    /// An object.
    Object(ObjectId),
    /// A block of an object.
    Block(ObjectId, u64),
}

/// Blocks that a range of bytes touches.
pub fn blocks_of(offset: u64, bytes: u64) -> Range<u64> {
    offset / BLOCK_BYTES..offset.saturating_add(bytes).div_ceil(BLOCK_BYTES)
}

/// The key of an object, and prefix of the keys of its blocks.
pub fn object_key(object: ObjectId) -> Vec<u8> {
    let mut key = object.inode.0.to_be_bytes().to_vec();
    key.extend_from_slice(&object.slot.to_be_bytes());
    key.push(object.mirror);
    key
}

/// The key of a block.
pub fn block_key(object: ObjectId, block: u64) -> Vec<u8> {
    let mut key = object_key(object);
    key.extend_from_slice(&block.to_be_bytes());
    key
}

/// What a key names.
pub fn decode_key(key: &[u8]) -> FsResult<DataKey> {
    let malformed = || Damage::new("data", "malformed key");
    let (inode, rest) = split_number("data", key)?;
    let (slot, rest) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
    let (mirror, rest) = rest.split_first().ok_or_else(malformed)?;
    let object = ObjectId { inode: InodeNumber(inode), slot: u32::from_be_bytes(*slot), mirror: *mirror };
    match rest {
        [] => Ok(DataKey::Object(object)),
        block => {
            let block = block.try_into().map_err(|_| malformed())?;
            Ok(DataKey::Block(object, u64::from_be_bytes(block)))
        }
    }
}

/// An object on this MDT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change.
    pub mtime: Timestamp,
    /// Blocks held.
    pub blocks: u64,
    /// Changes so far of its data and size.
    pub changes: u64,
}

impl ObjectRecord {
    /// Its data or size change.
    pub fn change(&mut self, now: Timestamp) {
        self.mtime = self.mtime.max(now);
        self.changes = self.changes.saturating_add(1);
    }

    /// What clients see of it. Space is in 512-byte units.
    pub fn attributes(&self) -> ObjectAttributes {
        let blocks = self.blocks * (BLOCK_BYTES / 512);
        ObjectAttributes { size: self.size, blocks, mtime: self.mtime, changes: self.changes }
    }

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        RecordWriter::new(OBJECT_VERSION).u64(self.size).time(self.mtime).u64(self.blocks).u64(self.changes).finish()
    }

    /// From the value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        let mut reader = RecordReader::new(WHAT_OBJECT, value, OBJECT_VERSION)?;
        let (size, mtime, blocks) = (reader.u64()?, reader.time()?, reader.u64()?);
        let record = Self { size, mtime, blocks, changes: reader.u64()? };
        if record.blocks > u64::MAX / BLOCK_BYTES {
            return Err(reader.invalid("number of blocks out of range").into());
        }
        reader.finish()?;
        Ok(record)
    }
}

/// The value of a block with these bytes, zeros following; `checksum` is that of the whole block.
pub fn encode_block(checksum: u32, bytes: &[u8]) -> Vec<u8> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    RecordWriter::new(BLOCK_VERSION).u32(checksum).rest(&bytes[..end]).finish()
}

/// Checksum and bytes of a block; zeros follow. Not verified.
pub fn decode_block(value: &[u8]) -> FsResult<(u32, &[u8])> {
    let mut reader = RecordReader::new(WHAT_BLOCK, value, BLOCK_VERSION)?;
    let checksum = reader.u32()?;
    let bytes = reader.rest();
    if bytes.len() > BLOCK { Err(reader.invalid("too long").into()) } else { Ok((checksum, bytes)) }
}

/// Fills `target`, zeros of a block's length, from a block's value; its checksum, or `None` if they
/// do not match.
pub fn load_block(value: &[u8], target: &mut [u8]) -> FsResult<Option<u32>> {
    let (checksum, bytes) = decode_block(value)?;
    target[..bytes.len()].copy_from_slice(bytes);
    Ok((crc32c(target) == checksum).then_some(checksum))
}

#[cfg(test)]
mod tests {
    use rpc::checksum::ZERO_BLOCK;

    use super::*;

    const OBJECT: ObjectId = ObjectId::new(InodeNumber(0x1234), 7);

    #[test]
    fn keys_round_trip_and_blocks_follow_their_object() {
        assert_eq!(decode_key(&object_key(OBJECT)), Ok(DataKey::Object(OBJECT)));
        assert_eq!(decode_key(&block_key(OBJECT, 1 << 40)), Ok(DataKey::Block(OBJECT, 1 << 40)));
        assert!(object_key(OBJECT) < block_key(OBJECT, 0));
        assert!(block_key(OBJECT, u64::MAX) < object_key(ObjectId { slot: 8, ..OBJECT }));
        for length in [0, 8, 11, 12, 14, 20, 22] {
            assert!(decode_key(&vec![0; length]).is_err(), "{length}");
        }
    }

    #[test]
    fn objects_round_trip() {
        let record = ObjectRecord { size: 5, mtime: Timestamp { seconds: -1, nanoseconds: 2 }, blocks: 3, changes: 4 };
        let value = record.encode();
        assert_eq!(ObjectRecord::decode(&value), Ok(record));
        assert!(ObjectRecord::decode(&value[..value.len() - 1]).is_err());
        let absurd = ObjectRecord { blocks: u64::MAX, ..record };
        assert!(ObjectRecord::decode(&absurd.encode()).is_err());
    }

    #[test]
    fn blocks_lose_their_zeros_and_damage_is_found() {
        let mut block = vec![0; BLOCK];
        block[..3].copy_from_slice(b"abc");
        let value = encode_block(crc32c(&block), &block);
        assert_eq!(value.len(), 1 + 4 + 3);
        let mut loaded = vec![0; BLOCK];
        assert_eq!(load_block(&value, &mut loaded), Ok(Some(crc32c(&block))));
        assert_eq!(loaded, block);
        let mut damaged = value.clone();
        damaged[6] ^= 1;
        assert_eq!(load_block(&damaged, &mut vec![0; BLOCK]), Ok(None));
        assert_eq!(encode_block(ZERO_BLOCK, &vec![0; BLOCK]).len(), 5);
        assert!(decode_block(&vec![BLOCK_VERSION; 5 + BLOCK + 1]).is_err());
        assert!(decode_block(&[1, 0, 0, 0, 0]).is_err());
    }
}
