//! The record of an object: the answer to a glimpse, and the state of its host file.
//!
//! ```text
//! offset bytes
//!  0     1    version, 2
//!  1     1    flags: bit 0 the object has, or may have, a host file; bit 1 it is fenced; bit 2 its changes are counted;
//!            bit 3 space is reserved; bit 4 its origin is known
//!  2     8    size in bytes
//! 10     8    time of the last change: seconds since 1970, signed
//! 18     4    ... nanoseconds
//! 22     8    blocks that hold data
//! 30     8    of these, blocks that are inline
//! ..     8    fenced: the oldest generation of a layout by which it is read and changed
//! ..     8    counted: changes so far of its data and size; 0 without
//! ..     8    origin: generation of the file's layout under which the object was first changed
//! ..     12   ... owner of the file then: user, group, project (4 each)
//! ..     1    reserved: ranges of blocks that are reserved in the host file, 1 to 8
//! ..     8    ... blocks in them that hold no data
//! ..     16   ... each range: first block (8), end (8); in order, neither overlapping nor touching
//! ```
//!
//! Numbers are little endian. Invariant: inline blocks <= blocks that hold data. Only a fence makes
//! an object whose origin is not known; its first change adds that.

use types::{
    Owner, Timestamp,
    limits::{BLOCK_BYTES, FILE_BYTES_MAX},
    record::{DecodeError, RecordReader},
};

use crate::reserved::{RESERVED_BYTES_MAX, Reserved};
use rpc::message::ost::ObjectAttributes;

const VERSION: u8 = 2;
const WHAT: &str = "object record";
const FLAG_HOST_FILE: u8 = 1;
const FLAG_FENCED: u8 = 2;
const FLAG_COUNTED: u8 = 4;
const FLAG_RESERVED: u8 = 8;
const FLAG_ORIGIN: u8 = 16;
const FLAGS_ALL: u8 = 31;
/// Blocks of the largest object.
const BLOCKS_MAX: u64 = FILE_BYTES_MAX.div_ceil(BLOCK_BYTES);
/// With everything that may be left out.
const RECORD_BYTES_MAX: usize = 74 + RESERVED_BYTES_MAX;

/// What an object's first change says of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectOrigin {
    /// Generation of the layout by which it was made.
    pub layout_generation: u64,
    /// Owner of the file, to whom the object's space is to be accounted.
    pub owner: Owner,
}

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
    /// Changes so far of its data and size.
    pub changes: u64,
    /// From its first change on.
    pub origin: Option<ObjectOrigin>,
    /// What is reserved for it in its host file.
    pub reserved: Reserved,
}

impl ObjectRecord {
    /// Its data or size change, at `now` by this host's clock.
    pub fn change(&mut self, now: Timestamp) {
        self.mtime = self.mtime.max(now);
        self.changes = self.changes.saturating_add(1);
    }

    /// It is changed for the first time, unless it has an origin already.
    pub fn originate(&mut self, origin: ObjectOrigin) {
        self.origin.get_or_insert(origin);
    }

    /// Asserts that a change may have led here from `before`, for an object that goes on existing.
    pub(crate) fn assert_follows(&self, before: &Self) {
        assert!(self.fence >= before.fence, "a fence only rises: {} after {}", self.fence, before.fence);
        assert!(self.changes >= before.changes, "changes are counted up: {} after {}", self.changes, before.changes);
        assert!(self.mtime >= before.mtime, "the time of the last change does not go back");
        assert!(self.host_file || !before.host_file, "an object keeps its host file");
        let keeps = before.origin.is_none() || self.origin == before.origin;
        assert!(keeps, "an object keeps its origin: {:?} after {:?}", self.origin, before.origin);
    }

    /// What clients see of it. Space is in 512-byte units.
    pub fn attributes(&self) -> ObjectAttributes {
        let blocks = self.blocks.saturating_add(self.reserved.empty()).saturating_mul(BLOCK_BYTES / 512);
        ObjectAttributes { size: self.size, blocks, mtime: self.mtime, changes: self.changes }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES_MAX);
        bytes.push(VERSION);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let fenced = flag(self.fence > 0, FLAG_FENCED);
        let counted = flag(self.changes > 0, FLAG_COUNTED);
        let reserves = self.reserved.ranges().next().is_some();
        let originated = flag(self.origin.is_some(), FLAG_ORIGIN);
        let host_file = flag(self.host_file, FLAG_HOST_FILE);
        bytes.push(host_file | fenced | counted | flag(reserves, FLAG_RESERVED) | originated);
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.mtime.seconds.to_le_bytes());
        bytes.extend(self.mtime.nanoseconds.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend(self.inline_blocks.to_le_bytes());
        for optional in [self.fence, self.changes].into_iter().filter(|value| *value > 0) {
            bytes.extend(optional.to_le_bytes());
        }
        if let Some(ObjectOrigin { layout_generation, owner }) = self.origin {
            bytes.extend(layout_generation.to_le_bytes());
            [owner.uid, owner.gid, owner.project].into_iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        }
        if reserves {
            self.reserved.encode(&mut bytes);
        }
        bytes
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = RecordReader::new(WHAT, bytes, VERSION)?;
        let flags = reader.u8()?;
        if flags & !FLAGS_ALL != 0 {
            return Err(reader.out_of_range("flags"));
        }
        let record = Self {
            host_file: flags & FLAG_HOST_FILE != 0,
            size: reader.u64()?,
            mtime: reader.time()?,
            blocks: reader.u64()?,
            inline_blocks: reader.u64()?,
            fence: if flags & FLAG_FENCED != 0 { reader.u64()? } else { 0 },
            changes: if flags & FLAG_COUNTED != 0 { reader.u64()? } else { 0 },
            origin: if flags & FLAG_ORIGIN != 0 { Some(decode_origin(&mut reader)?) } else { None },
            reserved: if flags & FLAG_RESERVED != 0 { Reserved::decode(&mut reader)? } else { Reserved::default() },
        };
        reader.finish()?;
        if (record.fence > 0) != (flags & FLAG_FENCED != 0) {
            return Err(reader.out_of_range("fence"));
        }
        if (record.changes > 0) != (flags & FLAG_COUNTED != 0) {
            return Err(reader.out_of_range("number of changes"));
        }
        if record.inline_blocks > record.blocks || record.blocks > BLOCKS_MAX {
            return Err(reader.out_of_range("number of blocks"));
        }
        Ok(record)
    }
}

fn decode_origin(reader: &mut RecordReader<'_>) -> Result<ObjectOrigin, DecodeError> {
    let layout_generation = reader.u64()?;
    let owner = Owner { uid: reader.u32()?, gid: reader.u32()?, project: reader.u32()? };
    Ok(ObjectOrigin { layout_generation, owner })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of blocks 0x10..0x20, two hold data.
    fn reserved() -> Reserved {
        let none = Reserved::default();
        none.after(&none.with(&(0x10..0x20)), 14, 0)
    }

    proptest! {
        #[test]
        fn round_trips(host_file: bool, size: u64, seconds: i64, nanoseconds in 0u32..1_000_000_000,
                       blocks in 0..=BLOCKS_MAX, part in 0..=BLOCKS_MAX, fence in prop_oneof![Just(0), 1u64..],
                       changes in prop_oneof![Just(0), 1u64..], reserves: bool, originated: bool) {
            let mtime = Timestamp { seconds, nanoseconds };
            let inline_blocks = part.min(blocks);
            let reserved = if reserves { reserved() } else { Reserved::default() };
            let owner = Owner { uid: 1, gid: u32::MAX, project: 7 };
            let origin = originated.then_some(ObjectOrigin { layout_generation: size, owner });
            let record =
                ObjectRecord { host_file, size, mtime, blocks, inline_blocks, fence, changes, origin, reserved };
            let bytes = record.encode();
            let optional = [fence, changes].iter().filter(|value| **value > 0).count() * 8;
            let of_origin = if originated { 20 } else { 0 };
            prop_assert_eq!(bytes.len(), 38 + optional + of_origin + if reserves { 1 + 8 + 16 } else { 0 });
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

    /// Version 2 as it was first released: these bytes must stay readable.
    #[test]
    fn golden_bytes() {
        let record = ObjectRecord {
            host_file: true,
            size: 0x0102,
            mtime: Timestamp { seconds: -1, nanoseconds: 5 },
            blocks: 3,
            inline_blocks: 1,
            fence: 0,
            changes: 0,
            origin: None,
            reserved: Reserved::default(),
        };
        let mut golden = vec![2, 1, 2, 1, 0, 0, 0, 0, 0, 0];
        golden.extend([0xff; 8]);
        golden.extend([5, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record.encode(), golden);
        assert_eq!(record.attributes().blocks, 24);
        golden[1] = 3;
        golden.extend([9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ObjectRecord { fence: 9, ..record }.encode(), golden);
        golden[1] = 7;
        golden.extend([4, 3, 0, 0, 0, 0, 0, 0]);
        let record = ObjectRecord { fence: 9, changes: 0x0304, ..record };
        assert_eq!(record.encode(), golden);
        golden[1] = 23;
        golden.extend([6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        let owner = Owner { uid: 1, gid: 2, project: 3 };
        let record = ObjectRecord { origin: Some(ObjectOrigin { layout_generation: 6, owner }), ..record };
        assert_eq!(record.encode(), golden);
        golden[1] = 31;
        golden.extend([1, 14, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0]);
        let reserving = ObjectRecord { reserved: reserved(), ..record };
        assert_eq!(reserving.encode(), golden);
        assert_eq!(reserving.attributes().blocks, (3 + 14) * 8);
    }

    #[test]
    fn a_clock_that_goes_back_hides_no_change() {
        let (early, late) = (Timestamp { seconds: 1, nanoseconds: 0 }, Timestamp { seconds: 2, nanoseconds: 0 });
        let mut record = ObjectRecord::default();
        record.change(late);
        record.change(early);
        assert_eq!((record.mtime, record.changes), (late, 2));
    }
}
