//! RAID-0 striping: which byte of a file is which byte of which object.
//!
//! ```text
//! stripe_bytes = S, three OSTs                 object offsets
//! file      |  0  |  1  |  2  |  3  |  4  |    slot 0: stripe 0 at 0, stripe 3 at S
//! slot         0     1     2     0     1       slot 1: stripe 1 at 0, stripe 4 at S
//! ```
//!
//! Invariants: file bytes and object bytes are in bijection; the bytes a contiguous file range has in one object are
//! contiguous there; the file's size is the largest of the sizes its objects imply. All functions are total: no
//! argument overflows or panics as long as the layout is valid ([`PlainLayout::validate`], to be called on whatever
//! comes from disk or wire) and the slot exists. Limits on file sizes are the caller's to check.

use serde::{Deserialize, Serialize};
use types::{
    OstIndex,
    limits::{BLOCK_BYTES, STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, STRIPE_COUNT_MAX},
};

/// Stripe `n` of the file (bytes `n*stripe_bytes..(n+1)*stripe_bytes`) lies in slot `n % osts.len()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainLayout {
    /// Bytes per stripe; a multiple of 64 KiB below 4 GiB.
    pub stripe_bytes: u64,
    /// The OST of each slot; 1..=2000 entries. Slot `i`'s object is named `(inode, i)`.
    pub osts: Vec<OstIndex>,
}

/// Why a plain layout cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlainLayoutError {
    /// Not a multiple of 64 KiB, or zero.
    #[error("stripe size {0} is not a positive multiple of 65536")]
    StripeBytesUnaligned(u64),
    /// 4 GiB or more.
    #[error("stripe size {0} is not below 4 GiB")]
    StripeBytesTooLarge(u64),
    /// No slot at all.
    #[error("layout has no stripes")]
    NoStripes,
    /// More slots than a layout may have.
    #[error("stripe count {0} exceeds 2000")]
    TooManyStripes(usize),
}

/// Checks a stripe size against its limits.
pub(crate) fn check_stripe_bytes(stripe_bytes: u64) -> Result<(), PlainLayoutError> {
    if stripe_bytes == 0 || !stripe_bytes.is_multiple_of(STRIPE_BYTES_MIN) {
        return Err(PlainLayoutError::StripeBytesUnaligned(stripe_bytes));
    }
    if stripe_bytes > STRIPE_BYTES_MAX {
        return Err(PlainLayoutError::StripeBytesTooLarge(stripe_bytes));
    }
    Ok(())
}

impl PlainLayout {
    /// Whether all functions of this layout may be used.
    pub fn validate(&self) -> Result<(), PlainLayoutError> {
        check_stripe_bytes(self.stripe_bytes)?;
        match self.osts.len() {
            0 => Err(PlainLayoutError::NoStripes),
            count if count > STRIPE_COUNT_MAX as usize => Err(PlainLayoutError::TooManyStripes(count)),
            _ => Ok(()),
        }
    }

    /// Number of slots.
    pub fn stripe_count(&self) -> u32 {
        self.osts.len() as u32
    }

    /// The slot that holds the byte at `offset` of the file.
    pub fn slot_of(&self, offset: u64) -> u32 {
        (offset / self.stripe_bytes % self.osts.len() as u64) as u32
    }

    /// Where the byte at `offset` of the file lies within its slot's object.
    pub fn object_offset(&self, offset: u64) -> u64 {
        let round = offset / self.stripe_bytes / self.osts.len() as u64;
        round * self.stripe_bytes + offset % self.stripe_bytes
    }

    /// The inverse: which byte of the file is the byte at `object_offset` of `slot`'s object. Saturates at `u64::MAX`,
    /// which no valid file reaches: an object that large is damaged.
    pub fn file_offset(&self, slot: u32, object_offset: u64) -> u64 {
        Striping::of(self).file_offset(slot, object_offset)
    }

    /// The size of `slot`'s object if the file has `file_size` bytes: how many of the file's first `file_size` bytes lie
    /// in it. A truncation of the file to a size truncates each object to this.
    pub fn object_size(&self, slot: u32, file_size: u64) -> u64 {
        assert!((slot as usize) < self.osts.len(), "slot {slot} of a layout with {} stripes", self.osts.len());
        let (stripes, rest) = (file_size / self.stripe_bytes, file_size % self.stripe_bytes);
        let (rounds, slot_of_end) = (stripes / self.osts.len() as u64, stripes % self.osts.len() as u64);
        let last = match u64::from(slot).cmp(&slot_of_end) {
            std::cmp::Ordering::Less => self.stripe_bytes,
            std::cmp::Ordering::Equal => rest,
            std::cmp::Ordering::Greater => 0,
        };
        rounds * self.stripe_bytes + last
    }

    /// The file size that an object of `object_size` bytes in `slot` implies: just past its last byte. The file's size is
    /// the largest over all slots.
    pub fn file_size(&self, slot: u32, object_size: u64) -> u64 {
        match object_size.checked_sub(1) {
            None => 0,
            Some(last) => self.file_offset(slot, last).saturating_add(1),
        }
    }

    /// Splits the file range of `bytes` from `offset`: one entry per object touched, in the order in which the range first
    /// touches them. A range that would pass `u64::MAX` ends there.
    pub fn ranges(&self, offset: u64, bytes: u64) -> impl Iterator<Item = ObjectRange> + '_ {
        let end = offset.saturating_add(bytes);
        let touched = match end.checked_sub(1) {
            Some(last) if last >= offset => (last / self.stripe_bytes - offset / self.stripe_bytes).saturating_add(1),
            _ => 0,
        };
        let count = self.osts.len() as u64;
        let first = u64::from(self.slot_of(offset));
        (0..touched.min(count)).map(move |step| {
            let slot = ((first + step) % count) as u32;
            let start = self.object_size(slot, offset);
            ObjectRange {
                slot,
                ost: self.osts[slot as usize],
                offset: start,
                bytes: self.object_size(slot, end) - start,
                striping: Striping::of(self),
            }
        })
    }
}

/// The numbers of a layout without its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Striping {
    stripe_bytes: u64,
    stripe_count: u32,
}

impl Striping {
    fn of(layout: &PlainLayout) -> Self {
        Self { stripe_bytes: layout.stripe_bytes, stripe_count: layout.stripe_count() }
    }

    fn file_offset(self, slot: u32, object_offset: u64) -> u64 {
        assert!(slot < self.stripe_count, "slot {slot} of a layout with {} stripes", self.stripe_count);
        let (round, within) = (object_offset / self.stripe_bytes, object_offset % self.stripe_bytes);
        round
            .checked_mul(u64::from(self.stripe_count))
            .and_then(|stripes| stripes.checked_add(u64::from(slot)))
            .and_then(|stripe| stripe.checked_mul(self.stripe_bytes))
            .and_then(|start| start.checked_add(within))
            .unwrap_or(u64::MAX)
    }
}

/// The part of a file range that lies in one object; contiguous there, cut into stripes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// Slot of the object.
    pub slot: u32,
    /// The OST that holds it.
    pub ost: OstIndex,
    /// First byte within the object.
    pub offset: u64,
    /// Bytes; never 0.
    pub bytes: u64,
    striping: Striping,
}

/// A run of bytes that is contiguous in the file and in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte within the file.
    pub file_offset: u64,
    /// First byte within the object.
    pub object_offset: u64,
    /// Bytes; never 0, at most a stripe unless the layout has a single slot.
    pub bytes: u64,
}

impl ObjectRange {
    /// The range's pieces in ascending order; they cover it exactly.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let Self { slot, offset, bytes, striping, .. } = *self;
        let end = offset + bytes;
        let mut next = offset;
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let to_boundary = striping.stripe_bytes - next % striping.stripe_bytes;
            let bytes = if striping.stripe_count == 1 { end - next } else { to_boundary.min(end - next) };
            let piece = Piece { file_offset: striping.file_offset(slot, next), object_offset: next, bytes };
            next += bytes;
            Some(piece)
        })
    }

    /// The same range in requests of at most `bytes_max` (at least one block of 4096 bytes), cut at multiples of a block
    /// within the object, so that no checksum block is split over two requests.
    pub fn chunks(&self, bytes_max: u64) -> impl Iterator<Item = ObjectRange> + use<> {
        assert!(bytes_max >= BLOCK_BYTES, "a request must hold at least one block");
        let mut rest = *self;
        std::iter::from_fn(move || {
            if rest.bytes == 0 {
                return None;
            }
            let limit = rest.offset.saturating_add(bytes_max) / BLOCK_BYTES * BLOCK_BYTES - rest.offset;
            let chunk = ObjectRange { bytes: rest.bytes.min(limit), ..rest };
            rest.offset += chunk.bytes;
            rest.bytes -= chunk.bytes;
            Some(chunk)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use types::limits::FILE_BYTES_MAX;

    use super::*;

    fn layout(stripe_bytes: u64, count: u32) -> PlainLayout {
        PlainLayout { stripe_bytes, osts: (0..count).map(|index| OstIndex(index as u16)).collect() }
    }

    #[test]
    fn walks_three_stripes() {
        let layout = layout(65536, 3);
        let ranges: Vec<_> = layout.ranges(65536 * 2 + 100, 65536 * 2).collect();
        let summary: Vec<_> = ranges.iter().map(|range| (range.slot, range.offset, range.bytes)).collect();
        assert_eq!(summary, [(2, 100, 65436), (0, 65536, 65536), (1, 65536, 100)]);
        assert_eq!(layout.object_size(0, 65536 * 3 + 5), 65541);
        assert_eq!(layout.object_size(1, 65536 * 3 + 5), 65536);
        assert_eq!(layout.file_size(1, 1), 65537);
        assert_eq!(layout.file_size(1, 0), 0);
        assert_eq!(layout.ranges(12345, 0).count(), 0);
    }

    #[test]
    fn one_stripe_is_one_piece() {
        let layout = layout(65536, 1);
        let range = layout.ranges(1000, 10 << 20).next().unwrap();
        let piece = Piece { file_offset: 1000, object_offset: 1000, bytes: 10 << 20 };
        assert_eq!(range.pieces().collect::<Vec<_>>(), [piece]);
        let chunks: Vec<_> = range.chunks(4 << 20).map(|chunk| (chunk.offset, chunk.bytes)).collect();
        assert_eq!(chunks[0], (1000, (4 << 20) - 1000), "cut at the block boundary below 4 MiB + 1000");
        assert_eq!(chunks.iter().map(|chunk| chunk.1).sum::<u64>(), 10 << 20);
    }

    #[test]
    fn refuses_what_lustre_refuses() {
        assert_eq!(layout(65537, 1).validate(), Err(PlainLayoutError::StripeBytesUnaligned(65537)));
        assert_eq!(layout(0, 1).validate(), Err(PlainLayoutError::StripeBytesUnaligned(0)));
        assert_eq!(layout(4 << 30, 1).validate(), Err(PlainLayoutError::StripeBytesTooLarge(4 << 30)));
        assert_eq!(layout(65536, 0).validate(), Err(PlainLayoutError::NoStripes));
        assert_eq!(layout(65536, 2001).validate(), Err(PlainLayoutError::TooManyStripes(2001)));
        assert_eq!(layout((4 << 30) - 65536, 2000).validate(), Ok(()));
    }

    #[test]
    fn absurd_objects_saturate() {
        let layout = layout(4 << 20, 2000);
        assert_eq!(layout.file_offset(1999, u64::MAX), u64::MAX);
        assert_eq!(layout.file_size(1999, u64::MAX), u64::MAX);
        let end: u64 = layout.ranges(u64::MAX - 10, 100).map(|range| range.bytes).sum();
        assert_eq!(end, 10);
    }

    prop_compose! {
        fn layouts()(units in 1u64..=64, large in any::<bool>(), count in 1u32..=40) -> PlainLayout {
            layout(if large { STRIPE_BYTES_MAX - units * STRIPE_BYTES_MIN } else { units * STRIPE_BYTES_MIN }, count)
        }
    }

    proptest! {
        #[test]
        fn file_and_object_bytes_are_in_bijection(layout in layouts(), offset in 0..=FILE_BYTES_MAX) {
            let slot = layout.slot_of(offset);
            prop_assert!(slot < layout.stripe_count());
            let object_offset = layout.object_offset(offset);
            prop_assert!(object_offset <= offset);
            prop_assert_eq!(layout.file_offset(slot, object_offset), offset);
            prop_assert_eq!(layout.object_size(slot, offset), object_offset);
        }

        #[test]
        fn sizes_agree(layout in layouts(), size in prop_oneof![0..=FILE_BYTES_MAX, 0..=(1u64 << 30)]) {
            let sizes: Vec<u64> = (0..layout.stripe_count()).map(|slot| layout.object_size(slot, size)).collect();
            prop_assert_eq!(sizes.iter().sum::<u64>(), size);
            let implied = sizes.iter().enumerate().map(|(slot, &bytes)| layout.file_size(slot as u32, bytes)).max();
            prop_assert_eq!(implied, Some(size));
        }

        #[test]
        fn ranges_cover_a_request_once(
            layout in layouts(),
            offset in prop_oneof![0..=FILE_BYTES_MAX - (64 << 20), 0..=(1u64 << 30)],
            bytes in 0u64..(64 << 20),
            bytes_max in 4096u64..(8 << 20),
        ) {
            let mut pieces = Vec::new();
            let mut slots = std::collections::BTreeSet::new();
            for range in layout.ranges(offset, bytes) {
                prop_assert!(range.bytes > 0);
                prop_assert!(slots.insert(range.slot), "slot {} twice", range.slot);
                prop_assert_eq!(range.ost, layout.osts[range.slot as usize]);
                let mut expected = range.offset;
                for piece in range.pieces() {
                    prop_assert_eq!(piece.object_offset, expected);
                    prop_assert_eq!(layout.slot_of(piece.file_offset), range.slot);
                    expected += piece.bytes;
                    pieces.push((piece.file_offset, piece.bytes));
                }
                prop_assert_eq!(expected, range.offset + range.bytes);
                let mut next = range.offset;
                for chunk in range.chunks(bytes_max) {
                    prop_assert_eq!(chunk.offset, next);
                    prop_assert!(chunk.bytes > 0 && chunk.bytes <= bytes_max);
                    next += chunk.bytes;
                    prop_assert!(next == range.offset + range.bytes || next % BLOCK_BYTES == 0);
                }
                prop_assert_eq!(next, range.offset + range.bytes);
            }
            pieces.sort_unstable();
            let mut next = offset;
            for (start, length) in pieces {
                prop_assert_eq!(start, next);
                next += length;
            }
            prop_assert_eq!(next, offset + bytes);
        }
    }
}
