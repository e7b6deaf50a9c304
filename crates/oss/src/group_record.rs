//! The record of an allocation group: what is known of its free blocks without its bitmap. A group
//! without a record is free as a whole.
//!
//! ```text
//! offset bytes
//!  0     1     version, 1
//!  1     4     free blocks
//!  5     4     blocks of the longest run of free ones
//!  9     4     runs of free blocks
//! ```
//!
//! The bitmap of a group is in 64 pieces of 512 blocks, a bit per block, the lowest bit of a byte
//! first; set: used. A piece without a record has no used blocks.
//!
//! Numbers are little endian.

use blocks::{BITMAP_BYTES, Summary};
use types::record::{DecodeError, RecordReader, RecordWriter};

const VERSION: u8 = 1;
const WHAT: &str = "record of an allocation group";

/// Bytes of a piece of a bitmap.
pub const PIECE_BYTES: usize = 64;
/// Blocks of a piece.
pub const PIECE_BLOCKS: u32 = 8 * PIECE_BYTES as u32;

const _: () = assert!(BITMAP_BYTES / PIECE_BYTES == 64, "the format says 64 pieces");

/// The record's bytes.
pub fn encode_summary(summary: Summary) -> Vec<u8> {
    RecordWriter::new(VERSION).u32(summary.free).u32(summary.longest).u32(summary.runs).finish()
}

/// The summary of these bytes.
pub fn decode_summary(bytes: &[u8]) -> Result<Summary, DecodeError> {
    let mut reader = RecordReader::new(WHAT, bytes, VERSION)?;
    let summary = Summary { free: reader.u32()?, longest: reader.u32()?, runs: reader.u32()? };
    reader.finish()?;
    Ok(summary)
}

/// The piece of these bytes.
pub fn decode_piece(bytes: &[u8]) -> Result<[u8; PIECE_BYTES], DecodeError> {
    bytes
        .try_into()
        .map_err(|_| DecodeError { record: "piece of a bitmap", damage: types::RecordDamage::OutOfRange("length") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let summary = Summary { free: 0x0102, longest: 3, runs: 4 };
        let bytes = encode_summary(summary);
        assert_eq!(bytes, [1, 2, 1, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(decode_summary(&bytes), Ok(summary));
    }

    #[test]
    fn damage_is_an_error() {
        let bytes = encode_summary(Summary::default());
        for length in 0..bytes.len() {
            assert!(decode_summary(&bytes[..length]).is_err(), "{length}");
        }
        assert!(decode_summary(&[bytes, vec![0]].concat()).is_err());
        assert!(decode_piece(&[0; 63]).is_err());
        assert!(decode_piece(&[0; 64]).is_ok());
    }
}
