//! A device as allocation groups.
//!
//! ```text
//! block   0            32768          65536                  end
//!         | group 0    | group 1      | group 2 ...          |
//!           128 MiB      128 MiB        the last one may be shorter
//! ```
//!
//! As on ldiskfs with blocks of 4 KiB, where a group has as many blocks as a block has bits. 23 TB
//! have 171,364 groups ("over 160,000" in study E4).

use std::ops::Range;

use types::limits::BLOCK_BYTES;

/// Blocks of a group.
pub const GROUP_BLOCKS: u32 = 32_768;

/// So that the number of groups fits 32 bits: 512 PiB.
const BLOCKS_MAX: u64 = GROUP_BLOCKS as u64 * u32::MAX as u64;

const _: () = assert!(GROUP_BLOCKS as u64 * BLOCK_BYTES == 128 << 20, "a group has 128 MiB");
const _: () = assert!(GROUP_BLOCKS as u64 == 8 * BLOCK_BYTES, "the bitmap of a group fits a block");

/// How many blocks a device has, and which group they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    blocks: u64,
}

impl Geometry {
    /// A device of so many blocks; `None` if it has none, or more than can be numbered.
    pub fn new(blocks: u64) -> Option<Self> {
        (1..=BLOCKS_MAX).contains(&blocks).then_some(Self { blocks })
    }

    /// Blocks of the device.
    pub fn blocks(self) -> u64 {
        self.blocks
    }

    /// Groups of the device.
    pub fn groups(self) -> u32 {
        self.blocks.div_ceil(u64::from(GROUP_BLOCKS)) as u32
    }

    /// The group of a block.
    pub fn group_of(self, block: u64) -> u32 {
        assert!(block < self.blocks, "the block is on the device");
        (block / u64::from(GROUP_BLOCKS)) as u32
    }

    /// First block of a group.
    pub fn start_of(self, group: u32) -> u64 {
        u64::from(group) * u64::from(GROUP_BLOCKS)
    }

    /// Blocks of a group: fewer in the last one.
    pub fn blocks_of(self, group: u32) -> u32 {
        assert!(group < self.groups(), "the group is on the device");
        (self.blocks - self.start_of(group)).min(u64::from(GROUP_BLOCKS)) as u32
    }

    /// Blocks of the device as pieces within one group each: the group, and its blocks.
    pub fn pieces(self, blocks: Range<u64>) -> impl Iterator<Item = (u32, Range<u32>)> {
        assert!(blocks.end <= self.blocks, "the blocks are on the device");
        let mut next = blocks.start;
        std::iter::from_fn(move || {
            if next >= blocks.end {
                return None;
            }
            let group = self.group_of(next);
            let start = self.start_of(group);
            let end = blocks.end.min(start + u64::from(GROUP_BLOCKS));
            let piece = (next - start) as u32..(end - start) as u32;
            next = end;
            Some((group, piece))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_device_has_over_160_000_groups() {
        let geometry = Geometry::new(23_000_000_000_000 / 4096).unwrap();
        assert_eq!(geometry.groups(), 171_364);
        assert_eq!(geometry.blocks_of(0), GROUP_BLOCKS);
        assert_eq!(geometry.blocks_of(171_363), 11_591);
    }

    #[test]
    fn pieces_end_at_the_ends_of_groups() {
        let geometry = Geometry::new(70_000).unwrap();
        let pieces: Vec<_> = geometry.pieces(32_760..70_000).collect();
        assert_eq!(pieces, [(0, 32_760..32_768), (1, 0..32_768), (2, 0..4_464)]);
        assert_eq!(geometry.pieces(5..5).count(), 0);
        assert_eq!((geometry.groups(), geometry.blocks_of(2)), (3, 4_464));
    }

    #[test]
    fn sizes_are_limited() {
        assert_eq!(Geometry::new(0), None);
        assert_eq!(Geometry::new(BLOCKS_MAX + 1), None);
        assert_eq!(Geometry::new(BLOCKS_MAX).map(Geometry::groups), Some(u32::MAX));
    }
}
