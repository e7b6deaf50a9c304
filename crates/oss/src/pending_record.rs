//! A range of a host file whose space is to be freed once the removal of its blocks is durable.
//!
//! ```text
//! offset bytes
//!  0     1    version, 2
//!  1     8    object: inode
//!  9     4    ... slot
//! 13     1    ... mirror
//! 14     8    first block
//! 22     8    block after the last; 2^64 - 1: to the end of the file
//! ```
//!
//! Numbers are little endian. The record exists from the removal until the host file was punched;
//! as long as it does, no block of the range is in place.

use std::ops::Range;

use types::{
    InodeNumber, ObjectId,
    record::{DecodeError, RecordReader},
};

const VERSION: u8 = 2;
const WHAT: &str = "pending removal";

/// Space to be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRecord {
    /// The object; it may be gone.
    pub object: ObjectId,
    /// Blocks of its host file.
    pub blocks: Range<u64>,
}

impl PendingRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.object.inode.0.to_le_bytes());
        bytes.extend(self.object.slot.to_le_bytes());
        bytes.push(self.object.mirror);
        bytes.extend(self.blocks.start.to_le_bytes());
        bytes.extend(self.blocks.end.to_le_bytes());
        bytes
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = RecordReader::new(WHAT, bytes, VERSION)?;
        let object = ObjectId { inode: InodeNumber(reader.u64()?), slot: reader.u32()?, mirror: reader.u8()? };
        let blocks = reader.u64()?..reader.u64()?;
        reader.finish()?;
        if blocks.is_empty() {
            return Err(reader.out_of_range("range of blocks"));
        }
        Ok(Self { object, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_damage() {
        let object = ObjectId { mirror: 1, ..ObjectId::new(InodeNumber(7), 3) };
        let record = PendingRecord { object, blocks: 5..u64::MAX };
        let bytes = record.encode();
        assert_eq!(PendingRecord::decode(&bytes), Ok(record.clone()));
        for length in 0..bytes.len() {
            assert!(PendingRecord::decode(&bytes[..length]).is_err());
        }
        let empty = PendingRecord { blocks: 5..5, ..record };
        assert!(PendingRecord::decode(&empty.encode()).is_err());
    }
}
