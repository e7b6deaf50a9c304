//! Parts of a file range: what is in one object, in which pieces, in which requests.

use types::limits::BLOCK_BYTES;

use crate::{component::Location, striping::Striping};

/// The part of a file range that is in one object; contiguous there, split into stripes in the
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// Slot of the object.
    pub slot: u32,
    /// The target that holds it.
    pub location: Location,
    /// First byte within the object.
    pub offset: u64,
    /// Bytes; never 0.
    pub bytes: u64,
    pub(crate) striping: Striping,
    /// Number of the object within the striping.
    pub(crate) index: u32,
}

/// A run of bytes that is contiguous in the file and in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte within the file.
    pub file_offset: u64,
    /// First byte within the object.
    pub object_offset: u64,
    /// Bytes; never 0, at most a stripe unless there is a single one.
    pub bytes: u64,
}

impl ObjectRange {
    /// Where the range begins in the file.
    pub fn file_offset(&self) -> u64 {
        self.striping.file_offset(self.index, self.offset)
    }

    /// The range's pieces in ascending order; they cover it exactly.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let Self { offset, bytes, striping, index, .. } = *self;
        let end = offset + bytes;
        let mut next = offset;
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let to_boundary = striping.stripe_bytes - next % striping.stripe_bytes;
            let bytes = if striping.stripe_count == 1 { end - next } else { to_boundary.min(end - next) };
            let piece = Piece { file_offset: striping.file_offset(index, next), object_offset: next, bytes };
            next += bytes;
            Some(piece)
        })
    }

    /// The same range in requests of at most `bytes_max` (at least one block of 4096 bytes), cut at
    /// multiples of a block within the object, so that no checksum block is split over two
    /// requests.
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
