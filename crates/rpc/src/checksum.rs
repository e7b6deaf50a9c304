//! CRC-32C of bulk data, piece by piece, as [`message::ost`](crate::message::ost) defines the
//! pieces: split at multiples of 4096 bytes of the object's offset. The client computes them once,
//! the OST verifies them on arrival, stores those of whole blocks, and passes the stored ones back
//! with the data.
//!
//! Invariant: `checksums(offset, data).len() == piece_count(offset, data.len())`, also for no data
//! at all. Downside: 32 bits detect every burst of up to 32 bits and miss one random corruption in
//! four billion.

use std::ops::Range;

use crc_fast::CrcAlgorithm;
use types::{FsError, FsResult, ProtocolError, limits::BLOCK_BYTES};

/// Bytes of a block, for slices.
const BLOCK: usize = BLOCK_BYTES as usize;

/// Checksum of one whole block of zeros: what a hole reads as.
pub const ZERO_BLOCK: u32 = 0x98f9_4189;

/// CRC-32C (Castagnoli) of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// Checksum of two parts one after the other, from the checksum of each and the length of the
/// second in bytes.
pub fn combine(first: u32, second: u32, second_bytes: u64) -> u32 {
    crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, u64::from(first), u64::from(second), second_bytes) as u32
}

/// Positions, within a buffer of `bytes` bytes at object offset `offset`, of its pieces, in order.
pub fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= bytes {
            return None;
        }
        let within_block = (offset.wrapping_add(start as u64) % BLOCK_BYTES) as usize;
        let end = bytes.min(start + BLOCK - within_block);
        let piece = start..end;
        start = end;
        Some(piece)
    })
}

/// Number of pieces of `bytes` bytes at object offset `offset`.
pub fn piece_count(offset: u64, bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    ((offset % BLOCK_BYTES) as usize + bytes).div_ceil(BLOCK)
}

/// Checksum of each piece of `data`, which start at object offset `offset`.
pub fn checksums(offset: u64, data: &[u8]) -> Vec<u32> {
    let mut sums = Vec::with_capacity(piece_count(offset, data.len()));
    sums.extend(pieces(offset, data.len()).map(|piece| crc32c(&data[piece])));
    sums
}

/// Compares `data` with the checksums that travelled with them; `Transfer` if the data are damaged,
/// `Protocol` if there is not one checksum per piece.
pub fn verify(offset: u64, data: &[u8], checksums: &[u32]) -> FsResult<()> {
    let pieces_expected = piece_count(offset, data.len());
    if checksums.len() != pieces_expected {
        return Err(ProtocolError::Checksums { found: checksums.len(), pieces: pieces_expected }.into());
    }
    let good = pieces(offset, data.len()).zip(checksums).all(|(piece, &sum)| crc32c(&data[piece]) == sum);
    if good { Ok(()) } else { Err(FsError::Transfer) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn is_castagnoli() {
        // Check value of CRC-32C in the catalogue of parametrised CRC algorithms.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; BLOCK]), ZERO_BLOCK);
    }

    #[test]
    fn pieces_of_the_documented_example() {
        let lengths: Vec<usize> = pieces(4000, 10000).map(|piece| piece.len()).collect();
        assert_eq!(lengths, [96, 4096, 4096, 1712]);
    }

    #[test]
    fn wrong_number_of_checksums_is_a_protocol_error() {
        assert!(matches!(verify(0, b"x", &[]), Err(FsError::Protocol(_))));
        assert!(matches!(verify(0, b"", &[0]), Err(FsError::Protocol(_))));
        assert_eq!(verify(0, b"", &[]), Ok(()));
    }

    proptest! {
        #[test]
        fn pieces_cover_the_data_in_order(offset in 0u64..20000, bytes in 0usize..30000) {
            let mut end = 0;
            for piece in pieces(offset, bytes) {
                prop_assert_eq!(piece.start, end);
                prop_assert!(!piece.is_empty() && piece.len() <= BLOCK);
                end = piece.end;
                prop_assert!(end == bytes || (offset + end as u64).is_multiple_of(BLOCK_BYTES));
            }
            prop_assert_eq!(end, bytes);
            prop_assert_eq!(piece_count(offset, bytes), pieces(offset, bytes).count());
        }

        #[test]
        fn combining_equals_computing(data in prop::collection::vec(any::<u8>(), 0..10000), cut in any::<prop::sample::Index>()) {
            let (first, second) = data.split_at(cut.index(data.len() + 1));
            prop_assert_eq!(combine(crc32c(first), crc32c(second), second.len() as u64), crc32c(&data));
        }

        #[test]
        fn any_flipped_bit_is_found(
            offset in 0u64..10000,
            mut data in prop::collection::vec(any::<u8>(), 1..10000),
            position in any::<prop::sample::Index>(),
            bit in 0u32..8,
        ) {
            let sums = checksums(offset, &data);
            prop_assert_eq!(verify(offset, &data, &sums), Ok(()));
            let position = position.index(data.len());
            data[position] ^= 1 << bit;
            prop_assert_eq!(verify(offset, &data, &sums), Err(FsError::Transfer));
        }
    }
}
