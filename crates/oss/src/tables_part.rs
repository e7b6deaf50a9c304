//! The part of a device that has the tables of its target: the blocks after the first label.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | blocks |
//! | 8 | 4 | bytes of a journal segment |
//! | 12 | 4 | journal segments |
//! | 16 | 4 | bytes of a node of the tree |
//! | 20 | 4 | alignment of the tree, in bytes |
//!
//! What is where in it: [`kv::region`].
//!
//! Its default size: 1/32 of the device. For each MiB of data the tables have a record of 1.1 to
//! 5.5 KB (checksums, places), in nodes that are two thirds full: up to 0.8%, mostly 0.15%. The
//! rest is for objects of up to 64 KiB, whose data are in the tables. On small devices the journal
//! and the reserves of the tables take a larger part.

use std::ops::Range;

use kv::region::RegionLayout;
use types::limits::BLOCK_BYTES;

/// Bytes of the record.
pub const BYTES: usize = 24;
/// Of devices as large as this, the part is 1/32.
const SHARE: u64 = 32;
/// Smaller ones have this much, but not more than a quarter.
const TABLES_BYTES_SMALL: u64 = 512 << 20;
const SHARE_SMALL: u64 = 4;
/// Smallest device that has room for its tables.
pub const ONE_DEVICE_BYTES_MIN: u64 = 256 << 20;
/// Journal segments: their size is a 1024th of the device within these limits, a power of two.
const SEGMENTS: u32 = 16;
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
const NODE_BYTES: u32 = 16 << 10;
/// What the page cache of Linux may keep as one, and more.
const ALIGNMENT: u32 = 4 << 20;
/// Blocks for objects that a device must have.
const OBJECT_BLOCKS_MIN: u64 = 256;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablesPart {
    /// Its blocks, from block 1 on.
    pub blocks: u64,
    /// Size of a journal segment.
    pub segment_bytes: u32,
    /// Journal segments.
    pub segments: u32,
    /// Size of a node of the tree.
    pub node_bytes: u32,
    /// The tree begins at a multiple of this.
    pub alignment: u32,
}

impl TablesPart {
    /// The part of a device of so many blocks that is to be formatted; `tables_bytes`: how large
    /// the administrator wants it. `None`: the device, or the part, is too small, or the part too
    /// large.
    pub fn of_new(device_blocks: u64, tables_bytes: Option<u64>) -> Option<TablesPart> {
        let bytes = device_blocks.checked_mul(BLOCK_BYTES).filter(|bytes| *bytes >= ONE_DEVICE_BYTES_MIN)?;
        let default = (bytes / SHARE).max(TABLES_BYTES_SMALL.min(bytes / SHARE_SMALL));
        let segment_bytes = (bytes / 1024).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let part = TablesPart {
            blocks: tables_bytes.unwrap_or(default) / BLOCK_BYTES,
            segment_bytes: 1 << segment_bytes.ilog2(),
            segments: SEGMENTS,
            node_bytes: NODE_BYTES,
            alignment: ALIGNMENT,
        };
        // Less than this would be full of reserves.
        let is_useful = part.layout().is_some_and(|layout| layout.tree_bytes >= TABLES_BYTES_MIN);
        (is_useful && part.is_possible(device_blocks)).then_some(part)
    }

    /// Blocks of the device.
    pub fn range(&self) -> Range<u64> {
        1..self.blocks.saturating_add(1)
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES)
    }

    /// Where everything is in it.
    pub fn layout(&self) -> Option<RegionLayout> {
        let end = self.range().end.checked_mul(BLOCK_BYTES)?;
        RegionLayout::new(BLOCK_BYTES..end, self.segment_bytes.into(), self.segments, self.alignment.into())
    }

    /// Whether a device of so many blocks can have it.
    pub fn is_possible(&self, device_blocks: u64) -> bool {
        self.layout().is_some() && self.range().end.saturating_add(OBJECT_BLOCKS_MIN) < device_blocks
    }

    /// The record's bytes.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.blocks.to_le_bytes());
        let numbers = [self.segment_bytes, self.segments, self.node_bytes, self.alignment];
        for (place, number) in bytes[8..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The record of these bytes; see [`TablesPart::is_possible`].
    pub fn decode(bytes: &[u8; BYTES]) -> TablesPart {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        TablesPart {
            blocks: u64::from(number(0)) | u64::from(number(4)) << 32,
            segment_bytes: number(8),
            segments: number(12),
            node_bytes: number(16),
            alignment: number(20),
        }
    }
}

/// Bytes of the smallest tree that is made.
const TABLES_BYTES_MIN: u64 = 32 << 20;

const _: () = assert!(
    TABLES_BYTES_MIN + SEGMENTS as u64 * SEGMENT_BYTES_MIN + 2 * ALIGNMENT as u64 <= ONE_DEVICE_BYTES_MIN / SHARE_SMALL,
    "the smallest device has the smallest tree"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let part = TablesPart {
            blocks: 1 << 40,
            segment_bytes: 1 << 24,
            segments: 16,
            node_bytes: 1 << 14,
            alignment: 1 << 22,
        };
        let expected = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 16, 0, 0, 0, 0, 64, 0, 0, 0, 0, 64, 0];
        assert_eq!(part.encode(), expected);
        assert_eq!(TablesPart::decode(&expected), part);
    }

    #[test]
    fn parts_are_a_share_of_the_device() {
        const MIB: u64 = 1 << 20;
        for (device_mib, wanted_mib, expected) in [
            (255, None, None),
            (256, None, Some((64, 1))),
            (1024, None, Some((256, 1))),
            (4096, None, Some((512, 4))),
            (1 << 20, None, Some((32 << 10, 16))),
            (23 << 20, None, Some((736 << 10, 16))),
            (1024, Some(64), Some((64, 1))),
            (1024, Some(1000), Some((1000, 1))),
            (1024, Some(40), None),
            (1024, Some(1023), None),
            (1024, Some(5000), None),
        ] {
            let part = TablesPart::of_new(device_mib * 256, wanted_mib.map(|mib: u64| mib * MIB));
            let found = part.map(|part| (part.blocks / 256, u64::from(part.segment_bytes) / MIB));
            assert_eq!(found, expected, "{device_mib} {wanted_mib:?}");
        }
        assert_eq!(TablesPart::of_new(u64::MAX, None), None);
        let damaged = TablesPart { blocks: u64::MAX, ..TablesPart::of_new(1 << 20, None).unwrap() };
        assert!(!damaged.is_possible(u64::MAX) && damaged.layout().is_none());
    }
}
