//! The record of an object: what a glimpse answers, and what decides about its host file.
//!
//! ```text
//! offset bytes
//!  0     1    version, 1
//!  1     1    flags: bit 0 the object has, or may have, a host file; bit 1 it is fenced
//!  2     8    size in bytes
//! 10     8    time of the last change: seconds since 1970, signed
//! 18     4    ... nanoseconds
//! 22     8    blocks that hold data
//! 30     8    of these, blocks that are inline
//! 38     8    fenced: the oldest generation of a layout by which it is read and changed
//! ```
//!
//! Numbers are little endian. Invariant: inline blocks <= blocks that hold data.

use types::{Timestamp, limits::BLOCK_BYTES};

use crate::codec::{DecodeError, Reader};
use rpc::message::ost::ObjectAttributes;

const VERSION: u8 = 1;
const FLAG_HOST_FILE: u8 = 1;
const FLAG_FENCED: u8 = 2;
/// With a fence; without one it ends before.
const RECORD_BYTES_MAX: usize = 46;

/// An object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectRecord {
    /// The object has a host file, or may have one. Never cleared.
    pub host_file: bool,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change.
    pub mtime: Timestamp,
    /// Blocks of 4096 bytes that hold data.
    pub blocks: u64,
    /// Of these, the ones that are inline.
    pub inline_blocks: u64,
    /// The oldest generation of the file's layout by which it is read and changed; 0: any.
    pub fence: u64,
}

impl ObjectRecord {
    /// What clients see of it. Space is in 512-byte units.
    pub fn attributes(&self) -> ObjectAttributes {
        ObjectAttributes { size: self.size, blocks: self.blocks * (BLOCK_BYTES / 512), mtime: self.mtime }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES_MAX);
        bytes.push(VERSION);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        bytes.push(flag(self.host_file, FLAG_HOST_FILE) | flag(self.fence > 0, FLAG_FENCED));
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.mtime.seconds.to_le_bytes());
        bytes.extend(self.mtime.nanoseconds.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend(self.inline_blocks.to_le_bytes());
        if self.fence > 0 {
            bytes.extend(self.fence.to_le_bytes());
        }
        bytes
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::with_version(bytes, VERSION)?;
        let flags = reader.u8()?;
        if flags & !(FLAG_HOST_FILE | FLAG_FENCED) != 0 {
            return Err(DecodeError::OutOfRange("flags"));
        }
        let record = Self {
            host_file: flags & FLAG_HOST_FILE != 0,
            size: reader.u64()?,
            mtime: Timestamp { seconds: reader.i64()?, nanoseconds: reader.u32()? },
            blocks: reader.u64()?,
            inline_blocks: reader.u64()?,
            fence: if flags & FLAG_FENCED != 0 { reader.u64()? } else { 0 },
        };
        reader.finish()?;
        if (record.fence > 0) != (flags & FLAG_FENCED != 0) {
            return Err(DecodeError::OutOfRange("fence"));
        }
        if record.mtime.nanoseconds >= 1_000_000_000 {
            return Err(DecodeError::OutOfRange("nanoseconds"));
        }
        if record.inline_blocks > record.blocks || record.blocks > u64::MAX / BLOCK_BYTES {
            return Err(DecodeError::OutOfRange("number of blocks"));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn round_trips(host_file: bool, size: u64, seconds: i64, nanoseconds in 0u32..1_000_000_000,
                       blocks in 0u64..1 << 51, part in 0u64..1 << 51, fence in prop_oneof![Just(0), 1u64..]) {
            let mtime = Timestamp { seconds, nanoseconds };
            let record = ObjectRecord { host_file, size, mtime, blocks, inline_blocks: part.min(blocks), fence };
            let bytes = record.encode();
            prop_assert_eq!(bytes.len(), if fence > 0 { RECORD_BYTES_MAX } else { RECORD_BYTES_MAX - 8 });
            prop_assert_eq!(ObjectRecord::decode(&bytes), Ok(record));
            for length in 0..bytes.len() {
                prop_assert!(ObjectRecord::decode(&bytes[..length]).is_err());
            }
        }

        #[test]
        fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = ObjectRecord::decode(&bytes);
        }
    }

    /// Version 1 as it was first released: these bytes must stay readable.
    #[test]
    fn golden_bytes() {
        let record = ObjectRecord {
            host_file: true,
            size: 0x0102,
            mtime: Timestamp { seconds: -1, nanoseconds: 5 },
            blocks: 3,
            inline_blocks: 1,
            fence: 0,
        };
        let mut golden = vec![1, 1, 2, 1, 0, 0, 0, 0, 0, 0];
        golden.extend([0xff; 8]);
        golden.extend([5, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record.encode(), golden);
        assert_eq!(record.attributes().blocks, 24);
        golden[1] = 3;
        golden.extend([9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ObjectRecord { fence: 9, ..record }.encode(), golden);
    }
}
